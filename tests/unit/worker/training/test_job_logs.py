"""What jobs print reaches their logs once and in its order."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
import redis

from smore.messages.logs import LogPiece
from smore.messages.reports import JobReport
from smore.process.settings import LogSettings
from worker.training.job_logs import JobLogs


class Log:
    """A writer that keeps what it gets; ``away``: it raises as Redis does."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[LogPiece]] = {}
        self.away = False

    def append(self, pieces: Iterable[tuple[str, LogPiece]]) -> None:
        if self.away:
            raise redis.ConnectionError
        for log, piece in pieces:
            self.pieces.setdefault(log, []).append(piece)

    def newest(self, log: str) -> LogPiece | None:
        if self.away:
            raise redis.ConnectionError
        return next(reversed(self.pieces.get(log, [])), None)

    def lines(self, log: str = "job/j/0") -> list[str]:
        return [line for piece in self.pieces.get(log, []) for line in piece.lines]


class Stage:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = Log()
        self.state = "running"
        self.attempt = 1
        self.reported = True
        self.worker()

    def worker(self) -> None:
        """Another worker in place of the last one."""
        self.sender = JobLogs(
            self.log,  # type: ignore[arg-type]
            LogSettings(line_bytes=80, bytes_per_s=1024),
            "cpu0",
            folder=self.folder,
            ranks=lambda: [
                JobReport(
                    id="j",
                    project="p",
                    state=self.state,
                    pid=1,
                    memory_mib=0,
                    iterations=0,
                    attempt=self.attempt,
                )
            ][: int(self.reported)],
        )

    def print(self, text: str) -> None:
        with (self.folder / f"job-j.{self.attempt}.0.log").open("a", newline="") as file:
            file.write(text)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_whole_lines_go_once_also_by_the_next_worker_and_the_next_attempt(stage: Stage) -> None:
    stage.sender.send()
    stage.print("one\ntwo\nthr")
    stage.sender.send()
    stage.sender.send()
    assert stage.log.lines() == ["one", "two"]
    stage.worker()
    stage.print("ee\n 5 %\r 10 %\n")
    stage.sender.send()
    assert stage.log.lines() == ["one", "two", "three", " 10 %"]
    stage.attempt = 2
    stage.print("again\n" + "x" * 100 + "\nlast")
    stage.state = "ended"
    stage.sender.send()
    assert stage.log.lines()[4:] == ["again", "x" * 80 + " … [20 bytes cut]", "last"]
    assert [piece.attempt for piece in stage.log.pieces["job/j/0"]][-1] == 2


def test_what_was_printed_while_redis_was_away_is_sent_afterwards(stage: Stage) -> None:
    stage.print("one\n")
    stage.sender.send()
    stage.log.away = True
    stage.print("two\n")
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            stage.sender.send()
    stage.log.away = False
    stage.sender.send()
    assert stage.log.lines() == ["one", "two"]


def test_what_is_printed_faster_than_allowed_is_left_out_and_said(stage: Stage) -> None:
    stage.print("".join(f"line {number:05}\n" for number in range(4000)))
    for _ in range(50):
        stage.sender.send()
    lines = stage.log.lines()
    assert "bytes were left out" in lines[0]
    assert lines[1:] == [f"line {number:05}" for number in range(4000 - len(lines) + 1, 4000)]
    # A line that is longer than what one look takes.
    stage.print("y" * 3000 + "\nend\n")
    for _ in range(5):
        stage.sender.send()
    assert stage.log.lines()[-1] == "end"


def test_it_is_known_whether_all_that_a_rank_printed_is_sent(stage: Stage) -> None:
    """Of a rank too that has started, ended and been recorded between two looks: it is not forgotten before."""
    assert stage.sender.shipped("j.1.0"), "it has printed nothing"
    stage.print("one\nends")
    stage.state = "ended"
    assert not stage.sender.shipped("j.1.0")
    stage.log.away = True
    with pytest.raises(redis.ConnectionError):
        stage.sender.send()
    assert not stage.sender.shipped("j.1.0")
    stage.log.away = False
    stage.sender.send()
    assert stage.sender.shipped("j.1.0")
    stage.reported = False
    stage.sender.send()
    assert stage.log.lines() == ["one", "ends"]


def test_a_pipe_in_place_of_a_log_holds_up_no_other_job(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job-evil.1.0.log")
    (tmp_path / "job-j.1.0.log").write_text("one\n")
    log = Log()
    about = {"project": "p", "state": "running", "pid": 1, "memory_mib": 0.0, "iterations": 0, "attempt": 1}
    sender = JobLogs(
        log,  # type: ignore[arg-type]
        LogSettings(),
        "cpu0",
        folder=tmp_path,
        ranks=lambda: [JobReport(id="evil", **about), JobReport(id="j", **about)],  # type: ignore[arg-type]
    )
    sender.send()
    assert log.lines() == ["one"]
    assert sender.shipped("evil.1.0"), "nothing keeps it from being forgotten"
