"""Instances are kept ready on a real platform: asked for, used, killed, let go of, and accounted for."""

import os
import signal
from collections.abc import Callable

import httpx
import pytest

from smore.client import Prewarm, PrewarmFunction
from smore.fleet import WarmState
from tests.acceptance.conftest import Platform
from tests.eventually import eventually

NAME = "kept"


@pytest.fixture(scope="module")
def kept(platform: Platform) -> Platform:
    """A function whose idle instances go at once, and nobody foresees anything."""
    platform.deploy(NAME, "zoo.echo:Function", scaling={"keep_alive": 0, "prewarm": "off"})
    eventually(lambda: not platform.runner_pids(NAME), what="the end of the canary's instance")
    return platform


def idle(platform: Platform, name: str = NAME) -> int:
    """The process of the instance that stands ready, 0 = none does."""
    warm = [one for report in platform.reports() for one in report.warm if one.function == f"default/{name}"]
    return next((one.pid for one in warm if one.state is WarmState.IDLE), 0)


def said(platform: Platform, holds: Callable[[PrewarmFunction], bool], what: str) -> PrewarmFunction:
    """What the platform says of it, once that is recorded."""

    def look() -> PrewarmFunction | None:
        found = next((one for one in platform.client.prewarm().functions if one.function == NAME), None)
        return found if found is not None and holds(found) else None

    return eventually(look, 20, what)


def test_without_it_every_start_is_cold(kept: Platform) -> None:
    for _ in range(2):
        kept.client.invoke(NAME, {"x": 1})
        eventually(lambda: not kept.runner_pids(NAME), what="the end of the instance")
    found = said(kept, lambda one: one.counts.cold >= 2, "two cold starts")
    assert (found.mode, found.silence, found.wanted) == ("off", "off", 0)
    assert found.counts.unforeseen["off"] >= 1
    assert found.counts.hits == 0


def test_min_warm_keeps_one_ready_and_its_use_is_a_hit(kept: Platform) -> None:
    kept.client.set_scaling(NAME, {"min_warm": 1})
    before = kept.client.prewarm().counts.cold
    pid = eventually(lambda: idle(kept), what="an instance that stands ready")
    for _ in range(3):
        kept.client.invoke(NAME, {"x": 1})
    found = said(kept, lambda one: one.counts.hits == 1 and one.loaded == 1, "the hit")
    # A keep-alive of nothing, and it has stayed.
    assert (idle(kept), found.wanted, found.unmet) == (pid, 1, False)
    assert found.counts.cold == before
    assert found.counts.saved >= 1


def test_a_killed_worker_is_accounted_for_and_the_instance_comes_back(kept: Platform) -> None:
    os.kill(kept.pid("worker-cpu0"), signal.SIGKILL)
    pid = idle(kept)
    eventually(lambda: idle(kept) not in (0, pid), 30, "another instance")
    found = said(kept, lambda one: one.counts.open >= 1, "the new one")
    assert found.counts.hits == 1


def test_knobs_are_checked_by_name(kept: Platform) -> None:
    headers = {"Authorization": f"Bearer {kept.key}"}
    answer = httpx.patch(f"{kept.url}/v1/functions/{NAME}", json={"scaling": {"prewarm": "later"}}, headers=headers)
    assert (answer.status_code, answer.json()["field"]) == (422, "scaling.prewarm")


def test_a_deleted_function_is_unloaded(kept: Platform) -> None:
    pid = idle(kept)
    kept.client.delete(NAME)
    eventually(lambda: not kept.runner_pids(NAME), what="the end of the instance")

    def gone() -> Prewarm | None:
        found = kept.client.prewarm()
        (one,) = (one for one in found.functions if one.function == NAME)
        return found if one.counts.wasted >= 1 and not one.counts.open else None

    assert pid
    assert eventually(gone, 20, "its end in the account").counts.wasted_gb_s > 0
