"""Redis and Postgres of a folder without the platform, and single processes of one that runs."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from smore.local import embedded, machine
from smore.local.supervision import Supervisor
from smore.process.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUrls:
    redis_url: str
    postgres_url: str


@contextmanager
def servers(home: Path, *, config: Settings | None = None, durable: bool = False) -> Iterator[ServerUrls]:
    """
    Redis and Postgres alone, without a supervisor, inside a ``with`` block: for tests and measurements.

    A server that the settings name is used as it is. The others are killed at the end, and their files stay in
    ``home``. ``durable=True``: Postgres syncs as it does under ``up``.
    """
    home, config = home.resolve(), config or Settings()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    run = embedded.run_folder(home)
    logs = embedded.private_folder(home / "logs")
    redis_url, postgres_url, own = machine.own_servers(home, run, config, durable=durable)
    with ExitStack() as stack:
        children: dict[str, subprocess.Popen[bytes]] = {}
        for server in own:
            log = stack.enter_context(open(logs / f"{server.name}.log", "ab"))
            # A process group of its own: a Ctrl-C that ends the tests reaches no server, so fixtures can finish.
            child = subprocess.Popen(
                server.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                cwd="/",
                **embedded.identity(server.user),
            )
            children[server.name] = child
            # SIGQUIT is Postgres' immediate shutdown: its sessions end too, and nothing is written.
            stack.callback(_end_child, child, signal.SIGQUIT if server.name == "postgres" else signal.SIGKILL)
        machine.await_servers(
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


def pid_of(home: Path, name: str) -> int | None:
    """
    The pid of a process of the platform that runs in ``home``; None while it is not running.

    Raises KeyError for a name that the platform does not have, or where the platform does not run.
    """
    for process in machine.status(home):
        if process.name == name:
            return process.pid
    raise KeyError(name)


def supervisor(home: Path) -> Supervisor:
    """What starts and stops single processes of the platform that runs in ``home``."""
    return Supervisor((home.resolve() / "run").resolve())
