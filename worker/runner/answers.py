"""
Checks what a runner answers, once for all processes behind the worker: what passes goes into the answer to the caller
unchanged. Used by :mod:`worker.runner.runner_handle`.

A runner is the function's own process and may be hostile. Which numbers it answers is free; that they are JSON, or
tensors as described, and as many as were asked for, is not. An answer that breaks a rule raises
:class:`worker.frames.BadFrame`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import orjson

from smore.domain import tensors
from smore.domain.function import MOST_AXES, MOST_TENSORS
from smore.domain.invocation import Cause, Encoding
from worker.frames import (
    EXAMPLE_BYTES,
    SCHEMA_BYTES,
    SCHEMA_DEPTH,
    SHAPES_BYTES,
    Answer,
    BadFrame,
    Description,
    Failed,
    Item,
)

#: Causes for which a runner is ended, and with it its whole batch.
_ENDS: Final = frozenset({Cause.OUT_OF_MEMORY, Cause.DEVICE_FULL, Cause.CONTEXT_LOST})
_ITEM_CAUSES: Final = frozenset({Cause.HANDLER_ERROR, Cause.INVALID_INPUT, Cause.BAD_OUTPUT, Cause.RESULT_TOO_LARGE})
#: Causes that a runner may name. Every other one is the platform's.
_CAUSES: Final = _ITEM_CAUSES | _ENDS

#: More than any function may declare (1 TiB) and hold beside it.
_MOST_MIB: Final = 2.0**21

_json = msgspec.json.Decoder(msgspec.Raw).decode
_description = msgspec.json.Decoder(Description).decode


def results(items: Sequence[Item], answers: Sequence[Answer], body: bytearray) -> list[bytes]:
    """The bytes of each answer's result, out of the body of a batch of ``items``. Raises BadFrame."""
    if len(answers) != len(items):
        raise BadFrame(f"it gave {len(answers)} answers to {len(items)} invocations")
    start, results = 0, []
    whole = memoryview(body)
    for item, answer in zip(items, answers, strict=True):
        if not 0 <= answer.length <= len(body) - start:
            raise BadFrame("the lengths of its results do not add up")
        result = bytes(whole[start : start + answer.length])
        _check(item, answer, result)
        results.append(result)
        start += answer.length
    if start != len(body):
        raise BadFrame("the lengths of its results do not add up")
    return results


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
    if (answer.form != "raw" and answer.shapes) or (
        answer.form != "error" and (answer.cause or answer.message or answer.field)
    ):
        raise BadFrame("an answer has parts of another form")


def check_json(body: bytes) -> None:
    """Raises BadFrame where the body is not exactly one JSON value in UTF-8."""
    try:
        _json(body)
        # The decoder passes over strings without looking at their encoding.
        if not body.isascii():
            body.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrame("a result is not JSON") from error


def _check_raw(shapes: str, body: bytes) -> None:
    """
    The description becomes a header of the answer, so it must be exactly as :func:`smore.domain.tensors.describe` writes
    it.
    """
    try:
        if len(shapes.encode()) > SHAPES_BYTES or not shapes.isprintable():
            raise ValueError("not a header")
        sections = tensors.sections(shapes, body)
        if ";".join(tensors.describe(part.name, part.datatype, part.shape) for part in sections) != shapes:
            raise ValueError("not as it is written")
    except ValueError as error:
        raise BadFrame("a result is not the tensors that it is described as") from error


def describe(body: bytes) -> Description:
    """What a canary answered. Raises BadFrame."""
    try:
        description = _description(body)
        # The gateway reads it so: a number beyond a double is none there. Postgres holds no NUL.
        orjson.loads(body)
        if b"\\u0000" in body:
            raise ValueError("NUL")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrame("its description cannot be read") from error
    inputs, outputs = description.inputs or (), description.outputs or ()
    if max(len(inputs), len(outputs)) > MOST_TENSORS:
        raise BadFrame("its description is of too many tensors")
    for tensor in (*inputs, *outputs):
        few = len(tensor.shape) <= MOST_AXES
        sizes = few and tensor.shape[:1] == (-1,) and all(-1 <= size < 2**31 for size in tensor.shape)
        named = bool(tensor.name) and tensor.name.isprintable()
        if not named or tensor.datatype not in tensors.DATATYPES or not sizes:
            raise BadFrame("its description is of no tensors that there are")
    if max(map(amount, (description.memory_mib, description.peak_mib, description.limit_mib))) > _MOST_MIB:
        raise BadFrame("its description is of more memory than a function may have")
    for schema in (description.input_schema, description.output_schema):
        if schema is not None and (len(msgspec.json.encode(schema)) > SCHEMA_BYTES or not _is_flat(schema)):
            raise BadFrame("its description has a schema that is too large")
    if not _is_flat(description.example) or len(msgspec.json.encode(description.example)) > EXAMPLE_BYTES:
        return msgspec.structs.replace(description, example=None)
    return description


def _is_flat(value: object) -> bool:
    """Whether a JSON value is at most SCHEMA_DEPTH deep."""
    level = [value]
    for _ in range(SCHEMA_DEPTH):
        level = [
            each
            for part in level
            for each in (part.values() if isinstance(part, dict) else part if isinstance(part, list) else ())
        ]
        if not level:
            return True
    return False


def cause_of(failed: Failed) -> Cause:
    """The cause that a runner names. Raises BadFrame where it is not one that it may name."""
    if failed.cause not in _CAUSES:
        raise BadFrame("it failed for a cause that is not its own to tell")
    return Cause(failed.cause)


def amount(value: float) -> float:
    """The value, unchanged. Raises BadFrame where it is no finite number from 0 on."""
    if not (math.isfinite(value) and value >= 0):
        raise BadFrame("an amount is no number from 0 on")
    return value


def divided(phases: Mapping[str, float], names: Sequence[str], whole_ms: float) -> dict[str, float]:
    """
    ``whole_ms`` of the worker's clock, divided among ``names`` as the runner says; the last one gets what the others
    leave. So a runner cannot make a load look shorter or longer than it was. Raises BadFrame.
    """
    if set(phases) != set(names):
        raise BadFrame("its load has other parts than it was asked for")
    left_ms, parts = whole_ms, {}
    for name in names[:-1]:
        parts[name] = min(amount(phases[name]), left_ms)
        left_ms -= parts[name]
    return parts | {names[-1]: left_ms}
