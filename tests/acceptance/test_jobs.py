"""Trainings that wait their turn, on a whole platform with one GPU instance."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from smore.redis.job_queue import JobQueue
from tests.support.cli import smore
from tests.support.eventually import eventually
from tests.support.whole_platform import STRICT, Platform

pytestmark = pytest.mark.acceptance

ENVIRONMENT = STRICT


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


def test_an_owner_sees_why_a_training_waits_and_reads_what_it_prints(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command line alone, from a script of one's own to its statement."""
    monkeypatch.setenv("SMORE_URL", platform.url)
    monkeypatch.setenv("SMORE_API_KEY", platform.key)
    monkeypatch.chdir(tmp_path)
    go_on = tmp_path / "go-on"
    script = tmp_path / "train.sh"
    script.write_text(
        f'#!/bin/sh\necho begins in "$PWD" with $1\nwhile ! test -e {go_on}; do sleep 0.05; done\necho ends\n'
    )
    script.chmod(0o755)

    def says(*words: str) -> str:
        assert smore("jobs", *words) == 0, capsys.readouterr()
        return " ".join(" ".join(capsys.readouterr()).split())

    eventually(lambda: platform.client.job_queue().leading, what="a job scheduler")
    says("start", "own", "--", "./train.sh", "7")
    eventually(lambda: f"own is running on {platform.gpu}" in says("explain", "own"), what="a start")
    for name in ("second", "third"):
        says("start", name, "--duration", "1m", "--", "./train.sh", name)
    eventually(lambda: "third waits in place " in says("explain", "third"), what="a place")
    assert "would wait in place" in says("start", "fourth", "--dry-run", "--", "./train.sh")
    assert smore("jobs", "start", "wide", "--dry-run", "--gpus", "9", "--", "./train.sh") == 1
    assert "There are 1 such GPU instances" in capsys.readouterr().err
    assert "none is free; 1 busy" in says("explain", "second")
    says("move", "third", "--first")
    says("hold", "second")
    eventually(lambda: "it is held" in says("explain", "second").lower(), what="the queue to say it")
    queue = says("queue")
    assert queue.index("own") < queue.index("third") < queue.index("second")
    eventually(lambda: f"begins in {tmp_path} with 7" in says("logs", "own"), what="a line")
    go_on.touch()
    assert says("logs", "own", "-f").endswith("ends")
    says("release", "second")
    says("stop", "second")
    eventually(lambda: "second ended" in says("ls"), what="its end")
    assert "budget 10 %" in says("statement", "own")
    assert "succeeded" in says("explain", "own")
