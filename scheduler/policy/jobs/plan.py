"""
What is to come: GPU instances that are kept for whoever is first, and when each job that waits is expected to start.

A **reservation** names GPU instances and the time at which they are expected to be free. It is made once and stays while
the job is first and these GPU instances take jobs, so the time does not move away when running jobs overrun. Others may
use what is kept only where they end before that time by their 90 % length. So whoever is first by patience starts at
the latest when the jobs that ran when its reservation was made, and those that overran the time they were let in for,
have ended.

A **forecast** plays the queue forward on numbers of GPU instances by pool, once with expected and once with 90 %
lengths. It knows limits of projects, back-off and the reservation; it does not know jobs to come, patience that will be
over, nor where free GPU instances lie; a pinned job waits for its GPU instances and takes none from the others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from scheduler.policy.jobs.fleet import Fleet, Gpu, PoolKey
from scheduler.policy.jobs.job import Job
from scheduler.policy.jobs.projects import Projects
from scheduler.policy.jobs.spec import Needs

#: When the jobs on a GPU instance are expected to have ended.
ReadyAt = Callable[[Gpu], float]


@dataclass(frozen=True, slots=True)
class Reservation:
    """``gpus`` are kept for the job ``id``, and expected to be free for it at ``at``."""

    id: str
    gpus: frozenset[str]
    at: float


def for_another(kept: Reservation | None, job: Job) -> Reservation | None:
    """What is kept, None = nothing is, or for this job."""
    return kept if kept is not None and kept.id != job.spec.id else None


def reserve(
    fleet: Fleet, keys: Sequence[PoolKey], job: Job, ready_at: ReadyAt, allowed_at: float
) -> Reservation | None:
    """
    The GPU instances that a job could have the earliest, and when; None = it could not start even when all others have
    ended. ``allowed_at``: when its project's limit lets it, inf = never. Where it must wait for that, it is to have those
    that are ready last by then, so that none stands idle for it meanwhile.
    """
    best: tuple[float, list[Gpu]] | None = None
    for key in keys if not job.needs.pins else [None]:
        gpus = fleet.eligible(job.needs, key)
        if len(gpus) < job.needs.size:
            continue
        ready = [ready_at(gpu) for gpu in gpus]
        at = sorted(ready)[job.needs.size - 1]
        if best is None or at < best[0]:
            if allowed_at > at:
                in_time = [(ready_s, gpu) for ready_s, gpu in zip(ready, gpus, strict=True) if ready_s <= allowed_at]
                last = sorted(in_time, key=lambda each: each[0])[-job.needs.size :]
                best = at, [gpu for _, gpu in last]
            else:
                best = at, [gpu for gpu, ready_s in zip(gpus, ready, strict=True) if ready_s <= at]
    if best is None or allowed_at == inf:
        return None
    at, gpus = best
    return Reservation(job.spec.id, frozenset(fleet.gather(job.needs.size, gpus)), max(at, allowed_at))


class PlannedEnd(NamedTuple):
    """A running job's expected end: when, its pool (None: its GPU instances take nobody), how many, its project."""

    at: float
    key: PoolKey | None
    gpus: int
    project: str


#: Jobs alike to a forecast: their pools, how many GPU instances they need, their project where that has a limit.
Lane = tuple[tuple[PoolKey, ...], int, str]


class PlannedJob(NamedTuple):
    """A job that waits, as a forecast sees it: its ``length_s``, its pools, and from when on it may start."""

    id: str
    needs: Needs
    project: str
    length_s: float
    keys: tuple[PoolKey, ...]
    from_at: float


class QueueForecast:
    """
    The queue played forward, as far as it is asked. Jobs alike in what they need stand in one lane, so that only the first
    of each is looked at.

    ``free`` GPU instances by pool; ``ends`` of jobs that run; ``waiting`` in order; ``pins``: GPU instance → when it is free
    for a pinned job; ``fixed``: job → when it starts by its reservation, and in which pool. ``in_order``: nobody passes.
    Times in epoch seconds.
    """

    def __init__(
        self,
        now: float,
        free: Mapping[PoolKey, int],
        projects: Projects,
        ends: Iterable[PlannedEnd],
        waiting: Sequence[PlannedJob],
        pins: Mapping[str, float],
        fixed: Mapping[str, tuple[float, PoolKey | None]],
        *,
        in_order: bool,
    ) -> None:
        self._now, self._projects, self._in_order, self._waiting = now, projects, in_order, waiting
        self._free = dict(free)
        self._held = dict(projects.held)
        #: (time, number, what ends, what joins the queue: its place).
        self._heap: list[tuple[float, int, PlannedEnd | None, int]] = [
            (max(now, end.at), number, end, -1) for number, end in enumerate(ends)
        ]
        heapify(self._heap)
        self._number = len(self._heap)
        self._lanes: dict[Lane, list[int]] = {}
        #: Limits of projects that have one and jobs that wait.
        self._most: dict[str, float] = {}
        self._starts: dict[str, float] = {}
        self._begin(dict(pins), fixed)

    def starts(self) -> Mapping[str, float]:
        """When each job starts; one that never could is missing."""
        while self._heap:
            self._step()
        return self._starts

    def start_of(self, id_: str) -> float:
        """When a job starts; inf = it never could."""
        while id_ not in self._starts and self._heap:
            self._step()
        return self._starts.get(id_, inf)

    def _begin(self, ready: dict[str, float], fixed: Mapping[str, tuple[float, PoolKey | None]]) -> None:
        for place, job in enumerate(self._waiting):
            if job.id in fixed:
                at, key = fixed[job.id]
                self._starts[job.id] = at = max(at, self._now)
                self._push(at + job.length_s, PlannedEnd(at + job.length_s, key, job.needs.size, job.project))
            elif job.needs.pins:
                at = max([job.from_at, self._now, *(ready.get(name, inf) for name in job.needs.pins)])
                if at < inf:
                    self._starts[job.id] = at
                    ready |= dict.fromkeys(job.needs.pins, at + job.length_s)
            elif job.keys:
                if job.from_at > self._now:
                    self._push(job.from_at, None, place)
                else:
                    self._join(place, job)
        self._start(self._now)

    def _step(self) -> None:
        """All that happens at the next time at which anything does."""
        at = self._heap[0][0]
        while self._heap and self._heap[0][0] <= at:
            _, _, end, place = heappop(self._heap)
            if end is None:
                self._join(place, self._waiting[place])
                continue
            if end.key is not None:
                self._free[end.key] = self._free.get(end.key, 0) + end.gpus
            self._held[end.project] = self._held.get(end.project, 0) - end.gpus
        self._start(at)

    def _push(self, at: float, end: PlannedEnd | None, place: int = -1) -> None:
        self._number += 1
        heappush(self._heap, (at, self._number, end, place))

    def _join(self, place: int, job: PlannedJob) -> None:
        most = self._projects.most(job.project)
        limited = job.project if most < inf else ""
        self._most[limited] = most
        heappush(self._lanes.setdefault((job.keys, job.needs.size, limited), []), place)

    def _start(self, at: float) -> None:
        """Start whatever fits, in order."""
        free, held = self._free, self._held
        while self._lanes:
            best: tuple[int, PoolKey | None, Lane] | None = None
            for lane, places in self._lanes.items():
                if best is not None and places[0] > best[0]:
                    continue
                keys, size, limited = lane
                if limited and held.get(limited, 0) + size > self._most[limited]:
                    continue
                for key in keys:
                    if free.get(key, 0) >= size:
                        best = places[0], key, lane
                        break
                else:
                    if self._in_order:
                        best = places[0], None, lane
            if best is None or best[1] is None:
                return
            place, chosen, lane = best[0], best[1], best[2]
            job = self._waiting[place]
            heappop(self._lanes[lane])
            if not self._lanes[lane]:
                del self._lanes[lane]
            self._free[chosen] -= job.needs.size
            self._held[job.project] = self._held.get(job.project, 0) + job.needs.size
            self._starts[job.id] = at
            self._push(at + job.length_s, PlannedEnd(at + job.length_s, chosen, job.needs.size, job.project))
