"""The platform of ``bench.overload``: its functions and trainings, and the reader of its event stream."""

import json
import os
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import redis

from bench import load
from bench.overload.client import DEADLINE, Load, Sent, drive
from bench.overload.points import Point
from research.compare.live import Calibration, Look
from scheduler.leader.tables import ArrayTable
from smore import local
from smore.domain.loss import Window
from smore.messages import stream
from smore.messages.reports import Report, decode_report
from smore.process.settings import Settings
from smore.redis.fleet import stream_entries
from smore.redis.tables import Tables
from smore_client import ApiError, Client, ClientError

#: Runs of each function alone; seconds that a start may take; the share of time in closed windows.
SOLO_RUNS: Final = 40
PATIENCE_S: Final = 120.0
PROBE_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A function under load: a model of the zoo and the deadline that it gets here, seconds."""

    model: str
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A training beside the functions, at a batch size that was profiled."""

    model: str
    batch: int
    preset: str = "cpu"
    #: The value of ``zoo.train --input-wait``; None = its default.
    input_wait: str | None = None

    @property
    def workload(self) -> str:
        return f"{self.model}/{self.preset}/training/{self.batch}"


#: Small inputs, so that a refusal costs the gateway little; short iterations, so that windows are short.
FUNCTIONS: Final = (
    Served(model="deepfm", deadline_s=0.3),
    Served(model="roberta", deadline_s=0.5),
    Served(model="bert", deadline_s=0.8),
)
TRAININGS: Final = (Trained(model="resnet50", batch=2), Trained(model="vgg16", batch=2))


# ---- what the platform says ------------------------------------------------------------------------------------------
class Witness(threading.Thread):
    """Reads the event stream beside the platform: how invocations ended, and the closed windows of the trainings."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(daemon=True, name="witness")
        self._url, self._prefix = url, prefix
        self._stopped = threading.Event()
        self.settled: list[stream.Settled] = []
        #: Job → its windows by their start.
        self.windows: dict[str, dict[float, Window]] = {}
        #: GPU instance → (epoch seconds, its report).
        self.reports: dict[str, list[tuple[float, Report]]] = {}

    def run(self) -> None:
        client = redis.from_url(self._url, socket_timeout=10)
        cursor = "$"
        while not self._stopped.is_set():
            try:
                answer = client.xread({f"{self._prefix}ev": cursor}, count=2000, block=500)
            except redis.RedisError:
                self._stopped.wait(0.1)
                continue
            for entry, fields in stream_entries(answer):
                cursor = entry
                event = stream.decode(fields[b"e"])
                if isinstance(event, stream.Settled):
                    self.settled.append(event)
                elif isinstance(event, stream.Reported):
                    self._reported(decode_report(event.report))
            # A pause between reads: this process shares the partitions' cores.
            self._stopped.wait(0.2)

    def _reported(self, report: Report) -> None:
        self.reports.setdefault(report.gpu, []).append((report.at, report))
        for job in report.jobs:
            self.windows.setdefault(job.id, {}).update({window.start: window for window in job.windows})

    def stop(self) -> None:
        self._stopped.set()
        self.join(5)

    def within(self, job: str, begin: float, end: float) -> list[Window]:
        """The windows of a training within a time."""
        return [window for window in self.windows.get(job, {}).values() if begin <= window.start and window.end <= end]


# ---- the platform ----------------------------------------------------------------------------------------------------
def one_core_partitions() -> list[local.Partition]:
    """A CPU partition for each core that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    return [local.Partition(gpu=f"cpu{place}", kind="cpu", device=str(core)) for place, core in enumerate(cores)]


class Rig:
    """
    A platform in a temporary home, with functions and trainings, for one ``with``.

    ``preset``: size of the functions; ``environment``: settings of the platform's processes, beyond those of every rig.
    Raises RuntimeError where something does not come up.
    """

    def __init__(
        self,
        home: Path,
        partitions: Sequence[local.Partition],
        *,
        functions: Sequence[Served] = FUNCTIONS,
        preset: str = "cpu",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.home, self.functions = home, functions
        self._partitions, self._preset = partitions, preset
        self._environment = dict(environment or {})
        self._before: dict[str, str] = {}
        #: Name of a training → its id.
        self.jobs: dict[str, str] = {}
        self.hop_s = 0.0

    def __enter__(self) -> Self:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._before = dict(os.environ)
        os.environ.update(
            {"SMORE_API__PORT": str(self.port), "SMORE_WORKER__PROBE_SHARE": f"{PROBE_SHARE:g}", **self._environment}
        )
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        try:
            self.end = local.up(self.home, config=Settings(platform_cores=cores), partitions=self._partitions)
            self.client = Client(self.end.gateway_url, (self.home / "key").read_text().strip())
            self.prefix = Settings().redis.prefix
            self.redis = redis.from_url(self.end.redis_url, socket_timeout=10)
            self.witness = Witness(self.end.redis_url, self.prefix)
            self.witness.start()
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop_training()
            self.witness.stop()
            self.client.close()
            self.redis.close()
        finally:
            self._down()

    def _down(self) -> None:
        local.down(self.home)
        os.environ.clear()
        os.environ.update(self._before)

    def patiently(self, what: str, met: Callable[[], Any]) -> Any:
        """The first truthy value that the callable returns. Raises RuntimeError where none comes in time."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                value = met()
            except (ClientError, redis.RedisError):
                value = None
            if value:
                return value
            if time.monotonic() > until:
                raise RuntimeError(f"{what}: not within {PATIENCE_S:.0f} s; logs are in {self.home / 'logs'}")
            time.sleep(0.2)

    def prepare(self, *, table: bool = True, here: bool = False) -> None:
        """
        Functions deployed and serving, the degradation table published (where ``table``), and nothing learned any more.

        ``here``: the table must hold for these GPU instances; RuntimeError where it does not. Without ``table`` there
        is none: nothing is learned from the start.
        """
        if not table:
            local.stop(self.home, "learn")
        for one in self.functions:
            self.patiently(f"{one.model} deployed", partial(self._deploy, one))
        for one in self.functions:
            self.patiently(f"{one.model} active", partial(self._active, one.model))
        if table:
            tables = Tables(self.redis, self.prefix)
            self.patiently("a degradation table", tables.version)
            if here:
                self._require_place(tables)
            # A fit during a measurement would take the time of a core.
            local.stop(self.home, "learn")

    def _require_place(self, tables: Tables) -> None:
        current = tables.current()
        known = {(place.device, place.sharing_mode) for place in current.places} if current is not None else set()
        for gpu in self.client.gpus():
            if (gpu.device, gpu.sharing_mode) not in known:
                raise RuntimeError(
                    f"the degradation table does not hold for {gpu.device} ({gpu.sharing_mode}): no rows of it in"
                    " ml/data"
                )

    def _deploy(self, one: Served) -> object:
        document = self.document(one)
        try:
            return self.client.deploy(document)
        except ApiError as error:
            if error.status < 500 and error.status not in (409, 429):
                raise RuntimeError(f"{one.model} cannot be deployed: {error}") from error
            return None

    def _active(self, name: str) -> bool:
        return self.client.function(name).revision > 0

    def document(self, one: Served) -> dict[str, Any]:
        """The zoo's function with the deadline here."""
        # Importing the zoo imports torch, which a process that serves nothing need not load.
        from zoo import documents

        found = documents.document(one.model, self._preset)
        spec = found["spec"]
        spec["slo"] = {"deadline": f"{one.deadline_s * 1e3:g}ms"}
        spec["scaling"] |= {"keep_alive": -1}
        spec["limits"] |= {"max_pending": 10_000}
        return found

    def request(self, one: Served, *, deadline_s: float | None = None) -> bytes:
        """One invocation, ready to send; the same input each time, of the tensors that the function takes."""
        rng = np.random.default_rng(0)
        inputs: dict[str, Any] = {}
        for tensor in self.document(one)["spec"]["inputs"]:
            shape = [1, *(size if size > 0 else 1 for size in tensor["shape"][1:])]
            floats = tensor["datatype"].startswith("FP")
            inputs[tensor["name"]] = (
                np.round(rng.normal(scale=0.1, size=shape), 3) if floats else rng.integers(1, 2, size=shape)
            ).tolist()
        body: dict[str, Any] = {"input": inputs}
        if deadline_s is not None:
            body["deadline_ms"] = deadline_s * 1e3
        return load.request_bytes(
            host=f"127.0.0.1:{self.port}",
            path=f"/v1/functions/{one.model}/invocations",
            body=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.client.key}"},
        )

    def drive(
        self,
        seconds: float,
        *,
        rate: float | None = None,
        connections: int = 1,
        seed: int = 0,
        only: Served | None = None,
    ) -> Sent:
        """Load it; ``only``: one function, and with time enough for anything."""
        requests = (
            [self.request(one) for one in self.functions] if only is None else [self.request(only, deadline_s=20.0)]
        )
        return drive(
            Load(
                host="127.0.0.1",
                port=self.port,
                requests=requests,
                seconds=seconds,
                rate=rate,
                connections=connections,
                seed=seed,
            )
        )

    def solo(self) -> dict[str, float]:
        """
        Seconds that one warm invocation of each function takes on a GPU instance: the median of the workers' run times;
        ``hop_s``, what an answer takes beyond its run.

        Also leaves every function warm on every GPU instance.
        """
        found = {}
        hops: list[float] = []
        self.warm()
        for one in self.functions:
            runs: list[float] = []
            while len(runs) < SOLO_RUNS:
                sent = self.drive(1.0, connections=1, only=one)
                good = sent.run[(sent.status == 200) & np.isfinite(sent.run)]
                if not len(good):
                    raise RuntimeError(f"{one.model} gives no good answer: {Counter(sent.status.tolist())}")
                runs += good[1:].tolist()
            hops.append(statistics.median((sent.latency - sent.run)[(sent.status == 200) & np.isfinite(sent.run)]))
            found[one.model] = statistics.median(runs)
        self.hop_s = statistics.fmean(hops)
        return found

    def calibration(self, solo: Mapping[str, float], looks: Sequence["Point"]) -> Calibration:
        """
        What the simulator is told of the devices at hand, the leader's degradation table with it. After :meth:`solo`.
        """
        gpu = self.client.gpus()[0]
        current = Tables(self.redis, self.prefix).current()
        table = ArrayTable(current) if current is not None else None
        return Calibration(
            device=gpu.device,
            sharing_mode=gpu.sharing_mode,
            solo_s=solo,
            network_s=self.hop_s,
            looks=[Look(rate_per_s=look.rate, met=look.met / look.submitted) for look in looks],
            deadline_s={one.model: one.deadline_s for one in self.functions},
            table=table if table is not None and table.at(gpu.device, gpu.sharing_mode) is not None else None,
        )

    def warm(self) -> None:
        """Every function on every GPU instance."""
        for one in self.functions:
            self.client.warm(one.model)
            self.patiently(f"{one.model} warm", partial(self._warm, one.model))

    def _warm(self, name: str) -> bool:
        """Whether the function is warm on every GPU instance."""
        return all(
            any(warm.function.rpartition("/")[2] == name and warm.state != "loading" for warm in gpu.warm)
            for gpu in self.client.gpus()
        )

    def scheduled(self, one: Served) -> bytes:
        """As :meth:`request`, with :data:`DEADLINE` where the schedule puts each invocation's own."""
        return self.request(one, deadline_s=float(DEADLINE) / 1e3)

    def follow(self, schedule: Sequence[tuple[float, int, float]], seconds: float) -> Sent:
        """Send what a schedule says, for ``seconds``; see :class:`Load`."""
        requests = [self.scheduled(one) for one in self.functions]
        return drive(Load(host="127.0.0.1", port=self.port, requests=requests, seconds=seconds, schedule=schedule))

    def train(self, trainings: Sequence[Trained], *, budget: float | None, lasting_s: float) -> None:
        """
        Start one on each of the first GPU instances and wait until the control has a reference: a closed window of
        each.
        """
        device = "cpu" if self._partitions[0].kind == "cpu" else "cuda"
        for training, partition in zip(trainings, self._partitions, strict=False):
            name = f"train-{training.model}"
            if name in self.jobs:
                name += f"-{partition.gpu}"
            argv = [
                "zoo.train",
                "--model",
                training.model,
                "--preset",
                training.preset,
                "--batch",
                str(training.batch),
                "--device",
                device,
                "--seconds",
                f"{lasting_s:.0f}",
                *([] if training.input_wait is None else ["--input-wait", training.input_wait]),
            ]
            self.jobs[name] = self.client.start_job(
                name, argv, [partition.gpu], workload=training.workload, budget=budget
            ).id
        for name, job in self.jobs.items():
            self.patiently(f"the first closed window of {name}", partial(self.witness.windows.get, job))

    def check_training(self) -> None:
        """Raises RuntimeError where a training has ended: without one there is no budget."""
        for name, job in self.jobs.items():
            if (state := self.client.job(job).state) in ("ended", "lost"):
                raise RuntimeError(f"{name} is {state}; logs are in {self.home / 'logs'}")

    def stop_training(self) -> None:
        for job in self.jobs.values():
            self.patiently("the end of a training", partial(self._ended, job))
        self.jobs.clear()

    def _ended(self, job: str) -> bool:
        if self.client.job(job).state in ("ended", "lost"):
            return True
        self.client.stop_job(job)
        return False
