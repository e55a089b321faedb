"""
Ends that are promised, and who may start so that they are kept.

A promise is a moment by which a job is to have ended; its **latest start** is that moment less :data:`MARGIN` times its sure
length, and moves when that length changes. A **plan** lays all promised jobs that wait out in the order of their latest
starts, on the times at which GPU instances are free by the sure lengths of whoever runs, and on what is kept for whoever is
first by patience; once so that nobody passes, once so that whoever fits does. A promise **holds** where the better of the two
keeps it: the one that keeps more of them.

A promise is given only where one plan keeps it and all that hold. Every start is refused after which no plan would keep all
that hold now. One that does not hold refuses nobody: its job comes first once its latest start has come.

In the plan in which nobody passes no start is later where jobs end earlier than was sure. That does not hold of the other one
(list scheduling), of projects with limits, or where jobs may have several pools, so there a promise can be lost though all
lengths were sure.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence, Set
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from scheduler.policy.jobs.decisions import BesideHost, JobRefusal, NotPromised, Pledge, Promised, Unpromised
from scheduler.policy.jobs.fleet import Fleet, PoolKey
from scheduler.policy.jobs.job import Ends, Job, JobPhase
from scheduler.policy.jobs.knobs import JobKnobs
from scheduler.policy.jobs.lengths import UNKNOWN, Length
from scheduler.policy.jobs.pairs import end_beside
from scheduler.policy.jobs.plan import PlannedEnd, PlannedJob, QueueForecast, Reservation
from scheduler.policy.jobs.projects import Projects
from scheduler.policy.jobs.spec import Needs
from smore.domain.job import EARLIEST
from smore.domain.loss import LEAST_BUDGET

#: Times a sure length that are kept for a job before the moment of its promise.
MARGIN: Final = 1.03
#: Moments that differ by less are the same, seconds.
TICK_S: Final = 1e-3
#: Trainings that are named where they leave another one no room.
_NAMED: Final = 3


class ConsideredStart(NamedTuple):
    """A start that is considered: when the job has surely ended then, and when each of its hosts has."""

    job: Job
    gpus: Sequence[str]
    until: float
    hosts: Mapping[str, float]


class _Ground(NamedTuple):
    """What a :class:`~scheduler.policy.jobs.plan.QueueForecast` of promised jobs begins with."""

    free: Mapping[PoolKey, int]
    ends: Sequence[PlannedEnd]
    pins: Mapping[str, float]
    fixed: Mapping[str, tuple[float, PoolKey | None]]
    projects: Projects


class _Place(NamedTuple):
    """Where a job is laid out, and its sure length there."""

    keys: tuple[PoolKey, ...]
    sure_s: float


#: Starts that are alike to a plan: what they take, and what they leave to their hosts.
_Kind = tuple[PoolKey | None, int, str, tuple[str, ...], tuple[tuple[str, float], ...]]


class Promises:
    """
    The promises of a rule that are not over. ``latest``: job → latest start of each that waits, which the queue reads.
    """

    def __init__(
        self,
        knobs: JobKnobs,
        fleet: Fleet,
        projects: Projects,
        jobs: Mapping[str, Job],
        lefts: Ends,
        latest: MutableMapping[str, float],
        length_s: Callable[[Length], float] = attrgetter("surely_s"),
    ) -> None:
        self._length_s = length_s
        self._knobs, self._fleet, self._projects, self._jobs = knobs, fleet, projects, jobs
        self._given: dict[str, Job] = {}
        self._lefts, self._latest = lefts, latest
        self._at = -inf
        #: Good until time passes or lengths change: where promised jobs are laid out.
        self._places: dict[str, _Place] = {}
        self._whole: dict[Needs, tuple[PoolKey, ...]] = {}
        #: Good until they are slowed: ends of running jobs.
        self._ends: dict[str, float] = {}
        #: When each GPU instance is free and how many are when, but for those of which it may have changed.
        self._ready: dict[str, float] = {}
        self._counts: Counter[tuple[float, PoolKey | None]] = Counter()
        self._moved: set[str] = set()
        #: Good until somebody starts or ends: which promises hold, and the earliest sure ends of starts that were refused with
        #: what they would break, by kind.
        self._held: frozenset[str] | None = None
        self._refused: dict[_Kind, tuple[float, frozenset[str]]] = {}

    def begin(self, at: float) -> None:
        """Time has passed, and anything may have changed."""
        self._at = at
        self._places.clear()
        self._whole.clear()
        self._ends = {}
        self._ready, self._counts, self._moved = {}, Counter(), set(self._fleet.gpus)
        self.changed()
        self._latest.clear()
        for id_, job in list(self._given.items()):
            if self._jobs.get(id_) is not job:
                del self._given[id_]
            elif job.phase in (JobPhase.WAITING, JobPhase.RESTING):
                self._latest[id_] = job.by - MARGIN * self._place(job).sure_s

    def renew(self, at: float) -> None:
        """A question is asked: nothing has happened since the last round but that time may have passed."""
        if at != self._at:
            self.begin(at)

    def changed(self) -> None:
        """Somebody has started, or something else is kept."""
        self._held = None
        self._refused.clear()

    def started(self, job: Job) -> None:
        self._latest.pop(job.spec.id, None)
        self._moved.update(job.gpus, *(self._jobs[id_].gpus for id_ in job.beside))
        for id_ in job.beside:
            self._ends.pop(id_, None)
        self.changed()

    def give(self, job: Job, by: float) -> None:
        """A job is promised to have ended ``by``, by the time that never goes back; it counts from :meth:`begin` on."""
        job.by = by
        self._given[job.spec.id] = job

    def of(self, id_: str) -> float | None:
        """The moment that a job was promised, None = none was."""
        job = self._given.get(id_)
        return job.by if job is not None else None

    def pledges(self, kept: Reservation | None) -> dict[str, Pledge]:
        """What is to be told of each promise that is not over; times are those of the rule."""
        late = self._late(kept)
        return {
            id_: Pledge(job.by, self._latest.get(id_), self._danger(job) if id_ in late else "", *self._allowance(job))
            for id_, job in self._given.items()
        }

    def _late(self, kept: Reservation | None) -> set[str]:
        """The jobs that end after their promises by expected lengths; what is sure to be in time is not asked again."""
        holding = self.holding(kept)
        doubted = {
            id_ for id_, job in self._given.items() if (self._end(job) > job.by if job.gpus else id_ not in holding)
        }
        if not doubted:
            return doubted
        expected = Promises(
            self._knobs, self._fleet, self._projects, self._jobs, self._lefts, {}, attrgetter("expected_s")
        )
        expected._given = self._given
        expected.begin(self._at)
        in_time = expected.holding(kept)
        return {
            id_
            for id_ in doubted
            if (expected._end(self._given[id_]) > self._given[id_].by if self._given[id_].gpus else id_ not in in_time)
        }

    def _danger(self, job: Job) -> str:
        """What makes a job late by expected lengths, in a word."""
        if job.phase is JobPhase.HELD:
            return "held"
        if job.gpus:
            return "beside" if job.beside else "longer"
        closed = self._fleet.refusals[JobRefusal.CLOSED] + self._fleet.refusals[JobRefusal.LOST]
        return "closed" if closed or self._nowhere(job) else "others"

    def _allowance(self, job: Job) -> tuple[float, ...]:
        """
        What functions may cost a running job, and another training beside it, so that it surely ends in time; the training
        gives way first.
        """
        if not job.gpus:
            return ()
        spare = (job.by - self._at) / (self._sure_s(job) * job.factor)
        budget = spare * (1 + job.spec.request.budget) / job.besides - 1
        return max(LEAST_BUDGET, budget), max(0.0, spare - 1)

    @property
    def gpus(self) -> int:
        """For how many GPU instances there are promises."""
        return sum(job.needs.size for job in self._given.values())

    # ---- what a start would break ----------------------------------------------------------------------------------------

    def breaks(
        self, job: Job, gpus: Sequence[str], kept: Reservation | None, beside: Sequence[BesideHost] = ()
    ) -> frozenset[str]:
        """
        The jobs whose promises hold now and would not when a job has started, which may be its own; ``kept``: what is
        reserved; ``beside``: its hosts.
        """
        if not self._knobs.guard or not self._latest:
            return frozenset()
        id_ = job.spec.id
        slowest = max((host.own_most for host in beside), default=1.0)
        until = self._at + self._on(job, gpus) * slowest
        if id_ in self.holding(kept) and self._at + MARGIN * (until - self._at) > job.by + TICK_S:
            return frozenset({id_})
        start = ConsideredStart(
            job, gpus, until, {host.id: self._end(self._jobs[host.id], host.its_most) for host in beside}
        )
        kind, plain = self._kind(start), id_ not in self._latest
        refused_until, broken = self._refused.get(kind, (inf, frozenset[str]()))
        if plain and until >= refused_until:
            return broken
        wanted = self.holding(kept) - {id_}
        broken = wanted - _best(wanted, self._plans(kept, start))
        if plain and broken:
            self._refused[kind] = until, broken
        return broken

    def bears_reservation(self, reservation: Reservation) -> bool:
        """Whether every promise that holds while nothing is reserved still holds then."""
        if not self._knobs.guard or not self._latest:
            return True
        return any(self.holding(None) <= held for held in self._plans(reservation))

    def bears_slowdown(self, job: Job, slowdown: float) -> bool:
        """Whether a running job has surely ended by its promise, if an iteration takes so many times longer from now on."""
        if not self._knobs.guard or job.spec.id not in self._given:
            return True
        return self._at + self._sure_s(job) * job.factor * slowdown <= job.by

    def holding(self, kept: Reservation | None) -> frozenset[str]:
        """The jobs that wait whose promises hold now."""
        if self._held is None:
            self._held = _best(self._latest.keys(), self._plans(kept)) if self._latest else frozenset()
        return self._held

    def _plans(
        self, kept: Reservation | None, start: ConsideredStart | None = None, asked: tuple[Job, float] | None = None
    ) -> Iterator[frozenset[str]]:
        """
        The promises that each plan keeps, the plan in which nobody passes first; ``asked``: a job that was promised nothing,
        and the latest start with which it is laid out.
        """
        latest = dict(self._latest)
        if start is not None:
            latest.pop(start.job.spec.id, None)
        if asked is not None:
            latest[asked[0].spec.id] = asked[1]
        ground = self._ground(latest, kept, start)
        order = sorted(latest, key=lambda id_: (latest[id_], id_))
        for in_order in (True, False):
            plan = self._plan(order, ground, in_order=in_order)
            yield frozenset(id_ for id_, at in latest.items() if plan.start_of(id_) <= at + TICK_S)

    def _plan(self, ids: Sequence[str], ground: _Ground, *, in_order: bool) -> QueueForecast:
        """Promised jobs in this order."""
        waiting = [self._waiting(self._jobs[id_]) for id_ in ids]
        waiting += [self._waiting(self._jobs[id_]) for id_ in ground.fixed if id_ not in ids]
        return QueueForecast(
            self._at,
            ground.free,
            ground.projects,
            ground.ends,
            waiting,
            ground.pins,
            ground.fixed,
            in_order=in_order,
        )

    def _ground(self, ids: Iterable[str], kept: Reservation | None, start: ConsideredStart | None) -> _Ground:
        """On what promised jobs are laid out, after a start."""
        if kept is not None and (kept.id not in self._jobs or (start is not None and kept.id == start.job.spec.id)):
            kept = None
        fleet, projects, free_at = self._fleet, self._projects, self._free_at()
        moved: dict[str, float] = {}
        if start is not None:
            for until, names in (
                (start.until, start.gpus),
                *((until, self._jobs[id_].gpus) for id_, until in start.hosts.items()),
            ):
                moved |= {name: max(until, moved.get(name, free_at[name])) for name in names if name in free_at}
            projects = Projects(projects.limits, projects.held + Counter({start.job.spec.project: len(start.gpus)}))
        at = free_at | moved if moved else free_at
        pinned = {name for id_ in ids for name in self._jobs[id_].needs.pins}
        kept_gpus = kept.gpus if kept is not None else frozenset[str]()
        counts = self._counts.copy()
        for name in moved:
            counts[free_at[name], fleet.gpus[name].key] -= 1
            counts[moved[name], fleet.gpus[name].key] += 1
        for name in pinned | kept_gpus:
            if name in at:
                counts[at[name], fleet.gpus[name].key] -= 1
        ends = [PlannedEnd(ready, key, count, "") for (ready, key), count in counts.items() if count and ready > -inf]
        asking = {self._jobs[id_].spec.project for id_ in ids}
        limited = {project for project in asking if projects.most(project) < inf}
        if limited:
            over = self._ends | dict(start.hosts if start is not None else {})
            running = [(over[id_], len(job.gpus), job.spec.project) for id_, job in self._running()]
            if start is not None:
                running.append((start.until, len(start.gpus), start.job.spec.project))
            ends += [PlannedEnd(at, None, count, project) for at, count, project in running if project in limited]
        fixed: dict[str, tuple[float, PoolKey | None]] = {}
        if kept is not None:
            kept_at = max(kept.at, *(at.get(name, inf) for name in kept.gpus))
            fixed[kept.id] = kept_at, fleet.gpus[next(iter(kept.gpus))].key
        return _Ground(
            free={key: count for (ready, key), count in counts.items() if key is not None and ready == -inf},
            ends=ends,
            pins={name: max(self._at, at[name]) for name in pinned if name in at},
            fixed=fixed,
            projects=projects,
        )

    def _running(self) -> Iterator[tuple[str, Job]]:
        return ((id_, job) for id_, job in self._jobs.items() if job.gpus)

    def _free_at(self) -> dict[str, float]:
        """When GPU instances that take jobs are surely free, -inf = now; how many are when is counted beside it."""
        if self._moved:
            self._ends |= {id_: self._end(job) for id_, job in self._running() if id_ not in self._ends}
        for name in self._moved:
            gpu = self._fleet.gpus[name]
            if gpu.key is not None:
                if name in self._ready:
                    self._counts[self._ready[name], gpu.key] -= 1
                at = self._ready[name] = max([self._ends[id_] for id_ in gpu.jobs], default=-inf)
                self._counts[at, gpu.key] += 1
        self._moved.clear()
        return self._ready

    def _waiting(self, job: Job) -> PlannedJob:
        place = self._place(job)
        from_at = job.not_before if job.phase is JobPhase.RESTING else inf if self._nowhere(job) else -inf
        return PlannedJob(job.spec.id, job.needs, job.spec.project, place.sure_s, place.keys, from_at)

    def _kind(self, start: ConsideredStart) -> _Kind:
        job, fleet = start.job, self._fleet
        limited = job.spec.project if self._projects.most(job.spec.project) < inf else ""
        exact = tuple(start.gpus) if start.hosts or job.needs.pins else ()
        return fleet.gpus[start.gpus[0]].key, len(start.gpus), limited, exact, tuple(sorted(start.hosts.items()))

    # ---- sure lengths ----------------------------------------------------------------------------------------------------

    def _sure_s(self, job: Job, device: str = "") -> float:
        """What is surely left of a job, with all that functions may cost it."""
        return self._length_s(self._lefts.left(job, device)) * (1 + job.spec.request.budget)

    def _on(self, job: Job, gpus: Sequence[str]) -> float:
        return self._sure_s(job, self._fleet.device_of(gpus))

    def _place(self, job: Job) -> _Place:
        """The pools in which a job is as fast as it can be and any of whose GPU instances will do."""
        id_, needs = job.spec.id, job.needs
        if id_ not in self._places:
            if needs.pins:
                self._places[id_] = _Place((), max(self._on(job, [name]) for name in needs.pins))
                return self._places[id_]
            if needs not in self._whole:
                self._whole[needs] = tuple(
                    key
                    for key, pool in self._fleet.pools_for(needs)
                    if pool.open >= needs.size and len(self._fleet.eligible(needs, key)) == pool.open
                )
            sure_s = {key: self._sure_s(job, key[0]) for key in self._whole[needs]}
            least_s = min(sure_s.values()) if sure_s else self._sure_s(job)
            self._places[id_] = _Place(tuple(key for key in sure_s if sure_s[key] <= least_s), least_s)
        return self._places[id_]

    def _nowhere(self, job: Job) -> bool:
        """Whether no pool will do, or one that it is pinned to takes it no more."""
        pins = job.needs.pins
        return len(self._fleet.eligible(job.needs, None)) < len(pins) if pins else not self._place(job).keys

    def _end(self, job: Job, slowdown: float = 1.0) -> float:
        """
        When a running job has surely ended, beside those that are there or where another one slows it that much until its
        end.
        """
        if job.phase is JobPhase.STOPPING:
            return self._at
        left_s = self._sure_s(job) * job.factor
        beside = []
        for name, cost in job.beside.items():
            other = self._jobs[name]
            until_s = self._sure_s(other) * other.slowdown if other.phase is not JobPhase.STOPPING else 0.0
            beside.append((until_s, max(cost.most, job.beside_at(name) / job.factor) / job.part))
        return self._at + max(end_beside(left_s, beside), left_s * slowdown)

    # ---- whether a promise is given --------------------------------------------------------------------------------------

    def ask(self, job: Job, kept: Reservation | None, by: float) -> Promised | NotPromised:
        """
        Whether a job that waits is promised its deadline or, with :data:`EARLIEST`, any end, and else the earliest moment
        that would be. Nothing is given yet. Times are those of the rule.
        """
        id_, project, length = job.spec.id, job.spec.project, job.length
        if not self._knobs.promises:
            return NotPromised(id_, Unpromised.SETTING, length, setting=self._knobs.name)
        if length.source in UNKNOWN:
            return NotPromised(id_, Unpromised.UNKNOWN, length)
        most = self._projects.most_promised(project)
        promised = sum(other.needs.size for other in self._given.values() if other.spec.project == project)
        if promised + job.needs.size > most:
            return NotPromised(id_, Unpromised.LIMIT, length, most=most, promised=promised)
        sure_s = MARGIN * self._place(job).sure_s
        wanted = self._at if by == EARLIEST else job.by - sure_s
        if by != EARLIEST and wanted >= self._at - TICK_S and self._fits(job, wanted, kept):
            return Promised(id_, job.by, wanted)
        latest = self._earliest(job, kept)
        if by == EARLIEST and latest is not None:
            return Promised(id_, latest + sure_s, latest)
        earliest = latest + sure_s if latest is not None else None
        if by != EARLIEST and wanted < self._at - TICK_S:
            left_s = max(0.0, job.by - self._at)
            return NotPromised(id_, Unpromised.LENGTH, length, earliest, sure_s=sure_s, left_s=left_s)
        if self._nowhere(job):
            return NotPromised(id_, Unpromised.OTHERS, length, earliest, others=None)
        late = sorted((end, other) for other, end in self._ends.items() if end > wanted)[-_NAMED:]
        others = [*(other for _, other in reversed(late)), *self._latest][:_NAMED]
        return NotPromised(id_, Unpromised.OTHERS, length, earliest, others=others)

    def _fits(self, job: Job, latest: float, kept: Reservation | None) -> bool:
        """Whether a plan keeps all promises that hold and this one."""
        wanted = self.holding(kept) | {job.spec.id}
        return any(wanted <= held for held in self._plans(kept, asked=(job, latest)))

    def _earliest(self, job: Job, kept: Reservation | None) -> float | None:
        """The earliest latest start that could be promised, as far as one is found; None = none."""
        order = sorted(self._latest, key=lambda id_: (self._latest[id_], id_))
        ground = self._ground([*order, job.spec.id], kept, None)

        def start(place: int) -> float | None:
            """When it has to start with so many before it, and not before the last of them; None = that cannot be kept."""
            ids = [*order[:place], job.spec.id, *order[place:]]
            after = self._latest[order[place - 1]] if place else -inf
            starts = (self._plan(ids, ground, in_order=each).start_of(job.spec.id) for each in (True, False))
            latest = sorted(max(start, after) for start in starts if start < inf)
            return next((each for each in latest if self._fits(job, each, kept)), None)

        place = bisect_left(range(len(order) + 1), True, key=lambda place: start(place) is not None)
        return start(place) if place <= len(order) else None


def _best(wanted: Set[str], plans: Iterable[frozenset[str]]) -> frozenset[str]:
    """
    Of what plans keep, that with the most of what is wanted; of two with as many the first, in which nobody passes: nothing
    that ends early can break it. A plan after one that keeps everything is not made.
    """
    best: frozenset[str] = frozenset()
    for held in plans:
        if len(held & wanted) > len(best & wanted):
            best = held
        if wanted <= best:
            break
    return best
