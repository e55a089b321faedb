"""The commands of administrators: what they send, what they print."""

import json
import sys
from typing import Any

import pytest
import typer

from smore.cli.terminal import EXIT_FAILED, EXIT_USAGE
from tests.support.cli import PROBLEM, Serve, serve, smore

__all__ = ["serve"]


Q = "/v1/queues"


@pytest.mark.parametrize(
    ("arguments", "asked", "body"),
    [
        (("drain", "f"), f"POST {Q}/f/drain", {}),
        (("drain", "f", "--end"), f"POST {Q}/f/resume", {}),
        (("drain", "--all"), f"POST {Q}/drain", {}),
        (("drain", "--all", "--end"), f"POST {Q}/resume", {}),
        (("drain", "--gpu", "g"), "POST /v1/gpus/g/drain", {}),
        (("drain", "--gpu", "g", "--end"), "POST /v1/gpus/g/resume", {}),
        (("boost", "f", "4", "--for", "30m"), f"PUT {Q}/f/boost", {"factor": 4.0, "for_s": 1800.0}),
        (("boost", "f", "--end"), f"DELETE {Q}/f/boost", {}),
        (("pin", "f", "--end", "--project", "p"), f"DELETE {Q}/f/pin", {"project": "p"}),
        (("purge", "f"), f"POST {Q}/f/purge", {}),
        (("queues", "pause", "--all"), f"POST {Q}/pause", {}),
        (("queues", "resume", "--all"), f"POST {Q}/resume", {}),
        (("gpus", "pause", "g"), "POST /v1/gpus/g/pause", {}),
        (("gpus", "drain", "g"), "POST /v1/gpus/g/drain", {}),
        (("gpus", "undrain", "g"), "POST /v1/gpus/g/resume", {}),
        (("gpus", "allow", "g", "7"), "POST /v1/gpus/g/allow", {"pid": 7}),
        (("gpus", "protect", "g", "7"), "POST /v1/gpus/g/protect", {"pid": 7}),
        (("gpus", "forget", "g"), "POST /v1/gpus/g/forget", {}),
        (("slo", "job", "j", "0.05"), "PUT /v1/jobs/j/slo", {"budget": 0.05}),
        (("slo", "function", "f", "250"), "PUT /v1/functions/f/slo", {"deadline_ms": 250.0}),
        (("slo", "function", "f", "250ms"), "PUT /v1/functions/f/slo", {"deadline_ms": 250.0}),
        (("slo", "function", "f"), "PUT /v1/functions/f/slo", {"deadline_ms": None}),
        (
            (
                "projects",
                "limit",
                "p",
                "--rate",
                "5.5",
                "--depth",
                "9",
                "--gpus",
                "none",
            ),
            "PATCH /v1/projects/p/limits",
            {"rate_per_s": 5.5, "depth": 9, "gpus": None},
        ),
        (("projects", "create", "p"), "POST /v1/projects", {"name": "p"}),
    ],
)
def test_commands_ask_for_what_they_say(
    serve: Serve, arguments: tuple[str, ...], asked: str, body: dict[str, Any]
) -> None:
    platform = serve()
    platform.answers[asked] = (200, {"id": "j", "name": "p", "cancelled": 3})
    platform.answers[f"GET {Q}"] = (200, {"queues": []})
    platform.answers["GET /v1/gpus"] = (200, {"gpus": []})
    platform.answers["GET /v1/functions/f/revisions"] = (
        200,
        {"revisions": []},
    )
    assert smore(*arguments) == 0
    assert platform.asked[0] == (asked, body)
    assert all(question.startswith("GET") for question, _ in platform.asked[1:])


def test_a_change_prints_what_is_in_force_now(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers[f"PUT {Q}/f/boost"] = (204, {})
    queue = {"function": "f", "depth": 3, "draining": True, "boost": 4.0, "pinned_to": ["cpu0"]}
    platform.answers[f"GET {Q}"] = (200, {"queues": [{"function": "other"}, queue]})
    assert smore("boost", "f", "4", "--project", "p") == 0
    assert platform.asked[1] == (f"GET {Q}", {"project": "p"})
    assert capsys.readouterr().out == "f: draining: nothing new is taken; boost 4; pinned to cpu0; 3 waiting\n"
    platform.answers["POST /v1/gpus/g/pause"] = (204, {})
    platform.answers["GET /v1/gpus"] = (200, {"gpus": [{"id": "g", "slots": 8, "running": 2, "paused": True}]})
    assert smore("gpus", "pause", "g") == 0
    assert capsys.readouterr().out == "g: paused: nothing new is placed; 2 of 8 slots run\n"


@pytest.mark.parametrize("command", [("gpus", "drain", "g"), ("drain", "--gpu", "g")])
def test_a_drain_may_wait_until_the_gpu_instance_is_empty(
    serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    platform = serve()
    platform.answers["POST /v1/gpus/g/drain"] = (202, {})
    busy = {"id": "g", "slots": 8, "running": 2, "draining": True, "trainings": 1, "jobs": []}
    platform.answers["GET /v1/gpus"] = (200, {"gpus": [busy]})

    def look(_seconds: float) -> None:
        platform.answers["GET /v1/gpus"] = (200, {"gpus": [busy | {"running": 0, "trainings": 0, "drained": True}]})

    monkeypatch.setattr("smore.cli.gpus.time.sleep", look)
    assert smore(*command, "--wait", "1m") == 0
    out, err = capsys.readouterr()
    assert err == "waiting: 2 runs; trainings: 1 of another project\n"
    assert out == "g: drained; 0 of 8 slots run\n"

    platform.answers["GET /v1/gpus"] = (200, {"gpus": [busy]})
    assert smore(*command, "--wait", "0s") == EXIT_FAILED
    assert (
        "g is not empty after 0 s: 2 runs; trainings: 1 of another project; it stays drained" in capsys.readouterr().err
    )


def test_a_wait_is_for_a_gpu_instance_alone(serve: Serve) -> None:
    platform = serve()
    assert smore("drain", "f", "--wait", "1m") == EXIT_USAGE
    assert platform.asked == []


@pytest.mark.parametrize(
    ("arguments", "path", "platform_said", "trainings_said"),
    [
        (("drain", "--all"), "drain", "draining: nothing new is taken", "no new one is taken; those that wait start"),
        (("drain", "--all", "--end"), "resume", "no pause or drain", "new ones are taken"),
        (("queues", "pause", "--all"), "pause", "paused: nothing is dispatched", "none starts; those that run go on"),
        (("queues", "resume", "--all"), "resume", "no pause or drain", "new ones are taken"),
    ],
)
def test_what_concerns_everything_names_the_platform_and_trainings(
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    path: str,
    platform_said: str,
    trainings_said: str,
) -> None:
    platform = serve()
    platform.answers[f"POST {Q}/{path}"] = (200, {})
    platform.answers[f"GET {Q}"] = (200, {"queues": [{"function": "f"}]})
    assert smore(*arguments) == 0
    said = capsys.readouterr().out
    assert f"platform: {platform_said}" in said
    assert f"trainings: {trainings_said}" in said
    assert "f: " in said


@pytest.mark.parametrize("arguments", [("drain", "--all"), ("queues", "pause", "--all"), ("purge", "f")])
def test_what_concerns_everything_asks_in_a_terminal(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    platform = serve()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: False)
    assert smore(*arguments) == EXIT_FAILED
    assert platform.asked == []
    for path in (f"{Q}/drain", f"{Q}/pause", f"{Q}/f/purge"):
        platform.answers[f"POST {path}"] = (200, {"cancelled": 3})
    platform.answers[f"GET {Q}"] = (200, {"queues": []})
    assert smore(*arguments, "--yes") == 0
    assert len(platform.asked) == 2


def test_deleting_a_function_asks_in_a_terminal(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = serve()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: False)
    assert smore("functions", "delete", "f") == EXIT_FAILED
    assert platform.asked == []
    platform.answers["DELETE /v1/functions/f"] = (204, None)
    assert smore("functions", "delete", "f", "-y") == 0


@pytest.mark.parametrize("arguments", [("gpus", "drain", "g"), ("drain", "--gpu", "g"), ("gpus", "pause", "g")])
def test_the_last_gpu_instance_that_takes_anything_asks_in_a_terminal(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    platform = serve()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: False)
    platform.answers[f"POST /v1/gpus/g/{'pause' if 'pause' in arguments else 'drain'}"] = (204, {})
    for others in ([], [{"id": "h", "draining": True}, {"id": "i", "paused": True}]):
        platform.answers["GET /v1/gpus"] = (200, {"gpus": [{"id": "g"}, *others]})
        assert smore(*arguments) == EXIT_FAILED
        assert all(question.startswith("GET") for question, _ in platform.asked)
    platform.answers["GET /v1/gpus"] = (200, {"gpus": [{"id": "g"}, {"id": "h"}]})
    assert smore(*arguments) == 0
    platform.answers["GET /v1/gpus"] = (200, {"gpus": [{"id": "g"}]})
    assert smore(*arguments, "--yes") == 0


def test_a_pin_to_what_is_away_is_said(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers[f"PUT {Q}/f/pin"] = (204, {})
    platform.answers["GET /v1/gpus"] = (200, {"gpus": []})
    platform.answers[f"GET {Q}"] = (200, {"queues": []})
    assert smore("pin", "f", "a", "b") == 0
    assert platform.asked[0] == (f"PUT {Q}/f/pin", {"gpus": ["a", "b"], "for_s": None})
    assert "away now: a, b" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("drain",),
        ("drain", "f", "--all"),
        ("boost", "f"),
        ("boost", "f", "2", "--end"),
        ("pin", "f"),
        ("queues", "pause"),
        ("queues", "pause", "f", "--all"),
        ("boost", "f", "2", "--for", "soon"),
    ],
)
def test_wrong_usage_asks_nothing(serve: Serve, arguments: tuple[str, ...]) -> None:
    platform = serve()
    assert smore(*arguments) == EXIT_USAGE
    assert platform.asked == []


def test_the_trail_is_shown_with_how_to_go_on(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    entry = {
        "id": 5,
        "at": "2026-01-02T03:04:05Z",
        "project": "default",
        "key_id": "abc",
        "route": "PUT /v1/x",
        "target": "function/f",
        "before": {"revision": 1},
        "after": None,
        "request_id": "r",
    }
    of_job = entry | {"id": 4, "key_name": "ci", "target": "job/01a2", "target_name": "night"}
    platform.answers["GET /v1/audit"] = (200, {"entries": [entry, of_job], "next_cursor": 5})
    assert smore("audit", "--route", "slo", "--limit", "1") == 0
    said = capsys.readouterr().out
    assert "ci (abc)" in said and "job/night" in said
    assert "function/f" in said
    assert "revision=1" in said
    assert "--cursor 5" in said
    assert platform.asked == [("GET /v1/audit", {"route": "slo", "limit": "1"})]


def test_targets_and_projects_are_listed(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["GET /v1/functions"] = (200, {"functions": [{"name": "echo", "deadline_ms": 250}]})
    platform.answers["GET /v1/jobs"] = (
        200,
        {"jobs": [{"id": "j1", "name": "night", "state": "running", "budget": 0.05}]},
    )
    limits = {"depth": 9}
    platform.answers["GET /v1/projects"] = (200, {"projects": [{"name": "p", "held": limits, "use": {"depth": 2}}]})
    assert smore("slo") == 0
    assert smore("projects") == 0
    said = capsys.readouterr().out
    assert "250 ms" in said
    assert "5.0 %" in said
    assert "2 of 9" in said


def test_a_deadline_below_what_a_run_takes_is_set_with_a_warning(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    platform = serve()
    measured = [
        {"revision": 1, "state": "active", "entrypoint": "f", "measured": {"run_ms": 5.0}},
        {"revision": 2, "state": "active", "entrypoint": "f", "measured": {"run_ms": 130.26}},
    ]
    platform.answers["GET /v1/functions/f/revisions"] = (200, {"revisions": measured})
    for deadline_ms, warning in (
        (10.0, "smore: f: its first run took 130.3 ms: invocations may be refused, or end late\n"),
        (250.0, ""),
    ):
        platform.answers["PUT /v1/functions/f/slo"] = (200, {"name": "f", "revision": 2, "deadline_ms": deadline_ms})
        assert smore("slo", "function", "f", f"{deadline_ms:g}") == 0
        out, err = capsys.readouterr()
        assert (out, err) == (f"f: deadline {deadline_ms:g} ms from arrival\n", warning)
    # A key that may not read revisions sets the deadline all the same.
    platform.answers["GET /v1/functions/f/revisions"] = (403, PROBLEM)
    assert smore("slo", "function", "f", "250") == 0
    platform.answers["PUT /v1/jobs/j/slo"] = (200, {"id": "j", "name": "night", "budget": 0.05})
    capsys.readouterr()
    assert smore("slo", "job", "j", "0.05") == 0
    assert capsys.readouterr().out.startswith("night: budget 5 % from now on")


def test_limits_that_hold_are_shown_and_one_is_not_misread(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    use = {"depth": 0, "concurrency": 0, "warm_memory_mib": 0.0, "jobs": 2, "job_memory_mib": 0.0, "gpus": 1}
    project = {"name": "p", "limits": {"gpus": 4}, "held": {"gpus": 4, "jobs": 64}, "use": use}
    platform.answers["GET /v1/projects"] = (200, {"projects": [project]})
    assert smore("projects") == 0
    assert "2 of 64" in capsys.readouterr().out
    assert smore("projects", "limit", "p", "--gpus", "four") == EXIT_USAGE
    assert "four: a number, or none, is expected" in capsys.readouterr().err
    assert smore("projects", "limit", "p") == EXIT_USAGE


@pytest.mark.parametrize("words", [(), ("--follow",)])
def test_the_output_of_what_was_started_elsewhere_is_not_here(
    serve: Serve, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    platform = serve()
    platform.answers["GET /v1/jobs/own"] = (200, {"id": "j", "name": "own", "source": "tracked"})
    assert smore("jobs", "logs", "own", *words) == EXIT_FAILED
    assert (
        capsys.readouterr().err
        == "smore: own was started elsewhere: what it prints is where it was started, not here\n"
    )


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        (1120, "goes on from its last checkpoint, iteration 1120"),
        (0, "starts from the beginning: it has written no checkpoint (smore.checkpoint)"),
    ],
)
def test_a_restart_promises_no_checkpoint_that_there_is_not(
    serve: Serve, capsys: pytest.CaptureFixture[str], checkpoint: int, said: str
) -> None:
    restarted = {"id": "j", "name": "night", "state": "queued", "checkpoint": checkpoint}
    serve().answers["POST /v1/jobs/night/restart"] = (200, restarted)
    assert smore("jobs", "restart", "night") == 0
    assert capsys.readouterr().out == f"night waits for its turn, and {said}\n"


def test_more_invocations_than_a_page_holds_are_listed_page_by_page(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    platform = serve()
    platform.answers["GET /v1/invocations"] = (
        200,
        {"invocations": [{"id": f"i{n}", "state": "failed"} for n in range(3)]},
    )
    assert smore("ps", "--limit", "5000", "-o", "json") == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == ["i0", "i1", "i2"]
    assert [name for name, _ in platform.asked] == ["GET /v1/invocations"]
    assert {"limit": "5000"} not in [query for _, query in platform.asked]
