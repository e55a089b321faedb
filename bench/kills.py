"""
Nothing kills it: faults under load, and what became of every invocation.

``python -m bench.kills --json`` starts a platform of its own in a temporary home, keeps ≥ 200 requests/s and ≥ 50 invocations in flight,
and
strikes it with every fault of :data:`MATRIX`; ``--quick`` strikes once with each kill.

Figures: ``lost`` = answered 200 or 202 and not terminal 60 s after the load ended; ``doubled`` = terminal events of an invocation beyond
one, plus
synchronous answers that differ from the stored result, plus idempotency keys with two invocations; ``executed_twice`` = runs beyond one
(execution is
at least once); ``recovery`` = fault to the first success of a request sent after it (Postgres: until the history has caught up);
``jobs_killed`` = serverful jobs that stopped iterating at a fault that was not theirs.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import redis

from bench.report import emit, progress, rounded
from smore import local, stream
from smore.fleet import Fleet, stream_entries
from smore.settings import Settings
from smore.track import TrackReader

RATE = 220.0
NAP_S = 0.3
LEASE_S = 2.0


@dataclass(slots=True)
class Sent:
    """One request and what was said to it."""

    n: int
    sent_at: float
    key: str
    status: int = 0
    id: str = ""
    ids: set[str] = field(default_factory=set)
    output: Any = None
    answered_at: float = 0.0
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    fault: str
    recovery_s: float
    in_flight: int


class Load:
    """Open loop at a fixed rate: 60 % synchronous, 30 % asynchronous, 10 % with an Idempotency-Key and repeated until answered."""

    def __init__(self, url: str, key: str, tally: Path) -> None:
        self._http = httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30.0,
            limits=httpx.Limits(max_connections=1000, max_keepalive_connections=200),
        )  # fmt: skip
        self._tally = str(tally)
        self.sent: list[Sent] = []
        self.in_flight = 0
        self._stop = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        due = time.monotonic()
        while not self._stop:
            due += 1 / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            n = len(self.sent)
            one = Sent(n=n, sent_at=time.monotonic(), key=f"kill-{n}" if n % 10 == 0 else "")
            self.sent.append(one)
            task = asyncio.create_task(self._send(one))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, one: Sent) -> None:
        headers = {}
        if one.n % 10 in (1, 2, 3):
            headers["Prefer"] = "respond-async"
        if one.key:
            headers["Idempotency-Key"] = one.key
        body = {"input": {"n": one.n, "file": self._tally, "s": NAP_S}, "deadline_ms": 25_000}
        self.in_flight += 1
        try:
            until = time.monotonic() + 20
            while True:
                try:
                    answer = await self._http.post("/v1/functions/tally/invocations", json=body, headers=headers)
                except httpx.HTTPError:
                    if not one.key or time.monotonic() > until:
                        return
                    await asyncio.sleep(0.2)
                    continue
                one.status = answer.status_code
                with contextlib.suppress(ValueError):
                    said = answer.json()
                    one.id = said.get("id") or said.get("invocation_id") or ""
                    one.state = said.get("state", "")
                    one.output = said.get("output")
                    if one.id:
                        one.ids.add(one.id)
                one.answered_at = time.monotonic()
                if not one.key or answer.status_code < 500 or time.monotonic() > until:
                    return
                await asyncio.sleep(0.2)
        finally:
            self.in_flight -= 1

    async def finish(self) -> None:
        """Stop sending and hear out who still waits."""
        self._stop = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=40)

    def first_success_after(self, moment: float) -> float | None:
        """Seconds from ``moment`` to the first 200 of a request sent after it."""
        found = [one.answered_at for one in self.sent if one.sent_at > moment and one.status == 200]
        return min(found) - moment if found else None

    async def get(self, path: str) -> httpx.Response:
        return await self._http.get(path)

    async def post(self, path: str, body: object = None, **headers: str) -> httpx.Response:
        return await self._http.post(path, json=body, headers=headers)

    async def put(self, path: str, body: object) -> httpx.Response:
        return await self._http.put(path, json=body, timeout=60)

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
    def __init__(self, home: Path, end: local.Endpoints, key: str, tally: Path) -> None:
        self.home = home
        self.tally = tally
        self.end = end
        self.prefix = Settings().redis.prefix
        self.redis = redis.from_url(end.redis_url, socket_timeout=5)
        self.load = Load(end.gateway_url, key, tally)
        self.witness = Witness(end.redis_url, self.prefix)
        self.strikes: list[Strike] = []
        self.jobs_killed = 0
        self.job_ids: list[str] = []

    # ---- faults -------------------------------------------------------------------------------------------------------------------------

    def leader_pid(self) -> int:
        raw = self.redis.get(f"{self.prefix}leader:process")
        assert isinstance(raw, bytes)
        return int(raw.decode().rpartition(":")[2])

    def runner_pid(self) -> int:
        for report in Fleet(self.redis, self.prefix).reports():
            for instance in report.warm:
                if instance.function == "default/tally" and instance.pid:
                    return instance.pid
        raise LookupError("no warm instance of the function is reported")

    def pid(self, name: str) -> int:
        found = local.pid(self.home, name)
        if found is None:
            raise LookupError(f"{name} is not running")
        return found

    async def kill(self, target: Callable[[], int]) -> None:
        os.kill(target(), signal.SIGKILL)

    async def freeze(self, target: Callable[[], int]) -> None:
        """The dead come back: stopped for three leases, then continued."""
        pid = target()
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(3 * LEASE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def away(self, name: str, seconds: float) -> None:
        await asyncio.to_thread(local.stop, self.home, name)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(local.start, self.home, name)

    async def devour(self) -> None:
        """A function that takes memory without end: it must be the only one that suffers."""
        await self.load.post("/v1/functions/devour/invocations", {"input": {"do": "allocate"}}, Prefer="respond-async")

    def matrix(self, quick: bool) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        kills: dict[str, Callable[[], int]] = {
            "gateway": lambda: self.pid("gateway"),
            "leader": self.leader_pid,
            "beat": lambda: self.pid("beat"),
            "worker": lambda: self.pid("worker-cpu0"),
            "runner": self.runner_pid,
            "redis": lambda: self.pid("redis"),
            "postgres": lambda: self.pid("postgres"),
        }
        faults: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        for name, target in kills.items():
            faults += [(f"kill {name}", lambda target=target: self.kill(target))] * (1 if quick else 3)  # type: ignore[misc]
        if not quick:
            for name in ("leader", "worker", "runner"):
                faults += [(f"freeze {name}", lambda target=kills[name]: self.freeze(target))] * 3  # type: ignore[misc]
            faults.append(("redis away 10 s", lambda: self.away("redis", 10.0)))
            faults.append(("allocate without bound", self.devour))
            faults.append(("postgres away 180 s", lambda: self.away("postgres", 180.0)))
        return faults

    # ---- one strike ---------------------------------------------------------------------------------------------------------------------

    def iterations(self) -> dict[str, int]:
        return {job: TrackReader(str(self.home / "run" / "jobs" / f"{job}.track")).count for job in self.job_ids}

    async def strike(self, name: str, fault: Callable[[], Awaitable[None]]) -> None:
        before, in_flight = self.iterations(), self.load.in_flight
        moment = time.monotonic()
        await fault()
        # A frozen or absent part recovers from the moment it is back.
        back = time.monotonic() if name.endswith(" s") else moment
        recovery = None
        while recovery is None:
            if time.monotonic() - back > 60:
                recovery = 60.0
                break
            await asyncio.sleep(0.05)
            recovery = self.load.first_success_after(back)
        if "postgres" in name:
            recovery = max(recovery, await self.caught_up(back))
        await asyncio.sleep(3.0)
        after = self.iterations()
        stopped = [job for job in self.job_ids if after[job] <= before[job]]
        self.jobs_killed += len(stopped)
        self.strikes.append(Strike(fault=name, recovery_s=recovery, in_flight=in_flight))
        progress(f"{name:24} recovery {recovery:6.2f} s   in flight {in_flight:4d}   jobs stopped {len(stopped)}")

    async def caught_up(self, since: float) -> float:
        """Seconds from ``since`` until the newest answered invocation is in Postgres."""
        last = next((one for one in reversed(self.load.sent) if one.status == 200), None)
        while time.monotonic() - since < 60:
            if last is not None:
                listed = await self.load.get("/v1/invocations?function=tally&limit=1")
                if listed.status_code == 200 and listed.json()["invocations"] and listed.json()["invocations"][0]["id"] >= last.id:
                    break
            await asyncio.sleep(0.1)
        return time.monotonic() - since

    # ---- the account --------------------------------------------------------------------------------------------------------------------

    async def account(self) -> dict[str, float]:
        """What became of every invocation, at most 60 s after the load ended."""
        accepted = [one for one in self.load.sent if one.status in (200, 202) and one.id]
        until = time.monotonic() + 60
        states: dict[str, str] = {one.id: one.state for one in accepted if one.status == 200}
        open_ = [one.id for one in accepted if one.status == 202]
        while open_ and time.monotonic() < until:
            rest = []
            for id_ in open_:
                answer = await self.load.get(f"/v1/invocations/{id_}")
                state = answer.json().get("state", "") if answer.status_code == 200 else ""
                if state in ("succeeded", "failed", "rejected", "expired", "cancelled"):
                    states[id_] = state
                else:
                    rest.append(id_)
            open_ = rest
            await asyncio.sleep(0.5 if rest else 0)
        differing = 0
        for one in accepted:
            if one.status == 200:
                answer = await self.load.get(f"/v1/invocations/{one.id}/result")
                if answer.status_code == 200 and answer.json().get("output") != one.output:
                    differing += 1
        ran = Counter(int(line) for line in self.tally.read_text().split() if line != "-1")
        doubled_ends = sum(count - 1 for count in self.witness.ends.values() if count > 1)
        doubled_keys = sum(len(one.ids) > 1 for one in self.load.sent)
        counts = Counter(states.values())
        progress(f"sent {len(self.load.sent)}, accepted {len(accepted)}, {dict(counts)}, open {len(open_)}")
        answers = Counter(one.status for one in self.load.sent)
        progress(f"answers by status {dict(sorted(answers.items()))} (0 = connection broke)")
        return {
            "lost": len(open_),
            "doubled": doubled_ends + differing + doubled_keys,
            "executed_twice": sum(count - 1 for count in ran.values() if count > 1),
            "sent": len(self.load.sent),
            "accepted": len(accepted),
            "succeeded": counts["succeeded"],
            "failed": counts["failed"],
            "expired": counts["expired"],
        }


async def _prepare(bench: Bench) -> None:
    load = bench.load
    spec = {
        "slo": {"deadline": "25s"}, "batching": {"max_size": 32}, "scaling": {"max_warm": 2}, "retries": {"max_attempts": 6},
        "limits": {"max_pending": 20000}, "resources": {"gpu_memory": "64MiB"},
        # Sleeping costs a training nothing: what is struck here is no budget.
        "profile": {"run_ms": {1: 300, 32: 300}, "load_ms": 100, "degradation": 0.0},
    }  # fmt: skip
    for name, entrypoint in (("tally", "bench.tally:Tally"), ("devour", "zoo.misbehave:Allocate")):
        body = {"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": name}, "spec": {"entrypoint": entrypoint, **spec}}
        until = time.monotonic() + 60
        while True:
            answer = await load.put(f"/v1/functions/{name}", body)
            if answer.status_code in (200, 201):
                break
            if time.monotonic() > until:
                raise RuntimeError(f"{name} cannot be deployed: {answer.status_code} {answer.text}")
            await asyncio.sleep(0.2)
    for gpu in [g["id"] for g in (await load.get("/v1/gpus")).json()["gpus"]]:
        argv = ["zoo.train", "--model", "deepfm", "--preset", "cpu", "--input-wait", "0.5", "--seconds", "3600"]
        answer = await load.post("/v1/jobs", {"name": f"train-{gpu}", "argv": argv, "gpus": [gpu]})
        if answer.status_code not in (200, 201, 202):
            raise RuntimeError(f"the job cannot be started: {answer.status_code} {answer.text}")
        bench.job_ids.append(answer.json()["id"])
    until = time.monotonic() + 60
    while min(bench.iterations().values()) < 5:
        if time.monotonic() > until:
            raise RuntimeError("the jobs do not iterate")
        await asyncio.sleep(0.1)


async def _run(home: Path, end: local.Endpoints, tally: Path, quick: bool, only: str) -> tuple[dict[str, float], list[Strike]]:
    bench = Bench(home, end, (home / "key").read_text().strip(), tally)
    await _prepare(bench)
    bench.witness.start()
    sending = asyncio.create_task(bench.load.run())
    until = time.monotonic() + 60
    while bench.load.first_success_after(0.0) is None or bench.load.in_flight < 10:
        if time.monotonic() > until:
            raise RuntimeError("nothing succeeds")
        await asyncio.sleep(0.05)
    await asyncio.sleep(3.0)
    for name, fault in bench.matrix(quick):
        if only in name:
            await bench.strike(name, fault)
    await bench.load.finish()
    await sending
    figures = await bench.account()
    bench.witness.stop.set()
    for job in bench.job_ids:
        await bench.load.post(f"/v1/jobs/{job}/stop")
    for job in bench.job_ids:
        while (await bench.load.get(f"/v1/jobs/{job}")).json()["state"] not in ("ended", "lost"):
            await asyncio.sleep(0.1)
    await bench.load.close()
    figures |= {
        "faults": len(bench.strikes),
        "jobs_killed": bench.jobs_killed,
        "worst_recovery_s": max((one.recovery_s for one in bench.strikes), default=0.0),
        "min_in_flight": min((one.in_flight for one in bench.strikes), default=0),
    }
    return figures, bench.strikes


def run(quick: bool = False, only: str = "") -> tuple[dict[str, float], list[Strike]]:
    """Start a platform in a temporary home, strike it, end it. Figures and each strike."""
    with (
        tempfile.TemporaryDirectory(prefix="smore-kills-") as folder,
        tempfile.TemporaryDirectory(prefix="smore-tally-") as shared,
    ):
        home, tally = Path(folder), Path(shared, "tally.txt")
        # Functions are shut in, as anywhere: one folder is theirs too.
        tally.touch()
        tally.chmod(0o666)
        tally.parent.chmod(0o755)
        port = _free_port()
        os.environ |= {
            "SMORE_API__PORT": str(port),
            "SMORE_WORKER__WRITABLE": json.dumps([str(tally.parent)]),
            # Answers are compared with what is stored at the very end.
            "SMORE_QUEUE__SYNC_RESULT_TTL_S": "3600",
            "SMORE_QUEUE__RESULT_TTL_S": "3600",
        }
        end = local.up(home, config=Settings(), partitions=2)
        try:
            return asyncio.run(_run(home, end, tally, quick, only))
        finally:
            local.down(home)
            left = _left_over(home)
            if left:
                progress(f"processes left over: {left}")


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _left_over(home: Path) -> list[str]:
    """Processes that still name this home in their environment or command line: orphans."""
    found = []
    needle = str(home).encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if int(process.name) != os.getpid() and (needle in words or needle in (process / "environ").read_bytes()):
                found.append(f"{process.name}: {words.replace(bytes(1), b' ').decode(errors='replace').strip()}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="each kill once, nothing frozen or away")
    parser.add_argument("--only", default="", help="only faults whose name contains this")
    options = parser.parse_args()
    figures, strikes = run(options.quick, options.only)
    if options.json:
        emit(
            "bench.kills",
            figures,
            strikes=[{"fault": s.fault, "recovery_s": rounded(s.recovery_s), "in_flight": s.in_flight} for s in strikes],
        )
    else:
        print(json.dumps(figures, indent=1))
    sys.exit(1 if figures["lost"] or figures["doubled"] or figures["jobs_killed"] else 0)


if __name__ == "__main__":
    main()
