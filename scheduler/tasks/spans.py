"""
Spans of invocations whose callers trace, and of every n-th, made of what the history recorded, and sent to a receiver of
OTLP over HTTP (``SMORE_OTEL__``). A span's id is that of what it tells of: one that is sent twice is the same.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, Final

import httpx
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from smore.domain.invocation import State
from smore.messages.wording import phases_ms
from smore.postgres.history.reader import Reader
from smore.postgres.history.values import Execution, PastInvocation
from smore.process.observability import SPANS_DROPPED, logger

log = logger(__name__)

#: Seconds that the receiver has for an answer, and batches that may wait for it.
ANSWER_S: Final = 10.0
MOST_WAITING: Final = 16
#: Invocations whose spans are sent together.
TOGETHER: Final = 500
#: Kinds and codes of OTLP.
_INTERNAL, _SERVER, _ERROR = 1, 2, 2


class Spans:
    """Sends in a thread of its own, so that recording waits for nobody. What cannot be sent is dropped, and counted."""

    def __init__(self, engine: Engine, endpoint: str) -> None:
        self._reader = Reader(engine)
        self._http = httpx.Client(timeout=ANSWER_S)
        self._url = f"{endpoint.rstrip('/')}/v1/traces"
        self._waiting: queue.Queue[Sequence[str]] = queue.Queue(MOST_WAITING)
        threading.Thread(target=self._run, name="spans", daemon=True).start()

    def add(self, ids: Sequence[str]) -> None:
        """Of invocations that are recorded to their ends."""
        for begin in range(0, len(ids), TOGETHER):
            batch = ids[begin : begin + TOGETHER]
            try:
                self._waiting.put_nowait(batch)
            except queue.Full:
                SPANS_DROPPED.inc(len(batch))

    def _run(self) -> None:
        while True:
            ids = self._waiting.get()
            try:
                told = self._reader.with_runs(ids)
                self._http.post(self._url, json=traces(told)).raise_for_status()
            except Exception as error:
                # Without this thread there would be no more spans.
                SPANS_DROPPED.inc(len(ids))
                foreseen = isinstance(error, OperationalError | httpx.HTTPError)
                log.warning("spans dropped", invocations=len(ids), error=str(error), exc_info=not foreseen)


def traces(told: Sequence[tuple[PastInvocation, Sequence[Execution]]]) -> dict[str, Any]:
    """The body of a request, as OTLP writes it in JSON."""
    spans = [span for past, runs in told for span in _spans(past, runs)]
    resource = {"attributes": _attributes({"service.name": "smore"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "smore"}, "spans": spans}]}]}


def _spans(past: PastInvocation, runs: Sequence[Execution]) -> Iterator[dict[str, Any]]:
    """The invocation below the caller's span, if any, and below it where the time of each attempt went."""
    trace, _, parent = past.trace.partition("-")
    trace = trace or _id(past.id, 32)
    assert past.finished_at is not None

    def span(part: str, name: str, begin: float, end: float, **more: Any) -> dict[str, Any]:
        times = {"startTimeUnixNano": _nanoseconds(begin), "endTimeUnixNano": _nanoseconds(end)}
        return {"traceId": trace, "spanId": _id(past.id + part), "name": name, "kind": _INTERNAL} | times | more

    whole = {
        "invocation": past.id,
        "function": f"{past.project}/{past.function}",
        "revision": str(past.revision),
        "state": past.state,
        "gpu": past.gpu,
    }
    bad = {"status": {"code": _ERROR, "message": past.cause}} if past.state != State.SUCCEEDED else {}
    attributes = _attributes({f"smore.{key}": value for key, value in whole.items()})
    top = {"parentSpanId": parent, "kind": _SERVER, "attributes": attributes}
    yield span("", "invocation", past.arrival_at, past.finished_at, **top, **bad)
    since = past.arrival_at
    for run in runs:
        phases = phases_ms(
            since=since,
            claimed=run.claimed_at,
            started=run.started_at,
            finished=run.finished_at,
            load_s=run.load_s,
            run_s=run.run_s,
        )
        at, facts = since, {"smore.attempt": str(run.attempt), "smore.gpu": run.gpu, "smore.cause": run.cause}
        for phase in ("queue", "dispatch", "load", "run"):
            if length := phases[phase]:
                more = {"parentSpanId": _id(past.id), "attributes": _attributes(facts)}
                yield span(f"/{run.attempt}/{phase}", phase, at, at + length / 1e3, **more)
                at += length / 1e3
        since = run.finished_at or since


def _id(text: str, digits: int = 16) -> str:
    return sha256(text.encode()).hexdigest()[:digits]


def _nanoseconds(at: float) -> str:
    return str(round(at * 1e6) * 1000)


def _attributes(of: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in of.items() if value]
