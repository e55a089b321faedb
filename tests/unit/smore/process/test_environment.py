"""Settings that complain: one line for a wrong value, the nearest name for one that nobody reads."""

import json
from pathlib import Path

import pytest

from smore.process.environment import described, load, settings, shown, unknown
from smore.process.settings import Settings
from tests.support.cli import smore


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("SMORE_API__PORT", "abc", "int"),
        ("SMORE_POLICY__KNOBS", "{x", "a JSON object"),
        ("SMORE_WORKER__TCP_PORTS", "a,b", "a list"),
        ("SMORE_WORKER__READABLE", "[x", "a list"),
        ("SMORE_LOG_FORMAT", "xml", "json, console"),
        ("SMORE_LOG_LEVEL", "LOUD", "DEBUG, INFO, WARNING, ERROR"),
        ("SMORE_API__PROXIES", "10.0.0.300", "a list"),
        ("SMORE_API", "3", "a group of settings"),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert smore("settings") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"smore: {variable}")
    assert expected in line
    if expected != "a group of settings":
        assert f"{variable}={value}: " in line
    settings.cache_clear()
    with pytest.raises(SystemExit) as end:
        settings()
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines() == [line]


@pytest.mark.parametrize("command", ["doctor", "settings", "up"])
@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("SMORE_REDIS__URL", "redis://:{}@redis:6379/0"),
        ("SMORE_POSTGRES__URL", "postgresql+psycopg://smore:{}@postgres:5432/smore"),
    ],
)
def test_a_placeholder_is_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, url: str, command: str
) -> None:
    monkeypatch.setenv(variable, url.format("chosen"))
    load()
    monkeypatch.setenv(variable, url.format("change-me"))
    assert smore(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"smore: {variable}") and "choose a password" in line


def test_a_list_has_commas_or_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMORE_JOB_ENTRYPOINTS", "mytrain")
    monkeypatch.setenv("SMORE_WORKER__READABLE", "/a, /b")
    monkeypatch.setenv("SMORE_WORKER__TCP_PORTS", "null")
    monkeypatch.setenv("SMORE_API__PROXIES", '["10.0.0.7", "fd00::/64"]')
    config = load()
    assert config.job_entrypoints == ("mytrain",)
    assert config.worker.readable == (Path("/a"), Path("/b"))
    assert config.worker.tcp_ports is None
    assert config.api.proxies == ("10.0.0.7/32", "fd00::/64")


def test_a_level_may_be_written_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMORE_LOG_LEVEL", "debug")
    assert load().log_level == "DEBUG"


def test_names_that_nobody_reads_are_told_with_the_nearest() -> None:
    assert unknown({"SMORE_PORT": "", "SMORE_URL": "", "SMORE_TEST_X": "", "SMORE_QQQ": "", "HOME": ""}) == {
        "SMORE_PORT": "SMORE_API__PORT",
        "SMORE_QQQ": None,
    }
    assert unknown(dict.fromkeys((one.variable for one in described()), "")) == {}


def test_settings_are_listed_with_source_and_meaning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SMORE_REDIS__URL", "redis://:hidden@host:6379/0")
    monkeypatch.setenv("SMORE_PORT", "9")
    assert smore("settings", "--changed", "-o", "json") == 0
    said, warned = capsys.readouterr()
    assert "hidden" not in said
    listed = {one["name"]: one for one in json.loads(said)}
    assert listed["SMORE_REDIS__URL"]["value"] == "redis://:***@host:6379/0"
    assert listed["SMORE_REDIS__URL"]["source"] == "environment"
    assert "SMORE_API__PORT" not in listed
    assert "SMORE_PORT is no setting" in warned and "SMORE_API__PORT" in warned
    assert smore("settings", "API__PORT") == 0
    assert "8400" in capsys.readouterr().out
    assert smore("settings", "SMORE_API_PORT") == 1
    assert "did you mean SMORE_API__PORT" in capsys.readouterr().err


def test_every_setting_is_explained() -> None:
    assert [one.variable for one in described() if not one.meaning] == []
    assert shown(Settings().job_entrypoints) == "zoo.train"
