"""How answers are shown: tables, JSON, YAML, durations."""

import json
import sys
from operator import itemgetter
from typing import Any

import pytest
import yaml

from smore.cli.terminal import Column, Output, show, span_s
from tests.support.cli import Serve, serve, smore

__all__ = ["serve"]


GPU = {
    "id": "cpu0",
    "kind": "cpu",
    "utilisation": 0.5,
    "running": 1,
    "slots": 8,
    "memory_used_mib": 100,
    "memory_total_mib": 2048,
    "warm": [{"function": "default/echo", "state": "idle"}],
    "trainings": 1,
    "jobs": [{"id": "j", "project": "default"}],
}


class TestLists:
    def test_a_table_json_and_yaml_of_the_same(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        for output, read in (("json", json.loads), ("yaml", yaml.safe_load)):
            serve().answers["GET /v1/gpus"] = (200, {"gpus": [GPU]})
            assert smore("gpus", "-o", output) == 0
            (shown,) = read(capsys.readouterr().out)
            assert (shown["id"], shown["utilisation"], shown["warm"][0]["state"]) == ("cpu0", 0.5, "idle")
        platform = serve()
        platform.answers["GET /v1/gpus"] = (200, {"gpus": [GPU, {"id": "cpu1", "device": "measured"}]})
        job = {"id": "j", "name": "night", "state": "running", "gpus": ["cpu0"]}
        platform.answers["GET /v1/jobs"] = (200, {"jobs": [job]})
        places = [{"device": "measured", "measured": 3}]
        platform.answers["GET /v1/predictor"] = (200, {"version": 1, "places": places})
        warnings = ["GPU instances silent: cpu7 since 2026-01-31 12:00:00 UTC.", "Functions paused: default/echo."]
        platform.answers["GET /readyz"] = (200, {"ready": True, "warnings": warnings})
        assert smore("gpus", "ls") == 0
        table = capsys.readouterr().out
        assert "cpu7" in table and "Functions paused" not in table
        assert "No measured rows: cpu0. " in table
        assert "night" in table
        assert all(text in table for text in ("cpu0", "50.0 %", "100/2048", "1/8", "default/echo:idle"))

    def test_every_noun_lists_when_it_stands_alone(self, serve: Serve) -> None:
        for noun in ("functions", "gpus", "jobs", "queues", "keys"):
            platform = serve()
            platform.answers |= {
                "GET /v1/jobs": (200, {"jobs": []}),
                "GET /v1/predictor": (200, {"version": 0}),
                "GET /readyz": (200, {"ready": True}),
                f"GET /v1/{noun}": (200, {noun: []}),
            }
            assert smore(noun) == 0
            assert platform.asked[0][0] == f"GET /v1/{noun}"


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("1.5", 1.5), ("250ms", 0.25), ("1.5m", 90), ("2h", 7200), ("1d", 86400)]
)
def test_times(text: str, expected: float) -> None:
    assert span_s(text) == expected


def test_a_table_too_wide_for_the_screen_becomes_paragraphs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("0123456789abcdef" * 2, "[bracketed]", None, "a device with a long name"), ("short", "x", 3, None)]
    columns: list[Column[Any]] = [(name, itemgetter(at)) for at, name in enumerate(("id", "name", "count", "device"))]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    show(rows, columns, Output.TABLE)
    assert (
        capsys.readouterr().out
        == "0123456789abcdef0123456789abcdef\n  name [bracketed]   device a device with a long name\n\nshort\n  name x "
        "  count 3\n"
    )
    monkeypatch.setenv("COLUMNS", "60")
    show(rows, columns, Output.TABLE, optional=("device",))
    table = capsys.readouterr().out
    assert "[bracketed]" in table
    assert table.endswith("not shown on so narrow a screen: device (-o json has all)\n")
    # A column that is empty goes first.
    show([(*row[:3], None) for row in rows], columns, Output.TABLE, optional=("count",))
    table = capsys.readouterr().out
    assert "count" in table and "device" not in table and "not shown" not in table, "what is empty is not missed"
    # What is too long for the screen goes on in the next line.
    show([("a", "word " * 20, None, None)], columns, Output.TABLE)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60
    monkeypatch.setenv("COLUMNS", "120")
    show(rows, columns, Output.TABLE)
    assert "[bracketed]" in capsys.readouterr().out.splitlines()[3]


def test_a_narrow_screen_has_targets_as_a_table_and_changes_by_their_time(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("smore.cli.terminal.PIPE_WIDTH", 80)
    platform = serve()
    job = {"id": "0193d7a2b6c84f7d9a1e5c3b8f204d61", "name": "night", "state": "running", "budget": 0.05}
    functions = {"functions": [{"name": "sentiment-of-customer-letters", "deadline_ms": 250}]}
    platform.answers |= {"GET /v1/functions": (200, functions), "GET /v1/jobs": (200, {"jobs": [job]})}
    assert smore("slo") == 0
    header, _, function, training = filter(str.strip, capsys.readouterr().out.splitlines())
    assert header.split() == ["name", "kind", "target"]
    assert (function.split(), training.split()) == (
        ["sentiment-of-customer-letters", "function", "250", "ms"],
        ["night", "job", "5.0", "%"],
    )
    entry = {"id": 17, "at": "2026-01-31T12:00:00Z", "route": "PUT /v1/functions/{function}/slo", "key_id": "k" * 12}
    entry |= {"project": "default", "target": "function/sentiment-of-letters", "after": {"deadline_ms": 250}}
    platform.answers["GET /v1/audit"] = (200, {"entries": [entry]})
    assert smore("audit") == 0
    assert capsys.readouterr().out.startswith("2026-01-31 ")
