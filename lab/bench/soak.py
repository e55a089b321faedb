"""
Half an hour of mixed load on one platform: which of its resources grow.

``python -m lab.bench.soak --minutes 30 --json`` starts a platform of its own in a temporary home (two CPU partitions, a
training on the first), which keeps results and idempotency keys for five minutes. It sends synchronous, asynchronous,
idempotent (each sent twice) and large requests to four functions. Every few seconds it samples the resident memory of
each process of the platform, the keys in Redis, the files of the home and of /dev/shm, open descriptors and the size of
the database.

Figures:

* ``lost``: accepted invocations that did not end within a minute after the load, or ended otherwise than by success or
  by their deadline. ``doubled``: idempotency keys with two invocations. ``expired``, ``succeeded``, ``accepted``,
  ``sent``.
* ``rss_growth_max`` (of the process that grew most), ``redis_keys_growth``, ``files_growth`` (of the folder or process
  that grew most): the median of the last two minutes over the median of the two minutes before half time, minus one.
* ``bytes_per_invocation``: growth of the database over the accepted invocations.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import redis
from sqlalchemy import Engine, text

from lab.bench.ports import free_port
from lab.bench.report import emit, end_on_sigterm, progress
from smore.local import asking, machine
from smore.postgres.connection import make_engine
from smore.process.settings import Settings

#: Seconds for which results and idempotency keys are kept: less than half of a long run, so that their number has
#: stopped growing by then.
TTL_S: Final = 300
#: Seconds between samples, and the length of a window, whose median counts.
SAMPLE_S: Final = 5.0
WINDOW_S: Final = 120.0
#: Bytes of a large request and of its answer.
LARGE: Final = 200_000
#: The least level that a growth is divided by: one descriptor more than twenty is a connection and no leak.
LEAST_FILES: Final = 100.0
LEAST_KEYS: Final = 100.0
#: Seconds that asynchronous invocations have to end after the load, and that the recorder has to write them down.
PATIENCE_S: Final = 60.0
TERMINAL: Final = frozenset({"succeeded", "failed", "rejected", "expired", "cancelled"})


# ---- the estimate ----------------------------------------------------------------------------------------------------


def growth(
    samples: Sequence[tuple[float, float]], half: float, end: float, *, window: float = WINDOW_S, least: float = 0.0
) -> float:
    """
    Median of the window that ends at ``end`` over the median of the window that ends at ``half``, minus one: 0.05 =
    5 % more.

    ``samples``: (seconds, value). A window has ``window`` seconds, at most the time between ``half`` and ``end``. A
    level below ``least`` counts as ``least``. StatisticsError where a window has no sample.
    """
    window = min(window, end - half)

    def level(until: float) -> float:
        return statistics.median(value for at, value in samples if until - window <= at <= until)

    before = level(half)
    return (level(end) - before) / max(before, least)


def worst_growth(
    series: Mapping[str, Sequence[tuple[float, float]]], half: float, end: float, *, least: float = 0.0
) -> dict[str, float]:
    """The growth of every series that has samples in both windows, the largest first."""
    growths: dict[str, float] = {}
    for name, samples in series.items():
        with contextlib.suppress(statistics.StatisticsError):
            growths[name] = growth(samples, half, end, least=least)
    return dict(sorted(growths.items(), key=lambda item: -item[1]))


# ---- what is sampled -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Samples:
    """Series of (monotonic seconds, value) by name: bytes, numbers."""

    rss: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    files: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    keys: list[tuple[float, float]] = field(default_factory=list)
    database: list[tuple[float, float]] = field(default_factory=list)


class Sampler:
    """Samples the resources of a platform from outside; :meth:`sample` takes some ten milliseconds."""

    def __init__(self, home: Path, end: asking.Endpoints, engine: Engine) -> None:
        self._home, self._engine = home, engine
        self._redis = redis.from_url(end.redis_url, socket_timeout=10)
        self._supervisor = end.supervisor_pid
        self.samples = Samples()

    def sample(self) -> None:
        now, seen = time.monotonic(), self.samples
        for name, process in self._processes().items():
            with contextlib.suppress(psutil.Error):
                seen.rss.setdefault(name, []).append((now, float(process.memory_info().rss)))
                seen.files.setdefault(f"descriptors of {name}", []).append((now, float(process.num_fds())))
        seen.files.setdefault("home", []).append((now, float(_files(self._home))))
        seen.files.setdefault("/dev/shm", []).append((now, float(_files(Path("/dev/shm")))))  # noqa: S108 - counted, not written
        seen.keys.append((now, float(self._redis.dbsize())))
        with self._engine.connect() as connection:
            size = connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
        seen.database.append((now, float(size)))

    def tables(self) -> dict[str, int]:
        """Bytes of every table, indices included."""
        query = (
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r' AND relnamespace ="
            " 'public'::regnamespace"
        )
        with self._engine.connect() as connection:
            return {str(name): int(size) for name, size in connection.execute(text(query))}

    def recorded(self, invocations: int, since: float) -> None:
        """
        Wait until the recorder has written so many invocations that arrived after ``since`` (epoch seconds) and have
        ended. RuntimeError where it has not within PATIENCE_S.
        """
        until = time.monotonic() + PATIENCE_S
        while (written := self._written(since)) < invocations:
            if time.monotonic() > until:
                raise RuntimeError(f"the history has {written} of {invocations} invocations")
            time.sleep(0.2)

    def _written(self, since: float) -> int:
        query = "SELECT count(*) FROM invocations WHERE finished_at IS NOT NULL AND arrival_at >= to_timestamp(:since)"
        with self._engine.connect() as connection:
            return int(connection.execute(text(query), {"since": since}).scalar_one())

    def _processes(self) -> dict[str, psutil.Process]:
        """
        The processes that live as long as the platform, by name. Runners are left out, because they come and go, and so
        are the backends of Postgres, because their resident memory counts the shared memory of all.
        """
        processes: dict[str, psutil.Process] = {}
        with contextlib.suppress(psutil.Error):
            processes["supervisor"] = psutil.Process(self._supervisor)
        for program in machine.status(self._home):
            if program.pid is None:
                continue
            with contextlib.suppress(psutil.Error, OSError):
                processes[program.name] = psutil.Process(program.pid)
                if program.name.startswith("worker-"):
                    record = json.loads((self._home / "run" / f"{program.name}.json").read_text())
                    processes[f"zygote of {program.name}"] = psutil.Process(record["session"])
        return processes


def _files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


# ---- the load --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Account:
    """The requests of the load and how their invocations ended."""

    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    #: Ends of accepted invocations.
    states: Counter[str] = field(default_factory=Counter)
    #: Accepted invocations whose end was not seen yet, with the time of their answer (monotonic).
    open: dict[str, float] = field(default_factory=dict)
    doubled: int = 0

    @property
    def accepted(self) -> int:
        return sum(self.states.values()) + len(self.open)

    @property
    def lost(self) -> int:
        return self.accepted - self.states["succeeded"] - self.states["expired"]


class Load:
    """
    Open loop at a fixed rate. Of ten requests four are synchronous, three asynchronous, one is large and synchronous,
    two have an Idempotency-Key and are sent again a second later.
    """

    def __init__(self, url: str, key: str, rate: float) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=60.0,
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=64),
        )
        self._rate = rate
        self._large = "x" * LARGE
        self._tasks: set[asyncio.Task[None]] = set()
        self.account = Account()

    async def run(self, seconds: float) -> None:
        following = asyncio.create_task(self._follow())
        begin = time.monotonic()
        for n in range(int(seconds * self._rate)):
            await asyncio.sleep(max(0.0, begin + n / self._rate - time.monotonic()))
            task = asyncio.create_task(self._one(n))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE_S)
        until = time.monotonic() + PATIENCE_S
        while self.account.open and time.monotonic() < until:
            await asyncio.sleep(0.5)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following

    async def _one(self, n: int) -> None:
        kind = n % 10
        self.account.sent += 1
        if kind < 4:
            await self._send("soak-echo" if kind % 2 else "soak-nap", n, {})
        elif kind < 7:
            await self._send("soak-nap" if kind % 2 else "soak-raw", n, {"Prefer": "respond-async"})
        elif kind < 8:
            await self._send("soak-large", n, {})
        else:
            key = {"Idempotency-Key": f"soak-{n}"}
            first = await self._send("soak-echo", n, key)
            await asyncio.sleep(1.0)
            again = await self._send("soak-echo", n, key, counted=False)
            self.account.doubled += bool(first and again and first != again)

    async def _send(self, function: str, n: int, headers: Mapping[str, str], counted: bool = True) -> str:
        """The id of the invocation, '' where none was made. Only ``counted`` requests go into :attr:`account`."""
        given: Any = {"n": n, "file": os.devnull, "s": 0.02}
        if function == "soak-large":
            given = {"n": n, "text": self._large}
        try:
            answer = await self._http.post(
                f"/v1/functions/{function}/invocations",
                json={"input": given, "deadline_ms": 30_000},
                headers=dict(headers),
            )
            answered = answer.json()
        except (httpx.HTTPError, ValueError):
            self.account.statuses[0] += 1
            return ""
        self.account.statuses[answer.status_code] += 1
        id_ = str(answered.get("id") or answered.get("invocation_id") or "")
        if not id_ or not counted:
            return id_
        state = answered.get("state") or ("succeeded" if answer.status_code == 200 else "")
        if state in TERMINAL:
            self.account.states[state] += 1
        else:
            self.account.open[id_] = time.monotonic()
        return id_

    async def _follow(self) -> None:
        """Ask once a second how the open invocations ended."""
        while True:
            await asyncio.sleep(1.0)
            young = time.monotonic() - 1.0
            for id_ in [id_ for id_, at in self.account.open.items() if at < young][:200]:
                with contextlib.suppress(httpx.HTTPError, ValueError):
                    state = (await self._http.get(f"/v1/invocations/{id_}")).json().get("state")
                    if state in TERMINAL:
                        self.account.states[state] += 1
                        del self.account.open[id_]

    async def deploy(self) -> None:
        specs: dict[str, dict[str, Any]] = {
            "soak-echo": {"entrypoint": "lab.bench.functions:Echo"},
            "soak-raw": {"entrypoint": "lab.bench.functions:Echo"},
            "soak-large": {"entrypoint": "lab.bench.functions:Echo"},
            "soak-nap": {
                "entrypoint": "lab.bench.tally:Tally",
                "profile": {"run_ms": {1: 20, 16: 20}, "load_ms": 100, "degradation": 0.0},
            },
        }
        common = {"resources": {"gpu_memory": "64MiB"}, "batching": {"max_size": 16}, "slo": {"deadline": "30s"}}
        for name, spec in specs.items():
            body = {"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": name}, "spec": common | spec}
            await self._until(lambda name=name, body=body: self._http.put(f"/v1/functions/{name}", json=body), 180.0)  # type: ignore[misc]
            given = {"n": -1, "file": os.devnull, "s": 0.0}
            await self._until(
                lambda name=name, given=given: self._http.post(
                    f"/v1/functions/{name}/invocations", json={"input": given}
                ),  # type: ignore[misc]
                120.0,
            )
            progress(f"{name} is deployed")

    async def train(self, gpu: str) -> str:
        argv = ["zoo.train", "--model", "deepfm", "--preset", "cpu", "--input-wait", "0.5", "--seconds", "86400"]
        answer = await self._until(
            lambda: self._http.post("/v1/jobs", json={"name": "soak", "argv": argv, "gpus": [gpu]}), 60.0
        )
        return str(answer.json()["id"])

    async def stop(self, job: str) -> None:
        """End the training and see it end, so that nothing of it outlives the platform."""
        await self._http.post(f"/v1/jobs/{job}/stop")
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if (await self._http.get(f"/v1/jobs/{job}")).json().get("state") in ("ended", "lost"):
                return
            await asyncio.sleep(0.2)

    async def _until(self, ask: Callable[[], Any], seconds: float) -> httpx.Response:
        """Ask until the answer is good. RuntimeError with the last one when that takes longer."""
        until, problem = time.monotonic() + seconds, "no answer"
        while time.monotonic() < until:
            try:
                answer: httpx.Response = await ask()
            except httpx.HTTPError as error:
                problem = repr(error)
            else:
                if answer.is_success:
                    return answer
                problem = f"{answer.status_code} {answer.text[:300]}"
            await asyncio.sleep(0.3)
        raise RuntimeError(f"the platform is not ready for the load: {problem}")

    async def close(self) -> None:
        await self._http.aclose()


# ---- the run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    """``figures`` as in the module's docstring; the growth of each series; bytes of each table per invocation."""

    figures: dict[str, float]
    rss: dict[str, float]
    files: dict[str, float]
    tables: dict[str, float]


async def _soak(load: Load, sampler: Sampler, minutes: float) -> Soaked:
    await load.deploy()
    job = await load.train("cpu0")
    tables, begin, since = await asyncio.to_thread(sampler.tables), time.monotonic(), time.time()
    await asyncio.to_thread(sampler.sample)
    working = asyncio.create_task(load.run(minutes * 60))
    reported = begin
    while time.monotonic() < begin + minutes * 60:
        await asyncio.sleep(SAMPLE_S)
        await asyncio.to_thread(sampler.sample)
        if time.monotonic() - reported > 60:
            reported = time.monotonic()
            seen = sampler.samples
            progress(
                f"{(reported - begin) / 60:5.1f} min  sent {load.account.sent}  open {len(load.account.open)}  keys"
                f" {seen.keys[-1][1]:.0f}  files {seen.files['home'][-1][1]:.0f}  database"
                f" {seen.database[-1][1] / 1e6:.1f} MB  gateway {seen.rss['gateway'][-1][1] / 1e6:.0f} MB"
            )
    end = time.monotonic()
    half = begin + (end - begin) / 2
    await working
    await load.stop(job)
    await asyncio.to_thread(sampler.recorded, load.account.accepted, since)
    await asyncio.to_thread(sampler.sample)
    return _figures(load.account, sampler, tables, half, end)


def _figures(account: Account, sampler: Sampler, before: Mapping[str, int], half: float, end: float) -> Soaked:
    seen, made = sampler.samples, max(account.accepted, 1)
    rss, files = worst_growth(seen.rss, half, end), worst_growth(seen.files, half, end, least=LEAST_FILES)
    progress(
        f"answers by status {dict(sorted(account.statuses.items()))} (0 = connection broke); ends"
        f" {dict(account.states)}"
    )
    figures = {
        "lost": account.lost,
        "doubled": account.doubled,
        "sent": account.sent,
        "accepted": account.accepted,
        "succeeded": account.states["succeeded"],
        "expired": account.states["expired"],
        "rss_growth_max": max(rss.values()),
        "files_growth": max(files.values()),
        "redis_keys_growth": growth(seen.keys, half, end, least=LEAST_KEYS),
        "bytes_per_invocation": (seen.database[-1][1] - seen.database[0][1]) / made,
    }
    grown = {
        name: (size - before.get(name, 0)) / made
        for name, size in sampler.tables().items()
        if size > before.get(name, 0)
    }
    return Soaked(figures=figures, rss=rss, files=files, tables=dict(sorted(grown.items(), key=lambda item: -item[1])))


def run(minutes: float, rate: float) -> Soaked:
    """Start a platform in a temporary home, load it, end it."""
    with tempfile.TemporaryDirectory(prefix="smore-soak-") as folder:
        home = Path(folder)
        os.environ |= {
            "SMORE_API__PORT": str(free_port()),
            "SMORE_QUEUE__RESULT_TTL_S": str(TTL_S),
            "SMORE_QUEUE__SYNC_RESULT_TTL_S": str(TTL_S),
            "SMORE_QUEUE__IDEMPOTENCY_TTL_S": str(TTL_S),
        }
        end = machine.up(home, config=Settings(), partitions=2)
        engine = make_engine(end.postgres_url, "soak")
        try:
            load = Load(end.gateway_url, (home / "key").read_text().strip(), rate)
            return asyncio.run(_closing(load, Sampler(home, end, engine), minutes))
        finally:
            engine.dispose()
            machine.down(home)


async def _closing(load: Load, sampler: Sampler, minutes: float) -> Soaked:
    try:
        return await _soak(load, sampler, minutes)
    finally:
        await load.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    options = parser.parse_args()
    end_on_sigterm()
    soaked = run(options.minutes, options.rate)
    first = dict(list(soaked.files.items())[:10])
    extra = {
        name: {key: round(value, 4) for key, value in series.items()}
        for name, series in (("rss_growth", soaked.rss), ("files_growth_by", first), ("table_bytes", soaked.tables))
    }
    if options.json:
        emit("lab.bench.soak", soaked.figures, **extra)
    else:
        print(json.dumps(soaked.figures | extra, indent=1))
    grown = max(soaked.figures[name] for name in ("rss_growth_max", "redis_keys_growth", "files_growth"))
    sys.exit(1 if soaked.figures["lost"] or soaked.figures["doubled"] or grown > 0.05 else 0)


if __name__ == "__main__":
    main()
