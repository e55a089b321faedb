"""
Landlock: the kernel refuses a process and all its descendants, for good, every use of files, TCP ports and other
processes that no rule allows. Used by :mod:`worker.sandbox.warden`.

Linux' ``landlock(7)``; each version of the interface (ABI) adds rights: 1 files, 2 moving between folders, 3
truncating, 4 TCP, 5 devices' ioctl, 6 abstract sockets and signals to the outside. Every version refuses to read
processes outside (``ptrace``, ``/proc/<pid>/environ``, ``mem``, ``fd``). It needs no privilege and applies to root too.
It does not restrict sockets with a name in the file system.
"""

import ctypes
import os
import stat
from collections.abc import Iterable
from typing import Final

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION: Final = 1
_PATH_BENEATH, _NET_PORT = 1, 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
#: What is meant for files; the kernel refuses the other rights in a rule for something that is no folder.
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_DEVICE: Final = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV | _READ_DIR
_BIND, _CONNECT = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2

_PR_SET_NO_NEW_PRIVS: Final = 38


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


class _Port(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *words: object) -> int:
    """Raises OSError."""
    result = int(_libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def no_new_privileges() -> None:
    """From now on no program that is started gives rights that this process lacks (set-uid, file capabilities)."""
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")


def abi() -> int:
    """The version that the running kernel has, 0 = none or switched off."""
    try:
        return _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    except OSError:
        return 0


def _rights(version: int) -> int:
    """All rights over files that this version knows: what no rule grants is refused."""
    bits = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)
    return (1 << bits) - 1


def restrict(
    *,
    readable: Iterable[str],
    writable: Iterable[str],
    devices: Iterable[str],
    listed: Iterable[str],
    tcp_ports: Iterable[int] | None,
) -> int:
    """
    Shut this thread, and all that it starts from now on, into what is named; returns the version that holds, 0 =
    nothing does.

    ``readable`` and ``writable`` are files or folders with all that is in them, ``devices`` may be read, written and
    controlled, of ``listed`` folders the names may be read; what does not exist is passed over. ``tcp_ports``: where a
    connection may go, and then nothing may be listened on; None = both are free. Needs :func:`no_new_privileges` first.
    Raises OSError where a kernel that has it refuses.
    """
    version = abi()
    if not version:
        return 0
    every = _rights(version)
    network = _BIND | _CONNECT if version >= 4 and tcp_ports is not None else 0
    attributes = _Ruleset(every, network, _ABSTRACT_SOCKETS | _SIGNALS if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _call(_CREATE, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for allowed, paths in (
            (_READ, readable),
            (every & ~_IOCTL_DEV, writable),
            (_DEVICE, devices),
            (_READ_DIR, listed),
        ):
            for path in paths:
                _allow(ruleset, path, allowed & every)
        for port in (tcp_ports or ()) if network else ():
            rule = _Port(_CONNECT, port)
            _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_NET_PORT), ctypes.byref(rule), ctypes.c_uint32(0))
        _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    return version


def _allow(ruleset: int, path: str, allowed: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(folder).st_mode):
            allowed &= _OF_FILES
        rule = _Beneath(allowed, folder)
        _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(folder)
