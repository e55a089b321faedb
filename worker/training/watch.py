"""
Which processes may be watched as a training (``smore jobs attach``): the rules of docs/guides/security.md. Used by
:class:`worker.training.jobs.Jobs`.

The platform keeps the memory of a watched process free of functions. So a process that is no training must not be
watched: above all none of the platform's own, and, with a project's key, none of a user whose processes are not that
project's.
"""

import os
import pwd
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from smore.messages.commands import AttachJob
from worker import proc

#: What is started as ``python -m <module>``.
_MODULES: Final = frozenset(
    {
        "api.app",
        "scheduler.worker",
        "scheduler.retrain",
        "worker.app",
        "worker.node",
        "worker.keeper",
        "worker.runner.zygote",
        "migrations",
        "smore.local.template",
    }
)
_SUPERVISOR: Final = "smore/local/daemon.py"
#: The names of servers, as the kernel knows them.
_SERVERS: Final = frozenset({"redis-server", "valkey-server", "postgres", "supervisord"})
ANYBODY: Final = "*"


@dataclass(frozen=True, slots=True)
class Watched:
    """
    A process to watch, and its start in clock ticks since the boot; 0 = none may be, because of ``reason``. ``there``: it
    runs, whether it may be watched or not.
    """

    pid: int = 0
    start: int = 0
    reason: str = ""
    there: bool = False


def find(
    command: AttachJob,
    gpu: str,
    *,
    cores: Sequence[int],
    users: frozenset[int] | None,
    token: str,
    watched: Set[int],
) -> Watched:
    """
    The process that the command names, if it may be watched. A command that names its start and the boot does not prove
    whose it is: everybody on the machine can read them in /proc, a function as well. But nobody elsewhere guesses them, as
    everybody does a number alone, so a tracked training is there only by them. ``watched``: those that are already; the
    others as for :func:`refusal`.
    """
    pid = command.pid
    if command.tracked and not command.boot and users is not None:
        return Watched(reason="it has not said when its process began, and on which boot of the machine")
    if command.boot:
        pid = proc.find(command.pid, command.start) if command.boot == proc.boot_id() else 0
    start = proc.start_time(pid) if pid else None
    if start is None:
        return Watched(reason=f"there is no process {command.pid} on the machine of {gpu}")
    reason = refusal(pid, cores=cores, users=None, token=token)
    if not reason and (pid in watched or not watched.isdisjoint(proc.tree(pid))):
        reason = f"process {pid} is watched already, or one that it has started is"
    if reason:
        return Watched(reason=reason)
    reason = refusal(pid, cores=cores, users=users, token=token)
    return Watched(reason=reason, there=True) if reason else Watched(pid, start, there=True)


def refusal(pid: int, *, cores: Sequence[int], users: frozenset[int] | None, token: str) -> str:
    """
    Why this process may not be watched, '' = it may. ``cores``: of the CPU partition, none = a GPU; ``users``: those
    whose processes may be watched, None = anybody's; ``token``: the variable that is in the environment of what the
    platform has started.
    """
    own = os.getpid()
    if pid <= 1:
        return "process 1 is the machine's or the container's own"
    if proc.kernel_thread(pid):
        return f"process {pid} is a thread of the kernel"
    if pid == own or pid in proc.ancestors(own) or _platform(pid):
        return f"process {pid} is one of the platform's own"
    if token in proc.environment_of(pid):
        return f"process {pid} was started by the platform and is a job already"
    if users is not None and proc.user(pid) not in users:
        return (
            f"process {pid} belongs to a user whose processes a project may not have watched:"
            " SMORE_WORKER__ATTACH_USERS names those that it may; an operator's key may name any"
        )
    if cores and not _may_run_on(pid, cores):
        return f"process {pid} may not run on the cores of this CPU partition ({', '.join(map(str, cores))})"
    return ""


def users_of(names: Sequence[str]) -> frozenset[int] | None:
    """
    The users whose processes a project may have watched; None = anybody's. The worker's own is one of them unless it is
    root, whose processes are the machine's. Raises ValueError for a name that this machine does not know.
    """
    if ANYBODY in names:
        return None
    users = {os.geteuid()} - {0}
    for name in names:
        try:
            users.add(int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise ValueError(f"SMORE_WORKER__ATTACH_USERS: this machine has no user {name}") from None
    return frozenset(users)


def _platform(pid: int) -> bool:
    """
    Whether it belongs to a platform, this one or another: by its command, by that of an ancestor (runners descend from
    their zygote), or by its session's leader, the supervisor. An orphan that the supervisor has inherited has another
    session and does not belong to the platform.
    """
    if _is_supervisor(pid) or _is_supervisor(proc.session(pid)):
        return True
    return any(_is_part(number) for number in (pid, *proc.ancestors(pid)))


def _is_part(pid: int) -> bool:
    words = proc.command(pid)
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    return (module in _MODULES and _is_python(words[0])) or proc.name(pid) in _SERVERS


def _is_supervisor(pid: int) -> bool:
    words = proc.command(pid)
    return bool(words) and _is_python(words[0]) and any(word.endswith(_SUPERVISOR) for word in words[1:4])


def _is_python(word: str) -> bool:
    return Path(word).name.startswith("python")


def _may_run_on(pid: int, cores: Sequence[int]) -> bool:
    try:
        return not os.sched_getaffinity(pid).isdisjoint(cores)
    except (ProcessLookupError, PermissionError):
        return False
