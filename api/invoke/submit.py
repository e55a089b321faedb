"""
Submission: a :class:`api.invoke.request.Call` goes to the queue, and its caller waits where the call says so.

Both REST interfaces submit here; api/invoke/response.py and api/openinference turn what comes of it into answers.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from prometheus_client import Counter, Histogram

from api.deps import Gateway
from api.errors import ResultDropped
from api.invoke.admit import refusal
from api.invoke.request import Call
from api.request_log import ended_late
from api.waiters import Waiter
from smore.domain.errors import CallerError
from smore.domain.invocation import TERMINAL, State
from smore.process.observability import E2E_SECONDS, INVOCATIONS
from smore.redis.records import Reply
from smore.redis.submission import GateAnswer, Submission

#: Inputs of one call that are queued, and waited for, at a time.
_TOGETHER: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """
    The invocation ``id`` when its caller stops waiting: ``reply`` says how it ended, None = it goes on, in ``state``.

    ``revision``: of the function that it runs; ``replayed``: an earlier request with this Idempotency-Key made it.
    """

    id: str
    reply: Reply | None
    state: str
    revision: int = 0
    replayed: bool = False


async def submit(call: Call) -> Submitted:
    """Queue the call's one input; do not wait. Raises what the gate refuses it with, ResultDropped."""
    submission = call.submission(0)
    admission = await call.gateway.queue.enqueue(submission)
    if _repeats(call, admission):
        return await _earlier(call, admission.known_id)
    if admission.status != "ok":
        raise refusal(admission, submission.slo_us, call.request_parts)
    return _submitted(submission, None, State.QUEUED)


async def submit_and_wait(call: Call, wait_s: float, began: float) -> Submitted:
    """
    Queue the call's one input and wait, at most ``wait_s``. ``began``: when the request came, time.perf_counter.

    Raises what the gate refuses it with, ResultDropped.
    """
    gateway, project, submission = call.gateway, call.key.project, call.submission(0)
    waiter = gateway.waiters.expect(project, submission.id, wait_s, told=True)
    try:
        admission = await gateway.queue.enqueue(submission)
        if _repeats(call, admission):
            return await _earlier(call, admission.known_id)
        if admission.status != "ok":
            raise refusal(admission, submission.slo_us, call.request_parts)
        reply, state = await waiter.future, ""
    finally:
        gateway.waiters.forget(waiter)
    if reply is None:
        reply, state = await _keep(gateway, project, submission.id)
    if reply is not None:
        if submission.volatile:
            gateway.queue.forget_payload(submission.function, submission.id)
        _e2e(call.entry.key).observe(time.perf_counter() - began)
        _ends(call.entry.key, reply.state).inc()
        _log_late(call, reply)
    return _submitted(submission, reply, state)


def _log_late(call: Call, reply: Reply) -> None:
    if reply.state == State.SUCCEEDED and reply.late_us:
        ended_late(
            request_id=call.request_id,
            project=call.key.project,
            key_id=call.key.id,
            function=call.entry.name,
            reply=reply,
        )


def _submitted(submission: Submission, reply: Reply | None, state: str) -> Submitted:
    return Submitted(id=submission.id, reply=reply, state=state, revision=submission.revision)


async def submit_several(call: Call) -> Sequence[Submitted | CallerError]:
    """
    Queue every input, as an invocation with an id and a state of its own, and wait for all of them where the call
    waits. In place of one that was refused stands the error. Raises ResultDropped, and IdempotencyMismatch, before anything
    is queued, where another request had the key.
    """
    results: list[Submitted | CallerError] = []
    for start in range(0, len(call.payloads), _TOGETHER):
        submissions = [call.submission(start + n) for n in range(len(call.payloads[start : start + _TOGETHER]))]
        results += await _submit_together(call, submissions)
    return results


async def _submit_together(call: Call, submissions: Sequence[Submission]) -> list[Submitted | CallerError]:
    gateway, project = call.gateway, call.key.project
    waiters: dict[str, Waiter] = {}
    if call.wait_s is not None:
        for each in submissions:
            waiters[each.id] = gateway.waiters.expect(project, each.id, call.wait_s, told=True)
    results: list[Submitted | CallerError] = []
    try:
        admissions: list[GateAnswer] = []
        if call.idempotency_key and submissions[0].idempotency_key == call.idempotency_key:
            # The first input alone tells whether another request had the key: then none of the others may run.
            admissions.append(await gateway.queue.enqueue(submissions[0]))
            if admissions[0].status == "mismatch" and not _repeats(call, admissions[0]):
                raise refusal(admissions[0], submissions[0].slo_us, call.request_parts)
        # In one turn of the event loop, and so in one round trip.
        others = submissions[len(admissions) :]
        admissions += await asyncio.gather(*(gateway.queue.enqueue(submission) for submission in others))
        for submission, admission in zip(submissions, admissions, strict=True):
            if _repeats(call, admission):
                submitted = await _earlier(call, admission.known_id)
            elif admission.status != "ok":
                results.append(refusal(admission, submission.slo_us, call.request_parts))
                continue
            elif submission.id not in waiters:
                submitted = _submitted(submission, None, State.QUEUED)
            else:
                reply, state = await waiters[submission.id].future, ""
                if reply is None:
                    reply, state = await _keep(gateway, project, submission.id)
                if reply is not None:
                    _log_late(call, reply)
                submitted = _submitted(submission, reply, state)
            if submitted.reply is not None:
                _ends(call.entry.key, submitted.reply.state).inc()
            results.append(submitted)
    finally:
        for waiter in waiters.values():
            gateway.waiters.forget(waiter)
    return results


async def _keep(gateway: Gateway, project: str, id_: str) -> tuple[Reply | None, str]:
    """The caller stops waiting: (the reply, if it came at the last moment, the state)."""
    state = await gateway.queue.keep(project, id_)
    return (
        (await gateway.queue.reply(project, id_), state) if state in TERMINAL else (None, state or State.QUEUED.value)
    )


def _repeats(call: Call, admission: GateAnswer) -> bool:
    """Whether an earlier request with this Idempotency-Key was the same one."""
    if admission.status == "mismatch":
        return call.parts_suffice and admission.known_parts == call.request_parts
    return admission.status == "replay"


async def _earlier(call: Call, id_: str) -> Submitted:
    """What became of the invocation that an earlier request with this Idempotency-Key made. Raises ResultDropped."""
    gateway, project = call.gateway, call.key.project
    record = await gateway.queue.record(project, id_)
    if record is None:
        raise ResultDropped(
            "The first request with this Idempotency-Key was served; its result has been dropped.",
            id=id_,
            replayed=True,
        )
    reply = await gateway.queue.reply(project, id_)
    if reply is None and call.wait_s is not None:
        # It may have come through another gateway, whose channel it then has.
        reply = await gateway.waiters.wait(project, id_, call.wait_s, told=False)
        record = await gateway.queue.record(project, id_) or record
    state = record.state if reply is None else reply.state
    return Submitted(id=id_, reply=reply, state=state, revision=record.revision, replayed=True)


@lru_cache(maxsize=4096)
def _e2e(function: str) -> Histogram:
    return E2E_SECONDS.labels(function)


@lru_cache(maxsize=4096)
def _ends(function: str, state: str) -> Counter:
    return INVOCATIONS.labels(function, state)
