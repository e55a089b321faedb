"""
Jobs of a run: when each comes, how many GPUs it asks for and how long it runs alone on them.

Readers of the publishers' own CSV files (gzip or not): **Muri** (Philly's times, with models and batches that its authors
assigned), **Pollux** (workloads of 160 jobs by application) and **Philly** itself. **csv** is a file of one's own, by its
``path``: the columns :data:`OWN`, and maybe ``model``, ``batch``, ``project`` and ``memory_mib``; with ``jobs`` each seed has
its own window of so many jobs, else all of them. ``most_gpus``, ``most_h``: jobs that ask for more are cut to it.
``memory_mib``: of jobs of which the trace says nothing of it. ``load``: arrivals are stretched so that the GPU time asked
for is this part of what the cluster has between the first arrival and the last. ``deadline: [1.2, 4]``: each job has one, so many
of its lengths after its arrival, uniform between the two (these by default where ``ask`` is given, 0 too); the part ``ask`` of the
jobs asks for a promise, ``by`` its deadline or the ``earliest`` end that can be promised. What cannot be used raises BadTrace or
BadWorld with file, line and field; a missing file NotFound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from math import exp, log
from pathlib import Path
from random import Random
from typing import Final

from lab.simulation.rows import locate, read_number, read_rows
from lab.simulation.world import Reader, bad
from smore.domain.job import EARLIEST
from smore.traces.recorded import refuse

HOUR_S: Final = 3600.0
KINDS: Final = ("muri", "pollux", "philly", "drawn", "made", "csv")
#: Deadlines of those that ask for a promise, in their lengths, where a trace says nothing of them.
DEADLINE: Final = (1.2, 4.0)
#: Columns of a file of one's own: seconds from the beginning, seconds alone on its GPUs, and how many these are.
OWN: Final = ("submit_s", "duration_s", "gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """
    A job as it is. ``seconds`` alone on its ``gpus``; ``iteration_s`` of one iteration there; ``busy_s``: of these the
    time on CPU, GPU and network, () = the trace says nothing of it; ``memory_mib`` on each GPU, 0 = not known. ``by``: its
    deadline, None = none; ``asks``: for which promise, as JobRequest.by, None = for none.
    """

    id: str
    submit_s: float
    gpus: int
    seconds: float
    model: str = ""
    batch: int = 0
    project: str = "p"
    iteration_s: float = 1.0
    busy_s: tuple[float, ...] = ()
    memory_mib: float = 0.0
    by: float | None = None
    asks: float | None = None


#: Applications of Pollux's workloads: class, and what its own is called by Gavel (model and batch).
CLASSES: Final[Mapping[str, str]] = {
    "cifar10": "small",
    "ncf": "small",
    "deepspeech2": "medium",
    "bert": "medium",
    "yolov3": "large",
    "imagenet": "largest",
}
#: GPU hours of a class (jobs-pollux), and hours of a job (jobs-constant): lengths are log-uniform between the two.
GPU_HOURS: Final[Mapping[str, tuple[float, float]]] = {
    "small": (0.1, 1.0),
    "medium": (1.0, 10.0),
    "large": (10.0, 100.0),
    "largest": (100.0, 300.0),
}
HOURS: Final[Mapping[str, tuple[float, float]]] = {
    "small": (1 / 30, 0.5),
    "medium": (0.5, 3.0),
    "large": (3.0, 12.0),
    "largest": (12.0, 24.0),
}
#: What Muri's authors measured of each model: iteration and busy seconds on one GPU, for traces that name no model.
#: What each needs on a GPU, MiB, by the published scheduler of SJF-BSBF.
MURI_MEMORY_MIB: Final[Mapping[str, float]] = {
    "a2c": 2094,
    "bert": 8058,
    "dqn": 2230,
    "gpt2": 10532,
    "resnet18": 6432,
    "shufflenet_v2_x1_0": 5252,
    "vgg16": 4224,
    "vgg19": 4304,
}
MURI_MODELS: Final = ("a2c", "bert", "dqn", "gpt2", "resnet18", "shufflenet_v2_x1_0", "vgg16", "vgg19")


def jobs(document: Mapping[str, object], gpus: int, seed: int, among: Sequence[Path]) -> list[SimulatedJob]:
    """The jobs that a preset's trace describes for a seed, by arrival; files are looked for in the folders ``among``."""
    reader = Reader(document, "trace")
    kind = reader.word("kind", "made", KINDS)
    count = reader.whole("jobs", 160, 2, 100_000) if kind != "csv" or reader.has("jobs") else 0
    most_gpus, most_s = reader.whole("most_gpus", gpus, 1, 100_000), HOUR_S * reader.number("most_h", 1e6, 0.01, 1e6)
    load = reader.number("load", 0.0, 0.0, 100.0)
    memory_mib = reader.number("memory_mib", 0.0, 0.0, 1e9)
    if kind == "csv":
        path = Path(reader.word("path", ""))
        if not path.is_file():
            raise bad("trace.path", f"there is no file {path}" if path.name else "a trace of the kind csv needs it")
    else:
        path = Path() if kind == "made" else locate(reader.word("file", "").removesuffix(".gz"), among)
    numbers = [int(number) for _, number in reader.items("traces")]
    deadline = [number for _, number in reader.items("deadline")]
    asked = reader.has("ask")
    ask, by = reader.number("ask", 0.0, 0.0, 1.0), reader.word("by", "deadline", ("deadline", "earliest"))
    if deadline and not (len(deadline) == 2 and 1 <= deadline[0] <= deadline[1]):
        raise bad(
            "trace.deadline", f"two numbers from 1 on are expected, the second not below the first, not {deadline}"
        )
    reader.end()
    draw = Random(f"jobs {kind} {seed}")
    if kind == "muri":
        chosen = _window(_muri(path, numbers[seed % len(numbers)]), count, seed // len(numbers), seed)
    elif kind == "csv":
        every = _own(path)
        chosen = _window(every, count, seed, seed) if count else every
    elif kind == "philly":
        every = _philly(path)
        if len(every) < count:
            raise bad("trace.jobs", f"{path.name} has {len(every)} jobs")
        first = draw.randrange(len(every) - count + 1)
        models = {(job.model, job.gpus): job for job in _muri(locate("jobs/muri_traces.csv", among), 2)}
        chosen = [_dealt(job, models, draw) for job in every[first : first + count]]
    elif kind == "pollux":
        workloads = _pollux(path)
        chosen = [
            replace(job, seconds=HOUR_S * _log_uniform(draw, *GPU_HOURS[CLASSES[job.model]]) / min(job.gpus, most_gpus))
            for job in workloads[seed % len(workloads)]
        ]
    else:
        chosen = _drawn(_pollux(path), count, draw) if kind == "drawn" else _made(count, gpus, draw)
    cut = [
        replace(
            job,
            gpus=min(job.gpus, most_gpus),
            seconds=min(job.seconds, most_s),
            memory_mib=job.memory_mib or MURI_MEMORY_MIB.get(job.model, memory_mib),
        )
        for job in chosen
    ]
    stretched = _stretched(cut, gpus, load)
    if not deadline and not asked:
        return stretched
    return [_asking(job, deadline or DEADLINE, ask, by, seed) for job in stretched]


def _asking(job: SimulatedJob, deadline: Sequence[float], ask: float, by: str, seed: int) -> SimulatedJob:
    """With a deadline, and maybe asking for a promise; the draws are the same whatever is asked for."""
    draw = Random(f"deadline {seed} {job.id}")
    until = job.submit_s + draw.uniform(*deadline) * job.seconds
    asks = (until if by == "deadline" else EARLIEST) if draw.random() < ask else None
    return replace(job, by=until, asks=asks)


def _window(every: Sequence[SimulatedJob], count: int, place: int, seed: int) -> Sequence[SimulatedJob]:
    """The jobs of a seed where seeds have windows of a trace one after the other."""
    if (place + 1) * count > len(every):
        raise bad("seeds", f"seed {seed}: the trace has {len(every) // count} windows of {count} jobs")
    return every[place * count : (place + 1) * count]


def _stretched(chosen: Sequence[SimulatedJob], gpus: int, load: float) -> list[SimulatedJob]:
    """From time 0 on, at the offered load; 0 = as they came."""
    first, last = chosen[0].submit_s, chosen[-1].submit_s
    work_s = sum(job.gpus * job.seconds for job in chosen)
    factor = work_s / gpus / load / (last - first) if load and last > first else 1.0
    return [replace(job, submit_s=(job.submit_s - first) * factor) for job in chosen]


@lru_cache(maxsize=4)
def _muri(path: Path, number: int) -> list[SimulatedJob]:
    """One of Muri's traces; times are in ms there."""
    found = []
    names = ("trace", "job_id", "num_gpu", "submit_time", "duration", "model_name", "batch_size", "iteration_time")
    resources = tuple(f"resource_time_{place}" for place in range(3))
    for line, row in read_rows(path, (*names, *resources)):
        if row["trace"] != str(number):
            continue

        def value(field: str, low: float = 0.0, line: int = line, row: Mapping[str, str] = row) -> float:
            return read_number(path, line, field, row[field], low)

        found.append(
            SimulatedJob(
                id=f"j{row['job_id']}",
                submit_s=value("submit_time") / 1e3,
                gpus=int(value("num_gpu", 1.0)),
                seconds=max(1.0, value("duration") / 1e3),
                model=row["model_name"],
                batch=int(value("batch_size", 1.0)),
                iteration_s=value("iteration_time", 0.001) / 1e3,
                busy_s=tuple(value(field) / 1e3 for field in resources),
            )
        )
    if not found:
        raise refuse(path, 0, "trace", f"no job of trace {number}")
    return sorted(found, key=lambda job: job.submit_s)


@lru_cache(maxsize=1)
def _own(path: Path) -> list[SimulatedJob]:
    found = []
    for line, row in read_rows(path, OWN):

        def value(field: str, low: float, line: int = line, row: Mapping[str, str] = row) -> float:
            return read_number(path, line, field, row[field], low) if row.get(field) or field in OWN else 0.0

        gpus = value("gpus", 1.0)
        if gpus != int(gpus):
            raise refuse(path, line, "gpus", f"a whole number is expected, not {row['gpus']!r}")
        found.append(
            SimulatedJob(
                id=f"j{line}",
                submit_s=value("submit_s", 0.0),
                gpus=int(gpus),
                seconds=value("duration_s", 1.0),
                model=row.get("model", ""),
                batch=int(value("batch", 1.0)),
                project=row.get("project") or "p",
                memory_mib=value("memory_mib", 0.0),
            )
        )
    if len(found) < 2:
        raise refuse(path, 0, "file", "at least two jobs are expected")
    return sorted(found, key=lambda job: job.submit_s)


@lru_cache(maxsize=1)
def _philly(path: Path) -> list[SimulatedJob]:
    found = []
    for line, row in read_rows(path, ("timestamp", "duration", "num_gpus", "cluster")):
        try:
            submitted = datetime.fromisoformat(row["timestamp"])
        except ValueError:
            raise refuse(path, line, "timestamp", f"a date and time is expected, not {row['timestamp']!r}") from None
        found.append(
            SimulatedJob(
                id=f"j{line}",
                submit_s=(submitted - datetime(2017, 1, 1)).total_seconds(),
                gpus=int(read_number(path, line, "num_gpus", row["num_gpus"], 1.0)),
                seconds=read_number(path, line, "duration", row["duration"], 1.0),
                project=row["cluster"],
            )
        )
    return sorted(found, key=lambda job: (job.submit_s, job.id))


@lru_cache(maxsize=1)
def _pollux(path: Path) -> list[list[SimulatedJob]]:
    """The workloads, whose jobs have no length yet."""
    workloads: dict[int, list[SimulatedJob]] = {}
    for line, row in read_rows(path, ("workload", "name", "time", "application", "num_replicas", "batch_size")):
        if row["application"] not in CLASSES:
            raise refuse(path, line, "application", f"{row['application']!r} is none of {', '.join(CLASSES)}")
        workload = workloads.setdefault(int(read_number(path, line, "workload", row["workload"], 1.0)), [])
        workload.append(
            SimulatedJob(
                id=row["name"],
                submit_s=read_number(path, line, "time", row["time"]),
                gpus=int(read_number(path, line, "num_replicas", row["num_replicas"], 1.0)),
                seconds=1.0,
                model=row["application"],
                batch=int(read_number(path, line, "batch_size", row["batch_size"], 1.0)),
            )
        )
    return [sorted(workloads[number], key=lambda job: (job.submit_s, job.id)) for number in sorted(workloads)]


def _log_uniform(draw: Random, low: float, high: float) -> float:
    return exp(draw.uniform(log(low), log(high)))


def _dealt(job: SimulatedJob, models: Mapping[tuple[str, int], SimulatedJob], draw: Random) -> SimulatedJob:
    """With the model of another job of as many GPUs, or of the nearest number that there is."""
    model = draw.choice(MURI_MODELS)
    nearest = min((gpus for name, gpus in models if name == model), key=lambda gpus: (abs(gpus - job.gpus), gpus))
    like = models[model, nearest]
    return replace(job, model=model, batch=like.batch, iteration_s=like.iteration_s, busy_s=like.busy_s)


def _drawn(workloads: Sequence[Sequence[SimulatedJob]], count: int, draw: Random) -> list[SimulatedJob]:
    """Applications and numbers of GPUs of ``count`` jobs drawn from all workloads, uniform arrivals."""
    every = [job for workload in workloads for job in workload]
    arrivals = sorted(draw.random() for _ in range(count))
    return [
        replace(job, id=f"j{place}", submit_s=arrival, seconds=HOUR_S * _log_uniform(draw, *HOURS[CLASSES[job.model]]))
        for place, (job, arrival) in enumerate(zip(draw.choices(every, k=count), arrivals, strict=True))
    ]


def _made(count: int, gpus: int, draw: Random) -> list[SimulatedJob]:
    """Without any file: mostly of one GPU, gangs of up to a quarter of them, 2 minutes to 4 hours, two projects."""
    sizes = [1, 1, 1, 2, max(1, gpus // 4)]
    arrivals = sorted(draw.random() for _ in range(count))
    return [
        SimulatedJob(
            id=f"j{place}",
            submit_s=arrival,
            gpus=draw.choice(sizes),
            seconds=HOUR_S * _log_uniform(draw, 1 / 30, 4.0),
            model=draw.choice(MURI_MODELS),
            project=draw.choice("pq"),
        )
        for place, arrival in enumerate(arrivals)
    ]
