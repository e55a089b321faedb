"""
The messages between a GPU worker and its runners, and their framing.

A frame is ``<u32 length of meta, u64 length of body>``, then the meta (one msgpack array, the structs below), then the
body: payloads or results one after the other, uncopied. The two sides alternate strictly: a request, its answer. The
messages of the zygote (:class:`Fork` …) are one msgpack array a packet, because its socket keeps packets apart.

What must stay true: a runner may be hostile, so what it sends is bounded before memory is allocated for it, and checked
before anybody uses it (:mod:`worker.runner.answers`); what breaks the rules is a :class:`BadFrame`.
"""

import select
import socket
import struct
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec

from smore.domain.function import TensorSpec

#: A piece of a body.
Chunk = bytes | bytearray | memoryview

#: Allowed beyond the declared memory on a CPU: the interpreter's own growth.
SLACK_MIB: Final = 128

#: Invocations of the largest batch.
MOST_ITEMS: Final = 1024
#: The longest meta of an answer: the texts below for each invocation of the largest batch, and room for the rest.
META_BYTES: Final = 5 << 20
#: Most parts of a load.
_MOST_PHASES: Final = 8
#: The longest error text of one invocation in a batch, characters (of up to four bytes), and of a whole batch or load.
ITEM_TEXT: Final = 1000
#: The longest name of a place in an input, characters.
FIELD_TEXT: Final = 160
TEXT: Final = 4000
#: The longest traceback, characters.
TRACEBACK: Final = 8000
#: The largest JSON Schema of an input or output, and how deep it may be.
SCHEMA_BYTES: Final = 64 << 10
SCHEMA_DEPTH: Final = 64
#: A larger example of a handler is not shown.
EXAMPLE_BYTES: Final = 4 << 10
#: The longest description of one invocation's tensors; it becomes a header of the answer.
SHAPES_BYTES: Final = 4096

#: By stream: what stands in a runner's standard output before lines of that stream, which at first is ``stdout``.
MARKS: Final[Mapping[str, bytes]] = MappingProxyType({"stdout": b"\0o\n", "stderr": b"\0e\n"})

_HEADER: Final = struct.Struct("<IQ")
#: A message up to this takes one system call to receive.
_FIRST_READ: Final = 64 << 10
#: Buffers in one sendmsg; Linux allows 1024.
_BUFFERS: Final = 512
#: Bytes of an announced body that are allocated at once; the rest is allocated as it comes.
_STEP: Final = 8 << 20


class BadFrame(Exception):
    """The answer breaks the protocol. The message quotes nothing of it."""


class _Message(msgspec.Struct, frozen=True, array_like=True):
    pass


# ---- to a runner -----------------------------------------------------------------------------------------------------


class Prepare(_Message, frozen=True, tag="prepare"):
    """A standby runner opens its device, so that no cold start pays for the context."""

    device: str


class Results(_Message, frozen=True):
    """Bytes of one result at most, and of all results of a batch."""

    one: int
    together: int


class Load(_Message, frozen=True, tag="load"):
    entrypoint: str
    device: str
    #: What it declares: of the device, or on a CPU partition of the machine.
    memory_mib: float
    results: Results
    #: ``<project>/<name>@<revision>``, for the log.
    label: str
    #: The unpacked folder that the entrypoint is imported from, "" = it is a module of the platform.
    folder: str = ""
    #: For its environment, and hidden in its log.
    secrets: dict[str, str] = {}
    #: The venv whose packages (:func:`packages_of`) are found before the platform's, "" = none.
    environment: str = ""
    #: Invocations of its largest batch.
    max_batch: int = 1
    #: What it may take of the machine's memory, MiB.
    host_mib: float = 0.0


class Item(_Message, frozen=True):
    """One invocation of a batch; its payload is the next ``length`` bytes of the body."""

    encoding: str
    accept: str
    rows: int
    length: int


class Predict(_Message, frozen=True, tag="predict"):
    items: list[Item]


class Park(_Message, frozen=True, tag="park"):
    """Move the model's weights to pinned host memory."""


class Restore(_Message, frozen=True, tag="restore"):
    """Move the weights back to the device; answered as a load is."""


class Unload(_Message, frozen=True, tag="unload"):
    """End; not answered."""


ToRunner = Prepare | Load | Predict | Park | Restore | Unload

# ---- from a runner ---------------------------------------------------------------------------------------------------


class Prepared(_Message, frozen=True, tag="prepared"):
    """The answer to Prepare."""


class Parked(_Message, frozen=True, tag="parked"):
    """The answer to Park."""

    #: Of pinned host memory.
    host_mib: float


class Loaded(_Message, frozen=True, tag="loaded"):
    """The answer to Load and Restore."""

    #: How the load's time divides among its parts, milliseconds: import, weights, first_run; of a parked model host
    #: alone. The worker measures the whole by its own clock.
    phases: Annotated[dict[str, float], msgspec.Meta(max_length=_MOST_PHASES)]
    #: Of the device; 0 on a CPU, where the worker reads it from the kernel.
    memory_mib: float
    tensors: bool


class Answer(_Message, frozen=True):
    """
    One invocation's result: ``form`` json or raw with the next ``length`` bytes of the body, or error with a cause, a
    message and, where an input is wrong, the place in it.

    That of a canary is the JSON of a :class:`Description`.
    """

    form: str
    length: int = 0
    shapes: str = ""
    cause: str = ""
    message: str = ""
    field: str = ""


class Predicted(_Message, frozen=True, tag="predicted"):
    """The answer to Predict."""

    #: Bounded as it is read: two bytes of meta can stand for an answer, which is a hundred in memory.
    answers: Annotated[list[Answer], msgspec.Meta(max_length=MOST_ITEMS)]


class Failed(_Message, frozen=True, tag="failed"):
    """
    The whole batch, or the load, failed: ``cause`` is one of :class:`smore.domain.invocation.Cause`; ``traceback``: the
    frames of user code, '' where it raised nothing.
    """

    cause: str
    message: str
    traceback: str = ""


FromRunner = Prepared | Loaded | Parked | Predicted | Failed


class Description(msgspec.Struct, frozen=True):
    """
    The inputs and outputs of a canary, None = JSON values; ``memory_mib``: what the runner holds then; ``peak_mib``: the
    most that it has held of the machine's memory, and ``limit_mib``: what it may, 0 = not bounded. ``*_schema``: the JSON
    Schema of one input and of one output, None = the handler declares none (worker/runner/declared.py). ``example``: the
    handler's, as JSON has it; None = it is not shown.
    """

    inputs: list[TensorSpec] | None
    outputs: list[TensorSpec] | None
    memory_mib: float
    peak_mib: float = 0.0
    limit_mib: float = 0.0
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    example: Any = None


# ---- to and from the zygote ------------------------------------------------------------------------------------------


class Confinement(_Message, frozen=True):
    """How runners are confined (worker/sandbox/warden.py); ``on`` False = not at all."""

    on: bool = True
    #: Where the machine allows it, each runner is a user of its own and sees little of the file system.
    own_users: bool = True
    #: Files and folders that a handler may read beside the installation, and may write beside its scratch folder.
    readable: list[str] = []
    writable: list[str] = []
    #: Ports to which it may connect; None = any, and it may listen too.
    tcp_ports: list[int] | None = []
    #: Of one runner, threads counted.
    processes: int = 256
    #: Its scratch folder's size, and its largest file's.
    scratch_mib: int = 256
    #: Whether it may make unix sockets that keep packets apart (CUDA does), and choose its cores.
    unix_sockets: bool = False
    affinity: bool = False


class Setup(_Message, frozen=True, tag="setup"):
    """
    Become the zygote of the worker that sends this. It comes with four descriptors: the folder of the nursery's socket,
    opened for reading, which no runner can do; the worker's process (a pidfd), with which the zygote ends; the zygote's
    standard output and error.
    """

    #: Cores to be pinned to.
    cores: list[int]
    #: Threads of a tensor operation, 0 = torch's default.
    threads: int
    #: How much lower than training's a runner's priority is.
    nice: int
    #: Environment variables of the zygote and its runners.
    environment: dict[str, str]
    #: A folder in which every runner gets one of its own.
    scratch: str
    #: The platform's home, which no runner may see.
    home: str = ""
    confinement: Confinement = Confinement(on=False)


class Fork(_Message, frozen=True, tag="fork"):
    """
    Fork a runner that serves the socket which comes with this message; ``token`` comes back in the answer. Two more
    descriptors are its standard output and standard error; without them it has the zygote's.
    """

    token: int


class Kill(_Message, frozen=True, tag="kill"):
    """
    Send a runner's process group a signal. Only the zygote can do so safely: as long as it has not reaped the runner,
    the number is still the runner's.
    """

    pid: int
    signal: int


ToZygote = Setup | Fork | Kill


class Ready(_Message, frozen=True, tag="ready"):
    """The zygote's first message. ``pid``: its process, and its session."""

    pid: int
    #: What confines runners on this machine, in words.
    holds: list[str] = []


class Forked(_Message, frozen=True, tag="forked"):
    """The runner that was asked for with ``token``."""

    token: int
    pid: int


class Exited(_Message, frozen=True, tag="exited"):
    """``status`` as in :attr:`subprocess.Popen.returncode`: negative = by that signal."""

    pid: int
    status: int


FromZygote = Ready | Forked | Exited

encode = msgspec.msgpack.Encoder().encode
decode_to_runner = msgspec.msgpack.Decoder(ToRunner).decode
decode_from_runner = msgspec.msgpack.Decoder(FromRunner).decode
decode_to_zygote = msgspec.msgpack.Decoder(ToZygote).decode
decode_from_zygote = msgspec.msgpack.Decoder(FromZygote).decode

#: Bytes of the longest packet to and from a zygote.
ZYGOTE_PACKET: Final = 64 << 10


def read_answer(meta: bytearray) -> FromRunner:
    """The message in the meta of a runner's answer. Raises BadFrame."""
    try:
        answer: FromRunner = decode_from_runner(meta)
        return answer
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrame("its answer cannot be read") from error


def packages_of(environment: Path) -> Path:
    """Where the packages of a venv of this interpreter's version lie."""
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(environment)}))


class Channel:
    """
    Frames over one stream socket. Errors are the socket's; EOFError when the peer is gone, TimeoutError at the
    deadline, BadFrame. Deadlines are seconds of ``clock``, which may stand still.
    """

    def __init__(self, sock: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        self.socket = sock
        self._clock = clock
        self._first = memoryview(bytearray(_FIRST_READ))
        self._waiting = select.poll()
        self._waiting.register(sock, select.POLLIN)

    def expect_silence(self) -> None:
        """Raises BadFrame where the peer has sent something before it was asked, EOFError where it is gone."""
        if self._waiting.poll(0):
            self._read(self._first[:1], None)
            raise BadFrame("it spoke before it was asked")

    def send(self, meta: bytes, bodies: Sequence[Chunk] = (), until: float | None = None) -> None:
        """Send one frame. ``until`` bounds the whole, None = unbounded."""
        views = [memoryview(body).cast("B") for body in bodies]
        size = sum(view.nbytes for view in views)
        left = [memoryview(_HEADER.pack(len(meta), size)), memoryview(meta), *(view for view in views if view.nbytes)]
        while left:
            self._limit(until)
            sent = self.socket.sendmsg(left[:_BUFFERS])
            gone = 0
            while gone < len(left) and sent >= left[gone].nbytes:
                sent -= left[gone].nbytes
                gone += 1
            del left[:gone]
            if sent:
                left[0] = left[0][sent:]

    def receive(
        self, meta_bytes: int | None = None, body_bytes: int | None = None, until: float | None = None
    ) -> tuple[bytearray, bytearray]:
        """
        (meta, body) of one frame. The body is aligned for every tensor and belongs to the caller alone.

        Raises BadFrame, before memory is allocated for it, where either would be longer than allowed (None = any
        length), and where bytes follow the frame. ``until`` bounds the whole.
        """
        got = self._read(self._first, until)
        while got < _HEADER.size:
            got += self._read(self._first[got:], until)
        meta_size, body_size = _HEADER.unpack_from(self._first)
        if meta_bytes is not None and meta_size > meta_bytes:
            raise BadFrame(f"its answer would have {meta_size} bytes of meta, {meta_bytes} are allowed")
        if body_bytes is not None and body_size > body_bytes:
            raise BadFrame(f"its answer would have {body_size} bytes of results, {body_bytes} are allowed")
        if got > _HEADER.size + meta_size + body_size:
            raise BadFrame("more bytes follow its answer")
        # The bytes of the first read, then the rest, read straight into its place.
        start = _HEADER.size
        meta = self._take(meta_size, self._first[start:got], until)
        body = self._take(body_size, self._first[start + meta_size : got], until)
        return meta, body

    def _take(self, size: int, come: memoryview, until: float | None) -> bytearray:
        target = bytearray(min(size, _STEP))
        taken = min(size, len(come))
        target[:taken] = come[:taken]
        while taken < size:
            if taken == len(target):
                # As much again as has come: a peer that announces much and sends little gets little memory.
                target += bytes(min(taken, size - taken))
            with memoryview(target) as view:
                while taken < len(target):
                    taken += self._read(view[taken:], until)
        return target

    def _read(self, target: memoryview, until: float | None) -> int:
        while True:
            self._limit(until)
            try:
                count = self.socket.recv_into(target)
                break
            except TimeoutError:
                continue  # over, unless the clock has stood still
        if count == 0:
            raise EOFError("the peer is gone")
        return count

    def _limit(self, until: float | None) -> None:
        if until is not None:
            left_s = until - self._clock()
            if left_s <= 0:
                raise TimeoutError("the time is over")
            self.socket.settimeout(left_s)
