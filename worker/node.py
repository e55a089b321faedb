"""
``python -m worker.node``: the GPU workers of one machine, one for each GPU instance, under one supervisor.

As `smore up` for the machine of the whole platform, but for a machine that only has GPUs, or a container that is given
all of them. Names come from the device itself (``GPU-<uuid>``, ``MIG-<uuid>``), so that two machines never
have the same; Celery queues are ``gpu.<name>``. The process becomes the supervisor (smore/local/daemon.py): a signal to
end reaches every worker, which ends its runners.
"""

import os
import socket
import sys
from pathlib import Path

from smore.alive import names_file
from smore.local import supervision
from smore.local.embedded import private_folder, write_private
from smore.local.layout import node_partitions, worker_processes
from smore.local.supervision import SERVERS
from smore.process.device_name import refused
from smore.process.environment import settings
from smore.process.settings import NURSERY

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Become the supervisor of this machine's workers. Exits with a message where the settings allow none."""
    config = settings()
    if reason := refused(config.worker.sharing_mode):
        sys.exit(f"smore: {reason}")
    try:
        parts = node_partitions(config.node, sorted(os.sched_getaffinity(0)))
    except ValueError as error:
        sys.exit(f"smore: {error}")
    home = config.home.resolve()
    run = private_folder(home / "run")
    file = run / f"node-{socket.gethostname()}.conf"
    # The group that starts by itself: nothing here waits for servers; the workers do that on their own.
    own = private_folder(run / f"node-{socket.gethostname()}")
    # Not in `run` itself, which several machines may share.
    nursery = own / NURSERY
    groups = {SERVERS: worker_processes(parts, config.node.metrics_port, nursery)}
    write_private(file, supervision.configuration(run=own, logs=None, root=ROOT, groups=groups))
    # For the healthcheck, for which NVML would be too slow.
    write_private(names_file(run), "".join(f"{part.gpu}\n" for part in parts))
    for part in parts:
        print(f"{part.gpu}: {part.kind} {part.device}", flush=True)
    command = supervision.foreground(file)
    given = {
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "MALLOC_ARENA_MAX": "2",
        **os.environ,
        "SMORE_WORKER__NURSERY": str(nursery),
    }
    os.execve(command[0], command, given)  # noqa: S606 - this process becomes the supervisor


if __name__ == "__main__":
    main()
