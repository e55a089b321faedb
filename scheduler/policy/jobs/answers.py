"""Answers to questions: the queue with expected times and reasons, and what would become of a job that came now."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

from scheduler.policy.jobs.decisions import (
    Expected,
    Facts,
    GpuPlace,
    JobRefusal,
    Misfit,
    Pledge,
    PublishQueue,
    Unfit,
    Wait,
)
from scheduler.policy.jobs.fleet import Fleet, Gpu, PoolKey
from scheduler.policy.jobs.job import Ends, Job, JobPhase, called
from scheduler.policy.jobs.knobs import JobKnobs, Passing, Sharing
from scheduler.policy.jobs.lengths import Length
from scheduler.policy.jobs.order import OrderedQueue
from scheduler.policy.jobs.places import StartPlaces
from scheduler.policy.jobs.plan import PlannedEnd, PlannedJob, QueueForecast, Reservation, for_another
from scheduler.policy.jobs.projects import Projects
from scheduler.policy.jobs.sharing import Waits
from scheduler.policy.jobs.spec import JobSpec, Needs

#: How many GPU instances refuse a job for what, and that as it is told, by what it needs and whether some are kept for another
#: one: good for one moment.
Refused = dict[tuple[Needs, bool], tuple[Counter[JobRefusal], Facts]]


class Outlook:
    """The state of a rule at one moment, to be asked."""

    def __init__(
        self,
        knobs: JobKnobs,
        fleet: Fleet,
        projects: Projects,
        queue: OrderedQueue,
        jobs: Mapping[str, Job],
        ends: Ends,
        places: StartPlaces,
        wait_s: Waits,
    ) -> None:
        self._knobs, self._fleet, self._projects, self._queue = knobs, fleet, projects, queue
        self._jobs, self._ends, self._places, self._kept = jobs, ends, places, places.kept
        self._wait_s = wait_s

    def publish(self, at: float, set_back: float) -> PublishQueue:
        """Every job; ``at`` runs ahead of the clock by ``set_back``, times in the answer are the clock's."""
        running, waiting = self._running(), self._waiting()
        held = self._out_of_queue(JobPhase.HELD)
        ends = [{job.spec.id: end(job) for job in running} for end in (self._ends.at, self._ends.late)]
        starts = [
            self._forecast(at, running, waiting, of, most=most).starts()
            for of, most in zip(ends, (False, True), strict=True)
        ]
        counted: Refused = {}
        idle = False
        pledges = {
            id_: pledge._replace(
                by=pledge.by - set_back,
                latest_start_at=pledge.latest_start_at - set_back if pledge.latest_start_at is not None else None,
            )
            for id_, pledge in self._places.promises.pledges(self._kept).items()
        }
        entries = [
            self._of_running(job, at, set_back, (ends[0][job.spec.id], ends[1][job.spec.id]), pledges)
            for job in running
        ]
        for place, job in enumerate((*waiting, *held), 1):
            expected_at, late_at = (start.get(job.spec.id) for start in starts)
            length = job.length if job.phase is not JobPhase.HELD else self._ends.left(job)
            start_at = end_at = None
            if expected_at is not None and late_at is not None:
                # Where lengths are longer the order may be another one, and this job earlier.
                start_at = expected_at - set_back, max(expected_at, late_at) - set_back
                end_at = start_at[0] + length.expected_s, start_at[1] + length.most_s
            cause, facts = self._why(job, at, counted)
            if cause is Wait.ORDER and job.phase is JobPhase.WAITING and (others := self._places.promised_to(job)):
                idle = True
                names = (called(job, self._jobs[id_]) if id_ != job.spec.id else "" for id_ in others)
                cause, facts = Wait.PROMISED, Facts(job.needs, others=sorted(names))
            entries.append(
                Expected(
                    id=job.spec.id,
                    place=place,
                    gpus=(),
                    start_at=start_at,
                    end_at=end_at,
                    length=length,
                    waited_s=job.waiting_s(at),
                    why=cause,
                    facts=facts,
                    doubt=self._places.doubt(job, at, self._wait_s) if job.phase is JobPhase.WAITING else None,
                    unsaid=self._unsaid(job),
                    promise=pledges.get(job.spec.id),
                )
            )
        kept = self._kept
        free = sum(not self._fleet.gpus[name].jobs for name in kept.gpus) if kept is not None else 0
        if idle:
            # What whoever waits may not have for the sake of promises.
            free = self._fleet.free
        kept_for = kept.id if kept is not None else ""
        return PublishQueue(jobs=entries, kept_for=kept_for, kept=free, promised=self._places.promises.gpus)

    def forecast(self, at: float) -> QueueForecast:
        """When each job that waits is expected to start on GPU instances of its own."""
        running = [job for job in self._jobs.values() if job.gpus]
        ends = {job.spec.id: self._ends.at(job) for job in running}
        return self._forecast(at, running, self._waiting(), ends, most=False)

    def misfit(self, spec: JobSpec) -> Misfit | None:
        """Why a job could never start on the GPU instances that there are and with its project's limit."""
        most = self._projects.most(spec.project)
        if spec.size > most:
            return Misfit(Unfit.LIMIT, "count", most, spec.size)
        seen = [gpu.seen for gpu in self._fleet.gpus.values() if not gpu.lost and gpu.seen is not None]
        pins, device = spec.request.gpus, spec.request.device
        if pins:
            there = {report.gpu: report for report in seen}
            missing = next((name for name in pins if name not in there), None)
            if missing is not None:
                return Misfit(Unfit.UNSEEN, "gpus", len(there), missing)
            if len(pins) > 1 and any(there[name].mig for name in pins):
                return Misfit(Unfit.MIG, "gpus", 1)
            least = min(there[name].memory_mib for name in pins)
            return Misfit(Unfit.PIN_MEMORY, "memory", least) if spec.memory_mib > least else None
        of_kind = [report for report in seen if device in ("", report.device)]
        if not of_kind:
            return Misfit(Unfit.DEVICE, "device", 0, device)
        largest = max(report.memory_mib for report in of_kind)
        if spec.memory_mib > largest:
            return Misfit(Unfit.MEMORY, "memory", largest)
        counts: dict[PoolKey, int] = {}
        for report in of_kind:
            if spec.memory_mib <= report.memory_mib:
                key = report.device, report.mig
                counts[key] = 1 if report.mig else counts.get(key, 0) + 1
        most = max(counts.values())
        return Misfit(Unfit.GANG, "count", most) if spec.size > most else None

    def places(self, job: Job) -> list[GpuPlace]:
        """What stands against a job that waits on each GPU instance."""
        return [self._place(for_another(self._kept, job), gpu, job) for _, gpu in sorted(self._fleet.gpus.items())]

    def _place(self, first: Reservation | None, gpu: Gpu, job: Job) -> GpuPlace:
        code = self._fleet.refusal(gpu, job.needs, first.gpus if first is not None else ())
        trains = [self._name(job, id_) for id_ in gpu.jobs]
        kept_for = self._name(job, first.id) if first is not None and code is JobRefusal.KEPT else ""
        return GpuPlace(gpu.name, job.needs, code, gpu.seen, trains, kept_for)

    def _name(self, job: Job, id_: str) -> str:
        """What the owner of ``job`` calls the one of this id."""
        return called(job, self._jobs[id_]) if id_ in self._jobs else id_

    def _why(self, job: Job, at: float, counted: Refused) -> tuple[Wait, Facts]:
        """The first reason that stands against a job, and what belongs to it; ``counted`` saves counting twice."""
        needs, project, fleet = job.needs, job.spec.project, self._fleet
        if job.phase is JobPhase.HELD:
            return Wait.HELD, Facts(needs)
        if job.phase is JobPhase.RESTING:
            return Wait.BACK_OFF, Facts(needs, in_s=max(0.0, job.not_before - at))
        if self._projects.room(project) < needs.size:
            return Wait.LIMIT, Facts(needs, most=self._projects.most(project), held=self._projects.held[project])
        first = for_another(self._kept, job)
        if needs.pins:
            each = (self._place(first, fleet.gpus.get(name) or Gpu(name), job) for name in needs.pins)
            return Wait.PINNED, Facts(needs, places=[place for place in each if place.refused is not None])
        if (needs, first is not None) not in counted:
            counted[needs, first is not None] = self._counted(needs, first)
        refused, facts = counted[needs, first is not None]
        free = facts.free
        able = free + refused[JobRefusal.BUSY] + refused[JobRefusal.KEPT]
        if needs.home and able < needs.size:
            return Wait.HOME, facts
        if able < needs.size or not any(pool.open >= needs.size for _, pool in fleet.pools_for(needs)):
            return Wait.TOO_FEW, facts
        if first is not None and self._knobs.passing is Passing.NONE:
            return Wait.ORDER, facts._replace(others=[self._name(job, first.id)])
        if first is not None and refused[JobRefusal.KEPT] and free + refused[JobRefusal.KEPT] >= needs.size > free:
            return Wait.KEPT, facts._replace(others=[self._name(job, first.id)], in_s=max(0.0, first.at - at))
        return Wait.BUSY if free < needs.size else Wait.ORDER, facts

    def _counted(self, needs: Needs, first: Reservation | None) -> tuple[Counter[JobRefusal], Facts]:
        kept = first.gpus if first is not None else ()
        each = [(gpu, self._fleet.refusal(gpu, needs, kept)) for gpu in self._fleet.gpus.values()]
        refused = Counter(code for _, code in each if code is not None)
        closed = Counter(gpu.seen.closed for gpu, code in each if code is JobRefusal.CLOSED and gpu.seen is not None)
        counts: list[tuple[JobRefusal, str, int]]
        counts = [(code, "", count) for code, count in refused.items() if code is not JobRefusal.CLOSED]
        counts += [(JobRefusal.CLOSED, why, count) for why, count in closed.items()]
        return refused, Facts(needs, len(each) - refused.total(), sorted(counts))

    def _unsaid(self, job: Job) -> Sequence[str]:
        """What its owner left out, so that it starts beside nobody, though that is allowed."""
        asked = job.spec.request
        if asked.share <= 0 or self._knobs.sharing is Sharing.NONE or (asked.workload and job.spec.memory_mib):
            return ()
        needed = ("workload", asked.workload), ("memory", job.spec.memory_mib)
        return [name for name, said in needed if not said]

    def _pools(self, job: Job) -> tuple[PoolKey, ...]:
        """Those that a job could start in when all others have ended."""
        needs, fleet = job.needs, self._fleet
        return tuple(
            key
            for key, pool in fleet.pools_for(needs)
            if (len(fleet.eligible(needs, key)) if needs.home else pool.open) >= needs.size
        )

    def _running(self) -> list[Job]:
        return sorted((job for job in self._jobs.values() if job.gpus), key=lambda job: (job.since_at, job.spec.id))

    def _waiting(self) -> list[Job]:
        return [*self._queue, *self._out_of_queue(JobPhase.RESTING)]

    def _out_of_queue(self, phase: JobPhase) -> list[Job]:
        return sorted(
            (job for job in self._jobs.values() if job.phase is phase),
            key=lambda job: (job.not_before, job.submitted_at, job.spec.id),
        )

    def _of_running(
        self,
        job: Job,
        at: float,
        set_back: float,
        end_at: tuple[float, float],
        pledges: Mapping[str, Pledge],
    ) -> Expected:
        start_at = job.since_at - set_back
        facts = Facts(job.needs)
        if job.beside:
            names = sorted(called(job, self._jobs[id_]) for id_ in job.beside)
            facts = Facts(job.needs, others=names, slowdown=job.slowdown, measured=job.measured > 0, part=job.part)
        return Expected(
            id=job.spec.id,
            place=0,
            gpus=job.gpus,
            start_at=(start_at, start_at),
            end_at=(end_at[0] - set_back, end_at[1] - set_back),
            length=self._ends.left(job),
            waited_s=job.waited_s,
            why=Wait.STOPPING if job.phase is JobPhase.STOPPING else Wait.NONE,
            facts=facts,
            beside=tuple(sorted(job.beside)),
            guest=bool(job.beside) and any(self._fleet.gpus[name].jobs[0] != job.spec.id for name in job.gpus),
            lost_s=job.running_s(at) - job.alone_s(at),
            promise=pledges.get(job.spec.id),
        )

    def _forecast(
        self, at: float, running: list[Job], waiting: list[Job], end_ats: Mapping[str, float], *, most: bool
    ) -> QueueForecast:
        """When each job that waits starts, by the clock of the rule; ``most``: by 90 % lengths, as ``end_ats`` are."""
        fleet, kept = self._fleet, self._kept
        kept_gpus = kept.gpus if kept is not None else frozenset[str]()

        def seconds(length: Length) -> float:
            return length.most_s if most else length.expected_s

        free = {key: pool.count for key, pool in fleet.pools.items()}
        for name in kept_gpus:
            seen = fleet.gpus[name].seen
            if seen is not None and fleet.gpus[name].refusal() is None:
                free[seen.device, seen.mig] -= 1
        ends: list[PlannedEnd] = []
        pinned = {name for job in waiting for name in job.needs.pins}
        pins = {name: at for name in pinned if name in fleet.gpus and fleet.gpus[name].refusal() is None}
        for job in running:
            id_ = job.spec.id
            end_at = end_ats[id_]
            if not (job.beside or kept_gpus or pinned) and len({fleet.gpus[name].key for name in job.gpus}) == 1:
                ends.append(PlannedEnd(end_at, fleet.gpus[job.gpus[0]].key, len(job.gpus), job.spec.project))
                continue
            groups: dict[PoolKey | None, int] = {}
            for name in job.gpus:
                gpu = fleet.gpus[name]
                key = gpu.key if name not in kept_gpus else None
                if len(gpu.jobs) > 1:
                    # Of two jobs on a GPU instance, the one that ends last makes room.
                    other = gpu.jobs[gpu.jobs[0] == id_]
                    if (end_ats[other], other) > (end_at, id_):
                        key = None
                groups[key] = groups.get(key, 0) + 1
                if name in pinned and gpu.open:
                    pins[name] = max(pins.get(name, at), end_at)
            ends += [PlannedEnd(end_at, key, size, job.spec.project) for key, size in groups.items()]
        fixed: dict[str, tuple[float, PoolKey | None]] = {}
        if kept is not None:
            seen = fleet.gpus[next(iter(kept.gpus))].seen
            fixed[kept.id] = kept.at, (seen.device, seen.mig) if seen is not None else None
        pools: dict[Needs, tuple[PoolKey, ...]] = {}
        for job in waiting:
            if job.needs not in pools:
                pools[job.needs] = self._pools(job)
        queue = [
            PlannedJob(
                id=job.spec.id,
                needs=job.needs,
                project=job.spec.project,
                length_s=seconds(job.length),
                keys=pools[job.needs],
                from_at=job.not_before if job.phase is JobPhase.RESTING else -inf,
            )
            for job in waiting
        ]
        in_order = self._knobs.passing is Passing.NONE
        return QueueForecast(at, free, self._projects, ends, queue, pins, fixed, in_order=in_order)
