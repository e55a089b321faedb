"""
The third state of an instance, between warm and gone: its process lives, its weights lie in pinned host memory (digest
A62).

Whatever wants memory of the device goes before it; a load of its revision takes it before it begins anything new.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smore.messages.reports import ParkedInstance

if TYPE_CHECKING:
    from worker.pool.instance import Instance
    from worker.pool.quarantine import Key
    from worker.runner.processes import Runner


@dataclass(eq=False, slots=True, kw_only=True)
class _Entry:
    instance: "Instance"
    host_mib: float
    until: float


class Parked:
    """
    Parked instances, the one parked longest ago first; guarded by the pool. ``most_mib``: of host memory, 0 = nothing
    is parked; ``keep_s``: how long one stays.
    """

    def __init__(self, most_mib: float = 0.0, keep_s: float = 600.0) -> None:
        self.most_mib = most_mib
        self._keep_s = keep_s
        self._entries: list[_Entry] = []

    def __iter__(self) -> Iterator["Instance"]:
        """Also those that leave."""
        return (entry.instance for entry in self._entries)

    @property
    def host_mib(self) -> float:
        return sum(entry.host_mib for entry in self._entries)

    @property
    def memory_mib(self) -> float:
        """What their processes still hold of the device: its context, and what a handler keeps beside its modules."""
        return sum(entry.instance.memory_mib for entry in self._entries)

    def add(self, instance: "Instance", host_mib: float, now: float) -> None:
        self._entries.append(_Entry(instance=instance, host_mib=host_mib, until=now + self._keep_s))

    def take(self, key: "Key") -> "Instance | None":
        """The one that was parked last; it is the caller's then."""
        entry = next(
            (entry for entry in reversed(self._entries) if entry.instance.key == key and not entry.instance.leaving),
            None,
        )
        if entry is None:
            return None
        self._entries.remove(entry)
        return entry.instance

    def remove(self, instance: "Instance") -> bool:
        """It is gone. False where it was not parked."""
        kept = [entry for entry in self._entries if entry.instance is not instance]
        found = len(kept) < len(self._entries)
        self._entries = kept
        return found

    def of(self, runner: "Runner") -> "Instance | None":
        return next((one for one in self if one.runner is runner and not one.leaving), None)

    def told(self, now: float) -> list[ParkedInstance]:
        """For a report."""
        return [
            ParkedInstance(
                function=one.function,
                revision=one.revision,
                memory_mib=round(one.memory_mib, 1),
                host_mib=round(entry.host_mib, 1),
                left_s=round(max(0.0, entry.until - now), 3),
            )
            for entry in self._entries
            if not (one := entry.instance).leaving
        ]

    def staying(self) -> list["Instance"]:
        return [one for one in self if not one.leaving]

    def due(self, now: float) -> list["Instance"]:
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
