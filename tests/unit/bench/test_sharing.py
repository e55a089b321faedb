"""Where the benchmark of sharing has its rows from: those of the checkout, or measured first on another machine."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import sharing
from bench.report import ROOT
from ml.measure.rows import Solo, read, write

SHIPPED = ROOT / "ml" / "data" / "cpu-partition-trainings.jsonl"


@pytest.fixture
def solos() -> list[Solo]:
    return [row for row in read(SHIPPED) if isinstance(row, Solo)]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Of processes that were started: none is, and each fails."""
    started: list[list[str]] = []

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        started.append(words)
        return subprocess.CompletedProcess(words, 1)

    monkeypatch.setattr(subprocess, "run", run)
    return started


def test_shipped_rows_are_used_where_they_hold(
    tmp_path: Path, solos: list[Solo], commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = sharing.rows_of(solos[0].place.key, "0", 5, tmp_path)
    assert {str(row.workload) for row in rows.alone} == sharing.WORKLOADS.keys()
    assert (rows.origin, commands) == ("ml/data", [])
    assert "in ml/data" in capsys.readouterr().err


def test_elsewhere_the_trainings_are_measured_first(
    tmp_path: Path, solos: list[Solo], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ("CPU partition: 1 core of another processor", "time-slice, functions nice 7")

    def profile(words: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        assert words[1:3] == ["-m", "ml.profile"]
        asked = dict(zip(words[3::2], words[4::2], strict=True))
        assert (asked["--cores"], asked["--function-nice"]) == ("3", "7")
        for row in solos:
            write(Path(asked["--out"]), replace(row, place=replace(row.place, device=here[0], sharing_mode=here[1])))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", profile)
    rows = sharing.rows_of(here, "3", 7, tmp_path)
    assert {row.place.key for row in rows.alone} == {here}
    assert (rows.origin, rows.file) == ("measured first", tmp_path / "rows.jsonl")
    assert "measuring first" in capsys.readouterr().err


def test_what_cannot_be_measured_ends_it(tmp_path: Path, commands: list[list[str]]) -> None:
    with pytest.raises(SystemExit, match="could not be measured"):
        sharing.rows_of(("another device", "time-slice"), "0", 5, tmp_path)
    assert len(commands) == 1
