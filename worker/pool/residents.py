"""
The instances of the warm pool and the one lock that guards them.

Every part of the pool (:mod:`worker.pool`) reads and changes instances through :class:`Residents`. What must stay true:
an instance is in this set or among the parked ones as long as its process may hold memory of the device.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from smore.messages.reports import WarmState
from worker.pool.instance import Instance
from worker.pool.lifecycle import Ending, Lifecycles
from worker.pool.parked import ParkedInstances
from worker.pool.quarantine import Key
from worker.runner.runner_handle import Runner


class Residents:
    """
    Instances by revision, the parked ones and the lifecycles of both. ``clock`` gives seconds; ``changed`` is called,
    briefly and with the lock held, when a report would say something new. ``parked``: where instances that are let go
    of may wait; by default none is parked.

    Lock discipline: every part of one pool shares ``lock``, which is reentrant. Every field and method here is used
    with it held, unless its docstring says otherwise. Nobody holds it during what takes time: forks, loads, moves,
    kills and waits for processes.
    """

    def __init__(
        self,
        *,
        gpu: str,
        boot: str,
        changed: Callable[[], None],
        parked: ParkedInstances | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gpu = gpu
        self.lock = threading.RLock()
        #: Notified when an instance or memory becomes free.
        self.freed = threading.Condition(self.lock)
        #: Notified when :class:`worker.pool.upkeep.Upkeep` has something to do. The same lock, but the end of a batch
        #: need not wake that thread.
        self.upkeep = threading.Condition(self.lock)
        self.clock = clock
        self.changed = changed
        self.parked = parked if parked is not None else ParkedInstances()
        self.lifecycles = Lifecycles(boot)
        #: Loads that have begun and not ended.
        self.loading = 0
        self.closed = False
        self._instances: dict[Key, list[Instance]] = {}

    def __iter__(self) -> Iterator[Instance]:
        """All instances that are not parked, leaving ones too."""
        return (instance for instances in self._instances.values() for instance in instances)

    def of(self, key: Key) -> Sequence[Instance]:
        """Those of a revision, leaving ones too."""
        return self._instances.get(key, ())

    def staying(self, key: Key) -> list[Instance]:
        """Those of a revision that do not leave."""
        return [instance for instance in self.of(key) if not instance.leaving]

    def by_revision(self) -> Iterator[tuple[Key, Sequence[Instance]]]:
        return iter(self._instances.items())

    def of_runner(self, runner: Runner) -> Instance | None:
        """The idle or parked instance of this runner, if it does not leave already."""
        for instance in self:
            if instance.runner is runner and instance.state is WarmState.IDLE and not instance.leaving:
                return instance
        return self.parked.of(runner)

    def memory_mib(self) -> float:
        """Of all instances and of the parked ones, MiB of the device."""
        return self.parked.memory_mib + sum(instance.memory_mib for instance in self)

    def add(self, instance: Instance) -> None:
        """Its load begins."""
        self._instances.setdefault(instance.key, []).append(instance)
        self.loading += 1
        self.changed()

    def remove(self, instance: Instance, ending: Ending) -> bool:
        """End its lifecycle and take it out of the set. False where it is not in it."""
        instances = self._instances.get(instance.key, [])
        if instance not in instances:
            return False
        instances.remove(instance)
        if not instances:
            del self._instances[instance.key]
        self.lifecycles.end(instance.lifecycle, self.clock(), ending, instance.memory_mib)
        return True

    def announce(self) -> None:
        """Instances or memory have become free: tell the reports and whoever waits."""
        self.changed()
        self.freed.notify_all()
