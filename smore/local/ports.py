"""TCP ports of this machine: whether they are free, and who has one."""

import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import psutil

#: The modules of the platform's processes that listen on ports (smore/local/layout.py).
_LISTENING: Final = frozenset({"api.app", "scheduler.worker", "worker.app"})
#: Blocks of metrics ports that are looked at before a start goes on without a free one.
_BLOCKS: Final = 64


def refusal(host: str, port: int) -> OSError | None:
    """Why this process cannot listen there, None = it can."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        return error
    return None


def free_block(host: str, first: int, count: int, but: Collection[int]) -> int:
    """
    The first of ``count`` free ports in a row, none of them in ``but``: ``first``, or a multiple of ``count`` behind it.
    ``first`` where no block is free.
    """
    for ports in _blocks(first, count, but):
        if all(refusal(host, port) is None for port in ports):
            return ports[0]
    return first


@contextmanager
def claimed_block(host: str, first: int, count: int, but: Collection[int], before: int | None = None) -> Iterator[int]:
    """
    As :func:`free_block`, but the block from ``before`` on where that is free. While the context lasts, nobody else on
    this machine is given one of the ports: a platform that starts listens on them only seconds after it has chosen them.

    Raises OSError where no block is free.
    """
    earlier = [] if before is None else list(_blocks(before, count, but))[:1]
    for ports in (*earlier, *_blocks(first, count, but)):
        with ExitStack() as claims:
            if all(_claim(port, claims) and refusal(host, port) is None for port in ports):
                yield ports[0]
                return
    raise refusal(host, first) or OSError(f"no {count} ports in a row are free from {first} on")


def _blocks(first: int, count: int, but: Collection[int]) -> Iterator[range]:
    for begin in range(first, min(first + _BLOCKS * count, 65_536 - count), count):
        ports = range(begin, begin + count)
        if not any(port in but for port in ports):
            yield ports


def _claim(port: int, claims: ExitStack) -> bool:
    """Whether the port is claimed for this process now; a name in the kernel, which ends with the socket that has it."""
    claim = claims.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        claim.bind(f"\0smore-port-{port}")
    except OSError:
        return False
    return True


def connectable(host: str) -> str:
    """An address for this machine of a server that listens on ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - an address to replace


def owner(port: int) -> str:
    """Who listens on a port, as far as this user may see."""
    try:
        pids = {
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
            and getattr(connection.laddr, "port", 0) == port
            and connection.pid
        }
    except psutil.Error:
        pids = set()
    for pid in sorted(pids):
        text = f"process {pid}"
        try:
            process = psutil.Process(pid)
            words = process.cmdline()
            text += f" ({' '.join(filter(None, words))[:120]})"
            # A shell that was told of a platform gives SMORE_HOME to all that it starts.
            if not of_a_platform(words):
                return text
            home = process.environ().get("SMORE_HOME")
        except psutil.Error:
            return text
        return f"{text} of the platform in {home}" if home else text
    return "a process that this user cannot see"


def of_a_platform(words: Sequence[str]) -> bool:
    """Whether a command line starts a process of a platform."""
    return len(words) > 2 and words[1] == "-m" and words[2] in _LISTENING
