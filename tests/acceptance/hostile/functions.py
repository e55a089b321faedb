"""Functions that want out. Each attempt answers what it got, or the error that it met; none is clever enough to hide."""

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from smore.handler import Handler


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


def listen(item: dict[str, Any]) -> object:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()


def unix(item: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(item["path"])
        return "connected"


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
    (number,) = [one for one in numbers if os.path.exists(f"/proc/self/fd/{one}") and stat.S_ISSOCK(os.fstat(one).st_mode)]
    return number


def say(item: dict[str, Any]) -> object:
    """Write these bytes to the worker, in the platform's place."""
    os.write(own_socket(), bytes.fromhex(item["frame"]))
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
        read, listing, write, environment, own_environment, descriptors, connect, listen, unix, fork_bomb, fill_disk, allocate,
        allocate_shared, allocate_in_children, crash, tell, has, shoot, shoot_all, trace, daemon, become_root, say, drip, large, who,
    )
}  # fmt: skip


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
