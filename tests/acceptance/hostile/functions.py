"""
Functions that want out. Each attempt answers what it got, or the error that it met; none is clever enough to hide.
"""

import array
import contextlib
import ctypes
import fcntl
import mmap
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from smore.handler import Handler
from worker.frames import Setup, encode


def read(item: dict[str, Any]) -> object:
    return Path(item["path"]).read_bytes()[:64].hex()


def listing(item: dict[str, Any]) -> object:
    return sorted(os.listdir(item["path"]))


def write(item: dict[str, Any]) -> object:
    return Path(item["path"]).write_text(item.get("text", "overwritten"))


def environment(item: dict[str, Any]) -> object:
    """Of every process that there is."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if pid != os.getpid():
            try:
                found[pid] = Path(f"/proc/{pid}/environ").read_text()[:64]
            except OSError:
                continue
    return found


def own_environment(item: dict[str, Any]) -> object:
    return dict(os.environ)


def descriptors(item: dict[str, Any]) -> object:
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return names


def connect(item: dict[str, Any]) -> object:
    with socket.create_connection((item["host"], item["port"]), timeout=3) as connection:
        return connection.getpeername()


MSG_FASTOPEN, TCP_FASTOPEN_CONNECT, TCP_ULP = 0x20000000, 30, 31
IPPROTO_SCTP, IPPROTO_SMC, IPPROTO_MPTCP = 132, 256, 262
AF_SMC = 43


class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


class Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(Vector)),
        ("vectors_length", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("sent", ctypes.c_uint32),
    )


def _send_many(connection: socket.socket, data: bytes, flags: int, address: tuple[str, int]) -> None:
    """``sendmmsg`` of one message, which Python has not."""
    name = struct.pack(
        "=HHI8x", socket.AF_INET, socket.htons(address[1]), int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    )
    vector = Vector(data, len(data))
    message = Message(name=name, name_length=len(name), vectors=ctypes.pointer(vector), vectors_length=1)
    if ctypes.CDLL(None, use_errno=True).sendmmsg(connection.fileno(), ctypes.byref(message), 1, flags) < 0:
        raise OSError(ctypes.get_errno(), "sendmmsg")


def _connected_as_subflow(connection: socket.socket, address: tuple[str, int]) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"mptcp")
    connection.connect(address)


def _fast_connect(connection: socket.socket, address: tuple[str, int]) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
    connection.connect(address)
    connection.send(b"hello")


#: How a stream to an IPv4 address can be begun: what socket() is given, and what is done with the socket.
STREAMS: dict[str, tuple[tuple[int, ...], Callable[[socket.socket, tuple[str, int]], object]]] = {
    "plain": ((socket.AF_INET, socket.SOCK_STREAM), socket.socket.connect),
    "flags": ((socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, 6), socket.socket.connect),
    "mapped": ((socket.AF_INET6, socket.SOCK_STREAM), lambda sock, to: sock.connect((f"::ffff:{to[0]}", to[1]))),
    "mptcp": ((socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP), socket.socket.connect),
    "mptcp mapped": (
        (socket.AF_INET6, socket.SOCK_STREAM, IPPROTO_MPTCP),
        lambda sock, to: sock.connect((f"::ffff:{to[0]}", to[1])),
    ),
    "mptcp by option": ((socket.AF_INET, socket.SOCK_STREAM), _connected_as_subflow),
    "smc": ((AF_SMC, socket.SOCK_STREAM), socket.socket.connect),
    "smc by protocol": ((socket.AF_INET, socket.SOCK_STREAM, IPPROTO_SMC), socket.socket.connect),
    "sctp": ((socket.AF_INET, socket.SOCK_STREAM, IPPROTO_SCTP), socket.socket.connect),
    "raw": ((socket.AF_INET, socket.SOCK_RAW, 6), lambda sock, to: sock.sendto(b"hello", to)),
    "fast open, sendto": (
        (socket.AF_INET, socket.SOCK_STREAM),
        lambda sock, to: sock.sendto(b"hello", MSG_FASTOPEN, to),
    ),
    "fast open, sendmsg": (
        (socket.AF_INET, socket.SOCK_STREAM),
        lambda sock, to: sock.sendmsg([b"hello"], [], MSG_FASTOPEN, to),
    ),
    "fast open, sendmmsg": (
        (socket.AF_INET, socket.SOCK_STREAM),
        lambda sock, to: _send_many(sock, b"hello", MSG_FASTOPEN, to),
    ),
    "fast open, option": ((socket.AF_INET, socket.SOCK_STREAM), _fast_connect),
}


def stream(item: dict[str, Any]) -> object:
    """Begin one in each of those ways; those that were not refused."""
    begun = []
    for name, (made, begin) in STREAMS.items():
        with contextlib.suppress(OSError), socket.socket(*made) as connection:
            # Python's own time limit would make the socket one that does not wait, and a connection begun an error.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 3, 0))
            begin(connection, (item["host"], item["port"]))
            begun.append(name)
    return begun


def _bound(connection: socket.socket) -> None:
    connection.bind(("", 0))
    connection.listen()


def _listening_at_a_path(connection: socket.socket) -> None:
    connection.bind("socket")
    connection.listen()


def _bound_when_unspecified(connection: socket.socket) -> None:
    """A connection to nobody leaves the socket as it was, and is no connection to Landlock."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).connect(connection.fileno(), bytes(16), 16)
    connection.listen()


#: How one can be waited for.
OFFERS: dict[str, tuple[tuple[int, ...], Callable[[socket.socket], object]]] = {
    "bound": ((socket.AF_INET, socket.SOCK_STREAM), _bound),
    "unbound": ((socket.AF_INET, socket.SOCK_STREAM), socket.socket.listen),
    "unbound, disconnected": ((socket.AF_INET, socket.SOCK_STREAM), _bound_when_unspecified),
    "unbound on IPv6": ((socket.AF_INET6, socket.SOCK_STREAM), socket.socket.listen),
    "mptcp": ((socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP), _bound),
    "mptcp unbound": ((socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP), socket.socket.listen),
    "smc": ((AF_SMC, socket.SOCK_STREAM), socket.socket.listen),
    "vsock": ((socket.AF_VSOCK, socket.SOCK_STREAM), socket.socket.listen),
    "unix": ((socket.AF_UNIX, socket.SOCK_STREAM), _listening_at_a_path),
}


def listen(item: dict[str, Any]) -> object:
    """Listen in each of those ways; those that were not refused."""
    heard = []
    for name, (made, begin) in OFFERS.items():
        with contextlib.suppress(OSError), socket.socket(*made) as server:
            begin(server)
            heard.append(name)
    return heard


def sockets(item: dict[str, Any]) -> object:
    """
    Every (family, type, protocol) that the kernel makes a socket of here, and every (family, type) of which it makes a
    pair.
    """
    libc = ctypes.CDLL(None)
    made, pairs, ends = set(), [], (ctypes.c_int * 2)()
    for family in range(64):
        for kind in range(1, 12):
            for protocol in range(512):
                descriptor = libc.socket(family, kind, protocol)
                if descriptor >= 0:
                    os.close(descriptor)
                    made.add((family, kind, protocol))
            if libc.socketpair(family, kind, 0, ends) == 0:
                os.close(ends[0])
                os.close(ends[1])
                pairs.append((family, kind))
    return {"made": sorted(made), "pairs": pairs}


def resolve(item: dict[str, Any]) -> object:
    return sorted({found[4][0] for found in socket.getaddrinfo(item["host"], 80, flags=socket.AI_ADDRCONFIG)})


def unix(item: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(item["path"])
        return "connected"


def zygote(item: dict[str, Any]) -> object:
    """
    Ask the nursery at ``path`` for a zygote, whose runners would be shut into nothing; what each request was answered.
    """
    folder = os.path.dirname(item["path"])
    doors = {"own folder": os.open(".", os.O_RDONLY), "name of the folder": os.open(folder, os.O_PATH)}
    setup = Setup(cores=[0], threads=0, nice=0, environment={}, scratch=os.path.abspath("scratch"))
    answers = {}
    for name, door in doors.items():
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.settimeout(30)
            control.connect(item["path"])
            socket.send_fds(control, [encode(setup)], [door, os.pidfd_open(os.getpid()), 1, 2])
            answers[name] = control.recv(1 << 16).hex()
    return answers


def fork_bomb(item: dict[str, Any]) -> object:
    made = 0
    try:
        while made < 5000:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            made += 1
    except OSError as error:
        return {"made": made, "error": str(error)}
    return {"made": made}


def fill_disk(item: dict[str, Any]) -> object:
    """In many files, so that a bound on one file is none; then wherever else it might be let."""
    written, ended = 0, ""
    block = b"\1" * (1 << 20)
    try:
        for number in range(100_000):
            with open(f"fill-{number}", "wb") as file:
                for _ in range(16):
                    written += file.write(block)
                    if written > 4 << 30:
                        return {"written": written}
    except OSError as error:
        ended = str(error)
    elsewhere = []
    for folder in ("/tmp", "/var/tmp", "/dev/shm", str(Path(__file__).parents[3]), "/"):
        try:
            with open(f"{folder}/smore-hostile", "wb") as file:
                file.write(block)
            elsewhere.append(folder)
        except OSError:
            continue
    return {"written": written, "error": ended, "elsewhere": elsewhere}


def allocate(item: dict[str, Any]) -> object:
    held = []
    while True:
        held.append(b"\1" * (16 << 20))


def allocate_shared(item: dict[str, Any]) -> object:
    """Memory that no limit of a process counts: shared and without a file."""
    held = []
    while True:
        held.append(mmap.mmap(-1, 64 << 20))
        held[-1].write(b"\1" * (64 << 20))


def allocate_in_children(item: dict[str, Any]) -> object:
    for _ in range(32):
        if os.fork() == 0:
            held = [b"\1" * (1 << 20) for _ in range(100)]
            time.sleep(60)
            os._exit(len(held))
    time.sleep(60)
    return "all of it"


def crash(item: dict[str, Any]) -> object:
    ctypes.string_at(0)
    return "alive"


def tell(item: dict[str, Any]) -> object:
    value = os.environ[item["name"]]
    print(f"the secret is {value}")
    sys.stderr.write(f"and again {value}\n")
    os.write(1, f"natively {value}\n".encode())
    if item.get("raise"):
        raise ValueError(f"it did not like {value}")
    return len(value)


def has(item: dict[str, Any]) -> object:
    return {name: name in os.environ for name in item["names"]}


def shoot(item: dict[str, Any]) -> object:
    os.kill(item.get("pid") or os.getppid(), signal.SIGKILL)
    return "sent"


def shoot_all(item: dict[str, Any]) -> object:
    hit = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if pid not in (1, os.getpid()):
            try:
                os.kill(pid, 0)
                hit.append(pid)
            except OSError:
                continue
    return hit


def trace(item: dict[str, Any]) -> object:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, item.get("pid") or os.getppid(), None, None):
        raise OSError(ctypes.get_errno(), "ptrace")
    return "attached"


def daemon(item: dict[str, Any]) -> object:
    """As a daemon does it: a child of a child, a session of its own where that goes."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        with contextlib.suppress(OSError):
            os.setsid()
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        pid = os.fork()
        if pid:
            os._exit(0)
        os.write(writing, f"{os.getpid()}\n".encode())
        time.sleep(300)
        os._exit(0)
    return int(os.read(reading, 32))


def become_root(item: dict[str, Any]) -> object:
    for program in ("su", "sudo", "mount", "unshare"):
        done = subprocess.run([program, "-r", "id"], capture_output=True, text=True, timeout=5)
        if done.returncode == 0:
            return done.stdout
    os.setuid(0)
    return os.getuid()


def own_socket() -> int:
    """The one that the worker speaks to it by."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    (number,) = [
        one for one in numbers if os.path.exists(f"/proc/self/fd/{one}") and stat.S_ISSOCK(os.fstat(one).st_mode)
    ]
    return number


def say(item: dict[str, Any]) -> object:
    """
    Write these bytes to the worker, in the platform's place, and return once it has read them: then its own answer is
    surplus.
    """
    number = own_socket()
    os.write(number, bytes.fromhex(item["frame"]))
    unread = array.array("i", [1])
    while unread[0]:
        fcntl.ioctl(number, termios.TIOCOUTQ, unread)
        time.sleep(0.001)
    return "said"


def drip(item: dict[str, Any]) -> object:
    """The head of a large answer, and then a byte now and then."""
    number = own_socket()
    os.write(number, struct.pack("<IQ", 4 << 20, 0))
    while True:
        os.write(number, b"x")
        time.sleep(0.05)


def large(item: dict[str, Any]) -> object:
    return "x" * (item["mb"] * 1_000_000)


def who(item: dict[str, Any]) -> object:
    status = Path("/proc/self/status").read_text()
    kept = ("Uid", "Gid", "CapEff", "CapPrm", "NoNewPrivs", "Seccomp")
    return {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.split(":")[0] in kept}


ATTEMPTS: dict[str, Callable[[dict[str, Any]], object]] = {
    one.__name__: one
    for one in (
        read,
        listing,
        write,
        environment,
        own_environment,
        descriptors,
        connect,
        stream,
        listen,
        sockets,
        resolve,
        unix,
        zygote,
        fork_bomb,
        fill_disk,
        allocate,
        allocate_shared,
        allocate_in_children,
        crash,
        tell,
        has,
        shoot,
        shoot_all,
        trace,
        daemon,
        become_root,
        say,
        drip,
        large,
        who,
    )
}


class Hostile(Handler):
    """``{"do": attempt, …}`` to ``{"got": …}`` or ``{"refused": the error}``; ``tell`` with ``raise`` raises."""

    example: ClassVar = {"do": "who"}

    def predict(self, inputs: list[dict[str, Any]]) -> list[Any]:
        return [self._try(item) for item in inputs]

    def _try(self, item: dict[str, Any]) -> object:
        try:
            return {"got": ATTEMPTS[item["do"]](item), "pid": os.getpid(), "cwd": os.getcwd()}
        except (OSError, subprocess.SubprocessError) as error:
            return {"refused": f"{type(error).__name__}: {error}", "pid": os.getpid(), "cwd": os.getcwd()}
