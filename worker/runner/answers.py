"""
What a runner may answer, checked once for everybody behind it: what passes is pasted into the answer to the caller as
it is.

A runner is the function's own process. Which numbers it answers is the function's affair; that they are JSON, or
tensors as described, and as many as were asked for, is not. Whatever breaks a rule raises
:class:`worker.frames.BadFrame`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from smore.domain import tensors
from smore.domain.invocation import Cause, Encoding
from worker.frames import SHAPES_BYTES, Answer, BadFrame, Description, Failed, Item

#: Causes for which a runner is ended, and with it its whole batch.
_ENDS: Final = frozenset({Cause.OUT_OF_MEMORY, Cause.DEVICE_FULL, Cause.CONTEXT_LOST})
_ITEM_CAUSES: Final = frozenset({Cause.HANDLER_ERROR, Cause.BAD_OUTPUT, Cause.RESULT_TOO_LARGE})
#: What a runner can know. Every other cause is the platform's to tell.
_CAUSES: Final = _ITEM_CAUSES | _ENDS

_json = msgspec.json.Decoder(msgspec.Raw).decode
_description = msgspec.json.Decoder(Description).decode


def results(items: Sequence[Item], answers: Sequence[Answer], body: bytearray) -> list[bytes]:
    """Of a batch: what each of the answers to ``items`` holds of the body. Reads every result once."""
    if len(answers) != len(items):
        raise BadFrame(f"it gave {len(answers)} answers to {len(items)} invocations")
    at, found = 0, []
    whole = memoryview(body)
    for item, answer in zip(items, answers, strict=True):
        if not 0 <= answer.length <= len(body) - at:
            raise BadFrame("the lengths of its results do not add up")
        result = bytes(whole[at : at + answer.length])
        _check(item, answer, result)
        found.append(result)
        at += answer.length
    if at != len(body):
        raise BadFrame("the lengths of its results do not add up")
    return found


def _check(item: Item, answer: Answer, body: bytes) -> None:
    canary = item.encoding == Encoding.CANARY
    match answer.form:
        case "json" if canary:
            describe(body)
        case "json":
            check_json(body)
        case "raw" if item.accept == Encoding.RAW and not canary:
            _check_raw(answer.shapes, body)
        case "error" if not body and answer.cause in _ITEM_CAUSES:
            pass
        case _:
            raise BadFrame("the form of an answer is unknown, or not the one that was asked for")
    if (answer.form != "raw" and answer.shapes) or (answer.form != "error" and (answer.cause or answer.message)):
        raise BadFrame("an answer has parts of another form")


def check_json(body: bytes) -> None:
    """That it is exactly one JSON value, as text that can be read."""
    try:
        _json(body)
        # The decoder passes over strings without looking at their encoding.
        if not body.isascii():
            body.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrame("a result is not JSON") from error


def _check_raw(shapes: str, body: bytes) -> None:
    """The description becomes a header, so it is written the one way that :func:`smore.domain.tensors.describe` has."""
    try:
        if len(shapes.encode()) > SHAPES_BYTES or not shapes.isprintable():
            raise ValueError("not a header")
        found = tensors.sections(shapes, body)
        if ";".join(tensors.describe(one.name, one.datatype, one.shape) for one in found) != shapes:
            raise ValueError("not as it is written")
    except ValueError as error:
        raise BadFrame("a result is not the tensors that it is described as") from error


def describe(body: bytes) -> Description:
    """What a canary answered."""
    try:
        found = _description(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrame("its description cannot be read") from error
    for one in (*(found.inputs or ()), *(found.outputs or ())):
        sizes = one.shape[:1] == [-1] and all(-1 <= size < 2**31 for size in one.shape)
        if not one.name or not one.name.isprintable() or one.datatype not in tensors.DATATYPES or not sizes:
            raise BadFrame("its description is of no tensors that there are")
    amount(found.memory_mib)
    return found


def cause_of(failed: Failed) -> Cause:
    if failed.cause not in _CAUSES:
        raise BadFrame("it failed for a cause that is not its own to tell")
    return Cause(failed.cause)


def amount(value: float) -> float:
    """A finite number from 0 on, as it is."""
    if not (math.isfinite(value) and value >= 0):
        raise BadFrame("an amount is no number from 0 on")
    return value


def divided(phases: Mapping[str, float], names: Sequence[str], whole_ms: float) -> dict[str, float]:
    """
    ``whole_ms`` of the parent's clock, divided as the runner says; the last of ``names`` is what the others leave.

    So that no word of a runner makes a load shorter or longer than it was.
    """
    if set(phases) != set(names):
        raise BadFrame("its load has other parts than it was asked for")
    left_ms, found = whole_ms, {}
    for name in names[:-1]:
        found[name] = min(amount(phases[name]), left_ms)
        left_ms -= found[name]
    return found | {names[-1]: left_ms}
