"""
``python -m worker.artifacts.builder``: builds one environment with pip, which is confined like a runner
(worker/sandbox/warden.py). Started by :mod:`worker.artifacts.environments`.

Its standard input is one line of JSON, a :class:`Build`. It ends with status 0, or with another one and the reason on
its standard output; the end of its input ends the build. What must stay true: this process runs no code of a package. It
makes the venv, gives it to the cell's user, and takes it back when every process of the cell has ended.
"""

import ast
import contextlib
import email.parser
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import traceback
import venv
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NoReturn
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.requirements import InvalidRequirement, Requirement

from smore.domain.quote import quoted
from worker import proc
from worker.child_env import ROOT, for_runners
from worker.frames import Confinement, packages_of
from worker.proc import die_with_parent
from worker.sandbox import warden as sandbox
from worker.sandbox.cgroup import RunnerGroup
from worker.sandbox.warden import Cell, Warden

#: Characters of a failed build's log that are kept, its end.
LOG_CHARS: Final = 6000
#: Memory that each process of a build may hold, and all together where there are control groups.
MEMORY_MIB: Final = 4096
#: Seconds between two looks at the size of what it has written.
_LOOK_S: Final = 1.0
_END_S: Final = 10.0
#: Variables beside PIP_* by which the index is reached.
_PASSED: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
#: Options of pip's configuration that name places to write to, or other configuration.
_NOT_PASSED: Final = ("config-file", "cache-dir", "log", "src", "build", "report")
#: Files from which pip reads the name of the system, which it sends.
_READ: Final = ("/etc/debian_version", "/etc/lsb-release")
_PORTS: Final = {"http": 80, "https": 443}
#: Bytes of a wheel's METADATA that are read, with a README in it.
_METADATA_BYTES: Final = 1 << 20
#: What pip reads instead of METADATA, or beside it.
_OLD: Final = ("PKG-INFO", "requires.txt")
#: The status of the cell's process that has refused a wheel and has not become pip; none of pip's own.
_REFUSED: Final = 100


class Build(msgspec.Struct, frozen=True):
    """What is to be built, as the worker asks for it."""

    #: An empty folder, which becomes the environment.
    folder: str
    #: The unpacked upload: wheels of the function's own lie there.
    code: str
    requirements: list[str]
    #: Versions that nothing may replace.
    fixed: list[str]
    #: Whether packages may be built from their source.
    sdists: bool
    timeout_s: float
    #: What it may write in all, MiB.
    disk_mib: int
    #: The platform's home, which the cell does not see.
    home: str
    #: How runners are confined; the paths and ports in it are replaced for the build.
    confinement: Confinement
    #: The first part of its control group's name.
    group: str


class Failed(Exception):
    """The environment cannot be built; the message is for the deployer."""


def pip_settings(listing: str) -> dict[str, str]:
    """
    The output of ``pip config list`` as PIP_* variables: [global], over it [install], over both the environment's.
    """
    settings = {}
    for section in ("global", "install", ":env:"):
        for line in listing.splitlines():
            key, _, value = line.partition("=")
            origin, _, name = key.rpartition(".")
            if origin == section and name not in _NOT_PASSED:
                settings["PIP_" + name.upper().replace("-", "_")] = os.path.expanduser(str(ast.literal_eval(value)))
    return settings


def named(values: Iterable[str]) -> tuple[list[str], list[int]]:
    """(files and folders, TCP ports) that pip has to reach, of the paths and URLs in its settings."""
    paths, ports = [], []
    for word in " ".join(values).split():
        with contextlib.suppress(ValueError):
            url = urlsplit(word)
            if url.scheme == "file":
                paths.append(unquote(url.path))
            elif word.startswith("/"):
                paths.append(word)
            elif url.scheme in _PORTS and url.hostname:
                ports.append(url.port or _PORTS[url.scheme])
    return paths, ports


def check_wheel(name: str) -> None:
    """
    Whether this wheel in the working directory requires names with versions alone.

    pip would fetch a URL that a wheel requires, and run the build of a source archive there, whatever ``--only-binary``
    says. Raises Failed, also where it cannot be told.
    """
    try:
        metadata = _metadata(name)
    except Failed:
        raise
    except Exception as error:
        # zipfile raises all kinds over bytes that are no zip.
        raise Failed(f"{name} cannot be read: {quoted(str(error))}") from error
    for text in email.parser.HeaderParser().parsestr(metadata).get_all("Requires-Dist", []):
        try:
            url = Requirement(text).url
        except (InvalidRequirement, RecursionError) as error:
            raise Failed(f"{name} requires {quoted(text)}, which is not a requirement such as einops==0.8.1") from error
        if url is not None:
            raise Failed(
                f"{name} requires {quoted(text)}, a URL: only packages of the index and wheels of the folder are"
                " installed"
            )


def _metadata(name: str) -> str:
    """
    Its METADATA as pip finds it, by the same reading of the names in the archive. Raises Failed, and what zipfile
    raises.
    """
    with zipfile.ZipFile(name) as reader:
        entries = reader.namelist()
        folders = {place for place in (entry.split("/", 1)[0] for entry in entries) if place.endswith(".dist-info")}
        if len(folders) != 1:
            raise Failed(f"{name} has {len(folders)} folders, not one .dist-info folder")
        (folder,) = folders
        # pip takes d//METADATA and d/./METADATA for d/METADATA.
        files = [
            (str(PurePosixPath(entry).relative_to(folder)), entry)
            for entry in entries
            if entry.startswith(f"{folder}/")
        ]
        metadata = [entry for file, entry in files if file == "METADATA"]
        if len(metadata) != 1:
            raise Failed(f"{name} has {len(metadata)} METADATA files, not one METADATA")
        for file, _ in files:
            if file in _OLD:
                raise Failed(f"{name} has a {file}: what it requires must stand in METADATA alone")
        with reader.open(metadata[0]) as member:
            content = member.read(_METADATA_BYTES + 1)
    if len(content) > _METADATA_BYTES:
        raise Failed(f"{name}: its METADATA has more than {_METADATA_BYTES >> 20} MiB")
    if not content:
        raise Failed(f"{name}: its METADATA is empty")
    return content.decode()


def _settings() -> dict[str, str]:
    """The environment of pip in the cell: none of its files is there."""
    words = [sys.executable, "-I", "-m", "pip", "config", "list"]
    listed = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, cwd="/")
    if listed.returncode:
        raise Failed(f"pip's configuration cannot be read: {listed.stderr.strip()[-LOG_CHARS:]}")
    passed = {name: value for name, value in os.environ.items() if name.upper() in _PASSED}
    return passed | pip_settings(listed.stdout)


def _own(folder: Path, user: int) -> None:
    """Make everything there that user's, and its group's."""
    for place, folders, names in os.walk(folder):
        for path in (place, *(os.path.join(place, name) for name in (*folders, *names))):
            os.chown(path, user, user, follow_symlinks=False)


class _Builder:
    """One build, in one thread."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._folder = Path(build.folder)
        #: For files that are needed during the build alone.
        self._work = self._folder / ".build"
        self._until = time.monotonic() + build.timeout_s
        self._log = bytearray()

    def run(self) -> None:
        """Raises Failed, OSError."""
        os.umask(0o022)
        self._prepare()
        settings = _settings()
        paths, ports = named(settings.values())
        given = self._build.confinement
        confinement = msgspec.structs.replace(
            given,
            readable=[*_READ, *paths],
            writable=[],
            scratch_mib=self._build.disk_mib,
            unix_sockets=False,
            affinity=False,
            tcp_ports=None if given.tcp_ports is None else sorted({*given.tcp_ports, *ports}),
        )
        warden = Warden(confinement, self._folder, ROOT, [Path(self._build.home)]) if confinement.on else None
        cell = warden.settle(self._folder) if warden is not None else None
        if cell is not None and cell.user is not None:
            _own(self._folder, cell.user)
        try:
            what = self._run_pip(warden, cell, settings)
        finally:
            # Before the folder is taken back: no process of the cell may change it at the same time.
            self._end_all()
            if cell is not None and cell.user is not None:
                _own(self._folder, os.geteuid())
        if what:
            hint = (
                ""
                if self._build.sdists
                else " (wheels alone are installed; SMORE_WORKER__SDISTS=true builds other packages too)"
            )
            printed = self._log.decode(errors="replace").strip()[-LOG_CHARS:]
            raise Failed(f"The environment was not built: pip {what}{hint}. Its log:\n{printed}")
        shutil.rmtree(self._work)
        self._check()

    def _prepare(self) -> None:
        venv.create(self._folder, symlinks=True)
        (packages_of(self._folder) / "platform.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        for name in ("tmp", "wheels"):
            (self._work / name).mkdir(parents=True)
        (self._work / "constraints.txt").write_text("".join(f"{version}\n" for version in self._build.fixed))
        # Copies: the uploaded folder is named by its content, and shared.
        for requirement in self._build.requirements:
            if requirement.startswith("./"):
                copy = self._work / "wheels" / requirement
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(self._build.code, requirement), copy)

    def _run_pip(self, warden: Warden | None, cell: Cell | None, settings: Mapping[str, str]) -> str:
        """What went wrong, "" = nothing. Raises Failed where the worker has ended."""
        words = [
            sys.executable,
            "-I",
            "-m",
            "pip",
            "--python",
            str(self._folder / "bin" / "python"),
            "install",
            "--no-input",
            "--no-cache-dir",
            "--disable-pip-version-check",
            "--no-warn-script-location",
            "--root-user-action",
            "ignore",
            "--constraint",
            str(self._work / "constraints.txt"),
            *([] if self._build.sdists else ["--only-binary", ":all:"]),
            # The following words are no options, whatever they begin with.
            "--",
            *self._build.requirements,
        ]
        tmp = str(self._work / "tmp")
        environment = for_runners({**settings, "PIP_CONFIG_FILE": os.devnull, "HOME": tmp, "TMPDIR": tmp})
        reading, writing = os.pipe()
        closed, gate = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                # Wait until it is in its control group.
                os.close(gate)
                os.read(closed, 1)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(writing, 1)
                os.dup2(writing, 2)
                wheels = [name for name in self._build.requirements if name.startswith("./")]
                _become_pip(parent, warden, cell, self._work / "wheels", wheels, words, environment)
            except Failed as error:
                os.write(2, str(error).encode(errors="replace"))
                os._exit(_REFUSED)
            except BaseException:  # noqa: BLE001
                # Nothing may unwind into the builder: this is another process now.
                os.write(2, traceback.format_exc().encode())
            os._exit(1)
        os.close(writing)
        os.close(closed)
        group = RunnerGroup.make(f"{self._build.group}b{parent}", processes=self._build.confinement.processes)
        if group is not None:
            group.limit(MEMORY_MIB)
            group.add(pid)
        os.close(gate)
        try:
            what = self._watch(pid, reading, warden, cell)
            return "ran out of memory" if what and group is not None and group.ran_out() else what
        finally:
            self._end_all()
            os.close(reading)
            if group is not None:
                group.remove()

    def _watch(self, pid: int, reading: int, warden: Warden | None, cell: Cell | None) -> str:
        """Read pip's log until it ends. What went wrong, "" = nothing. Raises Failed."""
        looked_at = time.monotonic()
        ended = os.pidfd_open(pid)
        with selectors.DefaultSelector() as selector:
            for descriptor in (0, reading, ended):
                selector.register(descriptor, selectors.EVENT_READ)
            while (left := self._until - time.monotonic()) > 0:
                ready = {key.fd for key, _ in selector.select(min(left, _LOOK_S))}
                if 0 in ready and not os.read(0, 4096):
                    raise Failed("The worker has ended.")
                if reading in ready:
                    piece = os.read(reading, 1 << 16)
                    self._log += piece
                    del self._log[: -4 * LOG_CHARS]
                    if not piece:
                        selector.unregister(reading)
                elif ended in ready:
                    # Nothing is left to read: the log is whole.
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    if status == _REFUSED:
                        raise Failed(self._log.decode(errors="replace"))
                    return f"ended with status {status}" if status else ""
                if warden is not None and cell is not None and time.monotonic() - looked_at > _LOOK_S:
                    looked_at = time.monotonic()
                    if warden.overfull(cell):
                        return f"has written more than {self._build.disk_mib} MiB"
        return "took too long"

    def _end_all(self) -> None:
        """
        Kill all other processes of this session and wait until they are gone. Raises Failed where one does not end.
        """
        until = time.monotonic() + _END_S
        while members := [pid for pid, _ in proc.session_members(os.getsid(0)) if pid != os.getpid()]:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > until:
                raise Failed(f"Processes of the build cannot be ended: {members}")
            time.sleep(0.01)

    def _check(self) -> None:
        """Raises Failed for what is neither a file nor a folder nor a link: opening it may never return."""
        for place, _, names in os.walk(self._folder):
            for name in names:
                path = Path(place, name)
                if not (path.is_symlink() or path.is_file()):
                    raise Failed(f"The environment was not built: {name} is no ordinary file.")


def _become_pip(
    parent: int,
    warden: Warden | None,
    cell: Cell | None,
    folder: Path,
    wheels: Sequence[str],
    words: list[str],
    environment: Mapping[str, str],
) -> NoReturn:
    """
    Confine this process and become pip. Raises Failed for one of the ``wheels``, which are checked in the cell: within
    its bounds of memory and time.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sandbox.close_others([])
    os.chdir(folder)
    limit = MEMORY_MIB << 20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if warden is not None and cell is not None:
        warden.enter(cell)
    die_with_parent(parent)
    for wheel in wheels:
        check_wheel(wheel)
    os.execve(words[0], words, environment)  # noqa: S606 - this process becomes pip


def main() -> int:
    """Build what the standard input asks for. Returns the exit status."""
    # The worker ends a build by closing its input, never by a signal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        _Builder(msgspec.json.decode(sys.stdin.buffer.readline(), type=Build)).run()
    except (Failed, OSError) as error:
        print(error if isinstance(error, Failed) else f"The environment was not built: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
