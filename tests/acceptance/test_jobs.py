"""Trainings that wait their turn, on a whole platform."""

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from lab.bench.servers import pid_of, supervisor
from smore.messages.reports import JobReport
from smore.redis.job_queue import JobQueue
from smore.redis.tables import Tables
from tests.support.cli import smore
from tests.support.eventually import eventually
from tests.support.tables import of_trainings
from tests.support.whole_platform import ROOT, STRICT, Platform, second_worker

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
        supervisor(platform.home).stop(server)
        doors[name].touch()
        eventually(lambda: lines()[-1] == "end", what=f"the end of {name}")
        started = lines()
        answer = http.post("/v1/jobs", json={"name": "refused", "argv": ["true"], "cwd": "/tmp"})
        assert (answer.status_code, answer.headers.get("retry-after")) == (503, "1"), answer.text
        assert lines() == started, "nothing is started"
        supervisor(platform.home).start(server)
        return started

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
    words = ["zoo.train", "--model", "mobilenet", "--batch", "1", "--input-wait", "none", "--checkpoint-every", "3"]
    wanted = {"count": 2, "iterations": 24, "restarts": 1, "env": {"OMP_NUM_THREADS": "1"}}
    seen: list[int] = []

    def shown() -> dict[str, Any]:
        job = dict(http.get(f"/v1/jobs/{gang}").json())
        seen.append(job["iterations"])
        return job

    with second_worker(platform):
        answer = http.post("/v1/jobs", json={"name": "gang", "argv": words, **wanted})
        assert answer.status_code == 201, answer.text
        gang = answer.json()["id"]
        folder = platform.home / "checkpoints" / gang / "1"
        eventually(lambda: [*folder.glob("checkpoint-*.pt")], 60, "a checkpoint")
        [rank] = [job for report in platform.reports() for job in report.jobs if (job.id, job.rank) == (gang, 1)]
        os.kill(rank.pid, signal.SIGKILL)
        over = eventually(lambda: job if (job := shown())["state"] == "ended" else None, 90, "its end")

    assert (over["outcome"], over["attempt"], over["restarted"], over["iterations"]) == ("succeeded", 2, 1, 24)
    assert seen == sorted(seen), "iterations only grow"
    first, second = http.get(f"/v1/jobs/{gang}/attempts").json()["attempts"]
    # The other rank fails by itself when it loses its peer, and its worker may report first.
    assert first["exit_code"] in (-signal.SIGKILL, 1)
    assert (first["why"], first["iterations_from"]) == ("failed", 0)
    assert (second["why"], second["exit_code"], second["iterations"]) == ("succeeded", 0, 24)
    assert 3 <= second["iterations_from"] < 24
    statement = http.get(f"/v1/jobs/{gang}/statement").json()
    moments = [statement["since"], first["ended_at"], second["started_at"], statement["until"]]
    assert moments == sorted(moments), "the statement is of both attempts"


#: A linear model, trained by gradient descent. An iteration mostly waits for its input.
TRAINING = """
import time
import numpy as np
import smore

generator = np.random.default_rng(0)
inputs, weights = generator.normal(size=(256, 32)), np.zeros(32)
targets = inputs @ generator.normal(size=32)
with smore.track() as tracker:
    while True:
        time.sleep(0.02)
        weights -= 0.05 * inputs.T @ (inputs @ weights - targets) / len(inputs)
        tracker.step()
"""
#: What the table made by hand calls it.
PAIRED = "linear/cpu/training/256"


@pytest.fixture
def paired(platform: Platform) -> Iterator[None]:
    """
    A degradation table made by hand, a stand-in for one of measured rows: two of PAIRED slow each other by a tenth.
    Nothing is learned meanwhile, which would replace the table. Afterwards the former table is back.
    """
    [report, *_] = eventually(platform.reports, what="a report")
    tables = Tables(platform.redis, "smore:")
    with platform.unlearning():
        former = tables.current()
        made = of_trainings(report, {(PAIRED, PAIRED): 0.1}, alone_s={PAIRED: 0.02})
        tables.publish(replace(made, version=tables.version() + 1))
        yield
        if former is not None:
            tables.publish(former)
        else:
            platform.redis.delete("smore:degradation:table", "smore:degradation:version")


def test_two_trainings_share_a_gpu_instance_and_each_goes_on_without_the_other_and_without_their_worker(
    platform: Platform, http: httpx.Client, paired: None, tmp_path: Path
) -> None:
    """
    A function runs beside both. Then their worker is killed, the guest, which starts again beside its host, and the host.
    """
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    words = {"argv": [sys.executable, str(script)], "cwd": str(tmp_path), "env": {"OMP_NUM_THREADS": "1"}}
    asked = {**words, "workload": PAIRED, "memory": "256MiB", "share": 10, "budget": 0.5}

    def start(name: str, **more: Any) -> str:
        made = http.post("/v1/jobs", json={"name": name, **asked, **more})
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def of(id_: str, what: str = "") -> dict[str, Any]:
        return dict(http.get(f"/v1/jobs/{id_}{what}").json())

    def rank(id_: str, attempt: int = 1) -> JobReport:
        def reported() -> JobReport | None:
            jobs = [job for report in platform.reports() for job in report.jobs]
            return next((job for job in jobs if (job.id, job.attempt, job.state) == (id_, attempt, "running")), None)

        return eventually(reported, 30, "a rank")

    def have_grown(before: dict[tuple[str, int], JobReport]) -> bool:
        return all(rank(*each).iterations > was.iterations for each, was in before.items())

    def go_on(*ranks: tuple[str, int]) -> None:
        """All make iterations, in the same processes. Twice: the first may have been made before what was just done."""
        for _ in range(2):
            before = {each: rank(*each) for each in ranks}
            eventually(partial(have_grown, before), 30, "iterations")
            assert {each: rank(*each).pid for each in ranks} == {each: was.pid for each, was in before.items()}

    def lost_to(id_: str) -> list[tuple[str, bool]]:
        """To whom a statement says that it lost how much; whether it was that one's guest."""
        beside = of(id_, "/statement")["beside"]
        return [(other["name"], other["guest"]) for other in beside if other["loss"] is not None]

    eventually(lambda: platform.client.job_queue().leading, what="a job scheduler")
    host = start("host", duration="2h")
    go_on((host, 1))
    guest = start("guest", duration="10m", restarts=1)
    go_on((host, 1), (guest, 1))
    eventually(lambda: "It runs beside host" in of(guest, "/explain")["summary"], what="an explanation")
    assert (of(guest)["expected"]["guest"], of(guest)["expected"]["beside"]) == (True, [host])

    platform.client.deploy(ROOT / "zoo/functions/echo.yaml")
    assert platform.client.invoke("echo", 7, deadline_ms=20_000).output == 7
    go_on((host, 1), (guest, 1))
    eventually(lambda: (lost_to(host), lost_to(guest)) == ([("guest", False)], [("host", True)]), 20, "statements")
    assert "beside host for " in of(guest, "/statement")["summary"]

    pids, worker = [rank(host).pid, rank(guest).pid], platform.pid(platform.worker)
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: pid_of(platform.home, platform.worker) not in (None, worker), 20, "another worker")
    go_on((host, 1), (guest, 1))
    assert [rank(host).pid, rank(guest).pid] == pids, "it has adopted both"

    os.kill(pids[1], signal.SIGKILL)
    go_on((host, 1), (guest, 2))
    assert of(guest)["expected"]["beside"] == [host]
    os.kill(pids[0], signal.SIGKILL)
    eventually(lambda: of(host)["outcome"] == "killed", 20, "its end")
    go_on((guest, 2))
    eventually(lambda: not of(guest)["expected"]["beside"], what="the queue to say it")
    assert rank(guest, 2).budget == 0.5, "what it promised to functions stays"
    assert [attempt["why"] for attempt in of(guest, "/attempts")["attempts"]] == ["failed", ""]
    assert [other["name"] for other in of(guest, "/statement")["beside"]] == ["host", "host"]
