"""
The platform on one machine: its own Redis and Postgres, the platform's processes, one supervisor over all of them.

``up`` starts all of it and ``down`` stops it. ``layout.py`` lists the processes, ``embedded.py`` finds and configures
the two servers, ``supervision.py`` is the supervisor's client, ``daemon.py`` is the supervisor's process,
``template.py`` the one from which it forks the others, ``machine.py`` starts and stops everything, ``backup.py`` copies
it while it runs, ``started_settings.py`` keeps what it was started with, ``asking.py`` and ``scrape.py`` ask it over
HTTP, ``trainings.py`` finds the trainings that outlived it, ``doctor.py`` examines what runs.
"""

from smore.local.asking import Endpoints, answering_instance, await_rest, unserved, without_metrics
from smore.local.backup import BackupFailed, backup
from smore.local.embedded import ServerMissing, StartFailed
from smore.local.layout import (
    Layout,
    Partition,
    Process,
    environment,
    gpu_partitions,
    machine_partitions,
    plan_partitions,
    processes,
)
from smore.local.machine import (
    abandoned,
    down,
    endpoints,
    ends,
    pid,
    restart,
    run_foreground,
    start,
    status,
    stop,
    up,
)
from smore.local.started_settings import changed_settings, running_settings
from smore.local.supervision import End, ProcessStatus
from smore.local.trainings import Training, left_running

__all__ = [
    "BackupFailed",
    "End",
    "Endpoints",
    "Layout",
    "Partition",
    "Process",
    "ProcessStatus",
    "ServerMissing",
    "StartFailed",
    "Training",
    "abandoned",
    "answering_instance",
    "await_rest",
    "backup",
    "changed_settings",
    "down",
    "endpoints",
    "ends",
    "environment",
    "gpu_partitions",
    "left_running",
    "machine_partitions",
    "pid",
    "plan_partitions",
    "processes",
    "restart",
    "run_foreground",
    "running_settings",
    "start",
    "status",
    "stop",
    "unserved",
    "up",
    "without_metrics",
]
