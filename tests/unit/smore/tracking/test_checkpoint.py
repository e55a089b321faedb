"""Checkpoints: which ones are complete, how one becomes so, and how a training says how long it is."""

from pathlib import Path

import pytest

import smore
from smore.tracking.checkpoint import complete
from smore.tracking.ring import Tracker, TrackReader


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMORE_CHECKPOINT", str(tmp_path))
    return tmp_path


def test_a_checkpoint_counts_from_its_last_name_on(folder: Path) -> None:
    assert smore.last_checkpoint() is None
    with smore.checkpoint(5) as path:
        path.write_text("5")
        assert smore.last_checkpoint() is None

    def fail() -> None:
        with smore.checkpoint(6) as path:
            path.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    last = smore.last_checkpoint()
    assert last is not None and (last.iterations, last.path.read_text()) == (5, "5")
    for iterations in (100, 20, 9):
        with smore.checkpoint(iterations, extension="") as path:
            path.mkdir()
    assert [one.iterations for one in complete(folder)] == [20, 100], "by number, the last two"
    (folder / "checkpoint-7.pt.tmp").touch()
    (folder / "checkpoint-x").touch()
    assert [one.iterations for one in complete(folder)] == [20, 100]


def test_outside_the_platform_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SMORE_CHECKPOINT", raising=False)
    assert smore.last_checkpoint() is None and complete(tmp_path / "none") == []
    with pytest.raises(ValueError, match="SMORE_CHECKPOINT is not set"), smore.checkpoint(1):
        pass


@pytest.mark.parametrize(
    ("argument", "variable", "told"),
    [
        (90, None, 90),
        (None, "70", 70),
        (90, "70", 90),
        (None, None, 0),
        (-1, None, 0),
        (None, "many", 0),
        (1 << 63, None, 0),
    ],
)
def test_a_training_says_how_many_iterations_it_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: int | None, variable: str | None, told: int
) -> None:
    monkeypatch.delenv("SMORE_ITERATIONS", raising=False)
    if variable is not None:
        monkeypatch.setenv("SMORE_ITERATIONS", variable)
    path = str(tmp_path / "steps")
    with smore.track(path, iterations=argument) as tracker:
        tracker.step()
    reader = TrackReader(path)
    assert (reader.length, reader.count) == (told, 1)


def test_a_reader_from_before_reads_what_is_written_now(tmp_path: Path) -> None:
    """The length lies in bytes of the header that were free: neither version nor the steps have moved."""
    path = tmp_path / "steps"
    Tracker(str(path), length=90).close()
    header = path.read_bytes()[:64]
    assert header[8:12] == b"\x01\x00\x00\x00" and header[40:48] == (90).to_bytes(8, "little")
    assert header[36:40] == bytes(4) and header[48:] == bytes(16)
