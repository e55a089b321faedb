"""
The policy: SMore's rule and, with other knobs, its baselines'. Events go to the parts, a round follows, decisions come
out.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Final, assert_never

import numpy as np

from scheduler.policy import kernel
from scheduler.policy.admission import Admission
from scheduler.policy.batching import Batching
from scheduler.policy.budget.budgets import Budgets
from scheduler.policy.budget.reservations import Reservations
from scheduler.policy.classes import Classes
from scheduler.policy.cluster import Batch, Bools, Cluster
from scheduler.policy.decisions import (
    Decision,
    Offload,
    PublishLearned,
    PublishPrewarmStatus,
    PublishStatus,
    QuestionAnswered,
)
from scheduler.policy.demand import Demand
from scheduler.policy.dispatching import Dispatching, ending
from scheduler.policy.events import (
    AdmissionDue,
    ClaimRefused,
    CostsKnown,
    CountsKnown,
    Event,
    ForecastsUpdated,
    FunctionKnown,
    FunctionRemoved,
    GpuLost,
    GpuReported,
    InstanceReported,
    InvocationArrived,
    InvocationHeld,
    InvocationSettled,
    LearnedDue,
    LearnedKnown,
    LoadWanted,
    OverridesChanged,
    PausesChanged,
    PrewarmStatusDue,
    Question,
    QuestionAsked,
    StatusDue,
    TableUpdated,
    TrafficMoved,
    WarmLimits,
)
from scheduler.policy.knobs import PRESETS, Knobs
from scheduler.policy.lanes import Lanes
from scheduler.policy.load import LoadSwitch
from scheduler.policy.ordering import Ordering
from scheduler.policy.overrides import Overrides
from scheduler.policy.placement import Placement
from scheduler.policy.policy import Round
from scheduler.policy.prewarm.prewarmer import Prewarmer
from smore.domain.function import FunctionSpec, WorkClass
from smore.domain.invocation import Cause, End, EndedFor
from smore.domain.learned import Learned

#: No quarantine is shorter, seconds (worker/pool/quarantine.py): what waits for longer may outlast it.
QUARANTINE_S: Final = 60.0
#: Seconds over which a GPU worker averages a job's iterations (worker/training/jobs.py).
SOLE_S: Final = 60.0


class Engine:
    """
    Admission by deadline, budget, SM and memory; warm or least impact first; batches of one revision; order by shares,
    P, deadline or arrival: as its ``knobs`` say.

    ``shadow`` decides beside it, on the same state, where it would have placed each batch; it does not act.
    ``prewarmer`` keeps instances ready (None: none are). The parts are public for tests and benchmarks; shells call
    :meth:`decide` alone (:class:`~scheduler.policy.policy.Policy`).
    """

    def __init__(
        self, knobs: Knobs = PRESETS["smore-product"], shadow: Knobs | None = None, prewarmer: Prewarmer | None = None
    ) -> None:
        self.cluster = cluster = Cluster(
            shares=knobs.impact,
            capacity_s=knobs.account_s,
            target=knobs.aim,
            budget=knobs.tau_training,
            memory_reserve=knobs.memory_reserve,
        )
        self.waiting = Lanes()
        self.load = LoadSwitch(high=knobs.load_hi, low=knobs.load_lo, hold_s=knobs.hold_s)
        self.overrides = Overrides(cluster)
        self.placement = Placement(knobs, shadow, cluster, self.overrides)
        self.classes = Classes(knobs, cluster, self.waiting, self.placement.ask)
        self.ordering = Ordering(knobs, cluster, self.overrides, self.classes)
        self.budgets = Budgets(knobs, cluster)
        self.batching = Batching(knobs, cluster, self.budgets)
        self.admission = Admission(
            knobs, cluster, self.waiting, self.overrides, self.ordering, self.batching, self.placement, self.budgets
        )
        self.prewarmer = prewarmer
        self.dispatching = Dispatching(
            knobs=knobs,
            cluster=cluster,
            waiting=self.waiting,
            classes=self.classes,
            load=self.load,
            overrides=self.overrides,
            ordering=self.ordering,
            placement=self.placement,
            budgets=self.budgets,
            reservations=Reservations(knobs, cluster, self.overrides, self.budgets, self.placement.ask),
            batching=self.batching,
            prewarmer=prewarmer,
        )
        self._wake_at = inf
        #: Whether it has decided before: what waits at first has waited for a leader.
        self._began = False

    def decide(self, now: float, events: Sequence[Event]) -> Round:
        """See :meth:`~scheduler.policy.policy.Policy.decide`."""
        decisions: list[Decision] = []
        questions: list[Question] = []
        for event in events:
            self._apply(now, event, decisions, questions)
        self._began = True
        if not questions or len(questions) < len(events):
            self.overrides.refresh(now)
            self.admission.forget()
            self.dispatching.run(now, decisions)
            self._wake_at = self.dispatching.wake_at
            if self.prewarmer is not None:
                decisions += self.prewarmer.act(now, self)
                self._wake_at = min(self._wake_at, self.prewarmer.next_at)
        # After the round, so that an answer rests on all that has happened.
        for question in questions:
            decisions += self._answer(now, question)
        return Round(decisions, self._wake_at)

    # ---- events ------------------------------------------------------------------------------------------------------

    def _apply(self, now: float, event: Event, decisions: list[Decision], questions: list[Question]) -> None:
        match event:
            case InvocationArrived():
                self._arrived(now, event, decisions)
            case InvocationSettled():
                self._settled(now, event)
            case GpuReported():
                self._reported(now, event, decisions)
            case LoadWanted():
                demand = self.cluster.find(event.function, event.revision)
                if demand is not None:
                    self.dispatching.load_wanted(now, demand, decisions)
            case ClaimRefused():
                self._returned(now, event.id, event.attempt + 1)
            case InvocationHeld():
                self._held(now, event)
            case FunctionKnown():
                self._register(event)
            case FunctionRemoved():
                self._remove(event.function, decisions)
            case GpuLost():
                self.cluster.lose(event.gpu)
                if self.prewarmer is not None and event.gpu in self.cluster.index:
                    self.prewarmer.lost(self.cluster.index[event.gpu])
            case PausesChanged():
                self.overrides.pause(now, event.paused)
            case OverridesChanged():
                self.overrides.change(event.overrides)
            case WarmLimits():
                self.overrides.limit(event.mib)
            case TableUpdated():
                self.cluster.adopt(event.table)
                self._learn(self.cluster.demands)
            case InstanceReported():
                self._instance_reported(now, event)
            case TrafficMoved():
                demand = self.cluster.find(event.function, event.revision)
                if self.prewarmer is not None and demand is not None:
                    self.prewarmer.serve(now, demand)
            case ForecastsUpdated():
                if self.prewarmer is not None:
                    self.prewarmer.foresee(now, event)
            case CountsKnown():
                if self.prewarmer is not None:
                    self.prewarmer.remember(now, event)
            case LearnedKnown():
                self._recall(event)
            case CostsKnown():
                self.budgets.recall(event.costs)
            case QuestionAsked() | AdmissionDue() | StatusDue() | PrewarmStatusDue() | LearnedDue():
                questions.append(event)
            case _:
                assert_never(event)

    def _arrived(self, now: float, event: InvocationArrived, decisions: list[Decision]) -> None:
        if event.attempt:
            self._returned(now, event.id, event.attempt)  # its former attempt's place is free
        demand = self.cluster.find(event.function, event.revision)
        if demand is None:
            decisions.append(ending(event, "fail", Cause.FUNCTION_DELETED, EndedFor.NO_REVISION))
            return
        if event.attempt == 0 and 0 < self.cluster.largest < demand.memory_mib:
            decisions.append(ending(event, "reject", Cause.INFEASIBLE, EndedFor.NO_DEVICE_HOLDS_IT))
            return
        if event.attempt == 0 and not self.overrides.fits(demand):
            decisions.append(ending(event, "reject", Cause.INFEASIBLE, EndedFor.OVER_WARM_LIMIT))
            return
        if event.deadline_at < now + QUARANTINE_S and self.cluster.keeps_out(demand.column):
            decisions.append(_kept_out(event))
            return
        if event.bulk:
            # Inputs come by the thousand: how late the last of those was heard of is no user's wait.
            event = self.classes.of(event)
        elif event.attempt == 0 and self._began:
            self.classes.heard.add(now, now - event.arrival_at)
        self.load.arrived(now, demand.run_s(event.rows))
        bulk = event.bulk
        if not self.waiting.of_class(event.function, bulk):
            if bulk:
                self.classes.arrived(now, demand)
            else:
                demand.open_since = now
            self.ordering.begins(event.function, bulk)
        self.waiting.add(event)
        if self.prewarmer is not None and event.attempt == 0:
            self.prewarmer.arrived(now, demand)

    def _settled(self, now: float, event: InvocationSettled) -> None:
        batch = self.dispatching.end(now, event.id, event.attempt)
        if batch is None:
            self.waiting.remove(event.id)  # ended while it waited: cancelled
        elif not batch.members:
            demand = self.cluster.demands[batch.column]
            if self.prewarmer is not None:
                self._idle(now, demand)
            if event.run_s is not None:
                # Of the last member of a warm batch: its run time teaches, unless others held it back.
                held_back = event.idle and demand.spec.work_class is WorkClass.STANDARD
                if not held_back or event.run_s < demand.learned_s(event.batch_rows):
                    demand.observe_run(now, event.batch_rows, event.run_s, batch.slowdown)
                self.budgets.settle(now, batch, event.run_s)

    def _idle(self, now: float, demand: Demand) -> None:
        """An instance of a revision has no work any more."""
        assert self.prewarmer is not None
        cell = self.cluster.cells[demand.column, :, : len(self.cluster)]
        idle = np.maximum(0.0, cell[kernel.RESIDENT] - np.maximum(cell[kernel.OUTSTANDING], cell[kernel.LOADING]))
        self.prewarmer.idle(now, demand, int(idle.sum()), int(cell[kernel.OUTSTANDING].sum()))

    def _returned(self, now: float, id_: str, attempt: int) -> None:
        """A member was not run; a batch of which none was costs nothing."""
        batch = self.dispatching.end(now, id_, attempt)
        if batch is not None and not batch.members:
            self.budgets.refund(now, batch)

    def _held(self, now: float, event: InvocationHeld) -> None:
        demand = self.cluster.find(event.function, event.revision)
        if demand is None or event.id in self.cluster.batches:
            return
        row, run_s = self.cluster.add_row(event.gpu), demand.run_s(event.rows)
        self.cluster.join(
            Batch(
                row=row,
                column=demand.column,
                kind=self.cluster.kind(demand, event.rows),
                run_s=run_s,
                start_at=event.since_at,
                deadline_at=event.deadline_at,
                expected_end_at=event.since_at + demand.load_s + run_s,
                members={event.id: event.attempt},
                bulk=event.bulk,
            ),
            now,
            event.begun,
        )

    def _register(self, event: FunctionKnown) -> None:
        demand = self.cluster.find(event.function, event.revision)
        if demand is not None:
            demand.update(event.spec)
            self.cluster.respecify(demand)
        else:
            column = len(self.cluster.demands)
            demand = Demand(function=event.function, revision=event.revision, spec=event.spec, column=column)
            self.cluster.add_column(demand)
        self._learn([demand])

    def _remove(self, function: str, decisions: list[Decision]) -> None:
        if self.prewarmer is not None:
            decisions += self.prewarmer.forget(function)
        for invocation in list(self.waiting.of_function(function)):
            self.waiting.remove(invocation.id)
            decisions.append(ending(invocation, "fail", Cause.FUNCTION_DELETED, EndedFor.DELETED))

    def _reported(self, now: float, event: GpuReported, decisions: list[Decision]) -> None:
        cluster = self.cluster
        row = cluster.add_row(event.gpu)
        usable, before = cluster.is_usable(row), cluster.quarantined(row)
        if cluster.report(event):
            self._learn(cluster.demands)
        self.dispatching.begin_ahead(now, row)
        for column in cluster.quarantined(row) - before:
            self._keep_out(now, cluster.demands[column], decisions)
        self.budgets.reported(row, event, decisions)
        cluster.pause(row, self.overrides.gpu_paused(event.gpu))
        if cluster.is_usable(row) and not usable:
            cluster.open_since = now
        if self.overrides.gpu_drained(event.gpu):
            # The worker ends what is idle or parked, so that each report brings fewer.
            there = dict.fromkeys((function, revision) for function, revision, _ in (*event.warm, *event.parked))
            decisions += [
                Offload(function=function, revision=revision, gpu=event.gpu, gone=True) for function, revision in there
            ]
        if self.prewarmer is not None:
            self.prewarmer.reported(event.at, row, event, cluster)
        column, since = self.dispatching.sole(row, event.at)
        # The job's degradation is a mean over the last minute, so a function must have had that minute to itself; then
        # a new minute begins.
        if event.jobs and column >= 0 and event.function_utilisation > 0 and event.at - since >= SOLE_S:
            demand = cluster.demands[column]
            demand.observe_effect(event.function_utilisation, event.job_degradation)
            cluster.redeclare(demand)
            self.ordering.priorities_changed()
            self.dispatching.sole_from(row, column, event.at)

    def _keep_out(self, now: float, demand: Demand, decisions: list[Decision]) -> None:
        """A quarantine has begun somewhere: what it outlasts everywhere ends."""
        if not self.cluster.keeps_out(demand.column):
            return
        for invocation in list(self.waiting.of_function(demand.function)):
            if invocation.revision == demand.revision and invocation.deadline_at < now + QUARANTINE_S:
                self.waiting.remove(invocation.id)
                decisions.append(_kept_out(invocation))

    def _instance_reported(self, now: float, event: InstanceReported) -> None:
        demand, row = self.cluster.find(event.function, event.revision), self.cluster.index.get(event.gpu)
        if demand is not None and event.load_s is not None:
            demand.open_since = now
            if event.host:
                demand.observe_host(event.load_s)
            else:
                demand.observe_load(event.load_s)
        if self.prewarmer is not None and row is not None:
            self.prewarmer.instance_reported(now, event, row)

    def _learn(self, demands: Iterable[Demand]) -> None:
        """Eq. 5 rests on what was measured, where a table has the function."""
        self.ordering.priorities_changed()
        for demand in demands:
            averages = self.cluster.averages(demand.spec.profile.model)
            if averages is not None:
                demand.know(*averages)
                self.cluster.redeclare(demand)

    def _recall(self, event: LearnedKnown) -> None:
        demand = self.cluster.find(event.function, event.learned.revision)
        if demand is not None:
            demand.recall(event.learned)
            self.cluster.redeclare(demand)
            self.ordering.priorities_changed()

    # ---- questions ---------------------------------------------------------------------------------------------------

    def _answer(self, now: float, question: Question) -> list[Decision]:
        match question:
            case QuestionAsked():
                demand = self.cluster.find(question.function, question.revision)
                if demand is None:
                    return [QuestionAnswered(id=question.id, answer=None, bounds=None)]
                answer = self.admission.answer(now, demand, question)
                return [QuestionAnswered(id=question.id, answer=answer, bounds=self.admission.bounds(now, demand))]
            case AdmissionDue():
                return [self.admission.publication(now, question)]
            case StatusDue():
                return [
                    PublishStatus(
                        waiting={function: self.waiting.count(function) for function in self.waiting.functions()},
                        buckets=self.budgets.buckets(now),
                        differing=self.cluster.differing(),
                        yields=self.classes.yields(),
                    )
                ]
            case PrewarmStatusDue():
                if self.prewarmer is None:
                    return []
                return [
                    PublishPrewarmStatus(
                        functions=self.prewarmer.reports.statuses(), clock_steps=self.prewarmer.reports.clock_steps
                    )
                ]
            case LearnedDue():
                return [PublishLearned(functions=_learned(self.cluster, question), costs=self.budgets.learned())]
            case _:
                assert_never(question)

    # ---- what the prewarmer asks (prewarm/prewarmer.py: PlacementView) -----------------------------------------------

    def loadable(self, now: float, demand: Demand) -> Bools:
        """GPU instances [N] that accept a load now: pauses, limits, budgets, compute, deadlines of what runs."""
        if self.overrides.platform_paused or not self.overrides.may_load(demand):
            return np.zeros(len(self.cluster), bool)
        return self.placement.loadable(now, demand)

    def charge_load(self, now: float, demand: Demand, row: int) -> None:
        """A load costs training time too: take it from the row's token bucket."""
        self.budgets.charge_load(now, demand, row)

    def paused(self, function: str) -> bool:
        return self.overrides.function_paused(function)


def _kept_out(invocation: InvocationArrived) -> End:
    return ending(invocation, "fail", Cause.QUARANTINED, EndedFor.KEPT_OUT)


def prepare() -> None:
    """
    Compile the kernel, or load what was compiled before: some seconds in a fresh installation, and nobody should wait
    for them.
    """
    engine = Engine()
    spec = FunctionSpec(entrypoint="none:None")
    report = GpuReported(
        gpu="none",
        boot="",
        at=0.0,
        slots=1,
        memory_total=1e6,
        memory_used=0.0,
        memory_idle=0.0,
        utilisation=0.0,
        function_utilisation=0.0,
        jobs=1,
        warm=[("none", 1, 1)],
    )
    arrival = InvocationArrived(function="none", revision=1, id="", attempt=0, arrival_at=0.0, deadline_at=60.0)
    engine.decide(
        0.0, [FunctionKnown(function="none", revision=1, spec=spec), report, GpuLost(gpu="none"), report, arrival]
    )
    engine.decide(1.0, [InvocationSettled(id="", attempt=1)])
    # Another one finds an empty token bucket.
    engine.cluster.take_tokens(0, 1.0, 1.0)
    engine.decide(1.0, [arrival])
    engine.decide(1.0, [StatusDue()])


def _learned(cluster: Cluster, due: LearnedDue) -> dict[str, Learned]:
    found = {}
    for function, revision in due.revisions.items():
        demand, kept = cluster.find(function, revision), due.kept.get(function)
        before = (kept.revision, kept.lessons) if kept is not None else (revision, 0)
        if demand is not None and before != (revision, demand.lessons):
            found[function] = demand.learned()
    return found
