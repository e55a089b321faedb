"""Start, examine and stop the platform of this machine."""

import errno
import fcntl
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smore.local import asking, embedded, ports, started_settings, supervision
from smore.local.asking import Endpoints
from smore.local.layout import (
    METRICS_PORTS,
    Layout,
    Partition,
    Process,
    environment,
    import_path,
    machine_partitions,
    metrics_ports,
    plan_partitions,
)
from smore.local.layout import processes as platform_processes
from smore.local.supervision import End, ProcessStatus, Supervisor
from smore.process.device_name import refused
from smore.process.environment import InvalidSetting
from smore.process.instance import instance_id
from smore.process.root import ROOT
from smore.process.settings import JobsSettings, PolicySettings, PrewarmSettings, Settings

logger = logging.getLogger(__name__)

#: Seconds until Redis and Postgres answer: they read the append-only file and replay the log first.
SERVERS_START_S = 60.0
#: Seconds until every process that has a port accepts connections.
PLATFORM_START_S = 30.0
#: Seconds until the platform is ready: the first start of an installation compiles what the leader decides with.
READY_S = 300.0
#: Seconds for which a process may fail to start before the platform's start fails.
_FAILING_S = 20.0
#: Starts of one process while the platform is waited for; with more it does not stay up.
_MOST_STARTS = 3
#: Seconds for the supervisor's end: more than the longest stops of both groups together.
STOP_S = 90.0
_POLL_S = 0.01
#: Seconds after its start at which a server that is down counts as failed.
_STILLBORN_S = 5.0


def migration_command(home: Path) -> tuple[str, ...]:
    """
    The command that creates the schema, the first API key (``<home>/key``) and Redis' mirror of the catalog. It runs
    before the platform's processes serve.
    """
    return (sys.executable, "-m", "migrations", "--bootstrap-key", str(home / "key"))


def refusals_command() -> tuple[str, ...]:
    """The command that prints why processes would refuse their settings at start, with exit code 2 where one would."""
    return (sys.executable, "-m", "scheduler.refusals")


def up(
    home: Path,
    *,
    config: Settings | None = None,
    partitions: int | Sequence[Partition] | None = None,
    processes: Callable[[Layout], tuple[Process, ...]] = platform_processes,
    migration: Sequence[str] | None = None,
    progress: Callable[[str], None] = logger.info,
) -> Endpoints:
    """
    Start everything and return when the platform is ready: a leader decides and every GPU instance reports. Where it
    runs already, return its addresses. ``progress`` is called with what is waited for, whenever that changes.

    ``partitions``: the GPU instances themselves, or a number of CPU partitions; None = this machine's GPUs, or where it
    has none, CPU partitions (see plan_partitions). ``processes`` and ``migration`` (empty = none, None =
    migration_command) can be replaced for tests.

    Raises InvalidSetting, a line for each setting that a process would refuse; ServerMissing where a server is not
    installed; StartFailed, with the end of the log, where a process does not start, where another program answers on
    the gateway's port, where no port for metrics is free, where the platform does not become ready, or where the
    settings name a sharing mode in which no worker starts; ValueError for a home whose path the supervisor's
    configuration cannot hold. Nothing is left running then.
    """
    home, config = home.resolve(), config or Settings()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(home), ExitStack() as claims:
        run = embedded.run_folder(home)
        if supervision.running(run) is not None:
            if (endpoints := _recorded(run)) is not None:
                return endpoints
            _stop(home, run)  # an earlier `up` was interrupted before it had finished
        supervision.end_leftovers(home, run)
        try:
            return _start(home, run, config, partitions, processes, migration, progress, claims)
        except BaseException:
            _stop(home, run)
            raise


def down(home: Path) -> None:
    """Stop everything, the servers last, and return when it has ended. Serverful jobs go on."""
    home = home.resolve()
    if not home.exists():
        return
    with _locked(home):
        _stop(home, embedded.run_folder(home))


def endpoints(home: Path) -> Endpoints | None:
    """The addresses of the running platform; None where it does not run."""
    run = _existing_run_folder(home)
    return None if run is None or supervision.running(run) is None else _recorded(run)


def abandoned(home: Path) -> tuple[int, Endpoints | None] | None:
    """
    The pid of a supervisor that was killed, and the addresses of the processes that it left (None where they were not
    recorded). None = no supervisor was killed.
    """
    run = _existing_run_folder(home)
    pid = supervision.killed(run) if run is not None else None
    return None if run is None or pid is None else (pid, _recorded(run))


def status(home: Path) -> tuple[ProcessStatus, ...]:
    """Every process; empty where the platform does not run."""
    run = _existing_run_folder(home)
    supervisor = supervision.running(run) if run is not None else None
    return () if supervisor is None else supervisor.status()


def ends(home: Path) -> dict[str, End]:
    """How often processes have ended unasked since ``up``, by name; each was started again."""
    return supervision.ends(home.resolve() / "logs")


def run_foreground(
    home: Path, *, start: Callable[[Path], Endpoints] = up, started: Callable[[Endpoints], None] | None = None
) -> None:
    """
    Run ``up``, wait for Ctrl-C, SIGTERM or another process's ``down``, then run ``down``.

    ``start``: ``up`` with its arguments (functools.partial). ``started`` is called once requests are accepted. A signal
    during the start stops what has been started; a signal during the stop is ignored. A platform that runs already is
    waited for and stopped likewise. Call it from the main thread.
    """
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        try:
            endpoints = start(home)
            if started is not None:
                started(endpoints)
            supervision.wait_ended(endpoints.supervisor_pid, None)
        except KeyboardInterrupt:
            logger.info("stopping")
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        down(home)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(
    home: Path,
    run: Path,
    config: Settings,
    partitions: int | Sequence[Partition] | None,
    processes: Callable[[Layout], tuple[Process, ...]],
    migration: Sequence[str] | None,
    progress: Callable[[str], None],
    claims: ExitStack,
) -> Endpoints:
    (run / "endpoints.json").unlink(missing_ok=True)  # left by a supervisor that was killed
    _require_usable(config)
    logs = embedded.private_folder(home / "logs")
    redis_url, postgres_url, own = own_servers(home, run, config, durable=True)
    layout = _layout(home, config, partitions, redis_url, postgres_url, claims)
    table = processes(layout)
    instance = instance_id(home)  # before the processes, which read it
    for process in table:
        if process.listens is not None:
            _require_free(process.name, process.listens)
    file = home / "supervisord.conf"
    embedded.write_private(
        file,
        supervision.configuration(
            run=run,
            logs=logs,
            root=layout.root,
            password=supervision.make_password(run),
            groups={
                supervision.SERVERS: [
                    Process(
                        name=server.name,
                        command=server.command,
                        stop_signal=server.stop_signal,
                        stop_wait_s=30,
                        user=server.user,
                    )
                    for server in own
                ],
                supervision.PLATFORM: table,
            },
        ),
    )
    daemon = supervision.launch(file, environment(layout))
    try:
        # These imports take 0.3 s, in which the servers start.
        import psycopg  # noqa: F401
        import redis  # noqa: F401

        output, _ = daemon.communicate()
    finally:
        daemon.wait()  # after an interrupt here there is a complete supervisor to stop
    if daemon.returncode != 0:
        raise embedded.StartFailed(f"the supervisor did not start:\n{output}")
    supervisor = Supervisor(run)
    # Their imports take longer than the start of the servers, for which they wait.
    for process in table:
        if not process.later:
            supervisor.start(process.name)
    await_servers(redis_url, postgres_url, lambda name: _alive(supervisor, name), logs)
    if migration is not None or not _is_migrated(home, config, redis_url, postgres_url):
        _migrate(layout, migration_command(home) if migration is None else migration)
    if migration is None:
        started_settings.audit_settings(home, config, postgres_url)
    _await_listening(table, supervisor, logs)
    for process in table:
        if process.ready:
            _await_ready(process, instance, {part.gpu for part in layout.partitions}, supervisor, logs, progress)
    for process in table:
        if process.later:
            supervisor.start(process.name)
    endpoints = Endpoints(
        home=str(home),
        gateway_url=_url(layout.gateway_host, layout.gateway_port),
        redis_url=redis_url,
        postgres_url=postgres_url,
        supervisor_pid=supervisor.pid(),
        instance=instance,
        metrics_host=config.metrics_host,
        metrics_ports=metrics_ports(table),
    )
    started_settings.note_settings(home, config)
    started_settings.note_metrics_port(home, config, layout.metrics_port)
    # Written last: the file means that all of the above is done.
    embedded.write_private(run / "endpoints.json", json.dumps(asdict(endpoints)))
    return endpoints


def _stop(home: Path, run: Path) -> None:
    (run / "endpoints.json").unlink(missing_ok=True)
    if (supervisor := supervision.running(run)) is not None:
        number = supervisor.pid()
        supervisor.shutdown()
        if not supervision.wait_ended(number, STOP_S):
            logger.warning("the supervisor did not end within %d s and is killed", STOP_S)
            os.kill(number, signal.SIGKILL)
            supervision.wait_ended(number, STOP_S)
    supervision.end_leftovers(home, run)
    if (memory := embedded.memory_folder(home)) is not None:
        shutil.rmtree(memory, ignore_errors=True)


def own_servers(
    home: Path, run: Path, config: Settings, *, durable: bool
) -> tuple[str, str, tuple[embedded.Server, ...]]:
    """The URL of Redis, the URL of Postgres, and the servers that the platform must start itself."""
    own: list[embedded.Server] = []
    redis_url, postgres_url = config.redis.url, config.postgres.url
    if redis_url is None:
        own.append(embedded.redis_server(home, run, config.redis, config.queue))
        redis_url = own[-1].url
    if postgres_url is None:
        own.append(embedded.postgres_server(home, run, durable=durable))
        postgres_url = own[-1].url
    return redis_url, postgres_url, tuple(own)


def _layout(
    home: Path,
    config: Settings,
    partitions: int | Sequence[Partition] | None,
    redis_url: str,
    postgres_url: str,
    claims: ExitStack,
) -> Layout:
    """``claims`` keeps the ports of the metrics for this start (:func:`smore.local.ports.claimed_block`)."""
    cores = sorted(os.sched_getaffinity(0))
    if reason := refused(config.worker.sharing_mode):
        raise embedded.StartFailed(reason)
    match partitions:
        case None:
            parts = machine_partitions(cores)
        case int():
            parts = plan_partitions(cores, partitions)
        case _:
            parts = tuple(partitions) or plan_partitions(cores)
    gpus = partitions is None and parts[0].kind != "cpu"
    first = config.node.metrics_port
    if first:
        count = len(parts) + METRICS_PORTS
        # A scraper that was set up for its ports reads them again, also where lower ones have become free.
        before = started_settings.noted_metrics_port(home, config)
        block = ports.claimed_block(config.metrics_host, first, count, {config.api.port}, before)
        try:
            first = claims.enter_context(block)
        except OSError as error:
            raise embedded.StartFailed(
                f"no port for metrics on {config.metrics_host} from {first} on: {error}. SMORE_NODE__METRICS_PORT names"
                " another first port, 0 = none"
            ) from error
    return Layout(
        home=home,
        root=ROOT,
        redis_url=redis_url,
        postgres_url=postgres_url,
        gateway_host=config.api.host,
        gateway_port=config.api.port,
        # Where there are GPUs, no core belongs to a partition.
        platform_cores=config.platform_cores or ("" if gpus else str(cores[0])),
        # A Redis that the settings name may have GPU workers on other machines, which cannot read this folder.
        payloads=config.queue.payloads or (embedded.memory_folder(home) if config.redis.url is None else None),
        partitions=parts,
        metrics_port=first,
    )


def await_servers(redis_url: str, postgres_url: str, alive: Callable[[str], bool], logs: Path) -> None:
    """Wait until both servers answer. Raises StartFailed."""
    began = time.monotonic()
    _await("redis", lambda: _redis_answers(redis_url), alive, logs, began)
    _await("postgres", lambda: _postgres_answers(postgres_url), alive, logs, began)


def _await(name: str, ready: Callable[[], bool], alive: Callable[[str], bool], logs: Path, began: float) -> None:
    while not ready():
        waited_s = time.monotonic() - began
        if waited_s > SERVERS_START_S or (waited_s > _STILLBORN_S and not alive(name)):
            raise embedded.StartFailed(f"{name} does not answer:\n{_tail(logs / f'{name}.log')}")
        time.sleep(_POLL_S)


def _redis_answers(url: str) -> bool:
    import redis

    client = redis.Redis.from_url(url, socket_connect_timeout=2.0, socket_timeout=2.0, retry=None)
    try:
        return bool(client.ping())
    except redis.AuthenticationError as error:
        raise embedded.StartFailed(f"Redis refuses the password: {error}") from error
    except (redis.ConnectionError, redis.TimeoutError):
        return False  # BusyLoadingError is one of the former
    finally:
        client.close()


def _postgres_answers(url: str) -> bool:
    """Whether Postgres answers; the platform's database is created where it is missing."""
    import psycopg

    plain = url.replace("postgresql+psycopg://", "postgresql://", 1)
    try:
        # A connection to a database that is missing would be a FATAL line in Postgres' log.
        with psycopg.connect(plain, dbname="postgres", autocommit=True, connect_timeout=5) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [embedded.DATABASE]).fetchone():
                connection.execute(f"CREATE DATABASE {embedded.DATABASE}")
        return True
    except psycopg.OperationalError:
        return False


def _is_migrated(home: Path, config: Settings, redis_url: str, postgres_url: str) -> bool:
    """Whether there is nothing to migrate: mostly so, and a process for it takes long. Redis' mirror is refreshed then."""
    import psycopg
    import redis

    from smore.postgres import mirror, schema
    from smore.redis.catalog import Catalog

    if not config.model_copy(update={"home": home}).secrets_file.exists():
        return False
    with psycopg.connect(postgres_url.replace("postgresql+psycopg://", "postgresql://", 1)) as connection:
        if schema.version(connection) != schema.head() or not schema.has_key(connection, home / "key"):
            return False
        with redis.Redis.from_url(redis_url) as client:
            mirror.refresh(connection, Catalog(client, config.redis.prefix))
    return True


def _migrate(layout: Layout, migration: Sequence[str]) -> None:
    """Run the migration: schema, first API key, Redis' mirror of the catalog. Raises StartFailed."""
    if not migration:
        return
    finished = subprocess.run(
        list(migration),
        cwd=layout.root,
        env={**os.environ, **environment(layout)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        raise embedded.StartFailed(f"the migration failed:\n{finished.stdout}")


def _await_listening(table: Sequence[Process], supervisor: Supervisor, logs: Path) -> None:
    deadline = time.monotonic() + PLATFORM_START_S
    for process in table:
        while process.listens is not None and not _accepts(process.listens):
            if time.monotonic() > deadline:
                state = next(status.state for status in supervisor.status() if status.name == process.name)
                raise embedded.StartFailed(
                    f"{process.name} ({state}) does not listen:\n{_tail(logs / f'{process.name}.log')}"
                )
            time.sleep(_POLL_S)


def _accepts(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection((ports.connectable(address[0]), address[1]), timeout=1.0).close()
    except OSError:
        return False
    return True


def _await_ready(
    process: Process,
    instance: str,
    gpus: set[str],
    supervisor: Supervisor,
    logs: Path,
    progress: Callable[[str], None],
) -> None:
    """
    Wait until the gateway says that a leader decides and that all ``gpus`` report. Raises StartFailed, also where a
    process goes on failing, or where the answer comes from another platform.
    """
    assert process.listens is not None
    host, port = process.listens
    deadline, said = time.monotonic() + READY_S, ""
    failing: dict[str, float] = {}
    pids: dict[str, set[int]] = {}
    while True:
        answer = asking.asked(host, port, process.ready)
        if answer is not None and answer.get("instance") != instance:
            raise embedded.StartFailed(
                f"{host}:{port} is answered by {ports.owner(port)}, not by this platform: free the port, or name another"
                " one in SMORE_API__PORT"
            )
        missing = _missing(answer, gpus)
        if not missing:
            return
        now = time.monotonic()
        for status in supervisor.status():
            name = status.name
            if status.state not in ("BACKOFF", "FATAL"):
                failing.pop(name, None)
            # One that ends after its imports was up for a moment, so the supervisor counts it as started each time.
            starts = pids.setdefault(name, set())
            if status.pid is not None:
                starts.add(status.pid)
            if now - failing.setdefault(name, now) > _FAILING_S or len(starts) > _MOST_STARTS:
                raise embedded.StartFailed(f"{name} does not stay up:\n{_tail(logs / f'{name}.log')}")
        if now > deadline:
            raise embedded.StartFailed(f"the platform is not ready after {READY_S:g} s: {missing} (logs in {logs})")
        if missing != said:
            progress(missing)
            said = missing
        time.sleep(asking.ASK_S)


def _missing(answer: dict[str, Any] | None, gpus: set[str]) -> str:
    """What keeps the platform from being ready, in words; "" = nothing."""
    if answer is None:
        return "the gateway does not answer"
    reasons = [
        f"{name}: {check.get('detail') or 'not ready'}"
        for name, check in answer.get("checks", {}).items()
        if not check.get("ok") and name != "gpus"
    ]
    silent = sorted(gpus - set(answer.get("gpus", ())))
    return "; ".join([*reasons, *([f"no report of {', '.join(silent)} yet"] if silent else [])])


def _require_usable(config: Settings) -> None:
    """Raises InvalidSetting where a process would refuse a setting at its start."""
    if (config.policy, config.prewarm, config.jobs) == (PolicySettings(), PrewarmSettings(), JobsSettings()):
        return
    finished = subprocess.run(
        refusals_command(),
        # Where the processes start: a rule's path may be relative.
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": import_path(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode == 2:
        raise InvalidSetting(finished.stdout.strip() or finished.stderr.strip())


def _require_free(name: str, address: tuple[str, int]) -> None:
    """Raises StartFailed where another program has the port: it would answer in place of the platform."""
    if (error := ports.refusal(*address)) is not None:
        host, port = address
        taken = f", {ports.owner(port)} has it" if error.errno == errno.EADDRINUSE else ""
        free = ports.free_block(host, port + 1, 1, ())
        raise embedded.StartFailed(
            f"{name} cannot listen on {host}:{port}: {error}{taken}. Another port: SMORE_API__PORT={free} smore up"
        )


def _url(host: str, port: int) -> str:
    name = ports.connectable(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _alive(supervisor: Supervisor, name: str) -> bool:
    return any(process.name == name and process.pid is not None for process in supervisor.status())


def _tail(path: Path, lines: int = 20) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "(no log)"


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the lock of a home: one process at a time starts or stops its platform."""
    with open(os.open(home / "up.lock", os.O_RDWR | os.O_CREAT, 0o600), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _existing_run_folder(home: Path) -> Path | None:
    run = home.resolve() / "run"
    return run.resolve() if run.exists() else None


def _recorded(run: Path) -> Endpoints | None:
    try:
        return Endpoints(**json.loads((run / "endpoints.json").read_text()))
    except FileNotFoundError:
        return None
