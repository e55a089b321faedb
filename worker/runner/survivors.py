"""
Processes that a worker which was killed has left behind: its zygote's session, written down and ended at the next start.

A zygote ends by itself when its worker is gone. This is for what could not: processes that were stopped, or that user
code had started.
"""

import json
import os
import signal
import time
from pathlib import Path

from smore.process import observability
from worker import proc

log = observability.logger(__name__)


def write_session(record: Path, pid: int) -> None:
    """Write down the session that process ``pid`` leads; the file is whole or not there."""
    new = record.with_name(record.name + ".new")
    new.write_text(json.dumps({"boot": proc.boot_id(), "session": pid, "start": proc.start_time(pid) or 0}))
    new.replace(record)


def end_survivors(record: Path, wait_s: float = 10.0) -> int:
    """
    Kill what is left of the session written down in ``record`` and wait until it is gone, ``wait_s`` seconds at most.
    Returns how many processes there were.
    """
    try:
        written = json.loads(record.read_text())
        boot, session, start = str(written["boot"]), int(written["session"]), int(written["start"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0
    leader = proc.start_time(session)
    if boot != proc.boot_id() or (leader is not None and leader != start):
        return 0  # the number belongs to another process by now
    killed: set[int] = set()
    deadline = time.monotonic() + wait_s
    while members := [pid for pid, began in proc.session_members(session) if began >= start]:
        for pid in members:
            killed.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            log.error("survivors of the former worker cannot be killed", pids=members)
            break
        time.sleep(0.01)
    record.unlink(missing_ok=True)
    return len(killed)
