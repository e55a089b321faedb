"""
Processes by number, as the kernel describes them in /proc. Used all over worker/. What must stay true: a process that is
gone gives None, 0 or nothing, never an error.
"""

import ctypes
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
#: A kernel thread, in a process's flags (PF_KTHREAD in include/linux/sched.h).
_KERNEL_THREAD: Final = 0x00200000
#: The kernel's number of the first PID namespace (PROC_PID_INIT_INO in include/linux/proc_ns.h).
_INITIAL_NAMESPACE: Final = 0xEFFFFFFC
_GONE: Final = (FileNotFoundError, ProcessLookupError, PermissionError)
_PR_SET_PDEATHSIG: Final = 1
#: In /proc/<pid>/status: the largest resident set, and the part of the present one that is pages of files.
_PEAK: Final = (b"VmHWM", b"RssFile")


def boot_id() -> str:
    """Changes with every boot of the machine: process numbers and start times mean something only with it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def sees_all() -> bool:
    """
    Whether process numbers here are those of the whole machine, as NVML names them: not so within most containers.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_NAMESPACE
    except OSError:
        return False


def name(pid: int) -> str:
    """The name of its program, '' for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except _GONE:
        return ""


def _stat(pid: int) -> list[bytes] | None:
    """Fields of /proc/<pid>/stat from the third on (the second, a name, may hold blanks and brackets)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            raw = file.read()
    except _GONE:
        return None
    return raw[raw.rindex(b")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """Clock ticks from the boot to the start of a process; None for one that is gone or a zombie."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def find(pid: int, start: int) -> int:
    """
    The number here of a process that calls itself ``pid`` and was started at ``start`` (clock ticks from the boot, the
    same everywhere), in this PID namespace or in one below it, as that of a container is. 0 where there is none, or
    more than one.
    """
    if start_time(pid) == start:
        return pid
    same = [number for number in numbers() if _innermost(number) == pid]
    same = [number for number in same if start_time(number) == start]
    return same[0] if len(same) == 1 else 0


def _innermost(pid: int) -> int:
    """The number of a process in the namespace that it lives in; 0 of one that is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next((int(line.split()[-1]) for line in file if line.startswith(b"NSpid:")), 0)
    except _GONE:
        return 0


def cpu_s(pid: int) -> float:
    """CPU seconds used so far by a process and by those of its children that it has reaped."""
    fields = _stat(pid)
    return 0.0 if fields is None else sum(int(value) for value in fields[11:15]) * _TICK_S


def suspended(pid: int) -> bool:
    """Whether it is stopped by a signal (SIGSTOP) or a debugger: it lives and does nothing."""
    fields = _stat(pid)
    return fields is not None and fields[0] in (b"T", b"t")


def kernel_thread(pid: int) -> bool:
    fields = _stat(pid)
    return fields is not None and bool(int(fields[6]) & _KERNEL_THREAD)


def session(pid: int) -> int:
    """The leader of its session; 0 of a process that is gone, or where the leader cannot be seen from here."""
    fields = _stat(pid)
    return 0 if fields is None else int(fields[3])


def ancestors(pid: int) -> list[int]:
    """Its parent, the parent's parent and so on, as far as they can be seen from here."""
    numbers: list[int] = []
    while (fields := _stat(pid)) is not None and (pid := int(fields[1])) > 0:
        numbers.append(pid)
    return numbers


def user(pid: int) -> int | None:
    """The number of the user as which it runs."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Uid:"):
                    return int(line.split()[2])
    except _GONE:
        pass
    return None


def command(pid: int) -> list[str]:
    """The words that it was started with; none of a process that is gone and of a kernel thread."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")]
    except _GONE:
        return []


def numbers() -> list[int]:
    """Of all processes that can be seen from here."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def session_members(session: int) -> list[tuple[int, int]]:
    """(process number, start time) of every living process of a session."""
    members = []
    for pid in numbers():
        fields = _stat(pid)
        if fields is not None and int(fields[3]) == session and fields[0] not in (b"Z", b"X"):
            members.append((pid, int(fields[19])))
    return members


def tree(pid: int) -> Iterator[int]:
    """A process and its living descendants."""
    yield pid
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except _GONE:
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children = [int(child) for child in file.read().split()]
        except _GONE:
            continue
        for child in children:
            yield from tree(child)


def private_mib(pid: int) -> float:
    """Memory that comes back when the process ends: its pages that nobody else maps, swapped ones included. MiB."""
    return _sum_mib(pid, "smaps_rollup", (b"Private_Clean:", b"Private_Dirty:", b"Swap:"))


def _sum_mib(pid: int, name: str, fields: tuple[bytes, ...]) -> float:
    """The sum of these lines of a file in /proc, which are in KiB; 0 of a process that is gone."""
    total = 0
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            for line in file:
                if line.startswith(fields):
                    total += int(line.split()[1])
    except _GONE:
        return 0.0
    return total / 1024


def resident_mib(pid: int) -> float:
    """
    Memory that a process has written to or shares with others, swapped out or not. MiB. Takes microseconds where
    :func:`private_mib` takes milliseconds; pages that a fork shares with its parent count in full.
    """
    return _sum_mib(pid, "status", (b"RssAnon:", b"RssShmem:", b"VmSwap:"))


def peak_mib(pid: int) -> float:
    """The most that :func:`resident_mib` has been, MiB, less what pages of files have become since."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            kib = {
                name: int(rest.split()[0]) for name, _, rest in (line.partition(b":") for line in file) if name in _PEAK
            }
    except _GONE:
        return 0.0
    return (kib.get(b"VmHWM", 0) - kib.get(b"RssFile", 0)) / 1024


def proportional_mib(pids: Iterable[int]) -> float:
    """
    Memory that these processes hold together, MiB. A page that several of them share counts once; pages of files do not
    count.
    """
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                for line in file:
                    if line.startswith((b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")):
                        total += int(line.split()[1])
        except _GONE:
            continue
    return total / 1024


def available_mib() -> float:
    """Memory that the machine can still give, MiB. Raises OSError."""
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) / 1024
    raise OSError("the kernel does not say what memory is available")


def data_bytes(pid: int) -> int:
    """The bytes that RLIMIT_DATA limits: private writable memory, touched or not."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmData:"):
                    return int(line.split()[1]) << 10
    except _GONE:
        pass
    return 0


def environment_of(pid: int) -> dict[str, str]:
    """The environment with which a process started."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read()
    except _GONE:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends; if that has happened already, end now."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
