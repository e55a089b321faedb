"""The runs that are held: stopped where they are until a closed window is over (worker/training/run_gate.py)."""

import time
from typing import Final

from smore.messages.reports import WarmState
from worker.activity import Activity
from worker.pool.instance import Instance
from worker.pool.residents import Residents

#: Seconds within which processes are stopped by a signal.
_STILL_S: Final = 1.0


class Held:
    """:meth:`hold` and :meth:`go_on` are for one thread, which does not hold the pool's lock."""

    def __init__(self, residents: Residents, activity: Activity) -> None:
        self._residents, self._activity = residents, activity
        #: Whether each is counted as idle meanwhile.
        self._idle: dict[Instance, bool] = {}

    def hold(self) -> None:
        """
        Stop the runners of the batches that run, until :meth:`go_on`, and count them as idle once they stand still. On a
        GPU a stopped process starts no more kernels; those that it has started run to their end.
        """
        with self._residents.lock:
            for instance in self._residents:
                if instance.state is WarmState.BUSY and not instance.leaving and instance.runner is not None:
                    instance.runner.hold()
                    self._idle[instance] = False
        until = time.monotonic() + _STILL_S
        for instance in self._idle:
            assert instance.runner is not None
            still = instance.runner.stands(until)
            with self._residents.lock:
                # One whose run has ended meanwhile is at work no more.
                if still and instance.state is WarmState.BUSY and not instance.leaving:
                    self._idle[instance] = True
                    self._activity.end()

    def go_on(self) -> None:
        """Let what :meth:`hold` has stopped run again."""
        with self._residents.lock:
            for instance in self._idle:
                self.count_again(instance)
                assert instance.runner is not None
                instance.runner.go_on()
            self._idle.clear()

    def count_again(self, instance: Instance) -> None:
        """Its holder is about to give it back, or it goes on: its run counts as work. With the lock held."""
        if self._idle.get(instance):
            self._idle[instance] = False
            self._activity.begin()
