"""Names that the shell completes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from smore.cli import names
from tests.support.cli import Serve, serve
from tests.support.every_command import commands

__all__ = ["serve"]

#: Parameters that take a name which somebody has given, or one of a closed list.
NAMED: Final = frozenset(
    {
        "function",
        "gpu",
        "job",
        "project",
        "key",
        "scope",
        "state",
        "device",
        "workload",
        "invocation",
        "revision",
        "trace",
    }
)
#: Such parameters that the shell completes by their type, or that are switches.
OTHERWISE: Final = {("run", "device"), ("logs", "function")}


def test_every_name_is_completed() -> None:
    without = {
        (command, parameter.name)
        for command, made in commands()
        for parameter in made.params
        if parameter.name in NAMED and parameter._custom_shell_complete is None
    }
    assert without == OTHERWISE


def test_names_come_from_the_platform_and_from_closed_lists(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = serve()
    place = {"device": "H100", "trainings": ["bert/cpu/training/8"], "functions": ["bert/cpu"]}
    platform.answers |= {
        "GET /v1/gpus": (200, {"gpus": [{"id": "cpu0", "device": "H100"}, {"id": "cpu1", "device": "H100"}]}),
        "GET /v1/functions": (200, {"functions": [{"name": "beta"}, {"name": "alpha"}]}),
        "GET /v1/functions/beta/revisions": (200, {"revisions": [{"revision": 1}, {"revision": 12}]}),
        "GET /v1/jobs": (200, {"jobs": [{"id": "b1", "name": "night"}]}),
        "GET /v1/predictor": (200, {"version": 1, "places": [place]}),
        "GET /v1/traces": (200, {"traces": [{"id": 17}]}),
    }
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "beat.log").touch()
    monkeypatch.setenv("SMORE_HOME", str(tmp_path))
    typed: Any = SimpleNamespace(params={"name": "beta"})
    assert names.gpus("") == ["cpu0", "cpu1"] and names.devices("H") == ["H100"]
    assert names.logged("b") == ["beta", "beat"]
    assert names.revisions(typed, "1") == ["1", "12"]
    assert names.workloads("be") == ["bert/cpu/training/8"] and names.trainings("b") == ["b1", "bert/cpu/training/8"]
    assert names.functions_or_models("be") == ["beta", "bert/cpu", "bert/cpu/training/8"]
    assert names.traces("1") == ["17"]
    assert names.scopes("re") == ["read"] and names.states("can") == ["cancelled"]
    assert names.prewarm_modes("") == ["auto", "off", "paper"] and names.data_sets("azure") == ["azure2019"]
    assert names.settings("SMORE_API__PO") == ["SMORE_API__PORT"]


def test_without_a_platform_nothing_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMORE_URL", "http://127.0.0.1:9")
    assert names.functions("") == []
