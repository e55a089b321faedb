"""Where each job that is tried would start, and which GPU instances are kept for whoever is first."""

from collections.abc import Collection, Mapping
from math import inf

from scheduler.policy.jobs.decisions import Doubt, Turn
from scheduler.policy.jobs.fleet import Fleet, Gpu, PoolKey
from scheduler.policy.jobs.job import Ends, Job
from scheduler.policy.jobs.knobs import JobKnobs, Passing
from scheduler.policy.jobs.order import OrderedQueue
from scheduler.policy.jobs.plan import Reservation, for_another, reserve
from scheduler.policy.jobs.projects import Projects
from scheduler.policy.jobs.promises import Promises
from scheduler.policy.jobs.sharing import Partners, Shared, Waits


class StartPlaces:
    """The state of a rule, to choose from. ``kept``: what is reserved, None = nothing."""

    def __init__(
        self,
        knobs: JobKnobs,
        fleet: Fleet,
        projects: Projects,
        queue: OrderedQueue,
        jobs: Mapping[str, Job],
        ends: Ends,
        partners: Partners,
        promises: Promises,
    ) -> None:
        self._knobs, self._fleet, self._projects, self._queue = knobs, fleet, projects, queue
        self._jobs, self._ends, self._partners = jobs, ends, partners
        self.promises = promises
        self.kept: Reservation | None = None

    def gpus_for(self, job: Job, at: float) -> tuple[str, ...] | None:
        """Where a job would start now, None = nowhere: what is kept for another one is its own until then."""
        kept, project = self.kept, job.spec.project
        room = self._projects.room(project)
        if room < job.needs.size:
            return None
        keys = self.keys(job)
        if kept is None or kept.id == job.spec.id:
            return self._choose(job, keys)
        first = self._jobs[kept.id]
        in_time = at + job.length.most_s <= kept.at
        if first.spec.project == project and room < job.needs.size + first.needs.size and not in_time:
            return None
        gpus = self._choose(job, keys, kept.gpus)
        if gpus is None and in_time:
            gpus = self._choose(job, keys)
            # Its length was that on the fastest device that it may have.
            if gpus is not None and at + self._left_on(job, gpus) > kept.at:
                gpus = None
        return gpus

    def _choose(self, job: Job, keys: list[PoolKey], without: Collection[str] = ()) -> tuple[str, ...] | None:
        """Of the first pool that has enough and where its start breaks no promise."""
        for key in keys if not job.needs.pins else keys[:1]:
            gpus = self._fleet.choose(job.needs, [key], without)
            if gpus is not None and not self.promises.breaks(job, gpus, self.kept):
                return gpus
        return None

    def promised_to(self, job: Job) -> frozenset[str]:
        """The jobs whose promises keep a job that waits from starting on GPU instances that are free."""
        if not self._queue.latest:
            return frozenset()
        gpus = self._fleet.choose(job.needs, self.keys(job), self._kept_from(job))
        return self.promises.breaks(job, gpus, self.kept) if gpus is not None else frozenset()

    def hosts_for(self, job: Job, at: float, wait_s: Waits) -> Shared | None:
        """Where a job for which too few GPU instances are free would start beside others, None = nowhere."""
        if not self._partners.may_share(job) or not self._allowed(job):
            return None
        shared = self._partners.hosts_for(job, self.keys(job), at, self._kept_from(job), wait_s)
        if shared is not None and self.promises.breaks(job, shared.gpus, self.kept, shared.beside):
            return None
        return shared

    def doubt(self, job: Job, at: float, wait_s: Waits) -> Doubt | None:
        """Why it starts beside nobody, None = that is not asked."""
        if not self._partners.may_share(job) or not self._allowed(job):
            return None
        return self._partners.doubt(job, self.keys(job), at, self._kept_from(job), wait_s)

    def _allowed(self, job: Job) -> bool:
        """Whether the project may have more, and whoever is first of it still what is kept for it."""
        room = self._projects.room(job.spec.project)
        kept = for_another(self.kept, job)
        first = self._jobs[kept.id] if kept is not None else None
        of_both = first is not None and first.spec.project == job.spec.project
        return room >= job.needs.size + (first.needs.size if first is not None and of_both else 0)

    def _kept_from(self, job: Job) -> frozenset[str]:
        """What is kept for another one."""
        kept = for_another(self.kept, job)
        return kept.gpus if kept is not None else frozenset()

    def _left_on(self, job: Job, gpus: tuple[str, ...]) -> float:
        """The 90 % length of a job that waits, on ``gpus``."""
        return self._ends.left(job, self._fleet.device_of(gpus)).most_s

    def keys(self, job: Job) -> list[PoolKey]:
        """The pools that a job may have, the one where it would end first first."""
        keys = [key for key, _ in self._fleet.pools_for(job.needs)]
        if len(keys) > 1:
            keys.sort(key=lambda key: (self._ends.left(job, key[0]).expected_s, key))
        return keys

    def passable(self, job: Job, at: float) -> bool:
        """
        Whether those after a job that does not fit may be tried. GPU instances are kept for it where it is to have
        them. Whoever could not start even if all others ended holds nobody up.
        """
        knobs = self._knobs
        if self.kept is not None:
            return self.kept.id != job.spec.id or knobs.passing is not Passing.NONE
        if knobs.passing is Passing.ANY and self._queue.turn(job) in (Turn.ORDER, Turn.PROMISED):
            return True

        def ready_at(gpu: Gpu) -> float:
            return max((self._ends.at(self._jobs[id_]) for id_ in gpu.jobs), default=at)

        reservation = reserve(self._fleet, self.keys(job), job, ready_at, self._allowed_at(job, at))
        if reservation is None or not self.promises.bears_reservation(reservation):
            return True
        self.kept = reservation
        return knobs.passing is not Passing.NONE

    def check(self) -> None:
        """A reservation holds while its job is first of those that can be reserved for, and its GPU instances are there."""
        kept = self.kept
        if kept is None:
            return
        if kept.id not in self._queue or not all(self._fleet.gpus[name].open for name in kept.gpus):
            self.kept = None
            return
        for job in self._queue:
            if job.spec.id == kept.id:
                return
            if self._queue.turn(job) is Turn.PROMISED:
                continue
            # Somebody came before it; whether that one can be reserved for is found out in the round.
            if self._reservable(job):
                self.kept = None
                return

    def _reservable(self, job: Job) -> bool:
        return self._projects.most(job.spec.project) >= job.needs.size and any(
            len(self._fleet.eligible(job.needs, key)) >= job.needs.size
            for key in (self.keys(job) if not job.needs.pins else [None])
        )

    def _allowed_at(self, job: Job, at: float) -> float:
        """When a project's limit lets one of its jobs start, by the expected ends of those that run; inf = never."""
        room = self._projects.room(job.spec.project)
        if room >= job.needs.size:
            return at
        for freed_at, size in sorted(
            (self._ends.at(other), len(other.gpus))
            for other in self._jobs.values()
            if other.gpus and other.spec.project == job.spec.project
        ):
            room += size
            if room >= job.needs.size:
                return freed_at
        return inf
