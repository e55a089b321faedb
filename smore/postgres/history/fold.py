"""Turns a batch of stream entries into rows for the history, in memory."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import msgspec

from smore.domain.invocation import State
from smore.messages import stream
from smore.messages.reasons import pack_reasons
from smore.messages.reports import JobReport, Report, decode_report
from smore.messages.results import Execution, decode_execution
from smore.postgres.history.staging import (
    BOOTS,
    BUDGET_STEPS,
    DECISIONS,
    EXECUTIONS,
    GPU_SAMPLES,
    INSTANCES,
    INVOCATIONS,
    JOB_WINDOWS,
    LATE,
    LOSS_WINDOWS,
    MINUTES,
    STAGES,
    Stage,
)
from smore.postgres.history.values import JOB_WINDOW_S
from smore.process.observability import logger

log = logger(__name__)

#: Predictions of the decision for its GPU instance that an execution keeps where they are not 0.
_EXPECTED: Final = (
    "run_s",
    "function_degradation",
    "function_degradation_upper",
    "training_degradation",
    "training_degradation_upper",
    "known",
)

_NO_RUN: Final = Execution()


_encode: Final = msgspec.json.Encoder().encode


def _json(value: object) -> str:
    return _encode(value).decode()


def stream_number(entry: str) -> int:
    """A stream id as one number of the same order: milliseconds << 20 | sequence."""
    milliseconds, _, sequence = entry.partition("-")
    return int(milliseconds) << 20 | int(sequence)


@dataclass(slots=True)
class Tally:
    """What is counted of entries that were written."""

    #: Invocations that ended, by function (``project/name``) and state, and those of them that did not end in time.
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Functions that were deployed or changed.
    changed: set[str] = field(default_factory=set)
    #: Ids of invocations that ended and of which spans are wanted.
    traced: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.ended.update(other.ended)
        self.missed.update(other.missed)
        self.changed |= other.changed
        self.traced += other.traced


class Fold:
    """The rows of a batch of entries. An invocation that arrived and ended within the batch is one row."""

    def __init__(self, every: int = 0) -> None:
        """``every``: spans of one in so many invocations whose callers record none are wanted, 0 = of none."""
        self._every = every
        #: By what makes them one row of the history.
        self._rows: dict[Stage, dict[Any, Any]] = {stage: {} for stage in STAGES}
        #: The last report of a GPU instance in each second, and on a job in each window: one in two and in twenty is a row.
        self._reports: dict[tuple[str, int], Report] = {}
        self._job_reports: dict[tuple[str, str, int], tuple[JobReport, Report]] = {}
        #: The last second that was counted, as text.
        self._second: str | None = None
        self.tally = Tally()

    def rows(self) -> dict[Stage, dict[Any, Any]]:
        """The rows of every stage."""
        for (gpu, second), report in self._reports.items():
            self._rows[GPU_SAMPLES][gpu, second] = GPU_SAMPLES.of(report, at=second, counter=report.utilisation_counter)
        for (id_, gpu, window), (job, report) in self._job_reports.items():
            self._rows[JOB_WINDOWS][id_, gpu, window] = JOB_WINDOWS.of(
                job, job=id_, gpu=gpu, at=window, device=report.device, sharing_mode=report.sharing_mode
            )
        return self._rows

    def add(self, entry: str, raw: bytes) -> None:
        """Raises ValueError where the entry cannot be read."""
        event = stream.decode(raw)
        second = entry.partition("-")[0][:-3]
        if second != self._second:
            self._second = second
            self._counted(int(second or 0))
        match event:
            case stream.Reported() as event:
                self._reported(event)
            case stream.Arrived() as event:
                self._arrived(event)
            case stream.Dispatched() as event:
                self._dispatched(entry, event)
            case stream.Settled() as event:
                self._settled(event)
            case stream.Returned() as event:
                self._returned(event)
            case stream.Stepped() as event:
                number = stream_number(entry)
                self._rows[BUDGET_STEPS][number] = BUDGET_STEPS.of(event, id=number, at=event.at_us)
            case stream.Warmed() as event:
                self._warmed(event)
            case stream.CatalogChanged():
                if event.function:
                    self.tally.changed.add(event.function)
            case stream.Asked() | stream.Wanted():
                pass

    def _counted(self, second: int) -> None:
        """Mark the second of an entry as counted: the platform was up."""
        minute = second // 60
        rows = self._rows[MINUTES]
        row = rows.get(minute)
        if row is None:
            row = rows[minute] = MINUTES.row(minute=minute * 60_000_000)
        row.seconds |= 1 << second % 60

    def _invocation(self, function: str, id_: str) -> Any:
        rows = self._rows[INVOCATIONS]
        row = rows.get(id_)
        if row is None:
            project, _, name = function.partition("/")
            row = rows[id_] = INVOCATIONS.row(id=id_, project=project, function=name)
        return row

    def _execution(self, function: str, id_: str, attempt: int, gpu: str) -> Any:
        rows = self._rows[EXECUTIONS]
        row = rows.get((id_, attempt))
        if row is None:
            project, _, name = function.partition("/")
            row = rows[id_, attempt] = EXECUTIONS.row(
                invocation=id_, attempt=attempt, project=project, function=name, gpu=gpu
            )
        return row

    def _arrived(self, event: stream.Arrived) -> None:
        project, _, name = event.function.partition("/")
        self._rows[INVOCATIONS][event.id] = INVOCATIONS.row(
            id=event.id,
            project=project,
            function=name,
            revision=event.revision,
            state="queued",
            arrival_at=event.arrival_us,
            deadline_at=event.deadline_us,
            rows=event.rows,
            key_id=event.key_id,
            trace=event.trace,
            gate_s=event.gate_us / 1e6,
        )

    def _dispatched(self, entry: str, event: stream.Dispatched) -> None:
        project, _, name = event.function.partition("/")
        number = stream_number(entry)
        reasons = _reasons(event.decision)
        decision = event.decision if reasons is None else _json(pack_reasons(reasons))
        self._rows[DECISIONS][number] = DECISIONS.row(
            id=number, project=project, function=name, gpu=event.gpu, at=event.at_us, decision=decision
        )
        (predicted, unforeseen), batch = _predicted(reasons or {}, event.gpu), len(event.attempts)
        for id_, attempt in event.attempts:
            row = self._invocation(event.function, id_)
            row.state, row.cause, row.attempt, row.gpu, row.claimed_at, row.started_at = (
                "dispatched",
                "",
                attempt,
                event.gpu,
                event.at_us,
                0,
            )
            self._rows[EXECUTIONS][id_, attempt] = EXECUTIONS.row(
                invocation=id_,
                attempt=attempt,
                project=project,
                function=name,
                gpu=event.gpu,
                decision_id=number,
                state="dispatched",
                batch=batch,
                predicted=predicted,
                claimed_at=event.at_us,
                unforeseen=unforeseen,
            )

    def _warmed(self, event: stream.Warmed) -> None:
        project, _, name = event.function.partition("/")
        earlier = self._rows[INSTANCES].get(event.id)
        if earlier is not None and earlier.told_at > event.at_us:
            return
        self._rows[INSTANCES][event.id] = INSTANCES.of(
            event,
            project=project,
            function=name,
            prewarmed=str(bool(event.prewarmed)),
            asked_at=event.asked_us,
            ready_at=event.ready_us,
            used_at=event.used_us,
            ended_at=event.ended_us,
            told_at=event.at_us,
            load_s=event.load_us / 1e6,
            busy_s=event.busy_us / 1e6,
            idle_s=event.idle_us / 1e6,
            memory_mib=event.memory_kib / 1024,
            host=str(bool(event.host)),
        )

    def _returned(self, event: stream.Returned) -> None:
        row = self._invocation(event.function, event.id)
        row.revision, row.state, row.cause, row.attempt = event.revision, "queued", event.cause, event.attempt
        row.arrival_at, row.deadline_at, row.gpu, row.rows = event.arrival_us, event.deadline_us, "", event.rows
        run = self._execution(event.function, event.id, event.attempt, event.gpu)
        run.state, run.cause, run.finished_at = "queued", event.cause, event.at_us

    def _settled(self, event: stream.Settled) -> None:
        self.tally.ended[event.function, event.state] += 1
        if event.state == State.EXPIRED or event.finished_us > event.deadline_us:
            self.tally.missed[event.function, event.state] += 1
        if "-" in event.trace or (self._every and crc32(event.id.encode()) % self._every == 0):
            self.tally.traced.append(event.id)
        # The record keeps the start of an earlier attempt until the next one starts.
        started = event.started_us if event.started_us >= event.claimed_us else 0
        ended = self._invocation(event.function, event.id)
        ended.revision, ended.state, ended.cause, ended.gpu = event.revision, event.state, event.cause, event.gpu
        ended.attempt, ended.starts, ended.rows = event.attempt, event.starts, event.rows
        ended.arrival_at, ended.deadline_at, ended.claimed_at = event.arrival_us, event.deadline_us, event.claimed_us
        ended.started_at, ended.finished_at = started, event.finished_us
        ended.key_id, ended.trace = event.key_id, event.trace
        if not event.gpu:
            return  # the invocation ended while it waited
        row = self._execution(event.function, event.id, event.attempt, event.gpu)
        row.state, row.cause, row.claimed_at, row.started_at, row.finished_at = (
            event.state,
            event.cause,
            event.claimed_us,
            started,
            event.finished_us,
        )
        if event.meta:
            run = _run(event.meta)
            row.cold, row.run_s, row.rows = str(run.cold), (run.run_ms or 0.0) / 1000, run.rows
            row.unforeseen = (
                (row.unforeseen or LATE) if run.cold and row.decision_id else row.unforeseen if run.cold else ""
            )
            row.batch = run.batch or row.batch
            row.load_s = (
                _json({phase: milliseconds / 1000 for phase, milliseconds in run.load_ms.items()})
                if run.load_ms
                else ""
            )
            row.co_runners, row.jobs = _json(run.co), _json(run.jobs)
            row.device, row.sharing_mode = run.device, run.sharing_mode
            ended.cold, ended.run_s, ended.batch, ended.batch_rows, ended.jobs = (
                row.cold,
                row.run_s,
                row.batch,
                run.rows,
                row.jobs,
            )
            ended.load_s = sum(run.load_ms.values()) / 1000

    def _reported(self, event: stream.Reported) -> None:
        report = decode_report(event.report)
        second = event.at_us // 1_000_000 * 1_000_000
        self._reports[report.gpu, second] = report
        window = event.at_us // (JOB_WINDOW_S * 1_000_000) * (JOB_WINDOW_S * 1_000_000)
        self._rows[BOOTS][report.gpu] = BOOTS.row(gpu=report.gpu, boot=report.boot, at=event.at_us)
        for job in report.jobs:
            self._job_reports[job.id, report.gpu, window] = job, report
            for loss in job.windows:
                start = int(loss.start * 1e6)
                self._rows[LOSS_WINDOWS][job.id, report.gpu, start] = LOSS_WINDOWS.of(
                    loss, job=job.id, gpu=report.gpu, start_at=start, end_at=int(loss.end * 1e6), project=job.project
                )


def _reasons(decision: str) -> dict[str, Any] | None:
    """A decision's JSON; None where it has another form."""
    try:
        reasons = msgspec.json.decode(decision)
    except ValueError:
        return None
    if not isinstance(reasons, dict):
        return None
    candidates = reasons.get("candidates", [])
    return (
        reasons
        if isinstance(candidates, list) and all(isinstance(candidate, dict) for candidate in candidates)
        else None
    )


def _predicted(reasons: dict[str, Any], gpu: str) -> tuple[str, str]:
    """The decision's predictions for the GPU instance, as JSON, and the reason of a cold start; '' = none."""
    chosen = next((candidate for candidate in reasons.get("candidates", ()) if candidate.get("gpu") == gpu), None)
    expected = "" if chosen is None else _json({name: value for name in _EXPECTED if (value := chosen.get(name))})
    return expected, str(reasons.get("unforeseen") or "")


def _run(meta: str) -> Execution:
    try:
        return decode_execution(meta)
    except ValueError as error:
        log.warning("unreadable execution record passed over", error=str(error))
        return _NO_RUN
