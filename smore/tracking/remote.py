"""
Steps of a training that the platform did not start, sent over HTTP: what ``smore.track()`` does where SMORE_URL and
SMORE_API_KEY are set.

The training's loop only puts two numbers into a bounded buffer; a thread sends them to the gateway once a second. No
fault there (no gateway, a wrong key, a full buffer) reaches the training: it costs one warning, a full buffer drops its
oldest steps, and the thread tries again until a platform answers. Standard library alone, so that the environment of the
training needs nothing but this package.
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

#: Seconds between two reports while there are steps, and the most steps of one report.
REPORT_S: Final = 1.0
STEPS_AT_ONCE: Final = 4096
#: Seconds without a step after which an empty report is sent. The worker counts the training as lost after
#: worker.training.remote_steps.SILENT_S without any.
ALIVE_S: Final = 5.0
#: The first pause after a report that failed, and the longest.
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
TIMEOUT_S: Final = 5.0
#: How long the end of the training may wait for the last report.
CLOSE_S: Final = 2.0


class StepsRefused(Exception):
    """The gateway refuses this training; a repeated request would be refused as well."""


class Unknown(Exception):
    """The gateway does not know the job (any more); it must be registered again."""


class TooMany(Exception):
    """The gateway takes no more steps of this training for a moment."""


def identity() -> dict[str, object]:
    """
    This process as a worker on the same machine can find it: process id, start in clock ticks, id of the boot. A worker
    that cannot see the process relies on its reports.
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
    The name that the ranks of one training share: SMORE_JOB_GROUP, otherwise torchrun's rendezvous. None for a training
    of one rank. The platform makes one job of all ranks of a group.
    """
    if named := environ.get("SMORE_JOB_GROUP"):
        return named
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
        #: Steps that were ever put into the buffer, and the number of the first that is still to be sent.
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
        """Send the remaining steps and the end of the training; waits at most :data:`CLOSE_S`."""
        if self._stop.is_set() or os.getpid() != self._pid:
            return
        self._stop.set()
        atexit.unregister(self.close)
        self._thread.join(CLOSE_S)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s, reported_at = FIRST_PAUSE_S, -ALIVE_S
        while not self._given_up:
            stopping = self._stop.is_set()
            wait_s = REPORT_S
            try:
                if not self._job:
                    self._register()
                now = time.monotonic()
                if self._steps or stopping or now - reported_at >= ALIVE_S:
                    self._report(ended=stopping)
                    reported_at = now
                pause_s = FIRST_PAUSE_S
                if self._steps and (stopping or len(self._steps) >= STEPS_AT_ONCE):
                    continue
            except TooMany:
                self._warn_once("%s takes fewer steps than this training makes; some are left out", self._url)
                if stopping and self._steps:
                    # That it has ended is said without them.
                    self._steps.clear()
                    continue
                while len(self._steps) > STEPS_AT_ONCE:
                    self._steps.popleft()
            except Unknown:
                self._registration["former"], self._job = self._job, ""
                wait_s = FIRST_PAUSE_S
            except StepsRefused as error:
                warn("the platform refuses to track this training, which goes on: %s", error)
                self._given_up = True
            except Exception as error:  # noqa: BLE001 - it runs in somebody's training
                text = "%s accepts no reports now; the training goes on, and reports are tried again: %s"
                self._warn_once(text, self._url, error)
                wait_s, pause_s = pause_s, min(2 * pause_s, LONGEST_PAUSE_S)
            if stopping:
                return
            self._stop.wait(wait_s)

    def _warn_once(self, message: str, *details: object) -> None:
        if not self._warned:
            self._warned = True
            warn(message, *details)

    def _register(self) -> None:
        answer = self._post("/v1/jobs/attach", self._registration)
        self._job, self._gpu = str(answer["id"]), str(answer["gpu"])
        self._warned = False
        if others := answer.get("beside_now"):
            warn("others train on %s too: %s", self._gpu, others)

    def _report(self, *, ended: bool) -> None:
        """Send the oldest steps; they leave the buffer once the gateway has accepted them."""
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
        """Raises Refused, Unknown, TooMany, or whatever the network raises."""
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
            detail = error.read().decode(errors="replace")
            if error.code == 404 and self._job:
                raise Unknown from error
            if error.code == 429 and path.endswith("/steps"):
                raise TooMany from error
            if error.code < 500 and error.code not in (408, 429):
                raise StepsRefused(f"{error.code} {detail}") from error
            raise
        reply: dict[str, object] = json.loads(raw) if raw else {}
        return reply


def registration(*, name: str | None, gpu: str | None, workload: str | None, budget: float | None) -> dict[str, object]:
    """The body that registers this process, from the arguments and the environment (SMORE_JOB, SMORE_GPU)."""
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
