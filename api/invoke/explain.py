"""
What would become of an invocation, and why one went as it did: the policy's reasons, asked for and read back from the
history.
"""

import asyncio
import math
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, cast

import msgspec
from fastapi.concurrency import run_in_threadpool

from api.dates import moment
from api.deps import Gateway
from api.errors import SOON_S, NotReady
from api.invoke.admit import earliest, limit_reached
from api.invoke.request import DryRunRequest
from api.schemas import explain as schemas
from api.schemas.invocations import Degradation
from smore.domain.candidate import Candidate
from smore.domain.errors import (
    CallerError,
    DeadlineExpired,
    LimitReached,
    Quarantined,
    QueueFull,
    SloInfeasible,
    Unavailable,
)
from smore.domain.function import FunctionSpec, WorkClass
from smore.domain.ids import new_id
from smore.domain.invocation import TERMINAL, Cause, State
from smore.domain.limits import Limits
from smore.messages.reasons import DryRunAnswer, Reasons, decode_answer, reasons
from smore.messages.results import Result, decode_result
from smore.messages.wording import (
    beside,
    duration,
    hopeless,
    in_words,
    needs_person,
    obstacle,
    phases_ms,
    slowest,
    why_not_now,
    worker_lost,
)
from smore.redis.catalog import FunctionEntry
from smore.redis.gateway_queue import AdmissionCheck, Question
from smore.redis.records import InvocationRecord

if TYPE_CHECKING:
    from smore.postgres.history.values import Execution, JobWindow, PastDecision, PastInvocation

#: How long the leader may take to answer.
ANSWER_S = 2.0
#: How long an explanation waits for the history to know what Redis knows already, and how often it looks.
HISTORY_S, LOOK_S = 2.0, 0.1
#: Causes of attempts that ended because their worker was lost, or may have been.
_LOST = (Cause.WORKER_LOST, Cause.DISPATCH_LOST)
#: What a dry run says of an invocation that would wait for a person.
_NEEDS_PERSON = "The gate would take it, and nothing places it until somebody changes this:"
#: Seconds without a report after which a worker counts as lost.
SILENT_S = 2.0


async def dry_run(
    gateway: Gateway,
    entry: FunctionEntry,
    spec: FunctionSpec,
    asked: DryRunRequest,
    limits: Limits,
    held: CallerError | None,
) -> schemas.DryRun:
    """
    What would become of an invocation now; nothing is queued. ``held``: what the gateway itself refuses it with.

    Raises QueueFull for too many questions, Unavailable while no scheduler leads, NotReady.
    """
    question = Question(
        id=new_id(),
        function=entry.key,
        revision=entry.revision,
        rows=asked.rows,
        slo_us=asked.slo_us,
        size=asked.size,
        max_pending=spec.max_pending,
        limits=limits,
        bulk=spec.work_class is WorkClass.BATCH,
    )
    check, answer = await _ask(gateway, question)
    if check.leader == "many":
        raise QueueFull("Too many questions within a second.", limit="asks", retry_after_s=SOON_S)
    if answer is None:
        raise Unavailable(part="leader")
    if not answer.known:
        raise NotReady
    return _dry_run(check, answer, held)


async def _ask(gateway: Gateway, question: Question) -> tuple[AdmissionCheck, DryRunAnswer | None]:
    """What gate and leader say; None where the leader says nothing."""
    check = await gateway.queue.ask(question)
    if check.leader != "asked":
        return check, None
    raw = await gateway.queue.answer(question.id, ANSWER_S)
    try:
        return check, None if raw is None else decode_answer(raw)
    except msgspec.DecodeError:
        # A leader of another version.
        return check, None


def _dry_run(check: AdmissionCheck, answer: DryRunAnswer, held: CallerError | None = None) -> schemas.DryRun:
    """``held``: what the gateway itself refuses an invocation with."""
    deadline_at = check.deadline_us / 1e6
    shown = schemas.DryRun(
        outcome="placed",
        feasible=True,
        detail="",
        deadline_at=moment(deadline_at),
        decision=_decision(answer.reasons, None),
    )
    outcome, shown.reason, shown.detail = _outcome(check, answer, held)
    waits = outcome == "waits" and not check.paused and not needs_person(answer.reasons)
    shown.outcome, shown.feasible = outcome, outcome == "placed" or waits
    if outcome == "placed":
        shown.gpu, shown.cold = answer.gpu, answer.cold
        shown.start_at, shown.finish_at = _at(answer.start_at), _at(answer.finish_at)
        chosen = next((candidate for candidate in answer.reasons.candidates if candidate.gpu == answer.gpu), None)
        shown.predicted = _degradation(chosen) if chosen is not None else None
    elif shown.feasible and answer.finish_s is not None:
        shown.finish_at = moment(answer.at + answer.finish_s)
    if shown.feasible or outcome != "waits":
        for name, value in _soonest(check, answer, outcome, shown.reason).items():
            setattr(shown, name, value)
    return shown


def _soonest(check: AdmissionCheck, answer: DryRunAnswer, outcome: str, reason: str) -> dict[str, object]:
    """
    The earliest deadline that is named: what a refusal would name. Where the gate knows nothing yet, or would take what
    nobody could finish in time, when the scheduler could. Nothing where time does not stand against it.
    """
    later_us = None if answer.earliest_deadline_at is None else answer.earliest_deadline_at * 1e6 - check.now_us
    if outcome == "late":
        return {} if later_us is None else earliest(check.now_us, max(check.promised_us, later_us))
    if outcome == "refused":
        return earliest(check.now_us, check.promised_us) if reason == SloInfeasible.code else {}
    named = earliest(check.now_us, check.promised_us or later_us or 0)
    # The margin is for a later try: a deadline that is let in now is no less than the earliest.
    within_ms = math.ceil((check.deadline_us - check.now_us) / 1000)
    if named and cast(int, named["earliest_deadline_ms"]) > within_ms:
        return {"earliest_deadline_ms": within_ms, "earliest_deadline_at": moment(check.deadline_us / 1e6)}
    return named


def _outcome(
    check: AdmissionCheck, answer: DryRunAnswer, held: CallerError | None
) -> tuple[Literal["placed", "waits", "late", "refused"], str, str]:
    """What it would come to, the code of that, and that in words. The gate refuses in the order of enqueue.lua."""
    if held is not None:
        return "refused", held.code, f"It would be refused: {held}"
    if check.quarantined:
        return "refused", Quarantined.code, f"The gate would refuse it: {Quarantined.__doc__}"
    if not check.feasible:
        named = earliest(check.now_us, check.promised_us)
        when = (
            f"the earliest deadline that it would accept now is {named['earliest_deadline_ms']} ms"
            if named
            else "nothing could load it now"
        )
        return "refused", SloInfeasible.code, f"The gate would refuse it: {when}.{_cause(check, answer)}"
    if check.full:
        return "refused", QueueFull.code, f"The gate would refuse it: too much is waiting already ({check.full})."
    if check.limited:
        return (
            "refused",
            LimitReached.code,
            f"The gate would refuse it: {limit_reached(check.limited, check.bound, check.after_us)}",
        )
    if check.paused:
        return "waits", "paused", f"{_NEEDS_PERSON} {why_not_now(answer.reasons, check.paused)}"
    if answer.gpu is not None:
        slack_s = check.deadline_us / 1e6 - (answer.finish_at or 0.0)
        how = "after a cold start" if answer.cold else "on a warm instance"
        return "placed", "", f"It would run on {answer.gpu} {how} and end {duration(slack_s)} before its deadline."
    detail = why_not_now(answer.reasons, check.paused, answer.yield_s)
    if hopeless(answer.reasons):
        return "late", DeadlineExpired.code, f"The gate would take it; as things are it would expire. {detail}"
    return "waits", obstacle(answer.reasons), f"{_NEEDS_PERSON} {detail}" if needs_person(answer.reasons) else detail


def _cause(check: AdmissionCheck, answer: DryRunAnswer) -> str:
    """What makes the gate's bound as late as it is, as far as it is known."""
    words = ""
    if check.paused or answer.gpu is None:
        words = f" {why_not_now(answer.reasons, check.paused, answer.yield_s)}"
    elif answer.cold:
        words = " No instance of it is free: one would have to be loaded."
    if answer.budget_s:
        soon = f"the next one may start in {duration(answer.budget_s)}"
        words += f" Budgets limit what functions may cost the trainings there: {soon}."
    return words


# ---- explaining ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _PastRuns:
    """
    What the history knows: ``past`` only where Redis knows nothing; decisions and windows of the trainings beside it by
    attempt.
    """

    past: "PastInvocation | None"
    runs: list["Execution"]
    decisions: dict[int, "PastDecision"]
    windows: dict[int, list["JobWindow"]]
    #: Of trainings of its project: id → name.
    names: dict[str, str]
    #: Of attempts that were lost with their worker: when that had reported last, epoch seconds.
    seen: dict[int, float]


async def explain(gateway: Gateway, project: str, invocation: str) -> schemas.Explanation:
    """
    Why an invocation went as it did. The history is a second behind Redis: the explanation waits for it up to
    HISTORY_S and is else not ``complete``. Raises InvocationNotFound.
    """
    until = time.monotonic() + HISTORY_S
    while True:
        record = await gateway.queue.record(project, invocation)
        history = await run_in_threadpool(_past_runs, gateway, project, invocation, record)
        complete = record is None or _complete(record, history)
        if complete or time.monotonic() > until:
            break
        await asyncio.sleep(LOOK_S)
    facts = _present(record) if record is not None else history.past
    assert facts is not None
    reply = await gateway.queue.reply(project, invocation) if record is not None and record.state in TERMINAL else None
    result = decode_result(reply.result) if reply is not None else Result(form="error")
    check, waits = await _now(gateway, project, invocation, record, facts)
    slack_s = facts.deadline_at - facts.finished_at if facts.finished_at is not None else None
    attempts = _attempts(facts, history, record)
    last = attempts[-1].predicted if attempts else None
    phases = [attempt.phases_ms.model_dump() for attempt in attempts] if slack_s is not None and slack_s < 0 else []
    return schemas.Explanation.of(
        facts,
        summary=" ".join(
            [
                in_words(
                    facts.state,
                    facts.cause,
                    gpu=facts.gpu,
                    attempt=facts.attempt,
                    slack_s=slack_s,
                    message=result.message,
                ),
                *([slowest(phases, last.run_s if last is not None else None)] if phases else []),
                *(
                    worker_lost(run.gpu, history.seen[run.attempt], run.attempt)
                    for run in history.runs
                    if run.attempt in history.seen
                ),
            ]
        ),
        traceback=result.traceback,
        slack_s=slack_s,
        complete=complete,
        waits=waits,
        gate=schemas.GateKnew(
            allowed_ms=round((facts.deadline_at - facts.arrival_at) * 1e3, 3),
            needed_ms=None if facts.gate_s is None else round(facts.gate_s * 1e3, 3),
            now_ms=check.needed_us / 1e3 if check.needed_us and check.promises else None,
        ),
        attempts=attempts,
    )


def _past_runs(gateway: Gateway, project: str, id_: str, record: InvocationRecord | None) -> _PastRuns:
    """Raises InvocationNotFound where neither Redis (``record``) nor the history knows it."""
    with gateway.reader().together() as reader:
        past = reader.invocation(project, id_) if record is None else None
        runs = reader.executions(project, id_)
        windows = {
            run.attempt: [
                window
                for job in run.jobs or ()
                for window in reader.windows_around(job, run.gpu, run.started_at or run.finished_at, run.finished_at)
            ]
            for run in runs
            if run.finished_at is not None
        }
        decisions = reader.decisions(project, id_)
        seen = {
            run.attempt: at
            for run in runs
            if run.cause in _LOST
            and run.finished_at is not None
            and (at := reader.last_report(run.gpu, run.finished_at)) is not None
            # One that went on reporting was not lost: its message was.
            and (run.cause == Cause.WORKER_LOST or run.finished_at - at > SILENT_S)
        }
    names = gateway.store().jobs.names({job for run in runs for job in run.jobs or ()}, project)
    return _PastRuns(past=past, runs=runs, decisions=decisions, windows=windows, names=names, seen=seen)


def _complete(record: InvocationRecord, history: _PastRuns) -> bool:
    """Whether the history has come as far as Redis."""
    if not record.attempt:
        return True
    last = history.runs[-1] if history.runs else None
    if last is None or last.attempt < record.attempt:
        return False
    runs = record.state in (State.DISPATCHED, State.RUNNING)
    return runs or last.finished_at is not None


def _present(record: InvocationRecord) -> "PastInvocation":
    """The record as the history will have it."""
    from smore.postgres.history.values import PastInvocation

    project, _, function = record.function.partition("/")
    return PastInvocation(
        id=record.id,
        project=project,
        function=function,
        revision=record.revision,
        state=State(record.state),
        cause=record.cause,
        attempt=record.attempt,
        starts=record.starts,
        arrival_at=record.arrival_us / 1e6,
        deadline_at=record.deadline_us / 1e6,
        claimed_at=record.claimed_us / 1e6 or None,
        started_at=record.started_us / 1e6 or None,
        finished_at=record.finished_us / 1e6 or None,
        gpu=record.gpu,
        rows=record.rows,
        key_id="",
        trace=record.trace,
        gate_s=record.gate_us / 1e6 or None,
    )


async def _now(
    gateway: Gateway, project: str, id_: str, record: InvocationRecord | None, facts: "PastInvocation"
) -> tuple[AdmissionCheck, schemas.Waits | None]:
    """What the gate says now, and what one that waits waits for."""
    waits = record is not None and record.state == State.QUEUED
    question = Question(
        id=new_id() if waits else "",
        function=f"{project}/{facts.function}",
        revision=facts.revision,
        rows=facts.rows,
        deadline_us=int(facts.deadline_at * 1e6),
        bulk=record is not None and record.bulk,
    )
    if not waits:
        return await gateway.queue.ask(question), None
    (check, answer), before = await asyncio.gather(
        _ask(gateway, question), gateway.queue.before(question.function, id_)
    )
    if answer is None or not answer.known:
        detail = why_not_now(Reasons(), check.paused) if check.paused else "The scheduler did not say."
        return check, schemas.Waits(before=before or 0, paused=check.paused, detail=detail)
    detail = (
        why_not_now(answer.reasons, check.paused, answer.yield_s)
        if check.paused or answer.gpu is None
        else f"It is about to go to {answer.gpu}."
    )
    return check, schemas.Waits(
        before=before or 0, paused=check.paused, decision=_decision(answer.reasons, answer.at), detail=detail
    )


def _attempts(facts: "PastInvocation", history: _PastRuns, record: InvocationRecord | None) -> list[schemas.Attempt]:
    attempts, since = [], facts.arrival_at
    for run in history.runs:
        decided = history.decisions.get(run.attempt)
        reasons_of = reasons(decided.decision) if decided is not None else None
        schedule_us = reasons_of.schedule_us if reasons_of is not None else 0
        if not schedule_us and record is not None and record.attempt == run.attempt:
            schedule_us = record.schedule_us
        phases = phases_ms(
            since=since,
            claimed=run.claimed_at,
            started=run.started_at,
            finished=run.finished_at,
            schedule_us=schedule_us,
            load_s=run.load_s,
            run_s=run.run_s,
        )
        attempts.append(
            schemas.Attempt.of(
                run,
                co_runners=run.co_runners or [],
                jobs=run.jobs or [],
                job_names={job: history.names[job] for job in run.jobs or () if job in history.names},
                worker_seen_at=_at(history.seen.get(run.attempt)),
                phases_ms=schemas.Phases(
                    **phases, loading={name: seconds * 1e3 for name, seconds in (run.load_s or {}).items()}
                ),
                predicted=_predicted(facts, run, reasons_of),
                measured=_measured(facts, run, history.windows.get(run.attempt, [])),
                decision=_decision(reasons_of, decided.at) if reasons_of is not None and decided is not None else None,
            )
        )
        since = run.finished_at or since
    return attempts


def _predicted(facts: "PastInvocation", run: "Execution", why: Reasons | None) -> schemas.Side | None:
    chosen = (
        next((candidate for candidate in why.candidates if candidate.gpu == run.gpu), None) if why is not None else None
    )
    if chosen is None:
        return None
    slowed = None if chosen.run_s is None else chosen.run_s * (1 + (chosen.function_degradation or 0.0))
    return schemas.Side.of(
        chosen,
        run_s=slowed,
        finish_at=_at(chosen.finish_at),
        slack_s=None if chosen.finish_at is None else facts.deadline_at - chosen.finish_at,
    )


def _measured(facts: "PastInvocation", run: "Execution", windows: list["JobWindow"]) -> schemas.Side:
    return schemas.Side(
        run_s=run.run_s,
        finish_at=_at(run.finished_at),
        slack_s=None if run.finished_at is None else facts.deadline_at - run.finished_at,
        function_degradation=run.degradation,
        training_degradation=beside(
            [(window.solo_s, window.solo_count, window.shared_s, window.shared_count) for window in windows]
        ),
    )


def _decision(why: Reasons, at: float | None) -> schemas.Decision:
    candidates = [_candidate(candidate) for candidate in why.candidates]
    return schemas.Decision.of(why, at=_at(at), candidates=candidates, work_class=why.work_class or None)


def _candidate(candidate: Candidate) -> schemas.Candidate:
    return schemas.Candidate.of(candidate, finish_at=_at(candidate.finish_at))


def _degradation(candidate: Candidate) -> Degradation:
    return Degradation(
        function=candidate.function_degradation or 0.0,
        function_upper=candidate.function_degradation_upper or 0.0,
        training=candidate.training_degradation or 0.0,
        training_upper=candidate.training_degradation_upper or 0.0,
        known=candidate.known,
    )


def _at(at: float | None) -> datetime | None:
    return None if at is None else moment(at)
