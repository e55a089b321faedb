"""
The training host (``python -m worker.keeper``): starts trainings for the GPU workers of its home where those run in a
container, and is their parent.

A container's processes end with it, so trainings have a container of their own with this process first in it
(docker-compose.yml's ``trainings``): the workers' container may be restarted and replaced while they go on. Both
containers share the home and the PID namespace. A worker asks over ``<home>/run/trainings.sock`` and looks after the
training itself from then on: records, steps, memory and signals are as on a machine without containers
(worker/training/jobs.py), where the worker starts trainings itself by the same :func:`start`.

A request must carry what is in ``trainings.token`` beside the socket, which no function can read: on a GPU functions
may use unix sockets. SIGTERM is passed on to every training, and this process waits for their ends; the container's
grace period bounds that wait.
"""

import hmac
import os
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from smore.local.embedded import private_folder, write_private
from smore.process import observability
from smore.process.environment import settings
from worker.child_env import ROOT, scrubbed
from worker.device.device import pinned
from worker.training import shim

log = observability.logger(__name__)

#: Seconds that a shim has to start its training.
_SHIM_S: Final = 10.0
#: Seconds that a request may take to arrive, and between two looks for trainings that have ended.
_REQUEST_S: Final = 2.0
_TURN_S: Final = 0.5
_MOST_BYTES: Final = 1 << 20


class Training(msgspec.Struct, kw_only=True, frozen=True):
    """
    A training to start: ``python -m argv``, or, with ``program``, ``argv`` as it is; on these cores (none = any), with
    ``env`` beside the environment of the process that starts it.
    """

    argv: Sequence[str]
    program: bool = False
    #: The folder in which it begins, "" = the platform's.
    cwd: str = ""
    env: Mapping[str, str]
    cores: Sequence[int]
    #: Files: for its shim to write how it ended, and for its output.
    status: str
    log: str


class _Request(msgspec.Struct, kw_only=True, frozen=True):
    token: str
    training: Training


class Started(msgspec.Struct, kw_only=True, frozen=True):
    """Process numbers. ``error``: why it was not started, '' = it was."""

    pid: int = 0
    shim: int = 0
    error: str = ""


_encode = msgspec.json.Encoder().encode
_request = msgspec.json.Decoder(_Request).decode
_started = msgspec.json.Decoder(Started).decode


def start(training: Training) -> tuple["subprocess.Popen[bytes]", int]:
    """Start a training. Returns its shim, a child of this process, and its process number. Raises OSError."""
    # The allocator's settings are the platform's own: a training has its own or none.
    inherited = {name: value for name, value in scrubbed({}).items() if not name.startswith("MALLOC_")}
    env = {**inherited, **training.env}
    command = [sys.executable, "-m", *training.argv]
    if training.program:
        program = shutil.which(training.argv[0], path=env.get("PATH"))
        if program is None:
            raise OSError(f"there is no program {training.argv[0]}")
        command = [program, *training.argv[1:]]
    reader, writer = os.pipe()
    try:
        with open(training.log, "ab") as output, pinned(training.cores):
            child = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(Path(shim.__file__)), training.status, str(writer)),
                    *command,
                ],
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=training.cwd or ROOT,
                env=env,
            )
        os.close(writer)
        writer = -1
        number = os.read(reader, 32) if select.select([reader], [], [], _SHIM_S)[0] else b""
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    if not number:
        child.kill()
        child.wait()
        raise OSError("its shim did not start it")
    return child, int(number)


def ask(home: Path, training: Training) -> Started:
    """Have the training host of this home start a training. Raises OSError."""
    run = home / "run"
    try:
        pid, token = (run / "trainings.token").read_text().split()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_SHIM_S + _REQUEST_S)
            connection.connect(str(run / "trainings.sock"))
            peer, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if peer != int(pid):
                raise OSError("it is in another PID namespace, or has just been replaced")
            connection.sendall(_encode(_Request(token=token, training=training)))
            connection.shutdown(socket.SHUT_WR)
            answer = _started(_all(connection))
    except (OSError, msgspec.DecodeError) as error:
        raise OSError(f"the service that keeps trainings does not answer ({error or type(error).__name__})") from error
    if answer.error:
        raise OSError(answer.error)
    return answer


def _all(connection: socket.socket) -> bytes:
    """All that the other side sends until it ends its side. Raises OSError."""
    received = bytearray()
    while piece := connection.recv(1 << 16):
        received += piece
        if len(received) > _MOST_BYTES:
            raise OSError("more was sent than a training takes")
    return bytes(received)


class TrainingHost:
    """
    ``serve`` runs until ``stop``, which a signal handler may call; then every training that was started gets SIGTERM and
    is waited for. One thread, no lock.
    """

    def __init__(self, home: Path) -> None:
        run = private_folder(home / "run")
        self._token = secrets.token_hex(32)
        write_private(run / "trainings.token", f"{os.getpid()} {self._token}")
        path = run / "trainings.sock"
        # Left by a training host that was killed.
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._shims: list[subprocess.Popen[bytes]] = []
        self._stopping = False

    def stop(self, *_: object) -> None:
        """End :meth:`serve` at its next turn."""
        self._stopping = True

    def serve(self) -> None:
        """Answer requests until :meth:`stop`, then end all trainings."""
        while not self._stopping:
            if select.select([self._listener], [], [], _TURN_S)[0]:
                self._answer()
            self._shims = [child for child in self._shims if child.poll() is None]
        self._listener.close()
        log.info("stopping", trainings=len(self._shims))
        for child in self._shims:
            child.terminate()
        for child in self._shims:
            child.wait()

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        child = None
        with connection:
            connection.settimeout(_REQUEST_S)
            try:
                if not (received := _all(connection)):
                    return  # a healthcheck
                request = _request(received)
                if not hmac.compare_digest(request.token, self._token):
                    raise PermissionError("a request without the token")
            except (OSError, msgspec.DecodeError, UnicodeError) as error:
                log.warning("request refused", error=str(error) or type(error).__name__)
                return
            try:
                child, pid = start(request.training)
                self._shims.append(child)
                log.info("training started", pid=pid, argv=list(request.training.argv))
                answer = Started(pid=pid, shim=child.pid)
            except OSError as error:
                answer = Started(error=str(error))
            try:
                connection.sendall(_encode(answer))
            except OSError:
                # The worker has ended or given up: to it this training never was.
                if child is not None:
                    log.warning("nobody waits for this training any more", shim=child.pid)
                    child.terminate()


def main() -> None:
    config = settings()
    observability.configure(config, "trainings")
    # The socket and logs of trainings are their owner's alone.
    os.umask(0o077)
    host = TrainingHost(config.home.resolve())
    signal.signal(signal.SIGTERM, host.stop)
    signal.signal(signal.SIGINT, host.stop)
    log.info("started")
    host.serve()
