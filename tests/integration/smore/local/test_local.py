"""smore.local with real servers and a real supervisor; the platform's own processes are stand-ins."""

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import xmlrpc.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import psycopg
import pytest
import redis
from kombu import Connection
from psycopg import sql
from redis.backoff import NoBackoff
from redis.retry import Retry
from supervisor.xmlrpc import SupervisorTransport

from lab.bench.servers import pid_of, servers, supervisor
from smore.local import machine
from smore.local.doctor import site
from smore.local.embedded import StartFailed, run_folder
from smore.local.layout import Layout, Process
from smore.local.machine import abandoned, down, endpoints, status, up
from smore.process.settings import ApiSettings, Settings
from smore.redis.url import celery_url
from tests.support.eventually import eventually

#: Runs on, and has a child in a session of its own that holds the log open, as a GPU worker's serverful job does.
JOB = "import time; time.sleep(600)"
STAND_IN = (
    f"import subprocess, sys, time; job = subprocess.Popen([sys.executable, '-c', '{JOB}'], start_new_session=True);"
    " time.sleep(600)"
)


def stand_ins(_: Layout) -> tuple[Process, ...]:
    return (
        Process(name="worker", command=(sys.executable, "-c", STAND_IN)),
        Process(name="stillborn", command=("/bin/false",)),
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def plain(url: str) -> str:
    return url.replace("+psycopg", "")


def redis_value(url: str, key: str) -> bytes | None:
    try:
        with redis.Redis.from_url(url) as client:
            found = client.get(key)
    except (redis.ConnectionError, redis.TimeoutError):
        return None
    assert found is None or isinstance(found, bytes)
    return found


def rows(url: str, table: str = "kept") -> int | None:
    try:
        with psycopg.connect(plain(url)) as connection:
            row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
    except psycopg.OperationalError:
        return None
    assert row is not None
    return int(row[0])


def of_home(home: Path) -> dict[int, list[str]]:
    """The living processes that belong to a home: pid to command line."""
    found = {}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            mine = str(home) in " ".join(command) or process.environ().get("SMORE_HOME") == str(home)
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = command
        except psutil.Error:
            continue
    return found


def jobs(home: Path) -> list[int]:
    """The serverful jobs among them."""
    return [number for number, command in of_home(home).items() if command[-1:] == [JOB]]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv("SMORE_REDIS__URL", raising=False)
    monkeypatch.delenv("SMORE_POSTGRES__URL", raising=False)
    return Settings()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "a %home"
    yield place
    down(place)
    # Serverful jobs outlive everything, as they should; nothing else does.
    for job in jobs(place):
        os.kill(job, signal.SIGKILL)
    eventually(lambda: not of_home(place) or None, what="nothing is left", within_s=2.0)


def test_servers_answer_in_private(home: Path, config: Settings) -> None:
    with servers(home, config=config) as urls:
        log = "".join(path.read_text() for path in (home / "logs").glob("postgres*"))
        assert log and "does not exist" not in log, "nobody asks for a database that is not there"
        with redis.Redis.from_url(urls.redis_url) as client:
            assert client.ping()
            kept = client.config_get("*")
            assert kept["port"] == "0"
            assert kept["appendonly"] == "yes"
            assert kept["maxmemory-policy"] == "noeviction"
            assert int(kept["maxmemory"]) == int(1.3 * ((512 + 256 + 512) << 20))
        with psycopg.connect(plain(urls.postgres_url)) as connection:
            assert connection.execute("SELECT current_database(), current_setting('listen_addresses')").fetchone() == (
                "smore",
                "",
            )
        for folder in (home, home / "run", home / "redis", home / "postgres", home / "logs"):
            assert mode(folder) == 0o700, folder
        for socket_file in ("redis.sock", ".s.PGSQL.5432"):
            assert mode(home / "run" / socket_file) == 0o700
        for private in ("redis.password", "redis.conf", "postgres.password"):
            assert mode(home / private) == 0o600
        with (
            redis.Redis(unix_socket_path=str(home / "run" / "redis.sock"), retry=Retry(NoBackoff(), 0)) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(plain(urls.postgres_url), password="wrong").close()
    assert not of_home(home)


def test_celery_reaches_the_same_redis(home: Path, config: Settings) -> None:
    with servers(home, config=config) as urls, Connection(celery_url(urls.redis_url)) as connection:
        with connection.SimpleQueue("lane") as queue:
            queue.put({"ids": ["a"]})
            message = queue.get(timeout=5)
            message.ack()
            assert message.payload == {"ids": ["a"]}
        with redis.Redis.from_url(urls.redis_url) as client:
            assert client.exists("_kombu.binding.lane")


def test_a_deep_home_has_its_sockets_elsewhere(
    tmp_path: Path, config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / ("deep" * 30)
    with tempfile.TemporaryDirectory(prefix="s") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        with servers(home, config=config):
            # Recorded: whoever comes with another environment finds it just the same.
            monkeypatch.delenv("XDG_RUNTIME_DIR")
            assert run_folder(home).parent == Path(short).resolve()
            assert mode(run_folder(home)) == 0o700
        with servers(home, config=config) as urls, redis.Redis.from_url(urls.redis_url) as client:
            assert client.ping()
            assert rows(urls.postgres_url, "pg_database") == 4


def test_a_lock_file_with_a_living_strangers_pid_does_not_block(home: Path, config: Settings) -> None:
    with servers(home, config=config):
        pass
    # Not our own pid: Postgres overlooks its parent's.
    stranger = subprocess.Popen(["/bin/sleep", "60"])
    try:
        stale = f"{stranger.pid}\n{home / 'postgres'}\n1\n5432\n{home / 'run'}\n\n"
        for lock in (home / "postgres" / "postmaster.pid", home / "run" / ".s.PGSQL.5432.lock"):
            lock.write_text(stale)
            lock.chmod(0o600)
        with servers(home, config=config) as urls, psycopg.connect(plain(urls.postgres_url)) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        stranger.kill()
        stranger.wait()


def test_up_survives_kills_and_down_leaves_nothing(home: Path, config: Settings) -> None:
    reached = up(home, config=config, processes=stand_ins, migration=())
    assert up(home, config=config, processes=stand_ins, migration=()) == reached == endpoints(home)
    assert mode(home / "run" / "supervisor.sock") == 0o700
    nobody = xmlrpc.client.ServerProxy(
        "http://supervisor", SupervisorTransport(None, None, f"unix://{home / 'run' / 'supervisor.sock'}")
    )
    with pytest.raises(xmlrpc.client.ProtocolError, match="401"):
        nobody.supervisor.getPID()

    with redis.Redis.from_url(reached.redis_url) as client:
        client.set("kept", "yes")
    with psycopg.connect(plain(reached.postgres_url), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")

    # A process that had not been up for a second is held back for a moment: not what is measured here.
    settled = {"redis", "postgres", "worker"}
    eventually(
        lambda: settled <= {one.name for one in status(home) if one.state == "RUNNING"} or None, what="all are up"
    )
    for name in sorted(settled):
        before = pid_of(home, name)
        assert before is not None
        os.kill(before, signal.SIGKILL)

        def back(name: str = name, before: int = before) -> bool:
            return pid_of(home, name) not in (None, before)

        eventually(back, what=f"{name} is back")
    assert eventually(lambda: redis_value(reached.redis_url, "kept"), what="Redis answers") == b"yes"
    assert eventually(lambda: rows(reached.postgres_url), what="Postgres answers") == 1

    # The killed worker's job runs on, although it held the worker's log.
    eventually(lambda: len(jobs(home)) == 2 or None, what="the new worker has a job beside the old one's")

    # A process that cannot start is tried again for ever and harms nobody.
    assert {one.state for one in status(home) if one.name == "stillborn"} <= {"STARTING", "BACKOFF"}

    before = pid_of(home, "worker")
    supervisor(home).stop("worker")
    supervisor(home).start("worker")
    assert pid_of(home, "worker") not in (None, before)
    with pytest.raises(KeyError):
        supervisor(home).stop("nobody")

    down(home)
    assert status(home) == () and endpoints(home) is None
    eventually(lambda: list(of_home(home)) == jobs(home) or None, what="only serverful jobs are left", within_s=2.0)

    again = up(home, config=config, processes=stand_ins, migration=())
    assert again.redis_url == reached.redis_url
    assert redis_value(again.redis_url, "kept") == b"yes"
    assert rows(again.postgres_url) == 1


def test_up_after_the_supervisor_was_killed(home: Path, config: Settings) -> None:
    first = up(home, config=config, processes=stand_ins, migration=())
    with redis.Redis.from_url(first.redis_url) as client:
        client.set("kept", "yes")
    left = pid_of(home, "redis")
    assert (abandoned(home), site(Settings(home=home)).killed) == (None, None)
    os.kill(first.supervisor_pid, signal.SIGKILL)
    eventually(lambda: abandoned(home) is not None, what="it is seen to be gone")
    assert abandoned(home) == (first.supervisor_pid, first)
    found = site(Settings(home=home))
    assert (found.killed, found.redis_url) == (
        first.supervisor_pid,
        first.redis_url,
    ), "the doctor goes on with what it left"
    second = up(home, config=config, processes=stand_ins, migration=())
    assert second.supervisor_pid != first.supervisor_pid
    assert abandoned(home) is None
    assert pid_of(home, "redis") not in (None, left)
    # Two of them on the same files would ruin these. Its title names the socket, which of a deep home lies elsewhere.
    place = unquote(urlsplit(second.redis_url).path)
    titles = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert sum("-server unixsocket:" in title and place in title for title in titles) == 1
    assert redis_value(second.redis_url, "kept") == b"yes"


def test_a_failing_migration_stops_everything_and_says_why(home: Path, config: Settings) -> None:
    """What has been started meanwhile ends too, and what was to start later never does."""
    failing = (sys.executable, "-c", "import sys; sys.exit('no such column')")
    touched = home.parent / "touched"
    table = (
        Process(name="early", command=(sys.executable, "-c", JOB)),
        Process(name="late", command=("/bin/sh", "-c", f"touch {touched}"), later=True),
    )
    with pytest.raises(StartFailed, match="no such column"):
        up(home, config=config, processes=lambda _: table, migration=failing)
    assert status(home) == ()
    assert not of_home(home)
    assert not touched.exists()


def test_the_migration_runs_at_every_start(home: Path, config: Settings) -> None:
    ran = home.parent / "ran"
    migration = ("/bin/sh", "-c", f'echo "$SMORE_POSTGRES__URL" >> {ran}')
    reached = up(home, config=config, processes=stand_ins, migration=migration)
    down(home)
    up(home, config=config, processes=stand_ins, migration=migration)
    assert ran.read_text().splitlines() == [reached.postgres_url] * 2


def test_where_nothing_is_to_be_migrated_no_process_is_started(
    home: Path, config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[bool] = []
    migrate = machine._migrate

    def counted(*asked: Any) -> None:
        ran.append(True)
        migrate(*asked)

    monkeypatch.setattr(machine, "_migrate", counted)
    reached = up(home, config=config, processes=stand_ins)
    mirrored = redis.Redis.from_url(reached.redis_url).keys("smore:catalog*")
    redis.Redis.from_url(reached.redis_url).flushall()
    down(home)
    reached = up(home, config=config, processes=stand_ins)
    assert ran == [True]
    assert mirrored and redis.Redis.from_url(reached.redis_url).keys("smore:catalog*") == mirrored
    down(home)
    (home / "key").unlink()
    up(home, config=config, processes=stand_ins)
    assert ran == [True, True]
    assert (home / "key").exists()


def test_a_taken_port_is_refused_before_anything_starts(home: Path, config: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ("127.0.0.1", taken.getsockname()[1])
        gateway = Process(name="gateway", command=("/bin/false",), listens=address)
        with pytest.raises(StartFailed, match=r"gateway cannot listen.* Another port: SMORE_API__PORT=\d+ smore up"):
            up(home, config=config, processes=lambda _: (gateway,), migration=())
    assert not of_home(home)


def test_up_returns_when_the_gateway_listens(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = Settings(api=ApiSettings(port=port))
    command = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port))
    gateway = Process(name="gateway", command=command, listens=("127.0.0.1", port))
    reached = up(home, config=config, processes=lambda _: (gateway,), migration=())
    assert reached.gateway_url == f"http://127.0.0.1:{port}"
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


FOREGROUND = """
import sys
from functools import partial
from pathlib import Path
from smore.local.machine import run_foreground, up
start = partial(up, processes=lambda layout: (), migration=())
run_foreground(Path(sys.argv[1]), start=start, started=lambda reached: print("started", flush=True))
print("stopped", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_foreground_ends_cleanly_on(number: signal.Signals, home: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", FOREGROUND, str(home)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "started\n"
    assert len(status(home)) == 2
    child.send_signal(number)
    assert child.communicate(timeout=20)[0] == "stopped\n"
    assert child.returncode == 0
    assert not of_home(home)
