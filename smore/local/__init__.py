"""
Everything on one machine: our own Redis and Postgres, the platform's processes, one supervisor over all of them.

``up`` and ``down`` are the whole of it; ``servers`` is Redis and Postgres alone, for tests. Inside, ``layout.py`` says
what runs, ``embedded.py`` how the two servers are found and configured, ``supervision.py`` speaks to the supervisor,
``daemon.py`` is its process, and ``machine.py`` puts them together.
"""

from smore.local.embedded import ServerMissing, StartFailed
from smore.local.layout import Layout, Partition, Process, environment, gpu_partitions, plan_partitions, processes
from smore.local.machine import (
    Endpoints,
    ServerUrls,
    abandoned,
    down,
    endpoints,
    pid,
    restart,
    run_foreground,
    servers,
    start,
    status,
    stop,
    up,
)
from smore.local.supervision import ProcessStatus

__all__ = [
    "Endpoints",
    "Layout",
    "Partition",
    "Process",
    "ProcessStatus",
    "ServerMissing",
    "ServerUrls",
    "StartFailed",
    "abandoned",
    "down",
    "endpoints",
    "environment",
    "gpu_partitions",
    "pid",
    "plan_partitions",
    "processes",
    "restart",
    "run_foreground",
    "servers",
    "start",
    "status",
    "stop",
    "up",
]
