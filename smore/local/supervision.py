"""The supervisor of this machine's processes: its configuration file, its start, its client."""

import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Final, cast

import psutil

from smore.local import embedded
from smore.local.layout import Process

#: The groups in the order of their start; they stop in the reverse order, each as a whole.
SERVERS = "servers"
PLATFORM = "platform"

#: Seconds in which a supervisor answers, even on a busy machine.
ANSWER_S: Final = 10.0
_USER: Final = "smore"
#: "2026-01-31 12:00:00,123 WARN exited: control (exit status 2; not expected)"; ends that were asked for are "stopped".
_EXITED: Final = re.compile(r"([\d-]+ [\d:]+),\d+ \w+ exited: (\S+) \((.*?)(?:; (?:not )?expected)?\)$")
#: The file of the password, in the folder of the socket.
_PASSWORD: Final = "supervisor.password"  # noqa: S105 - the name of a file


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """One process as the supervisor sees it."""

    name: str
    #: ``RUNNING``, ``STARTING`` (its first second), ``BACKOFF`` (died while it started, starts again), ``STOPPED``…
    state: str
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Ends of a process that nobody asked for: how many, and of the last one the time of day and how it was."""

    count: int
    at: str
    how: str


def ends(logs: Path) -> dict[str, End]:
    """
    The ends of processes since the supervisor in whose log they are was started, by name; each was followed by a restart.

    Of a log that has grown above its bound, those alone that are in its last file.
    """
    try:
        lines = (logs / "supervisor.log").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    found: dict[str, End] = {}
    for line in lines:
        if "supervisord started with pid" in line:
            found = {}
        elif match := _EXITED.match(line):
            at, name, how = match.groups()
            former = found[name].count if name in found else 0
            found[name] = End(count=former + 1, at=at, how=how)
    return found


def make_password(run: Path) -> str:
    """
    Write a new password for the supervisor that is about to start, and return it. Without one, a function that runs as
    the same user could command the supervisor over its socket.
    """
    password = secrets.token_urlsafe(24)
    embedded.write_private(run / _PASSWORD, password)
    return password


def _read_password(run: Path) -> str | None:
    try:
        return (run / _PASSWORD).read_text()
    except FileNotFoundError:
        return None


def configuration(
    *, run: Path, logs: Path | None, root: Path, groups: Mapping[str, Iterable[Process]], password: str | None = None
) -> str:
    """
    The text of supervisord.conf.

    ``logs``: the folder of all logs; None = the supervisor's standard output. ``password``: the password of its socket;
    None = it has no socket and obeys signals alone.

    Raises ValueError for a path that the file's syntax cannot hold.
    """
    sections = [
        _section(
            "supervisord",
            **_log("logfile", logs, "supervisor"),
            pidfile=str(run / "supervisor.pid"),
            directory=str(root),
            umask="077",
            # The clean-up removes automatic log files in /tmp; the platform has none.
            nocleanup="true",
            **({"user": "root"} if os.geteuid() == 0 else {}),
        ),
    ]
    if password is not None:
        factory = "supervisor.rpcinterface:make_main_rpcinterface"
        sections += [
            _section(
                "unix_http_server", file=str(run / "supervisor.sock"), chmod="0700", username=_USER, password=password
            ),
            _section("rpcinterface:supervisor", **{"supervisor.rpcinterface_factory": factory}),
        ]
    for priority, (group, programs) in enumerate(groups.items(), 1):
        members = list(programs)
        if not members:
            continue
        sections.append(
            _section(f"group:{group}", programs=",".join(member.name for member in members), priority=str(priority))
        )
        for member in members:
            sections.append(
                _section(
                    f"program:{member.name}",
                    command=shlex.join(member.command),
                    # A server with a user of its own may be unable to enter the checkout.
                    directory=str(root) if member.user is None else "/",
                    # smore.local.machine starts the platform: after the servers answer and the schema exists.
                    autostart="true" if group == SERVERS else "false",
                    autorestart="true",
                    startsecs="1",
                    # Never FATAL: a process that cannot start now may start when Redis is back (daemon.py bounds the pause).
                    startretries="1000000000",
                    stopsignal=member.stop_signal,
                    stopwaitsecs=str(member.stop_wait_s),
                    # A serverful job has a session of its own and outlives its worker; a worker ends its own runners.
                    stopasgroup="false",
                    killasgroup="false",
                    redirect_stderr="true",
                    **_log("stdout_logfile", logs, member.name),
                    **({"user": member.user} if member.user else {}),
                    **(
                        {"environment": ",".join(f'{key}="{value}"' for key, value in member.env)} if member.env else {}
                    ),
                )
            )
    return "\n".join(sections)


def _log(key: str, folder: Path | None, name: str) -> dict[str, str]:
    """The settings of a log: a file that is rotated, or the supervisor's standard output, which is not."""
    if folder is None:
        return {key: "/dev/fd/1" if key == "stdout_logfile" else "/dev/null", f"{key}_maxbytes": "0"}
    path = str(folder / f"{name}.log")
    # Supervisord expands a program's value twice.
    shown = path.replace("%", "%%") if key == "stdout_logfile" else path
    return {key: shown, f"{key}_maxbytes": "10MB", f"{key}_backups": "3"}


def _section(name: str, **values: str) -> str:
    lines = [f"[{name}]"]
    for key, value in values.items():
        if re.search(r"[\r\n]|\s[;#]|^[;#]", value):
            raise ValueError(f"the supervisor's configuration cannot hold {key} = {value!r}")
        lines.append(f"{key} = {value.replace('%', '%%')}")
    return "\n".join(lines) + "\n"


def foreground(configuration_file: Path) -> list[str]:
    """The command of a supervisor in the foreground, for a process that replaces itself by it."""
    return [sys.executable, "-P", str(Path(__file__).with_name("daemon.py")), "-n", "-c", str(configuration_file)]


def launch(configuration_file: Path, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    """Begin to start the supervisor; it runs once the returned process has ended with exit code 0."""
    return subprocess.Popen(
        # By its path and without its folder on sys.path: see daemon.py.
        [sys.executable, "-P", str(Path(__file__).with_name("daemon.py")), "-c", str(configuration_file)],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class Supervisor:
    """A client of the running supervisor. Its methods raise ConnectionError or FileNotFoundError where none runs."""

    def __init__(self, run: Path) -> None:
        from supervisor.xmlrpc import SupervisorTransport

        password = _read_password(run)
        user = _USER if password is not None else None
        transport = SupervisorTransport(user, password, f"unix://{run / 'supervisor.sock'}")
        self._rpc = xmlrpc.client.ServerProxy("http://supervisor", transport)

    def pid(self) -> int:
        return cast(int, self._rpc.supervisor.getPID())

    def shutdown(self) -> None:
        """Begin to stop everything."""
        try:
            self._rpc.supervisor.shutdown()
        except xmlrpc.client.Fault as fault:
            if fault.faultString != "SHUTDOWN_STATE":
                raise

    def status(self) -> tuple[ProcessStatus, ...]:
        return tuple(
            ProcessStatus(
                name=str(info["name"]),
                state=str(info["statename"]),
                pid=cast(int, info["pid"]) or None,
            )
            for info in self._all()
        )

    def start(self, name: str) -> None:
        """Start a process without waiting for it; the supervisor restarts one that dies at once."""
        try:
            self._rpc.supervisor.startProcess(self._full_name(name), False)
        except xmlrpc.client.Fault as fault:
            if not fault.faultString.startswith(("ALREADY_STARTED", "SPAWN_ERROR")):
                raise embedded.StartFailed(f"{name}: {fault.faultString}") from fault

    def stop(self, name: str) -> None:
        """Stop a process and wait until it has ended."""
        try:
            self._rpc.supervisor.stopProcess(self._full_name(name), True)
        except xmlrpc.client.Fault as fault:
            if not fault.faultString.startswith("NOT_RUNNING"):
                raise

    def _all(self) -> list[dict[str, object]]:
        return cast("list[dict[str, object]]", self._rpc.supervisor.getAllProcessInfo())

    def _full_name(self, name: str) -> str:
        for info in self._all():
            if info["name"] == name:
                return f"{info['group']}:{name}"
        raise KeyError(name)


def running(run: Path) -> Supervisor | None:
    """
    The supervisor whose socket is in this folder; None where there is none, or where it is stopping. Raises TimeoutError
    for one that does not answer.
    """
    _await_answer(run)
    supervisor = Supervisor(run)
    try:
        supervisor.pid()
    except (OSError, xmlrpc.client.Fault):
        return None  # none runs, or it is stopping
    return supervisor


def _await_answer(run: Path) -> None:
    """
    Raises TimeoutError where a supervisor takes connections and says nothing, as one does that is stopped (SIGSTOP): its
    client would wait for ever.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(str(run / "supervisor.sock"))
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            connection.recv(1)
        except TimeoutError as error:
            try:
                pid = (run / "supervisor.pid").read_text().strip()
            except OSError:
                pid = "PID"
            raise TimeoutError(
                f"The supervisor of this platform (process {pid}) does not answer within {ANSWER_S:g} s. It may be stopped:"
                f" `kill -CONT {pid}` lets it go on. The platform's processes run without it, but none that ends is"
                " started again."
            ) from error
        except OSError:
            return  # none runs


def killed(run: Path) -> int | None:
    """
    The pid of a supervisor that has ended without stopping its processes; None where there is none.

    A supervisor that ends in order removes its pid file.
    """
    try:
        pid = int((run / "supervisor.pid").read_text())
        command = psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return pid
    except (OSError, ValueError, psutil.Error):
        return None
    return None if any(word.endswith("daemon.py") for word in command) else pid


def wait_ended(pid: int, timeout_s: float | None) -> bool:
    """
    Wait until a process, a child or not, has ended; False where ``timeout_s`` seconds pass first.

    A zombie counts as ended: in a container without an init it may never be reaped.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def end_leftovers(home: Path, run: Path, patience_s: float = 30.0) -> None:
    """
    End the processes that a killed supervisor has left: none of them would be restarted, and a second Redis must not
    open the same files.

    They are the processes of its session that work for this home. Serverful jobs and runners have sessions of their
    own; the nursery has ended with it. ``patience_s``: seconds before a process that ignores SIGTERM is killed.
    """
    record = run / "supervisor.pid"
    if not record.exists():
        return
    session = int(record.read_text())
    leftovers = [process for process in psutil.process_iter() if _belongs(process, session, home)]
    for process in leftovers:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    for process in leftovers:
        if not wait_ended(process.pid, max(0.0, deadline - time.monotonic())):
            with suppress(psutil.NoSuchProcess):
                process.kill()
            wait_ended(process.pid, patience_s)
    record.unlink(missing_ok=True)
    (run / "supervisor.sock").unlink(missing_ok=True)


def _belongs(process: psutil.Process, session: int, home: Path) -> bool:
    try:
        if os.getsid(process.pid) != session:
            return False
        # Redis overwrites its environment with its title, but its working folder is inside the home.
        return process.environ().get("SMORE_HOME") == str(home) or Path(process.cwd()).is_relative_to(home)
    except psutil.AccessDenied:
        # A GPU worker is not dumpable: another process cannot read it unless it is root's.
        return "worker.app" in process.cmdline()
    except (ProcessLookupError, psutil.Error):
        return False
