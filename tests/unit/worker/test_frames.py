"""What a worker believes of a runner: nothing. The runner's end of the socket is the test's."""

import json
import math
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, SupportsIndex, cast

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.server.function_description import describe_function
from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause
from smore.testing import ManualClock
from worker.frames import META_BYTES, Answer, BadFrame, Channel, Item, Load, Results, encode, read_answer
from worker.runner import runner_handle
from worker.runner.answers import describe
from worker.runner.runner_handle import Runner, RunnerDied, RunnerFailed, RunnerTimeout

HEADER = struct.Struct("<IQ")
LOAD = Load(entrypoint="m:C", device="cpu", memory_mib=64.0, label="f", results=Results(one=100, together=250))
LOADED = ["loaded", {"import": 1e9, "weights": 1.0, "first_run": 1.0}, 1e300, False]
PATIENCE_S = 60.0
TOO_LARGE = "result_too_large"
#: Beside what is asked for: the objects of one call.
OBJECTS = 1 << 20


def frame(meta: object, body: bytes = b"") -> bytes:
    packed = meta if isinstance(meta, bytes) else msgspec.msgpack.encode(meta)
    return HEADER.pack(len(packed), len(body)) + packed + body


def predicted(*answers: list[object], body: bytes = b"") -> bytes:
    return frame(["predicted", list(answers)], body)


def item(encoding: str = "json", accept: str = "json", rows: int = 1) -> Item:
    return Item(encoding=encoding, accept=accept, rows=rows, length=0)


@contextmanager
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), theirs


class Peer:
    """
    A runner whose process is a thread that answers each request with the next of ``said``; ``killed`` as the worker
    asks for it.
    """

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self.socket = theirs
        self.killed: list[int] = []
        self.said: list[bytes] = [frame(LOADED)]
        self.runner = Runner(7, ours, lambda pid, number: self.killed.append(number))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        channel = Channel(self.socket)
        try:
            while True:
                channel.receive()
                self.socket.sendall(self.said.pop(0))
        except (EOFError, OSError, IndexError):
            return

    def predict(self, said: bytes, *items: Item, timeout_s: float = PATIENCE_S) -> Any:
        self.said.append(said)
        return self.runner.predict(items or (item(),), [b""], "", timeout_s)


@pytest.fixture
def peer() -> Iterator[Peer]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        one = Peer(ours, theirs)
        one.runner.load(LOAD, PATIENCE_S)
        yield one
        ours.shutdown(socket.SHUT_RDWR)
        one.thread.join()


# ---- frames ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"\xff" * 64,
        HEADER.pack(20, 20 << 30),
        HEADER.pack(101, 0),
        HEADER.pack(0, 201),
        HEADER.pack(2**32 - 1, 2**64 - 1),
    ],
)
def test_what_is_announced_beyond_the_bounds_takes_no_memory(head: bytes) -> None:
    with pair() as (channel, theirs):
        theirs.sendall(head)
        tracemalloc.start()
        try:
            with pytest.raises(BadFrame, match="are allowed"):
                channel.receive(100, 200)
            assert tracemalloc.get_traced_memory()[1] < OBJECTS
        finally:
            tracemalloc.stop()


def test_what_is_announced_and_does_not_come_takes_little() -> None:
    with pair() as (channel, theirs):
        theirs.sendall(HEADER.pack(0, 1 << 40))
        theirs.shutdown(socket.SHUT_WR)
        tracemalloc.start()
        try:
            with pytest.raises(EOFError):
                channel.receive(100, 1 << 40)
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    "meta",
    [
        b"\x92\xa9predicted\xdd" + struct.pack(">I", 1 << 20) + b"\x91\xa0" * (1 << 20),
        b"\x94\xa6loaded\xde\xff\xff" + b"".join(b"\xa4%04x\x01" % number for number in range(2**16 - 1)) + b"\x01\xc2",
    ],
    ids=["answers", "phases"],
)
def test_many_small_parts_take_no_memory(meta: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadFrame, match="cannot be read"):
            read_answer(bytearray(meta))
        assert tracemalloc.get_traced_memory()[1] < 2 * len(meta)
    finally:
        tracemalloc.stop()


@settings(deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda meta, body, rest: HEADER.pack(meta, body) + rest,
            st.integers(0, 150),
            st.integers(0, 300),
            st.binary(max_size=400),
        ),
        st.builds(lambda meta, body: HEADER.pack(meta, body), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)),
    )
)
def test_any_bytes_are_a_frame_within_the_bounds_or_an_error_of_the_protocol(sent: bytes) -> None:
    with pair() as (channel, theirs):
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        tracemalloc.start()
        try:
            meta, body = channel.receive(100, 200, time.monotonic() + PATIENCE_S)
            assert HEADER.pack(len(meta), len(body)) + meta + body == sent
        except (BadFrame, EOFError):
            pass
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < OBJECTS


@contextmanager
def dripping(theirs: socket.socket, drop: Callable[[], object]) -> Iterator[list[object]]:
    """One drop every few milliseconds until the end of the block."""
    dropped: list[object] = []
    over = threading.Event()

    def drip() -> None:
        try:
            while not over.wait(0.002):
                dropped.append(drop())
        except OSError:
            return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield dropped
    finally:
        over.set()
        thread.join()


def test_dripping_does_not_lengthen_the_time() -> None:
    """Neither in an answer nor while the request is read."""
    with pair() as (channel, theirs):
        theirs.sendall(HEADER.pack(50_000_000, 0))
        with dripping(theirs, lambda: theirs.send(b"x")) as dropped, pytest.raises(TimeoutError):
            channel.receive(50_000_000, 0, time.monotonic() + 0.2)
        assert dropped
    with pair() as (channel, theirs), dripping(theirs, lambda: theirs.recv(1)), pytest.raises(TimeoutError):
        channel.send(b"", [bytes(50_000_000)], time.monotonic() + 0.2)


def test_a_large_body_comes_whole() -> None:
    """Beyond what is given memory at once."""
    body = bytes(range(256)) * (80 << 10)
    with pair() as (channel, theirs):
        sender = threading.Thread(target=Channel(theirs).send, args=(b"meta", [body]))
        sender.start()
        assert channel.receive(4, len(body), time.monotonic() + PATIENCE_S) == (b"meta", body)
        sender.join()


# ---- answers ---------------------------------------------------------------------------------------------------------

JSON, RAW = item(), item(accept="raw")
ONE = ["json", 1]


@pytest.mark.parametrize(
    ("said", "items"),
    [
        (b"\xff" * 64, [JSON]),
        (frame(b"\xc1"), [JSON]),
        (frame(b""), [JSON]),
        (frame(["nonsense"]), [JSON]),
        (frame(b"\x92\xa9predicted" + b"\x91" * 100_000), [JSON]),
        (frame(b"\x92\xa9predicted\xdd\xff\xff\xff\xff"), [JSON]),
        (frame(LOADED), [JSON]),
        (frame(["prepared"]), [JSON]),
        (frame(["parked", 1.0]), [JSON]),
        (frame(["failed", "handler_error", "text"], b"1"), [JSON]),
        # The platform's own to tell.
        (frame(["failed", "worker_busy", "text"]), [JSON]),
        (frame(["failed", "ok", "text"]), [JSON]),
        (frame(["failed", "no cause", "text"]), [JSON]),
        (predicted(), [JSON]),
        (predicted(ONE, ONE, body=b"11"), [JSON]),
        (predicted(ONE, body=b"1"), [JSON, JSON]),
        (predicted(["json", -1]), [JSON]),
        (predicted(["json", 2], ["json", -1], body=b"1"), [JSON, JSON]),
        (predicted(["json", 2], body=b"1"), [JSON]),
        (predicted(ONE, body=b"11"), [JSON]),
        (predicted(["json", 2**63], body=b"1"), [JSON]),
        (predicted(["json", 101], body=b"1" * 101), [JSON]),
        (predicted(["json", 90], ["json", 90], ["json", 90], body=b"1" * 270), [JSON, JSON, JSON]),
        (predicted(["text", 1], body=b"1"), [JSON]),
        (predicted(["json", 1, "x:BOOL:1"], body=b"1"), [JSON]),
        (predicted(["json", 1, "", "crashed"], body=b"1"), [JSON]),
        (predicted(["error", 0, "", "crashed", "text"]), [JSON]),
        (predicted(["error", 0, "", "out_of_memory", "text"]), [JSON]),
        (predicted(["error", 1, "", "handler_error", "text"], body=b"1"), [JSON]),
        # The envelope that it is pasted into is the platform's.
        (predicted(["json", 32], body=b'1,"state":"failed","id":"zzzzzz"'), [JSON]),
        (predicted(["json", 6], body=b'{"a":"'), [JSON]),
        (predicted(["json", 0]), [JSON]),
        (predicted(["json", 3], body=b"1 2"), [JSON]),
        (predicted(["json", 3], body=b"NaN"), [JSON]),
        (predicted(["json", 3], body=b'"\xff"'), [JSON]),
        (predicted(["json", 8], body=b'"\\ud800"'), [JSON]),
        (predicted(["json", 3], body=b'"\n"'), [JSON]),
        (predicted(["raw", 4, "x:FP32:1"], body=b"\0" * 4), [JSON]),
        (predicted(["raw", 4, "x:FP32:2"], body=b"\0" * 4), [RAW]),
        (predicted(["raw", 4, "x:FP32:1;"], body=b"\0" * 4), [RAW]),
        (predicted(["raw", 4, "x:FP32:-1"], body=b"\0" * 4), [RAW]),
        (predicted(["raw", 4, "x:FP32:1_0"], body=b"\0" * 40), [RAW]),
        (predicted(["raw", 40, "x:FP32:1_0"], body=b"\0" * 40), [RAW]),
        (predicted(["raw", 4, "x\r\nset-cookie\r:FP32:1"], body=b"\0" * 4), [RAW]),
        (predicted(["raw", 4, "x" * 5000 + ":FP32:1"], body=b"\0" * 4), [RAW]),
        (predicted(["raw", 4, ""], body=b"\0" * 4), [RAW]),
        (predicted(["raw", 6, "x:BYTES:1"], body=b"\xff\xff\xff\xff12"), [RAW]),
        (predicted(["json", 2], body=b"[]"), [item(encoding="canary")]),
        (
            predicted(["json", 52], body=b'{"inputs":null,"outputs":null,"memory_mib":"nothing"}'[:52]),
            [item(encoding="canary")],
        ),
        (predicted(["json", 48], body=b'{"inputs":null,"outputs":null,"memory_mib":-1.0}'), [item(encoding="canary")]),
        (frame(encode(Answer(form="json")) + bytes(META_BYTES)), [JSON]),
        (predicted(ONE, body=b"1") * 2, [JSON]),
    ],
)
def test_a_wrong_answer_ends_the_runner(peer: Peer, said: bytes, items: list[Item]) -> None:
    with pytest.raises(BadFrame):
        peer.predict(said, *items)
    assert peer.killed == [9]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (predicted(ONE, body=b"1"), JSON),
        (predicted(["json", 7], body='"\u00e9" '.encode() + b"  "), JSON),
        (predicted(["json", 100], body=b"[" * 50 + b"]" * 50), JSON),
        (predicted(["json", 1], body=b"1"), RAW),
        (predicted(["raw", 12, "a b:FP32:1;y:UINT64:1,1"], body=b"\0" * 12), RAW),
        (predicted(["raw", 5, "x:BYTES:1"], body=b"\1\0\0\0a"), RAW),
        (predicted(["raw", 0, "x:FP32:0,3"]), RAW),
        (predicted(["error", 0, "", "result_too_large", "text"]), JSON),
        # A runner of an older version told these too.
        (frame(["predicted", [ONE], 2**63 - 1, 10**9], b"1"), JSON),
    ],
)
def test_a_right_answer_is_taken_as_it_is_but_its_times_are_ours(peer: Peer, said: bytes, wanted: Item) -> None:
    began = time.monotonic()
    ran = peer.predict(said, wanted)
    assert len(ran.answers) == 1 and said.endswith(ran.results[0]) and len(ran.results[0]) == ran.answers[0].length
    assert 0 < ran.run_s <= time.monotonic() - began and not peer.killed


@settings(deadline=None, max_examples=200)
@given(
    meta=st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda rest: b"\x92\xa9predicted" + rest)),
    body=st.binary(max_size=9),
)
def test_any_answer_is_taken_or_refused(meta: bytes, body: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = Peer(ours, theirs)
        peer.runner.load(LOAD, PATIENCE_S)
        try:
            ran = peer.predict(frame(meta, body), RAW)
            assert len(ran.answers) == 1
        except BadFrame:
            assert peer.killed
        except RunnerFailed:
            assert not peer.killed
        ours.shutdown(socket.SHUT_RDWR)
        peer.thread.join()


def test_a_runner_that_is_a_step_ahead_is_ended_and_nobody_gets_anothers_result(peer: Peer) -> None:
    assert peer.predict(predicted(ONE, body=b"1")).results == [b"1"]
    peer.socket.sendall(predicted(ONE, body=b"2"))
    with pytest.raises(BadFrame, match="before it was asked"):
        peer.predict(predicted(ONE, body=b"3"))
    assert peer.killed == [9]


def test_one_that_closes_its_socket_and_lives_on_is_ended_and_has_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a status it would be taken for the zygote's end: nobody's fault, and tried again without end."""
    monkeypatch.setattr(runner_handle, "_REAP_S", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        runner = Runner(7, ours, lambda _, number: cast(None, runner.gone(-number)))
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(RunnerDied) as died:
            runner.load(LOAD, PATIENCE_S)
        assert died.value.status == -9


def test_time_for_which_it_is_held_counts_neither_against_its_limit_nor_as_run_time(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(100.0)
    monkeypatch.setattr(runner_handle, "time", SimpleNamespace(monotonic=clock))

    class HeldMeanwhile(list[bytes]):
        def pop(self, place: SupportsIndex = -1) -> bytes:
            clock.advance(1.0)
            peer.runner.hold()
            clock.advance(100.0)
            peer.runner.go_on()
            clock.advance(2.0)
            return super().pop(place)

    peer.said = HeldMeanwhile()
    assert peer.predict(predicted(ONE, body=b"2"), timeout_s=5.0).run_s == 3.0
    assert peer.killed == [signal.SIGSTOP, signal.SIGCONT]


def test_what_it_raises_is_told(peer: Peer) -> None:
    with pytest.raises(RunnerFailed, match="no cats") as failed:
        peer.predict(frame(["failed", "handler_error", "no cats"]))
    assert failed.value.cause is Cause.HANDLER_ERROR and not peer.killed
    with pytest.raises(RunnerTimeout):
        peer.predict(HEADER.pack(100, 0), timeout_s=0.05)


def description(**of: object) -> bytes:
    return json.dumps({"inputs": None, "outputs": None, "memory_mib": 1.0} | of).encode()


def tensor(axes: int, name: str = "x") -> dict[str, object]:
    return {"name": name, "datatype": "FP32", "shape": [-1] + [1] * (axes - 1)}


@pytest.mark.parametrize(
    "forged",
    [
        description(inputs=[tensor(33)]),
        description(outputs=[tensor(3000)]),
        description(inputs=[tensor(1, f"x{number}") for number in range(257)]),
        description(memory_mib=1e308),
        description(input_schema={"maximum": 10**4000}),
        description(output_schema={"title": "a\0b"}),
    ],
    ids=["axes", "more axes", "tensors", "memory", "integer", "NUL"],
)
def test_a_forged_description_of_a_first_run_is_refused(forged: bytes) -> None:
    with pytest.raises(BadFrame):
        describe(forged)


def test_the_largest_description_can_be_stored_and_shown() -> None:
    largest = describe(description(inputs=[tensor(32)] * 256, input_schema={"maximum": 10**300}, memory_mib=2**20))
    spec = FunctionSpec(entrypoint="m:C", inputs=tuple(largest.inputs or ()))
    assert orjson.dumps(describe_function("f", 1, spec, {}, "http://x"))


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0])
def test_a_number_that_is_none_ends_the_runner(peer: Peer, number: float) -> None:
    peer.said.append(frame(["parked", number]))
    with pytest.raises(BadFrame):
        peer.runner.park(PATIENCE_S)
    assert peer.killed


@pytest.mark.parametrize(
    "loaded",
    [
        ["loaded", {"import": math.nan, "weights": 1.0, "first_run": 1.0}, 0.0, False],
        ["loaded", {"import": 1.0, "weights": -1.0, "first_run": 1.0}, 0.0, False],
        ["loaded", {"import": 1.0, "weights": 1.0}, 0.0, False],
        ["loaded", {"import": 1.0, "weights": 1.0, "first_run": 1.0, "a label": 1.0}, 0.0, False],
        ["loaded", {"import": 1.0, "weights": 1.0, "first_run": 1.0}, math.inf, False],
    ],
)
def test_a_load_is_described_in_numbers(peer: Peer, loaded: list[object]) -> None:
    peer.said.append(frame(loaded))
    with pytest.raises(BadFrame):
        peer.runner.load(LOAD, PATIENCE_S)


def test_a_load_took_as_long_as_it_took(peer: Peer) -> None:
    """And holds no more than it may, whatever it says."""
    peer.said += [frame(LOADED), frame(["loaded", {"import": 0.0, "weights": 0.0, "first_run": 0.0}, 5.0, False])]
    began = time.monotonic()
    loaded = peer.runner.load(LOAD, PATIENCE_S)
    assert 0 < sum(loaded.phases.values()) <= (time.monotonic() - began) * 1e3
    assert (list(loaded.phases), loaded.phases["weights"], loaded.memory_mib) == (
        ["import", "weights", "first_run"],
        0.0,
        64.0,
    )
    loaded = peer.runner.load(LOAD, PATIENCE_S)
    assert loaded.phases["first_run"] > 0 and loaded.memory_mib == 5.0
    peer.said.append(frame(["loaded", {"host": 1e9}, 5.0, False]))
    assert 0 < peer.runner.restore(PATIENCE_S).phases["host"] < 1e6


# ---- results that are too large, in a real runner --------------------------------------------------------------------


def test_a_result_too_large_is_refused_before_it_is_encoded() -> None:
    """With so little memory that encoding it would end the process; its neighbours in the batch are answered."""
    ours, theirs = socket.socketpair()
    code = (
        "import socket, sys; from worker.runner.runner import *; serve(Channel(socket.socket(fileno=int(sys.argv[1]))))"
    )
    argv = [sys.executable, "-c", code, str(theirs.fileno())]
    with ours, subprocess.Popen(argv, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL) as process:
        theirs.close()
        runner = Runner(process.pid, ours, lambda pid, number: process.send_signal(number))
        results = Results(one=8 << 20, together=12 << 20)

        def predict(*asked: dict[str, object]) -> Any:
            payloads = [json.dumps(one).encode() for one in asked]
            items = [Item(encoding="json", accept="json", rows=1, length=len(payload)) for payload in payloads]
            return runner.predict(items, payloads, "", PATIENCE_S)

        try:
            runner.load(
                Load(
                    entrypoint="tests.support.handlers:Large", device="cpu", memory_mib=16.0, label="f", results=results
                ),
                60,
            )
            ran = predict({"mb": 60}, {"mb": 1}, {"mb": 7, "escaped": True}, {"list": 5_000_000})
            assert [answer.cause or answer.form for answer in ran.answers] == [TOO_LARGE, "json", TOO_LARGE, TOO_LARGE]
            assert "a result may take 8 MiB" in ran.answers[0].message and len(ran.results[1]) == 1_000_002
            # There is no room for what encoding so many at once would take: they are encoded in parts.
            assert [answer.form for answer in predict({"list": 3_000_000}).answers] == ["json"]
            with pytest.raises(RunnerFailed, match="together") as failed:
                predict({"mb": 7}, {"mb": 7})
            assert failed.value.cause is Cause.RESULT_TOO_LARGE
            assert len(predict({"mb": 7}).results[0]) == 7_000_002, "it lives"
        finally:
            process.kill()
