"""
The rule for trainings: which job starts where and when.

A round tries the jobs that wait in their order (``order.py``) and starts what fits (``fleet.py``: whole or not at all),
on free GPU instances, else beside another job where that is better for both (``sharing.py``).
For whoever is first by patience or by an operator's order, GPU instances are kept (``plan.py``). The simulator may pass in
who stops for others first (:class:`Preemption`).
"""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from typing import Protocol, assert_never

from scheduler.policy.jobs.answers import Outlook
from scheduler.policy.jobs.decisions import (
    BreaksAnswered,
    Decision,
    Finish,
    JobRound,
    NotPromised,
    PlacesAnswered,
    Promised,
    Requeue,
    Start,
    StartReasons,
    Stop,
    TrialAnswered,
)
from scheduler.policy.jobs.events import (
    AttemptOver,
    BreaksAsked,
    Ended,
    Event,
    GpuLost,
    GpuSeen,
    GuestHeldBack,
    JobHeld,
    JobMoved,
    JobProgressed,
    JobSubmitted,
    JobUnderWay,
    JobWithdrawn,
    LimitsChanged,
    PairMeasured,
    PairsKnown,
    PlacesAsked,
    Question,
    QueueAsked,
    RunsKnown,
    StartRefused,
    TrialAsked,
)
from scheduler.policy.jobs.fleet import Fleet
from scheduler.policy.jobs.job import Ends, Job, JobPhase
from scheduler.policy.jobs.knobs import SETTINGS, JobKnobs, Sharing
from scheduler.policy.jobs.lengths import Lengths
from scheduler.policy.jobs.order import OrderedQueue
from scheduler.policy.jobs.pairs import UNPROFILED, Pairs, Slowdown
from scheduler.policy.jobs.places import StartPlaces
from scheduler.policy.jobs.plan import QueueForecast, for_another
from scheduler.policy.jobs.projects import Projects
from scheduler.policy.jobs.promises import Promises
from scheduler.policy.jobs.restarts import after
from scheduler.policy.jobs.sharing import Partners, Shared
from scheduler.policy.jobs.spec import MicroBatches
from smore.domain.job import EARLIEST, PastRun


class Preemption(Protocol):
    """
    Which running jobs stop for others. Only a simulation has one: nothing may stop a live training that has no checkpoint at
    that moment. ``policy``: whose state it reads.
    """

    def stopped(self, policy: "JobPolicy", at: float, events: Sequence[Event]) -> Sequence[Job]:
        """Who stops now, after these events."""

    def may_start(self, job: Job) -> bool:
        """Whether a job that waits is to be tried."""

    def wake_at(self, policy: "JobPolicy", at: float) -> float:
        """When somebody may have to stop though nothing has happened; inf = never."""


class JobPolicy:
    """
    One rule with its state. Shells call :meth:`decide` alone and read nothing else; two that get the same events decide the
    same.
    """

    def __init__(self, knobs: JobKnobs = SETTINGS["smore-jobs"], preemption: Preemption | None = None) -> None:
        self._knobs, self._preemption = knobs, preemption
        self.lengths = Lengths()
        self.fleet = Fleet()
        self.projects = Projects()
        self.queue = OrderedQueue(knobs, self.lengths)
        self.jobs: dict[str, Job] = {}
        self.pairs = Pairs()
        self._ends = Ends(self.jobs, self.lengths)
        self.promises = Promises(knobs, self.fleet, self.projects, self.jobs, self._ends, self.queue.latest)
        self.partners = Partners(knobs, self.fleet, self.jobs, self._ends, self.pairs, self.queue.weight, self.promises)
        self.places = StartPlaces(
            knobs, self.fleet, self.projects, self.queue, self.jobs, self._ends, self.partners, self.promises
        )
        #: Jobs whose owners ask for a promise that was not decided yet.
        self._asking: list[Job] = []
        #: When jobs that wait would start on GPU instances of their own, made once in a round where somebody asks.
        self._forecast: QueueForecast | None = None
        #: Jobs in their back-off, by its end.
        self._resting: list[tuple[float, str]] = []
        #: Time that never goes back: the clock's, and what it was set back by so far.
        self._at, self._set_back = -inf, 0.0
        self._moves = 0

    def decide(self, now: float, events: Sequence[Event]) -> JobRound:
        """
        Apply events and decide; ``now`` in epoch seconds. Decisions count as performed; a start that did not happen
        comes back as :class:`~scheduler.policy.jobs.events.StartRefused`. A call that only asks changes nothing.
        """
        self._set_back += max(0.0, self._at - (now + self._set_back))
        at = self._at = now + self._set_back
        decisions: list[Decision] = []
        questions: list[Question] = []
        for event in events:
            self._apply(at, event, decisions, questions)
        if not questions or len(questions) < len(events):
            self._round(at, events, decisions)
        for question in questions:
            decisions.append(self._answer(at, question))
        return JobRound(decisions, self._wake_at(at) - self._set_back)

    # ---- events ------------------------------------------------------------------------------------------------------

    def _apply(self, at: float, event: Event, decisions: list[Decision], questions: list[Question]) -> None:
        match event:
            case JobSubmitted():
                self._submitted(at, event)
            case JobUnderWay():
                self._under_way(event)
            case JobWithdrawn():
                self._withdrawn(event)
            case JobHeld():
                self._held(at, event)
            case JobMoved():
                self._moved(event)
            case StartRefused():
                self._refused(at, event)
            case JobProgressed():
                self._progressed(at, event)
            case AttemptOver():
                self._over(at, event, decisions)
            case GpuSeen():
                self.fleet.see(event)
                for id_ in self.fleet.gpus[event.gpu].jobs:
                    self.jobs[id_].device = event.device
            case GpuLost():
                self._lost(event, decisions)
            case LimitsChanged():
                self.projects.limits = event.limits
                self.queue.weigh(event.limits, at)
                self.places.kept = None
            case RunsKnown():
                for run in event.runs:
                    self.lengths.learn(run)
            case PairsKnown():
                self.pairs.learn(event.pairs)
                for job in self.jobs.values():
                    if job.beside:
                        job.settle(at)
                        job.beside = {id_: self._slowdown(job, self.jobs[id_]) for id_ in job.beside}
            case PairMeasured():
                self._measured(at, event)
            case GuestHeldBack():
                self._held_back(at, event)
            case QueueAsked() | TrialAsked() | PlacesAsked() | BreaksAsked():
                questions.append(event)
            case _:
                assert_never(event)

    def _submitted(self, at: float, event: JobSubmitted) -> None:
        if event.spec.id in self.jobs:
            return
        job = self.jobs[event.spec.id] = Job(event)
        job.not_before += self._set_back
        job.by += self._set_back
        self._moves = max(self._moves, event.moved)
        job.note_told(self.lengths, at)
        self._wait(job, at)
        if event.promised:
            self.promises.give(job, event.promised + self._set_back)
        elif event.promised is None and event.spec.request.by is not None:
            self._asking.append(job)

    def _wait(self, job: Job, at: float) -> None:
        """A job comes to the queue, or rests, or is held."""
        if job.phase is JobPhase.HELD:
            job.length = job.left(self.lengths, at)
        elif job.not_before > at:
            job.phase, job.length = JobPhase.RESTING, job.left(self.lengths, at)
            heappush(self._resting, (job.not_before, job.spec.id))
        else:
            job.phase = JobPhase.WAITING
            self.queue.add(job, at)

    def _leave_queue(self, job: Job, at: float) -> None:
        if job.phase is JobPhase.WAITING:
            job.waited_s = job.waiting_s(at)
            self.queue.remove(job)

    def _place(self, job: Job, gpus: tuple[str, ...], since_at: float, parts: MicroBatches) -> None:
        self.fleet.take(job.spec.id, gpus, willing=job.spec.request.share > 0)
        self.projects.held[job.spec.project] += len(gpus)
        job.phase, job.gpus, job.since_at, job.ended_as = JobPhase.PLACED, gpus, since_at, None
        job.device = self.fleet.device_of(gpus)
        job.parts, job.slowed_at = parts, self._at
        for other in self._neighbours(job):
            other.settle(self._at)
            other.measured = 0.0
            other.beside[job.spec.id] = self._slowdown(other, job)
            job.beside[other.spec.id] = self._slowdown(job, other)

    def _neighbours(self, job: Job) -> list[Job]:
        """Those with which it shares GPU instances, each once."""
        ids = dict.fromkeys(id_ for name in job.gpus for id_ in self.fleet.gpus[name].jobs if id_ != job.spec.id)
        return [self.jobs[id_] for id_ in ids]

    def _slowdown(self, job: Job, other: Job) -> Slowdown:
        """What another one on one of its GPU instances costs a job."""
        return self.pairs.of(job.device, job.spec.request.workload, other.spec.request.workload) or UNPROFILED

    def _vacate(self, job: Job) -> None:
        job.settle(self._at)
        for id_ in job.beside:
            other = self.jobs[id_]
            other.settle(self._at)
            other.measured = 0.0
            del other.beside[job.spec.id]
        job.beside, job.measured = {}, 0.0
        self.fleet.give(job.spec.id, job.gpus)
        self.projects.held[job.spec.project] -= len(job.gpus)
        job.gpus, job.device, job.taken_mib = (), "", 0.0
        job.part = 1.0
        job.parts = MicroBatches(count=1, memory_mib=job.spec.memory_mib)

    def _under_way(self, event: JobUnderWay) -> None:
        job = self.jobs.get(event.id)
        if job is None or job.gpus or event.attempt < job.attempt:
            return
        self._leave_queue(job, job.queued_at)
        job.attempt = event.attempt
        job.lost_s += event.lost_s
        self._place(job, event.gpus, event.since_at + self._set_back, job.spec.way(event.micro_batches))
        if event.stopping:
            job.phase, job.withdrawn = JobPhase.STOPPING, True

    def _withdrawn(self, event: JobWithdrawn) -> None:
        job = self.jobs.get(event.id)
        if job is None:
            return
        if job.gpus:
            job.phase, job.withdrawn = JobPhase.STOPPING, True
        else:
            self._leave_queue(job, self._at)
            del self.jobs[event.id]

    def _held(self, at: float, event: JobHeld) -> None:
        job = self.jobs.get(event.id)
        if job is None or job.gpus or event.held == (job.phase is JobPhase.HELD):
            return
        self._leave_queue(job, at)
        job.phase = JobPhase.HELD if event.held else JobPhase.WAITING
        self._wait(job, at)

    def _moved(self, event: JobMoved) -> None:
        job = self.jobs.get(event.id)
        if job is None or job.gpus:
            return
        self._moves += 1
        waits = job.phase is JobPhase.WAITING
        if waits:
            self.queue.remove(job)
        job.moved = self._moves
        if waits:
            self.queue.add(job, job.queued_at)

    def _refused(self, at: float, event: StartRefused) -> None:
        job = self.jobs.get(event.id)
        if job is None or not job.gpus or event.attempt != job.attempt:
            return
        self._vacate(job)
        if job.withdrawn:
            del self.jobs[event.id]
        else:
            job.phase = JobPhase.WAITING
            self._wait(job, at)

    def _progressed(self, at: float, event: JobProgressed) -> None:
        job = self.jobs.get(event.id)
        if job is None or not job.gpus or event.attempt != job.attempt or event.iteration_s <= 0:
            return
        if event.length and not job.spec.request.iterations:
            job.spec = replace(job.spec, request=replace(job.spec.request, iterations=event.length))
        job.iterations, job.iteration_s = event.iterations, event.iteration_s / job.pace
        job.progressed_s = job.alone_s(at)
        job.taken_mib = max(job.taken_mib, event.memory_mib)
        job.note_told(self.lengths, at)

    def _measured(self, at: float, event: PairMeasured) -> None:
        job = self.jobs.get(event.id)
        if job is None or not job.beside or event.attempt != job.attempt or event.slowdown <= 0:
            return
        job.settle(at)
        if event.slowdown - 1 > job.spec.request.share:
            worst = max(job.beside, key=lambda id_: (job.beside[id_].expected, id_))
            self.pairs.note_worse(job.device, job.spec.request.workload, self.jobs[worst].spec.request.workload)
        job.measured = max(1.0, event.slowdown / job.factor)

    def _held_back(self, at: float, event: GuestHeldBack) -> None:
        job = self.jobs.get(event.id)
        if job is not None and job.gpus and event.attempt == job.attempt and 0 < event.part <= 1:
            job.settle(at)
            job.part = event.part

    def _over(self, at: float, event: AttemptOver, decisions: list[Decision]) -> None:
        job = self.jobs.get(event.id)
        if job is None or not job.gpus or event.attempt != job.attempt:
            return
        lasted_s = max(0.0, at - job.since_at)
        job.ran_s += lasted_s
        self._vacate(job)
        ended = event.ended
        if ended is not Ended.SUCCEEDED:
            # Ranks that were ended for another rank's sake report a failure.
            ended = Ended.STOPPED if job.withdrawn else job.ended_as or ended
        allowed = job.spec.request.restarts
        verdict = after(self._knobs, ended, lasted_s, allowed, job.restarts, job.short_ends)
        job.restarts, job.short_ends = verdict.restarts, verdict.short_ends
        if verdict.ended is None:
            job.iterations, job.progressed_s = event.iterations, job.ran_s - job.lost_s
            if ended is Ended.OUTGROWN:
                job.outgrow(event.memory_mib)
            job.bind(event.home)
            job.moved, job.not_before, job.phase = 0, at + verdict.pause_s, JobPhase.WAITING
            self._wait(job, at)
            decisions.append(
                Requeue(
                    id=event.id,
                    attempt=job.attempt,
                    ended=ended,
                    not_before=job.not_before - self._set_back,
                    pause_s=verdict.pause_s,
                    restarts=job.restarts,
                    allowed=allowed,
                    short_ends=job.short_ends,
                )
            )
            return
        del self.jobs[event.id]
        alone_s = job.ran_s - job.lost_s
        ratios = job.ratios(alone_s) if verdict.ended is Ended.SUCCEEDED else {}
        if ratios:
            self.lengths.learn(PastRun(project=job.spec.project, name=job.spec.name, seconds=alone_s, ratios=ratios))
        decisions.append(
            Finish(
                id=event.id,
                ended=verdict.ended,
                allowed=allowed,
                short_ends=job.short_ends,
                seconds=alone_s,
                ratios=ratios,
            )
        )

    def _lost(self, event: GpuLost, decisions: list[Decision]) -> None:
        for id_ in self.fleet.lose(event.gpu):
            job = self.jobs[id_]
            if job.phase is JobPhase.PLACED:
                job.phase, job.ended_as = JobPhase.STOPPING, Ended.LOST
                decisions.append(Stop(id=id_, attempt=job.attempt, ended=Ended.LOST, gpu=event.gpu))

    # ---- a round -----------------------------------------------------------------------------------------------------

    def _round(self, at: float, events: Sequence[Event], decisions: list[Decision]) -> None:
        while self._resting and self._resting[0][0] <= at:
            job = self.jobs.get(heappop(self._resting)[1])
            if job is not None and job.phase is JobPhase.RESTING and job.not_before <= at:
                self._wait(job, at)
        self.queue.advance(at)
        for job in self._preemption.stopped(self, at, events) if self._preemption is not None else ():
            job.phase, job.ended_as = JobPhase.STOPPING, Ended.PREEMPTED
            decisions.append(Stop(id=job.spec.id, attempt=job.attempt, ended=Ended.PREEMPTED))
        self._ends.begin(at)
        self.promises.begin(at)
        self.places.check()
        self._begin(at)
        self._decide_promises(at, decisions)
        shares = self._knobs.sharing is not Sharing.NONE
        for place, job in enumerate(self.queue, 1):
            if not self.fleet.free and not (shares and any(pool.half for pool in self.fleet.pools.values())):
                break
            if self._preemption is not None and not self._preemption.may_start(job):
                continue
            gpus = self.places.gpus_for(job, at) if self.fleet.free else None
            shared = self.places.hosts_for(job, at, self._wait_s) if gpus is None and shares else None
            if gpus is not None:
                shared = Shared(gpus, (), job.parts)
            if shared is not None:
                self._start(job, shared, at, place, decisions)
                self._ends.changed(job)
                self.partners.begin()
                self.promises.started(job)
                if shared.beside:
                    self._forecast = None
            else:
                kept = self.places.kept
                if not self.places.passable(job, at):
                    break
                if self.places.kept is not kept:
                    self.partners.begin()
                    self.promises.changed()

    def _decide_promises(self, at: float, decisions: list[Decision]) -> None:
        """A job that is refused its promise is no job of the rule any more, unless its owner lets it wait without."""
        asking, self._asking = self._asking, []
        for job in asking:
            if self.jobs.get(job.spec.id) is not job:
                continue
            assert job.spec.request.by is not None
            verdict = self.promises.ask(job, self.places.kept, job.spec.request.by)
            if isinstance(verdict, Promised):
                self.promises.give(job, verdict.by)
                self.promises.begin(at)
            elif job.spec.request.unless == "refuse":
                self._leave_queue(job, at)
                del self.jobs[job.spec.id]
            decisions.append(self._by_the_clock(verdict))

    def _by_the_clock(self, verdict: Promised | NotPromised) -> Promised | NotPromised:
        back_s = self._set_back
        if isinstance(verdict, Promised):
            return verdict._replace(by=verdict.by - back_s, latest_start_at=verdict.latest_start_at - back_s)
        return verdict._replace(earliest=verdict.earliest - back_s if verdict.earliest is not None else None)

    def _begin(self, at: float) -> None:
        """Nothing that was counted for those that might share is true any more."""
        self._ends.renew(at)
        self.partners.begin()
        self._forecast = None

    def _wait_s(self, job: Job) -> float:
        """How long a job would wait for GPU instances of its own, by the plan; inf = for ever."""
        if self._forecast is None:
            self._forecast = self._outlook().forecast(self._at)
        return max(0.0, self._forecast.start_of(job.spec.id) - self._at)

    def _start(self, job: Job, shared: Shared, at: float, place: int, decisions: list[Decision]) -> None:
        gpus = shared.gpus
        turn, waited_s = self.queue.turn(job), job.waiting_s(at)
        kept = self.places.kept = for_another(self.places.kept, job)
        passed = place - 1 - sum(isinstance(decision, Start) for decision in decisions)
        length = job.left(self.lengths, at, self.fleet.device_of(gpus))
        self._leave_queue(job, at)
        job.attempt += 1
        self._place(job, gpus, at, shared.parts)
        reasons = StartReasons(
            setting=self._knobs.name,
            turn=turn,
            place=place,
            passed=passed,
            waited_s=waited_s,
            length=length,
            nodes=len({seen.node for name in gpus if (seen := self.fleet.gpus[name].seen) is not None}),
            kept_for=kept.id if kept is not None else "",
            refused={code: count for code, count in self.fleet.refusals.items() if count},
        )
        decisions.append(
            Start(
                id=job.spec.id,
                attempt=job.attempt,
                gpus=gpus,
                reasons=reasons,
                parts=shared.parts,
                iterations=job.iterations,
                beside=shared.beside,
            )
        )

    # ---- when, and questions -----------------------------------------------------------------------------------------

    def _wake_at(self, at: float) -> float:
        resting = self._resting[0][0] if self._resting else inf
        stopping = self._preemption.wake_at(self, at) if self._preemption is not None else inf
        latest = min((latest for latest in self.queue.latest.values() if latest > at), default=inf)
        return min(resting, self.queue.next_due(), stopping, latest)

    def _outlook(self) -> Outlook:
        return Outlook(
            self._knobs, self.fleet, self.projects, self.queue, self.jobs, self._ends, self.places, self._wait_s
        )

    def _answer(self, at: float, question: Question) -> Decision:
        self._begin(at)
        if isinstance(question, PlacesAsked):
            waits = self.jobs[question.id] if question.id in self.queue else None
            where = self._outlook().places(waits) if waits is not None else ()
            return PlacesAnswered(id=question.id, places=where)
        if isinstance(question, BreaksAsked):
            return BreaksAnswered(jobs=self._breaks(at, question))
        self.promises.renew(at)
        outlook = self._outlook()
        if isinstance(question, QueueAsked):
            return outlook.publish(at, self._set_back)
        misfit = outlook.misfit(question.spec)
        if misfit is not None:
            return TrialAnswered(id=question.spec.id, gpus=(), expected=None, misfit=misfit)
        job = self.jobs[question.spec.id] = Job(JobSubmitted(spec=question.spec, submitted_at=at - self._set_back))
        self.queue.add(job, at)
        self._begin(at)
        expected = next(job for job in outlook.publish(at, self._set_back).jobs if job.id == question.spec.id)
        at_once = expected.start_at is not None and expected.start_at[0] <= at - self._set_back
        gpus = (self.places.gpus_for(job, at) or ()) if at_once else ()
        shared = None if gpus else self.places.hosts_for(job, at, self._wait_s)
        asked = question.spec.request.by
        promise = self.promises.ask(job, self.places.kept, EARLIEST if asked is None else asked)
        self.queue.remove(job)
        del self.jobs[question.spec.id]
        return TrialAnswered(
            id=question.spec.id,
            gpus=shared.gpus if shared is not None else gpus,
            expected=expected,
            misfit=None,
            beside=tuple(host.id for host in shared.beside) if shared is not None else (),
            promise=self._by_the_clock(promise),
        )

    def _breaks(self, at: float, question: BreaksAsked) -> list[str]:
        """The jobs whose promises hold now and would not after that."""
        kept, limits = self.places.kept, self.projects.limits
        self.promises.begin(at)
        before = self.promises.holding(kept)
        reports = [
            gpu.seen for name, gpu in self.fleet.gpus.items() if name in question.closed and gpu.seen is not None
        ]
        for report in reports:
            self.fleet.see(replace(report, closed="draining"))
        self.projects.limits = {**limits, **question.limits}
        self.promises.begin(at)
        broken = before - self.promises.holding(
            kept if kept is not None and kept.gpus.isdisjoint(question.closed) else None
        )
        for report in reports:
            self.fleet.see(report)
        self.projects.limits = limits
        self.promises.begin(at)
        return sorted(broken)
