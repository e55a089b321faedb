"""A stage for the worker alone: a Redis, one real ``python -m worker.app``, and a leader whose part the test plays."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from smore.domain.function import FunctionSpec, Profile
from smore.domain.ids import new_id
from smore.domain.invocation import TERMINAL, Encoding
from smore.local.embedded import redis_server, run_folder
from smore.messages.logs import LogPiece, decode_piece
from smore.messages.reports import Report
from smore.messages.results import Result, decode_result
from smore.process.settings import QueueSettings, RedisSettings
from smore.redis.catalog import Catalog
from smore.redis.celery import RUN, gpu_queue, message
from smore.redis.fleet import Fleet
from smore.redis.logs import function_log, log_key
from smore.redis.queue import Claim, Queue
from smore.redis.records import InvocationRecord
from smore.redis.submission import Submission
from tests.support.eventually import eventually
from tests.support.nursery import nursery
from worker import proc

ROOT = Path(__file__).parents[2]
GPU = "t0"
PREFIX = "smore:"
#: Long enough for a machine that does other things too.
PATIENCE_S = 30.0


@dataclass
class RedisProcess:
    home: Path
    url: str = ""
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        server = redis_server(self.home, run_folder(self.home), RedisSettings(), QueueSettings())
        self.url = server.url
        self.process = subprocess.Popen(server.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = redis.from_url(server.url)
        with client:
            eventually(lambda: _answers(client), what="Redis answers")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)
            self.process = None


def _answers(client: "redis.Redis") -> bool:
    with contextlib.suppress(redis.RedisError):
        return bool(client.ping())
    return False


@dataclass
class Bench:
    home: Path
    server: RedisProcess
    settings: dict[str, str] = field(default_factory=dict)
    worker: "subprocess.Popen[bytes] | None" = None

    def __post_init__(self) -> None:
        self.client = redis.from_url(self.server.url)
        self.client.flushall()
        self.queue = Queue(self.client, PREFIX, QueueSettings())
        self.catalog = Catalog(self.client, PREFIX)
        self.fleet = Fleet(self.client, PREFIX)
        self.token = self.queue.lead("", 3600.0)
        self.core = max(os.sched_getaffinity(0))

    # ---- the worker --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the worker and wait for its first report."""
        before = self._last_report()
        env = {name: value for name, value in os.environ.items() if not name.startswith("SMORE_")}
        env |= {
            "PYTHONPATH": str(ROOT),
            "SMORE_LOG_FORMAT": "console",
            "SMORE_WORKER__LEASE_S": "1",
            "SMORE_HOME": str(self.home),
            "SMORE_REDIS__URL": self.server.url,
            "SMORE_WORKER__GPU": GPU,
            "SMORE_WORKER__DEVICE": str(self.core),
            "SMORE_WORKER__HEARTBEAT_S": "0.1",
            "SMORE_WORKER__NURSERY": str(nursery()),
        } | self.settings
        with open(self.home / "worker.log", "ab") as log:
            self.worker = subprocess.Popen(
                [sys.executable, "-m", "worker.app"], env=env, cwd=ROOT, stdout=log, stderr=log
            )
        boot = before.boot if before is not None else ""
        eventually(
            lambda: (report := self._last_report()) is not None and report.boot != boot,
            what=f"the worker reports:\n{self.log()}",
        )

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.worker is not None
        self.worker.terminate()
        return self.worker.wait(PATIENCE_S)

    def kill(self) -> None:
        assert self.worker is not None
        self.worker.kill()
        self.worker.wait()

    def close(self) -> None:
        if self.worker is not None and self.worker.poll() is None:
            self.worker.terminate()
            try:
                self.worker.wait(10)
            except subprocess.TimeoutExpired:
                self.worker.kill()
        for path in (self.home / "run" / "jobs").glob("*.json"):
            record = json.loads(path.read_bytes())
            if record["pid"] and proc.start_time(record["pid"]) == record["start"]:
                os.killpg(record["pid"], signal.SIGKILL)
        self.client.close()

    def log(self) -> str:
        path = self.home / "worker.log"
        return path.read_text() if path.exists() else ""

    def said(self, function: str, word: str) -> int | None:
        """The number that a function printed last after that word; None before it has."""
        lines = [line for piece in self.printed(function) for line in piece.lines]
        found = re.findall(rf"^{word} (\d+)$", "\n".join(lines), re.MULTILINE)
        return int(found[-1]) if found else None

    def printed(self, function: str) -> list[LogPiece]:
        """The function's log."""
        entries: Any = self.client.xrange(log_key(PREFIX, function_log(function)))
        return [decode_piece(fields[b"d"]) for _, fields in entries]

    def lines(self, function: str, invocations: Sequence[str]) -> list[str]:
        """The lines of the batch of these."""
        return [line for piece in self.printed(function) if piece.invocations == invocations for line in piece.lines]

    def line(self, function: str, text: str) -> LogPiece:
        """The only piece of its log with such a line; waits for it."""
        found = eventually(
            lambda: [piece for piece in self.printed(function) if text in "\n".join(piece.lines)], what=f"line {text!r}"
        )
        assert len(found) == 1, found
        return found[0]

    def _last_report(self) -> Report | None:
        return next((report for report in self.fleet.reports() if report.gpu == GPU), None)

    def report(self) -> Report:
        """The last one; on a busy machine one may have lapsed before the next comes."""
        return self._last_report() or eventually(self._last_report, what=f"a report:\n{self.log()}")

    def events(self) -> list[dict[bytes, bytes]]:
        """The fields of every entry of the event stream."""
        entries: Any = self.client.xrange(f"{PREFIX}ev")
        return [fields for _, fields in entries]

    def warm(self) -> list[tuple[str, str]]:
        """(function's name, state) of the warm set as reported."""
        return sorted((one.function.partition("/")[2], one.state.value) for one in self.report().warm)

    def session(self) -> int:
        """The zygote's; a worker reports before it has one."""
        record = self.home / "run" / f"worker-{GPU}.json"
        return int(
            json.loads(eventually(lambda: record.read_text() if record.exists() else "", what="a zygote"))["session"]
        )

    # ---- invocations -------------------------------------------------------------------------------------------------

    def function(self, entrypoint: str, name: str = "", **spec: Any) -> str:
        """
        Register a function, named after its class by default; its key. A worker keeps what it has read of a revision.
        """
        key = f"p/{name or entrypoint.rpartition(':')[2].lower()}"
        described = FunctionSpec(
            entrypoint=entrypoint, profile=Profile(), **{"memory_mib": 64.0, "timeout_s": 20.0} | spec
        )
        self.catalog.put_revision(key, 1, described)
        return key

    def enqueue(self, function: str, payload: bytes, **request: Any) -> str:
        id_ = new_id()
        values = {"slo_us": 60_000_000, "max_attempts": 3} | request
        admission = self.queue.enqueue(Submission(id=id_, function=function, revision=1, payload=payload, **values))
        assert admission.status == "ok", admission
        return id_

    def dispatch(self, function: str, ids: Sequence[str], ahead_s: float = 0.0) -> None:
        """What the leader does: claim and send, for a seat or ahead of the end of a run."""
        attempts = []
        for id_ in ids:
            record = self.record(id_)
            assert record is not None and record.state == "queued", record
            attempts.append((id_, record.attempt))
        options = {"ahead_s": ahead_s} if ahead_s else {}
        body = message(RUN, [function, 1, [[id_, attempt + 1] for id_, attempt in attempts]], gpu_queue(GPU), options)
        claim = Claim(
            function=function,
            gpu=GPU,
            celery_list=PREFIX + gpu_queue(GPU),
            message=body,
            decision="{}",
            schedule_us=0,
            attempts=attempts,
        )
        (claimed,) = self.queue.claim(self.token, 10.0, [claim])
        assert claimed == frozenset(ids)

    def record(self, id_: str) -> InvocationRecord:
        record = self.queue.record("p", id_)
        assert record is not None
        return record

    def state(self, id_: str, *states: str) -> InvocationRecord:
        """Wait until it is in one of these."""
        try:
            return eventually(
                lambda: found if (found := self.record(id_)).state in states else None, what=f"{id_} {states}"
            )
        except AssertionError:
            print(self.log())
            raise

    def ended(self, id_: str) -> tuple[InvocationRecord, Result]:
        record = self.state(id_, *TERMINAL)
        result = self.client.get(f"{PREFIX}r:p:{id_}")
        assert isinstance(result, bytes)
        return record, decode_result(result)

    def call(self, function: str, payload: object, **request: Any) -> tuple[InvocationRecord, Result]:
        """One JSON invocation, alone, from here to its end."""
        id_ = self.enqueue(function, json.dumps(payload).encode(), **request)
        self.dispatch(function, [id_])
        return self.ended(id_)

    def canary(self, function: str) -> tuple[InvocationRecord, Result]:
        id_ = self.enqueue(function, b"", encoding=Encoding.CANARY)
        self.dispatch(function, [id_])
        return self.ended(id_)


@contextlib.contextmanager
def bench(home: Path, server: RedisProcess, **settings: str) -> Iterator[Bench]:
    """``settings``: the worker's own by their names, others by their variables."""
    home.mkdir(parents=True, exist_ok=True)
    named = {name if name.isupper() else f"SMORE_WORKER__{name.upper()}": value for name, value in settings.items()}
    stage = Bench(home, server, named)
    try:
        stage.start()
        yield stage
    finally:
        stage.close()
