"""
Faults under load, and how every invocation ended.

``python -m lab.bench.kills --json`` starts a platform of its own (strict durability) in a temporary home, on a small disk
of its own where the machine allows one, sends a load that two cores can serve, and injects every fault of
:meth:`lab.bench.faults.Faults.matrix`; ``--quick`` with a chosen few, ``--only`` with those whose name matches.

Figures:

* ``lost``: accepted and not terminal 60 s after the load ended. ``doubled``: terminal events of an invocation beyond
  one, plus synchronous answers that differ from the stored result, plus idempotency keys with two invocations.
  ``executed_twice``: runs beyond one (execution is at least once).
* ``jobs_killed``: trainings that stopped iterating at a fault. ``status_500``: answers 500 to any request.
* ``recovery_s.<fault>``, the longest of that fault's strikes: from the end of the fault (killed, continued, space given
  back, started again) to the first answer to a probe sent after it. A probe is a synchronous invocation of a few
  milliseconds, sent every 100 ms and given up after 500 ms. A fault that ends with ``smore up`` ends when that returns.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import redis

from lab.bench.disk import Disk, missing, small_disk
from lab.bench.faults import LOADED, PARTITIONS, Fault, Faults
from lab.bench.ports import free_port
from lab.bench.report import emit, end_on_sigterm, progress, rounded
from smore.local import asking, machine
from smore.messages import stream
from smore.process.settings import Settings
from smore.redis.fleet import stream_entries
from smore.tracking.ring import TrackReader

#: Requests a second, and how long a batch of them sleeps: about twenty are in flight, and the cores have time for the
#: probes.
RATE: Final = 60.0
NAP_S: Final = 0.3
PROBE_EVERY_S: Final = 0.1
PROBE_PATIENCE_S: Final = 0.5
#: A fault whose recovery takes longer counts with this.
GIVEN_UP_S: Final = 60.0
#: A fault whose recovery takes longer is told with the last refusal of a probe.
SLOW_S: Final = 5.0
#: Seconds between a recovery and the next fault: at least REST_S, then until the processes that were struck work again,
#: at most SETTLED_S.
REST_S: Final = 3.0
SETTLED_S: Final = 60.0
#: Requests for the ends of invocations that are sent at a time.
ASKED_AT_ONCE: Final = 16
TERMINAL: Final = frozenset({"succeeded", "failed", "rejected", "expired", "cancelled"})


class Answers:
    """Counts every answer 500 to any client."""

    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()

    async def __call__(self, response: httpx.Response) -> None:
        if response.status_code == 500:
            self.failed[f"{response.request.method} {response.request.url.path}"] += 1


@dataclass(slots=True)
class Sent:
    """One request and its answers."""

    n: int
    key: str
    status: int = 0
    id: str = ""
    ids: set[str] = field(default_factory=set)
    output: Any = None
    state: str = ""

    @property
    def accepted(self) -> bool:
        """Whether the platform promised an end: it answered with the result, with 202, or with 504 after its wait."""
        return bool(self.id) and self.status in (200, 202, 504)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    fault: str
    recovery_s: float
    in_flight: int
    #: From the fault's end until the newest invocation was in Postgres; None where Postgres was not struck.
    history_s: float | None


class Probe(threading.Thread):
    """
    Sends a probe every 100 ms, in a thread of its own, so that nothing else in the benchmark delays it.
    """

    def __init__(self, url: str, key: str, answers: Answers) -> None:
        super().__init__(daemon=True)
        self._url, self._headers, self._answers = url, {"Authorization": f"Bearer {key}"}, answers
        self._stopped = threading.Event()
        #: (sent, answered), monotonic, of the probes that succeeded, in the order of the answers.
        self.successes: list[tuple[float, float]] = []
        #: What the last probe that did not succeed was told, '' = nothing in time.
        self.told = ""

    def run(self) -> None:
        asyncio.run(self._run())

    def stop(self) -> None:
        self._stopped.set()

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=20, max_keepalive_connections=5)
        async with httpx.AsyncClient(
            base_url=self._url,
            headers=self._headers,
            timeout=PROBE_PATIENCE_S,
            limits=limits,
            event_hooks={"response": [self._answers]},
        ) as http:
            running: set[asyncio.Task[None]] = set()
            due = time.monotonic()
            while not self._stopped.is_set():
                task = asyncio.create_task(self._ask(http))
                running.add(task)
                task.add_done_callback(running.discard)
                due = max(due + PROBE_EVERY_S, time.monotonic())
                await asyncio.sleep(due - time.monotonic())

    async def _ask(self, http: httpx.AsyncClient) -> None:
        sent = time.monotonic()
        # A deadline of its own: probes that nobody waits for any more leave the queue.
        body = {"input": {"n": -1, "file": os.devnull, "s": 0.003}, "deadline_ms": 1000}
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            self.told = ""
            async with asyncio.timeout(PROBE_PATIENCE_S):
                answer = await http.post("/v1/functions/probe/invocations", json=body)
            if answer.status_code == 200:
                self.successes.append((sent, time.monotonic()))
            else:
                self.told = answer.text

    def first_after(self, moment: float) -> float | None:
        """Seconds from ``moment`` to the first answer to a probe sent after it."""
        answers = [answered for sent, answered in self.successes[-500:] if sent >= moment]
        return min(answers) - moment if answers else None


class Load:
    """
    Open loop at a fixed rate: 60 % synchronous, 30 % asynchronous, 10 % with an Idempotency-Key and repeated until
    answered.
    """

    def __init__(self, url: str, key: str, tally: Path, answers: Answers, rate: float = RATE) -> None:
        self._rate = rate
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=45.0,
            event_hooks={"response": [answers]},
            limits=httpx.Limits(max_connections=4000, max_keepalive_connections=100),
        )
        self._tally = str(tally)
        self.sent: list[Sent] = []
        self.in_flight = 0
        self._stop = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        due = time.monotonic()
        while not self._stop:
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            n = len(self.sent)
            sent = Sent(n=n, key=f"kill-{n}" if n % 10 == 0 else "")
            self.sent.append(sent)
            task = asyncio.create_task(self._send(sent))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, sent: Sent) -> None:
        headers = {}
        if sent.n % 10 in (1, 2, 3):
            headers["Prefer"] = "respond-async"
        if sent.key:
            headers["Idempotency-Key"] = sent.key
        body = {"input": {"n": sent.n, "file": self._tally, "s": NAP_S}, "deadline_ms": 40_000}
        self.in_flight += 1
        try:
            until = time.monotonic() + 30
            while True:
                try:
                    answer = await self._http.post(f"/v1/functions/{LOADED}/invocations", json=body, headers=headers)
                except httpx.HTTPError:
                    if not sent.key or time.monotonic() > until:
                        return
                    await asyncio.sleep(0.2)
                    continue
                sent.status = answer.status_code
                with contextlib.suppress(ValueError):
                    said = answer.json()
                    sent.id = said.get("id") or said.get("invocation_id") or ""
                    sent.state = said.get("state", "")
                    sent.output = said.get("output")
                    if sent.id:
                        sent.ids.add(sent.id)
                if not sent.key or answer.status_code < 500 or time.monotonic() > until:
                    return
                await asyncio.sleep(0.2)
        finally:
            self.in_flight -= 1

    async def finish(self) -> None:
        """Stop sending and wait for the answers that are due."""
        self._stop = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=60)

    async def request(self, method: str, path: str, **how: Any) -> httpx.Response:
        return await self._http.request(method, path, **how)

    async def get(self, path: str) -> httpx.Response:
        return await self._http.get(path)

    async def close(self) -> None:
        await self._http.aclose()


class Witness(threading.Thread):
    """Reads the event stream beside the platform and counts how often each invocation ended."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(daemon=True)
        self._url, self._prefix = url, prefix
        self.ends: Counter[str] = Counter()
        self.stop = threading.Event()

    def run(self) -> None:
        client = redis.from_url(self._url, socket_timeout=10)
        cursor = "0-0"
        while not self.stop.is_set():
            try:
                answer = client.xread({f"{self._prefix}ev": cursor}, count=2000, block=200)
            except redis.RedisError:
                self.stop.wait(0.1)
                continue
            for entry, fields in stream_entries(answer):
                cursor = entry
                event = stream.decode(fields[b"e"])
                if isinstance(event, stream.Settled):
                    self.ends[event.id] += 1


class Bench:
    """A platform under load, its faults, and the strikes so far."""

    def __init__(self, home: Path, end: asking.Endpoints, key: str, tally: Path, disk: Disk | None) -> None:
        self.home = home
        self.tally = tally
        client = redis.from_url(end.redis_url, socket_timeout=5)
        self.answers = Answers()
        self.load = Load(end.gateway_url, key, tally, self.answers)
        self.probe = Probe(end.gateway_url, key, self.answers)
        self.witness = Witness(end.redis_url, Settings().redis.prefix)
        self.faults = Faults(home, end, client, disk, self.load.request)
        self.strikes: list[Strike] = []
        self.skipped: dict[str, str] = {}
        self.jobs_killed = 0
        self.job_ids: list[str] = []

    # ---- one strike --------------------------------------------------------------------------------------------------

    def iterations(self) -> dict[str, int]:
        return {job: TrackReader(str(self.home / "run" / "jobs" / f"{job}.1.0.track")).count for job in self.job_ids}

    async def strike(self, fault: Fault) -> None:
        before, in_flight = self.iterations(), self.load.in_flight
        await fault.strike()
        over = time.monotonic()
        recovery = None
        told = ""
        while recovery is None:
            await asyncio.sleep(0.05)
            told = self.probe.told or told
            recovery = self.probe.first_after(over) if time.monotonic() - over < GIVEN_UP_S else GIVEN_UP_S
        if recovery > SLOW_S:
            progress(f"    the last refusal of a probe: {told or 'none'}")
        history_s = await self.caught_up(over) if "postgres" in fault.name else None
        if fault.repair is not None:
            await fault.repair()
        await asyncio.sleep(REST_S)
        await self.settled()
        after = self.iterations()
        stopped = [job for job in self.job_ids if after[job] <= before[job]]
        self.jobs_killed += len(stopped)
        self.strikes.append(Strike(fault=fault.name, recovery_s=recovery, in_flight=in_flight, history_s=history_s))
        history = f"   history {history_s:5.2f} s" if history_s is not None else ""
        failed = sum(self.answers.failed.values())
        progress(
            f"{len(self.strikes):3d} {fault.name:34} recovery {recovery:6.2f} s   in flight {in_flight:4d}   jobs"
            f" stopped {len(stopped)}   answers 500: {failed}{history}"
        )

    async def settled(self) -> None:
        """
        Wait until probes are answered steadily and the nursery imports nothing any more, so that each fault strikes a
        whole platform.
        """
        until = time.monotonic() + SETTLED_S
        while time.monotonic() < until:
            answered, worked_s = len(self.probe.successes), await asyncio.to_thread(self.faults.importing_s)
            await asyncio.sleep(2.0)
            steady = len(self.probe.successes) - answered >= 0.8 * 2.0 / PROBE_EVERY_S
            if steady and worked_s and await asyncio.to_thread(self.faults.importing_s) - worked_s < 0.2:
                return

    async def caught_up(self, since: float) -> float:
        """Seconds from ``since`` until the newest answered invocation is in Postgres."""
        last = next((sent for sent in reversed(self.load.sent) if sent.status == 200), None)
        while last is not None and time.monotonic() - since < GIVEN_UP_S:
            with contextlib.suppress(httpx.HTTPError):
                listed = await self.load.get(f"/v1/invocations?function={LOADED}&limit=1")
                if (
                    listed.status_code == 200
                    and listed.json()["invocations"]
                    and listed.json()["invocations"][0]["id"] >= last.id
                ):
                    break
            await asyncio.sleep(0.1)
        return time.monotonic() - since

    async def account(self) -> dict[str, float]:
        ran = Counter(int(line) for line in self.tally.read_text().split() if line != "-1")
        figures = await account(self.load, self.witness.ends, ran)
        for what, times in self.answers.failed.items():
            progress(f"answered 500, {times} times: {what}")
        return figures | {"status_500": sum(self.answers.failed.values())}


async def account(load: Load, ends: Counter[str], ran: Counter[int]) -> dict[str, float]:
    """
    The figures of all invocations of a load, at most 60 s after it ended. ``ends``: how often each id ended, by the
    event stream; ``ran``: how often each number was executed.
    """
    accepted = [sent for sent in load.sent if sent.accepted]
    states = {sent.id: sent.state for sent in accepted if sent.status == 200}
    open_ = [sent.id for sent in accepted if sent.status != 200]
    turn = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(path: str) -> dict[str, Any] | None:
        async with turn:
            answer = await load.get(path)
            return answer.json() if answer.status_code == 200 else None

    until = time.monotonic() + 60
    while True:
        records = await asyncio.gather(*(ask(f"/v1/invocations/{id_}") for id_ in open_))
        ended = {
            id_: record["state"]
            for id_, record in zip(open_, records, strict=True)
            if record and record["state"] in TERMINAL
        }
        states |= ended
        open_ = [id_ for id_ in open_ if id_ not in ended]
        if not open_ or time.monotonic() > until:
            break
        await asyncio.sleep(0.5)
    done = [sent for sent in accepted if sent.status == 200]
    stored = await asyncio.gather(*(ask(f"/v1/invocations/{sent.id}/result") for sent in done))
    differing = sum(
        record is not None and record.get("output") != sent.output for sent, record in zip(done, stored, strict=True)
    )
    doubled_ends = sum(count - 1 for count in ends.values() if count > 1)
    doubled_keys = sum(len(sent.ids) > 1 for sent in load.sent)
    counts = Counter(states.values())
    progress(f"sent {len(load.sent)}, accepted {len(accepted)}, {dict(counts)}, open {len(open_)}")
    answers = Counter(sent.status for sent in load.sent)
    progress(f"answers by status {dict(sorted(answers.items()))} (0 = connection broke)")
    return {
        "lost": len(open_),
        "doubled": doubled_ends + differing + doubled_keys,
        "executed_twice": sum(count - 1 for count in ran.values() if count > 1),
        "sent": len(load.sent),
        "accepted": len(accepted),
        "succeeded": counts["succeeded"],
        "failed": counts["failed"],
        "expired": counts["expired"],
    }


async def _prepare(bench: Bench) -> None:
    load = bench.load
    spec: dict[str, Any] = {
        "slo": {"deadline": "40s"},
        "batching": {"max_size": 32},
        "scaling": {"max_warm": 2},
        "retries": {"max_attempts": 6},
        "limits": {"max_pending": 20000},
        "resources": {"gpu_memory": "64MiB"},
        # The function sleeps, so budgets do not hold it back.
        "profile": {"run_ms": {1: 300, 32: 300}, "load_ms": 100, "degradation": 0.0},
    }
    quick = spec | {"profile": {"run_ms": {1: 4, 32: 4}, "load_ms": 100, "degradation": 0.0}}
    functions = {
        LOADED: {**spec, "entrypoint": "lab.bench.tally:Tally"},
        "probe": {**quick, "entrypoint": "lab.bench.tally:Tally"},
        "devour": {**spec, "entrypoint": "zoo.misbehave:Allocate"},
        "forge": {**spec, "entrypoint": "lab.bench.tally:Forge"},
    }
    for name, function in functions.items():
        body = {"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": name}, "spec": function}
        until = time.monotonic() + 60
        while True:
            answer = await load.request("PUT", f"/v1/functions/{name}", json=body, timeout=60)
            if answer.status_code in (200, 201):
                break
            if time.monotonic() > until:
                raise RuntimeError(f"{name} cannot be deployed: {answer.status_code} {answer.text}")
            await asyncio.sleep(0.2)
    for gpu in [g["id"] for g in (await load.get("/v1/gpus")).json()["gpus"]]:
        argv = ["zoo.train", "--model", "deepfm", "--preset", "cpu", "--input-wait", "0.5", "--seconds", "36000"]
        answer = await load.request("POST", "/v1/jobs", json={"name": f"train-{gpu}", "argv": argv, "gpus": [gpu]})
        if answer.status_code not in (200, 201, 202):
            raise RuntimeError(f"the job cannot be started: {answer.status_code} {answer.text}")
        bench.job_ids.append(answer.json()["id"])
    until = time.monotonic() + 60
    while min(bench.iterations().values()) < 5:
        if time.monotonic() > until:
            raise RuntimeError("the jobs do not iterate")
        await asyncio.sleep(0.1)


async def _run(bench: Bench, quick: bool, only: re.Pattern[str], minutes: float) -> dict[str, float]:
    await _prepare(bench)
    # Refusals while the platform starts do not count.
    bench.answers.failed.clear()
    bench.witness.start()
    bench.probe.start()
    sending = asyncio.create_task(bench.load.run())
    until = time.monotonic() + 60
    while len(bench.probe.successes) < 20 or bench.load.in_flight < 10:
        if time.monotonic() > until:
            raise RuntimeError("nothing succeeds")
        await asyncio.sleep(0.05)
    await asyncio.sleep(REST_S)
    until = time.monotonic() + 60 * minutes
    for fault in bench.faults.matrix():
        times = fault.quick if quick else fault.times
        if not times or not only.search(fault.name):
            continue
        if fault.skipped:
            bench.skipped[fault.name] = fault.skipped
            progress(f"    {fault.name:34} skipped: {fault.skipped}")
            continue
        for _ in range(times):
            if time.monotonic() < until:
                await bench.strike(fault)
            else:
                bench.skipped[fault.name] = "no time was left"
    bench.probe.stop()
    await bench.load.finish()
    await sending
    figures = await bench.account()
    bench.witness.stop.set()
    for job in bench.job_ids:
        await bench.load.request("POST", f"/v1/jobs/{job}/stop")
    for job in bench.job_ids:
        while (await bench.load.get(f"/v1/jobs/{job}")).json()["state"] not in ("ended", "lost"):
            await asyncio.sleep(0.1)
    await bench.load.close()
    worst: dict[str, float] = defaultdict(float)
    for strike in bench.strikes:
        worst[strike.fault] = max(worst[strike.fault], strike.recovery_s)
    return figures | {
        "faults": len(bench.strikes),
        "jobs_killed": bench.jobs_killed,
        "worst_recovery_s": max(worst.values(), default=0.0),
        "min_in_flight": min((strike.in_flight for strike in bench.strikes), default=0),
        **{f"recovery_s.{name}": seconds for name, seconds in worst.items()},
    }


@contextlib.contextmanager
def _place(folder: Path) -> Iterator[tuple[Path, Disk | None]]:
    """A home, on a disk of its own where the machine allows one."""
    if missing():
        yield folder / "home", None
        return
    with small_disk(folder) as disk:
        yield disk.folder / "home", disk


def run(
    quick: bool = False, only: str = "", durability: str = "strict", minutes: float = math.inf
) -> tuple[dict[str, float], Bench]:
    """Start a platform in a temporary home, strike it, end it. Figures, and the bench with each strike."""
    with (
        tempfile.TemporaryDirectory(prefix="smore-kills-") as folder,
        tempfile.TemporaryDirectory(prefix="smore-tally-") as shared,
        _place(Path(folder)) as (home, disk),
    ):
        tally = Path(shared, "tally.txt")
        # Functions are sandboxed; this folder is the one that they may write to.
        tally.touch()
        tally.chmod(0o666)
        tally.parent.chmod(0o755)
        port = free_port()
        os.environ |= {
            "SMORE_API__PORT": str(port),
            "SMORE_REDIS__DURABILITY": durability,
            "SMORE_WORKER__WRITABLE": json.dumps([str(tally.parent)]),
            # Answers are compared with the stored results at the end.
            "SMORE_QUEUE__SYNC_RESULT_TTL_S": "7200",
            "SMORE_QUEUE__RESULT_TTL_S": "7200",
        }
        end = machine.up(home, config=Settings(), partitions=PARTITIONS)
        try:
            bench = Bench(home, end, (home / "key").read_text().strip(), tally, disk)
            return asyncio.run(_run(bench, quick, re.compile(only), minutes)), bench
        finally:
            machine.down(home)
            end_left_over(home)


def end_left_over(home: Path) -> None:
    """End the processes that still name this home in their environment or command line: orphans."""
    needle = str(home).encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if int(process.name) != os.getpid() and (needle in words or needle in (process / "environ").read_bytes()):
                shown = words.replace(bytes(1), b" ").decode(errors="replace").strip()
                progress(f"left over, and ended: {process.name}: {shown}")
                os.kill(int(process.name), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="a few faults, each once")
    parser.add_argument("--only", default="", help="only faults whose name this regular expression finds")
    parser.add_argument(
        "--durability", choices=("strict", "standard"), default="strict", help="of the platform's Redis"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="no fault begins later than this after the first"
    )
    options = parser.parse_args()
    end_on_sigterm()
    figures, bench = run(options.quick, options.only, options.durability, options.minutes)
    if options.json:
        strikes = [
            {"fault": s.fault, "recovery_s": rounded(s.recovery_s), "in_flight": s.in_flight}
            | ({"history_s": rounded(s.history_s)} if s.history_s is not None else {})
            for s in bench.strikes
        ]
        emit("lab.bench.kills", figures, strikes=strikes, skipped=bench.skipped, durability=options.durability)
    else:
        print(json.dumps(figures, indent=1))
    wrong = ("lost", "doubled", "jobs_killed", "status_500")
    sys.exit(1 if any(figures[name] for name in wrong) else 0)


if __name__ == "__main__":
    main()
