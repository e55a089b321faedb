"""
What happens in Redis as the policy's events: the snapshot that a new leader begins with, entries of the stream, and
what is published by others (tables, forecasts, overrides).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from typing import Final, TypeVar

import redis

from scheduler.leader import foresight
from scheduler.leader.admission_board import AdmissionBoard
from scheduler.leader.tables import ArrayTable
from scheduler.policy.events import (
    CostsKnown,
    Event,
    FunctionKnown,
    FunctionRemoved,
    GpuLost,
    GpuReported,
    InstanceReported,
    InvocationArrived,
    InvocationHeld,
    InvocationSettled,
    LearnedKnown,
    LoadWanted,
    OverridesChanged,
    PausesChanged,
    QuestionAsked,
    TableUpdated,
    TrafficMoved,
    WarmLimits,
)
from smore.domain.loss import JobLoss, Sample
from smore.domain.override import Pause
from smore.messages import stream
from smore.messages.degradation import BadTable
from smore.messages.forecasts import BadForecast
from smore.messages.reports import JobReport, Report, WarmState, decode_report
from smore.messages.results import IDLE, decode_execution
from smore.process import observability as metrics
from smore.process.settings import Settings
from smore.redis.catalog import Catalog
from smore.redis.fleet import Fleet
from smore.redis.forecasts import PublishedForecasts
from smore.redis.learned import LearnedRecords
from smore.redis.queue import ANSWER_TTL_S, Queue, Snapshot
from smore.redis.records import LeasedInvocation, QueuedInvocation
from smore.redis.tables import Tables

log = metrics.logger(__name__)

_Blob = TypeVar("_Blob")

#: Seconds from the end of a load to the first report of its instance, at most.
FRESH_S: Final = 5.0
#: A GPU instance is gone when it has not reported for this many heartbeats.
LOST_HEARTBEATS: Final = 4


class Inbound:
    """
    ``prewarms``: whether the policy takes forecasts and counts. ``now``: Redis' clock, epoch seconds. It remembers what
    the policy was given: :meth:`begin` starts anew.
    """

    def __init__(
        self,
        client: "redis.Redis",
        config: Settings,
        queue: Queue,
        board: AdmissionBoard,
        now: Callable[[], float],
        prewarms: bool,
    ) -> None:
        prefix = config.redis.prefix
        self._queue, self._board, self._now, self._prewarms = queue, board, now, prewarms
        self._silent_s = LOST_HEARTBEATS * config.worker.heartbeat_s
        self._fleet, self._catalog = Fleet(client, prefix), Catalog(client, prefix)
        self._learned = LearnedRecords(client, prefix)
        self._tables, self._forecasts = Tables(client, prefix), PublishedForecasts(client, prefix)
        #: The versions of the table and of the forecasts that were looked at last, good or not.
        self._table_version = 0
        self.forecasts_version = 0
        #: What was imported when rules last learned what was counted.
        self._lesson = 0
        #: Revisions that the policy was given.
        self._registered: set[tuple[str, int]] = set()
        #: Processes beside which functions may run though nobody registered them.
        self._allowed: frozenset[str] = frozenset()
        #: Functions with traffic → their newest revision.
        self.active: dict[str, int] = {}
        #: When each GPU instance that is not lost last reported, epoch seconds.
        self._reported_at: dict[str, float] = {}
        #: GPU instance, lost or not → which start of its worker reported last, and when, epoch seconds.
        self._boots: dict[str, tuple[str, float]] = {}
        #: Questions of gateways that are not answered yet.
        self._asked: list[stream.Asked] = []
        #: What the gauges of pauses and drains show (:func:`_show`).
        self._shown: set[tuple[bool, str, str]] = set()

    # ---- a new leader ------------------------------------------------------------------------------------------------

    def begin(self, snapshot: Snapshot) -> list[Event]:
        """All that a new policy must be given first."""
        self._shown = set()
        self._registered.clear()
        self._reported_at.clear()
        self._boots.clear()
        self.active.clear()
        self._table_version = self.forecasts_version = self._lesson = 0
        events: list[Event] = [*self._overrides(), *self.new_table()]
        for function, entry in self._catalog.functions().items():
            if entry.revision:
                self.active[function] = entry.revision
                self._register(function, entry.revision, events)
                events.append(TrafficMoved(function=function, revision=entry.revision))
        events += self._counts()
        events += self.new_forecasts()
        events.append(CostsKnown(costs=self._learned.costs()))
        for report in snapshot.reports:
            self._reported(report, events)
        # After the reports, for a table's averages of a device that reports would take the place of what was learned.
        events += [LearnedKnown(function=name, learned=learned) for name, learned in self._learned.functions().items()]
        for held in sorted(snapshot.held, key=lambda held: held.state == "dispatched"):
            self._held(held, events)
        for waiting in snapshot.waiting:
            self._register(waiting.function, waiting.revision, events)
            events.append(_arrival(waiting))
        return events

    def new_table(self) -> list[Event]:
        """
        Another version of the degradation table, if one was published. One that cannot be used leaves the last good one
        in place.
        """
        version = self._tables.version()
        if version in (0, self._table_version):
            return []
        self._table_version = version
        table = _usable("degradation table", self._tables.current, version=version)
        if table is None:
            return []
        log.info("degradation table", version=table.version, source=table.source, places=len(table.places))
        return [TableUpdated(table=ArrayTable(table))]

    def _overrides(self) -> list[Event]:
        """What people have set: pauses and drains, boosts and pins, limits, processes that are allowed."""
        self._allowed = self._fleet.allowed()
        overrides = list(self._fleet.overrides(self._now()).values())
        mib = {
            name: limits.warm_memory_mib
            for name, limits in self._catalog.limits().items()
            if limits.warm_memory_mib is not None
        }
        self._shown = _show(self._shown, self._fleet.pauses())
        return [PausesChanged(paused=self._fleet.paused()), OverridesChanged(overrides=overrides), WarmLimits(mib=mib)]

    def new_forecasts(self) -> list[Event]:
        """Other forecasts, if some were published. What cannot be used leaves the last ones, which grow stale."""
        version = self._forecasts.version() if self._prewarms else 0
        if version in (0, self.forecasts_version):
            return []
        self.forecasts_version = version
        forecasts = _usable("forecasts", self._forecasts.current, version=version)
        if forecasts is None:
            return []
        # Rules that learned counts before others were imported begin anew.
        counts = self._counts() if forecasts.lesson != self._lesson else []
        self._lesson = forecasts.lesson
        return [*counts, foresight.updated(forecasts)]

    def _counts(self) -> list[Event]:
        """What was counted before this leader began."""
        if not self._prewarms:
            return []
        counts = _usable("counts", self._forecasts.counts)
        if counts is None:
            return []
        self._lesson = counts.lesson
        return [foresight.counts_known(counts)]

    def _held(self, held: LeasedInvocation, events: list[Event]) -> None:
        waiting = held.waiting
        self._register(waiting.function, waiting.revision, events)
        events.append(
            InvocationHeld(
                function=waiting.function,
                revision=waiting.revision,
                id=waiting.id,
                attempt=waiting.attempt,
                rows=waiting.rows,
                gpu=held.gpu,
                since_at=(held.started_us or held.claimed_us) / 1e6,
                deadline_at=waiting.deadline_us / 1e6,
                begun=held.started_us > 0,
                bulk=waiting.bulk,
            )
        )

    def _register(self, function: str, revision: int, events: list[Event]) -> None:
        """Give the policy a revision before the first event that names it."""
        if (function, revision) in self._registered:
            return
        spec = self._catalog.revision(function, revision)
        if spec is not None:
            self._registered.add((function, revision))
            events.append(FunctionKnown(function=function, revision=revision, spec=spec))

    # ---- the stream --------------------------------------------------------------------------------------------------

    def events(self, entries: Iterable[tuple[str, bytes]]) -> list[Event]:
        """Entries of the stream as events; questions are kept for :meth:`questions`."""
        events: list[Event] = []
        for entry, raw in entries:
            try:
                event = stream.decode(raw)
            except ValueError:
                log.warning("unreadable event passed over", entry=entry)
                continue
            match event:
                case stream.Arrived() | stream.Returned():
                    self._register(event.function, event.revision, events)
                    events.append(_arrival(event))
                case stream.Settled():
                    if event.claimed_us:
                        metrics.QUEUE_WAIT_SECONDS.labels(event.function).observe(
                            (event.claimed_us - event.arrival_us) / 1e6
                        )
                    run_s, rows, idle = _run(event.meta)
                    settled = InvocationSettled(
                        id=event.id, attempt=event.attempt, run_s=run_s, batch_rows=rows, idle=idle
                    )
                    events.append(settled)
                case stream.Reported():
                    self._reported(event.report.encode(), events)
                case stream.CatalogChanged():
                    self._catalog_changed(event.function, events)
                case stream.Asked():
                    self._register(event.function, event.revision, events)
                    self._asked.append(event)
                case stream.Wanted():
                    self._register(event.function, event.revision, events)
                    events.append(LoadWanted(function=event.function, revision=event.revision))
                case stream.Warmed():
                    self._warmed(event, events)
                case stream.Dispatched() | stream.Stepped():
                    pass  # the leader's own doing: the policy counts it already
        return events

    def _catalog_changed(self, function: str, events: list[Event]) -> None:
        if not function:
            events += self._overrides()
            return
        # An activated revision's spec holds what its canary measured.
        self._catalog.forget(function)
        self._registered -= {key for key in self._registered if key[0] == function}
        entry = self._catalog.functions().get(function)
        if entry is not None:
            if entry.revision:
                self.active[function] = entry.revision
            self._register(function, entry.revision, events)
            if entry.revision:
                events.append(TrafficMoved(function=function, revision=entry.revision))
        elif function in self.active:
            del self.active[function]
            self._board.forget(function)
            self._queue.forget_function(function)
            with suppress(KeyError):
                metrics.QUEUE_DEPTH.remove(function)
            events.append(FunctionRemoved(function=function))

    def _warmed(self, event: stream.Warmed, events: list[Event]) -> None:
        """An instance is ready, was used, or has ended."""
        if event.outcome != "open" and event.prewarmed and event.ended_us:
            metrics.PREWARMS.labels(event.function, event.outcome).inc()
        # An instance is reported several times: when it is ready and, where it was loaded ahead, at its first use.
        fresh = event.at_us - event.ready_us < FRESH_S * 1e6
        loaded = event.ready_us and fresh and not (event.prewarmed and event.used_us)
        events.append(
            InstanceReported(
                function=event.function,
                revision=event.revision,
                gpu=event.gpu,
                load_s=event.load_us / 1e6 if loaded else None,
                failed=bool(event.prewarmed) and event.why == "failed",
                evicted=event.why == "evicted",
                host=bool(event.host),
            )
        )

    def _reported(self, raw: bytes, events: list[Event]) -> None:
        try:
            report = decode_report(raw)
        except ValueError:
            log.warning("unreadable report passed over")
            return
        now = self._now()
        boot, last_at = self._boots.get(report.gpu, (report.boot, now))
        if boot != report.boot:
            silent_s = round(now - last_at, 3)
            log.warning("GPU worker began anew: the one before it ended or died", gpu=report.gpu, silent_s=silent_s)
        self._boots[report.gpu] = report.boot, now
        self._reported_at[report.gpu] = now
        for warm in report.warm:
            self._register(warm.function, warm.revision, events)
        for parked in report.parked:
            self._register(parked.function, parked.revision, events)
        events.append(_state(report, now, self._allowed))

    def reporting(self) -> frozenset[str]:
        """GPU instances that report."""
        return frozenset(self._reported_at)

    # ---- what is due -------------------------------------------------------------------------------------------------

    def lost(self) -> list[Event]:
        """GPU instances that have fallen silent since they last reported."""
        now = self._now()
        lost = [gpu for gpu, at in self._reported_at.items() if now - at > self._silent_s]
        for gpu in lost:
            log.warning("GPU instance lost", gpu=gpu)
            del self._reported_at[gpu]
        return [GpuLost(gpu=gpu) for gpu in lost]

    def questions(self) -> list[Event]:
        """Questions of gateways that still wait for an answer. Those to which nobody listens any more are dropped."""
        asked, self._asked = self._asked, []
        now = self._now()
        return [
            QuestionAsked(
                id=question.id,
                function=question.function,
                revision=question.revision,
                rows=question.rows,
                deadline_at=question.deadline_us / 1e6,
                bulk=bool(question.bulk),
            )
            for question in asked
            if now - question.at_us / 1e6 <= ANSWER_TTL_S
        ]


def _show(shown: set[tuple[bool, str, str]], pauses: Iterable[Pause]) -> set[tuple[bool, str, str]]:
    """
    Set the gauges of what is paused and drained: of the platform 0 or 1, of what has a name 1 while it lasts. ``shown``:
    what they show, as returned: whether it is a drain, scope, name.
    """
    now = {(pause.drains, pause.scope, pause.name) for pause in pauses}
    for drains, gauge in ((False, metrics.PAUSED), (True, metrics.DRAINED)):
        gauge.labels("platform", "").set((drains, "platform", "") in now)
        for _, scope, name in (entry for entry in now if entry[0] == drains):
            gauge.labels(scope, name).set(1)
        for _, scope, name in (entry for entry in shown - now if entry[0] == drains and entry[2]):
            gauge.remove(scope, name)
    return now


def _usable(what: str, read: Callable[[], _Blob | None], **facts: int) -> _Blob | None:
    """What was published; None where nothing was, or it cannot be used."""
    try:
        return read()
    except (BadTable, BadForecast) as error:
        log.error(f"{what} not used", error=str(error), **facts)
        return None


def _arrival(waiting: QueuedInvocation | stream.Arrived | stream.Returned) -> InvocationArrived:
    attempt, alone = (0, False) if isinstance(waiting, stream.Arrived) else (waiting.attempt, bool(waiting.alone))
    return InvocationArrived(
        function=waiting.function,
        revision=waiting.revision,
        id=waiting.id,
        attempt=attempt,
        arrival_at=waiting.arrival_us / 1e6,
        deadline_at=waiting.deadline_us / 1e6,
        rows=waiting.rows,
        shape=waiting.shape,
        alone=alone,
        bulk=bool(waiting.bulk),
    )


def _state(report: Report, at: float, allowed: Set[str]) -> GpuReported:
    """What the policy hears of a report; ``allowed``: processes that nobody registered and beside which functions may run."""
    counts: Counter[tuple[str, int]] = Counter()
    loading: Counter[tuple[str, int]] = Counter()
    sizes: dict[tuple[str, int], float] = {}
    stretches: dict[tuple[str, int], float] = {}
    idle_mib = 0.0
    idle: list[tuple[str, int, float, float]] = []
    for instance in report.warm:
        key = (instance.function, instance.revision)
        counts[key] += 1
        sizes[key] = max(instance.memory_mib, sizes.get(key, 0.0))
        stretches[key] = max(instance.longest_s, stretches.get(key, 0.0))
        if instance.state is WarmState.IDLE:
            idle_mib += instance.memory_mib
            idle.append((*key, instance.memory_mib, instance.idle_s))
        elif instance.state is WarmState.LOADING:
            loading[key] += 1
    for waiting in report.parked:
        idle_mib += waiting.memory_mib
    # A training that nobody sees counts for nothing.
    trainings = [job for job in report.jobs if job.state == "running" and not job.unseen]
    degradations = [
        job.shared_s / job.solo_s - 1
        for job in trainings
        if job.solo_count >= 20 and job.shared_count >= 20 and job.solo_s
    ]
    return GpuReported(
        gpu=report.gpu,
        boot=report.boot,
        at=at,
        slots=report.slots,
        memory_total=report.memory_total_mib,
        memory_used=report.memory_used_mib,
        memory_idle=idle_mib,
        utilisation=report.utilisation,
        function_utilisation=report.function_utilisation,
        jobs=len(trainings),
        warm=[(function, revision, count) for (function, revision), count in counts.items()],
        loading=[(function, revision, count) for (function, revision), count in loading.items()],
        sizes=[(function, revision, memory_mib) for (function, revision), memory_mib in sizes.items()],
        quarantined=list(report.quarantined),
        job_degradation=max(degradations, default=None),
        device=report.device,
        sharing_mode=report.sharing_mode,
        workloads=[job.workload for job in trainings],
        closed=report.closed,
        stretches=[(function, revision, seconds) for (function, revision), seconds in stretches.items()],
        losses=[_loss(job) for job in trainings],
        unregistered=sum(
            f"{report.gpu}|{process.pid}|{process.start}" not in allowed for process in report.strangers or ()
        ),
        idle=idle,
        parked=[(instance.function, instance.revision, at + instance.left_s) for instance in report.parked],
    )


def _loss(job: JobReport) -> JobLoss:
    return JobLoss(
        id=job.id,
        budget=job.budget,
        recent=Sample(mean=job.recent_s, sd=job.recent_sd, n=job.recent_n) if job.recent_n else None,
        closed=Sample(mean=job.closed_s, sd=job.closed_sd, n=job.closed_n) if job.closed_n else None,
        windows=job.windows,
    )


def _run(meta: str) -> tuple[float | None, int, bool]:
    """
    (run seconds, rows, whether others held it back) of a worker's execution record; (None, 0, False) where it was cold or
    did not run to the end.
    """
    if not meta:
        return None, 0, False
    try:
        execution = decode_execution(meta)
    except ValueError:
        return None, 0, False
    if not execution.run_ms or execution.cold:
        return None, 0, False
    return execution.run_ms / 1000, execution.rows, execution.sharing_mode == IDLE
