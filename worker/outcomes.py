"""What a batch that ran says in Redis: its members' result records, and what a canary has measured."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from smore.domain.invocation import Cause, Encoding
from smore.messages.results import Result, encode_execution, encode_result
from smore.redis.queue import RunOutcome
from worker.artifacts.runtime import PREPARING
from worker.batch import Member
from worker.frames import FIELD_TEXT, ITEM_TEXT, Answer, Item
from worker.pool.pool import Seat
from worker.runner import answers
from worker.runner.runner_handle import Ran

#: How errors begin of the second run of a canary, of two examples together.
PAIR: Final = "Two inputs in one batch: "


def of_both(one: Ran, pair: Ran) -> Ran:
    """
    What came of a canary: of the run of its example, described as after the run of two, or the error of that.
    """
    error = next((answer for answer in pair.answers if answer.form == "error"), None)
    if error is None:
        return replace(one, results=pair.results[: len(one.results)])
    return replace(one, answers=[msgspec.structs.replace(error, message=PAIR + error.message)], results=[b""])


def rows_of(items: Sequence[Item], given: Sequence[Answer]) -> int:
    """The rows of the inputs that ran; one that could not be read did not."""
    pairs = zip(items, given, strict=True)
    return sum(
        item.rows for item, answer in pairs if item.encoding != Encoding.CANARY and answer.cause != Cause.INVALID_INPUT
    )


def outcomes_of(members: Sequence[Member], ran: Ran, seat: Seat, examples_s: float) -> list[RunOutcome]:
    """Each member's result record. ``examples_s``: of a canary, what all of its runs have taken."""
    outcomes = []
    for member, answer, own in zip(members, ran.answers, ran.results, strict=True):
        if member.begun.encoding is Encoding.CANARY and answer.form == "json":
            outcomes.append(_outcome(member, answer, _measured(own, ran, seat, examples_s), int(ran.run_s * 1e6), seat))
        else:
            outcomes.append(_outcome(member, answer, own, int(ran.run_s * 1e6), seat))
    return outcomes


def _measured(description: bytes, ran: Ran, seat: Seat, examples_s: float) -> bytes:
    """A canary's result: the tensors as the runner describes them, and times by the worker's own clock."""
    described = answers.describe(description)
    phases_ms = seat.instance.phases
    load_ms = sum(ms for phase, ms in phases_ms.items() if phase not in PREPARING)
    # The load has run the same example. The shorter of both counts: a run may have waited for others' work, and what
    # it is taken to need would then keep invocations out.
    run_ms = min(ran.run_s * 1e3, phases_ms.get("first_run", math.inf))
    runtime = seat.instance.runtime
    told = {name: getattr(described, name) for name in ("input_schema", "output_schema", "example")}
    return encode_execution(
        {
            "inputs": described.inputs,
            "outputs": described.outputs,
            "load_ms": round(load_ms, 3),
            "phases_ms": {phase: round(ms, 3) for phase, ms in phases_ms.items()},
            "run_ms": round(run_ms, 3),
            "examples_ms": round(phases_ms.get("first_run", 0.0) + examples_s * 1e3, 3),
            "packages": runtime.chosen(seat.instance.spec.requirements) if runtime is not None else [],
            "memory_mib": round(described.memory_mib, 1),
            "peak_mib": round(described.peak_mib, 1),
            "limit_mib": round(described.limit_mib, 1),
            **{name: value for name, value in told.items() if value is not None},
        }
    )


def _outcome(member: Member, answer: Answer, body: bytes, run_us: int, seat: Seat) -> RunOutcome:
    result = Result(
        form=answer.form,
        load_us=seat.load_us,
        run_us=run_us,
        cold=seat.cold,
        body=body,
        message=answer.message[:ITEM_TEXT],
        field=answer.field[:FIELD_TEXT],
        shapes=answer.shapes,
    )
    failed = answer.form == "error"
    return RunOutcome(
        id=member.id,
        attempt=member.attempt,
        action="fail" if failed else "succeed",
        cause=Cause(answer.cause) if failed else Cause.OK,
        result=encode_result(result),
    )
