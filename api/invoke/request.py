"""A POST of an invocation as a :class:`Call`: headers and body read and checked against the function; nothing is queued."""

import hashlib
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

import orjson
from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from api.deps import Gateway
from api.errors import Malformed, UnsupportedMediaType
from api.invoke.admit import admit, request_parts
from api.server.bodies import body_too_large, refuse_coding
from api.server.invocation_description import BULK_FROM_S, MAX_DEADLINE_MS, MAX_ROWS, MAX_WAIT_S
from smore.definition.inputs import Payload, from_json, from_raw
from smore.domain.errors import InvalidInput, InvalidSpec, InvocationNotFound
from smore.domain.function import FunctionSpec, WorkClass, parse_class
from smore.domain.ids import new_id
from smore.domain.invocation import Encoding
from smore.domain.limits import Limits
from smore.domain.quote import MOST_QUOTED, cut, quoted
from smore.redis.catalog import FunctionEntry, KeyEntry
from smore.redis.submission import Submission

RAW = b"application/octet-stream"
#: A larger body is checked in a worker thread, so that the event loop does not stand still for tens of milliseconds.
LARGE_BODY = 512 << 10

#: What the body of an invocation, and of a dry run, may have.
_CALL_HAS: Final = "a body has input or inputs, deadline_ms and class"
_DRY_RUN_HAS: Final = "a dry run is of one invocation, with input or rows, and deadline_ms"
#: Fields that another body takes → where.
_ELSEWHERE: Final[Mapping[str, str]] = {
    "inputs": "taken by POST /v1/functions/NAME/invocations, in place of input",
    "rows": "taken by a dry run (POST /v1/functions/NAME/invocations:dryRun), in place of input",
}
#: Unknown fields of a body that an error names.
_MOST_NAMED = 5

_ID = re.compile(r"[0-9a-f]{32}")
_IDEMPOTENCY_KEY = re.compile(rb"[\x21-\x7e]{1,255}")
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})(-[0-9a-f]{16})-([0-9a-f]{2}).*")
#: Seconds, as RFC 7240 has them: digits alone.
_SECONDS = re.compile(rb"[0-9]{1,15}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """
    What one POST asks for. ``several``: its body had ``inputs``, so the answer is a list. ``wait_s`` None = answer 202
    at once; ``slo_us``: microseconds from arrival to the deadline; ``limits``: of its project.

    ``bulk``: of class batch; ``request_parts``, ``volatile``: see :class:`smore.redis.submission.Submission`.
    ``parts_suffice``: two requests with equal parts are the same, though their bytes differ.
    """

    gateway: Gateway
    key: KeyEntry
    entry: FunctionEntry
    spec: FunctionSpec
    payloads: list[Payload]
    several: bool
    accept: Encoding
    slo_us: int
    wait_s: float | None
    trace: str
    idempotency_key: str
    request_hash: str
    request_id: str
    limits: Limits
    request_parts: str = ""
    parts_suffice: bool = False
    bulk: bool = False
    volatile: bool = False

    def submission(self, position: int) -> Submission:
        """The input at ``position`` under a new id."""
        spec, payload, waits = self.spec, self.payloads[position], self.wait_s is not None
        # The first input has the caller's own key, so that another request with it is known. A caller's key holds no
        # space, so that the keys of further inputs collide with no other request's.
        suffix = f" {position}" if position else ""
        return Submission(
            id=new_id(),
            function=self.entry.key,
            revision=self.entry.revision,
            payload=payload.body,
            slo_us=self.slo_us,
            channel=self.gateway.waiters.channel if waits else "",
            encoding=payload.encoding,
            accept=self.accept,
            rows=payload.rows,
            shape=payload.shape,
            sync=waits,
            trace=self.trace,
            key_id=self.key.id,
            idempotency_key=self.idempotency_key + suffix if self.idempotency_key else "",
            request_hash=self.request_hash,
            request_parts=self.request_parts,
            max_pending=spec.max_pending,
            max_attempts=spec.max_attempts,
            limits=self.limits,
            volatile=self.volatile,
            bulk=self.bulk,
            led=True,
        )


async def read(request: Request, gateway: Gateway, key: KeyEntry, entry: FunctionEntry, spec: FunctionSpec) -> Call:
    """
    Raises InvalidInput that names the place, Malformed, PayloadTooLarge, UnsupportedMediaType, Draining, LimitReached.
    """
    scope = request.scope
    headers: dict[bytes, bytes] = dict(scope["headers"])
    limits, of_project = gateway.settings.api, admit(gateway, entry, spec)
    refuse_coding(headers)
    raw = _is_raw(headers.get(b"content-type", b""))
    deadline = given_deadline(scope, headers)
    key_given = idempotency_key(headers)

    prefer, trace = headers.get(b"prefer"), headers.get(b"traceparent")
    wait = limits.sync_wait_s if prefer is None else wait_s(prefer, limits.sync_wait_s)
    # More than may wait at all would be refused one by one.
    most = gateway.settings.queue.max_pending if wait is None else limits.max_inputs_per_call
    body = await read_body(request, min(limits.max_body_bytes, spec.payload_bytes) if raw else limits.max_body_bytes)
    shape = headers.get(b"smore-shape")
    if raw:
        payload = from_raw(body, shape.decode("latin-1") if shape is not None else None, spec)
        checksum = zlib.crc32(body).to_bytes(4) if key_given else b""
        given = _Given([payload], several=False, deadline_ms=None, digest=checksum, work_class=None)
    elif len(body) > LARGE_BODY:
        given = await run_in_threadpool(_parse, body, spec, most, keyed=bool(key_given))
    else:
        given = _parse(body, spec, most, keyed=bool(key_given))

    parts = ""
    if key_given:
        parts = request_parts(
            {
                "function": entry.key.encode(),
                "inputs" if given.several else "input": given.digest,
                "deadline_ms": repr(given.deadline_ms).encode(),
                "Smore-Shape": shape or b"",
                "Content-Type": RAW if raw else b"",
            }
        )
    relative_us = slo_us(given.deadline_ms, deadline, entry, spec)
    asked = headers.get(b"smore-class") if given.work_class is None else given.work_class
    wants_raw = spec.inputs is not None and not given.several and RAW in headers.get(b"accept", b"")
    return Call(
        gateway=gateway,
        key=key,
        entry=entry,
        spec=spec,
        payloads=given.payloads,
        several=given.several,
        accept=Encoding.RAW if wants_raw else Encoding.JSON,
        slo_us=relative_us,
        wait_s=wait,
        trace=trace_of(trace) if trace is not None else "",
        idempotency_key=key_given,
        request_hash=digest(entry.key, shape, body) if key_given else "",
        request_parts=parts,
        parts_suffice=not raw,
        bulk=_is_bulk(asked, spec, given.several and relative_us > BULK_FROM_S * 1e6),
        request_id=scope["request_id"],
        limits=of_project,
    )


def idempotency_key(headers: Mapping[bytes, bytes]) -> str:
    given = headers.get(b"idempotency-key")
    if given is None:
        return ""
    if _IDEMPOTENCY_KEY.fullmatch(given) is None:
        raise InvalidInput.at("Idempotency-Key", "1 to 255 visible ASCII characters are expected")
    return given.decode()


def check_id(id_: str) -> None:
    """Raises InvocationNotFound for what cannot be an invocation's id."""
    if _ID.fullmatch(id_) is None:
        raise InvocationNotFound


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Of one that is too large no more is read than shows that it is; raises PayloadTooLarge."""
    for name, value in request.scope["headers"]:
        if name == b"content-length" and int(value) > limit:
            raise body_too_large(limit, int(value))
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise body_too_large(limit)
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def wait_s(prefer: bytes, default: float) -> float | None:
    """
    Seconds to wait by RFC 7240's Prefer, None = not at all; a longer wait than :data:`MAX_WAIT_S` becomes that.

    Other preferences are passed over, as the RFC demands; a ``wait`` that is no number of seconds raises InvalidInput.
    """
    wanted: float | None = default
    for preference in prefer.lower().split(b","):
        name, _, value = (part.strip() for part in preference.partition(b";")[0].partition(b"="))
        if name == b"respond-async":
            return None
        if name == b"wait":
            value = value.strip(b'"')
            if _SECONDS.fullmatch(value) is None:
                raise InvalidInput.at(
                    "Prefer", f"wait=<whole seconds> is expected; at most {MAX_WAIT_S:.0f} are waited"
                )
            wanted = min(float(value), MAX_WAIT_S) or None
    return wanted


def _is_raw(content_type: bytes) -> bool:
    if not content_type or content_type.startswith(b"application/json"):
        return False
    if content_type.startswith(RAW):
        return True
    raise UnsupportedMediaType("Content-Type: application/json or application/octet-stream is expected.")


class _Given(NamedTuple):
    """
    What a body holds. ``several``: it had ``inputs``; ``deadline_ms``: as it stands there. ``digest``: of its input or
    inputs, the same for all ways to write the same JSON value; of raw bodies a checksum, which suffices to say whether they
    differ. b'' where nobody asked for it. ``work_class``: as it stands in the body, None = it does not.
    """

    payloads: list[Payload]
    several: bool
    deadline_ms: object
    digest: bytes
    work_class: object


def _parse(body: bytes, spec: FunctionSpec, max_inputs: int, *, keyed: bool = False, has: str = _CALL_HAS) -> _Given:
    """
    ``keyed``: the request has an Idempotency-Key, so that its inputs are to be compared with another one's; ``has``: what
    such a body may have, in words.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"The body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput('body: an object with "input" or "inputs" is expected', field="body")
    in_body = document.pop("deadline_ms", None)
    work_class = document.pop("class", None) if has is _CALL_HAS else None
    several = "input" not in document
    if not several:
        value = document.pop("input")
        payloads = [from_json(value, spec, "input")]
    elif "inputs" in document:
        value = document.pop("inputs")
        if not isinstance(value, list) or not 1 <= len(value) <= max_inputs:
            raise InvalidInput.at(
                "inputs", f"a list of 1 to {max_inputs} inputs is expected; `Prefer: respond-async` takes more of them"
            )
        payloads = [from_json(each, spec, f"inputs[{position}]") for position, each in enumerate(value)]
    else:
        unknown = f"; unknown: {', '.join(map(quoted, islice(document, _MOST_NAMED)))}" if document else ""
        raise InvalidInput(f'input: missing{unknown}. What the function gets is the value of "input"', field="input")
    if document:
        raise _unknown(document, has)
    same = hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).digest() if keyed else b""
    return _Given(payloads, several, in_body, same, work_class)


def _unknown(document: Mapping[str, object], has: str) -> InvalidInput:
    name = next(iter(document))
    what = _ELSEWHERE.get(name, "unknown field")
    return InvalidInput(f"{quoted(name)}: {what}; {has}", field=cut(name, MOST_QUOTED))


def given_deadline(scope: Scope, headers: Mapping[bytes, bytes]) -> float | None:
    """The deadline of the query, else of the header, in milliseconds. Raises InvalidInput where either is none."""
    deadline: float | None = None
    if (text := headers.get(b"smore-deadline-ms")) is not None:
        deadline = _milliseconds(_number(text), "Smore-Deadline-Ms")
    if scope["query_string"]:
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if (asked := query.get("deadline_ms")) is not None:
            deadline = _milliseconds(_number(asked), "deadline_ms")
    return deadline


def _number(text: str | bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _milliseconds(value: object, field: str) -> float:
    # NaN fails both comparisons.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_DEADLINE_MS:
        raise InvalidInput.at(field, f"milliseconds from arrival, 0 < ms <= {MAX_DEADLINE_MS:.0f}, are expected")
    return value


def slo_us(in_body: object, given: float | None, entry: FunctionEntry, spec: FunctionSpec) -> int:
    """
    Microseconds from arrival to the deadline: of the body, else of query or header (``given``), else the function's.
    Raises InvalidInput.
    """
    deadline_ms = given if in_body is None else _milliseconds(in_body, "deadline_ms")
    if deadline_ms is None:
        return int((spec.deadline_s if entry.deadline_s is None else entry.deadline_s) * 1e6)
    return max(1, int(deadline_ms * 1000))


def _is_bulk(asked: object, spec: FunctionSpec, patient: bool) -> bool:
    """
    Whether a call is of class batch: as its function is, as it asks itself, or where it does not say by whether it is
    ``patient``. Raises InvalidInput where it asks for more than its function has.
    """
    if asked is None:
        return patient or spec.work_class is WorkClass.BATCH
    try:
        name = asked.decode("latin-1") if isinstance(asked, bytes) else asked
        return parse_class(name, "class", spec.work_class) is WorkClass.BATCH
    except InvalidSpec as error:
        raise InvalidInput(str(error), field="class") from error


def trace_of(header: bytes) -> str:
    """
    The W3C trace id, with ``-`` and the id of the caller's span where the caller records its spans; '' where the header
    cannot be read.
    """
    match = _TRACE.fullmatch(header)
    if match is None:
        return ""
    trace, span, flags = match.groups()
    return (trace + span if int(flags, 16) & 1 else trace).decode()


def digest(function: str, shape: bytes | None, body: bytes) -> str:
    """
    Of a request as it was written: two with one Idempotency-Key and one digest are the same. Two with other digests may
    still be (``parts_suffice`` of :class:`Call`).
    """
    hashed = hashlib.sha256(function.encode() + b"\0" + (shape or b"") + b"\0")
    hashed.update(body)
    return hashed.hexdigest()


# ---- a dry run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunRequest:
    """What a dry run asks for: ``size`` in bytes of the payload, 0 where only rows were named."""

    rows: int
    size: int
    slo_us: int


async def read_dry_run(request: Request, gateway: Gateway, entry: FunctionEntry, spec: FunctionSpec) -> DryRunRequest:
    """
    A dry run's POST: the body of an invocation with one input, or ``{"rows": n}`` in place of ``input``.

    Raises InvalidInput that names the place, Malformed, PayloadTooLarge, UnsupportedMediaType.
    """
    scope = request.scope
    headers: dict[bytes, bytes] = dict(scope["headers"])
    limits = gateway.settings.api
    raw = _is_raw(headers.get(b"content-type", b""))
    body = await read_body(request, min(limits.max_body_bytes, spec.payload_bytes) if raw else limits.max_body_bytes)
    in_body: object = None
    if raw:
        shape = headers.get(b"smore-shape")
        payload = from_raw(body, shape.decode("latin-1") if shape is not None else None, spec)
    elif len(body) > LARGE_BODY:
        payload, in_body = await run_in_threadpool(_parse_dry_run, body, spec)
    else:
        payload, in_body = _parse_dry_run(body, spec)
    return DryRunRequest(
        rows=payload.rows, size=len(payload.body), slo_us=slo_us(in_body, given_deadline(scope, headers), entry, spec)
    )


def _parse_dry_run(body: bytes, spec: FunctionSpec) -> tuple[Payload, object]:
    """(what would be sent, its ``deadline_ms``)."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"The body is not JSON: {error}") from error
    if isinstance(document, dict) and "inputs" in document:
        raise _unknown({"inputs": document["inputs"]}, _DRY_RUN_HAS)
    if not isinstance(document, dict) or "rows" not in document:
        given = _parse(body, spec, 1, has=_DRY_RUN_HAS)
        return given.payloads[0], given.deadline_ms
    rows, in_body = document.pop("rows"), document.pop("deadline_ms", None)
    most = MAX_ROWS if spec.inputs is not None else 1
    rows = int(rows) if isinstance(rows, float) and rows.is_integer() else rows
    if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= most:
        raise InvalidInput.at("rows", f"a whole number from 1 to {most} is expected")
    if document:
        raise _unknown(document, _DRY_RUN_HAS)
    return Payload(body=b"", encoding=Encoding.JSON, rows=rows), in_body
