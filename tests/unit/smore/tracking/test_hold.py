"""A training that is held back: how long it waits at its gates, and what lets it go."""

import logging
import os
import struct
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import smore
from smore.tracking import hold, ring
from smore.tracking.hold import GANG_S, SILENT_S, VARIABLE, Hold, HoldFile
from smore.tracking.ring import TrackReader

Say = Callable[[float], None]


class Clock:
    """Time passes only in sleeps and in work; ``meanwhile`` is called in each sleep."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.meanwhile: Callable[[], None] = lambda: None

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    fake = SimpleNamespace(monotonic=made.read, perf_counter=made.read, time=made.read, sleep=made.sleep)
    monkeypatch.setattr(hold, "time", fake)
    monkeypatch.setattr(ring, "time", fake)
    return made


@pytest.fixture
def file(tmp_path: Path) -> HoldFile:
    made = HoldFile(tmp_path / "job.hold")
    made.make()
    return made


@pytest.fixture
def training(file: HoldFile, tmp_path: Path, clock: Clock) -> Hold:
    return Hold(str(tmp_path / "job.hold"), gang=False)


def keep_saying(file: HoldFile, clock: Clock, fraction: float) -> None:
    """As a worker does that lives."""
    file.write(fraction)
    clock.meanwhile = lambda: file.write(fraction)


def test_who_is_not_held_back_never_waits(file: HoldFile, training: Hold, clock: Clock) -> None:
    clock.now += 3.0
    assert training.wait() == 0.0
    file.write(1.0)
    assert training.wait() == 0.0
    assert file.read().seconds == 0.0


@pytest.mark.parametrize("fraction", [0.75, 0.5, 0.25, 0.05])
def test_it_runs_for_its_part_of_the_time(file: HoldFile, training: Hold, clock: Clock, fraction: float) -> None:
    clock.now += 3.0
    training.wait()
    keep_saying(file, clock, fraction)
    # What it did while it ran freely is not made up for.
    assert training.wait() == 0.0
    began = clock.now
    for _ in range(5):
        clock.now += 0.2
        file.write(fraction)
        training.wait()
    assert 1.0 / (clock.now - began) == pytest.approx(fraction, rel=0.03)
    assert file.read().seconds == pytest.approx(clock.now - began - 1.0)


def test_a_window_lasts_until_the_worker_ends_it(file: HoldFile, training: Hold, clock: Clock) -> None:
    keep_saying(file, clock, 0.0)
    seen: list[bool] = []

    def meanwhile() -> None:
        file.write(0.0 if clock.now < 1030.0 else 1.0)
        seen.append(file.read().waits)

    clock.meanwhile = meanwhile
    assert training.wait() == pytest.approx(30.0, abs=0.02)
    assert all(seen), "the worker sees that it waits"
    assert not file.read().waits and file.read().pid > 0


def test_once_the_worker_is_silent_it_goes_on(file: HoldFile, training: Hold, clock: Clock) -> None:
    file.write(0.0)
    assert training.wait() == pytest.approx(SILENT_S, abs=0.02)
    clock.now += 1.0
    assert training.wait() == 0.0


def test_a_rank_of_several_waits_no_longer_than_collectives_bear(file: HoldFile, tmp_path: Path, clock: Clock) -> None:
    training = Hold(str(tmp_path / "job.hold"), gang=True)
    keep_saying(file, clock, 0.0)
    assert training.wait() == pytest.approx(GANG_S, abs=0.02)


def test_the_time_for_which_it_was_held_back_is_none_of_its_iterations(
    file: HoldFile, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "job.hold"))
    monkeypatch.setenv("SMORE_MICRO_BATCHES", "4")
    path = tmp_path / "job.track"
    with smore.track(str(path)) as tracker:
        keep_saying(file, clock, 0.5)
        tracker.step()
        began = clock.now
        for _ in range(3):
            for part, _ in tracker.micro_batches(np.zeros(8)):
                assert len(part) == 2
                clock.now += 0.1
            tracker.step()
    _, *steps = TrackReader(str(path)).read_new()
    assert [duration for _, duration in steps] == [pytest.approx(0.4)] * 3
    assert file.read().pid == 0, "it looks no more"
    # It waits after each part, not for four times as long at the end.
    assert clock.now - began == pytest.approx(2 * 1.2, rel=0.05)


@pytest.mark.parametrize("content", [None, b"", b"x" * 64])
def test_without_a_file_the_training_runs_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    path = tmp_path / "job.hold"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(VARIABLE, str(path))
    with caplog.at_level(logging.WARNING, "smore.track"), smore.track(str(tmp_path / "job.track")) as tracker:
        tracker.step()
        assert tracker.active
    assert "cannot be held back" in caplog.text
    assert HoldFile(path).read() == (0.0, False, 0)
    HoldFile(tmp_path / "forgotten").write(0.5)
    assert not (tmp_path / "forgotten").exists()


def test_a_pipe_in_its_place_is_read_and_written_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.hold")
    file = HoldFile(tmp_path / "pipe.hold")
    file.write(0.5)
    file.add(1.0)
    assert file.read() == (0.0, False, 0)


@pytest.mark.parametrize(("place", "number"), [(24, inf), (24, nan), (24, -1.0), (24, 1e308), (32, nan), (32, inf)])
def test_numbers_that_cannot_be_are_not_believed(file: HoldFile, tmp_path: Path, place: int, number: float) -> None:
    with (tmp_path / "job.hold").open("r+b") as forged:
        forged.seek(place)
        forged.write(struct.pack("<d", number))
        forged.seek(40)
        forged.write(struct.pack("<Q", 7))
    assert file.read() == (0.0, False, 0)
