"""The event stream into Postgres, on real servers: once, in order, whatever fails."""

import json
import time
from collections.abc import Sequence
from dataclasses import astuple
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest
import redis
from sqlalchemy import Engine, text
from sqlalchemy import event as happening
from sqlalchemy.exc import OperationalError

from smore.domain.errors import InvocationNotFound
from smore.domain.ids import new_id
from smore.domain.invocation import Cause, State
from smore.domain.job import Action
from smore.domain.loss import ClosedWindow, Sums
from smore.messages import stream
from smore.messages.reasons import pack_reasons, unpack_reasons
from smore.messages.reports import JobReport, Report, encode_report
from smore.messages.results import Result, encode_result
from smore.messages.stream import encode
from smore.postgres.catalog import Store
from smore.postgres.connection import make_engine
from smore.postgres.driver import driver
from smore.postgres.history.reader import Reader
from smore.postgres.history.recorder import Recorder
from smore.postgres.history.retention import measure, retain
from smore.postgres.history.values import Harvest
from smore.postgres.job_ledger import Decided, JobLedger
from smore.postgres.jobs import JobChange
from smore.postgres.predictors import Profiles
from smore.process.observability import CONTROL, RECORD_LAG, RECORD_SKIPPED, RETIRED
from smore.process.settings import QueueSettings
from smore.redis.queue import Claim, Queue, RunOutcome
from smore.redis.submission import Submission
from tests.support.placed_jobs import placed

PREFIX = "smore:"
FUNCTION = "default/echo"
DECISION = json.dumps(
    {
        "v": 1,
        "policy": "spine",
        "candidates": [{"gpu": "cpu1", "impact": 0.4}, {"gpu": "cpu0", "warm": True, "run_s": 0.02, "impact": 0.1}],
    }
)
META = json.dumps(
    {
        "cold": True,
        "load_ms": {"weights": 80.0, "first": 20.0},
        "run_ms": 12.5,
        "batch": 1,
        "rows": 4,
        "co": [],
        "jobs": ["j1"],
    }
)
#: Microseconds; a minute begins at 1_790_000_040.
T0 = 1_790_000_000_123_457


@pytest.fixture
def recorder(engine: Engine, redis_client: "redis.Redis") -> Recorder:
    return Recorder(engine, redis_client, PREFIX)


@pytest.fixture
def reader(engine: Engine) -> Reader:
    return Reader(engine)


def entries_of(client: "redis.Redis") -> list[tuple[bytes, dict[Any, Any]]]:
    """The event stream: (id, fields) of each entry."""
    return cast("list[tuple[bytes, dict[Any, Any]]]", client.xrange(f"{PREFIX}ev"))


def emit(client: "redis.Redis", *events: stream.Event) -> None:
    for event in events:
        client.xadd(f"{PREFIX}ev", {"e": encode(event)})


def arrived(id_: str, at: int = T0) -> stream.Arrived:
    return stream.Arrived(1, FUNCTION, 2, id_, at, at + 5_000_000, 4, "x:FP32:4,3", "key1", "trace")


def dispatched(id_: str, attempt: int = 1, at: int = T0 + 1000, decision: str = DECISION) -> stream.Dispatched:
    return stream.Dispatched(1, FUNCTION, "cpu0", at, [(id_, attempt)], decision)


def returned(id_: str, attempt: int = 1, at: int = T0 + 3000) -> stream.Returned:
    return stream.Returned(
        1, FUNCTION, 2, id_, attempt, "worker_lost", "cpu0", at, T0, T0 + 5_000_000, 4, "x:FP32:4,3", 0
    )


def settled(
    id_: str, attempt: int = 1, claimed: int = T0 + 1000, begun: int = T0 + 2000, meta: str = META
) -> stream.Settled:
    return stream.Settled(
        1,
        FUNCTION,
        2,
        id_,
        attempt,
        1,
        "succeeded",
        "ok",
        "cpu0",
        T0,
        T0 + 5_000_000,
        claimed,
        begun,
        T0 + 9000,
        4,
        "key1",
        "trace",
        80,
        meta,
    )


def life(id_: str) -> list[stream.Event]:
    return [
        arrived(id_),
        dispatched(id_),
        returned(id_),
        dispatched(id_, 2, T0 + 4000),
        settled(id_, 2, T0 + 4000, T0 + 5000),
    ]


def closed_window(start: float, closed_s: float = 0.1, open_s: float = 0.11) -> ClosedWindow:
    return ClosedWindow(
        start=start,
        end=start + 0.75,
        before_s=open_s,
        before_n=6,
        closed_s=closed_s,
        closed_n=6,
        closed_sd=0.003,
        after_s=open_s,
        after_n=6,
    )


def later(event: stream.Arrived | stream.Settled, by: int) -> dict[str, int]:
    """All moments of an event, so many microseconds later."""
    return {
        name: getattr(event, name) + by
        for name in event.__struct_fields__
        if name.endswith("_us") and name != "schedule_us"
    }


def skipped() -> float:
    return float(RECORD_SKIPPED._value.get())


def arrivals(engine: Engine) -> list[tuple[datetime, int]]:
    with engine.connect() as connection:
        return [
            (row.minute, row.n)
            for row in connection.execute(text("SELECT minute, n FROM arrivals_minute ORDER BY minute"))
        ]


def table(engine: Engine, name: str) -> Sequence[object]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(f"SELECT * FROM {name} ORDER BY 1, 2"))]


def test_a_real_invocation_from_the_queue_to_its_row(
    recorder: Recorder, reader: Reader, redis_client: "redis.Redis"
) -> None:
    queue = Queue(redis_client, PREFIX, QueueSettings())
    token, id_ = queue.lead("", 5.0), new_id()
    admission = queue.enqueue(
        Submission(id=id_, function=FUNCTION, revision=1, payload=b"1", slo_us=5_000_000, key_id="k", trace="t\\\t\n")
    )
    claim = Claim(
        function=FUNCTION,
        gpu="cpu0",
        celery_list="smore:gpu.cpu0",
        message=b"m",
        decision=DECISION,
        schedule_us=7,
        attempts=[(id_, 0)],
    )
    queue.claim(token, 2.0, [claim])
    queue.start(FUNCTION, "cpu0", 2.0, [(id_, 1)])
    outcome = RunOutcome(
        id=id_, attempt=1, action="succeed", cause=Cause.OK, result=encode_result(Result(form="json", body=b"1"))
    )
    assert queue.finish(FUNCTION, META, [outcome]) == [True]
    record = queue.record("default", id_)
    assert record is not None
    assert recorder.lag_s() > 0

    assert recorder.drain() == 3
    row = reader.invocation("default", id_)
    assert (row.state, row.cause, row.attempt, row.starts, row.gpu, row.trace) == (
        State.SUCCEEDED,
        "ok",
        1,
        1,
        "cpu0",
        "t\\\t\n",
    )
    assert row.function == "echo"
    assert row.arrival_at == admission.arrival_us / 1e6
    assert row.finished_at == record.finished_us / 1e6
    (run,) = reader.executions("default", id_)
    assert (run.cold, run.load_s, run.run_s, run.batch, run.rows) == (
        True,
        {"weights": 0.08, "first": 0.02},
        0.0125,
        1,
        4,
    )
    assert (run.co_runners, run.jobs, run.started_at) == ([], ["j1"], row.started_at)
    assert run.predicted is not None
    assert run.predicted == {"run_s": 0.02}
    decision = reader.decisions("default", id_)[1]
    assert decision.decision == json.loads(DECISION)
    assert recorder.lag_s() == 0
    with pytest.raises(InvocationNotFound):
        reader.invocation("vision", id_)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
def test_batches_of_any_size_come_to_the_same(
    recorder: Recorder, reader: Reader, redis_client: "redis.Redis", limit: int
) -> None:
    emit(redis_client, *life("a"), arrived("b"), dispatched("b"), arrived("c"))
    while recorder.drain(limit) == limit:
        pass

    a, b, c = (reader.invocation("default", id_) for id_ in "abc")
    assert (a.state, a.attempt, a.started_at, a.finished_at) == (
        State.SUCCEEDED,
        2,
        (T0 + 5000) / 1e6,
        (T0 + 9000) / 1e6,
    )
    assert (b.state, b.attempt, b.gpu, b.started_at, b.rows, b.key_id) == (State.DISPATCHED, 1, "cpu0", None, 4, "key1")
    assert (c.state, c.gpu, c.claimed_at) == (State.QUEUED, "", None)
    first, second = reader.executions("default", "a")
    # Of two attempts the last one counts; "b" has not ended, and "c" was never started.
    assert reader.cold_starts("default", ["a", "b", "c"]) == {"a": True}
    assert reader.cold_starts("other", ["a"]) == {}
    assert (first.state, first.cause, first.claimed_at, first.finished_at) == (
        State.QUEUED,
        "worker_lost",
        (T0 + 1000) / 1e6,
        (T0 + 3000) / 1e6,
    )
    assert (second.state, second.cold, second.claimed_at, second.batch) == (State.SUCCEEDED, True, (T0 + 4000) / 1e6, 1)
    assert second.predicted is not None
    (under_way,) = reader.executions("default", "b")
    assert (under_way.state, under_way.claimed_at, under_way.started_at) == (State.DISPATCHED, (T0 + 1000) / 1e6, None)
    assert reader.executions("default", "c") == []
    decisions = reader.decisions("default", "a")
    assert decisions[1] != decisions[2]


def test_reading_everything_again_changes_nothing(
    recorder: Recorder, engine: Engine, redis_client: "redis.Redis"
) -> None:
    events = [*life("a"), arrived("b"), dispatched("b"), returned("b"), arrived("c")]
    emit(redis_client, *events)
    entries = entries_of(redis_client)
    recorder.drain()
    names = ("invocations", "executions", "decisions", "arrivals_minute", "run_starts")
    before = {name: table(engine, name) for name in names}
    for replayed in (entries, entries[:3], entries[4:6], entries[7:8], entries[8:10]):
        redis_client.delete(f"{PREFIX}ev")
        for entry, values in replayed:
            redis_client.xadd(f"{PREFIX}ev", values, id=entry)
        with engine.begin() as connection:
            connection.execute(text("UPDATE stream_cursor SET last_id = '0-0'"))
        assert recorder.drain() == len(replayed)

    assert {name: table(engine, name) for name in names} == before


def test_arrivals_are_counted_by_minute(recorder: Recorder, engine: Engine, redis_client: "redis.Redis") -> None:
    minute = 60_000_000
    emit(redis_client, arrived("a"), arrived("b"), *life("c")[:3], arrived("d", T0 + minute))
    recorder.drain()
    emit(redis_client, arrived("e"), *life("c")[3:], settled("lost-arrival"))
    recorder.drain()

    first = datetime.fromtimestamp(T0 // minute * 60, UTC)
    assert [n for _, n in arrivals(engine)] == [5, 1]
    assert arrivals(engine)[0][0] == first


def test_the_stream_is_cut_behind_the_cursor_but_not_ahead_of_the_leader(
    recorder: Recorder, redis_client: "redis.Redis"
) -> None:
    emit(redis_client, *life("a"))
    ids = [entry for entry, _ in entries_of(redis_client)]
    redis_client.set(f"{PREFIX}leader:cursor", ids[2])
    recorder.drain()
    assert [entry for entry, _ in entries_of(redis_client)] == ids[2:]
    redis_client.set(f"{PREFIX}leader:cursor", ids[-1])
    recorder.drain()
    assert [entry for entry, _ in entries_of(redis_client)] == ids[-1:]


def test_a_wiped_stream_with_older_ids_is_read_from_its_beginning(
    recorder: Recorder, reader: Reader, redis_client: "redis.Redis"
) -> None:
    redis_client.xadd(f"{PREFIX}ev", {"e": encode(arrived("a"))}, id="9000000000000-0")
    recorder.drain()
    redis_client.flushdb()
    emit(redis_client, arrived("b"))

    assert recorder.drain() == 1
    assert reader.invocation("default", "b").state is State.QUEUED
    assert recorder.drain() == 0


def test_text_of_any_kind_is_stored_as_it_is(recorder: Recorder, engine: Engine, redis_client: "redis.Redis") -> None:
    kinds = [
        "\t",
        "\n\r\n",
        '"',
        '\\"',
        '\\\\"',
        "x\n\\.\ny",
        "]\n[",
        '","',
        "\\n",
        "\\u0041",
        "\\N",
        "null",
        "",
        "ü😀\x1f\x7f\b\f",
    ]
    for alone in (True, False):  # a batch of its own; with others
        for number, kind in enumerate(kinds):
            emit(redis_client, msgspec.structs.replace(arrived(f"{alone}{number:02}"), trace=f"{kind}.\0", key_id=kind))
            if alone:
                recorder.drain()
    recorder.drain()
    with engine.connect() as connection:
        for alone in (True, False):
            rows = connection.execute(text(f"SELECT trace, key_id FROM invocations WHERE id ~ '^{alone}' ORDER BY id"))
            assert [tuple(row) for row in rows] == [(f"{kind}.", kind) for kind in kinds]


def test_unreadable_entries_are_counted_and_passed_over(
    recorder: Recorder, reader: Reader, redis_client: "redis.Redis"
) -> None:
    before = skipped()
    emit(redis_client, arrived("a"))
    redis_client.xadd(f"{PREFIX}ev", {"e": b"\xc1 no msgpack"})
    redis_client.xadd(f"{PREFIX}ev", {"e": encode(["unheard-of", 1])})
    emit(redis_client, stream.Reported(1, "cpu0", T0, "no report"), arrived("b"))

    assert recorder.drain() == 5
    assert skipped() == before + 3
    assert [reader.invocation("default", id_).state for id_ in "ab"] == [State.QUEUED] * 2


def test_what_postgres_refuses_holds_up_nothing_else(
    recorder: Recorder, reader: Reader, engine: Engine, redis_client: "redis.Redis"
) -> None:
    before = skipped()
    for number in range(20):
        emit(redis_client, arrived(f"i{number}"))
    # JSON by every rule, and more than Postgres' JSONB can hold.
    emit(
        redis_client,
        dispatched("i3", decision='{"candidates": [], "why": "\\u0000"}'),
        dispatched("i4"),
        arrived("nul\0"),
    )

    assert recorder.drain() == 23
    assert skipped() == before + 1
    assert reader.invocation("default", "i3").state is State.QUEUED
    assert reader.invocation("default", "i4").state is State.DISPATCHED
    assert reader.invocation("default", "nul").state is State.QUEUED
    assert [n for _, n in arrivals(engine)] == [21]


def test_what_is_written_in_halves_is_counted_once(
    recorder: Recorder, engine: Engine, redis_client: "redis.Redis"
) -> None:
    """The halves are parts of one transaction, and an invocation may begin in one and end in the other."""
    refused = dispatched("p", decision='{"candidates": [], "why": "\\u0000"}')
    emit(redis_client, arrived("a"), arrived("b"), settled("b"), refused, settled("a"), arrived("c"))
    labels = {"function": FUNCTION, "outcome": "succeeded"}
    before = CONTROL.get_sample_value("smore_invocations_ended_total", labels) or 0

    assert recorder.drain() == 6
    assert CONTROL.get_sample_value("smore_invocations_ended_total", labels) == before + 2
    assert [n for _, n in arrivals(engine)] == [3]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT sum(succeeded) FROM function_totals")).scalar_one() == 2


def test_whoever_did_not_end_in_time_is_counted_once_and_from_zero(
    recorder: Recorder, redis_client: "redis.Redis"
) -> None:
    """Given up before the deadline, which could not be met; ended after it; and those that are no miss."""

    def missed() -> dict[str, float | None]:
        return {
            outcome: CONTROL.get_sample_value("smore_deadline_missed_total", {"function": key, "outcome": outcome})
            for outcome in ("succeeded", "failed", "expired")
        }

    key = "default/just-deployed"
    emit(redis_client, stream.CatalogChanged(version=1, function=key, at_us=0))
    recorder.drain()
    assert missed() == {"succeeded": 0, "failed": 0, "expired": 0}

    def ended(id_: str, state: str, late_us: int) -> stream.Settled:
        entry = msgspec.structs.replace(settled(id_), function=key, state=state)
        return msgspec.structs.replace(entry, finished_us=entry.deadline_us + late_us)

    emit(
        redis_client,
        ended("m1", "expired", -400_000),
        ended("m2", "expired", 3),
        ended("m3", "succeeded", 100_000),
        ended("m4", "succeeded", -1),
        ended("m5", "failed", -1),
    )
    recorder.drain()
    assert missed() == {"succeeded": 1, "failed": 0, "expired": 2}


def test_an_unreadable_run_record_costs_only_itself(
    recorder: Recorder, reader: Reader, redis_client: "redis.Redis"
) -> None:
    emit(redis_client, settled("a", meta="{"))
    recorder.drain()

    (run,) = reader.executions("default", "a")
    assert (run.state, run.run_s) == (State.SUCCEEDED, None)


def test_the_start_of_an_earlier_attempt_is_not_this_ones(
    recorder: Recorder, reader: Reader, redis_client: "redis.Redis"
) -> None:
    """The record in Redis keeps it until the next start; this attempt ended before its own."""
    emit(redis_client, settled("a", 2, claimed=T0 + 4000, begun=T0 + 2000, meta=""))
    recorder.drain()

    assert reader.invocation("default", "a").started_at is None
    assert reader.executions("default", "a")[0].started_at is None


def test_ended_while_it_waited(recorder: Recorder, reader: Reader, redis_client: "redis.Redis") -> None:
    emit(
        redis_client,
        arrived("a"),
        stream.Settled(
            1,
            FUNCTION,
            2,
            "a",
            0,
            0,
            "expired",
            "deadline_expired",
            "",
            T0,
            T0 + 10,
            0,
            0,
            T0 + 20,
            4,
            "key1",
            "trace",
            0,
            "",
        ),
    )
    recorder.drain()

    row = reader.invocation("default", "a")
    assert (row.state, row.cause, row.claimed_at, row.started_at) == (State.EXPIRED, "deadline_expired", None, None)
    assert reader.executions("default", "a") == []


def test_reports_are_thinned_out(recorder: Recorder, engine: Engine, redis_client: "redis.Redis") -> None:
    for tick in range(40):  # two a second, for 20 s
        at = T0 // 10_000_000 * 10_000_000 + tick * 500_000
        job = JobReport(
            id="j1",
            project="default",
            state="running",
            pid=1,
            memory_mib=1.0,
            iterations=tick,
            window_s=30.0,
            solo_s=0.1,
            solo_count=tick,
            shared_s=0.11,
            shared_count=2,
        )
        report = Report(
            gpu="cpu0",
            boot="b",
            at=at / 1e6,
            kind="cpu",
            device="1",
            sharing_mode="time-slice",
            slots=2,
            memory_total_mib=1000.0,
            memory_used_mib=10.0,
            utilisation=tick / 100,
            utilisation_counter="cpu-time",
            function_utilisation=0.0,
            running=1,
            jobs=[job],
        )
        emit(redis_client, stream.Reported(1, "cpu0", at, encode_report(report).decode()))
        if tick == 15:
            recorder.drain()
    recorder.drain()

    with engine.connect() as connection:
        samples = connection.scalars(text("SELECT at FROM gpu_samples WHERE gpu = 'cpu0'")).all()
        windows = connection.execute(text("SELECT iterations, solo_s, shared_count FROM job_windows ORDER BY at")).all()
    assert len(samples) == len(set(samples)) == 20
    assert [tuple(window) for window in windows] == [(19, 0.1, 2), (39, 0.1, 2)]


#: Job, microseconds after T0, step, duty.
STEPS_TAKEN = (("j1", 0, "held", 1.0), ("j2", 1, "held", 1.0), ("j1", 2, "duty_75", 0.75))


def told(job: str, windows: Sequence[ClosedWindow], at: int = T0, gpu: str = "cpu0") -> stream.Reported:
    """A heartbeat with closed windows in it."""
    one = JobReport(id=job, project="default", state="running", pid=1, memory_mib=1.0, iterations=9, windows=windows)
    report = Report(
        gpu=gpu,
        boot="b",
        at=at / 1e6,
        kind="cpu",
        device="1",
        sharing_mode="time-slice",
        slots=2,
        memory_total_mib=1000.0,
        memory_used_mib=10.0,
        utilisation=0.5,
        utilisation_counter="cpu-time",
        function_utilisation=0.0,
        running=1,
        jobs=[one],
    )
    return stream.Reported(1, gpu, at, encode_report(report).decode())


def test_closed_windows_come_often_and_are_kept_once(
    recorder: Recorder, reader: Reader, redis_client: "redis.Redis"
) -> None:
    windows = [closed_window(1_790_000_000.125 + 30 * number, 0.1 + number / 100) for number in range(5)]
    emit(redis_client, told("j1", windows[:2]), told("j1", windows[1:3]), told("j2", windows[:1]))
    recorder.drain()
    # The worker and the recorder have started anew meanwhile; the job goes on.
    emit(redis_client, told("j1", windows[2:], T0 + 10_000_000), told("j1", windows[:1], gpu="cpu1"))
    recorder.drain()

    found = reader.closed(["j1", "j2", "j3"])
    assert {job: list(ranks) for job, ranks in found.items()} == {"j1": [1], "j2": [1]}
    of = found["j1"][1]
    assert (of.first_at, of.last_at) == (windows[0].start, windows[-1].start)
    assert astuple(of.sums) == pytest.approx(astuple(Sums.of([*windows, windows[0]])), abs=1e-15)
    assert found["j2"][1].sums.windows == 1
    later = reader.closed(["j1"], windows[1].start, windows[3].start)["j1"][1]
    assert astuple(later.sums) == pytest.approx(astuple(Sums.of(windows[1:3])), abs=1e-15)
    assert reader.last_iterations(["j1"]) == {}, "no such job"


def test_a_rank_keeps_its_windows_when_it_moves(
    recorder: Recorder, reader: Reader, store: Store, redis_client: "redis.Redis"
) -> None:
    gang = placed(store, "gang", ["cpu0", "cpu1"], restarts=1)
    first = [closed_window(time.time(), 0.1)]
    emit(redis_client, *(told(gang.id, first, gpu=gpu) for gpu in ("cpu0", "cpu1")))
    store.jobs.move(gang.id, Action.REQUEUE, JobChange())
    store.jobs.move(gang.id, Action.START, JobChange(gpus=["cpu1", "cpu2"]))
    second = [closed_window(time.time() + number, 0.2) for number in range(2)]
    emit(redis_client, told(gang.id, second, gpu="cpu1"), told(gang.id, second[:1], gpu="cpu2"))
    recorder.drain()
    found = reader.closed([gang.id])[gang.id]
    assert {rank: of.sums.windows for rank, of in found.items()} == {1: 3, 2: 2}
    assert reader.last_iterations([gang.id]) == {gang.id: 9}


def test_steps_of_a_budget(recorder: Recorder, reader: Reader, redis_client: "redis.Redis") -> None:
    emit(
        redis_client, *(stream.Stepped(1, "cpu0", job, T0 + at, step, duty, 1.5) for job, at, step, duty in STEPS_TAKEN)
    )
    recorder.drain()
    assert [(step.step, step.duty, step.at.timestamp()) for step in reader.budget_steps("j1", 10)] == [
        ("duty_75", 0.75, (T0 + 2) / 1e6),
        ("held", 1.0, T0 / 1e6),
    ]
    assert [step.step for step in reader.budget_steps("j1", 1)] == ["duty_75"]


def test_what_was_harvested_beside_a_job(recorder: Recorder, reader: Reader, redis_client: "redis.Redis") -> None:
    emit(redis_client, *life("a"), *life("b"))  # beside j1, 12.5 ms each
    both = json.dumps(json.loads(META) | {"batch": 2})
    emit(redis_client, arrived("c"), settled("c", meta=both), arrived("d"), settled("d", meta=both))  # one batch
    emit(redis_client, arrived("e"), settled("e", meta=json.dumps({"run_ms": 1e6, "batch": 1, "jobs": ["j2"]})))
    emit(
        redis_client, arrived("f"), settled("f", meta=json.dumps({"batch": 1, "jobs": ["j1"]}))
    )  # did not run to its end
    recorder.drain()

    harvest = reader.harvest("j1")
    assert (harvest.seconds, harvest.invocations) == (pytest.approx(0.0375), 4)
    assert reader.harvest("another") == Harvest(seconds=0.0, invocations=0)


def test_decisions_from_before_they_were_packed_are_read() -> None:
    told = json.loads(DECISION)
    assert unpack_reasons(told) == unpack_reasons(pack_reasons(told)) == told


def test_the_windows_and_decisions_of_a_job_outlast_the_retention_while_it_runs(
    recorder: Recorder, reader: Reader, store: Store, engine: Engine, redis_client: "redis.Redis"
) -> None:
    running, ended = (placed(store, name, ["cpu0"]).id for name in ("running", "ended"))
    windows = [closed_window(time.time() - days * 86_400) for days in (9, 1)]
    emit(redis_client, *(told(job, windows, time.time_ns() // 1000) for job in (running, ended, "unknown")))
    recorder.drain()
    ledger = JobLedger(engine)
    ledger.lead()
    for job in (running, ended):
        ledger.note(job, 1, Decided(kind="stop"))

    def kept() -> list[int]:
        found = reader.closed([running, ended, "unknown"])
        return [found[job][1].sums.windows if job in found else 0 for job in (running, ended, "unknown")]

    assert (retain(engine, 5.0), kept()) == (1, [2, 2, 1])
    store.jobs.move(ended, Action.END)
    assert (retain(engine, 5.0), kept()) == (0, [2, 2, 1]), "it has only just ended"
    retain(engine, 1e-9)
    assert kept() == [2, 0, 0]
    assert [len(store.jobs.decisions(job)) for job in (running, ended)] == [1, 0]


def test_times_of_a_workload_alone(engine: Engine, reader: Reader) -> None:
    place = ("a device", "time-slice")
    document = {
        "row": "solo",
        "workload": {"model": "bert", "preset": "cpu", "role": "training", "batch": 8},
        "timing": {"n": 9, "mean": 0.1},
        "place": {"device": place[0], "sharing_mode": place[1]},
        "at": "2026-11-21T10:00:00+00:00",
    }
    newer = document | {"at": "2026-11-21T11:00:00+00:00", "timing": {"n": 9, "mean": 0.2}}
    other = document | {"at": "2026-11-21T12:00:00+00:00", "place": {"device": "another", "sharing_mode": place[1]}}
    Profiles(engine).add([document, newer, other], "imported")
    assert [timing["mean"] for timing in reader.solo_timings("bert/cpu/training/8", place)] == [0.2, 0.1]
    assert reader.solo_timings("bert/cpu/training/16", place) == []


def test_what_is_read_together_takes_one_connection(
    recorder: Recorder, reader: Reader, engine: Engine, redis_client: "redis.Redis"
) -> None:
    emit(redis_client, *life("a"))
    recorder.drain()
    taken: list[object] = []

    def count(*given: object) -> None:
        taken.append(given)

    happening.listen(engine, "checkout", count)
    with reader.together() as one:
        found = (
            one.invocation("default", "a"),
            one.executions("default", "a"),
            one.totals("default"),
            one.closed(["j1"]),
        )
    happening.remove(engine, "checkout", count)
    assert len(taken) == 1
    assert found == (reader.invocation("default", "a"), reader.executions("default", "a"), reader.totals("default"), {})


def test_pages_of_invocations(recorder: Recorder, reader: Reader, redis_client: "redis.Redis") -> None:
    emit(redis_client, *(arrived(f"i{number}") for number in range(5)), settled("i1"))
    recorder.drain()

    first, cursor = reader.invocations("default", limit=3)
    rest, end = reader.invocations("default", limit=3, cursor=cursor)
    assert [row.id for row in [*first, *rest]] == ["i4", "i3", "i2", "i1", "i0"]
    assert end is None
    assert [row.id for row in reader.invocations("default", state=State.SUCCEEDED)[0]] == ["i1"]
    assert reader.invocations("default", function="other") == ([], None)
    assert reader.invocations("vision") == ([], None)


def test_postgres_away_loses_nothing(
    recorder: Recorder, reader: Reader, engine: Engine, redis_client: "redis.Redis"
) -> None:
    emit(redis_client, arrived("a"))
    away = make_engine("postgresql://smore@/smore?host=/nowhere", "tests")
    RECORD_LAG.set(-1)
    with pytest.raises(OperationalError):
        Recorder(away, redis_client, PREFIX).drain()
    away.dispose()
    assert RECORD_LAG._value.get() >= 0, "the lag is told when it matters"
    recorder.drain()
    emit(redis_client, arrived("b"))
    with engine.begin() as connection:  # what a restart does to the pooled connections
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname ="
                " current_database()"
            )
        )

    assert recorder.drain() == 1
    assert len(reader.invocations("default")[0]) == 2


def test_a_connection_that_breaks_in_the_middle_is_tried_again(
    recorder: Recorder, reader: Reader, engine: Engine, redis_client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    emit(redis_client, *life("a"))
    read = Recorder._read

    def cut(self: Recorder, cursor: str, limit: int) -> list[tuple[str, bytes]]:
        with engine.begin() as other:
            other.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'")
            )
        return read(self, cursor, limit)

    monkeypatch.setattr(Recorder, "_read", cut)
    with pytest.raises(OperationalError):
        recorder.drain()
    monkeypatch.undo()

    assert recorder.drain() == 5
    assert reader.invocation("default", "a").state is State.SUCCEEDED


def test_two_recorders_do_not_write_twice(recorder: Recorder, engine: Engine, redis_client: "redis.Redis") -> None:
    emit(redis_client, *life("a"))
    recorder.drain()
    emit(redis_client, arrived("b"))
    with engine.begin() as connection:
        connection.execute(text("SELECT FROM stream_cursor FOR UPDATE"))
        assert Recorder(engine, redis_client, PREFIX).drain() == 0
    assert Recorder(engine, redis_client, PREFIX).drain() == 1


def test_retain_drops_what_is_old(
    recorder: Recorder, reader: Reader, engine: Engine, redis_client: "redis.Redis"
) -> None:
    now = time.time_ns() // 1000
    emit(
        redis_client, arrived("new", now), *life("new")[1:], arrived("old", now - 3 * 86_400_000_000), dispatched("old")
    )
    redis_client.xadd(f"{PREFIX}ev", {"e": encode(arrived("newer", now))})
    recorder.drain()
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE invocations SET arrival_at = to_timestamp(:now) WHERE id = 'new'"), {"now": now / 1e6}
        )
        old = "(SELECT decision_id FROM executions WHERE invocation = 'old')"
        connection.execute(text(f"UPDATE decisions SET id = id - (3 * 86400000::bigint << 20) WHERE id = {old}"))

    assert retain(engine, 2.0) == 2  # the invocation and its decision
    assert [row.id for row in reader.invocations("default")[0]] == ["newer", "new"]
    assert reader.executions("default", "old") == []
    assert 2 in reader.decisions("default", "new")
    assert len(arrivals(engine)) == 3
    assert retain(engine, 2.0) == 0
    assert (
        retain(engine, 2.0, minutes_days=2.0) == 2 + 2 + 2 + 1
    )  # arrivals; what ended and how it began, by minute and hour; what was harvested


def test_what_is_too_large_loses_its_oldest_rows_and_keeps_its_minutes(
    recorder: Recorder, reader: Reader, engine: Engine, redis_client: "redis.Redis"
) -> None:
    ids = [f"{number:04d}" for number in range(1000)]
    for number, id_ in enumerate(ids):
        emit(
            redis_client,
            *(
                msgspec.structs.replace(event, **later(event, number * 1_000_000))
                for event in (arrived(id_), settled(id_))
            ),
        )
    recorder.drain()
    with driver(engine) as connection:
        new = measure(connection)
    assert new.invocations == 1000, "counted: there are no statistics yet"
    assert retain(engine, 1e5) == 0, "nothing is too old, nothing too large"
    totals, minutes = reader.totals("default"), table(engine, "function_minutes")
    with driver(engine) as connection:
        size = measure(connection)
    assert size.invocations == 1000
    assert new.as_of is not None and size.as_of is not None
    assert 0 < size.bytes <= size.file_bytes
    before = RETIRED.labels("invocations")._value.get()

    deleted = retain(engine, 1e5, most_bytes=size.bytes / 2)

    left = [row.id for row in reversed(reader.invocations("default", limit=1000)[0])]
    assert left == ids[-len(left) :]
    assert len(left) == 1000 - deleted
    assert 400 < len(left) < 500, "half of it, and some room"
    assert RETIRED.labels("invocations")._value.get() == before + deleted
    assert retain(engine, 1e5, most_bytes=size.bytes / 2) == 0, "what the files have kept is not counted again"
    assert (reader.totals("default"), table(engine, "function_minutes")) == (totals, minutes)


@pytest.mark.parametrize(("known", "degradation"), [(True, 0.5), (False, None)])
def test_what_is_compared_with_an_assumed_time_is_no_measurement(
    recorder: Recorder, reader: Reader, redis_client: "redis.Redis", known: bool, degradation: float | None
) -> None:
    """A run of 12.5 ms, of which the decision expected another time alone: of a table, or what was declared."""
    candidate = {"gpu": "cpu0", "run_s": 0.0125 / 1.5} | ({"known": True} if known else {})
    decision = json.dumps({"v": 1, "policy": "spine", "candidates": [candidate]})
    warm = json.dumps(json.loads(META) | {"cold": False})
    emit(redis_client, arrived("a"), dispatched("a", decision=decision), settled("a", meta=warm))
    recorder.drain()
    (run,) = reader.executions("default", "a")
    assert run.degradation == (None if degradation is None else pytest.approx(degradation))
