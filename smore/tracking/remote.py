"""
Steps of a training that the platform did not start, told over HTTP: what ``smore.track()`` does where SMORE_URL and
SMORE_API_KEY are set.

The loop only puts two numbers into a bounded buffer; a thread of its own speaks to the gateway, once a second. Whatever
goes wrong there (no gateway, a wrong key, a full buffer) costs the training nothing and ends in one warning: the oldest
steps are given up first, and the thread goes on trying, so that a platform that comes back is told again. Standard
library alone, so that the environment of the training needs nothing but this package.
"""

import atexit
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from pathlib import Path
from typing import Final

from smore.tracking.ring import CAPACITY, Tracker, warn

#: Seconds between two reports while steps come, and at most so many steps in one.
REPORT_S: Final = 1.0
STEPS_AT_ONCE: Final = 4096
#: Silence of the loop after which a report without steps says that it lives; the worker gives up after
#: worker.training.remote_steps.SILENT_S.
ALIVE_S: Final = 5.0
#: The first pause after a report that failed, and the longest.
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
TIMEOUT_S: Final = 5.0
#: How long the end of the training may wait for the last report.
CLOSE_S: Final = 2.0


class Refused(Exception):
    """The gateway will not take this training as it is: asking again is of no use."""


class Unknown(Exception):
    """The gateway does not know the job (any more): it must be registered anew."""


def identity() -> dict[str, object]:
    """
    Who we are to a worker on this machine: number, start in clock ticks and boot. A worker that cannot see us goes by
    our reports.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return {
            "pid": os.getpid(),
            "start": int(fields[19]),
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        }
    except (OSError, ValueError, IndexError):
        return {"pid": os.getpid()}


def group(environ: "os._Environ[str] | dict[str, str]") -> str | None:
    """
    What the ranks of one training have in common, None for a training of one rank.

    SMORE_JOB_GROUP, else torchrun's rendezvous; of ranks on several GPU instances one job is made, as fast as its
    slowest.
    """
    given = environ.get("SMORE_JOB_GROUP")
    if given:
        return given
    if environ.get("WORLD_SIZE", "1") in ("", "1") or not environ.get("MASTER_ADDR"):
        return None
    return f"{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT', '')}"


class RemoteTracker(Tracker):
    """A :class:`Tracker` without a file. ``registration``: the body of ``POST /v1/jobs/attach``."""

    def __init__(self, url: str, key: str, registration: dict[str, object]) -> None:
        super().__init__(None)
        self._url = url.rstrip("/")
        self._key = key
        self._registration = registration
        self._steps: deque[tuple[float, float]] = deque(maxlen=CAPACITY)
        #: Steps ever put into the buffer, and the number of the first that is still to be told.
        self._made = 0
        self._first = 0
        self._job = ""
        self._gpu = ""
        self._warned = False
        self._given_up = False
        self._stop = threading.Event()
        # A forked child (a data loader's worker) has the object and not the thread.
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="smore-track", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def active(self) -> bool:
        return not self._given_up and not self._stop.is_set()

    @property
    def job(self) -> str:
        """The job's id, '' before the platform has answered."""
        return self._job

    def step(self) -> None:
        now = time.perf_counter()
        self._steps.append((time.time(), now - self._last))
        self._made += 1
        self._last = now

    def close(self) -> None:
        """Tell what is left and that the training has ended; waits :data:`CLOSE_S` for it at most."""
        if self._stop.is_set() or os.getpid() != self._pid:
            return
        self._stop.set()
        atexit.unregister(self.close)
        self._thread.join(CLOSE_S)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s, told_at = FIRST_PAUSE_S, -ALIVE_S
        while not self._given_up:
            stopping = self._stop.is_set()
            wait_s = REPORT_S
            try:
                if not self._job:
                    self._register()
                now = time.monotonic()
                if self._steps or stopping or now - told_at >= ALIVE_S:
                    self._report(ended=stopping)
                    told_at = now
                pause_s = FIRST_PAUSE_S
                if self._steps and (stopping or len(self._steps) >= STEPS_AT_ONCE):
                    continue
            except Unknown:
                self._registration["former"], self._job = self._job, ""
                wait_s = FIRST_PAUSE_S
            except Refused as error:
                warn("the platform does not take this training, which goes on: %s", error)
                self._given_up = True
            except Exception as error:  # noqa: BLE001 - it runs in somebody's training
                self._say(error)
                wait_s, pause_s = pause_s, min(2 * pause_s, LONGEST_PAUSE_S)
            if stopping:
                return
            self._stop.wait(wait_s)

    def _say(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            warn("%s does not take reports now; training goes on, and so do the attempts: %s", self._url, error)

    def _register(self) -> None:
        answer = self._post("/v1/jobs/attach", self._registration)
        self._job, self._gpu = str(answer["id"]), str(answer["gpu"])
        self._warned = False

    def _report(self, *, ended: bool) -> None:
        """Send the oldest steps; they leave the buffer when they have been taken."""
        # The loop appends meanwhile, and a full buffer drops at its old end: what is left is counted from the new one.
        held = list(self._steps)
        first = max(self._first, self._made - len(held))
        sent = held[:STEPS_AT_ONCE]
        body = {"gpu": self._gpu, "first": first, "steps": sent, "ended": ended and len(sent) == len(held)}
        self._post(f"/v1/jobs/{self._job}/steps", body)
        self._first = first + len(sent)
        while self._steps and self._made - len(self._steps) < self._first:
            self._steps.popleft()

    def _post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        """Raises Refused, Unknown, or whatever the network raises."""
        request = urllib.request.Request(  # noqa: S310 - the URL is the user's own setting
            self._url + path,
            data=json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._key}",
                "Content-Type": "application/json",
                "User-Agent": "smore-track",
            },
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                raw = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            if error.code == 404 and self._job:
                raise Unknown from error
            if error.code < 500 and error.code not in (408, 429):
                raise Refused(f"{error.code} {said}") from error
            raise
        found: dict[str, object] = json.loads(raw) if raw else {}
        return found


def registration(*, name: str | None, gpu: str | None, workload: str | None, budget: float | None) -> dict[str, object]:
    """What is told of this process, from what was given and the environment (SMORE_JOB, SMORE_GPU)."""
    body: dict[str, object] = {
        "name": name
        or os.environ.get("SMORE_JOB")
        or f"{socket.gethostname().partition('.')[0].lower()}-{os.getpid()}",
        "gpu": gpu or os.environ.get("SMORE_GPU"),
        "group": group(os.environ),
        "workload": workload,
        "budget": budget,
        "tracked": True,
        **identity(),
    }
    return {field: value for field, value in body.items() if value is not None}
