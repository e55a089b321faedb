"""Trainings that wait their turn, on a whole platform with one GPU instance."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from smore.redis.job_queue import JobQueue
from tests.support.eventually import eventually
from tests.support.whole_platform import Platform

pytestmark = pytest.mark.acceptance


@pytest.fixture
def http(platform: Platform) -> httpx.Client:
    return httpx.Client(base_url=platform.url, headers={"Authorization": f"Bearer {platform.key}"}, timeout=30)


def test_trainings_run_one_after_the_other_and_outlive_their_scheduler(
    platform: Platform, http: httpx.Client, tmp_path: Path
) -> None:
    """
    Each writes down when it begins and ends. The process that decides is killed while one runs and others wait: each runs
    once, the one that fails twice, and never two at a time.
    """
    marks, go_on = tmp_path / "marks", tmp_path / "go-on"

    def start(name: str, then: str, **asked: Any) -> str:
        script = f"echo {name} >> {marks}; {then}; echo end >> {marks}"
        made = http.post("/v1/jobs", json={"name": name, "argv": ["sh", "-c", script], "cwd": "/tmp"} | asked)
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def state(id_: str) -> str:
        return str(http.get(f"/v1/jobs/{id_}").json()["state"])

    def lines() -> list[str]:
        return marks.read_text().split() if marks.exists() else []

    frail = start("frail", f"echo end >> {marks}; exit 3", restarts=1)
    long = start("long", f"while ! test -e {go_on}; do sleep 0.05; done")
    eventually(lambda: "long" in lines(), 20, "a start")
    short = start("short", "true")
    queue = http.get("/v1/jobs/queue").json()
    assert state(short) == "queued", queue
    leader = JobQueue(platform.redis, "smore:").leader()
    os.kill(int(leader.split(":")[1]), signal.SIGKILL)
    eventually(lambda: JobQueue(platform.redis, "smore:").leader() not in ("", leader), 20, "another leader")
    assert (state(long), state(short)) == ("running", "queued")
    go_on.touch()
    eventually(lambda: {state(job) for job in (frail, long, short)} == {"ended"}, 40, "the ends")

    outcomes = [http.get(f"/v1/jobs/{job}").json()["outcome"] for job in (frail, long, short)]
    assert outcomes == ["failed", "succeeded", "succeeded"]
    assert sorted(lines()[::2]) == ["frail", "frail", "long", "short"]
    assert lines()[1::2] == ["end"] * 4, "never two at a time"
    attempts = http.get(f"/v1/jobs/{frail}/attempts").json()["attempts"]
    assert [(one["why"], one["exit_code"]) for one in attempts] == [("failed", 3), ("failed", 3)]
