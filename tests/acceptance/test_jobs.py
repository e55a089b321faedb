"""Trainings that wait their turn, on a whole platform."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from smore import local
from smore.redis.job_queue import JobQueue
from tests.support.cli import smore
from tests.support.eventually import eventually
from tests.support.whole_platform import STRICT, Platform, second_worker

pytestmark = pytest.mark.acceptance

ENVIRONMENT = STRICT


@pytest.fixture
def http(platform: Platform) -> httpx.Client:
    return httpx.Client(base_url=platform.url, headers={"Authorization": f"Bearer {platform.key}"}, timeout=30)


def test_trainings_run_one_after_the_other_whoever_is_away(
    platform: Platform, http: httpx.Client, tmp_path: Path
) -> None:
    """
    Each writes down when it begins and ends. The process that decides is killed, then Postgres, then Redis is stopped
    while one runs and others wait: each runs once, the one that fails twice, and never two at a time.
    """
    marks, doors = tmp_path / "marks", {name: tmp_path / name for name in ("long", "short")}

    def start(name: str, then: str, **asked: Any) -> str:
        script = f"echo {name} >> {marks}; {then}; echo end >> {marks}"
        made = http.post("/v1/jobs", json={"name": name, "argv": ["sh", "-c", script], "cwd": "/tmp"} | asked)
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def job(id_: str) -> dict[str, Any]:
        answer = http.get(f"/v1/jobs/{id_}")
        return dict(answer.json()) if answer.status_code == 200 else {"state": "", "outcome": ""}

    def lines() -> list[str]:
        return marks.read_text().split() if marks.exists() else []

    def ends_without(name: str, server: str) -> list[str]:
        """A training ends while a server is away; what was there then."""
        local.stop(platform.home, server)
        doors[name].touch()
        eventually(lambda: lines()[-1] == "end", what=f"the end of {name}")
        there = lines()
        answer = http.post("/v1/jobs", json={"name": "refused", "argv": ["true"], "cwd": "/tmp"})
        assert (answer.status_code, answer.headers.get("retry-after")) == (503, "1"), answer.text
        assert lines() == there, "nothing is started"
        local.start(platform.home, server)
        return there

    waits = {name: f"while ! test -e {door}; do sleep 0.05; done" for name, door in doors.items()}
    frail = start("frail", f"echo end >> {marks}; exit 3", restarts=1)
    long = start("long", waits["long"])
    eventually(lambda: "long" in lines(), 20, "a start")
    short = start("short", waits["short"])
    assert job(short)["state"] == "queued", http.get("/v1/jobs/queue").json()
    leader = JobQueue(platform.redis, "smore:").leader()
    os.kill(int(leader.split(":")[1]), signal.SIGKILL)
    eventually(lambda: JobQueue(platform.redis, "smore:").leader() not in ("", leader), 20, "another leader")
    assert (job(long)["state"], job(short)["state"]) == ("running", "queued")

    assert "short" not in ends_without("long", "postgres")
    eventually(lambda: "short" in lines(), 30, "a start after Postgres is back")
    last = start("last", "true")
    assert "last" not in ends_without("short", "redis")
    everyone = (frail, long, short, last)
    eventually(lambda: {job(id_)["state"] for id_ in everyone} == {"ended"}, 40, "the ends")

    assert [job(id_)["outcome"] for id_ in everyone] == ["failed", "succeeded", "succeeded", "succeeded"]
    assert sorted(lines()[::2]) == ["frail", "frail", "last", "long", "short"]
    assert lines()[1::2] == ["end"] * 5, "never two at a time"
    attempts = http.get(f"/v1/jobs/{frail}/attempts").json()["attempts"]
    assert [(one["why"], one["exit_code"]) for one in attempts] == [("failed", 3), ("failed", 3)]
    for id_ in (long, short, last):
        assert len(http.get(f"/v1/jobs/{id_}/attempts").json()["attempts"]) == 1


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


def test_a_gang_that_loses_a_rank_goes_on_from_its_checkpoint(platform: Platform, http: httpx.Client) -> None:
    """Two ranks over gloo on two GPU instances, of which one is killed; the second attempt makes what was left."""
    words = ["zoo.train", "--model", "mobilenet", "--batch", "1", "--input-wait", "none", "--checkpoint-every", "5"]
    wanted = {"count": 2, "iterations": 120, "restarts": 1, "env": {"OMP_NUM_THREADS": "1"}}
    seen: list[int] = []

    def shown() -> dict[str, Any]:
        told = dict(http.get(f"/v1/jobs/{gang}").json())
        seen.append(told["iterations"])
        return told

    with second_worker(platform):
        answer = http.post("/v1/jobs", json={"name": "gang", "argv": words, **wanted})
        assert answer.status_code == 201, answer.text
        gang = answer.json()["id"]
        folder = platform.home / "checkpoints" / gang / "1"
        eventually(lambda: [*folder.glob("checkpoint-*.pt")], 60, "a checkpoint")
        [rank] = [job for report in platform.reports() for job in report.jobs if (job.id, job.rank) == (gang, 1)]
        os.kill(rank.pid, signal.SIGKILL)
        over = eventually(lambda: told if (told := shown())["state"] == "ended" else None, 90, "its end")

    assert (over["outcome"], over["attempt"], over["restarted"], over["iterations"]) == ("succeeded", 2, 1, 120)
    assert seen == sorted(seen), "iterations only grow"
    first, second = http.get(f"/v1/jobs/{gang}/attempts").json()["attempts"]
    assert (first["why"], first["exit_code"], first["iterations_from"]) == ("failed", -signal.SIGKILL, 0)
    assert (second["why"], second["exit_code"], second["iterations"]) == ("succeeded", 0, 120)
    assert 5 <= second["iterations_from"] < 120
    statement = http.get(f"/v1/jobs/{gang}/statement").json()
    moments = [statement["since"], first["ended_at"], second["started_at"], statement["until"]]
    assert moments == sorted(moments), "the statement is of both attempts"
