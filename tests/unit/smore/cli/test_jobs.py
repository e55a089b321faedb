"""``smore jobs``: what it sends, what it prints."""

import json

import pytest

from smore.cli import jobs
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


def test_a_job_takes_a_budget(serve: Serve) -> None:
    platform = serve()
    platform.answers["POST /v1/jobs"] = (201, {"id": "j1"})
    assert smore("jobs", "start", "night", "--budget", "0.03", "--", "zoo.train") == 0
    assert platform.asked == [("POST /v1/jobs", {"name": "night", "argv": ["zoo.train"], "env": {}, "budget": 0.03})]


def test_how_a_job_ended_is_told(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[dict[str, object], str]] = [
        ({"state": "running"}, "running"),
        ({"state": "running", "suspended": True}, "running, suspended by a signal: no steps"),
        ({"state": "ended", "outcome": "succeeded", "exit_code": 0}, "ended: succeeded"),
        ({"state": "ended", "outcome": "failed", "exit_code": 3}, "ended: failed, exit code 3"),
        ({"state": "ended", "outcome": "killed", "signal": "SIGSEGV", "exit_code": -11}, "ended: killed by SIGSEGV"),
        ({"state": "ended", "outcome": "stopped", "exit_code": 0}, "ended: stopped by its owner"),
        ({"state": "ended", "outcome": "refused", "reason": "of the kernel"}, "ended: refused, of the kernel"),
        ({"state": "lost", "outcome": "unknown"}, "lost: unknown"),
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


def test_who_attaches_a_process_hears_whether_there_is_one(
    serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = serve()
    platform.answers["POST /v1/jobs/attach"] = (201, {"id": "j1", "gpu": "cpu0"})
    monkeypatch.setattr(jobs, "SEEN_S", 0.0)
    for state, code, said in (
        ("running", 0, ""),
        ("ended", 1, "there is no process 7 on the machine of cpu0"),
        ("starting", 0, "has not reported yet"),
    ):
        job = {"id": "j1", "name": "pid-7", "state": state, "reason": said if state == "ended" else None}
        platform.answers["GET /v1/jobs/j1"] = (200, job)
        assert smore("jobs", "attach", "--pid", "7") == code
        out, err = capsys.readouterr()
        assert out.startswith("j1 on cpu0")
        assert said in err
    # A key that may not read: what was attached is named all the same.
    platform.answers["GET /v1/jobs/j1"] = (403, PROBLEM)
    assert smore("jobs", "attach", "--pid", "7") == 1
    assert capsys.readouterr().out.startswith("j1 on cpu0")


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
