"""What ended, counted when it is recorded: sums as the Open Inference Protocol tells them, and minutes."""

import json
from typing import Any

import pytest
import redis
from sqlalchemy import Engine, text

from lab.bench.history_counts import COUNTS
from smore.messages import stream
from smore.messages.stream import encode
from smore.postgres.history.reader import Reader
from smore.postgres.history.recorder import Recorder
from smore.postgres.history.values import BatchTotal

PREFIX = "smore:"
#: Microseconds; a minute begins there.
T0 = 1_790_000_040_000_000


def at(seconds: float) -> int:
    return T0 + int(seconds * 1e6)


def ended(id_: str, state: str = "succeeded", *, run: dict[str, Any] | None = None, **more: Any) -> stream.Settled:
    """Arrived at 0, claimed at 0.5, started at 1, ended at 3 seconds, in time where that is before 9."""
    fields: dict[str, Any] = {
        "version": 1,
        "function": "default/f",
        "revision": 1,
        "id": id_,
        "attempt": 1,
        "starts": 1,
        "state": state,
        "cause": "",
        "gpu": "cpu0",
        "arrival_us": T0,
        "deadline_us": at(9),
        "claimed_us": at(0.5),
        "started_us": at(1),
        "finished_us": at(3),
        "rows": 1,
        "key_id": "",
        "trace": "",
        "schedule_us": 0,
        "meta": "" if run is None else json.dumps(run),
    }
    return stream.Settled(**fields | more)


def arrived(id_: str) -> stream.Arrived:
    return stream.Arrived(1, "default/f", 1, id_, T0, at(9), 1, "", "", "")


#: Two in one batch of three rows, then one alone, which had failed an attempt before; one that was late; some that did
#: not run.
LIVES = (
    arrived("a"),
    ended(
        "a",
        run={
            "run_ms": 500,
            "batch": 2,
            "rows": 3,
            "jobs": ["j"],
            "cold": True,
            "load_ms": {"weights": 200, "first": 50},
        },
    ),
    ended("b", rows=2, run={"run_ms": 500, "batch": 2, "rows": 3, "jobs": ["j"], "cold": True}),
    stream.Returned(1, "default/f", 1, "c", 1, "worker_lost", "cpu0", at(2), T0, at(9), 1, "", 0),
    ended("c", attempt=2, finished_us=at(12), run={"run_ms": 250, "batch": 1, "rows": 1}),
    ended("d", "expired", gpu="", started_us=0, claimed_us=0),
    arrived("e"),
    ended("f", revision=2),
    ended("g", function="default/g"),
    ended("h", function="other/f", finished_us=at(63)),
)


def tell(client: "redis.Redis", *events: stream.Event) -> None:
    for event in events:
        client.xadd(f"{PREFIX}ev", {"e": encode(event)})


def kept(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """The tables that are counted, without ids of anything."""
    with engine.connect() as connection:
        return {
            name: sorted(tuple(row) for row in connection.execute(text(f"SELECT * FROM {name}")))
            for name in ("function_minutes", "function_totals", "job_harvest", "run_starts")
        }


@pytest.mark.parametrize("limit", [1, 100])
def test_each_batch_counts_once_and_each_invocation_once(
    engine: Engine, redis_client: "redis.Redis", limit: int
) -> None:
    tell(redis_client, *LIVES)
    recorder = Recorder(engine, redis_client, PREFIX)
    while recorder.drain(limit):
        pass
    first, second = Reader(engine).totals("default", "f")

    assert (first.revision, first.succeeded, first.failed, first.rows) == (1, 3, 1, 4)
    assert (first.total_s, first.failed_s, first.wait_s) == pytest.approx((18.0, 3.0, 3.0))
    assert first.run_s == pytest.approx(1.25)
    assert first.batches == (BatchTotal(rows=1, batches=1, run_s=0.25), BatchTotal(rows=3, batches=1, run_s=0.5))
    assert first.last_at == at(12) / 1e6
    assert (second.revision, second.succeeded, second.run_s, second.batches) == (2, 1, 0.0, ())
    assert [one.function for one in Reader(engine).totals("default")] == ["f", "f", "g"]
    assert Reader(engine).totals("nobody") == []


def test_minutes_tell_what_ended_in_them(engine: Engine, redis_client: "redis.Redis") -> None:
    tell(redis_client, *LIVES)
    Recorder(engine, redis_client, PREFIX).drain()
    with engine.connect() as connection:
        query = (
            "SELECT * FROM function_minutes WHERE function = 'f' AND revision = 1 AND project = 'default' AND gpu ="
            " 'cpu0'"
        )
        (one,) = connection.execute(text(query)).mappings()
    assert (one["minute"].timestamp(), one["succeeded"], one["failed"], one["met"]) == (T0 / 1e6, 3, 0, 2)
    assert (one["ran"], one["cold"], one["rows"]) == (3, 2, 4)
    seconds = {name: one[name] for name in ("total_s", "failed_s", "wait_s", "run_s", "load_s", "worst_s")}
    assert seconds == pytest.approx(
        {"total_s": 18.0, "failed_s": 0.0, "wait_s": 3.0, "run_s": 0.75, "load_s": 0.25, "worst_s": 12.0}
    )


def test_the_benchmark_counts_as_the_recorder_does(engine: Engine, redis_client: "redis.Redis") -> None:
    tell(redis_client, *LIVES)
    Recorder(engine, redis_client, PREFIX).drain()
    with engine.begin() as connection:
        # The benchmark makes no histograms.
        connection.execute(text("UPDATE function_minutes SET wholes = NULL"))
    counted = kept(engine)
    assert all(counted.values())
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE function_minutes, function_totals, job_harvest, run_starts"))
        for statement in COUNTS:
            connection.exec_driver_sql(statement)

    assert kept(engine) == counted
