"""What functions print, on its way to Redis: pieces, the rate of each function, what is said of lines that are missing."""

import os
from collections.abc import Iterable, Sequence
from typing import cast

import redis

from smore.messages.logs import LogPiece
from smore.process.settings import LogSettings
from smore.redis.logs import LogWriter
from tests.support.eventually import eventually
from worker.frames import MARKS
from worker.function_logs import BURST_S, LINE_COST, MARK_S, PIECE_BYTES, FunctionLogs
from worker.runner.masking import Mask
from worker.runner.output import PIPE_BYTES, OutputReader, Printed

BOUNDS = LogSettings(bytes_per_s=1024, line_bytes=100)


class Redis:
    """What is appended; ``away`` refuses."""

    def __init__(self) -> None:
        self.away = False
        self.pieces: list[tuple[str, LogPiece]] = []

    def append(self, pieces: Iterable[tuple[str, LogPiece]]) -> None:
        if self.away:
            raise redis.ConnectionError
        self.pieces += pieces

    def texts(self, function: str = "p/f", stream: str = "stdout") -> list[str]:
        return [
            line
            for name, piece in self.pieces
            for line in piece.lines
            if (name, piece.stream) == (f"function/{function}", stream)
        ]


class Stage:
    def __init__(self) -> None:
        self.now = 100.0
        self.redis = Redis()
        self.logs = FunctionLogs(cast(LogWriter, self.redis), BOUNDS, "cpu0", clock=lambda: self.now)

    def take(self, *lines: str, function: str = "p/f", invocations: Sequence[str] = ()) -> None:
        text = "".join(f"{line}\n" for line in lines).encode()
        self.logs.take(
            Printed(at=7.0, function=function, revision=2, pid=9, stream="stdout", invocations=invocations, text=text)
        )


def test_lines_travel_together_in_pieces_of_bounded_size() -> None:
    stage = Stage()
    stage.take("a", "", "c", invocations=["i", "j"])
    stage.take(*["x" * 90] * 60, function="p/g")
    assert stage.logs.send() > 2
    (first, *others) = [piece for _, piece in stage.redis.pieces]
    assert (first.lines, first.invocations, first.revision, first.pid) == (["a", "", "c"], ["i", "j"], 2, 9)
    assert (first.at, first.gpu, first.stream) == (7.0, "cpu0", "stdout")
    assert sum(len(piece.lines) for piece in others) == 60
    assert all(sum(map(len, piece.lines)) <= PIECE_BYTES for piece in others)
    assert stage.logs.send() == 0


def test_a_long_line_is_cut_and_says_so() -> None:
    stage = Stage()
    stage.take("ü" * 99)
    stage.logs.send()
    assert stage.redis.texts() == [f"{'ü' * 50} … [98 bytes cut]"]


def test_a_function_that_prints_too_fast_loses_lines_and_nobody_else_does() -> None:
    stage = Stage()
    stage.take(*["x"] * 1000)
    stage.take("y", function="p/g")
    stage.logs.send()
    burst = BOUNDS.bytes_per_s * BURST_S // (LINE_COST + 1)
    assert stage.redis.texts() == ["x"] * burst and stage.redis.texts("p/g") == ["y"]
    (said,) = stage.redis.texts(stream="smore")
    assert said.startswith(f"{1000 - burst} lines were dropped: ")
    # It is said once a second at most, and then of all that were dropped meanwhile.
    stage.take("x", "x")
    stage.take("x")
    stage.logs.send()
    assert len(stage.redis.texts(stream="smore")) == 1
    stage.now += MARK_S
    stage.take(*["x"] * 20)
    stage.logs.send()
    second = BOUNDS.bytes_per_s // (LINE_COST + 1)
    assert stage.redis.texts()[burst:] == ["x"] * second
    assert stage.redis.texts(stream="smore")[1].startswith(f"{3 + 20 - second} lines ")


def test_what_is_lost_while_redis_is_away_is_counted() -> None:
    stage = Stage()
    stage.redis.away = True
    stage.take("a", "b")
    for _ in range(2):
        try:
            stage.logs.send()
        except redis.ConnectionError:
            stage.now += MARK_S
            stage.take("c")
    stage.redis.away = False
    stage.now += MARK_S
    stage.take("d")
    stage.logs.send()
    assert stage.redis.texts() == ["c", "d"]
    assert stage.redis.texts(stream="smore")[0].startswith("3 lines were dropped")


def test_the_platforms_own_word_is_not_held_back() -> None:
    stage = Stage()
    stage.take(*["x"] * 1000)
    stage.logs.tell("p/f", 3, ["i"], "crashed: The runner ended by SIGSEGV.")
    stage.logs.send()
    word = next(piece for _, piece in stage.redis.pieces if piece.lines[0].startswith("crashed"))
    assert (word.stream, word.revision, word.invocations) == ("smore", 3, ["i"])


def test_a_line_belongs_to_the_batch_that_printed_it() -> None:
    """Also where nobody has read the pipe before the batch ended, and where a process holds it open."""
    taken: list[Printed] = []
    reader = OutputReader(taken.append)
    output, (out, err) = reader.open()
    output.belong_to("p/f", 2, Mask())
    os.write(out, b"at the load\nhal")
    output.end()
    output.begin(["i"])
    os.write(err, b"of i\n")
    output.end()
    os.write(out, b"of none\n")
    reader.start()
    eventually(lambda: len(taken) == 4, what="the thread reads")
    assert [(one.text, one.stream, list(one.invocations)) for one in taken] == [
        (b"at the load\n", "stdout", []),
        (b"hal\n", "stdout", []),
        (b"of i\n", "stderr", ["i"]),
        (b"of none\n", "stdout", []),
    ]
    # Both streams of Python code come in one pipe, so that their order is kept.
    output.begin(["j"])
    os.write(out, MARKS["stderr"] + b"1\n" + MARKS["stdout"] + b"2\n3\n" + MARKS["stderr"] + b"4\n")
    output.end()
    assert [(one.text, one.stream) for one in taken[4:]] == [
        (b"1\n", "stderr"),
        (b"2\n3\n", "stdout"),
        (b"4\n", "stderr"),
    ]
    os.write(err, b"last words")
    output.close()
    assert (taken[-1].text, taken[-1].stream) == (b"last words\n", "stderr")
    output.end()
    output.close()
    reader.stop()
    for end in (out, err):
        os.close(end)


def test_secrets_are_masked_however_they_are_written() -> None:
    """Native code and child processes write to the pipe themselves: whole, in parts, and without an end of the line."""
    taken: list[Printed] = []
    output, (out, err) = OutputReader(taken.append).open()
    output.belong_to("p/f", 2, Mask(["hunter2-hunter2"]))

    def printed(*writes: bytes) -> bytes:
        taken.clear()
        for data in writes:
            os.write(out, data)
            output.end()
        return b"".join(one.text for one in taken)

    assert printed(b"it is hunter2-hunter2\n") == b"it is ***\n"
    # A batch ends in the middle of it, and then in the middle of something else.
    assert printed(b"it is hunter2-hu", b"nter2\n") == b"it is \n***\n"
    assert printed(b"it is hu", b"ge\n") == b"it is \nhuge\n"
    long = b"x" * (PIPE_BYTES // 2)
    assert printed(long + b"hunter2-", b"hunter2\n") == long + b"\n***\n"
    os.write(err, b"the last: hunter2-hunter2")
    output.close()
    assert taken[-1].text == b"the last: ***\n"
    for end in (out, err):
        os.close(end)
