"""
What waits: per function lanes of invocations that may share a batch, each by deadline, then arrival, then id
(docs/paper.md, A18).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from scheduler.policy.events import InvocationArrived

#: Function, revision, shape, whether it is bulk work (class batch).
Lane = tuple[str, int, str, bool]
#: Deadline, arrival, id.
Entry = tuple[float, float, str]


@dataclass(slots=True)
class Lanes:
    """Lanes keyed by :data:`Lane`; an invocation that must run alone has a lane of its own."""

    _lanes: dict[Lane, list[Entry]] = field(default_factory=dict)
    _invocations: dict[str, InvocationArrived] = field(default_factory=dict)
    #: The entry of each: what else a heap holds is of one that was taken or removed.
    _entries: dict[str, Entry] = field(default_factory=dict)
    _of_function: dict[str, dict[Lane, None]] = field(default_factory=dict)
    _count: dict[str, int] = field(default_factory=dict)
    #: How many of those are bulk work, and of all functions together.
    _bulk: dict[str, int] = field(default_factory=dict)
    bulk: int = 0

    def __len__(self) -> int:
        return len(self._invocations)

    def __contains__(self, id_: object) -> bool:
        return id_ in self._invocations

    @staticmethod
    def lane_of(invocation: InvocationArrived) -> Lane:
        shape = f"!{invocation.id}" if invocation.alone else invocation.shape
        return (invocation.function, invocation.revision, shape, invocation.bulk)

    def add(self, invocation: InvocationArrived) -> None:
        if invocation.id in self._invocations:
            return
        lane = self.lane_of(invocation)
        self._invocations[invocation.id] = invocation
        heap = self._lanes.get(lane)
        if heap is None:
            heap = self._lanes[lane] = []
            self._of_function.setdefault(invocation.function, {})[lane] = None
        entry = self._entries[invocation.id] = (invocation.deadline_at, invocation.arrival_at, invocation.id)
        heappush(heap, entry)
        self._count[invocation.function] = self._count.get(invocation.function, 0) + 1
        if invocation.bulk:
            self._bulk[invocation.function] = self._bulk.get(invocation.function, 0) + 1
            self.bulk += 1

    def remove(self, id_: str) -> InvocationArrived | None:
        """Forget one. Its entry in the heap is passed over when it comes up."""
        invocation = self._invocations.pop(id_, None)
        if invocation is not None:
            del self._entries[id_]
            left = self._count[invocation.function] - 1
            if left:
                self._count[invocation.function] = left
            else:
                del self._count[invocation.function]
            if invocation.bulk:
                self._bulk[invocation.function] -= 1
                self.bulk -= 1
        return invocation

    def functions(self) -> list[str]:
        return list(self._count)

    def count(self, function: str) -> int:
        return self._count.get(function, 0)

    def of_class(self, function: str, bulk: bool) -> int:
        """How many wait of a function that are bulk work, or of those that are not."""
        count = self._bulk.get(function, 0)
        return count if bulk else self.count(function) - count

    def lanes(self, function: str) -> list[Lane]:
        """Lanes of a function that hold something, the earliest deadline first. Empty ones are dropped on the way."""
        heads = []
        for lane in list(self._of_function.get(function, ())):
            head = self._head(lane)
            if head is None:
                del self._lanes[lane]
                del self._of_function[function][lane]
            else:
                heads.append((head, lane))
        if not heads:
            self._of_function.pop(function, None)
        heads.sort()
        return [lane for _, lane in heads]

    def head(self, lane: Lane) -> InvocationArrived | None:
        entry = self._head(lane)
        return None if entry is None else self._invocations[entry[2]]

    def first(self, lane: Lane, at_most: int) -> list[InvocationArrived]:
        """The first ``at_most`` of a lane in order, left where they are."""
        heap = self._lanes.get(lane)
        if heap is None:
            return []
        if at_most == 1:
            head = self.head(lane)
            return [] if head is None else [head]
        taken: list[Entry] = []
        members: list[InvocationArrived] = []
        while len(members) < at_most:
            entry = self._head(lane)
            if entry is None:
                break
            heappop(heap)
            taken.append(entry)
            members.append(self._invocations[entry[2]])
        for entry in taken:
            heappush(heap, entry)
        return members

    def take(self, lane: Lane, count: int) -> None:
        """Remove the first ``count`` of a lane."""
        heap = self._lanes[lane]
        while count:
            entry = self._head(lane)
            if entry is None:
                return
            heappop(heap)
            self.remove(entry[2])
            count -= 1

    def take_these(self, invocations: Sequence[InvocationArrived]) -> None:
        """Remove some. Their entries in the heap are passed over when they come up."""
        for invocation in invocations:
            self.remove(invocation.id)

    def due_after(self, lane: Lane, moment: float) -> InvocationArrived | None:
        """The first of a lane whose deadline is not before ``moment``."""
        later = [entry for entry in self._lanes.get(lane, ()) if entry[0] >= moment and self._live(entry)]
        return self._invocations[min(later)[2]] if later else None

    def entries(self, lane: Lane) -> list[Entry]:
        """Of all that wait in a lane, in any order."""
        return [entry for entry in self._lanes.get(lane, ()) if self._live(entry)]

    def oldest(self, function: str, now: float) -> float:
        """When the oldest head of a function's lanes arrived, bulk work left out; ``now`` without any."""
        heads = [
            head.arrival_at for lane in self.lanes(function) if not lane[3] and (head := self.head(lane)) is not None
        ]
        return min(heads, default=now)

    def of_function(self, function: str) -> Iterator[InvocationArrived]:
        return (invocation for invocation in self._invocations.values() if invocation.function == function)

    def _head(self, lane: Lane) -> Entry | None:
        heap = self._lanes.get(lane)
        while heap:
            entry = heap[0]
            if self._entries.get(entry[2]) is entry:
                return entry
            heappop(heap)
        return None

    def _live(self, entry: Entry) -> bool:
        return self._entries.get(entry[2]) is entry
