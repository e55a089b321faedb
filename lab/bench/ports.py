"""Ports for servers of benchmarks."""

import socket


def free_port(address: str = "127.0.0.1") -> int:
    """A port of ``address`` that no process listens on now; "" = one that is free at every address."""
    with socket.create_server((address, 0)) as server:
        port: int = server.getsockname()[1]
        return port
