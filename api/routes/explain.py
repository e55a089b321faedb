"""Why an invocation went as it did, and what would become of one: the policy's reasons, read back and asked for."""

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool

from api import schemas
from api.deps import Gateway, InvokeKey, ReadKey, TheGateway
from api.errors import NotReady
from api.invoke.request import read_asked
from api.invoke.response import earliest, limit_reached, moment
from api.routes.invocations import check_id
from api.server.bodies import BoundedRoute
from smore.domain.errors import (
    CallerError,
    DeadlineExpired,
    Draining,
    LimitReached,
    QueueFull,
    SloInfeasible,
    Unavailable,
)
from smore.domain.ids import new_id
from smore.domain.invocation import TERMINAL, State
from smore.domain.limits import NO_LIMITS
from smore.messages.reasons import (
    Answer,
    Candidate,
    Reasons,
    beside,
    decode_answer,
    duration,
    hopeless,
    in_words,
    obstacle,
    phases_ms,
    reasons,
    why_not_now,
)
from smore.messages.stream import decode_result
from smore.redis.gateway_queue import AdmissionCheck, Question
from smore.redis.records import InvocationRecord

if TYPE_CHECKING:
    from smore.postgres.history import Execution, JobWindow, PastDecision, PastInvocation

router = APIRouter(prefix="/v1", tags=["invocations"], route_class=BoundedRoute)

#: How long the leader may take to answer.
ANSWER_S = 2.0
#: How long an explanation waits for the history to know what Redis knows already, and how often it looks.
HISTORY_S, LOOK_S = 2.0, 0.1

_DRY_RUN: dict[str, object] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "input": {"description": "The input, as it would be sent"},
                        "rows": {
                            "type": "integer",
                            "minimum": 1,
                            "description": "In place of `input`: how many rows it would have",
                        },
                        "deadline_ms": {
                            "type": "number",
                            "exclusiveMinimum": 0,
                            "description": "From now; default: the function's",
                        },
                    },
                }
            },
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary", "description": "Tensors, as they would be sent"}
            },
        },
    }
}


# ---- asking ----------------------------------------------------------------------------------------------------------


@router.post("/functions/{function}/invocations:dryRun", openapi_extra=_DRY_RUN, response_model_exclude_none=True)
async def dry_run(gateway: TheGateway, caller: InvokeKey, request: Request, function: str) -> schemas.DryRun:
    """
    Would it be taken, where would it run, when would it start and finish, what would it cost? Takes the body and the
    headers of an invocation, and places nothing.

    Over all gateways so many questions a second as `SMORE_QUEUE__ASKS_PER_S` says, then 429; 503 while no scheduler
    leads.
    """
    entry, spec = await gateway.function(caller.project, function)
    limits, held = NO_LIMITS, None
    try:
        limits = gateway.admit(entry, spec)
    except (Draining, LimitReached) as error:
        held = error
    asked = await read_asked(request, gateway, entry, spec)
    question = Question(
        id=new_id(),
        function=entry.key,
        revision=entry.revision,
        rows=asked.rows,
        slo_us=asked.slo_us,
        size=asked.size,
        max_pending=spec.max_pending,
        limits=limits,
    )
    gate, answer = await _ask(gateway, question)
    if gate.leader == "many":
        raise QueueFull("Too many questions within a second.", limit="asks", retry_after_s=1)
    if answer is None:
        raise Unavailable
    if not answer.known:
        raise NotReady
    return _dry_run(gate, answer, held)


async def _ask(gateway: Gateway, question: Question) -> tuple[AdmissionCheck, Answer | None]:
    """What gate and leader say; None where the leader says nothing."""
    gate = await gateway.queue.ask(question)
    if gate.leader != "asked":
        return gate, None
    raw = await gateway.queue.answer(question.id, ANSWER_S)
    try:
        return gate, None if raw is None else decode_answer(raw)
    except msgspec.DecodeError:
        # A leader of another version.
        return gate, None


def _dry_run(gate: AdmissionCheck, answer: Answer, held: CallerError | None = None) -> schemas.DryRun:
    """``held``: what the gateway itself refuses an invocation with."""
    deadline_at = gate.deadline_us / 1e6
    shown = schemas.DryRun(
        outcome="placed",
        feasible=True,
        detail="",
        deadline_at=moment(deadline_at),
        decision=_decision(answer.reasons, None),
    )
    # The gate counts what waits before it; the scheduler knows of each GPU instance when it could be done there. Where
    # something else than time stands against it, which may pass, the gate's word is the only one.
    needed_us, later = float(gate.needed_us), answer.earliest_deadline_at
    if later is not None and (answer.gpu is not None or hopeless(answer.reasons)):
        needed_us = max(needed_us, later * 1e6 - gate.now_us)
    soonest = earliest(gate.now_us, needed_us)
    outcome, shown.reason, shown.detail = _outcome(gate, answer, held)
    shown.outcome, shown.feasible = outcome, outcome == "placed" or (outcome == "waits" and not gate.paused)
    if outcome == "placed":
        shown.gpu, shown.cold = answer.gpu, answer.cold
        shown.start_at, shown.finish_at = _at(answer.start_at), _at(answer.finish_at)
        chosen = next((one for one in answer.reasons.candidates if one.gpu == answer.gpu), None)
        shown.predicted = _degradation(chosen) if chosen is not None else None
    elif shown.feasible and answer.finish_s is not None:
        shown.finish_at = moment(answer.at + answer.finish_s)
    of_time = outcome != "refused" or shown.reason == SloInfeasible.code
    if of_time and not (outcome == "late" and later is None):
        for name, value in soonest.items():
            setattr(shown, name, value)
    return shown


def _outcome(
    gate: AdmissionCheck, answer: Answer, held: CallerError | None
) -> tuple[Literal["placed", "waits", "late", "refused"], str, str]:
    """What it would come to, the code of that, and that in words. The gate refuses in the order of enqueue.lua."""
    if held is not None:
        return "refused", held.code, f"It would be refused: {held}"
    if not gate.feasible:
        needed = duration(gate.needed_us / 1e6)
        paused = f" {why_not_now(answer.reasons, gate.paused)}" if gate.paused else ""
        return (
            "refused",
            SloInfeasible.code,
            f"The gate would refuse it: it could be done in {needed} at the earliest.{paused}",
        )
    if gate.full:
        return "refused", QueueFull.code, f"The gate would refuse it: too much is waiting already ({gate.full})."
    if gate.limited:
        return (
            "refused",
            LimitReached.code,
            f"The gate would refuse it: {limit_reached(gate.limited, gate.bound, gate.after_us)}",
        )
    if gate.paused:
        return "waits", "paused", why_not_now(answer.reasons, gate.paused)
    if answer.gpu is not None:
        slack_s = gate.deadline_us / 1e6 - (answer.finish_at or 0.0)
        how = "after a cold start" if answer.cold else "on a warm instance"
        return "placed", "", f"It would run on {answer.gpu} {how} and end {duration(slack_s)} before its deadline."
    if hopeless(answer.reasons):
        detail = f"The gate would take it; as things are it would expire. {why_not_now(answer.reasons)}"
        return "late", DeadlineExpired.code, detail
    return "waits", obstacle(answer.reasons), why_not_now(answer.reasons)


# ---- explaining ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """
    What the history knows: ``past`` only where Redis knows nothing; decisions and windows of the trainings beside it by
    attempt.
    """

    past: "PastInvocation | None"
    runs: list["Execution"]
    decisions: dict[int, "PastDecision"]
    windows: dict[int, list["JobWindow"]]


@router.get("/invocations/{invocation}/explain", response_model_exclude_none=True)
async def explain(gateway: TheGateway, caller: ReadKey, invocation: str) -> schemas.Explanation:
    """
    Why it went as it did: for each attempt the GPU instances that were considered, their numbers and why they were
    refused, what was predicted against what was measured, and where the time went; for one that waits, what it waits
    for.

    Attempts come from the history, which is a second behind: the answer waits for it as long, and says so where it is
    not `complete`.
    """
    check_id(invocation)
    until = time.monotonic() + HISTORY_S
    while True:
        record = await gateway.queue.record(caller.project, invocation)
        told = await run_in_threadpool(_told, gateway, caller.project, invocation, record)
        complete = record is None or _complete(record, told)
        if complete or time.monotonic() > until:
            break
        await asyncio.sleep(LOOK_S)
    facts = _facts(record, told)
    reply = (
        await gateway.queue.reply(caller.project, invocation)
        if record is not None and record.state in TERMINAL
        else None
    )
    message = decode_result(reply.result).message if reply is not None else ""
    gate, waits = await _now(gateway, caller.project, invocation, record, facts)
    slack_s = facts.deadline_at - facts.finished_at if facts.finished_at is not None else None
    return schemas.Explanation(
        id=invocation,
        function=facts.function,
        revision=facts.revision,
        state=State(facts.state),
        cause=facts.cause,
        summary=in_words(
            facts.state, facts.cause, gpu=facts.gpu, attempt=facts.attempt, slack_s=slack_s, message=message
        ),
        rows=facts.rows,
        arrival_at=moment(facts.arrival_at),
        deadline_at=moment(facts.deadline_at),
        finished_at=_at(facts.finished_at),
        slack_s=slack_s,
        complete=complete,
        waits=waits,
        gate=schemas.GateKnew(
            allowed_ms=round((facts.deadline_at - facts.arrival_at) * 1e3, 3),
            needed_ms=None if facts.gate_s is None else round(facts.gate_s * 1e3, 3),
            now_ms=gate.needed_us / 1e3 if gate.needed_us else None,
        ),
        attempts=_attempts(facts, told, record),
    )


def _told(gateway: Gateway, project: str, id_: str, record: InvocationRecord | None) -> _Told:
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
        return _Told(past=past, runs=runs, decisions=reader.decisions(project, id_), windows=windows)


def _complete(record: InvocationRecord, told: _Told) -> bool:
    """Whether the history has come as far as Redis."""
    if not record.attempt:
        return True
    last = told.runs[-1] if told.runs else None
    if last is None or last.attempt < record.attempt:
        return False
    runs = record.state in (State.DISPATCHED, State.RUNNING)
    return runs or last.finished_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """An invocation from Redis or from the history; times in epoch seconds."""

    function: str
    revision: int
    state: str
    cause: str
    attempt: int
    gpu: str
    rows: int
    arrival_at: float
    deadline_at: float
    finished_at: float | None
    gate_s: float | None


def _facts(record: InvocationRecord | None, told: _Told) -> _Facts:
    if record is not None:
        return _Facts(
            function=record.function.partition("/")[2],
            revision=record.revision,
            state=record.state,
            cause=record.cause,
            attempt=record.attempt,
            gpu=record.gpu,
            rows=record.rows,
            arrival_at=record.arrival_us / 1e6,
            deadline_at=record.deadline_us / 1e6,
            finished_at=record.finished_us / 1e6 or None,
            gate_s=record.gate_us / 1e6 or None,
        )
    past = told.past
    assert past is not None
    return _Facts(
        function=past.function,
        revision=past.revision,
        state=past.state.value,
        cause=past.cause,
        attempt=past.attempt,
        gpu=past.gpu,
        rows=past.rows,
        arrival_at=past.arrival_at,
        deadline_at=past.deadline_at,
        finished_at=past.finished_at,
        gate_s=past.gate_s,
    )


async def _now(
    gateway: Gateway, project: str, id_: str, record: InvocationRecord | None, facts: _Facts
) -> tuple[AdmissionCheck, schemas.Waits | None]:
    """What the gate says now, and what one that waits waits for."""
    waits = record is not None and record.state == State.QUEUED
    question = Question(
        id=new_id() if waits else "",
        function=f"{project}/{facts.function}",
        revision=facts.revision,
        rows=facts.rows,
        deadline_us=int(facts.deadline_at * 1e6),
    )
    if not waits:
        return await gateway.queue.ask(question), None
    (gate, answer), before = await asyncio.gather(_ask(gateway, question), gateway.queue.before(question.function, id_))
    if answer is None or not answer.known:
        detail = why_not_now(Reasons(), gate.paused) if gate.paused else "The scheduler did not say."
        return gate, schemas.Waits(before=before or 0, paused=gate.paused, detail=detail)
    detail = (
        why_not_now(answer.reasons, gate.paused)
        if gate.paused or answer.gpu is None
        else f"It is about to go to {answer.gpu}."
    )
    return gate, schemas.Waits(
        before=before or 0, paused=gate.paused, decision=_decision(answer.reasons, answer.at), detail=detail
    )


def _attempts(facts: _Facts, told: _Told, record: InvocationRecord | None) -> list[schemas.Attempt]:
    found, since = [], facts.arrival_at
    for run in told.runs:
        decided = told.decisions.get(run.attempt)
        why = reasons(decided.decision) if decided is not None else None
        schedule_us = why.schedule_us if why is not None else 0
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
        found.append(
            schemas.Attempt(
                attempt=run.attempt,
                gpu=run.gpu,
                state=run.state,
                cause=run.cause,
                cold=run.cold,
                batch=run.batch,
                rows=run.rows,
                co_runners=run.co_runners or [],
                jobs=run.jobs or [],
                phases_ms=schemas.Phases(
                    **phases, loading={name: seconds * 1e3 for name, seconds in (run.load_s or {}).items()}
                ),
                predicted=_predicted(facts, run, why),
                measured=_measured(facts, run, told.windows.get(run.attempt, [])),
                decision=_decision(why, decided.at) if why is not None and decided is not None else None,
            )
        )
        since = run.finished_at or since
    return found


def _predicted(facts: _Facts, run: "Execution", why: Reasons | None) -> schemas.Side | None:
    chosen = next((one for one in why.candidates if one.gpu == run.gpu), None) if why is not None else None
    if chosen is None:
        return None
    slowed = None if chosen.run_s is None else chosen.run_s * (1 + (chosen.function_degradation or 0.0))
    return schemas.Side(
        run_s=slowed,
        finish_at=_at(chosen.finish_at),
        slack_s=None if chosen.finish_at is None else facts.deadline_at - chosen.finish_at,
        function_degradation=chosen.function_degradation,
        function_degradation_upper=chosen.function_degradation_upper,
        training_degradation=chosen.training_degradation,
        training_degradation_upper=chosen.training_degradation_upper,
        known=chosen.known,
    )


def _measured(facts: _Facts, run: "Execution", windows: list["JobWindow"]) -> schemas.Side:
    return schemas.Side(
        run_s=run.run_s,
        finish_at=_at(run.finished_at),
        slack_s=None if run.finished_at is None else facts.deadline_at - run.finished_at,
        function_degradation=run.degradation,
        training_degradation=beside([(one.solo_s, one.solo_count, one.shared_s, one.shared_count) for one in windows]),
    )


def _decision(why: Reasons, at: float | None) -> schemas.Decision:
    return schemas.Decision(
        at=_at(at),
        policy=why.policy,
        table=why.table,
        seed=why.seed,
        priority=why.priority,
        candidates=[_candidate(one) for one in why.candidates],
        refused=why.refused,
        shadow=schemas.Shadow(policy=why.shadow.policy, gpu=why.shadow.gpu) if why.shadow is not None else None,
    )


def _candidate(one: Candidate) -> schemas.Candidate:
    return schemas.Candidate(**{**msgspec.structs.asdict(one), "finish_at": _at(one.finish_at)})


def _degradation(one: Candidate) -> schemas.Degradation:
    return schemas.Degradation(
        function=one.function_degradation or 0.0,
        function_upper=one.function_degradation_upper or 0.0,
        training=one.training_degradation or 0.0,
        training_upper=one.training_degradation_upper or 0.0,
        known=one.known,
    )


def _at(at: float | None) -> datetime | None:
    return None if at is None else moment(at)
