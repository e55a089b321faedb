"""What is to come in a run, by time; what comes at one time is in the order in which it was pushed."""

from enum import IntEnum
from heapq import heappop, heappush
from math import inf
from typing import Any


class Kind(IntEnum):
    """What an entry of the heap brings about, and its payload."""

    #: The next batch of a GPU instance is done, unless the state has changed since: its version.
    COMPLETE = 0
    #: A load is done: it.
    LOADED = 1
    #: A worker reports: whether as it does every interval.
    REPORT = 2
    #: A report reaches the policy: it.
    DELIVER = 3
    #: A dispatch reaches its GPU instance: its batch.
    START = 4
    #: A refused batch returns to the queue: it.
    RETURN = 5
    #: A GPU instance fails: for how long, seconds.
    FAIL = 6
    #: Leases on a GPU instance run out.
    LEASES_END = 7
    #: A GPU instance comes back: the boot that it comes back from.
    RECOVER = 8
    #: A window closes, stops what runs, or opens: which of it, of which boot, and of which of its windows.
    WINDOW = 9
    #: Finish bounds are published.
    PUBLISH = 10
    #: The span of the trace ends: integrals are read.
    MEASURE = 11


class Heap:
    """Entries (time, number, kind, index of the GPU instance, payload). It is never empty: one never comes."""

    def __init__(self) -> None:
        self._number = 0
        self._entries: list[tuple[float, int, Kind, int, Any]] = []
        self.push(inf, Kind.MEASURE)

    @property
    def next_at(self) -> float:
        return self._entries[0][0]

    def push(self, at: float, kind: Kind, index: int = 0, payload: Any = None) -> None:
        self._number += 1
        heappush(self._entries, (at, self._number, kind, index, payload))

    def pop(self) -> tuple[Kind, int, Any]:
        """The first entry: kind, index, payload."""
        _, _, kind, index, payload = heappop(self._entries)
        return kind, index, payload
