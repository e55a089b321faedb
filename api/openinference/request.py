"""Reads an inference request of the Open Inference Protocol and checks it against the function. It queues nothing."""

from collections.abc import Mapping

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from api.deps import Gateway
from api.errors import Malformed, UnsupportedMediaType
from api.invoke.admit import admit, request_parts
from api.invoke.request import (
    LARGE_BODY,
    Call,
    digest,
    given_deadline,
    idempotency_key,
    read_body,
    trace_of,
)
from api.invoke.request import slo_us as request_slo_us
from api.openinference import codec
from api.server.invocation_description import MAX_WAIT_S
from smore.domain.function import FunctionSpec
from smore.domain.invocation import Encoding
from smore.domain.tensors import BYTES
from smore.redis.catalog import FunctionEntry, KeyEntry

#: Seconds after its deadline for which the answer is awaited: by then the platform has ended an overdue invocation.
_ANSWER_S = 1.0
#: Bytes from which on a payload is not written to disk while its caller waits: writing and removing it would double the
#: cost of the invocation.
_VOLATILE = 64 << 10


async def read_inference(
    request: Request, gateway: Gateway, key: KeyEntry, entry: FunctionEntry, spec: FunctionSpec
) -> tuple[Call, codec.Inference]:
    """
    An inference request as a :class:`api.invoke.request.Call`. Its media type is not checked, because tritonclient sends
    none.

    Raises InvalidInput that names the place, Malformed, PayloadTooLarge, Unsupported, UnsupportedMediaType, Draining,
    LimitReached.
    """
    scope = request.scope
    headers: dict[bytes, bytes] = dict(scope["headers"])
    limit, of_project = gateway.settings.api.max_body_bytes, admit(gateway, entry, spec)
    key_given, size, coding = idempotency_key(headers), _json_size(headers), _coding(headers)
    body = await read_body(request, limit)
    if coding or (len(body) if size is None else size) > LARGE_BODY or (len(body) > LARGE_BODY and _walked(spec)):
        inference = await run_in_threadpool(_parse_inference, body, coding, size, limit, spec)
    else:
        inference = codec.read(body, size, spec)
    deadline, trace = given_deadline(scope, headers), headers.get(b"traceparent")
    framing = f"v2 {size} {coding}".encode()
    slo_us = request_slo_us(inference.deadline_ms, deadline, entry, spec)
    call = Call(
        gateway=gateway,
        key=key,
        entry=entry,
        spec=spec,
        payloads=[inference.payload],
        several=False,
        accept=Encoding.JSON if spec.inputs is None else Encoding.RAW,
        slo_us=slo_us,
        wait_s=min(slo_us / 1e6 + _ANSWER_S, MAX_WAIT_S),
        trace=trace_of(trace) if trace is not None else "",
        idempotency_key=key_given,
        request_hash=digest(f"{entry.key}@{entry.revision}", framing, body) if key_given else "",
        request_parts=request_parts(
            {"model": entry.key.encode(), "version": b"%d" % entry.revision, "inputs": inference.payload.body}
        )
        if key_given
        else "",
        request_id=scope["request_id"],
        limits=of_project,
        # The caller never gets 202, and this process holds the payload while the caller waits.
        volatile=len(inference.payload.body) >= _VOLATILE and not key_given,
    )
    return call, inference


def _parse_inference(body: bytes, coding: str, size: int | None, limit: int, spec: FunctionSpec) -> codec.Inference:
    return codec.read(codec.decompress(body, coding, limit) if coding else body, size, spec)


def _walked(spec: FunctionSpec) -> bool:
    """Whether checking the inputs takes time for each element."""
    return spec.inputs is None or any(tensor.datatype == BYTES for tensor in spec.inputs)


def _json_size(headers: Mapping[bytes, bytes]) -> int | None:
    given = headers.get(b"inference-header-content-length")
    if given is None:
        return None
    # For bytes, isdigit accepts ASCII digits only.
    if not given.isdigit() or len(given) > 15:
        raise Malformed("Inference-Header-Content-Length: a number of bytes is expected.")
    return int(given)


def _coding(headers: Mapping[bytes, bytes]) -> str:
    """The body's content coding, '' = none."""
    coding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    if coding in ("", "identity"):
        return ""
    if coding not in codec.CODINGS:
        raise UnsupportedMediaType(f"Content-Encoding: {', '.join(codec.CODINGS)} or none is expected.")
    return coding
