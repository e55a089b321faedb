"""
CPU and memory of sets of process trees.

CPU is read from the kernel's per-process CPU clock (nanoseconds, user + system, threads that ended included), not from
``/proc/<pid>/stat`` (steps of 10 ms: too coarse for ten processes over two seconds).

Error: a process that both starts and ends between two samples (``SAMPLE_S`` apart) is missed, and a process that ends
counts up to its last sample, so it loses at most ``SAMPLE_S`` of its CPU. Nothing is lost for processes that live
throughout. A child disowned (double fork) before the first sample is not seen: name it as a root. Linux only.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

#: Seconds between looks for new and ended processes while something is measured. One look costs about a millisecond of
#: CPU.
SAMPLE_S = 0.25


class Identity(NamedTuple):
    """A process: its pid and when it started (clock ticks since boot), because the kernel reuses pids."""

    pid: int
    started_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """
    What a group used while something ran: ``cpu_us`` microseconds (user + system) in ``wall_s`` seconds by
    ``processes``.
    """

    cpu_us: float
    wall_s: float
    processes: int

    @property
    def cores(self) -> float:
        """Cores kept busy on average."""
        return self.cpu_us / 1e6 / self.wall_s if self.wall_s > 0 else 0.0


def cpu_s(pid: int) -> float | None:
    """CPU seconds (user + system) of one live process since its start; None where it has ended."""
    try:
        # clock_getcpuclockid(3) for another process: the inverted pid above three bits, of which 2 is "scheduler time".
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def process_table() -> dict[Identity, int]:
    """Every process of the machine with its parent's pid, from one pass over /proc."""
    table = {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_bytes()
        except OSError:
            continue  # it ended between the listing and the reading
        # The second field is the command in parentheses and may hold anything, so the fields count from its end
        # (proc(5)).
        fields = stat[stat.rindex(b")") + 2 :].split()
        table[Identity(int(entry), int(fields[19]))] = int(fields[1])
    return table


def pss_kib(pid: int) -> int:
    """
    Proportional set size of one process in KiB, shared pages divided by their sharers; 0 when it is gone or is a
    zombie.
    """
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    for line in rollup.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


class ProcessGroup:
    """
    The processes under some roots, followed from the first time they are seen.

    A process stays in the group when its parent dies or when it starts a session of its own.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        self._roots = frozenset(roots)
        self._members: set[Identity] = set()
        self._look()

    def _look(self) -> list[Identity]:
        """The members alive now; new children join."""
        table = process_table()
        children: dict[int, list[Identity]] = {}
        for process, parent in table.items():
            children.setdefault(parent, []).append(process)
        if not self._members:
            # Roots are pids only until the first look: after it a pid given out again is another process.
            self._members.update(process for process in table if process.pid in self._roots)
        alive = [process for process in table if process in self._members]
        seen = set(alive)
        # The list grows while it is walked: children of children.
        for process in alive:
            for child in children.get(process.pid, ()):
                if child not in seen:
                    seen.add(child)
                    alive.append(child)
        self._members |= seen
        return alive

    def pids(self) -> list[int]:
        """The pids alive now, sorted."""
        return sorted(process.pid for process in self._look())

    def pss_mib(self) -> float:
        """Proportional set size of the whole group now, MiB."""
        return sum(pss_kib(pid) for pid in self.pids()) / 1024

    def measure(self, fn: Callable[[], T]) -> tuple[T, Usage]:
        """
        Run ``fn`` and say what the group used meanwhile; what ``fn`` uses counts only if its process is in the group.
        """
        first_s = {process: cpu_s(process.pid) or 0.0 for process in self._look()}
        last_s = dict(first_s)
        finished = threading.Event()

        def look() -> None:
            for process in self._look():
                used_s = cpu_s(process.pid)
                if used_s is not None:
                    last_s[process] = used_s

        def follow() -> None:
            while not finished.wait(SAMPLE_S):
                look()

        follower = threading.Thread(target=follow, name="bench-cpu", daemon=True)
        began = time.perf_counter()
        follower.start()
        try:
            value = fn()
        finally:
            wall_s = time.perf_counter() - began
            finished.set()
            follower.join()
        look()
        # A process absent from first_s was born meanwhile: all that it used counts.
        used = sum(now_s - first_s.get(process, 0.0) for process, now_s in last_s.items())
        return value, Usage(cpu_us=used * 1e6, wall_s=wall_s, processes=len(last_s))
