"""
Batches that come before the run ahead of them has ended, in real processes: each begins at that run's end, and each way
in which it cannot gives it back as if it had never been sent.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smore.domain.function import OnLate
from smore.messages.commands import Cancel
from smore.redis.records import FIELDS
from tests.support.eventually import eventually
from tests.support.worker_stage import PREFIX, Bench, RedisProcess, bench
from worker import proc

HERE = "tests.support.handlers"
#: Seconds for which a batch waits here, where the test does not end its wait.
LONG_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    one = RedisProcess(tmp_path_factory.mktemp("redis"))
    one.start()
    yield one
    one.stop()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, server: RedisProcess) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("home"), server) as one:
        yield one


def behind(stage: Bench, function: str, payload: object, ahead_s: float = LONG_S, **request: Any) -> str:
    """One that is sent ahead; returns once the worker has it."""
    id_ = stage.enqueue(function, json.dumps(payload).encode(), **request)
    stage.dispatch(function, [id_], ahead_s)
    eventually(lambda: not stage.client.llen(f"{PREFIX}gpu.t0"), what="it is taken")
    time.sleep(0.1)
    assert stage.record(id_).state == "dispatched"
    return id_


def running(stage: Bench, function: str, payload: object) -> str:
    id_ = stage.enqueue(function, json.dumps(payload).encode())
    stage.dispatch(function, [id_])
    stage.state(id_, "running")
    return id_


def given_back(stage: Bench, id_: str) -> None:
    """As if it had never been sent: neither an attempt nor a lost dispatch."""
    record = stage.state(id_, "queued")
    assert record.starts == 0
    assert stage.client.hget(f"{PREFIX}i:p:{id_}", FIELDS["lost"]) in (None, b"0")


def test_it_begins_where_the_run_ahead_of_it_ends(stage: Bench) -> None:
    function = stage.function("zoo.misbehave:Sleep", "next")
    stage.call(function, {"s": 0.0})
    first = running(stage, function, {"s": 1.5})
    second = behind(stage, function, {"s": 0.0, "n": 2})
    third = behind(stage, function, {"s": 0.0, "n": 3})
    one, (two, result) = stage.ended(first)[0], stage.ended(second)
    assert (two.state, two.starts, json.loads(result.body)) == ("succeeded", 1, {"s": 0.0, "n": 2})
    assert not result.cold and result.load_us == 0
    assert two.started_us >= one.started_us + 1_500_000, "no time of waiting is time of running"
    assert stage.ended(third)[0].state == "succeeded"
    assert sum(name == "next" for name, _ in stage.warm()) == 1


def test_it_waits_no_longer_than_it_may(stage: Bench) -> None:
    function = stage.function("zoo.misbehave:Sleep", "overdue", max_warm=2)
    stage.call(function, {"s": 0.0})
    first = running(stage, function, {"s": 1.5})
    second = behind(stage, function, {"s": 0.0}, 0.2)
    given_back(stage, second)
    assert stage.record(first).state == "running"
    assert sum(name == "overdue" for name, _ in stage.warm()) == 1, "nothing is loaded for it"
    stage.dispatch(function, [second])
    assert stage.ended(second)[0].starts == 1


@pytest.mark.parametrize("end", ["crash", "time out", "cancel"])
def test_an_end_of_the_run_ahead_that_ends_its_runner_gives_it_back(stage: Bench, end: str) -> None:
    function = stage.function(f"{HERE}:Fragile", end.replace(" ", "-"), timeout_s=1.0 if end == "time out" else 60.0)
    first = running(stage, function, {"do": "hang"})
    pid = eventually(lambda: stage.said(function, "hangs"), what="it runs")
    second = behind(stage, function, {"do": "print"})
    if end == "crash":
        os.kill(pid, signal.SIGKILL)
    elif end == "cancel":
        stage.fleet.send("t0", Cancel(version=1, function=function, id=first, attempt=1))
    given_back(stage, second)
    eventually(lambda: proc.start_time(pid) is None, what="the runner is gone")
    stage.dispatch(function, [second])
    assert stage.ended(second)[0].state == "succeeded"


def test_one_that_is_cancelled_meanwhile_ends_at_once_and_its_result_is_dropped(stage: Bench) -> None:
    function = stage.function("zoo.misbehave:Sleep", "gone")
    stage.call(function, {"s": 0.0})
    first = running(stage, function, {"s": 0.5})
    second = behind(stage, function, {"s": 0.0})
    assert stage.queue._call("cancel", project="p", id=second, result=b"", only_waiting=0)[0] == b"cancelled"
    assert stage.record(second).state == "cancelled"
    assert stage.ended(first)[0].state == "succeeded"
    record, result = stage.call(function, {"s": 0.0})
    assert (record.state, result.cold) == ("succeeded", False), "the runner lives"
    assert (stage.record(second).state, stage.record(second).starts) == ("cancelled", 0)


def test_one_that_is_late_by_then_is_given_back(stage: Bench) -> None:
    function = stage.function("zoo.misbehave:Sleep", "late", on_late=OnLate.DROP)
    stage.call(function, {"s": 0.0})
    running(stage, function, {"s": 2.0})
    given_back(stage, behind(stage, function, {"s": 0.0}, slo_us=400_000))


def test_reports_meanwhile_do_not_take_it_for_a_run(stage: Bench) -> None:
    """A report that named it would be told that it is another's."""
    function = stage.function("zoo.misbehave:Sleep", "quiet")
    stage.call(function, {"s": 0.0})
    running(stage, function, {"s": 2.0})
    second, seen = behind(stage, function, {"s": 0.0}), stage.report().at
    eventually(lambda: stage.report().at > seen + 0.3, what="further reports")
    assert stage.record(second).state == "dispatched"
    assert stage.ended(second)[0].state == "succeeded"


def test_a_worker_that_drains_gives_it_back_and_one_that_is_killed_loses_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = RedisProcess(tmp_path / "redis")
    server.home.mkdir()
    server.start()
    try:
        with bench(tmp_path_factory.mktemp("other"), server) as stage:
            function = stage.function("zoo.misbehave:Sleep", "sleep")
            stage.call(function, {"s": 0.0})
            first = running(stage, function, {"s": 2.0})
            second = behind(stage, function, {"s": 0.0})
            assert stage.stop() == 0
            given_back(stage, second)
            assert stage.record(first).state == "succeeded"

            stage.start()
            stage.call(function, {"s": 0.0})
            running(stage, function, {"s": 30.0})
            stage.dispatch(function, [second], LONG_S)
            eventually(lambda: not stage.client.llen(f"{PREFIX}gpu.t0"), what="it is taken")
            stage.kill()
            stage.start()
            assert stage.state(second, "queued").starts == 0
            stage.dispatch(function, [second])
            assert stage.ended(second)[0].starts == 1
    finally:
        server.stop()
