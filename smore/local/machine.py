"""Start, ask and stop the platform of this machine."""

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
from dataclasses import asdict, dataclass
from pathlib import Path

from smore.local import embedded, supervision
from smore.local.layout import Layout, Partition, Process, environment, gpu_partitions, plan_partitions
from smore.local.layout import processes as platform_processes
from smore.local.supervision import ProcessStatus, Supervisor
from smore.process.device_name import refused
from smore.process.settings import Settings

logger = logging.getLogger(__name__)

#: Redis reads its append-only file and Postgres replays its log before they answer.
SERVERS_START_S = 60.0
#: Until every process that has a port accepts connections.
PLATFORM_START_S = 30.0
#: Longer than the longest stop of both groups together.
STOP_S = 90.0
_POLL_S = 0.01
#: A server that is down this long after its start will not come up by waiting.
_STILLBORN_S = 5.0

#: The checkout or image: the packages' common parent.
ROOT = Path(__file__).resolve().parents[2]


def migration_command(home: Path) -> tuple[str, ...]:
    """
    Makes the database, the first API key (``<home>/key``) and Redis' mirror ready; run before the platform's processes.
    """
    return (sys.executable, "-m", "migrations", "--bootstrap-key", str(home / "key"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where the platform of a home is to be reached."""

    home: str
    gateway_url: str
    #: As redis-py takes it, password included.
    redis_url: str
    #: As SQLAlchemy takes it, password included.
    postgres_url: str
    supervisor_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUrls:
    redis_url: str
    postgres_url: str


def up(
    home: Path,
    *,
    config: Settings | None = None,
    partitions: int | Sequence[Partition] | None = None,
    processes: Callable[[Layout], tuple[Process, ...]] = platform_processes,
    migration: Sequence[str] | None = None,
) -> Endpoints:
    """
    Start everything and return when it accepts requests; where it runs already, return the same again.

    ``partitions`` = the GPU instances themselves, or a number of CPU partitions; None = the GPUs, or without any CPU
    partitions (see plan_partitions). ``processes`` and ``migration`` (empty = none, None = migration_command) can be
    replaced for tests.

    Raises ServerMissing when a server is not installed and StartFailed, with the last lines of the log, when something
    does not come up, or where the settings name a sharing mode that no worker starts in; nothing is left running then.
    ValueError for a home whose path the supervisor's configuration cannot hold.
    """
    home, config = home.resolve(), config or Settings()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(home):
        run = embedded.run_folder(home)
        if supervision.running(run) is not None:
            if (known := _recorded(run)) is not None:
                return known
            _stop(home, run)  # somebody was interrupted between its start and its end
        supervision.end_leftovers(home, run)
        try:
            return _start(home, run, config, partitions, processes, migration)
        except BaseException:
            _stop(home, run)
            raise


def down(home: Path) -> None:
    """Stop everything, the servers last, and return when it has ended. Serverful jobs are their workers' business."""
    home = home.resolve()
    if not home.exists():
        return
    with _locked(home):
        _stop(home, embedded.run_folder(home))


def endpoints(home: Path) -> Endpoints | None:
    """Where a running platform is to be reached; None when it does not run."""
    run = _existing_run_folder(home)
    return None if run is None or supervision.running(run) is None else _recorded(run)


def abandoned(home: Path) -> tuple[int, Endpoints | None] | None:
    """
    The process number of a supervisor that was killed, and where what it left is to be reached as long as it lives;
    None = none was.
    """
    run = _existing_run_folder(home)
    pid = supervision.killed(run) if run is not None else None
    return None if run is None or pid is None else (pid, _recorded(run))


def status(home: Path) -> tuple[ProcessStatus, ...]:
    """Every process; empty when the platform does not run."""
    run = _existing_run_folder(home)
    supervisor = supervision.running(run) if run is not None else None
    return () if supervisor is None else supervisor.status()


def pid(home: Path, name: str) -> int | None:
    """
    The pid of a process; None when it is not running just now.

    Raises KeyError for a name that the platform does not have, or when it does not run.
    """
    for process in status(home):
        if process.name == name:
            return process.pid
    raise KeyError(name)


def stop(home: Path, name: str) -> None:
    """Stop one process in order; it stays away until it is started. Raises KeyError as ``restart`` does."""
    _supervisor(home, name).stop(name)


def start(home: Path, name: str) -> None:
    """Start a process that was stopped; returns before it is ready. Raises KeyError as ``restart`` does."""
    _supervisor(home, name).start(name)


def restart(home: Path, name: str) -> None:
    """
    Stop a process in order and start it again; returns when the new one is started, which is before it is ready.

    Raises KeyError for a name that the platform does not have, or when it does not run.
    """
    stop(home, name)
    start(home, name)


def _supervisor(home: Path, name: str) -> Supervisor:
    run = _existing_run_folder(home)
    supervisor = supervision.running(run) if run is not None else None
    if supervisor is None:
        raise KeyError(name)
    return supervisor


def run_foreground(
    home: Path, *, start: Callable[[Path], Endpoints] = up, started: Callable[[Endpoints], None] | None = None
) -> None:
    """
    ``up``, wait for Ctrl-C or SIGTERM or for somebody's ``down``, then ``down``.

    ``start`` is ``up`` with whatever arguments (functools.partial); ``started`` is called once requests are accepted. A
    signal during the start stops what has been started so far; one during the stop is ignored. Where the platform runs
    already this waits with it and stops it just the same. Call it from the main thread.
    """
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        try:
            reached = start(home)
            if started is not None:
                started(reached)
            supervision.wait_ended(reached.supervisor_pid, None)
        except KeyboardInterrupt:
            logger.info("stopping")
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        down(home)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def servers(home: Path, *, config: Settings | None = None, durable: bool = False) -> Iterator[ServerUrls]:
    """
    Redis and Postgres alone, without a supervisor, for the length of a ``with``: for tests.

    A server that the settings name is used as it is. The others are killed at the end, and what they wrote stays in
    ``home``; ``durable=True`` lets Postgres sync as it does under ``up``.
    """
    home, config = home.resolve(), config or Settings()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    run = embedded.run_folder(home)
    logs = embedded.private_folder(home / "logs")
    redis_url, postgres_url, own = _servers(home, run, config, durable=durable)
    with ExitStack() as stack:
        children: dict[str, subprocess.Popen[bytes]] = {}
        for one in own:
            log = stack.enter_context(open(logs / f"{one.name}.log", "ab"))
            # A group of its own, so that a Ctrl-C for the tests lets their fixtures finish with the servers still
            # there.
            child = subprocess.Popen(
                one.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                cwd="/",
                **embedded.identity(one.user),
            )
            children[one.name] = child
            # To Postgres SIGQUIT means "immediate": its sessions end as well, and nothing is written.
            stack.callback(_end_child, child, signal.SIGQUIT if one.name == "postgres" else signal.SIGKILL)
        _await_servers(
            redis_url, postgres_url, lambda name: name not in children or children[name].poll() is None, logs
        )
        yield ServerUrls(redis_url=redis_url, postgres_url=postgres_url)


def _end_child(child: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    child.send_signal(number)
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _start(
    home: Path,
    run: Path,
    config: Settings,
    partitions: int | Sequence[Partition] | None,
    processes: Callable[[Layout], tuple[Process, ...]],
    migration: Sequence[str] | None,
) -> Endpoints:
    (run / "endpoints.json").unlink(missing_ok=True)  # of a supervisor that was killed
    logs = embedded.private_folder(home / "logs")
    redis_url, postgres_url, own = _servers(home, run, config, durable=True)
    layout = _layout(home, config, partitions, redis_url, postgres_url)
    table = processes(layout)
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
                        name=one.name, command=one.command, stop_signal=one.stop_signal, stop_wait_s=30, user=one.user
                    )
                    for one in own
                ],
                supervision.PLATFORM: table,
            },
        ),
    )
    daemon = supervision.launch(file, environment(layout))
    try:
        # 0.3 s of imports, which the servers need to start anyway.
        import psycopg  # noqa: F401
        import redis  # noqa: F401

        said, _ = daemon.communicate()
    finally:
        daemon.wait()  # whoever is interrupted here then finds a whole supervisor to stop
    if daemon.returncode != 0:
        raise embedded.StartFailed(f"the supervisor did not start:\n{said}")
    supervisor = Supervisor(run)
    # Their imports take longer than the servers, which they wait for.
    for process in table:
        if not process.later:
            supervisor.start(process.name)
    _await_servers(redis_url, postgres_url, lambda name: _alive(supervisor, name), logs)
    _migrate(layout, migration_command(home) if migration is None else migration)
    _await_listening(table, supervisor, logs)
    for process in table:
        if process.later:
            supervisor.start(process.name)
    reached = Endpoints(
        home=str(home),
        gateway_url=_url(layout.gateway_host, layout.gateway_port),
        redis_url=redis_url,
        postgres_url=postgres_url,
        supervisor_pid=supervisor.pid(),
    )
    # Last: whoever finds it knows that all of the above is done.
    embedded.write_private(run / "endpoints.json", json.dumps(asdict(reached)))
    return reached


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


def _servers(home: Path, run: Path, config: Settings, *, durable: bool) -> tuple[str, str, tuple[embedded.Server, ...]]:
    """The URL of Redis, the URL of Postgres, and those of them that are ours to start."""
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
    home: Path, config: Settings, partitions: int | Sequence[Partition] | None, redis_url: str, postgres_url: str
) -> Layout:
    cores = sorted(os.sched_getaffinity(0))
    named = () if partitions is None or isinstance(partitions, int) else tuple(partitions)
    count = partitions if isinstance(partitions, int) else None
    gpus = gpu_partitions() if partitions is None else ()
    if reason := refused(config.worker.sharing_mode):
        raise embedded.StartFailed(reason)
    return Layout(
        home=home,
        root=ROOT,
        redis_url=redis_url,
        postgres_url=postgres_url,
        gateway_host=config.api.host,
        gateway_port=config.api.port,
        # Beside GPUs the cores are nobody's in particular.
        platform_cores=config.platform_cores or ("" if gpus else str(cores[0])),
        # Whoever names a Redis may have GPU workers on other machines; ours is on a socket of this one.
        payloads=config.queue.payloads or (embedded.memory_folder(home) if config.redis.url is None else None),
        partitions=named or gpus or plan_partitions(cores, count),
    )


def _await_servers(redis_url: str, postgres_url: str, alive: Callable[[str], bool], logs: Path) -> None:
    """Wait until both answer."""
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
    """Whether it answers; our database is created where it is missing."""
    import psycopg

    plain = url.replace("postgresql+psycopg://", "postgresql://", 1)
    try:
        with psycopg.connect(plain, connect_timeout=5) as connection:
            connection.execute("SELECT 1")
        return True
    except psycopg.OperationalError as error:
        if f'database "{embedded.DATABASE}" does not exist' not in str(error):
            return False
    with psycopg.connect(plain, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {embedded.DATABASE}")
    return True


def _migrate(layout: Layout, migration: Sequence[str]) -> None:
    """
    Schema, first API key, Redis' mirror of the catalog: quick where nothing is to be done, so it is never skipped.
    """
    if not migration:
        return
    done = subprocess.run(
        list(migration),
        cwd=layout.root,
        env={**os.environ, **environment(layout)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise embedded.StartFailed(f"the migration failed:\n{done.stdout}")


def _await_listening(table: Sequence[Process], supervisor: Supervisor, logs: Path) -> None:
    deadline = time.monotonic() + PLATFORM_START_S
    for process in table:
        while process.listens is not None and not _accepts(process.listens):
            if time.monotonic() > deadline:
                state = next(one.state for one in supervisor.status() if one.name == process.name)
                raise embedded.StartFailed(
                    f"{process.name} ({state}) does not listen:\n{_tail(logs / f'{process.name}.log')}"
                )
            time.sleep(_POLL_S)


def _accepts(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection((_connectable(address[0]), address[1]), timeout=1.0).close()
    except OSError:
        return False
    return True


def _require_free(name: str, address: tuple[str, int]) -> None:
    """Otherwise the other program would answer in our place."""
    try:
        socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET).close()
    except OSError as error:
        raise embedded.StartFailed(f"{name} cannot listen on {address[0]}:{address[1]}: {error}") from error


def _connectable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - an address to replace


def _url(host: str, port: int) -> str:
    name = _connectable(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _alive(supervisor: Supervisor, name: str) -> bool:
    return any(one.name == name and one.pid is not None for one in supervisor.status())


def _tail(path: Path, lines: int = 20) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "(no log)"


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One at a time may start or stop the platform of a home."""
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
