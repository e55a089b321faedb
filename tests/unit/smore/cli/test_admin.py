"""The administrators' commands: what they ask of the platform, and how the doctor ends."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from smore.cli import app
from smore.cli.terminal import span_s
from smore.local import doctor
from smore.local.doctor import Finding, Site, Verdict
from smore.process.settings import Settings
from smore_client import admin
from smore_client.transport import Call
from tests.unit.smore.cli.test_app import Serve, serve, smore

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
        (("gpus", "allow", "g", "7"), "POST /v1/gpus/g/allow", {"pid": 7}),
        (("gpus", "protect", "g", "7"), "POST /v1/gpus/g/protect", {"pid": 7}),
        (("slo", "job", "j", "0.05"), "PUT /v1/jobs/j/slo", {"budget": 0.05}),
        (("slo", "function", "f", "250"), "PUT /v1/functions/f/slo", {"deadline_ms": 250.0}),
        (("slo", "function", "f", "250ms"), "PUT /v1/functions/f/slo", {"deadline_ms": 250.0}),
        (("slo", "function", "f"), "PUT /v1/functions/f/slo", {"deadline_ms": None}),
        (
            ("projects", "limit", "p", "--rate", "5", "--depth", "9", "--jobs", "3"),
            "PUT /v1/projects/p/limits",
            {
                "rate_per_s": 5.0,
                "burst": None,
                "depth": 9,
                "concurrency": None,
                "warm_memory_mib": None,
                "jobs": 3,
                "job_memory_mib": None,
            },
        ),
        (("projects", "create", "p"), "POST /v1/projects", {"name": "p"}),
    ],
)
def test_commands_ask_for_what_they_say(
    serve: Serve, arguments: tuple[str, ...], asked: str, body: dict[str, Any]
) -> None:
    platform = serve()
    platform.answers[asked] = (200, {"id": "j", "name": "p", "cancelled": 3})
    assert smore(*arguments) == 0
    assert platform.asked == [(asked, body)]


def test_a_pin_to_what_is_not_there_is_set_and_said(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers[f"PUT {Q}/f/pin"] = (204, {})
    platform.answers["GET /v1/gpus"] = (200, {"gpus": []})
    assert smore("pin", "f", "a", "b") == 0
    assert platform.asked[0] == (f"PUT {Q}/f/pin", {"gpus": ["a", "b"], "for_s": None})
    assert "not there now: a, b" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("drain",),
        ("drain", "f", "--all"),
        ("boost", "f"),
        ("boost", "f", "2", "--end"),
        ("pin", "f"),
        ("boost", "f", "2", "--for", "soon"),
    ],
)
def test_wrong_usage_asks_nothing(serve: Serve, arguments: tuple[str, ...]) -> None:
    platform = serve()
    assert smore(*arguments) == app.EXIT_USAGE
    assert platform.asked == []


def test_a_trace_is_sent_as_it_is(serve: Serve, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    platform = serve()
    trace = {
        "id": 4,
        "name": "a_b.csv",
        "digest": "d",
        "created_at": "2026-01-02T03:04:05Z",
        "since": "2026-01-01T03:04:00Z",
        "until": "2026-01-01T11:04:00Z",
        "functions": [{"function": "f", "source": "hash", "arrivals": 12}],
    }
    platform.answers["POST /v1/traces"] = (201, trace)
    platform.answers["GET /v1/traces"] = (200, {"traces": [trace]})
    platform.answers["DELETE /v1/traces/4"] = (200, {"id": 4})
    file = tmp_path / "a b.csv"
    file.write_text('{"any": "bytes"}')
    assert (
        smore(
            "traces",
            "import",
            str(file),
            "--map",
            "hash=f",
            "--deal",
            "g",
            "--deal",
            "h",
            "--end",
            "2026-01-01T11:04:00Z",
        )
        == 0
    )
    assert "hash" in capsys.readouterr().out
    assert smore("traces") == smore("traces", "list") == 0
    assert "f 12" in capsys.readouterr().out
    assert smore("traces", "remove", "4") == 0
    assert (
        smore("traces", "import", str(file), "--end", "noon") == smore("traces", "import", "nowhere") == app.EXIT_USAGE
    )
    assert [asked for asked, _ in platform.asked] == [
        "POST /v1/traces",
        "GET /v1/traces",
        "GET /v1/traces",
        "DELETE /v1/traces/4",
    ]
    assert platform.asked[0][1] == {"any": "bytes"}
    call = next(
        admin.import_trace(
            b"\x1f\x8b", name="t", give=["hash=f"], deal=["g", "h"], end=datetime(2026, 1, 1, tzinfo=UTC)
        )
    )
    assert isinstance(call, Call)
    assert call.query == (
        ("name", "t"),
        ("map", "hash=f"),
        ("deal", "g"),
        ("deal", "h"),
        ("end", "2026-01-01T00:00:00+00:00"),
    )
    assert (call.content, call.headers, call.repeatable) == (b"\x1f\x8b", {"Content-Type": "application/gzip"}, False)


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("1.5", 1.5), ("250ms", 0.25), ("1.5m", 90), ("2h", 7200), ("1d", 86400)]
)
def test_times(text: str, expected: float) -> None:
    assert span_s(text) == expected


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
    platform.answers["GET /v1/audit"] = (200, {"entries": [entry], "next_cursor": 5})
    assert smore("audit", "--route", "slo", "--limit", "1") == 0
    said = capsys.readouterr().out
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
    platform.answers["GET /v1/projects"] = (200, {"projects": [{"name": "p", "limits": limits, "use": {"depth": 2}}]})
    assert smore("slo") == 0
    assert smore("projects") == 0
    said = capsys.readouterr().out
    assert "250 ms" in said
    assert "5.0 %" in said
    assert "2 of 9" in said


@pytest.mark.parametrize(
    ("verdict", "code"),
    [(Verdict.OK, 0), (Verdict.WARNING, 0), (Verdict.UNKNOWN, 0), (Verdict.BROKEN, app.EXIT_FAILED)],
)
def test_the_doctor_ends_with_one_where_something_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verdict: Verdict, code: int
) -> None:
    place = Site(config=Settings(), redis_url=None, postgres_url=None, processes={})
    monkeypatch.setattr(doctor, "site", lambda: place)
    monkeypatch.setattr(
        doctor, "examine", lambda _place: [Finding(name="disk", verdict=verdict, found="3 MiB", fix="make room")]
    )
    assert smore("doctor") == code
    assert "make room" in capsys.readouterr().out
    assert smore("doctor", "-o", "json") == code
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == verdict.value
