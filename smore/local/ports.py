"""TCP ports of this machine: whether they are free, and who has one."""

import socket
from collections.abc import Collection
from typing import Final

import psutil

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
    for begin in range(first, min(first + _BLOCKS * count, 65_536 - count), count):
        ports = range(begin, begin + count)
        if not any(port in but for port in ports) and all(refusal(host, port) is None for port in ports):
            return begin
    return first


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
            text += f" ({' '.join(process.cmdline())[:120]})"
            home = process.environ().get("SMORE_HOME")
        except psutil.Error:
            return text
        return f"{text} of the platform in {home}" if home else text
    return "a process that this user cannot see"
