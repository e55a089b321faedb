"""
What a GPU worker and its runners say to each other, and how it is framed.

A frame is ``<u32 length of meta, u64 length of body>``, then the meta (one msgpack array, the structs below), then the body: payloads or
results one after the other, uncopied. The two sides alternate strictly: a request, its answer. The zygote's talk (:class:`Fork` …) is one
msgpack array a packet, because its socket keeps packets apart.
"""

import socket
import struct
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

#: What may stand in a body.
Chunk = bytes | bytearray | memoryview

#: Allowed beyond the declared memory on a CPU: the interpreter's own growth, and what malloc takes ahead (MALLOC_TOP_PAD_).
SLACK_MIB: Final = 128

_HEADER: Final = struct.Struct("<IQ")
#: A message up to this takes one system call to receive.
_FIRST_READ: Final = 64 << 10
#: Buffers in one sendmsg; Linux allows 1024.
_BUFFERS: Final = 512


class _Message(msgspec.Struct, frozen=True, array_like=True):
    pass


# ---- to a runner ------------------------------------------------------------------------------------------------------------------------


class Prepare(_Message, frozen=True, tag="prepare"):
    """A standby runner opens its device, so that no cold start pays for the context."""

    device: str


class Load(_Message, frozen=True, tag="load"):
    entrypoint: str
    device: str
    #: The function's own memory may not grow beyond this.
    memory_mib: float
    #: ``<project>/<name>@<revision>``, for the log.
    label: str
    #: The unpacked folder that the entrypoint is imported from, "" = it is a module of the platform.
    folder: str = ""
    #: What it finds in its environment, and nobody in its log.
    secrets: dict[str, str] = {}
    #: The venv whose packages (:func:`packages_of`) are found before the platform's, "" = none.
    environment: str = ""


class Item(_Message, frozen=True):
    """One invocation of a batch; its payload is the next ``length`` bytes of the body."""

    encoding: str
    accept: str
    rows: int
    length: int


class Predict(_Message, frozen=True, tag="predict"):
    items: list[Item]
    trace: str


class Park(_Message, frozen=True, tag="park"):
    """Move the model's weights to pinned host memory."""


class Restore(_Message, frozen=True, tag="restore"):
    """And back; answered as a load is."""


class Unload(_Message, frozen=True, tag="unload"):
    pass


ToRunner = Prepare | Load | Predict | Park | Restore | Unload

# ---- from a runner ----------------------------------------------------------------------------------------------------------------------


class Prepared(_Message, frozen=True, tag="prepared"):
    pass


class Parked(_Message, frozen=True, tag="parked"):
    #: Of pinned host memory.
    host_mib: float


class Loaded(_Message, frozen=True, tag="loaded"):
    #: Milliseconds: import, weights, first_run; of a parked model ``host`` alone.
    phases: dict[str, float]
    #: Of the device; 0 on a CPU, where the parent reads it from the kernel.
    memory_mib: float
    tensors: bool


class Answer(_Message, frozen=True):
    """One invocation's result: ``form`` json or raw with the next ``length`` bytes of the body, or error with a cause and a message."""

    form: str
    length: int = 0
    shapes: str = ""
    cause: str = ""
    message: str = ""


class Predicted(_Message, frozen=True, tag="predicted"):
    answers: list[Answer]
    run_us: int
    rows: int


class Failed(_Message, frozen=True, tag="failed"):
    """The whole batch, or the load, failed: ``cause`` is one of :class:`smore.domain.invocation.Cause`."""

    cause: str
    message: str


FromRunner = Prepared | Loaded | Parked | Predicted | Failed

# ---- to and from the zygote -------------------------------------------------------------------------------------------------------------


class Confinement(_Message, frozen=True):
    """How runners are shut in (worker/sandbox.py); ``on`` False = not at all."""

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
    #: Whether it may make sockets with a name in the file system, and choose its cores.
    unix_sockets: bool = False
    affinity: bool = False


class Setup(_Message, frozen=True, tag="setup"):
    #: Cores to be pinned to, none = wherever it is.
    cores: list[int]
    #: Threads of a tensor operation, 0 = as torch likes.
    threads: int
    #: How much lower than training's a runner's priority is.
    nice: int
    #: A folder in which every runner gets one of its own.
    scratch: str
    preload: list[str]
    #: The platform's home: nothing of it is a runner's to see.
    home: str = ""
    confinement: Confinement = Confinement(on=False)


class Fork(_Message, frozen=True, tag="fork"):
    """Make a runner that serves the socket which came with this message."""

    token: int


class Kill(_Message, frozen=True, tag="kill"):
    """Only the zygote can signal a runner safely: it knows that it has not reaped it, so the number is still the runner's."""

    pid: int
    signal: int


ToZygote = Setup | Fork | Kill


class Ready(_Message, frozen=True, tag="ready"):
    import_ms: float
    #: What shuts runners in on this machine, in words.
    holds: list[str] = []


class Forked(_Message, frozen=True, tag="forked"):
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

#: The longest packet of the zygote's talk.
ZYGOTE_PACKET: Final = 16 << 10


def packages_of(environment: Path) -> Path:
    """Where the packages of a venv of this interpreter's version lie."""
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(environment)}))


class Channel:
    """Frames over one stream socket, whose time limit holds for each wait. Errors are the socket's; EOFError when the peer is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._first = memoryview(bytearray(_FIRST_READ))

    def send(self, meta: bytes, bodies: Sequence[Chunk] = ()) -> None:
        views = [memoryview(body).cast("B") for body in bodies]
        size = sum(view.nbytes for view in views)
        left = [memoryview(_HEADER.pack(len(meta), size)), memoryview(meta), *(view for view in views if view.nbytes)]
        while left:
            sent = self.socket.sendmsg(left[:_BUFFERS])
            gone = 0
            while gone < len(left) and sent >= left[gone].nbytes:
                sent -= left[gone].nbytes
                gone += 1
            del left[:gone]
            if sent:
                left[0] = left[0][sent:]

    def receive(self) -> tuple[bytearray, bytearray]:
        """(meta, body). The body starts at an address that any tensor may have and belongs to the caller alone."""
        got = self._read(self._first)
        while got < _HEADER.size:
            got += self._read(self._first[got:])
        meta_size, body_size = _HEADER.unpack_from(self._first)
        meta, body = bytearray(meta_size), bytearray(body_size)
        at = _HEADER.size
        for target in (meta, body):
            # What came with the first read, then the rest straight to its place.
            taken = min(len(target), got - at)
            target[:taken] = self._first[at : at + taken]
            at += taken
            view = memoryview(target)
            while taken < len(target):
                taken += self._read(view[taken:])
        return meta, body

    def _read(self, target: memoryview) -> int:
        count = self.socket.recv_into(target)
        if count == 0:
            raise EOFError("the peer is gone")
        return count
