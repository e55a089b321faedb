"""``smore jobs``: what it sends, what it prints."""

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import typer

from smore.cli import job_words, own_program
from tests.support.cli import PROBLEM, Serve, serve, smore

__all__ = ["serve"]


def test_a_job_takes_its_command_as_it_stands(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["POST /v1/jobs"] = (201, {"id": "j1"})
    assert smore("jobs", "start", "night", "--gpu", "cpu1", "--", "zoo.train", "--model", "bert") == 0
    assert platform.asked == [
        ("POST /v1/jobs", {"name": "night", "argv": ["zoo.train", "--model", "bert"], "env": {}, "gpus": ["cpu1"]})
    ]
    assert capsys.readouterr().out == "j1\n"


WAITS = {
    "place": 2,
    "start_at": "2026-01-31T14:00:00Z",
    "start_late_at": "2026-01-31T15:30:00Z",
    "end_at": "2026-01-31T16:00:00Z",
    "end_late_at": "2026-02-01T18:10:00Z",
    "length_s": 7200.0,
    "length_90_s": 9600.0,
    "source": "declared",
    "waited_s": 12.4,
    "why": "busy",
    "message": "It needs 2 GPU instances: 1 is free; 3 busy.",
}


def test_an_error_names_the_option_that_was_typed(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    refused = {"code": "invalid_input", "detail": "count: There are 2 such GPU instances.", "field": "count"}
    platform.answers["POST /v1/jobs"] = (422, refused)
    assert smore("jobs", "start", "night", "--gpus", "9", "--", "zoo.train") == 1
    assert capsys.readouterr().err.startswith("smore: --gpus: There are 2 such GPU instances.")


def test_who_starts_a_job_hears_where_it_runs_or_what_it_waits_for(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    platform = serve()
    asked = {
        "name": "night",
        "argv": ["zoo.train"],
        "env": {"A": "1=2", "TOKEN": {"secret": "HF_TOKEN"}},
        "count": 2,
        "duration": "2h",
        "restarts": 3,
        "grace": "30s",
    }
    words: tuple[str, ...] = ("--gpus", "2", "--duration", "2h", "--restarts", "3", "--grace", "30s", "--env", "A=1=2")
    words += ("--secret", "TOKEN=HF_TOKEN")
    for job, said in (
        ({"state": "running", "gpus": ["cpu0", "cpu1"]}, "night runs on cpu0, cpu1"),
        (
            {"state": "queued", "gpus": [], "expected": WAITS},
            f"night waits in place 2: {WAITS['message']} It is expected",
        ),
        ({"state": "queued", "gpus": []}, "nothing is decided about it yet: smore jobs explain night\n"),
    ):
        platform.answers["GET /v1/jobs/queue"] = (200, {"leading": True, "jobs": []})
        platform.answers["POST /v1/jobs"] = (201, {"id": "j1", "name": "night", **job})
        assert smore("jobs", "start", "night", *words, "--", "zoo.train") == 0
        assert ("POST /v1/jobs", asked) in platform.asked
        out, err = capsys.readouterr()
        assert out == "j1\n"
        assert said in err
    for queue, said in (
        (
            (200, {"leading": False, "refused": "SMORE_JOBS__POLICY: no", "jobs": []}),
            "leads now (SMORE_JOBS__POLICY: no),",
        ),
        (
            (200, {"leading": False, "jobs": []}),
            "no job scheduler leads now, and nothing starts until one does: smore health",
        ),
        ((403, PROBLEM | {"code": "forbidden"}), "nothing is decided about it yet"),
    ):
        platform.answers["GET /v1/jobs/queue"] = queue
        assert smore("jobs", "start", "night", *words, "--", "zoo.train") == 0
        out, err = capsys.readouterr()
        assert (out, said in err) == ("j1\n", True)
    platform.answers["POST /v1/jobs:dryRun"] = (200, {"gpus": [], "expected": WAITS})
    assert smore("jobs", "start", "night", *words, "--dry-run", "--", "zoo.train") == 0
    assert platform.asked[-1] == ("POST /v1/jobs:dryRun", asked)
    assert "would wait in place 2" in capsys.readouterr().out
    for wrong in (("--env", "A"), ("--iterations", "5", "--duration", "2h")):
        assert smore("jobs", "start", "night", *wrong, "--", "zoo.train") == 2


def test_an_own_program_gets_its_absolute_path_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here, there = "http://127.0.0.1:8400", "https://gpus.example"
    script, program = tmp_path / "train.py", tmp_path / "train"
    for file in (script, program):
        file.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    python = shutil.which("python") or shutil.which("python3")
    assert own_program.resolved(["zoo.train", "--lr", "1"], None, here) == (["zoo.train", "--lr", "1"], None)
    for given in ("./train.py", "train.py", str(script)):
        assert own_program.resolved([given, "--lr"], None, here) == ([python, str(script), "--lr"], str(tmp_path))
    assert own_program.resolved(["./train"], "/data", here) == ([str(program)], "/data")
    assert own_program.resolved(["sh", "-c", "true"], None, here)[0] == [shutil.which("sh"), "-c", "true"]
    assert own_program.resolved(["/opt/train"], "/opt", there) == (["/opt/train"], "/opt")
    program.chmod(0o644)
    for argv, url in ((["./train.py"], there), (["./train"], here), (["./none.py"], here)):
        with pytest.raises(typer.Exit):
            own_program.resolved(argv, None, url)


QUEUE: dict[str, Any] = {
    "leading": True,
    "waiting": 2,
    "kept": 1,
    "kept_for": "j2",
    "jobs": [
        {
            **WAITS,
            "place": place,
            "id": f"j{place}",
            "name": name,
            "project": "nlp",
            "state": "queued" if place else "running",
            "count": 1 + place,
            "device": "H100",
            "gpus": [] if place else ["gpu0"],
        }
        for place, name in enumerate(("bert-ft", "big", "sweep-8"))
    ],
}


def test_the_queue_fits_a_screen(
    serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smore.cli.terminal.PIPE_WIDTH", 80)
    platform = serve()
    platform.answers["GET /v1/jobs/queue"] = (200, QUEUE)
    assert smore("jobs", "queue") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [word in out for word in ("needs 2 of H100", "gpu0", "kept for sweep-8")] == [True] * 3
    assert err == ""
    platform.answers["GET /v1/jobs/queue"] = (200, {**QUEUE, "kept_for": None})
    assert smore("jobs", "queue") == 0
    assert "1 free GPU instance is kept for a training of another project." in capsys.readouterr().out
    behind = [job | {"why": "promised"} for job in QUEUE["jobs"]]
    platform.answers["GET /v1/jobs/queue"] = (200, {**QUEUE, "kept_for": None, "jobs": behind})
    assert smore("jobs", "queue") == 0
    assert "1 free GPU instance is kept for promised ends." in capsys.readouterr().out
    # What the marks of a length mean stands below them, where the column has room.
    headers = next(line.split() for line in lines if "job" in line.split())
    assert ("in one case of ten" in out) == ("length" in headers)
    monkeypatch.setattr("smore.cli.terminal.PIPE_WIDTH", 200)
    assert smore("jobs", "queue") == 0
    assert "length 2h00..2h40: 2h00 are left" in capsys.readouterr().out
    platform.answers["GET /v1/jobs/queue"] = (200, {"leading": False, "refused": "SMORE_JOBS__POLICY: no", "jobs": []})
    assert smore("jobs", "queue") == 0
    out, err = capsys.readouterr()
    assert out == "No job runs or waits.\n"
    assert "no job scheduler leads: SMORE_JOBS__POLICY: no; what runs goes on" in err


def test_the_marks_of_a_length_are_explained() -> None:
    (longer,) = job_words.length_legend(["2h00..2h40", ""])
    assert longer == "length 2h00..2h40: 2h00 are left, in one case of ten more than 2h40"
    assert len(job_words.length_legend(["10m..22m", "60m?"])) == 2
    assert job_words.length_legend(["10m", ""]) == []


def test_why_a_job_waits_is_said(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    decided = {"at": "2026-01-31T14:00:00Z", "attempt": 1, "kind": "start", "gpus": ["cpu0"], "message": "first"}
    answer = {"id": "j1", "name": "night", "state": "queued", "summary": WAITS["message"], "expected": WAITS}
    platform.answers["GET /v1/jobs/night/explain"] = (200, answer | {"decisions": [decided]})
    assert smore("jobs", "explain", "night") == 0
    said = capsys.readouterr().out
    assert "waits in place 2 since 12s: It needs 2 GPU instances" in said
    assert ", if nobody shorter comes.\n" in said, "the plan knows nobody who comes later"
    assert "What is left: 2h00, in one case of ten more than 2h40 (the duration that its owner said)." in said
    assert "attempt 1  start on cpu0: first" in said
    assert "promised" not in said
    promised = {"promised_by": "2100-01-01T18:00:00Z", "at_risk": "longer"}
    runs = WAITS | {"place": 0, "gpus": ["cpu0"], "beside": ["j2"], "guest": True} | promised
    answer |= {"state": "running", "summary": "It runs beside day, at 0.83 of its speed (measured).", "expected": runs}
    platform.answers["GET /v1/jobs/night/explain"] = (200, answer)
    assert smore("jobs", "explain", "night") == 0
    said = capsys.readouterr().out
    assert "It runs beside day, at 0.83 of its speed (measured)." in said
    assert "Its end is promised by 01 Jan" in said and ", at risk: longer." in said


@pytest.mark.parametrize(
    ("outcome", "logs"), [("failed", "What it printed: smore jobs logs night --project vision\n"), ("succeeded", "")]
)
def test_of_a_job_that_failed_the_log_is_named(
    serve: Serve, capsys: pytest.CaptureFixture[str], outcome: str, logs: str
) -> None:
    platform = serve()
    answer = {"id": "j1", "name": "night", "state": "ended", "summary": "It is over: as it is."}
    platform.answers["GET /v1/jobs/night/explain"] = (200, answer)
    platform.answers["GET /v1/jobs/j1"] = (200, {"id": "j1", "state": "ended", "outcome": outcome})
    assert smore("jobs", "explain", "night", "--project", "vision") == 0
    assert capsys.readouterr().out == f"night (ended): It is over: as it is.\n{logs}"
    assert platform.asked[-1] == ("GET /v1/jobs/j1", {"project": "vision"})


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            {"iterations_wanted": 900, "workload": "a/cpu/training/8"},
            "--iterations 900 was given, and nothing says how",
        ),
        ({"iterations_wanted": 900, "workload": "a/cpu/training/8"}, "a/cpu/training/8 has no profile on these GPU"),
        ({"iterations_wanted": 900}, "how long an iteration takes: give --workload too, or --duration"),
        ({}, "neither --duration nor --iterations was given"),
    ],
)
def test_a_guessed_length_says_what_is_missing(
    serve: Serve, capsys: pytest.CaptureFixture[str], job: dict[str, object], said: str
) -> None:
    platform = serve()
    answer = {"id": "j1", "name": "night", "state": "queued", "summary": "", "expected": WAITS | {"source": "assumed"}}
    platform.answers["GET /v1/jobs/night/explain"] = (200, answer)
    platform.answers["GET /v1/jobs/j1"] = (200, {"id": "j1", **job})
    assert smore("jobs", "explain", "night") == 0
    assert said in capsys.readouterr().out


def test_loss_and_degradation_are_told_apart(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    begun = {"id": "j1", "name": "w1", "state": "running", "budget": 0.1, "degradation": 0.314}
    platform.answers["GET /v1/jobs"] = (200, {"jobs": [begun | {"loss_windows": 3}]})
    assert smore("jobs") == 0
    said = capsys.readouterr().out
    assert "3 of 8 windows" in said
    assert "degradation: shared over alone, whatever the cause" in said
    assert said.index("budget") < said.index("degradation")
    platform.answers["GET /v1/jobs"] = (200, {"jobs": [begun | {"loss": 0.04, "loss_windows": 8}]})
    assert smore("jobs") == 0
    assert "4.0 %" in capsys.readouterr().out
    platform.answers["GET /v1/jobs"] = (200, {"jobs": [{"id": "j1", "name": "w1", "state": "queued"}]})
    assert smore("jobs") == 0
    assert "whatever the cause" not in capsys.readouterr().out


def test_an_operator_sees_the_trainings_of_all_projects(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    mine = {"id": "j1", "project": "default", "name": "mine", "state": "running"}
    theirs = {"id": "j2", "project": "vision", "name": "night", "state": "running", "gpus": ["cpu0"]}
    platform.answers["GET /v1/jobs"] = (200, {"jobs": [mine, theirs]})
    assert smore("jobs", "--all-projects") == 0
    assert platform.asked == [("GET /v1/jobs", {"all_projects": "true"})]
    assert {"vision", "night"} <= set(capsys.readouterr().out.split())
    assert smore("jobs", "ls", "--project", "vision", "-o", "json") == 0
    assert platform.asked[1:] == [("GET /v1/jobs", {"project": "vision"})]

    def both(request: httpx.Request) -> tuple[int, object]:
        return 200, {"jobs": [mine, theirs] if "all_projects" in request.url.params else [mine]}

    platform.answers["GET /v1/jobs"] = both
    capsys.readouterr()
    assert smore("jobs") == 0
    assert "1 more of other projects (vision) run or wait: smore jobs --all-projects" in capsys.readouterr().out
    platform.answers["GET /v1/jobs/night/statement"] = (200, {"id": "j2", "summary": "kept"})
    assert smore("jobs", "statement", "night", "--project", "vision") == 0
    assert platform.asked[-1] == ("GET /v1/jobs/night/statement", {"project": "vision"})


def test_a_gpu_instance_names_whatever_trains_there(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    gpu = {"id": "cpu0", "trainings": 2, "jobs": [{"id": "j2", "project": "vision"}], "draining": True}
    platform.answers["GET /v1/gpus"] = (200, {"gpus": [gpu]})
    platform.answers["GET /readyz"] = (503, {"ready": False})
    platform.answers["GET /v1/predictor"] = (200, {"version": 1, "places": []})
    night = {"id": "j2", "project": "vision", "name": "night", "state": "running", "gpus": ["cpu0"]}
    platform.answers["GET /v1/jobs"] = (200, {"jobs": [night]})
    assert smore("gpus") == 0
    assert "vision/night 1 of another project" in capsys.readouterr().out
    assert [asked for name, asked in platform.asked if name == "GET /v1/jobs"] == [
        {"project": "vision", "state": "starting"}
    ], "of its project, not of the key's"
    guest = {"id": "j3", "project": "vision", "guest": True}
    platform.answers["GET /v1/gpus"] = (200, {"gpus": [gpu | {"jobs": [*gpu["jobs"], guest]}]})  # type: ignore[misc]
    assert smore("gpus") == 0
    assert "vision/night (host) j3 (guest)" in capsys.readouterr().out
    platform.answers["POST /v1/gpus/cpu0/drain"] = (202, {})
    assert smore("drain", "--gpu", "cpu0", "--yes") == 0
    assert "2 trainings go on" in capsys.readouterr().out


@pytest.mark.parametrize("action", ["hold", "release", "restart", "stop"])
def test_a_job_is_changed_by_its_name(serve: Serve, action: str) -> None:
    platform = serve()
    platform.answers[f"POST /v1/jobs/night/{action}"] = (200, {"id": "j1", "name": "night", "state": "queued"})
    assert smore("jobs", action, "night") == 0
    platform.answers["POST /v1/jobs/night/move"] = (200, {"id": "j1", "name": "night", "state": "queued"})
    assert smore("jobs", "move", "night", "--first") == 0
    assert platform.asked[-1] == ("POST /v1/jobs/night/move", {"first": True})
    assert smore("jobs", "move", "night") == 2


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(45, "45s"), (94, "94s"), (720, "12m"), (7800, "2h10"), (86_400 * 3 + 4 * 3600, "3d4h")],
)
def test_lengths_in_words(seconds: float, said: str) -> None:
    assert job_words.span(seconds) == said


def test_a_job_takes_a_budget(serve: Serve) -> None:
    platform = serve()
    platform.answers["POST /v1/jobs"] = (201, {"id": "j1"})
    assert smore("jobs", "start", "night", "--budget", "0.03", "--", "zoo.train") == 0
    assert platform.asked == [("POST /v1/jobs", {"name": "night", "argv": ["zoo.train"], "env": {}, "budget": 0.03})]


def test_a_job_may_train_beside_others(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["POST /v1/jobs"] = (201, {"id": "j1"})
    options = ("--share", "0.5", "--micro-batches", "1,2,4")
    assert smore("jobs", "start", "night", *options, "--", "zoo.train") == 0
    body = {"name": "night", "argv": ["zoo.train"], "env": {}, "share": 0.5, "micro_batches": [1, 2, 4]}
    assert platform.asked == [("POST /v1/jobs", body)]
    assert smore("jobs", "start", "night", "--micro-batches", "1,x", "--", "zoo.train") == 2
    assert "--micro-batches 1,x" in capsys.readouterr().err
    trial = {"gpus": ["cpu0"], "beside": ["day"], "expected": WAITS}
    platform.answers["POST /v1/jobs:dryRun"] = (200, trial)
    assert smore("jobs", "start", "night", "--dry-run", *options, "--", "zoo.train") == 0
    assert "would start now on cpu0, as the guest of day" in capsys.readouterr().out


def test_how_a_job_ended_is_told(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[dict[str, object], str]] = [
        ({"state": "running"}, "running"),
        ({"state": "running", "suspended": True}, "running, suspended by a signal: no steps"),
        ({"state": "ended", "outcome": "succeeded", "exit_code": 0}, "ended: succeeded"),
        ({"state": "ended", "outcome": "failed", "exit_code": 3}, "ended: failed, exit code 3"),
        ({"state": "ended", "outcome": "killed", "signal": "SIGSEGV", "exit_code": -11}, "ended: killed by SIGSEGV"),
        ({"state": "ended", "outcome": "stopped", "exit_code": 0}, "ended: stopped by its owner"),
        ({"state": "ended", "outcome": "refused", "reason": "of the kernel"}, "ended: refused, of the kernel"),
        ({"state": "lost", "outcome": "unknown"}, "lost"),
        # Of an older platform.
        ({"state": "ended"}, "ended"),
    ]
    platform = serve()
    platform.answers["GET /v1/jobs"] = (
        200,
        {"jobs": [{"id": f"j{number}", **job} for number, (job, _) in enumerate(told)]},
    )
    assert smore("jobs", "-o", "table") == 0
    said = " ".join(capsys.readouterr().out.split())
    for number, (_, wanted) in enumerate(told):
        assert f"j{number} {wanted}" in said or wanted in said


def test_who_attaches_a_process_that_is_not_there_hears_it(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["POST /v1/jobs/attach"] = (201, {"id": "j1", "gpu": "cpu0"})
    assert smore("jobs", "attach", "--pid", "7") == 0
    assert capsys.readouterr().out.startswith("j1 on cpu0")
    said = "pid: there is no process 7 on the machine of cpu0"
    platform.answers["POST /v1/jobs/attach"] = (422, PROBLEM | {"detail": said})
    assert smore("jobs", "attach", "--pid", "7") == 1
    out, err = capsys.readouterr()
    assert (out, said in err) == ("", True)


def test_a_statement_is_said_in_words_or_whole(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    said = "3.0 function-seconds harvested; training lost <= 4.1 % with 95 % confidence (budget 10 %)"
    platform.answers["GET /v1/jobs/j1/statement"] = (
        200,
        {"id": "j1", "loss": 0.035, "kept": True, "windows": 40, "summary": said},
    )
    assert smore("jobs", "statement", "j1") == 0
    assert capsys.readouterr().out == f"{said}\n"
    assert smore("jobs", "statement", "j1", "--output", "json") == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["loss"], whole["kept"], whole["windows"], whole["missing_s"]) == (0.035, True, 40, None)


def test_the_end_of_a_job_is_promised(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    by, start = "2100-01-01T18:00:00+00:00", "2100-01-01T14:10:00+00:00"
    promise = {"by": by, "latest_start_at": start, "outcome": "kept_so_far"}
    platform.answers["POST /v1/jobs"] = (201, {"id": "j1", "state": "queued", "expected": WAITS, "promise": promise})
    assert smore("jobs", "start", "night", "--by", "6h", "--", "zoo.train") == 0
    assert platform.asked[-1][1] == {"name": "night", "argv": ["zoo.train"], "env": {}, "by": "6h", "unless": "refuse"}
    said = capsys.readouterr().err
    assert " is promised to end by 01 Jan" in said and "and starts by 01 Jan" in said and "waits in place 2" in said
    none = {"id": "j1", "state": "queued", "expected": WAITS, "promise": {"outcome": "none"}}
    platform.answers["POST /v1/jobs"] = (201, none)
    assert smore("jobs", "start", "night", "--by", "earliest", "--unless", "queue", "--", "zoo.train") == 0
    assert platform.asked[-1][1]["unless"] == "queue"
    assert "No end of " in capsys.readouterr().err

    refused = {"code": "slo_infeasible", "detail": "No room.", "field": "by"}
    platform.answers["POST /v1/jobs"] = (429, refused)
    assert smore("jobs", "start", "night", "--by", "6h", "--", "zoo.train") == 1
    assert "next: --by earliest takes the earliest end" in capsys.readouterr().err
    rounded = job_words.clock(datetime.fromisoformat(by) + timedelta(minutes=1))
    for trial, words in (
        ({"earliest_promise_at": by}, "an end by 01 Jan"),
        ({"earliest_promise_at": by.replace(":00+", ":01+")}, f"an end by {rounded} would be promised"),
        ({"no_promise": "Nobody knows how long it takes."}, "Nobody knows how long it takes."),
    ):
        platform.answers["POST /v1/jobs:dryRun"] = (200, {"gpus": ["cpu0"], "expected": WAITS, **trial})
        assert smore("jobs", "start", "night", "--dry-run", "--", "zoo.train") == 0
        assert words in capsys.readouterr().out


def test_moments_are_read_in_local_time() -> None:
    now = datetime.now().astimezone()
    for ahead in (timedelta(hours=-1), timedelta(hours=1)):
        text = (now + ahead).strftime("%H:%M")
        at = datetime.fromisoformat(job_words.next_time(text))
        assert timedelta(0) < at - now <= timedelta(days=1) and at.strftime("%H:%M") == text
    assert datetime.fromisoformat(job_words.next_time("2100-01-01 18:00")).tzinfo is not None
    assert job_words.next_time("2100-01-01T18:00:00+01:00").endswith(("+01:00", now.strftime("%z")[:3] + ":00"))
    assert [job_words.next_time(text) for text in ("6h", "earliest", "1:x")] == ["6h", "earliest", "1:x"]


def test_the_queue_says_what_is_promised() -> None:
    def job(by: datetime | None, at_risk: str | None) -> SimpleNamespace:
        return SimpleNamespace(promised_by=by, at_risk=at_risk)

    at = datetime(2100, 1, 1, 18, 0).astimezone()
    assert job_words.promised(job(None, None)) is None
    assert [job_words.promised(job(at, risk)) for risk in (None, "closed")] == [
        "01 Jan 18:00",
        "01 Jan 18:00, at risk: closed",
    ]
