"""
The standby runner: one process without a model that waits for the next cold start, with its device context made.

The pool takes it for a load and has the next one made. On a GPU it also shows whether a process can begin to use the
device, and how much memory a process holds there before it computes anything.
"""

from dataclasses import dataclass, field
from typing import Final

from smore.process import observability
from worker.activity import Activity
from worker.device.device import Device
from worker.frames import BadFrame
from worker.pool.health import DeviceHealth, names_no_device
from worker.pool.residents import Residents
from worker.pool.trainings import Trainings
from worker.runner.runner_handle import NoRunner, Runner, RunnerDied, RunnerFailed, RunnerTimeout
from worker.runner.zygote_handle import Zygote

log = observability.logger(__name__)

#: Seconds that a process may take to begin to use the device.
_PREPARE_S: Final = 120.0
#: Seconds without a standby runner after training needed the memory of one.
_PAUSE_S: Final = 30.0
#: Seconds until the next try after one could not be made; doubles with each failure up to the second figure.
_RETRY_S: Final = 1.0
_RETRY_MOST_S: Final = 60.0
#: MiB that a process takes of a GPU before it computes anything, until one has been measured here.
CONTEXT_MIB: Final = 600.0


@dataclass(eq=False, kw_only=True)
class Standby:
    """
    At most one standby runner. ``wanted``: whether there is to be one; without it one is made only to find out whether
    an unusable device works again.

    The runner, its memory and the time of the next try are guarded by the pool's lock; :meth:`make` forks without it.
    """

    residents: Residents
    device: Device
    health: DeviceHealth
    activity: Activity
    zygote: Zygote
    wanted: bool
    trainings: Trainings
    #: MiB that a process takes of the device before it computes anything; on a CPU partition none are counted.
    context_mib: float = field(init=False)
    runner: Runner | None = field(default=None, init=False)
    #: MiB of the device that it holds.
    memory_mib: float = field(default=0.0, init=False)
    _not_before: float = field(default=0.0, init=False)
    _retry_s: float = field(default=_RETRY_S, init=False)

    def __post_init__(self) -> None:
        self.context_mib = CONTEXT_MIB if self.device.handler_device == "cuda" else 0.0

    def due(self) -> bool:
        """With the lock held: whether :meth:`make` is to be called now, and there is room for what it makes."""
        wanted = self.wanted or self.health.unusable
        residents = self.residents
        if not wanted or residents.clock() < self._not_before or self.runner is not None or residents.loading:
            return False
        if self.device.handler_device == "cpu":
            return True
        free_mib = self.device.free_mib()
        room = free_mib is None or free_mib - self.trainings.owed_mib() > self.context_mib
        return room and not self.device.health() and not self.trainings.growing()

    def make(self) -> None:
        """Fork one and let it begin to use the device. A failure is logged, and the next try is put off."""
        runner: Runner | None = None
        try:
            # Of no function: a training that it slows down has not lost that to functions.
            with self.activity.working(function=False):
                runner = self.zygote.fork()
                runner.prepare(self.device.handler_device, _PREPARE_S)
        except (NoRunner, RunnerDied, RunnerTimeout, RunnerFailed, BadFrame) as error:
            log.warning("no standby runner", error=str(error))
            if runner is not None:
                self.end(runner)
            with self.residents.lock:
                self._not_before = self.residents.clock() + self._retry_s
                self._retry_s = min(2 * self._retry_s, _RETRY_MOST_S)
            if isinstance(error, RunnerFailed) and names_no_device(error):
                self.health.set_unusable(str(error))
            return
        self.health.set_unusable("")
        memory_mib = self.device.process_memory_mib(runner.pid) or self.context_mib
        with self.residents.lock:
            self._retry_s = _RETRY_S
            wanted = self.wanted and self.runner is None
            if wanted and not self.residents.closed and not runner.ended.is_set():
                self.runner, self.memory_mib = runner, memory_mib
                return
        self.end(runner)

    def take(self) -> Runner | None:
        """The standby runner, the caller's from now on; None where there is none. Takes the lock."""
        with self.residents.lock:
            runner, self.runner = self.runner, None
            self.memory_mib = 0.0
        return runner

    def give_up(self) -> Runner | None:
        """As :meth:`take`, because training needs its memory: the next one is made a while later."""
        with self.residents.lock:
            runner = self.take()
            if runner is not None:
                self._not_before = self.residents.clock() + _PAUSE_S
            return runner

    def measure(self) -> None:
        """With the lock held: note what a GPU's driver says of its memory."""
        if self.runner is not None and (held_mib := self.device.process_memory_mib(self.runner.pid)):
            self.memory_mib = self.context_mib = held_mib

    def exited(self, runner: Runner) -> None:
        """The process of a runner, this one or another, has ended. Takes the lock."""
        with self.residents.lock:
            if self.runner is runner:
                self.take()

    def end(self, runner: Runner) -> None:
        """Kill a runner without a model and wait until its memory is back."""
        with self.activity.working(function=False):
            runner.end()
