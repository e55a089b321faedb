"""Spans out of the history, on real servers and a receiver of OTLP."""

from collections.abc import Iterator

import pytest
import redis
from sqlalchemy import Engine

from api.invoke.request import trace_of
from lab.bench.otlp import Receiver
from scheduler.tasks.spans import Spans
from smore.messages import stream
from smore.messages.results import Execution, encode_execution
from smore.messages.stream import encode
from smore.messages.wording import phases_ms
from smore.postgres.history.reader import Reader
from smore.postgres.history.recorder import Recorder
from smore.process.observability import CONTROL
from tests.support.eventually import eventually

PREFIX = "smore:"
FUNCTION = "default/echo"
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
#: Microseconds.
T0 = 1_790_000_000_123_457
META = Execution(cold=True, load_ms={"weights": 80.0, "first": 20.0}, run_ms=12.5, batch=1, rows=1)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        yield server


def record(
    engine: Engine, client: "redis.Redis", spans: Spans, ids: list[str], trace: str = "", every: int = 0
) -> None:
    """Invocations that were lost with a worker once, and then ended."""
    for id_ in ids:
        events = (
            stream.Arrived(1, FUNCTION, 2, id_, T0, T0 + 5_000_000, 1, "", "k", trace),
            stream.Dispatched(1, FUNCTION, "cpu0", T0 + 1000, [(id_, 1)], "{}"),
            stream.Returned(1, FUNCTION, 2, id_, 1, "worker_lost", "cpu0", T0 + 3000, T0, T0 + 5_000_000, 1, "", 0),
            stream.Dispatched(1, FUNCTION, "cpu1", T0 + 7000, [(id_, 2)], "{}"),
            stream.Settled(
                1,
                FUNCTION,
                2,
                id_,
                2,
                1,
                "failed",
                "handler_error",
                "cpu1",
                T0,
                T0 + 5_000_000,
                T0 + 7000,
                T0 + 8000,
                T0 + 130_000,
                1,
                "k",
                trace,
                0,
                encode_execution(META).decode(),
            ),
        )
        for event in events:
            client.xadd(f"{PREFIX}ev", {"e": encode(event)})
    assert Recorder(engine, client, PREFIX, spans.add, every).drain() == 5 * len(ids)


def dropped() -> float:
    return CONTROL.get_sample_value("smore_spans_dropped_total") or 0.0


def test_spans_are_below_the_callers_and_say_what_explain_says(
    engine: Engine, redis_client: "redis.Redis", receiver: Receiver
) -> None:
    record(engine, redis_client, Spans(engine, receiver.url), ["a"], trace_of(f"00-{TRACE}-{CALLER}-01".encode()))
    eventually(lambda: receiver.spans)
    whole, *parts = receiver.spans
    assert (whole["name"], whole["parentSpanId"], whole["status"]["message"]) == ("invocation", CALLER, "handler_error")
    assert (int(whole["startTimeUnixNano"]), int(whole["endTimeUnixNano"])) == (T0 * 1000, (T0 + 130_000) * 1000)
    assert {span["traceId"] for span in receiver.spans} == {TRACE}
    assert {part["parentSpanId"] for part in parts} == {whole["spanId"]}
    assert len({span["spanId"] for span in receiver.spans}) == len(receiver.spans)
    first, second = Reader(engine).executions("default", "a")
    assert first.finished_at is not None
    phases = [
        phases_ms(
            since=since,
            claimed=run.claimed_at,
            started=run.started_at,
            finished=run.finished_at,
            load_s=run.load_s,
            run_s=run.run_s,
        )
        for since, run in ((T0 / 1e6, first), (first.finished_at, second))
    ]
    told = [(part["name"], (int(part["endTimeUnixNano"]) - int(part["startTimeUnixNano"])) / 1e6) for part in parts]
    names = ("queue", "dispatch", "load", "run")
    assert told == [(name, pytest.approx(of[name], abs=0.01)) for of in phases for name in names if of[name]]
    assert [name for name, _ in told] == ["queue", "queue", "dispatch", "load", "run"]


@pytest.mark.parametrize("header", [f"00-{TRACE}-{CALLER}-00", "garbage"])
def test_callers_that_record_nothing_get_no_spans(
    header: str, engine: Engine, redis_client: "redis.Redis", receiver: Receiver
) -> None:
    record(engine, redis_client, Spans(engine, receiver.url), ["a"], trace_of(header.encode()))
    record(engine, redis_client, Spans(engine, receiver.url), ["b"], trace_of(f"00-{TRACE}-{CALLER}-01".encode()))
    eventually(lambda: receiver.spans)
    assert {
        span["attributes"][0]["value"]["stringValue"] for span in receiver.spans if span["name"] == "invocation"
    } == {"b"}


def test_of_other_callers_one_in_so_many_gets_spans_of_a_trace_of_its_own(
    engine: Engine, redis_client: "redis.Redis", receiver: Receiver
) -> None:
    ids = [f"{number:04d}" for number in range(200)]
    record(engine, redis_client, Spans(engine, receiver.url), ids, every=10)
    eventually(lambda: receiver.spans)
    tops = [span for span in receiver.spans if span["name"] == "invocation"]
    assert 10 <= len(tops) <= 40 and {span["parentSpanId"] for span in tops} == {""}
    traces = {span["traceId"] for span in receiver.spans}
    assert len(traces) == len(tops) and {len(trace) for trace in traces} == {32}


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:1", "http://collector:port"])
def test_recording_goes_on_where_nobody_takes_the_spans(
    url: str | None, engine: Engine, redis_client: "redis.Redis", receiver: Receiver
) -> None:
    before = dropped()
    receiver.status = 503
    spans = Spans(engine, url or receiver.url)
    record(engine, redis_client, spans, ["a", "b", "c"], trace_of(f"00-{TRACE}-{CALLER}-01".encode()))
    eventually(lambda: dropped() == before + 3)
    spans.add(["a"])
    eventually(lambda: dropped() == before + 4, what="its thread goes on")


def test_what_waits_for_a_slow_receiver_is_bounded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    monkeypatch.setattr(Spans, "_run", lambda _: None)
    spans, before = Spans(engine, receiver.url), dropped()
    spans.add([str(number) for number in range(500 * 16 + 3)])
    assert dropped() == before + 3
