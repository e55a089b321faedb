"""
Where the platform's processes serve their metrics, as ``scrape_configs`` of Prometheus, and which of them serve none.
"""

import http.client
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from smore.local import ports

#: Ports of docker-compose.yml: SMORE_METRICS_PORT of its services, and of the first GPU worker of a node.
_COMPOSE_PORT = 9464
_NODE_PORT = 8410
_COMPOSE_SERVICES = ("scheduler-0", "scheduler-1", "control")
#: Seconds that a process of this machine may take for its metrics.
_PATIENCE_S: Final = 2.0


def gateway_job(address: str, key_file: str, *, scheme: str = "http") -> dict[str, Any]:
    """The job of a gateway (host:port), which asks for a key with the scope ``read``."""
    return {
        "job_name": "smore-gateway",
        "scheme": scheme,
        "authorization": {"credentials_file": key_file},
        "static_configs": [_target("gateway", address)],
    }


def processes_job(targets: Mapping[str, str]) -> dict[str, Any]:
    """The job of the other processes, by name; they ask for no key."""
    return {"job_name": "smore", "static_configs": [_target(name, address) for name, address in targets.items()]}


def of_processes(host: str, of_process: Mapping[str, int]) -> dict[str, str]:
    """The addresses of the processes that have a port of this machine for their metrics, by name."""
    return {name: f"{_reachable(host)}:{port}" for name, port in of_process.items()}


def silent(host: str, of_process: Mapping[str, int], instance: str) -> dict[str, str]:
    """
    Processes of the platform ``instance`` that do not serve their metrics on their ports, and who answers there instead, in
    words, by name.
    """
    without: dict[str, str] = {}
    with ThreadPoolExecutor(max(1, len(of_process))) as pool:
        served = list(pool.map(partial(_served, host), of_process.values()))
    for (name, port), text in zip(of_process.items(), served, strict=True):
        if text is None:
            without[name] = f"nobody answers on port {port} of {host}"
        elif f'smore_process_info{{installation="{instance}",name="{name}"}}' not in text:
            without[name] = f"{ports.owner(port)} has port {port} of {host}"
    return without


def _served(host: str, port: int) -> str | None:
    """What is answered there; None = nothing."""
    connection = http.client.HTTPConnection(ports.connectable(host), port, timeout=_PATIENCE_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def of_compose(workers: int) -> Iterator[tuple[str, str]]:
    """The same of docker-compose.yml, whose node has so many GPU workers: addresses in the network ``inside``."""
    yield from ((service, f"{service}:{_COMPOSE_PORT}") for service in _COMPOSE_SERVICES)
    yield from ((f"worker-{number}", f"node:{_NODE_PORT + number}") for number in range(workers))


def _reachable(host: str) -> str:
    """An address for this machine of a server that listens on ``host``."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not listened on
        return os.uname().nodename
    return f"[{host}]" if ":" in host else host


def _target(process: str, address: str) -> dict[str, Any]:
    return {"targets": [address], "labels": {"process": process}}
