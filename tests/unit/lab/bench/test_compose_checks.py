"""What counts as unhealthy and as a killed training after a step of lab.bench.compose."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lab.bench.compose import checks, run
from lab.bench.compose.checks import Checks, Figures
from lab.bench.compose.engine import Failed


class Clock:
    """Time that passes where somebody sleeps."""

    now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(checks, "asyncio", SimpleNamespace(sleep=made.sleep, to_thread=asyncio.to_thread))
    monkeypatch.setattr(checks, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def platform(record: dict[str, Any], unhealthy: list[list[str]]) -> Any:
    """``record``: of every job; ``unhealthy``: what the project answers, one after another, the last for good."""

    async def ask(method: str, path: str, **_: Any) -> dict[str, Any]:
        if record["state"] == "running":
            record["iterations"] += 1
        return {"id": "j", **record}

    async def ready() -> None:
        return None

    first = SimpleNamespace(unhealthy=lambda: unhealthy.pop(0) if len(unhealthy) > 1 else list(unhealthy[0]))
    return SimpleNamespace(first=first, second=None, ask=ask, ready=ready)


@pytest.mark.usefixtures("clock")
def test_a_service_that_comes_back_in_time_is_healthy_and_a_training_that_iterates_goes_on() -> None:
    figures = Figures()
    looked_at = Checks(platform({"state": "running", "iterations": 0}, [["redis is starting"], []]), figures)

    async def steps() -> None:
        await looked_at.train("node-cpu0")
        await looked_at.after("restart")

    asyncio.run(steps())
    assert (figures.values, figures.notes) == ({"unhealthy": 0, "jobs_killed": 0}, [])


@pytest.mark.usefixtures("clock")
def test_a_service_that_stays_down_and_a_training_that_ended_are_counted_and_named() -> None:
    figures, record = Figures(), {"state": "running", "iterations": 0}
    looked_at = Checks(platform(record, [["redis is exited"]]), figures)

    async def steps() -> None:
        await looked_at.train("node-cpu0")
        record["state"] = "lost"
        await looked_at.after("kill redis")
        await looked_at.after("kill beat")

    asyncio.run(steps())
    assert figures.values == {"unhealthy": 2, "jobs_killed": 1}
    assert figures.notes[0] == "kill redis: redis is exited"
    assert figures.notes[1].startswith("kill redis: training j: ")


@pytest.mark.parametrize(("exit_code", "killed"), [(0, 0), (1, 1)])
@pytest.mark.usefixtures("clock")
def test_a_training_that_is_to_end_must_end_in_order(exit_code: int, killed: int) -> None:
    figures = Figures()
    record = {"state": "running", "iterations": 0, "gpus": ["node-cpu0"], "exit_code": exit_code}
    looked_at = Checks(platform(record, [[]]), figures)

    async def steps() -> None:
        await looked_at.train("node-cpu0")
        record["state"] = "ended"
        await looked_at.trainings_ended("down", "second-cpu0")
        assert figures.values["jobs_killed"] == 0
        await looked_at.trainings_ended("down", "node-cpu0")
        await looked_at.after("down, up")

    asyncio.run(steps())
    assert figures.values == {"unhealthy": 0, "jobs_killed": killed}


def test_a_step_that_fails_is_counted_and_the_run_goes_on() -> None:
    figures = Figures()

    async def fails() -> None:
        raise Failed("no such command")

    async def finds() -> None:
        figures.count("unhealthy", ["restart: redis is exited"])

    async def passes() -> None:
        figures.count("secrets_seen", [])

    for name, step in (("update", fails), ("restart", finds), ("spy", passes)):
        asyncio.run(run.take(name, step, figures))
    assert figures.values["failed_steps"] == 1
    assert figures.notes[0] == "update: no such command"
    assert figures.steps == {"update": "failed", "restart": "failed", "spy": "ok"}
