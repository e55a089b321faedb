"""
Parked instances, between warm and gone: the process lives, the weights lie in pinned host memory.

Used by the parts of the pool. What must stay true: whatever needs memory of the device goes before a parked instance,
and a load of a revision takes its parked instance before it begins a new process.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from smore.messages.reports import ParkedInstance
from worker.pool.instance import Instance
from worker.pool.quarantine import Key
from worker.runner.runner_handle import Runner


@dataclass(eq=False, slots=True, kw_only=True)
class _Entry:
    instance: Instance
    host_mib: float
    until: float


class ParkedInstances:
    """
    Parked instances, the one parked longest ago first; guarded by the pool's lock. ``most_mib``: of host memory, 0 = no
    instance is parked; ``keep_s``: seconds for which one stays.
    """

    def __init__(self, most_mib: float = 0.0, keep_s: float = 600.0) -> None:
        self.most_mib = most_mib
        self._keep_s = keep_s
        self._entries: list[_Entry] = []

    def __iter__(self) -> Iterator[Instance]:
        """All, leaving ones too."""
        return (entry.instance for entry in self._entries)

    @property
    def host_mib(self) -> float:
        """Host memory that they hold."""
        return sum(entry.host_mib for entry in self._entries)

    @property
    def memory_mib(self) -> float:
        """What their processes still hold of the device: contexts, and what handlers keep beside their modules."""
        return sum(entry.instance.memory_mib for entry in self._entries)

    def add(self, instance: Instance, host_mib: float, now: float) -> None:
        """Its weights, ``host_mib`` of them, lie in host memory from now on."""
        self._entries.append(_Entry(instance=instance, host_mib=host_mib, until=now + self._keep_s))

    def take(self, key: Key) -> Instance | None:
        """The one of a revision that was parked last; it is the caller's then."""
        entry = next(
            (entry for entry in reversed(self._entries) if entry.instance.key == key and not entry.instance.leaving),
            None,
        )
        if entry is None:
            return None
        self._entries.remove(entry)
        return entry.instance

    def remove(self, instance: Instance) -> bool:
        """It is gone. False where it was not parked."""
        kept = [entry for entry in self._entries if entry.instance is not instance]
        removed = len(kept) < len(self._entries)
        self._entries = kept
        return removed

    def of(self, runner: Runner) -> Instance | None:
        """The one with this runner, if it does not leave already."""
        return next((instance for instance in self if instance.runner is runner and not instance.leaving), None)

    def report(self, now: float) -> list[ParkedInstance]:
        """Those that do not leave, as a report has them."""
        return [
            ParkedInstance(
                function=instance.function,
                revision=instance.revision,
                memory_mib=round(instance.memory_mib, 1),
                host_mib=round(entry.host_mib, 1),
                left_s=round(max(0.0, entry.until - now), 3),
            )
            for entry in self._entries
            if not (instance := entry.instance).leaving
        ]

    def staying(self) -> list[Instance]:
        """Those that do not leave."""
        return [instance for instance in self if not instance.leaving]

    def due(self, now: float) -> list[Instance]:
        """Those whose time is over, and the ones parked longest ago beyond ``most_mib``. They leave from now on."""
        over = self.host_mib - self.most_mib
        going = []
        for entry in self._entries:
            if entry.instance.leaving:
                over -= entry.host_mib
            elif over > 0 or entry.until <= now:
                over -= entry.host_mib
                entry.instance.leaving = True
                going.append(entry.instance)
        return going
