"""
Where the benchmark of sharing has its rows from: those of the checkout, or measured first on another machine. Which of its
turns count: those in which trainings that share with nobody took about as long as in the quickest.
"""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.bench import sharing
from lab.bench.report import ROOT
from lab.bench.sharing import OWN, SJF, WORKLOADS, Turn
from ml.rows import Solo, read, write
from smore.domain.job import JobRequest, JobState
from smore.postgres.job_pairs import JobPair
from smore.postgres.jobs import Job

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
        assert words[1:3] == ["-m", "lab.measure.profile"]
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


HEAVY = [workload for workload, wait in WORKLOADS.items() if wait == 0]


def made(heavy_s: float, *, shared: bool = False, all_shared: bool = False) -> Turn:
    """A turn in which heavy trainings take so long, and light ones share or take as long whatever the machine does."""
    jobs = [
        Job(
            id=workload,
            project="default",
            name=workload,
            request=JobRequest(argv=["train"], workload=workload),
            gpus=["0"],
            state=JobState.ENDED,
            created_at=0.0,
            ran_s=heavy_s if workload in HEAVY else 100.0,
        )
        for workload in WORKLOADS
    ]
    light = [workload for workload in WORKLOADS if workload not in HEAVY]
    couples = [light] if shared else []
    if all_shared:
        couples.append(HEAVY)
    pairs = [
        JobPair(
            job=job,
            attempt=1,
            other=other,
            other_attempt=1,
            guest=guest,
            gpus=["0"],
            device="d",
            sharing_mode="m",
            from_at=0.0,
        )
        for first, second in couples
        for job, other, guest in ((first, second, False), (second, first, True))
    ]
    return Turn(jobs=jobs, pairs=pairs)


@pytest.mark.parametrize(
    ("heavy_s", "sjf", "own", "left_out", "pace"),
    [
        pytest.param([60, 62, 64, 65], [60, 64], [62, 65], 0, 65 / 60, id="quiet"),
        pytest.param([60, 62, 64, 72, 63], [60, 64], [62, 63], 1, 64 / 60, id="one disturbed"),
        pytest.param([70, 72, 71, 80, 60, 62, 61, 63], [62, 63], [60, 61], 4, 63 / 60, id="quiet late"),
        pytest.param([60, 75, 60, 75, 74, 73], [60, 60], [74, 73], 2, 74 / 60, id="never quiet"),
    ],
)
def test_turns_of_a_disturbed_machine_are_made_again(
    heavy_s: list[float], sjf: list[float], own: list[float], left_out: int, pace: float
) -> None:
    left = list(heavy_s)
    turns, figures = sharing.by_turns(lambda setting: made(left.pop(0), shared=setting == OWN), 2)
    assert not left
    took = {setting: [one.alone_s[HEAVY[0]] for one in each] for setting, each in turns.items()}
    assert took == {SJF: sjf, OWN: own}
    assert figures == {"left_out": left_out, "pace": pytest.approx(pace)}


def test_without_a_training_alone_in_every_turn_nothing_is_said() -> None:
    with pytest.raises(SystemExit, match="no training runs alone"):
        sharing.by_turns(lambda setting: made(60, shared=True, all_shared=setting == OWN), 1)
