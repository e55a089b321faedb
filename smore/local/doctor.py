"""
What is known to go wrong with an installation, looked for in the running one: a verdict and, where it is not well, a
remedy for each.

The doctor only reads. What it cannot see from here it says (``unknown``), which is no failure: a managed Redis keeps
its configuration to itself, and the kernel of another host is looked at there.
"""

import ctypes
import importlib.util
import re
import resource
import runpy
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import psutil
import redis

from smore.messages.reports import Report
from smore.process.device_name import mps_daemon
from smore.process.settings import PostgresSettings, Settings
from smore.redis.fleet import Fleet

if TYPE_CHECKING:
    from smore.postgres.history.retention import Size


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``fix``: what to do about it, '' = nothing."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """
    What is examined. ``redis_url`` and ``postgres_url`` None = the platform does not run here and no setting names
    them. ``root``: where the kernel's files are; ``processes``: pids of the platform's own on this machine, by name;
    ``killed``: of a supervisor that is gone.
    """

    config: Settings
    redis_url: str | None
    postgres_url: str | None
    processes: Mapping[str, int]
    killed: int | None = None
    root: Path = Path("/")

    def has(self, path: str) -> bool:
        return (self.root / path).exists()

    def kernel(self, path: str) -> str | None:
        """A file of the kernel, None where there is none."""
        try:
            return (self.root / path).read_text().strip()
        except OSError:
            return None


def site(config: Settings | None = None) -> Site:
    """The installation that a command of this shell speaks to."""
    from smore import local

    config = config or Settings()
    killed, left = local.abandoned(config.home) or (None, None)
    # What a killed supervisor has started goes on: it is examined like any other.
    reached = local.endpoints(config.home) or left
    return Site(
        config=config,
        redis_url=reached.redis_url if reached is not None else config.redis.url,
        postgres_url=reached.postgres_url if reached is not None else config.postgres.url,
        processes={one.name: one.pid for one in local.status(config.home) if one.pid is not None},
        killed=killed,
    )


def examine(place: Site) -> list[Finding]:
    """All checks, in the order in which one stands on another."""
    found: list[Finding] = []
    client: redis.Redis | None = None
    if place.redis_url is None:
        found.append(_broken("Redis", "not configured", "`smore up` starts one, or SMORE_REDIS__URL names it"))
    else:
        client = redis.Redis.from_url(place.redis_url, socket_connect_timeout=3, socket_timeout=5)
        try:
            client.ping()
        except (redis.RedisError, OSError) as error:
            found.append(_broken("Redis", str(error), "start it (`smore up`), or correct SMORE_REDIS__URL"))
            client.close()
            client = None
    if client is not None:
        with client:
            for check in _OF_REDIS:
                found += _carefully(check, place, client)
    for other in _OF_PLACE:
        found += _carefully(other, place)
    return found


def _carefully(check: Callable[..., Iterator[Finding]], *arguments: object) -> list[Finding]:
    """A check that cannot be made is a finding too."""
    found: list[Finding] = []
    try:
        found += check(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other checks go on
        found.append(
            Finding(name=check.__name__.strip("_").replace("_", " "), verdict=Verdict.UNKNOWN, found=str(error))
        )
    return found


def _ok(name: str, found: str) -> Finding:
    return Finding(name=name, verdict=Verdict.OK, found=found)


def _warning(name: str, found: str, fix: str) -> Finding:
    return Finding(name=name, verdict=Verdict.WARNING, found=found, fix=fix)


def _broken(name: str, found: str, fix: str) -> Finding:
    return Finding(name=name, verdict=Verdict.BROKEN, found=found, fix=fix)


def _unknown(name: str, found: str) -> Finding:
    return Finding(name=name, verdict=Verdict.UNKNOWN, found=found)


# ---- Redis -----------------------------------------------------------------------------------------------------------

#: MiB of Redis' memory that may be in use before somebody should look.
_FULL: Final = 0.8
#: Seconds that a report may be old, and lie in the future, before clocks are said to differ: a heartbeat and what waits
#: on the way.
_SKEW_S: Final = 0.5
#: Entries of the event stream that the recorder may be behind.
_LAG: Final = 50_000


def _redis_server(_place: Site, client: "redis.Redis") -> Iterator[Finding]:
    info = client.info()
    name, version = str(info.get("server_name", "redis")), str(info.get("valkey_version") or info.get("redis_version"))
    major = int(version.partition(".")[0])
    said = f"{name} {version}"
    if major < 6:
        yield _broken("Redis version", said, "use Valkey 8 or Redis 7.2")
    elif major < 7:
        yield _warning(
            "Redis version", said, "it serves one machine; install Valkey 8 or Redis 7.2 before more hosts join"
        )
    else:
        yield _ok("Redis version", said)
    if info.get("role") != "master":
        yield _broken(
            "Redis role", str(info.get("role")), "SMORE_REDIS__URL must name the primary: a replica takes no writes"
        )
    if info.get("aof_last_write_status", "ok") != "ok" or info.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield _broken(
            "append-only file", "the last write failed", "look at Redis' log and at the free space where its files are"
        )
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    bounds = f"{used >> 20} of {f'{most >> 20} MiB' if most else 'any amount'}"
    if not most:
        yield _warning("Redis memory", bounds, "set maxmemory, so that it refuses before the kernel kills it")
    elif used > _FULL * most:
        yield _warning(
            "Redis memory", bounds, "raise maxmemory, or lower SMORE_QUEUE__PAYLOAD_BYTES and SMORE_QUEUE__RESULT_BYTES"
        )
    else:
        yield _ok("Redis memory", bounds)


def _redis_settings(place: Site, client: "redis.Redis") -> Iterator[Finding]:
    try:
        told = cast("dict[str, str]", client.config_get("append*")) | cast(
            "dict[str, str]", client.config_get("maxmemory-policy")
        )
    except redis.ResponseError:
        yield _unknown(
            "Redis settings",
            "this server does not tell: check appendonly, appendfsync and maxmemory-policy where it is managed",
        )
        return
    sync = told.get("appendfsync", "")
    if told.get("appendonly") != "yes":
        yield _broken("Redis persistence", "appendonly no", "set appendonly yes: what waits is lost when Redis ends")
    elif sync == "no" or (place.config.redis.durability == "strict" and sync != "always"):
        yield _broken(
            "Redis persistence", f"appendfsync {sync}", f"set appendfsync {'everysec' if sync == 'no' else 'always'}"
        )
    else:
        yield _ok("Redis persistence", f"appendonly yes, appendfsync {sync}")
    policy = told.get("maxmemory-policy", "")
    if policy != "noeviction":
        yield _broken(
            "maxmemory-policy", policy, "set maxmemory-policy noeviction: it would throw queued invocations away"
        )
    else:
        yield _ok("maxmemory-policy", policy)


def _visibility_timeout(place: Site, client: "redis.Redis") -> Iterator[Finding]:
    from smore.redis.catalog import Catalog
    from smore.redis.celery import VISIBILITY_TIMEOUT_S

    catalog = Catalog(client, place.config.redis.prefix)
    longest, whose = 0.0, ""
    for name, entry in catalog.functions().items():
        spec = catalog.revision(name, entry.revision) if entry.revision else None
        if spec is not None and spec.timeout_s > longest:
            longest, whose = spec.timeout_s, name
    if longest >= VISIBILITY_TIMEOUT_S:
        # No message of a GPU queue is acknowledged, so none comes twice; but nothing of Celery's should outlive its own
        # clock.
        yield _warning(
            "visibility timeout",
            f"{VISIBILITY_TIMEOUT_S} s, but {whose} may run for {longest:g} s",
            f"give {whose} a shorter timeout",
        )
    else:
        yield _ok("visibility timeout", f"{VISIBILITY_TIMEOUT_S} s; the longest run allowed is {longest:g} s")


def _clocks(place: Site, client: "redis.Redis") -> Iterator[Finding]:
    fix = "run an NTP client (chrony, systemd-timesyncd) on every host"
    before = time.time()
    answer = client.time()
    skew = answer[0] + answer[1] / 1e6 - (before + time.time()) / 2
    if abs(skew) > _SKEW_S:
        yield _warning("clocks", f"this machine's is {-skew:+.2f} s from that of Redis", fix)
    else:
        yield _ok("clocks", f"this machine's is within {abs(skew) * 1000:.0f} ms of that of Redis")
    now = time.time() + skew
    for report in _reports(place, client):
        age = now - report.at
        if age < -_SKEW_S or age > 4 * place.config.worker.heartbeat_s + _SKEW_S:
            yield _warning(f"clock of {report.gpu}", f"its last report is {age:+.2f} s old", fix)


def _beats(_place: Site, client: "redis.Redis") -> Iterator[Finding]:
    try:
        clients = client.client_list()
    except redis.ResponseError:
        yield _unknown("beat", "this server does not list its clients")
        return
    beats = sorted({name for one in clients if (name := one.get("name", "")).startswith("smore-beat:")})
    if len(beats) > 1:
        yield _warning(
            "beat", f"{len(beats)}: {', '.join(beats)}", "stop all but one: every task is fired once for each"
        )
    elif not beats:
        yield _warning(
            "beat",
            "none is connected",
            "start `python -m scheduler.beat`: nobody replaces a leader that dies, nothing is recorded",
        )
    else:
        yield _ok("beat", beats[0])


def _leader(place: Site, client: "redis.Redis") -> Iterator[Finding]:
    prefix = place.config.redis.prefix
    process = cast("bytes | None", client.get(f"{prefix}leader:process"))
    if client.exists(f"{prefix}leader"):
        yield _ok("leader", process.decode() if process else "there is one")
    elif (refused := cast("bytes | None", client.get(f"{prefix}leader:refused"))) is not None:
        yield _broken("leader", refused.decode(), "choose another SMORE_POLICY__NAME, or the knob sm_rule=none")
    else:
        yield _broken(
            "leader", "nobody leads", "look at the logs of scheduler-0 and scheduler-1: nothing is dispatched meanwhile"
        )
    behind = client.xlen(f"{prefix}ev")
    if behind > _LAG:
        yield _warning(
            "history",
            f"{behind} events are not recorded yet",
            "look at the log of control, and whether Postgres keeps up",
        )
    else:
        yield _ok("history", f"{behind} events on the stream")


def _gpu_instances(place: Site, client: "redis.Redis") -> Iterator[Finding]:
    reports = _reports(place, client)
    if not reports:
        yield _broken("GPU instances", "none reports", "look at the logs of the workers (`smore logs worker-…`)")
        return
    allowed = Fleet(client, place.config.redis.prefix).allowed()
    yield _ok("GPU instances", ", ".join(report.gpu for report in reports))
    for report in reports:
        if report.health:
            yield _broken(
                f"device of {report.gpu}",
                report.health,
                "nothing runs there meanwhile; look at `nvidia-smi -q` and `dmesg`",
            )
        if report.quarantined:
            fix = "look at the log of the function, and deploy a revision that works"
            yield _warning(f"quarantine on {report.gpu}", ", ".join(report.quarantined), fix)
        strange = [one for one in report.strangers or () if f"{report.gpu}|{one.pid}|{one.start}" not in allowed]
        if strange:
            who = ", ".join(f"{one.pid} ({one.name or 'unknown'})" for one in strange)
            yield _warning(
                f"strangers on {report.gpu}",
                who,
                f"`smore jobs attach` them, or `smore gpus allow {report.gpu} PID`: it is not used meanwhile",
            )
        for job in report.jobs:
            if job.suspended:
                said = f"process {job.pid} was stopped by a signal (SIGSTOP) and makes no steps"
                yield _warning(
                    f"training {job.id} on {report.gpu}",
                    said,
                    f"`kill -CONT {job.pid}` there, or `smore jobs stop {job.id}`",
                )


def _reports(place: Site, client: "redis.Redis") -> list[Report]:
    return Fleet(client, place.config.redis.prefix).reports()


_OF_REDIS: Final = (_redis_server, _redis_settings, _visibility_timeout, _clocks, _beats, _leader, _gpu_instances)


# ---- Postgres, this machine ------------------------------------------------------------------------------------------

_DISK_WARNING: Final = 2 << 30
_DISK_BROKEN: Final = 256 << 20
#: Descriptors of a gateway: ten thousand callers and then some.
_DESCRIPTORS: Final = 16_384
_BACKLOG: Final = 2048
_OLDEST_POSTGRES: Final = 14
#: What the platform was built against, at least.
_PACKAGES: Final = {"celery": "5.6", "kombu": "5.6", "redis": "5.2", "sqlalchemy": "2.0"}


def _postgres(place: Site) -> Iterator[Finding]:
    if place.postgres_url is None:
        yield _broken("Postgres", "not configured", "`smore up` starts one, or SMORE_POSTGRES__URL names it")
        return
    import psycopg

    from smore.postgres.schema import head

    dsn = place.postgres_url.replace("postgresql+psycopg://", "postgresql://", 1)
    try:
        connection = psycopg.connect(dsn, connect_timeout=3, application_name="smore-doctor")
    except psycopg.OperationalError as error:
        said = str(error).strip().partition("\n")[0]
        yield _broken(
            "Postgres",
            said,
            "start it (`smore up`), or correct SMORE_POSTGRES__URL; invocations go on, admin writes answer 503",
        )
        return
    with connection:
        major = connection.info.server_version // 10_000
        if major < _OLDEST_POSTGRES:
            yield _broken("Postgres", f"version {major}", f"use {_OLDEST_POSTGRES} or newer")
        else:
            yield _ok("Postgres", f"version {major}")
        try:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        except psycopg.errors.UndefinedTable:
            row = None
            connection.rollback()
        at = row[0] if row else "none"
        if at != head():
            yield _broken(
                "migrations",
                f"at {at}, head is {head()}",
                "`make migrate` (python -m migrations), then restart the platform",
            )
        else:
            yield _ok("migrations", f"at head ({at})")
        triggers = connection.execute(
            "SELECT count(*) FROM pg_trigger WHERE tgrelid = to_regclass('audit') AND tgenabled <> 'D' AND NOT"
            " tgisinternal"
        ).fetchone()
        if at == head() and (triggers is None or triggers[0] < 2):
            yield _broken(
                "audit",
                "its triggers are gone or disabled",
                "ALTER TABLE audit ENABLE TRIGGER USER, and find out who did it",
            )
        if at == head():
            from smore.postgres.history.retention import measure

            home = place.config.home
            # The files of a server that somebody else runs lie where its disk cannot be seen from here.
            own = place.config.postgres.url is None and home.exists()
            yield outlook(measure(connection), place.config.postgres, shutil.disk_usage(home).free if own else None)


def outlook(size: "Size", kept: PostgresSettings, free: float | None) -> Finding:
    """
    How large the history is, how fast it grows, and what will end its growth: its age, its bound or the disk (``free``
    bytes).
    """
    gib, day = float(1 << 30), size.bytes_per_day
    said = f"{size.bytes / gib:.2f} GiB of rows, {size.invocations} invocations"
    if size.oldest_at is not None:
        said += f" since {time.strftime('%Y-%m-%d', time.gmtime(size.oldest_at))}"
    if not day:
        return _ok("history size", f"{said}; how fast it grows is not known yet")
    said += f", {day / gib:.2f} GiB more a day"
    bound = kept.retention_gib * gib
    level = min(bound, kept.retention_days * day)
    # What retention has freed in the files is written before they grow.
    if free is not None and level - size.file_bytes > free:
        left = (size.file_bytes - size.bytes + free) / day
        fix = (
            "make room, or lower SMORE_POSTGRES__RETENTION_GIB (it would have to be below"
            f" {(size.file_bytes + free) / gib:.1f})"
        )
        return _warning(
            "history size",
            f"{said}; the disk is full in {max(left, 0.0):.1f} days, before retention ends its growth",
            fix,
        )
    what = (
        f"the bound of {kept.retention_gib:g} GiB"
        if bound <= kept.retention_days * day
        else f"{kept.retention_days:g} days of it"
    )
    when = max(level - size.bytes, 0.0) / day
    return _ok(
        "history size", f"{said}; retention ends its growth in {when:.1f} days at {level / gib:.2f} GiB ({what})"
    )


def _supervisor(place: Site) -> Iterator[Finding]:
    if place.killed is not None:
        said = f"process {place.killed} was killed: what it started goes on, and nobody restarts what ends"
        yield _broken(
            "supervisor",
            said,
            "`smore up`: it starts the platform anew; training goes on and nothing that waits is lost",
        )
    elif place.processes:
        yield _ok("supervisor", f"watches {len(place.processes)} processes")


def _versions(_place: Site) -> Iterator[Finding]:
    old = [
        f"{name} {metadata.version(name)} < {least}"
        for name, least in _PACKAGES.items()
        if _number(metadata.version(name)) < _number(least)
    ]
    if old:
        yield _broken("packages", ", ".join(old), "`make install`")
    else:
        yield _ok("packages", ", ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES))


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _descriptors(place: Site) -> Iterator[Finding]:
    pid = place.processes.get("gateway")
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if pid is not None:
        with suppress(psutil.Error):
            soft = psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE)[0]
    whose = "of the gateway" if pid is not None else "of this shell"
    if 0 <= soft < _DESCRIPTORS:
        yield _warning(
            "open files",
            f"{soft} {whose}",
            f"`ulimit -n {4 * _DESCRIPTORS}` before `smore up`, or LimitNOFILE= in its unit",
        )
    else:
        yield _ok("open files", f"{'any number' if soft < 0 else soft} {whose}")


def _kernel(place: Site) -> Iterator[Finding]:
    pages = place.kernel("sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", pages or "")
    if chosen is None:
        yield _unknown("huge pages", "this kernel does not say")
    elif chosen[1] == "always":
        fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: forks of Redis stall and take more memory"
        yield _warning("huge pages", "always", fix)
    else:
        yield _ok("huge pages", chosen[1])
    overcommit = place.kernel("proc/sys/vm/overcommit_memory")
    if overcommit is None:
        yield _unknown("overcommit", "this kernel does not say")
    elif overcommit == "1":
        yield _ok("overcommit", "1")
    else:
        yield _warning(
            "overcommit",
            overcommit,
            "sysctl vm.overcommit_memory=1: a rewrite of the append-only file may fail for want of memory",
        )
    backlog = place.kernel("proc/sys/net/core/somaxconn")
    if backlog is not None and int(backlog) < _BACKLOG:
        yield _warning(
            "listen backlog", backlog, f"sysctl net.core.somaxconn={2 * _BACKLOG}: bursts of connections are refused"
        )


def _disk(place: Site) -> Iterator[Finding]:
    home = place.config.home
    free = shutil.disk_usage(home if home.exists() else Path.cwd()).free
    said = f"{free >> 20} MiB free at {home}"
    if free < _DISK_BROKEN:
        yield _broken("disk", said, "make room: Redis and Postgres stop writing when it is full")
    elif free < _DISK_WARNING:
        yield _warning("disk", said, "make room")
    else:
        yield _ok("disk", said)


def _key(place: Site) -> Iterator[Finding]:
    file = place.config.home / "key"
    if file.exists():
        mode = file.stat().st_mode & 0o777
        if mode & 0o077:
            yield _broken(
                "key file",
                f"mode {mode:o}",
                f"chmod 600 {file}, then make another key and revoke this one: others could read it",
            )
        else:
            yield _ok("key file", f"mode {mode:o}")


def _nvml(place: Site) -> Iterator[Finding]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if place.has("dev/nvidiactl"):
            fix = (
                "the device files are there and the library does not answer: reload the driver; in a container, start"
                " that anew"
            )
            yield _broken("NVML", str(error), fix)
        else:
            yield _ok("NVML", "no NVIDIA driver: CPU partitions stand in for GPUs")
        return
    try:
        driver, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
        yield _ok("NVML", f"driver {driver.decode() if isinstance(driver, bytes) else driver}, {count} GPUs")
        if count:
            yield _cuda(pynvml.nvmlSystemGetCudaDriverVersion_v2())
            yield from _gpu_host(place)
        for index in range(count):
            yield from _gpu(index)
    finally:
        pynvml.nvmlShutdown()


def torch_cuda() -> str | None:
    """
    The CUDA version that the installed torch was built for, None = it is a build without; torch itself is not imported.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    version = runpy.run_path(str(Path(found.origin).parent / "version.py")).get("cuda")
    return version if isinstance(version, str) else None


def _cuda(newest: int) -> Finding:
    """``newest``: the CUDA version that the driver knows, 13000 = 13.0."""
    knows, built = f"{newest // 1000}.{newest % 1000 // 10}", torch_cuda()
    if built is None:
        return _broken(
            "CUDA", f"the driver knows CUDA {knows}, and torch is a build without it", "install torch's build for CUDA"
        )
    if int(built.partition(".")[0]) > newest // 1000:
        said = f"torch is built for CUDA {built}, and the driver knows {knows} at most"
        return _broken(
            "CUDA", said, "install a newer driver, or torch's build for an older CUDA (cu126, cu128): every load fails"
        )
    return _ok("CUDA", f"torch is built for {built}, the driver knows {knows}")


def _gpu_host(place: Site) -> Iterator[Finding]:
    if not place.has("dev/nvidia-uvm"):
        fix = "`nvidia-modprobe -c0 -u`, or nvidia-persistenced: the first function after a boot would fail"
        yield _warning("GPU device files", "no /dev/nvidia-uvm", fix)
    if place.kernel("proc/sys/vm/overcommit_memory") == "2":
        yield _broken(
            "GPU address space",
            "vm.overcommit_memory=2",
            "sysctl vm.overcommit_memory=1: CUDA reserves more than it uses",
        )
    if (pipe := mps_daemon()) is not None:
        fix = "`echo quit | nvidia-cuda-mps-control`: no worker of a GPU starts beside it"
        yield _broken("MPS daemon", f"answers on {pipe}", fix)


def _gpu(index: int) -> Iterator[Finding]:
    """What makes functions fail on one GPU of this machine. What its driver does not tell of is no finding."""
    import pynvml

    name = f"GPU {index}"
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        yield _broken(name, str(error), "look at `dmesg` for its Xid; reset it, or restart the machine")
        return
    with suppress(pynvml.NVMLError):
        if (mode := pynvml.nvmlDeviceGetComputeMode(gpu)) != pynvml.NVML_COMPUTEMODE_DEFAULT:
            yield _broken(
                f"{name} compute mode",
                _COMPUTE_MODES.get(mode, str(mode)),
                f"`nvidia-smi -i {index} -c DEFAULT`: one process has it",
            )
    with suppress(pynvml.NVMLError):
        current, pending = pynvml.nvmlDeviceGetMigMode(gpu)
        if current != pending:
            yield _warning(
                f"{name} MIG",
                "its mode changes with the next reset",
                f"`nvidia-smi --gpu-reset -i {index}` when nothing runs there",
            )
    with suppress(pynvml.NVMLError):
        if not pynvml.nvmlDeviceGetPersistenceMode(gpu):
            yield _warning(
                f"{name} persistence",
                "off",
                "run nvidia-persistenced: without it each first process waits for the driver",
            )
    with suppress(pynvml.NVMLError):
        _, _, waits, failed = pynvml.nvmlDeviceGetRemappedRows(gpu)
        if failed:
            yield _broken(f"{name} memory", "faulty rows could not be remapped", "replace it")
        elif waits:
            yield _warning(
                f"{name} memory",
                "rows are to be remapped",
                f"`nvidia-smi --gpu-reset -i {index}` when nothing runs there",
            )
    with suppress(pynvml.NVMLError):
        if pynvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu):
            yield _warning(
                f"{name} memory",
                "pages are to be retired",
                f"`nvidia-smi --gpu-reset -i {index}` when nothing runs there",
            )
    with suppress(pynvml.NVMLError):
        info = pynvml.c_nvmlGpuFabricInfo_t()
        pynvml.nvmlDeviceGetGpuFabricInfo(gpu, ctypes.byref(info))
        ready = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == pynvml.NVML_SUCCESS
        if info.state != pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED and not ready:
            yield _broken(
                f"{name} fabric", "not ready", "start nvidia-fabricmanager: CUDA cannot begin without it (error 802)"
            )


_COMPUTE_MODES: Final = {1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


_OF_PLACE: Final = (_supervisor, _postgres, _versions, _descriptors, _kernel, _disk, _key, _nvml)
