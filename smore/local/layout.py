"""How one machine's cores and GPUs are divided, and which processes run on it."""

import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import pynvml

from smore.process.settings import NURSERY, NodeSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One GPU instance of this machine; one GPU worker is pinned to it."""

    #: Name of the GPU instance.
    gpu: str
    kind: Literal["cuda", "mig", "cpu"]
    #: CUDA and MIG: the UUID. CPU: comma-separated core numbers.
    device: str
    #: The part of the cores' time that belongs to it, 0 < share <= 1.
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The platform of one machine: its folders, addresses, cores and GPU instances."""

    home: Path
    #: The folder that ``api``, ``scheduler``, ``worker``… are imported from.
    root: Path
    redis_url: str
    postgres_url: str
    gateway_host: str
    gateway_port: int
    #: Comma-separated core numbers for the platform's own processes ("" = any).
    platform_cores: str
    partitions: tuple[Partition, ...]
    #: The first port of the processes' metrics; 0 = they serve none.
    metrics_port: int = 0
    #: A folder in memory for large payloads (smore/redis/payloads.py); None = payloads go through Redis.
    payloads: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that the supervisor runs in the foreground."""

    name: str
    command: tuple[str, ...]
    #: Environment variables beside those of :func:`environment`.
    env: tuple[tuple[str, str], ...] = ()
    stop_signal: Literal["TERM", "INT"] = "TERM"
    #: Seconds between the stop signal and SIGKILL.
    stop_wait_s: int = 10
    #: Run as this user of the machine (None = as the supervisor).
    user: str | None = None
    #: Start it only once the platform is ready: no request needs it.
    later: bool = False
    #: Host and port on which it must accept connections before the platform counts as started.
    listens: tuple[str, int] | None = None
    #: The platform counts as started once this path there answers 200, as this platform ("" = at once).
    ready: str = ""


def plan_partitions(cores: Sequence[int], count: int | None = None) -> tuple[Partition, ...]:
    """
    CPU partitions on these cores. The first core is left to the platform's own processes, unless it is the only one.

    ``count``: the number of partitions; None = one per core, at least two, so that there is a placement to choose. More
    partitions than cores share the cores in equal parts; where there are more cores than partitions, the last are free.

    Raises ValueError when there is no core or ``count`` is below one.
    """
    if not cores:
        raise ValueError("a machine has at least one core")
    free = tuple(cores[1:]) or tuple(cores)
    number = max(2, len(free)) if count is None else count
    if number < 1:
        raise ValueError("there must be at least one partition")
    tenants = [len(range(core, number, len(free))) for core in range(len(free))]
    return tuple(
        Partition(gpu=f"cpu{i}", kind="cpu", device=str(free[i % len(free)]), share=1 / tenants[i % len(free)])
        for i in range(number)
    )


def machine_partitions(cores: Sequence[int]) -> tuple[Partition, ...]:
    """What ``up`` makes of a machine on these cores: its GPUs, or where it has none, CPU partitions."""
    return gpu_partitions() or plan_partitions(cores)


def gpu_partitions() -> tuple[Partition, ...]:
    """
    Every NVIDIA GPU of this machine that works and is visible to this process (:func:`_visible`), or its MIG instances
    where MIG is on. Empty without a GPU or a driver. A GPU that the driver has lost is left out, with a warning.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()  # no driver, no GPU: usual on a laptop, so no warning
    try:
        instances: list[tuple[int, str, Partition]] = []
        count = pynvml.nvmlDeviceGetCount()
        for index in range(count):
            try:
                instances += [(index, uuid, part) for uuid, part in _instances(index)]
            except pynvml.NVMLError as error:
                logger.warning("GPU %d is left out: %s", index, error)
        visible = _visible(os.environ, count)
        if visible is None:
            return tuple(part for _, _, part in instances)
        return tuple(
            part for index, uuid, part in instances if any(_is(name, index, uuid, part.device) for name in visible)
        )
    except pynvml.NVMLError as error:
        logger.warning("NVML counts no GPUs: %s", error)
        return ()
    finally:
        pynvml.nvmlShutdown()


def _instances(index: int) -> list[tuple[str, Partition]]:
    """The GPU instances of one GPU, each with the GPU's UUID. Raises NVMLError."""
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = pynvml.nvmlDeviceGetUUID(gpu)
    slices = _mig_instances(gpu)
    if slices is None:
        return [(uuid, Partition(gpu=f"gpu{index}", kind="cuda", device=uuid))]
    return [
        (uuid, Partition(gpu=f"gpu{index}-mig{i}", kind="mig", device=mig_uuid)) for i, mig_uuid in enumerate(slices)
    ]


def _visible(environment: Mapping[str, str], count: int) -> list[str] | None:
    """
    Numbers and UUIDs of the GPUs that this process may use, of the ``count`` that NVML shows; None = all of them.

    ``CUDA_VISIBLE_DEVICES`` decides where it is set ("" = none); its numbers follow the order of the PCI bus. Else
    ``NVIDIA_VISIBLE_DEVICES`` does, which a container's runtime has applied already: its numbers are the host's. Where
    NVML shows no more GPUs than it names, those are the GPUs it means.
    """
    if (cuda := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in cuda.split(",") if name.strip()]
    names = [name.strip() for name in environment.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if (
        not names
        or count <= len(names)
        or not all(name.isdigit() or name.startswith(("GPU-", "MIG-")) for name in names)
    ):
        return None
    return names


def _is(name: str, index: int, uuid: str, device: str) -> bool:
    """Whether a name means that GPU or MIG instance; as for CUDA, the beginning of a UUID is enough."""
    if name.isdigit():
        return int(name) == index
    return name.startswith(("GPU-", "MIG-")) and (uuid.startswith(name) or device.startswith(name))


def node_partitions(own: NodeSettings, cores: Sequence[int]) -> tuple[Partition, ...]:
    """
    The GPU instances of this machine under names that are unique in the cluster: a GPU's UUID, or the machine's name
    before a CPU partition's.

    Raises ValueError where GPUs are wanted and NVML shows none.
    """
    if own.kind == "cpu":
        host = own.name or socket.gethostname().partition(".")[0]
        return tuple(replace(part, gpu=f"{host}-{part.gpu}") for part in plan_partitions(cores, own.partitions))
    instances = gpu_partitions()
    if not instances:
        raise ValueError(
            "NVML shows no GPU here: is the driver loaded, and has the container been given its GPUs?"
            " SMORE_NODE__KIND=cpu makes CPU partitions in their place"
        )
    return tuple(replace(part, gpu=part.device) for part in instances)


def _mig_instances(gpu: object) -> list[str] | None:
    """UUIDs of a GPU's MIG instances; None where MIG is off or unknown."""
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(gpu)
    except pynvml.NVMLError:
        return None
    if current != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    uuids: list[str] = []
    for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            uuids.append(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot)))
        except pynvml.NVMLError:
            continue  # an empty slot
    return uuids


def module(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *words)


def worker_processes(partitions: Sequence[Partition], metrics_port: int, nursery: Path) -> tuple[Process, ...]:
    """
    The nursery, with its socket at the path ``nursery``, and one GPU worker for each GPU instance. Worker i serves its
    metrics on port ``metrics_port`` + i (0 = none).
    """
    # Tensor operations of a CPU partition use one thread; some libraries start their threads when they are imported.
    one_thread = all(part.kind == "cpu" for part in partitions)
    return (
        # Importing torch takes longest, so it goes first.
        Process(
            name="nursery",
            command=module("worker.runner.nursery", str(nursery)),
            env=(("OMP_NUM_THREADS", "1"),) if one_thread else (),
        ),
        *(
            Process(
                name=f"worker-{part.gpu}",
                command=module("worker.app"),
                env=(
                    ("SMORE_METRICS_PORT", str(metrics_port + number if metrics_port else 0)),
                    ("SMORE_WORKER__GPU", part.gpu),
                    ("SMORE_WORKER__KIND", part.kind),
                    ("SMORE_WORKER__DEVICE", part.device),
                    ("SMORE_WORKER__SHARE", f"{part.share:g}"),
                ),
                # A worker stops its runners first, and each may be running an invocation.
                stop_wait_s=20,
            )
            for number, part in enumerate(partitions)
        ),
    )


def import_path(root: Path) -> str:
    """PYTHONPATH of the platform's processes; ``root``: as of :class:`Layout`."""
    # The rest is of whoever starts the platform: a placement rule of one's own may be there.
    return os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))


def environment(layout: Layout) -> dict[str, str]:
    """Environment variables of every process of the platform, beside those of the process that starts it."""
    return {
        "PYTHONPATH": import_path(layout.root),
        "PYTHONUNBUFFERED": "1",
        # glibc returns the memory of an arena slowly, and the platform's processes have few busy threads.
        "MALLOC_ARENA_MAX": "2",
        "SMORE_HOME": str(layout.home),
        "SMORE_REDIS__URL": layout.redis_url,
        "SMORE_POSTGRES__URL": layout.postgres_url,
        "SMORE_API__HOST": layout.gateway_host,
        "SMORE_API__PORT": str(layout.gateway_port),
        "SMORE_PLATFORM_CORES": layout.platform_cores,
        **({"SMORE_QUEUE__PAYLOADS": str(layout.payloads)} if layout.payloads is not None else {}),
    }


def metrics_ports(table: Sequence[Process]) -> dict[str, int]:
    """Where processes serve their metrics, by name; those that serve none are not there."""
    ports = {process.name: int(dict(process.env).get("SMORE_METRICS_PORT", "0")) for process in table}
    return {name: port for name, port in ports.items() if port}


#: Processes of :func:`processes` that serve metrics on a port of their own, beside the workers.
METRICS_PORTS: Final = 3


def processes(layout: Layout) -> tuple[Process, ...]:
    """The platform's processes in the order of their start; Redis and Postgres are not among them."""

    def metrics(number: int) -> tuple[tuple[str, str], ...]:
        """The gateway serves metrics on its own port, the workers and then the others on those of the setting."""
        port = layout.metrics_port + len(layout.partitions) + number if layout.metrics_port else 0
        return (("SMORE_METRICS_PORT", str(port)),)

    return (
        # It becomes the processes of these modules (template.py), in the order in which they are needed; what only control
        # needs is the last. One thread, for some libraries start theirs when they are imported, and a fork has none of them.
        Process(
            name="template",
            command=module("smore.local.template", "worker.app", "scheduler.worker", "api.app", "scheduler.control"),
            env=(("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1")),
        ),
        # resolve(): where the home's path is too long for a socket's name, `run` points to a folder with a shorter one.
        *worker_processes(layout.partitions, layout.metrics_port, (layout.home / "run").resolve() / NURSERY),
        Process(
            name="gateway",
            command=module("api.app"),
            env=(("SMORE_METRICS_PORT", "0"),),
            listens=(layout.gateway_host, layout.gateway_port),
            ready="/readyz",
        ),
        Process(name="scheduler-0", command=module("scheduler.worker", "scheduler", "scheduler-0"), env=metrics(0)),
        # Two scheduler workers: one is the leader, the other waits for its lease.
        Process(
            name="scheduler-1",
            command=module("scheduler.worker", "scheduler", "scheduler-1"),
            env=metrics(1),
            later=True,
        ),
        Process(name="control", command=module("scheduler.worker", "control", "control"), env=metrics(2), later=True),
    )
