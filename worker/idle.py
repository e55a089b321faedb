"""
SCHED_IDLE for runners of a CPU partition while they serve bulk work (class batch): they run when nothing else would,
within their control group, so the weights of trainings and functions among each other stay.
"""

import os
from contextlib import suppress
from typing import Final

from smore.domain.function import FunctionSpec, WorkClass
from smore.domain.invocation import Encoding
from smore.redis.queue import StartedInvocation

_CAP_SYS_NICE: Final = 23
#: Where SCHED_IDLE is forbidden.
_LAST_NICE: Final = 19


def may_return() -> bool:
    """
    Whether this process may take others off SCHED_IDLE: without CAP_SYS_NICE there is no way back from it, and a seccomp
    profile may forbid it altogether.
    """
    with open("/proc/self/status") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    if not effective >> _CAP_SYS_NICE & 1:
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError:
        return False
    return True


def runs_idle(spec: FunctionSpec, begun: StartedInvocation, returns: bool) -> bool:
    """
    Whether what was begun runs on SCHED_IDLE: bulk work. Where a runner cannot be taken off that again (``returns`` is
    false), all that a function of class batch has, and nothing of others.
    """
    if begun.encoding is Encoding.CANARY:
        return False
    return begun.bulk if returns else spec.work_class is WorkClass.BATCH


def go_idle(pid: int) -> None:
    """Put a process on SCHED_IDLE, or on nice 19 for life where a seccomp profile forbids it."""
    try:
        _schedule(pid, os.SCHED_IDLE)
    except PermissionError:
        for thread in _threads(pid):
            os.setpriority(os.PRIO_PROCESS, thread, _LAST_NICE)


def end_idle(pid: int) -> None:
    """Take a process off SCHED_IDLE; its nice value is what it was. One that has ended is passed over."""
    _schedule(pid, os.SCHED_OTHER)


def _schedule(pid: int, policy: int) -> None:
    """All threads of a process; ones that they start are like them. Raises PermissionError."""
    changed = True
    # A thread that was started meanwhile, by one that was not changed yet, is changed in the next turn.
    while changed:
        changed = False
        for thread in _threads(pid):
            with suppress(ProcessLookupError):
                if os.sched_getscheduler(thread) != policy:
                    os.sched_setscheduler(thread, policy, os.sched_param(0))
                    changed = True


def _threads(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
    return []
