"""smore.track: what a job writes and the worker reads, with real processes, kills, restarts and spoilt files."""

import logging
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import smore
from smore.tracking.ring import CAPACITY, FILE_BYTES, HEADER_BYTES, TrackReader
from smore.tracking.track import track

ROOT = Path(__file__).parents[4]
BEGIN = "import smore, signal, sys; tracker = smore.track()\n"


@contextmanager
def process(path: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that tracks to ``path``; killed at the end."""
    started = subprocess.Popen(
        [sys.executable, "-c", BEGIN + code],
        env=os.environ | {"PYTHONPATH": str(ROOT), "SMORE_TRACK": str(path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def steps(path: Path, count: int) -> None:
    with track(str(path)) as tracker:
        for _ in range(count):
            tracker.step()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job.track"


def test_steps_are_read_once_in_order(path: Path) -> None:
    reader = TrackReader(str(path))
    assert (reader.ok, reader.read_new(), reader.pid) == (False, [], 0)
    with smore.track(str(path)) as tracker:
        assert tracker.active
        for _ in range(3):
            tracker.step()
        first = reader.read_new()
        assert (reader.ok, reader.count, reader.pid, reader.lost) == (True, 3, os.getpid(), 0)
        tracker.step()
    tracker.step()  # after the end: does nothing
    second = reader.read_new()
    assert [len(first), len(second), len(reader.read_new())] == [3, 1, 0]
    ends = [end for end, _ in first + second]
    assert ends == sorted(ends)
    assert all(duration >= 0 for _, duration in first + second)


def test_the_layout_is_as_described(path: Path) -> None:
    steps(path, 2)
    raw = path.read_bytes()
    assert len(raw) == FILE_BYTES == 64 + 65536 * 16
    magic, version, capacity, count, start, pid = struct.unpack_from("<8sIIQdI", raw)
    assert (magic, version, capacity, count, pid) == (b"SMTRK001", 1, 65536, 2, os.getpid())
    slots = struct.unpack_from("<4d", raw, HEADER_BYTES)
    assert start <= slots[0] <= slots[2]
    assert raw[36:64] == bytes(28)


def test_without_a_path_nothing_is_tracked(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.delenv("SMORE_TRACK", raising=False)
    with smore.track() as tracker:
        tracker.step()
        assert not tracker.active
    monkeypatch.setenv("SMORE_TRACK", str(path))
    with smore.track() as tracker:
        assert tracker.active


@pytest.mark.parametrize(("given", "missing"), [("SMORE_URL", "SMORE_API_KEY"), ("SMORE_API_KEY", "SMORE_URL")])
def test_half_of_what_it_needs_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: str, missing: str
) -> None:
    monkeypatch.delenv("SMORE_TRACK", raising=False)
    monkeypatch.delenv(missing, raising=False)
    monkeypatch.setenv(given, "http://127.0.0.1:9")
    with track() as tracker:
        tracker.step()
    assert [record.message for record in caplog.records] == [
        f"steps are not tracked, training goes on: {missing} is not set"
    ]


def test_what_was_overwritten_is_counted_as_lost(path: Path) -> None:
    reader = TrackReader(str(path))
    steps(path, CAPACITY + 10)
    assert len(reader.read_new()) == CAPACITY
    assert reader.lost == 10
    steps(path, 5)
    assert len(reader.read_new()) == 5
    assert (reader.lost, reader.count) == (10, CAPACITY + 15)


def test_a_slot_that_is_overwritten_under_the_read_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps(path, CAPACITY)
    reader = TrackReader(str(path))
    counts = iter([CAPACITY, CAPACITY])

    def count(_: TrackReader, descriptor: int) -> int:
        """
        The second look comes after the slots were read: by then the writer has begun its next step, in the oldest slot.
        """
        found = next(counts)
        if next(calls):
            with path.open("r+b") as file:
                file.seek(HEADER_BYTES)
                file.write(struct.pack("<d", 4e9))
        return found

    calls = iter([False, True])
    monkeypatch.setattr(TrackReader, "_steady_count", count)
    found = reader.read_new()
    assert (len(found), reader.lost) == (CAPACITY - 1, 1)
    assert all(end < 4e9 for end, _ in found)


def test_a_restarted_reader_goes_on_where_it_was(path: Path) -> None:
    steps(path, 7)
    first = TrackReader(str(path))
    assert len(first.read_new()) == 7
    steps(path, 4)
    second = TrackReader(str(path), since=first.count - 2)
    assert (len(second.read_new()), second.lost) == (6, 0)
    # A position that the file never reached is another file's.
    assert len(TrackReader(str(path), since=1000).read_new()) == 11


def test_the_steps_of_a_killed_job_remain_and_its_successor_goes_on(path: Path) -> None:
    reader = TrackReader(str(path))
    with process(path, "for _ in range(5): tracker.step()\nprint('ready', flush=True); signal.pause()") as job:
        assert line(job) == "ready"
        assert reader.pid in (0, job.pid)
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        assert len(reader.read_new()) == 5
        assert (reader.pid, reader.ok) == (job.pid, True)
    with process(path, "tracker.step(); print('ready', flush=True); signal.pause()") as job:
        assert line(job) == "ready"
        assert (len(reader.read_new()), reader.count, reader.lost) == (1, 6, 0)
        assert reader.pid == job.pid


def test_a_job_that_writes_all_the_time_is_read_without_a_gap(path: Path) -> None:
    code = "print('ready', flush=True)\nfor _ in range(300_000): tracker.step()\nprint('done', flush=True)"
    with process(path, code) as job:
        assert line(job) == "ready"
        reader = TrackReader(str(path))
        ends: list[float] = []
        while job.poll() is None or reader.count < 300_000:
            fresh = reader.read_new()
            assert all(0 <= duration < 60 for _, duration in fresh)
            ends += [end for end, _ in fresh]
    assert len(ends) + reader.lost == 300_000
    assert ends == sorted(ends)


def test_a_second_writer_does_not_mix_in(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with process(path, "print('ready', flush=True); signal.pause()") as job:
        assert line(job) == "ready"
        with track(str(path)) as second:
            second.step()
            assert not second.active
    assert TrackReader(str(path)).count == 0
    assert len(caplog.records) == 1
    with track(str(path)) as third:  # the first one is gone, and its lock with it
        assert third.active


@pytest.mark.parametrize(
    "content",
    [b"", b"SMTRK001", b"x" * FILE_BYTES, b"SMTRK001" + struct.pack("<II", 2, CAPACITY) + bytes(FILE_BYTES - 16)],
    ids=["empty", "short", "another file", "another version"],
)
def test_a_spoilt_file_reads_as_nothing_and_is_made_anew(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    reader = TrackReader(str(path))
    assert (reader.ok, reader.read_new(), reader.count) == (False, [], 0)
    steps(path, 2)
    assert (len(reader.read_new()), reader.ok) == (2, True)


def test_a_file_that_is_cut_removed_or_replaced(path: Path, tmp_path: Path) -> None:
    steps(path, 3)
    reader = TrackReader(str(path))
    assert len(reader.read_new()) == 3
    os.truncate(path, 100)
    assert (reader.read_new(), reader.ok) == ([], False)
    path.unlink()
    assert (reader.read_new(), reader.ok) == ([], False)
    other = tmp_path / "other"
    steps(other, 4)
    other.rename(path)
    assert (len(reader.read_new()), reader.ok) == (4, True)


def test_a_pipe_or_a_link_in_its_place_reads_as_nothing_at_once(path: Path, tmp_path: Path) -> None:
    os.mkfifo(path)
    reader = TrackReader(str(path))
    assert (reader.ok, reader.read_new(), reader.count) == (False, [], 0)
    path.unlink()
    steps(tmp_path / "another", 3)
    path.symlink_to(tmp_path / "another")
    assert (reader.read_new(), reader.ok) == ([], False)


@pytest.mark.parametrize(("place", "number"), [(16, 2**63), (16, 2**64 - 6), (16, 2**53 + 1), (40, 2**63)])
def test_a_count_or_a_length_that_no_loop_reaches_is_not_believed(path: Path, place: int, number: int) -> None:
    steps(path, 3)
    reader = TrackReader(str(path))
    assert len(reader.read_new()) == 3
    forge(path, place, number)
    for read in (reader, TrackReader(str(path))):
        assert (read.read_new(), read.ok, read.length) == ([], False, 0)
    assert reader.count == 3


def test_a_count_that_grows_faster_than_a_loop_runs_is_not_believed(path: Path) -> None:
    steps(path, 3)
    reader = TrackReader(str(path))
    forge(path, 16, 10**12)
    assert (reader.read_new(), reader.ok, reader.count) == ([], False, 3)


def forge(path: Path, place: int, number: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(struct.pack("<Q", number))


def test_of_many_steps_as_many_as_are_wanted_are_read_evenly(path: Path) -> None:
    reader = TrackReader(str(path))
    steps(path, CAPACITY + 10)
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES)
        for slot in range(CAPACITY):
            # The first ten were overwritten: the slots hold the steps 65536 to 65545 and 10 to 65535.
            file.write(struct.pack("<dd", slot + CAPACITY * (slot < 10), 1.0))
    read = [end for end, _ in reader.read_new(1000)]
    assert read == list(range(10, CAPACITY + 10, 66))
    assert (reader.count, reader.lost, reader.read_new(1000)) == (CAPACITY + 10, 10, [])


def test_a_file_that_cannot_be_made_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), track(str(tmp_path / "no" / "such" / "place")) as tracker:
        tracker.step()
        tracker.step()
    assert not tracker.active
    assert [record.name for record in caplog.records] == ["smore.track"]


def test_a_full_disk_is_one_warning(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with track(str(path)) as tracker:
        tracker.step()
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


def test_the_name_is_the_function_whichever_module_was_imported_first() -> None:
    code = "import smore.tracking.track; import smore; smore.track().step(); print(callable(smore.track))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout == "True\n", done.stderr
