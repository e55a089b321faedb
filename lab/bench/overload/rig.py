"""The platform of ``lab.bench.overload``: its functions and trainings, and the reader of its event stream."""

import json
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import numpy as np
import redis

from lab.bench import load
from lab.bench.overload.client import DEADLINE, Load, Sent, drive
from lab.bench.overload.points import Point
from lab.bench.ports import free_port
from lab.research.compare.live import Calibration, Look
from scheduler.leader.tables import ArrayTable
from smore.domain.loss import ClosedWindow
from smore.local import layout, machine
from smore.messages import stream
from smore.messages.reports import Report, decode_report
from smore.postgres.connection import make_engine
from smore.postgres.predictors import Profiles
from smore.process.settings import Settings
from smore.redis.celery import RETRAIN, message
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
    precedence: bool = False


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


#: Inputs are small, so that a refusal costs the gateway little; iterations are short, so that windows are short.
FUNCTIONS: Final = (
    Served(model="deepfm", deadline_s=0.3),
    Served(model="roberta", deadline_s=0.5),
    Served(model="bert", deadline_s=0.8),
)
TRAININGS: Final = (Trained(model="resnet50", batch=2), Trained(model="vgg16", batch=2))


# ---- the event stream ------------------------------------------------------------------------------------------------
class Witness(threading.Thread):
    """Reads the event stream beside the platform: ends of invocations, reports, and closed windows of trainings."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(daemon=True, name="witness")
        self._url, self._prefix = url, prefix
        self._stopped = threading.Event()
        #: The id of the last entry that was read; "" before the first one.
        self.cursor = ""
        self.settled: list[stream.Settled] = []
        #: The windows of each job by their start.
        self.windows: dict[str, dict[float, ClosedWindow]] = {}
        #: (epoch seconds, report) of each GPU instance.
        self.reports: dict[str, list[tuple[float, Report]]] = {}

    def run(self) -> None:
        client = redis.from_url(self._url, socket_timeout=10)
        while not self._stopped.is_set():
            try:
                answer = client.xread({f"{self._prefix}ev": self.cursor or "0-0"}, count=2000, block=500)
            except redis.RedisError:
                self._stopped.wait(0.1)
                continue
            for entry, fields in stream_entries(answer):
                event = stream.decode(fields[b"e"])
                if isinstance(event, stream.Settled):
                    self.settled.append(event)
                elif isinstance(event, stream.Reported):
                    self._reported(decode_report(event.report))
                self.cursor = entry
            # A pause between reads: this process shares the cores of the partitions.
            self._stopped.wait(0.2)

    def _reported(self, report: Report) -> None:
        self.reports.setdefault(report.gpu, []).append((report.at, report))
        for job in report.jobs:
            self.windows.setdefault(job.id, {}).update({window.start: window for window in job.windows})

    def stop(self) -> None:
        self._stopped.set()
        self.join(5)

    def within(self, job: str, begin: float, end: float) -> list[ClosedWindow]:
        """The windows of a training that lie within [begin, end], epoch seconds."""
        windows = list(self.windows.get(job, {}).values())
        return [window for window in windows if begin <= window.start and window.end <= end]

    def reported_after(self, job: str, at: float) -> bool:
        """Whether a window of the training that began after ``at`` was reported."""
        return any(start > at for start in list(self.windows.get(job, {})))


# ---- the platform ----------------------------------------------------------------------------------------------------
def one_core_partitions() -> list[layout.Partition]:
    """A CPU partition for each core that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    return [layout.Partition(gpu=f"cpu{place}", kind="cpu", device=str(core)) for place, core in enumerate(cores)]


def _entry(id_: str) -> tuple[int, int]:
    """The id of a stream's entry in the order of ids; "" is before all."""
    milliseconds, _, number = id_.partition("-")
    return (int(milliseconds), int(number)) if number else (0, 0)


class Rig:
    """
    A platform in a temporary home, with functions and trainings, as a context manager for one use.

    ``preset``: size of the functions; ``environment``: further settings of the platform's processes.
    Raises RuntimeError where something does not come up.
    """

    def __init__(
        self,
        home: Path,
        partitions: Sequence[layout.Partition],
        *,
        functions: Sequence[Served] = FUNCTIONS,
        preset: str = "cpu",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.home, self.functions = home, functions
        self._partitions, self._preset = partitions, preset
        self._environment = dict(environment or {})
        self._before: dict[str, str] = {}
        self._still = ExitStack()
        #: Ids of the trainings by name.
        self.jobs: dict[str, str] = {}
        self.network_s = 0.0

    def __enter__(self) -> Self:
        self.port = free_port()
        self._before = dict(os.environ)
        os.environ.update(
            {"SMORE_API__PORT": str(self.port), "SMORE_WORKER__PROBE_SHARE": f"{PROBE_SHARE:g}", **self._environment}
        )
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        try:
            self.end = machine.up(self.home, config=Settings(platform_cores=cores), partitions=self._partitions)
            self.client = Client(self.end.gateway_url, (self.home / "key").read_text().strip())
            self.prefix = Settings().redis.prefix
            self.redis = redis.from_url(self.end.redis_url, socket_timeout=10)
            self._profiles = Profiles(make_engine(self.end.postgres_url, "bench"))
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
        self._still.close()
        machine.down(self.home)
        os.environ.clear()
        os.environ.update(self._before)

    def patiently(self, what: str, met: Callable[[], Any]) -> Any:
        """The first truthy value that ``met`` returns. Raises RuntimeError where none comes within PATIENCE_S."""
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
        Deploy the functions and wait until they serve and, with ``table``, until a degradation table is published. No
        predictor is fitted from then on, because a fit would take the time of a core.

        ``here``: RuntimeError where the table does not hold for these GPU instances. Without ``table`` no table is
        published.
        """
        if not table:
            self._still.enter_context(self._profiles.exclusive(wait=True))
        for served in self.functions:
            self.patiently(f"{served.model} deployed", partial(self._deploy, served))
        for served in self.functions:
            self.patiently(f"{served.model} active", partial(self._active, served.model))
        if table:
            tables = Tables(self.redis, self.prefix)
            self.redis.lpush(f"{self.prefix}learn", message(RETRAIN, [True], "learn"))
            self.patiently("a degradation table", tables.version)
            if here:
                self._require_place(tables)
            self._still.enter_context(self._profiles.exclusive(wait=True))

    def _require_place(self, tables: Tables) -> None:
        current = tables.current()
        places = {(place.device, place.sharing_mode) for place in current.places} if current is not None else set()
        for gpu in self.client.gpus():
            if (gpu.device, gpu.sharing_mode) not in places:
                raise RuntimeError(
                    f"the degradation table does not hold for {gpu.device} ({gpu.sharing_mode}): no rows of it in"
                    " ml/data"
                )

    def _deploy(self, served: Served) -> object:
        document = self.document(served)
        try:
            return self.client.deploy(document)
        except ApiError as error:
            if error.status < 500 and error.status not in (409, 429):
                raise RuntimeError(f"{served.model} cannot be deployed: {error}") from error
            return None

    def _active(self, name: str) -> bool:
        return self.client.function(name).revision > 0

    def document(self, served: Served) -> dict[str, Any]:
        """The definition of the zoo's function with the deadline of ``served``."""
        # Importing the zoo imports torch, which a process that serves nothing need not load.
        from zoo import documents

        document = documents.document(served.model, self._preset)
        spec = document["spec"]
        spec["slo"] = {"deadline": f"{served.deadline_s * 1e3:g}ms", "precedence": served.precedence}
        spec["scaling"] |= {"keep_alive": -1}
        spec["limits"] |= {"max_pending": 10_000}
        return document

    def request(self, served: Served, *, deadline_s: float | None = None) -> bytes:
        """The bytes of one invocation; the input is the same each time, in the shapes that the function takes."""
        rng = np.random.default_rng(0)
        inputs: dict[str, Any] = {}
        for tensor in self.document(served)["spec"]["inputs"]:
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
            path=f"/v1/functions/{served.model}/invocations",
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
        """Send a load. ``only``: to one function, with a deadline of 20 s."""
        requests = (
            [self.request(served) for served in self.functions]
            if only is None
            else [self.request(only, deadline_s=20.0)]
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
        The run time of one warm invocation of each function on a GPU instance, seconds: the median of the workers' run
        times. Sets ``network_s``, the mean time of an answer beyond its run.

        Every function is warm on every GPU instance afterwards.
        """
        solo = {}
        beyond: list[float] = []
        self.warm()
        for served in self.functions:
            runs: list[float] = []
            while len(runs) < SOLO_RUNS:
                sent = self.drive(1.0, connections=1, only=served)
                good = sent.run[(sent.status == 200) & np.isfinite(sent.run)]
                if not len(good):
                    raise RuntimeError(f"{served.model} gives no good answer: {Counter(sent.status.tolist())}")
                runs += good[1:].tolist()
            beyond.append(statistics.median((sent.latency - sent.run)[(sent.status == 200) & np.isfinite(sent.run)]))
            solo[served.model] = statistics.median(runs)
        self.network_s = statistics.fmean(beyond)
        return solo

    def calibration(self, solo: Mapping[str, float], looks: Sequence["Point"]) -> Calibration:
        """
        The measured numbers of these devices for the simulator, with the leader's degradation table. After
        :meth:`solo`.
        """
        gpu = self.client.gpus()[0]
        current = Tables(self.redis, self.prefix).current()
        table = ArrayTable(current) if current is not None else None
        return Calibration(
            device=gpu.device,
            sharing_mode=gpu.sharing_mode,
            solo_s=solo,
            network_s=self.network_s,
            looks=[Look(rate_per_s=look.rate, met=look.met / look.submitted) for look in looks],
            deadline_s={served.model: served.deadline_s for served in self.functions},
            table=table if table is not None and table.at(gpu.device, gpu.sharing_mode) is not None else None,
        )

    def warm(self) -> None:
        """Load every function on every GPU instance."""
        for served in self.functions:
            self.client.warm(served.model)
            self.patiently(f"{served.model} warm", partial(self._warm, served.model))

    def _warm(self, name: str) -> bool:
        """Whether the function is warm on every GPU instance."""
        return all(
            any(warm.function.rpartition("/")[2] == name and warm.state != "loading" for warm in gpu.warm)
            for gpu in self.client.gpus()
        )

    def scheduled(self, served: Served) -> bytes:
        """As :meth:`request`, with :data:`DEADLINE` in the place of the deadline."""
        return self.request(served, deadline_s=float(DEADLINE) / 1e3)

    def follow(self, schedule: Sequence[tuple[float, int, float]], seconds: float) -> Sent:
        """Send the requests of a schedule, for ``seconds``; see :class:`Load`."""
        requests = [self.scheduled(served) for served in self.functions]
        return drive(Load(host="127.0.0.1", port=self.port, requests=requests, seconds=seconds, schedule=schedule))

    def train(self, trainings: Sequence[Trained], *, budget: float | None, lasting_s: float) -> None:
        """
        Start a training on each of the first GPU instances and wait for a closed window of each, which the budget
        controller takes as its reference.
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

    def read_events(self) -> None:
        """Wait until the witness has read the events up to now, which include the end of every answered invocation."""
        entries = cast("list[tuple[bytes, Any]]", self.redis.xrevrange(f"{self.prefix}ev", count=1))
        if entries:
            newest = _entry(entries[0][0].decode())
            self.patiently("the event stream", lambda: _entry(self.witness.cursor) >= newest)

    def report_windows(self, until: float) -> None:
        """
        Wait until every window of each training up to ``until`` (epoch seconds) is reported, at most PATIENCE_S. Windows
        are reported in their order, so a window that began later shows that the earlier ones are complete.
        """
        patience = time.monotonic() + PATIENCE_S
        while not all(self.witness.reported_after(job, until) for job in self.jobs.values()):
            if time.monotonic() > patience:
                return
            time.sleep(0.2)

    def check_training(self) -> None:
        """Raises RuntimeError where a training has ended, because budgets hold only beside trainings."""
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
