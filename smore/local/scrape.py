"""Where the platform's processes serve their metrics, as ``scrape_configs`` of Prometheus."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import psutil

from smore.local.supervision import ProcessStatus

#: Ports of docker-compose.yml: SMORE_METRICS_PORT of its services, and of the first GPU worker of a node.
_COMPOSE_PORT = 9464
_NODE_PORT = 8410
_COMPOSE_SERVICES = ("beat", "scheduler-0", "scheduler-1", "control", "learn")


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


def of_processes(processes: tuple[ProcessStatus, ...]) -> Iterator[tuple[str, str]]:
    """Name and address of each process of this machine that serves metrics on a port of its own."""
    for process in processes:
        try:
            environment = psutil.Process(process.pid).environ() if process.pid is not None else {}
        except psutil.Error:
            continue  # it has ended, or belongs to another user
        port = environment.get("SMORE_METRICS_PORT", "0")
        if port != "0" and process.name != "gateway":
            host = environment.get("SMORE_METRICS_HOST", "127.0.0.1")
            yield process.name, f"{_reachable(host)}:{port}"


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
