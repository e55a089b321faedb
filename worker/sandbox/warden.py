"""
Confines a runner before any code of a function runs in it (docs/guides/security.md says against what).

Two halves. The :class:`Warden` lives in the zygote: it makes the view of the file system that all its runners share, and
gives each one a user of its own and a scratch folder of bounded size. :meth:`Warden.enter` is called in the runner,
once. What must stay true: nothing in the runner can undo it. What the machine does not allow is left out;
:attr:`Warden.holds` lists what is in force.
"""

import contextlib
import ctypes
import os
import resource
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.frames import Confinement
from worker.sandbox import landlock, syscalls

#: User numbers that systemd's table leaves unused, inside the 65,536 that a container usually has.
_USERS: Final = range(60_600, 61_184)
#: Without these a process of another user could not be made, measured and ended: CHOWN, KILL, SETGID, SETUID,
#: SYS_PTRACE, SYS_ADMIN.
_NEEDED_CAPABILITIES: Final = (0, 5, 6, 7, 19, 21)
#: Most descriptors of a runner.
_FILES: Final = 4096
#: Bytes that a file or folder counts at least.
_LEAST_BYTES: Final = 4096
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 0x1000, 0x4000, 0x80000
_MNT_DETACH: Final = 2
_CLONE_NEWNS: Final = 0x20000
_CAPABILITY_VERSION_3: Final = 0x20080522
_CAPSET: Final = {"x86_64": 126, "aarch64": 91}

#: What Python, torch and drivers read. Of /etc only files that name things: a runner of root may not read passwords.
_SYSTEM: Final = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/sbin",
    "/opt",
    "/proc",
    "/sys",
    "/run/systemd/resolve",
    "/run/nvidia-persistenced",
    *(
        f"/etc/{name}"
        for name in (
            "ld.so.cache",
            "ld.so.conf",
            "ld.so.conf.d",
            "alternatives",
            "ssl",
            "pki",
            "ca-certificates",
            "resolv.conf",
            "hosts",
            "host.conf",
            "nsswitch.conf",
            "gai.conf",
            "services",
            "protocols",
            "localtime",
            "timezone",
            "passwd",
            "group",
            "mime.types",
            "os-release",
            "OpenCL",
            "vulkan",
            "nvidia",
        )
    ),
)
_PLAIN_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), None if options is None else options.encode()):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """
    The confinement of one runner. ``folder``: its scratch folder. ``user`` None = it keeps the zygote's user;
    ``number`` reserves the user among the runners of this machine as long as it is open.
    """

    folder: Path
    user: int | None
    mounted: bool
    number: socket.socket | None


class Warden:
    """
    Makes cells and takes them back. One thread. A method leaves undone what the machine does not allow and does not
    raise, unless it says otherwise.

    ``scratch``: the folder for the runners' folders; ``root``: the checkout. ``private``: folders that no runner may see
    (the platform's home above all), even where everybody could read them.
    """

    def __init__(self, confinement: Confinement, scratch: Path, root: Path, private: Sequence[Path]) -> None:
        self._given = confinement
        self._scratch = scratch
        self._root = root
        self._private = tuple(path.resolve() for path in private)
        self._readable = tuple(_readable(confinement, root, self._private))
        #: Empty slots of ``_USERS`` are tried from here on, so that a number is not taken again at once.
        self._next = 0
        if may_switch := confinement.own_users and _may_switch():
            # Runners of any user must be able to read what this process makes.
            os.umask(0o022)
        self._view = may_switch and self._make_view()
        self.holds = self._list()

    def _list(self) -> list[str]:
        holds = ["no_new_privs", "rlimits"]
        if self._view:
            holds += ["own user", "own view of files", "scratch of bounded size"]
        elif os.geteuid() == 0:
            holds.append("no capabilities")
        if version := landlock.abi():
            holds.append(f"landlock {version}")
        if os.uname().machine in _CAPSET:
            holds.append("seccomp")
        return holds

    def _make_view(self) -> bool:
        """
        A mount namespace in which another user can read what a runner needs and nothing that is private. False where it
        fails.

        A folder that only its owner may enter (``/root``, the home) and that has a needed path below it is replaced by
        an empty one that holds only the way to that path.
        """
        needed = [path for path in (*self._readable, str(self._scratch)) if os.path.exists(path)]
        shut = {path for path in map(_shut, needed) if path is not None} | {
            str(path) for path in self._private if path.is_dir()
        }
        shut = {path for path in shut if not any(other != path and Path(path).is_relative_to(other) for other in shut)}
        try:
            # May be passed through, not listed.
            self._scratch.chmod(0o711)
            if _libc.unshare(_CLONE_NEWNS):
                return False
            _mount(None, "/", None, _MS_REC | _MS_SLAVE)
            # Opened before a mount covers their paths.
            kept = [
                (path, os.open(path, os.O_PATH | os.O_CLOEXEC))
                for path in needed
                if any(Path(path).is_relative_to(top) for top in shut)
            ]
            for top in sorted(shut):
                _mount("smore", top, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
            for path, held in sorted(kept):
                source = f"/proc/self/fd/{held}"
                if stat.S_ISDIR(os.fstat(held).st_mode):
                    Path(path).mkdir(parents=True, exist_ok=True)
                else:
                    Path(path).parent.mkdir(parents=True, exist_ok=True)
                    Path(path).touch()
                _mount(source, path, None, _MS_BIND | _MS_REC)
            for _, held in kept:
                os.close(held)
        except OSError as error:
            print(f"runners keep the worker's view of files: {error}", file=sys.stderr, flush=True)
            return False
        return True

    def cell(self, token: int) -> Cell:
        """A new cell; ``token`` names its folder. Raises OSError where not even a folder can be made."""
        folder = self._scratch / str(token)
        folder.mkdir(mode=0o700, exist_ok=True)
        number, user = self._claim() if self._view else (None, None)
        mounted = False
        if user is not None:
            options = f"size={self._given.scratch_mib}m,nr_inodes={64 * self._given.scratch_mib},mode=700,uid={user},gid={user}"
            try:
                _mount("scratch", str(folder), "tmpfs", _MS_NOSUID | _MS_NODEV, options)
                mounted = True
            except OSError:
                os.chown(folder, user, user)
        return Cell(folder=folder, user=user, mounted=mounted, number=number)

    def settle(self, folder: Path) -> Cell:
        """
        A cell in a folder on a disk that exists already; its processes may write nowhere else. It is not released.
        """
        number, user = self._claim() if self._view else (None, None)
        return Cell(folder=folder, user=user, mounted=False, number=number)

    def _claim(self) -> tuple[socket.socket, int] | tuple[None, None]:
        """
        A user that no other runner of this machine has: only one process can have the name of an abstract socket, and
        the kernel frees it with the process.
        """
        for step in range(len(_USERS)):
            user = _USERS[(self._next + step) % len(_USERS)]
            held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                held.bind(f"\0smore-runner-{user}")
            except OSError:
                held.close()
                continue
            self._next = (self._next + step + 1) % len(_USERS)
            return held, user
        return None, None

    def overfull(self, cell: Cell) -> bool:
        """Whether a scratch folder on the disk has outgrown its bound; one in memory cannot."""
        if cell.mounted:
            return False
        used, bound = 0, self._given.scratch_mib << 20
        for folder, folders, names in os.walk(cell.folder):
            for name in (*folders, *names):
                with contextlib.suppress(OSError):
                    # An empty one takes room too.
                    used += max(_LEAST_BYTES, os.lstat(os.path.join(folder, name)).st_blocks * 512)
            if used > bound:
                return True
        return False

    def release(self, cell: Cell) -> None:
        """Its runner has ended: remove the cell."""
        if cell.mounted:
            _libc.umount2(os.fsencode(cell.folder), _MNT_DETACH)
        shutil.rmtree(cell.folder, ignore_errors=True)
        if cell.number is not None:
            cell.number.close()

    def enter(self, cell: Cell) -> None:
        """Confine this process, the runner. Raises OSError where a part that the machine has fails."""
        given = self._given
        _limit(given, cell.user)
        # Where memory runs out the kernel ends functions before any training.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        _environment(cell.folder)
        gpus = list(_gpus())
        devices = (*_PLAIN_DEVICES, *gpus)
        if cell.user is not None:
            os.setgroups(sorted(_groups(os.stat(path) for path in gpus)))
            os.setresgid(cell.user, cell.user, cell.user)
            os.setresuid(cell.user, cell.user, cell.user)
        elif os.geteuid() == 0:
            _drop_capabilities()
        landlock.no_new_privileges()
        writable = (str(cell.folder), f"/proc/{os.getpid()}", *given.writable)
        landlock.restrict(
            readable=self._readable,
            writable=writable,
            devices=devices,
            listed=(str(self._root),),
            tcp_ports=given.tcp_ports,
        )
        # A rule of Landlock is for the inode that a path had when the rule was made; the kernel may drop an inode of
        # /proc that nobody holds open and make another. CUDA writes there whenever it starts a thread.
        os.open(f"/proc/{os.getpid()}", os.O_PATH | os.O_CLOEXEC)
        # Landlock refuses to bind, but listening on a socket without a name binds it too. A driver that needs unix
        # sockets listens on one, and a filter cannot see what kind a descriptor is.
        listen = given.unix_sockets or given.tcp_ports is None
        syscalls.refuse_the_rest(unix_sockets=given.unix_sockets, affinity=given.affinity, listen=listen)


def _readable(given: Confinement, root: Path, private: Sequence[Path]) -> Iterator[str]:
    """
    The paths that a runner may read: interpreter, packages and the checkout, without hidden files and what is private;
    each as it is named and as it resolves.
    """
    named = {
        *_SYSTEM,
        sys.prefix,
        sys.base_prefix,
        *given.readable,
        *(path for path in sys.path if path and path != str(root)),
    }
    named |= {str(path) for path in root.iterdir() if not path.name.startswith(".")} | {str(root / ".venv")}
    for path in sorted(named | {os.path.realpath(path) for path in named}):
        if (
            not any(folder.is_relative_to(path) or Path(path).is_relative_to(folder) for folder in private)
            or path in given.readable
        ):
            yield path


def _shut(path: str) -> str | None:
    """The topmost folder above ``path`` that other users may not pass through."""
    for parent in reversed(Path(path).parents):
        if not parent.stat().st_mode & stat.S_IXOTH:
            return str(parent)
    return None


def _may_switch() -> bool:
    if os.geteuid() != 0:
        return False
    with open("/proc/self/status") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return all(effective >> bit & 1 for bit in _NEEDED_CAPABILITIES)


def _drop_capabilities() -> None:
    """Root without capabilities only owns root's files."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if _libc.syscall(ctypes.c_long(_CAPSET[os.uname().machine]), header, (ctypes.c_uint32 * 6)()):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "capset")


def _limit(given: Confinement, user: int | None) -> None:
    size = given.scratch_mib << 20
    bounds = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, size),
        (resource.RLIMIT_NOFILE, _FILES),
        (resource.RLIMIT_MSGQUEUE, 0),
    ]
    if user is not None:
        # Only of a user of its own: of a shared one the kernel counts the threads of all its processes, and a runner
        # could start none once training has many.
        bounds.append((resource.RLIMIT_NPROC, given.processes))
    for what, most in bounds:
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _environment(folder: Path) -> None:
    os.environ.update(
        HOME=str(folder), TMPDIR=str(folder), XDG_CACHE_HOME=str(folder / ".cache"), PYTHONDONTWRITEBYTECODE="1"
    )
    sys.dont_write_bytecode = True
    tempfile.tempdir = None


def _gpus(folder: Path = Path("/dev")) -> Iterator[str]:
    """The device files of GPUs, with those of MIG instances (``nvidia-caps``)."""
    with os.scandir(folder) as entries:
        named = sorted(entry.path for entry in entries if entry.name.startswith(("nvidia", "dri")))
    for path in named:
        if os.path.isdir(path):
            inside = sorted(os.path.join(path, name) for name in os.listdir(path))
            yield from (device for device in inside if _is_device(device))
        elif _is_device(path):
            yield path


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def _groups(devices: Iterable[os.stat_result]) -> set[int]:
    """
    The groups that may do with a device what others may not. Never root's, which may read half of the machine's files.
    """
    return {device.st_gid for device in devices if device.st_gid and (device.st_mode >> 3) & ~device.st_mode & 0o6}


def close_others(kept: Iterable[int]) -> None:
    """Close every descriptor except the standard streams and ``kept``."""
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
