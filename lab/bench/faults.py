"""The faults that ``lab.bench.kills`` injects into a platform. A fault is over when its ``strike`` returns."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import psutil
import redis

from lab.bench import stranger
from lab.bench.disk import Disk, missing
from lab.bench.servers import pid_of, supervisor
from smore.local import asking, machine
from smore.process.settings import Settings
from smore.redis.fleet import Fleet

#: The leader's and a GPU worker's lease, seconds.
LEASE_S: Final = 2.0
#: What the function under load is called.
LOADED: Final = "tally"
PARTITIONS: Final = 2

Pids = Callable[[], Iterable[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    name: str
    strike: Callable[[], Awaitable[None]]
    #: How often it is in the whole matrix, and in the quick one.
    times: int = 1
    quick: int = 0
    #: Why this machine cannot inject it; "" where it can.
    skipped: str = ""
    #: What to do after its recovery was measured.
    repair: Callable[[], Awaitable[None]] | None = None


class Faults:
    """``send(method, path, **arguments of httpx)`` sends a request with the operator's key."""

    def __init__(
        self,
        home: Path,
        end: asking.Endpoints,
        client: "redis.Redis",
        disk: Disk | None,
        send: Callable[..., Coroutine[Any, Any, httpx.Response]],
    ) -> None:
        self._home = home
        self._end = end
        self._redis = client
        self._prefix = Settings().redis.prefix
        self._disk = disk
        self._send = send
        self._sent = 0

    def matrix(self) -> list[Fault]:
        """Every fault, the mildest first."""
        disk = missing() if self._disk is None else ""
        kills: list[tuple[str, Pids]] = [
            ("gateway", lambda: [self.pid("gateway")]),
            ("leader", lambda: [self.leader()]),
            ("worker", lambda: [self.pid("worker-cpu0")]),
            ("runner", lambda: self.runners()[:1]),
            ("redis", lambda: [self.pid("redis")]),
            ("postgres", lambda: [self.pid("postgres")]),
            ("nursery", lambda: [self.pid("nursery")]),
            ("template", lambda: [self.pid("template")]),
        ]
        pairs: list[tuple[str, Pids]] = [
            ("both workers", self.workers),
            ("both zygotes", self.zygotes),
            ("worker and its zygote", lambda: [self.pid("worker-cpu0"), self.zygote_of("worker-cpu0")]),
            ("nursery and both zygotes", lambda: [self.pid("nursery"), *self.zygotes()]),
            ("nursery and both workers", lambda: [self.pid("nursery"), *self.workers()]),
            ("redis and leader", lambda: [self.pid("redis"), self.leader()]),
            ("redis and both workers", lambda: [self.pid("redis"), *self.workers()]),
            ("gateway and redis", lambda: [self.pid("gateway"), self.pid("redis")]),
            ("leader and worker", lambda: [self.leader(), self.pid("worker-cpu0")]),
            ("both schedulers", self.schedulers),
            ("both schedulers and both workers", lambda: [*self.schedulers(), *self.workers()]),
            ("template and both workers", lambda: [self.pid("template"), *self.workers()]),
            ("redis and postgres", lambda: [self.pid("redis"), self.pid("postgres")]),
        ]
        faults = [Fault(name=f"kill {name}", strike=self._killing(pids), times=3, quick=1) for name, pids in kills]
        faults += [Fault(name=f"kill {name}", strike=self._killing(pids), times=2) for name, pids in pairs]
        frozen: list[tuple[str, Pids, float]] = [
            ("leader past its lease", lambda: [self.leader()], 3.5 * LEASE_S),
            ("worker", lambda: [self.pid("worker-cpu0")], 3 * LEASE_S),
            ("runner", lambda: self.runners()[:1], 3 * LEASE_S),
            ("gateway", lambda: [self.pid("gateway")], 3 * LEASE_S),
            ("schedulers and workers", lambda: [*self.schedulers(), *self.workers()], 8.0),
            ("redis", lambda: [self.pid("redis")], 9.0),
        ]
        faults += [
            Fault(name=f"freeze {name}", strike=self._freezing(pids, seconds), times=2)
            for name, pids, seconds in frozen
        ]
        faults += [
            Fault(name="freeze zygotes, kill runners", strike=self._zygotes_frozen, times=2),
            Fault(name="freeze postgres", strike=self._freezing(self.backends, 14.0)),
            Fault(name="redis out of memory", strike=lambda: self._refusing("maxmemory", "1mb", 6.0), times=2, quick=1),
            Fault(
                name="redis refuses every write",
                strike=lambda: self._refusing("min-replicas-to-write", "1", 6.0),
                times=2,
            ),
            Fault(name="redis away", strike=lambda: self._away("redis", 10.0)),
            Fault(name="postgres away", strike=lambda: self._away("postgres", 30.0)),
            Fault(name="postgres connections taken", strike=self._connections_taken),
            Fault(name="gateway without descriptors", strike=self._without_descriptors),
            Fault(name="function allocates without bound", strike=lambda: self._invoke("devour", {"do": "allocate"})),
            Fault(name="function forges a frame", strike=lambda: self._invoke("forge", {"do": "forge"}), times=2),
            Fault(name="training forges its ring", strike=self._ring_forged),
            Fault(name="deploys, kill leader and worker", strike=self._deploying, times=2),
            Fault(name="disk full", strike=self._disk_full, times=2, skipped=disk),
            Fault(name="disk frozen", strike=self._disk_frozen, times=2, skipped=disk),
            Fault(name="kill supervisor", strike=self._killing(lambda: [self.supervisor()]), repair=self._up),
            Fault(name="reboot", strike=self._reboot),
            Fault(name="down, append-only file cut, up", strike=self._cut),
        ]
        return faults

    # ---- processes ---------------------------------------------------------------------------------------------------

    def pid(self, name: str) -> int:
        pid = pid_of(self._home, name)
        if pid is None:
            raise LookupError(f"{name} is not running")
        return pid

    def leader(self) -> int:
        raw = self._redis.get(f"{self._prefix}leader:process")
        assert isinstance(raw, bytes)
        return int(raw.decode().rpartition(":")[2])

    def workers(self) -> list[int]:
        return [self.pid(f"worker-cpu{number}") for number in range(PARTITIONS)]

    def schedulers(self) -> list[int]:
        return [
            program.pid
            for program in machine.status(self._home)
            if program.name.startswith("scheduler") and program.pid
        ]

    def supervisor(self) -> int:
        return int((self._home / "run" / "supervisor.pid").read_text())

    def zygote_of(self, name: str) -> int:
        record = self._home / "run" / f"{name}.json"
        try:
            return int(json.loads(record.read_text())["session"])
        except FileNotFoundError as error:
            raise LookupError(f"{name} has no zygote") from error

    def zygotes(self) -> list[int]:
        return [self.zygote_of(f"worker-cpu{number}") for number in range(PARTITIONS)]

    def importing_s(self) -> float:
        """CPU seconds that the nursery has used so far, 0.0 while it or a zygote is missing."""
        try:
            times = psutil.Process(self.pid("nursery")).cpu_times()
            whole = all(psutil.pid_exists(pid) for pid in self.zygotes())
        except (LookupError, OSError, psutil.Error):
            return 0.0
        return times.user + times.system if whole else 0.0

    def runners(self) -> list[int]:
        """The runners of the function under load. LookupError without one."""
        reports = Fleet(self._redis, self._prefix).reports()
        pids = [
            instance.pid
            for report in reports
            for instance in report.warm
            if instance.function == f"default/{LOADED}" and instance.pid
        ]
        if not pids:
            raise LookupError("no warm instance of the function is reported")
        return pids

    def backends(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.pid("postgres")).children(recursive=True)]

    def trainings(self) -> set[int]:
        return {job.pid for report in Fleet(self._redis, self._prefix).reports() for job in report.jobs if job.pid}

    # ---- strikes -----------------------------------------------------------------------------------------------------

    def _killing(self, pids: Pids) -> Callable[[], Awaitable[None]]:
        async def strike() -> None:
            # All processes are listed before the first one is killed.
            for pid in await self._located(pids):
                os.kill(pid, signal.SIGKILL)

        return strike

    def _freezing(self, pids: Pids, seconds: float) -> Callable[[], Awaitable[None]]:
        async def strike() -> None:
            await self._freeze(await self._located(pids), seconds)

        return strike

    async def _located(self, pids: Pids) -> list[int]:
        """The processes, waited for: one that the fault before has ended may not be reported again yet."""
        until = time.monotonic() + 30
        while True:
            try:
                listed = list(await asyncio.to_thread(pids))
                if listed:
                    return listed
            except (LookupError, psutil.Error, redis.RedisError):
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(0.1)

    async def _freeze(self, pids: Iterable[int], seconds: float) -> None:
        stopped = list(pids)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    async def _zygotes_frozen(self) -> None:
        """No instance is warm, and no runner can be started."""
        zygotes, runners = await self._located(self.zygotes), await self._located(self.runners)
        for pid in runners:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._freeze(zygotes, 8.0)

    async def _away(self, name: str, seconds: float) -> None:
        await asyncio.to_thread(supervisor(self._home).stop, name)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(supervisor(self._home).start, name)

    async def _refusing(self, setting: str, value: str, seconds: float) -> None:
        """Redis reads and refuses writes; meanwhile requests try to write."""
        before = str(self._redis.config_get(setting)[setting])
        self._redis.config_set(setting, value)
        try:
            await self._meddle(seconds)
        finally:
            self._redis.config_set(setting, before)

    async def _disk_full(self) -> None:
        assert self._disk is not None
        await asyncio.to_thread(self._disk.fill)
        try:
            await self._meddle(20.0)
        finally:
            await asyncio.to_thread(self._disk.empty)

    async def _disk_frozen(self) -> None:
        assert self._disk is not None
        await asyncio.to_thread(self._disk.freeze)
        try:
            await asyncio.sleep(9.0)
        finally:
            await asyncio.to_thread(self._disk.thaw)

    async def _meddle(self, seconds: float) -> None:
        """Send other writes once a second; their answers count like all others."""
        until = time.monotonic() + seconds
        job = {"name": "refused", "argv": ["zoo.train", "--model", "deepfm", "--preset", "cpu", "--seconds", "1"]}
        while time.monotonic() < until:
            self._sent += 1
            attempts = (
                ("POST", "/v1/jobs", job),
                ("PUT", f"/v1/functions/late-{self._sent}", _function(f"late-{self._sent}")),
                ("PUT", "/v1/secrets/late", {"value": "1"}),
                ("GET", "/readyz", None),
                ("GET", "/v1/jobs", None),
            )
            for method, path, body in attempts:
                with contextlib.suppress(httpx.HTTPError):
                    await self._send(method, path, json=body, timeout=5)
            await asyncio.sleep(max(0.0, min(1.0, until - time.monotonic())))

    async def _ring_forged(self) -> None:
        """A training's file of steps holds what no loop writes, while others write and read."""
        ring = min((self._home / "run" / "jobs").glob("*.track"))
        meddling = asyncio.create_task(self._meddle(6.0))
        while not meddling.done():
            for forge in (stranger.count, stranger.length, stranger.durations):
                forge(ring)
            await asyncio.sleep(0.2)
        await meddling
        # The training itself writes the others again.
        stranger.length(ring, 0)

    async def _connections_taken(self) -> None:
        import psycopg

        plain = self._end.postgres_url.replace("postgresql+psycopg://", "postgresql://", 1)
        held: list[Any] = []
        try:
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    held.append(await asyncio.to_thread(psycopg.connect, plain, connect_timeout=5))
            await self._meddle(8.0)
        finally:
            for connection in held:
                connection.close()

    async def _without_descriptors(self) -> None:
        """The gateway has no file descriptors left while 200 connections arrive."""
        pid, address = self.pid("gateway"), urlsplit(self._end.gateway_url)
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (40, before[1]))
        held: list[socket.socket] = []
        try:
            for _ in range(200):
                connection = socket.socket()
                connection.setblocking(False)
                connection.connect_ex((address.hostname, address.port))
                held.append(connection)
            await self._meddle(6.0)
        finally:
            for connection in held:
                connection.close()
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

    async def _invoke(self, function: str, value: object) -> None:
        """Send one invocation of a hostile function."""
        await self._send(
            "POST", f"/v1/functions/{function}/invocations", json={"input": value}, headers={"Prefer": "respond-async"}
        )

    async def _deploying(self) -> None:
        self._sent += 1
        names = [f"new-{self._sent}-{number}" for number in range(3)]
        deploys = [
            asyncio.create_task(self._send("PUT", f"/v1/functions/{name}", json=_function(name), timeout=60))
            for name in names
        ]
        await asyncio.sleep(0.3)
        for pid in (self.leader(), self.pid("worker-cpu0")):
            os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*deploys, return_exceptions=True)

    async def _up(self) -> None:
        await asyncio.to_thread(machine.up, self._home, config=Settings(), partitions=PARTITIONS)

    async def _reboot(self) -> None:
        """
        SIGTERM to all processes of the platform at once, the supervisor included; trainings have sessions of their own
        and stay.
        """
        session = os.getsid(self.supervisor())
        trainings = self.trainings()
        processes = [
            process
            for process in psutil.process_iter()
            if _session(process.pid) == session and process.pid not in trainings
        ]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        await asyncio.to_thread(psutil.wait_procs, processes, timeout=60)
        await self._up()

    async def _cut(self) -> None:
        """The append-only file ends in the middle of a command."""
        await asyncio.to_thread(machine.down, self._home)
        data = self._home / "redis"
        newest = max((data / "appendonlydir").glob("*.incr.aof"), default=data / "appendonly.aof")
        os.truncate(newest, newest.stat().st_size - 7)
        await self._up()


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _function(name: str) -> dict[str, object]:
    spec = {"entrypoint": "lab.bench.tally:Tally", "slo": {"deadline": "10s"}, "resources": {"gpu_memory": "64MiB"}}
    return {"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": name}, "spec": spec}
