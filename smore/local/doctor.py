"""
Checks of a running installation for known problems: a verdict for each and, where it is not ok, a remedy.

The doctor only reads. What it cannot examine from this machine gets the verdict ``unknown``, which is no failure: a
managed Redis hides its configuration, and another host's kernel is examined on that host. Other checks are in
gpu_checks.py and platform_checks.py.
"""

import re
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import psutil
import redis

from smore.local import machine, platform_checks
from smore.local.embedded import OLDEST_REDIS
from smore.local.findings import Finding, Grade, Site, broken, ok, unknown, warning
from smore.local.gpu_checks import nvml
from smore.local.server_versions import Server, known, repaired
from smore.messages.reports import Report
from smore.messages.wording import paused
from smore.process.settings import PostgresSettings, Settings
from smore.redis.fleet import Fleet
from smore.redis.job_queue import JobQueue

if TYPE_CHECKING:
    from smore.postgres.history.retention import Size


def site(config: Settings | None = None) -> Site:
    """The installation that the commands of this shell use."""
    config = config or Settings()
    killed, abandoned = machine.abandoned(config.home) or (None, None)
    # The processes of a killed supervisor go on, so they are examined too.
    endpoints = machine.endpoints(config.home) or abandoned
    return Site(
        config=config,
        redis_url=endpoints.redis_url if endpoints is not None else config.redis.url,
        postgres_url=endpoints.postgres_url if endpoints is not None else config.postgres.url,
        processes={process.name: process.pid for process in machine.status(config.home) if process.pid is not None},
        killed=killed,
        ends=machine.ends(config.home) if endpoints is not None else {},
        gateway_url=endpoints.gateway_url if endpoints is not None else None,
        instance=endpoints.instance if endpoints is not None else "",
        metrics_host=endpoints.metrics_host if endpoints is not None else "",
        metrics_ports=endpoints.metrics_ports if endpoints is not None else {},
    )


def examine(place: Site) -> list[Finding]:
    """The findings of all checks; a check comes after those that it depends on."""
    findings: list[Finding] = []
    client: redis.Redis | None = None
    if place.redis_url is None:
        findings.append(broken("Redis", "not configured", "`smore up` starts one, or SMORE_REDIS__URL names it"))
    else:
        client = redis.Redis.from_url(place.redis_url, socket_connect_timeout=3, socket_timeout=5)
        try:
            client.ping()
        except (redis.RedisError, OSError) as error:
            findings.append(broken("Redis", str(error), "start it (`smore up`), or correct SMORE_REDIS__URL"))
            client.close()
            client = None
    if client is not None:
        with client:
            for check in _OF_REDIS:
                findings += _carefully(check, place, client)
    for machine_check in _OF_PLACE:
        findings += _carefully(machine_check, place)
    return findings


def of_another_machine(url: str, readiness: Mapping[str, Any]) -> list[Finding]:
    """What the gateway at ``url`` says of its own platform in its answer ``readiness`` (`/readyz`)."""
    findings = [ok("gateway", f"{url}, of another folder or machine")]
    for name, check in readiness.get("checks", {}).items():
        if check["ok"]:
            findings.append(ok(name, check["detail"] or "-"))
        else:
            findings.append(
                broken(name, check["detail"], "an operator runs `smore doctor` where that platform was started")
            )
    return [*findings, *(warning("platform", text, "") for text in readiness.get("warnings", ()))]


def _version(check: str, server: Server, version: str) -> Finding:
    """Whether this version of a server has known vulnerabilities."""
    if entries := known(server, version):
        return warning(
            check,
            f"{server} {version} has {', '.join(entry.name for entry in entries)}",
            f"use {repaired(server, version)} or newer; a distribution may have repaired it under the old number: look at"
            " its changelog",
        )
    return ok(check, f"{server} {version}")


def _carefully(check: Callable[..., Iterator[Finding]], *arguments: object) -> list[Finding]:
    """The findings of one check; a check that raises gives one with the verdict ``unknown``."""
    findings: list[Finding] = []
    try:
        findings += check(*arguments)
    except Exception as error:  # noqa: BLE001 - the other checks go on whatever it is
        findings.append(
            Finding(name=check.__name__.strip("_").replace("_", " "), verdict=Grade.UNKNOWN, found=str(error))
        )
    return findings


# ---- Redis -----------------------------------------------------------------------------------------------------------

#: The part of Redis' memory in use above which there is a warning.
_FULL: Final = 0.8
#: Seconds by which a report may lie in the future, or be older than its heartbeats allow, before the clocks are said to
#: differ: the time that it spends on the way.
_SKEW_S: Final = 0.5
#: Events on the stream that are not recorded yet, above which there is a warning.
_LAG: Final = 50_000


def _redis_server(_place: Site, client: "redis.Redis") -> Iterator[Finding]:
    info = client.info()
    name: Server = "valkey" if info.get("server_name") == "valkey" else "redis"
    version = str(info.get("valkey_version") or info.get("redis_version"))
    if name == "redis" and int(version.partition(".")[0]) < OLDEST_REDIS:
        yield broken("Redis version", f"{name} {version}", f"use Valkey 9, or Redis {OLDEST_REDIS} or newer")
    else:
        yield _version("Redis version", name, version)
    if info.get("role") != "master":
        yield broken(
            "Redis role", str(info.get("role")), "SMORE_REDIS__URL must name the primary: a replica takes no writes"
        )
    if info.get("aof_last_write_status", "ok") != "ok" or info.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield broken(
            "append-only file", "the last write failed", "look at Redis' log and at the free space where its files are"
        )
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    usage = f"{used >> 20} of {f'{limit >> 20} MiB' if limit else 'any amount'}"
    if not limit:
        yield warning("Redis memory", usage, "set maxmemory, so that it refuses before the kernel kills it")
    elif used > _FULL * limit:
        yield warning(
            "Redis memory", usage, "raise maxmemory, or lower SMORE_QUEUE__PAYLOAD_BYTES and SMORE_QUEUE__RESULT_BYTES"
        )
    else:
        yield ok("Redis memory", usage)


def _redis_settings(place: Site, client: "redis.Redis") -> Iterator[Finding]:
    try:
        settings = cast("dict[str, str]", client.config_get("append*")) | cast(
            "dict[str, str]", client.config_get("maxmemory-policy")
        )
    except redis.ResponseError:
        yield unknown(
            "Redis settings",
            "this server does not show them: check appendonly, appendfsync and maxmemory-policy where it is managed",
        )
        return
    sync = settings.get("appendfsync", "")
    if settings.get("appendonly") != "yes":
        yield broken("Redis persistence", "appendonly no", "set appendonly yes: what waits is lost when Redis ends")
    elif sync == "no" or (place.config.redis.durability == "strict" and sync != "always"):
        yield broken(
            "Redis persistence", f"appendfsync {sync}", f"set appendfsync {'everysec' if sync == 'no' else 'always'}"
        )
    else:
        yield ok("Redis persistence", f"appendonly yes, appendfsync {sync}")
    policy = settings.get("maxmemory-policy", "")
    if policy != "noeviction":
        yield broken(
            "maxmemory-policy", policy, "set maxmemory-policy noeviction: it would throw queued invocations away"
        )
    else:
        yield ok("maxmemory-policy", policy)


def _visibility_timeout(place: Site, client: "redis.Redis") -> Iterator[Finding]:
    from smore.redis.catalog import Catalog
    from smore.redis.celery import VISIBILITY_TIMEOUT_S

    catalog = Catalog(client, place.config.redis.prefix)
    longest, slowest = 0.0, ""
    for name, entry in catalog.functions().items():
        spec = catalog.revision(name, entry.revision) if entry.revision else None
        if spec is not None and spec.timeout_s > longest:
            longest, slowest = spec.timeout_s, name
    if longest >= VISIBILITY_TIMEOUT_S:
        # No message of a GPU queue is acknowledged, so none is delivered twice; still, no task should run longer than
        # Celery's own timeout.
        yield warning(
            "visibility timeout",
            f"{VISIBILITY_TIMEOUT_S} s, but {slowest} may run for {longest:g} s",
            f"give {slowest} a shorter timeout",
        )
    else:
        runs = f"the longest run allowed is {longest:g} s, of {slowest}" if slowest else "no function is registered"
        yield ok("visibility timeout", f"{VISIBILITY_TIMEOUT_S} s; {runs}")


def _clocks(place: Site, client: "redis.Redis") -> Iterator[Finding]:
    fix = "run an NTP client (chrony, systemd-timesyncd) on every host"
    before = time.time()
    answer = client.time()
    skew = answer[0] + answer[1] / 1e6 - (before + time.time()) / 2
    if abs(skew) > _SKEW_S:
        yield warning("clocks", f"this machine's is {-skew:+.2f} s from that of Redis", fix)
    else:
        yield ok("clocks", f"this machine's is within {abs(skew) * 1000:.0f} ms of that of Redis")
    now = time.time() + skew
    for report in _reports(place, client):
        age = now - report.at
        if age < -_SKEW_S or age > 4 * place.config.worker.heartbeat_s + _SKEW_S:
            yield warning(f"clock of {report.gpu}", f"its last report is {age:+.2f} s old", fix)


def _controls(_place: Site, client: "redis.Redis") -> Iterator[Finding]:
    try:
        clients = client.client_list()
    except redis.ResponseError:
        yield unknown("control", "this server does not list its clients")
        return
    found = sorted(
        {name for connection in clients if (name := connection.get("name", "")).startswith("smore-control:")}
    )
    if len(found) > 1:
        yield warning(
            "control", f"{len(found)}: {', '.join(found)}", "stop all but one: every task is fired once for each"
        )
    elif not found:
        yield warning(
            "control",
            "none is connected",
            "start `python -m scheduler.worker control control`: nothing is recorded, and no training starts",
        )
    else:
        yield ok("control", found[0])


def _leader(place: Site, client: "redis.Redis") -> Iterator[Finding]:
    prefix = place.config.redis.prefix
    process = cast("bytes | None", client.get(f"{prefix}leader:process"))
    if client.exists(f"{prefix}leader"):
        yield ok("leader", process.decode() if process else "there is one")
    elif (refused := cast("bytes | None", client.get(f"{prefix}leader:refused"))) is not None:
        yield broken("leader", refused.decode(), "choose another SMORE_POLICY__NAME, or the knob sm_rule=none")
    else:
        yield broken(
            "leader",
            "there is no leader",
            "look at the logs of scheduler-0 and scheduler-1: nothing is dispatched meanwhile",
        )
    behind = client.xlen(f"{prefix}ev")
    if behind > _LAG:
        yield warning(
            "history",
            f"{behind} events are not recorded yet",
            "look at the log of control, and whether Postgres keeps up",
        )
    else:
        yield ok("history", f"{behind} events on the stream")


def _job_leader(place: Site, client: "redis.Redis") -> Iterator[Finding]:
    queue = JobQueue(client, place.config.redis.prefix)
    if leader := queue.leader():
        if fails := queue.failing():
            yield broken("leader of trainings", fails, "look at the log of control (`smore logs control`)")
        else:
            yield ok("leader of trainings", leader)
    elif refused := queue.refused():
        yield broken("leader of trainings", refused, "correct the setting, then `smore down` and `smore up`")
    else:
        yield broken(
            "leader of trainings",
            "there is none",
            "look at the log of control (`smore logs control`): what runs goes on, and no training is started meanwhile",
        )


def _pauses(place: Site, client: "redis.Redis") -> Iterator[Finding]:
    for line in paused(Fleet(client, place.config.redis.prefix).pauses()):
        found, _, end = line.rpartition(". ")
        yield warning("paused or drained", found, end)


def _gpu_instances(place: Site, client: "redis.Redis") -> Iterator[Finding]:
    reports = _reports(place, client)
    if not reports:
        yield broken("GPU instances", "none reports", "look at the logs of the workers (`smore logs worker-…`)")
        return
    allowed = Fleet(client, place.config.redis.prefix).allowed()
    yield ok("GPU instances", ", ".join(report.gpu for report in reports))
    for report in reports:
        if report.health:
            yield broken(
                f"device of {report.gpu}",
                report.health,
                "nothing runs there meanwhile; look at `nvidia-smi -q` and `dmesg`",
            )
        if report.quarantined:
            fix = "look at the log of the function, and deploy a revision that works"
            yield warning(f"quarantine on {report.gpu}", ", ".join(report.quarantined), fix)
        unregistered = [
            process
            for process in report.strangers or ()
            if f"{report.gpu}|{process.pid}|{process.start}" not in allowed
        ]
        if unregistered:
            names = ", ".join(f"{process.pid} ({process.name or 'unknown'})" for process in unregistered)
            yield warning(
                f"strangers on {report.gpu}",
                names,
                f"`smore jobs attach` them, or `smore gpus allow {report.gpu} PID`: it is not used meanwhile",
            )
        for job in report.jobs:
            if job.unseen and job.state == "running":
                yield warning(
                    f"training {job.id} on {report.gpu}",
                    f"it counts for nothing: {job.unseen}",
                    f"`smore jobs allow {job.id} --project {job.project}` if you know it, or `smore jobs stop` it",
                )
            if job.suspended:
                text = f"process {job.pid} was stopped by a signal (SIGSTOP) and makes no steps"
                yield warning(
                    f"training {job.id} on {report.gpu}",
                    text,
                    f"`kill -CONT {job.pid}` there, or `smore jobs stop {job.id}`",
                )


def _reports(place: Site, client: "redis.Redis") -> list[Report]:
    return Fleet(client, place.config.redis.prefix).reports()


_OF_REDIS: Final = (
    _redis_server,
    _redis_settings,
    _visibility_timeout,
    _clocks,
    _controls,
    _leader,
    _job_leader,
    _pauses,
    _gpu_instances,
)


# ---- Postgres, this machine ------------------------------------------------------------------------------------------

_DISK_WARNING: Final = 2 << 30
_DISK_BROKEN: Final = 256 << 20
#: File descriptors of a gateway: ten thousand callers and a margin.
_DESCRIPTORS: Final = 16_384
_BACKLOG: Final = 2048
_OLDEST_POSTGRES: Final = 14
#: The oldest versions that the platform works with.
_PACKAGES: Final = {"celery": "5.6", "kombu": "5.6", "redis": "5.2", "sqlalchemy": "2.0"}


def _postgres(place: Site) -> Iterator[Finding]:
    if place.postgres_url is None:
        yield broken("Postgres", "not configured", "`smore up` starts one, or SMORE_POSTGRES__URL names it")
        return
    import psycopg

    from smore.postgres.schema import head

    dsn = place.postgres_url.replace("postgresql+psycopg://", "postgresql://", 1)
    try:
        connection = psycopg.connect(dsn, connect_timeout=3, application_name="smore-doctor")
    except psycopg.OperationalError as error:
        reason = str(error).strip().partition("\n")[0]
        yield broken(
            "Postgres",
            reason,
            "start it (`smore up`), or correct SMORE_POSTGRES__URL; invocations go on, admin writes answer 503",
        )
        return
    with connection:
        major = connection.info.server_version // 10_000
        if major < _OLDEST_POSTGRES:
            yield broken("Postgres", f"version {major}", f"use {_OLDEST_POSTGRES} or newer")
        else:
            version = connection.info.parameter_status("server_version") or str(major)
            yield _version("Postgres version", "postgres", version.partition(" ")[0])
        try:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        except psycopg.errors.UndefinedTable:
            row = None
            connection.rollback()
        at = row[0] if row else "none"
        if at != head():
            yield broken(
                "migrations",
                f"at {at}, head is {head()}",
                "`make migrate` (python -m migrations), then restart the platform",
            )
        else:
            yield ok("migrations", f"at head ({at})")
        triggers = connection.execute(
            "SELECT count(*) FROM pg_trigger WHERE tgrelid = to_regclass('audit') AND tgenabled <> 'D' AND NOT"
            " tgisinternal"
        ).fetchone()
        if at == head() and (triggers is None or triggers[0] < 2):
            yield broken(
                "audit",
                "its triggers are missing or disabled",
                "ALTER TABLE audit ENABLE TRIGGER USER, and find out who did it",
            )
        if at == head():
            from smore.postgres.history.retention import measure

            home = place.config.home
            # The disk of a server that the platform does not run cannot be seen from here.
            own = place.config.postgres.url is None and home.exists()
            yield outlook(measure(connection), place.config.postgres, shutil.disk_usage(home).free if own else None)


def outlook(size: "Size", kept: PostgresSettings, free: float | None) -> Finding:
    """
    The size of the history, its growth a day, and what ends the growth first: retention by age, retention by size, or
    the disk.

    ``kept``: the retention settings. ``free``: free bytes on the disk, None = not known.
    """
    gib, day = float(1 << 30), size.bytes_per_day
    text = f"{size.bytes / gib:.2f} GiB of rows, {size.invocations} invocations"
    if size.oldest_at is not None:
        text += f" since {time.strftime('%Y-%m-%d', time.gmtime(size.oldest_at))}"
    at = "Postgres' last statistics"
    if size.as_of is not None:
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(size.as_of))
    text += f" (as of {at})"
    if not day:
        return ok("history size", f"{text}; its growth is not known yet")
    text += f", {day / gib:.2f} GiB more a day"
    bound = kept.retention_gib * gib
    level = min(bound, kept.retention_days * day)
    # Space that retention has freed inside the files is used before the files grow.
    if free is not None and level - size.file_bytes > free:
        days_left = (size.file_bytes - size.bytes + free) / day
        fix = (
            "make room, or lower SMORE_POSTGRES__RETENTION_GIB (it would have to be below"
            f" {(size.file_bytes + free) / gib:.1f})"
        )
        return warning(
            "history size",
            f"{text}; the disk is full in {max(days_left, 0.0):.1f} days, before retention ends its growth",
            fix,
        )
    what = (
        f"the bound of {kept.retention_gib:g} GiB"
        if bound <= kept.retention_days * day
        else f"{kept.retention_days:g} days of it"
    )
    when = max(level - size.bytes, 0.0) / day
    return ok("history size", f"{text}; retention ends its growth in {when:.1f} days at {level / gib:.2f} GiB ({what})")


def _versions(_place: Site) -> Iterator[Finding]:
    old = [
        f"{name} {metadata.version(name)} < {least}"
        for name, least in _PACKAGES.items()
        if _number(metadata.version(name)) < _number(least)
    ]
    if old:
        yield broken("packages", ", ".join(old), "`make install`")
    else:
        yield ok("packages", ", ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES))


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _descriptors(place: Site) -> Iterator[Finding]:
    pid = place.processes.get("gateway")
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if pid is not None:
        with suppress(psutil.Error):
            soft = psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE)[0]
    owner = "of the gateway" if pid is not None else "of this shell"
    if 0 <= soft < _DESCRIPTORS:
        yield warning(
            "open files",
            f"{soft} {owner}",
            f"`ulimit -n {4 * _DESCRIPTORS}` before `smore up`, or LimitNOFILE= in its unit",
        )
    else:
        yield ok("open files", f"{'any number' if soft < 0 else soft} {owner}")


def _kernel(place: Site) -> Iterator[Finding]:
    pages = place.kernel("sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", pages or "")
    if chosen is None:
        yield unknown("huge pages", "this kernel does not report it")
    elif chosen[1] == "always":
        fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: forks of Redis stall and take more memory"
        yield warning("huge pages", "always", fix)
    else:
        yield ok("huge pages", chosen[1])
    overcommit = place.kernel("proc/sys/vm/overcommit_memory")
    if overcommit is None:
        yield unknown("overcommit", "this kernel does not report it")
    elif overcommit == "1":
        yield ok("overcommit", "1")
    else:
        yield warning(
            "overcommit",
            overcommit,
            "sysctl vm.overcommit_memory=1: a rewrite of the append-only file may fail for want of memory",
        )
    backlog = place.kernel("proc/sys/net/core/somaxconn")
    if backlog is not None and int(backlog) < _BACKLOG:
        yield warning(
            "listen backlog", backlog, f"sysctl net.core.somaxconn={2 * _BACKLOG}: bursts of connections are refused"
        )


def _disk(place: Site) -> Iterator[Finding]:
    home = place.config.home
    free = shutil.disk_usage(home if home.exists() else Path.cwd()).free
    text = f"{free >> 20} MiB free at {home}"
    if free < _DISK_BROKEN:
        yield broken("disk", text, "make room: Redis and Postgres stop writing when it is full")
    elif free < _DISK_WARNING:
        yield warning("disk", text, "make room")
    else:
        yield ok("disk", text)


def _key(place: Site) -> Iterator[Finding]:
    file = place.config.home / "key"
    if file.exists():
        mode = file.stat().st_mode & 0o777
        if mode & 0o077:
            yield broken(
                "key file",
                f"mode {mode:o}",
                f"chmod 600 {file}, then make another key and revoke this one: others could read it",
            )
        else:
            yield ok("key file", f"mode {mode:o}")


_OF_PLACE: Final = (
    platform_checks.folders,
    platform_checks.gateway,
    platform_checks.metrics,
    platform_checks.supervisor,
    platform_checks.ends,
    platform_checks.settings,
    platform_checks.priorities,
    _postgres,
    _versions,
    _descriptors,
    _kernel,
    _disk,
    _key,
    nvml,
)
