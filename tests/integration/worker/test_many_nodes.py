"""
Sixty-four GPU instances under the live scheduler: each a process of its own that heartbeats and serves as a worker
does, without a device.

The scheduler is ``python -m scheduler.worker scheduler``, Redis is real, and a node speaks the protocol of
worker/heartbeat.py and worker/batches.py: reports, Celery messages from its list, ``start``, ``finish``, ``requeue``.
The nodes are forked from one process that has imported everything, so that all of them together cost a start what one
costs.
"""

import base64
import heapq
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import cast

import pytest
import redis

from smore.domain.function import FunctionSpec, Profile
from smore.domain.ids import new_id
from smore.domain.invocation import Cause
from smore.messages.reports import Report, WarmInstance, WarmState, encode_report
from smore.messages.results import Result, encode_result
from smore.messages.stream import Dispatched, Event, Settled, decode
from smore.process.settings import QueueSettings, Settings
from smore.redis.catalog import Catalog, FunctionEntry
from smore.redis.celery import gpu_queue
from smore.redis.fleet import Fleet
from smore.redis.queue import Queue, RunOutcome
from smore.redis.records import InvocationRecord
from smore.redis.submission import Submission
from tests.support.eventually import eventually

ROOT = Path(__file__).resolve().parents[3]
PREFIX = "smore:"
FUNCTIONS = ("default/one", "default/two")
NODES = 64
BEAT_S = 0.5
LEASE_S = 2.0
RUN_S = 0.3
#: How long a node waits for the next message.
IDLE_S = 0.5
#: Of a wave: enough for every node's two slots and half as many again.
WAVE = 3 * NODES
#: From the moment that a wave may be placed to the first dispatch to each node.
BOUND_S = 5.0


# ---- a node ----------------------------------------------------------------------------------------------------------


class Node:
    """
    One GPU instance with both functions resident.

    SIGTERM: it takes nothing more, gives back what it has not begun, and ends when the rest has ended. SIGUSR1: what it
    begins from now on never ends.
    """

    def __init__(self, url: str, name: str) -> None:
        self._name = name
        self._client = redis.Redis.from_url(url, socket_timeout=10)
        self._queue = Queue(self._client, PREFIX, QueueSettings())
        #: (when it ends, function, its attempts).
        self._running: list[tuple[float, str, list[tuple[str, int]]]] = []
        self._run_s = RUN_S
        self._leaving = threading.Event()
        self._ended = False

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, self._leave)
        signal.signal(signal.SIGUSR1, self._hang)
        beat = threading.Thread(target=self._beat)
        beat.start()
        nursery = os.getppid()
        while (self._running or not self._leaving.is_set()) and os.getppid() == nursery:
            # Sixty-four that look about twenty times a second keep a core busy.
            idle_s = min(IDLE_S, self._running[0][0] - time.monotonic()) if self._running else IDLE_S
            if not self._leaving.is_set() and len(self._running) < len(FUNCTIONS):
                self._take(max(0.01, idle_s))
            else:
                time.sleep(max(0.0, idle_s))
            while self._running and self._running[0][0] <= time.monotonic():
                self._finish()
        while self._leaving.is_set() and self._give_back():
            pass
        self._ended = True
        beat.join()

    def _leave(self, number: int, frame: FrameType | None) -> None:
        self._leaving.set()

    def _hang(self, number: int, frame: FrameType | None) -> None:
        self._run_s = 1e6

    def _beat(self) -> None:
        while not self._ended:
            self._report()
            self._leaving.wait(BEAT_S) if not self._leaving.is_set() else time.sleep(BEAT_S / 10)

    def _report(self) -> None:
        running = list(self._running)
        busy = {function for _, function, _ in running}

        def state(function: str) -> WarmState:
            return WarmState.BUSY if function in busy else WarmState.IDLE

        report = Report(
            gpu=self._name,
            boot=str(os.getpid()),
            at=time.time(),
            kind="cpu",
            device="fake",
            sharing_mode="time-slice",
            slots=0 if self._leaving.is_set() else len(FUNCTIONS),
            memory_total_mib=1000,
            memory_used_mib=200,
            utilisation=0.0,
            utilisation_counter="none",
            function_utilisation=0.0,
            running=len(running),
            warm=[
                WarmInstance(function=function, revision=1, state=state(function), memory_mib=100, pid=os.getpid())
                for function in FUNCTIONS
            ],
        )
        held = [(function, id_, attempt) for _, function, attempts in running for id_, attempt in attempts]
        self._queue.report(
            self._name, encode_report(report), ttl_s=4 * BEAT_S, lease_s=LEASE_S, cursor="", running=held
        )

    def _message(self, within_s: float) -> tuple[str, list[tuple[str, int]]] | None:
        """The next Celery message's function and attempts."""
        names = [f"{PREFIX}{gpu_queue(self._name)}"]
        if within_s:
            found = cast("tuple[bytes, bytes] | None", self._client.brpop(names, timeout=within_s))
            raw = found[1] if found is not None else None
        else:
            raw = cast("bytes | None", self._client.rpop(names[0]))
        if raw is None:
            return None
        (function, _revision, attempts), *_ = json.loads(base64.b64decode(json.loads(raw)["body"]))
        return function, [(id_, attempt) for id_, attempt in attempts]

    def _take(self, within_s: float) -> None:
        message = self._message(within_s)
        if message is None:
            return
        function, attempts = message
        begun = self._queue.start(function, self._name, LEASE_S, attempts)
        mine = [pair for pair, one in zip(attempts, begun, strict=True) if one is not None]
        if mine:
            heapq.heappush(self._running, (time.monotonic() + self._run_s, function, mine))

    def _finish(self) -> None:
        _, function, attempts = self._running[0]
        result = encode_result(Result(form="json", body=json.dumps(self._name).encode()))
        outcomes = [
            RunOutcome(id=id_, attempt=attempt, action="succeed", cause=Cause.OK, result=result)
            for id_, attempt in attempts
        ]
        self._queue.finish(function, "", outcomes)
        # Its lease is renewed until then.
        heapq.heappop(self._running)

    def _give_back(self) -> bool:
        message = self._message(0.0)
        if message is None:
            return False
        function, attempts = message
        # As a worker does: only what was begun may be given back.
        begun = self._queue.start(function, self._name, LEASE_S, attempts)
        mine = [pair for pair, one in zip(attempts, begun, strict=True) if one is not None]
        self._queue.requeue(function, Cause.WORKER_BUSY, mine, refund=True, alone=False, message="leaving")
        return True


def nurse(url: str) -> None:
    """Fork a node for each name on stdin and print its pid; at the end of stdin end them all."""
    children: list[int] = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                Node(url, line.strip()).serve()
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
        print(pid, flush=True)
    for pid in children:
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class Nursery:
    """The nodes, by name."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.worker.test_many_nodes", url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pids: dict[str, int] = {}

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def bear(self, names: Sequence[str]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for name in names:
            print(name, file=self._process.stdin, flush=True)
            self.pids[name] = int(self._process.stdout.readline())

    def send(self, names: Sequence[str], number: signal.Signals) -> None:
        for name in names:
            os.kill(self.pids[name], number)


# ---- the test --------------------------------------------------------------------------------------------------------


@pytest.fixture
def queue(redis_client: "redis.Redis") -> Queue:
    catalog = Catalog(redis_client, PREFIX)
    for function in FUNCTIONS:
        project, name = function.split("/")
        catalog.put_revision(
            function, 1, FunctionSpec(entrypoint="m:C", max_batch=1, profile=Profile(run_s={1: RUN_S}, load_s=1.0))
        )
        catalog.put_function(FunctionEntry(project=project, name=name, revision=1))
    return Queue(redis_client, PREFIX, QueueSettings())


@pytest.fixture
def scheduler(config: Settings, queue: Queue, tmp_path: Path) -> Iterator[None]:
    """The process that leads, as the platform starts it."""
    assert config.redis.url is not None
    environment = os.environ | {
        "SMORE_HOME": str(tmp_path),
        "SMORE_REDIS__URL": config.redis.url,
        "PYTHONPATH": str(ROOT),
    }
    with (tmp_path / "scheduler.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "scheduler.worker", "scheduler", "many"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        yield
        process.terminate()
        assert process.wait(20) == 0, (tmp_path / "scheduler.log").read_text()


class Play:
    """What is sent and what the event stream says of it."""

    def __init__(self, client: "redis.Redis", queue: Queue) -> None:
        self._queue = queue
        self._fleet = Fleet(client, PREFIX)
        self._cursor = "0-0"
        self._events: list[Event] = []
        #: Invocation → its function.
        self.sent: dict[str, str] = {}

    def release(self, count: int) -> tuple[list[str], float]:
        """Let ``count`` invocations loose at once; their ids, and when they could be placed (epoch seconds)."""
        self._fleet.pause("*")
        ids = []
        for number in range(count):
            id_, function = new_id(), FUNCTIONS[number % len(FUNCTIONS)]
            admission = self._queue.enqueue(
                Submission(id=id_, function=function, revision=1, payload=b"1", slo_us=60_000_000)
            )
            assert admission.status == "ok", admission
            self.sent[id_] = function
            ids.append(id_)
        at = time.time()
        self._fleet.resume("*")
        return ids, at

    def records(self, ids: Sequence[str]) -> list[InvocationRecord]:
        found = [self._queue.record("default", id_) for id_ in ids]
        return [record for record in found if record is not None]

    def done(self, ids: Sequence[str], within_s: float = 15.0) -> list[InvocationRecord]:
        """Their records, once all have succeeded."""
        eventually(lambda: {self._state(id_) for id_ in ids} == {"succeeded"}, within_s, "the success of all")
        return self.records(ids)

    def _state(self, id_: str) -> str:
        record = self._queue.record("default", id_)
        return record.state if record is not None else "absent"

    def events(self) -> list[Event]:
        """All so far, reports left out."""
        while page := self._queue.events(self._cursor):
            self._cursor = page[-1][0]
            self._events += [event for _, raw in page if isinstance(event := decode(raw), Dispatched | Settled)]
        return self._events

    def first_dispatch_s(self, since: float) -> dict[str, float]:
        """GPU instance → seconds from ``since`` to its first dispatch after it."""
        found: dict[str, float] = {}
        for event in self.events():
            if isinstance(event, Dispatched) and event.at_us / 1e6 >= since:
                found.setdefault(event.gpu, event.at_us / 1e6 - since)
        return found


@pytest.mark.usefixtures("scheduler")
def test_sixty_four_nodes_come_and_go(config: Settings, redis_client: "redis.Redis", queue: Queue) -> None:
    """
    All are placed on, none waits longer than a bound; eight leave and eight join, and nothing is lost or done twice.
    """
    assert config.redis.url is not None
    names = [f"node{number:02}" for number in range(NODES)]
    killed, leaving, joining = names[:4], names[30:34], [f"late{number}" for number in range(8)]
    play = Play(redis_client, queue)
    fleet = Fleet(redis_client, PREFIX)
    with Nursery(config.redis.url) as nursery:
        nursery.bear(names)
        eventually(lambda: len(fleet.reports()) == NODES, 15, "a report of every node")
        # The first one of an installation compiles the kernel before it leads.
        eventually(lambda: redis_client.get(f"{PREFIX}leader"), 90, "a leader")

        first, since = play.release(WAVE)
        play.done(first)
        reached = play.first_dispatch_s(since)
        assert set(reached) == set(names)
        assert max(reached.values()) < BOUND_S
        assert {record.attempt for record in play.records(first)} == {1}

        # Four die with work in their hands, four take their leave, eight come, all while a wave is being served.
        nursery.send(killed, signal.SIGUSR1)
        second, since = play.release(WAVE)
        eventually(
            lambda: set(killed) <= {record.gpu for record in play.records(second) if record.state == "running"},
            10,
            "work on those who die",
        )
        lost = [record.id for record in play.records(second) if record.state == "running" and record.gpu in killed]
        nursery.send(killed, signal.SIGKILL)
        nursery.send(leaving, signal.SIGTERM)
        nursery.bear(joining)
        play.done(second)
        again = play.records(lost)
        assert {record.attempt >= 2 for record in again} == {True}
        assert not {record.gpu for record in again} & set(killed)

        present = {*names, *joining} - {*killed, *leaving}
        eventually(
            lambda: {report.gpu for report in fleet.reports()} == present, 10, "the reports of those who are there"
        )
        third, since = play.release(WAVE)
        play.done(third)
        reached = play.first_dispatch_s(since)
        assert set(reached) == present
        assert max(reached.values()) < BOUND_S

    ends = Counter(event.id for event in play.events() if isinstance(event, Settled))
    assert ends == Counter(play.sent.keys())
    served = Counter(event.gpu for event in play.events() if isinstance(event, Settled))
    assert min(served[name] for name in present - set(joining)) >= 2


if __name__ == "__main__":
    nurse(sys.argv[1])
