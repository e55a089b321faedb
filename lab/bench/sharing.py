"""
What sharing GPU instances among trainings is worth: ``python -m lab.bench.sharing --json``.

Two CPU partitions of one core each. Four light trainings, which wait for input during 0.6 of an iteration (in seconds as
profiled), then four heavy ones, which never wait, each of about a minute alone, come at once; their owners say how many
iterations they make, how much memory they need, and a share of 0.5. By turns, each on a platform of its own, the queue is
led by ``sjf`` (nobody shares) and by ``smore-jobs``; at last by ``smore-jobs`` with functions of the zoo beside them under
a steady load. ``--quick``: trainings of a third of the length, one turn.

Trainings that share with nobody in any turn take as long under either setting, so their time tells how fast the machine was
during a turn. A turn in which they took more than 1.1 times what they took in the quickest turn was disturbed from outside
and is made again, at most twice for each setting. Of each setting the quickest turns by this measure count; ``left_out`` is
the number of turns that do not, ``pace`` the slowest turn that counts over the quickest. The time of trainings that share is
not looked at for this.

What pairs cost is told by the degradation table, from the rows of this kind of machine in ``ml/data``. Where there are none
of these trainings, ``lab.measure.profile`` measures them first (nothing else should run meanwhile), and each platform fits a predictor
on what it has measured; the first line on stderr and ``rows`` in the JSON line say which of the two it was.

Figures:

* ``jct_ratio``: mean time from row to end with smore-jobs over that with sjf; ``jct_s.<setting>``.
* ``pair_rmsle``: the table's slowdowns of the pairs that were formed against the measured ones, root mean square of the
  difference of their logarithms; ``pairs``: how many slowdowns that are, two of each pair.
* ``simulated_error``: by how much the simulator (lab/simulation/jobs) errs about the mean completion time with
  smore-jobs, a fraction. It has the table's slowdowns, and the times that the same trainings held a GPU instance with sjf.
* ``host_over_share``: hosts that surely lost more to their guests than their owners allow (the 95 % interval lies above).
* ``worst_job_loss``: what functions cost the training that lost most to them, by its closed windows (a tenth of the time
  is closed in that turn, and the trainings are three times as long); ``judged``: trainings with windows enough to tell.
  ``harvest_s_per_s``: their seconds per second.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from lab.bench.overload.rig import Rig, Served, one_core_partitions
from lab.bench.report import ROOT, emit, end_on_sigterm, progress, rounded
from lab.simulation.jobs.simulator import simulate_jobs
from lab.simulation.jobs.traces import SimulatedJob
from lab.simulation.jobs.world import JobWorld
from ml.learn.learning import Learning
from ml.rows import Solo, read
from scheduler.policy.jobs.knobs import job_setting
from smore.domain.job import OVER, Outcome
from smore.domain.loss import PROBE_SHARE
from smore.postgres.connection import make_engine
from smore.postgres.job_pairs import JobPair
from smore.postgres.jobs import Job, JobStore
from smore.postgres.predictors import Profiles
from smore.process.device_name import cpu_partition, sharing
from smore.process.settings import Settings
from smore.redis.tables import Tables

PARTITIONS: Final = 2
#: Light ones, then heavy ones, as they come: workload → its share of an iteration that waits for input.
WORKLOADS: Final[Mapping[str, float]] = {
    "vgg16/cpu-wait-0.6/training/2": 0.6,
    "bert/cpu-wait-0.6/training/1": 0.6,
    "resnet50/cpu-wait-0/training/2": 0.0,
    "roberta/cpu-wait-0/training/1": 0.0,
}
EACH: Final = 2
SHARE: Final = 0.5
MEMORY: Final = "700MiB"
FUNCTIONS: Final = (Served(model="deepfm", deadline_s=1.0),)
#: Of ``lab.measure.profile``: these trainings and all their pairs, each twice so that the noise is known, and as many pairs with
#: functions as a predictor needs.
PROFILE: Final = (
    *("--device", "cpu", "--window", "3.2", "--solo", "2.5", "--functions", "0", "--several", "0"),
    *("--pairs", "16", "--models", "vgg16,resnet50,bert,deepfm", "--positions", "1", "--order", "pairs"),
    *("--trainings", ",".join(WORKLOADS), "--repeated", "0", "--repeated-trainings", "10", "--times", "2"),
)
#: Of the time that is closed in the turn with functions, the most that the platform allows: windows enough for an estimate.
PROBED_S_PER_S: Final = 0.1
#: Trainings are so many times as long in that turn, for the same reason.
LONGER: Final = 3.0
#: Requests a second of all clients.
RATE: Final = 4.0
_DRIVEN_S: Final = 5.0
_LOOK_S: Final = 0.5
_GIVEN_UP_S: Final = 1800.0
#: A turn is made again where trainings alone took more than so many times what they took in the quickest turn.
DISTURBED: Final = 1.1
#: Turns that are made again, of each setting, at most.
FURTHER: Final = 2
SJF: Final = "sjf"
OWN: Final = "smore-jobs"

Slowdowns = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How long a training is alone, seconds, and how often each setting leads."""

    seconds: float
    turns: int


WHOLE: Final = Size(seconds=60.0, turns=2)
QUICK: Final = Size(seconds=20.0, turns=1)


@dataclass(slots=True)
class Turn:
    """The trainings of one turn in the order in which they came, what pairs cost them, and what functions did."""

    jobs: list[Job] = field(default_factory=list)
    pairs: list[JobPair] = field(default_factory=list)
    #: Of each training with windows enough: the mean loss to functions.
    losses: list[float] = field(default_factory=list)
    harvest_s_per_s: float = 0.0
    #: Told by the table: (training, beside) → slowdown.
    told: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def completion_s(self) -> float:
        return statistics.fmean((job.ended_at or 0.0) - job.created_at for job in self.jobs)

    @property
    def alone_s(self) -> dict[str, float]:
        """Mean seconds on a GPU instance, by workload."""
        times: dict[str, list[float]] = defaultdict(list)
        for job in self.jobs:
            times[job.request.workload].append(job.ran_s)
        return {workload: statistics.fmean(seconds) for workload, seconds in times.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of these trainings alone; ``file``: of all rows, where they were measured first and not shipped."""

    alone: Sequence[Solo]
    file: Path | None = None

    @property
    def origin(self) -> str:
        return "ml/data" if self.file is None else "measured first"


def alone(files: Iterable[Path], place: tuple[str, str]) -> list[Solo] | None:
    """The rows of these trainings alone at a place; None where one of them has none."""
    rows = [
        row
        for path in files
        for row in read(path)
        if isinstance(row, Solo) and row.place.key == place and str(row.workload) in WORKLOADS
    ]
    return rows if WORKLOADS.keys() == {str(row.workload) for row in rows} else None


def rows_of(place: tuple[str, str], core: str, function_nice: int, folder: Path) -> Rows:
    """
    Those of ``ml/data`` if they are of this place, a (device, sharing mode); else those that ``lab.measure.profile`` measures now on a
    core, into a file in ``folder``. Raises SystemExit where it cannot.
    """
    shipped = alone(sorted((ROOT / "ml" / "data").glob("*.jsonl")), place)
    if shipped is not None:
        progress(f"rows: those of {' with '.join(place)} in ml/data")
        return Rows(alone=shipped)
    progress(
        f"rows: ml/data has none of these trainings on {' with '.join(place)}; measuring first, for about six minutes"
    )
    out = folder / "rows.jsonl"
    words = ["--out", str(out), "--cores", core, "--function-nice", str(function_nice), *PROFILE]
    # Its own line of figures is not this benchmark's.
    done = subprocess.run(
        [sys.executable, "-m", "lab.measure.profile", *words], cwd=ROOT, stdout=sys.stderr, check=False
    )
    measured = alone([out], place) if done.returncode == 0 and out.exists() else None
    if measured is None:
        sys.exit(f"sharing: the trainings could not be measured on {' with '.join(place)}")
    return Rows(alone=measured, file=out)


def publish(rig: Rig, engine: Engine, file: Path) -> None:
    """Have the platform import rows and publish a table of them. Raises SystemExit where it makes none."""
    learning = Learning(engine, Tables(rig.redis, rig.prefix))
    # It logs to stdout, which is for the result.
    with redirect_stdout(sys.stderr):
        learning.take_in([file])
        outcome = learning.retrain()
    if outcome.result != "published":
        sys.exit(f"sharing: no degradation table of the rows that were measured: {outcome.reason}")


def turn(setting: str, seconds: float, rows: Rows, *, functions: bool = False) -> Turn:
    """All trainings once on a platform of its own, led by a setting; ``seconds`` that each takes alone."""
    served = FUNCTIONS if functions else ()
    probed = PROBED_S_PER_S if functions else PROBE_SHARE
    environment = {"SMORE_JOBS__POLICY": setting, "SMORE_WORKER__PROBE_SHARE": f"{probed:g}"}
    with (
        tempfile.TemporaryDirectory(prefix="smore-sharing-") as folder,
        Rig(Path(folder, "home"), one_core_partitions()[:PARTITIONS], functions=served, environment=environment) as rig,
    ):
        engine = make_engine(rig.end.postgres_url, "bench", statement_timeout_s=10.0)
        if rows.file is not None:
            publish(rig, engine, rows.file)
        rig.prepare(here=rows.file is None)
        made = Turn()
        gpu = rig.client.gpus()[0]
        place = gpu.device, gpu.sharing_mode
        table = Tables(rig.redis, rig.prefix).current()
        told = table.place(*place) if table is not None else None
        if told is None:
            sys.exit(f"sharing: the degradation table does not hold for {' with '.join(place)}")
        made.told = {(pair.training, pair.beside): 1 + pair.degradation for pair in told.training_pairs()}
        # Lengths are told by the profile, as after `smore profile` here.
        Profiles(engine).add([asdict(row) for row in rows.alone], "imported")
        alone_s = {str(row.workload): row.timing.mean for row in rows.alone}
        if functions:
            rig.warm()
        wait_s = {str(row.workload): row.input_wait_s for row in rows.alone}
        ids = [
            submit(rig, number, workload, round(seconds / alone_s[workload]), wait_s[workload])
            for workload in WORKLOADS
            for number in range(EACH)
        ]
        done = threading.Event()
        driver = threading.Thread(target=drive, args=(rig, made, done)) if functions else None
        if driver is not None:
            driver.start()
        store = JobStore(engine)
        try:
            made.jobs = wait(store, ids)
        finally:
            done.set()
            if driver is not None:
                driver.join()
        for job in made.jobs:
            made.pairs += store.pairs(job.id)
            loss = rig.client.statement(job.id).loss
            if functions and loss is not None:
                made.losses.append(loss)
        engine.dispose()
    shared = len({frozenset((pair.job, pair.other)) for pair in made.pairs})
    progress(f"{setting}{' with functions' if functions else ''}: mean {made.completion_s:.1f} s, {shared} pairs")
    for job in made.jobs:
        progress(f"  {job.request.workload}: waited {job.waited_s:.1f} s, on a GPU instance for {job.ran_s:.1f} s")
    for pair in made.pairs:
        measured = f"{pair.measured:.2f}" if pair.measured is not None else "nothing"
        names = f"{workload_of(made, pair.job)} beside {workload_of(made, pair.other)}"
        progress(f"  {names}: predicted {pair.predicted:.2f}, measured {measured}, held back for {pair.held_s:.1f} s")
    return made


def workload_of(made: Turn, id_: str) -> str:
    return next(job.request.workload for job in made.jobs if job.id == id_)


def submit(rig: Rig, number: int, workload: str, iterations: int, wait_s: float) -> str:
    model, _, _, batch = workload.split("/")
    argv = ["zoo.train", "--model", model, "--preset", "cpu", "--batch", batch, "--device", "cpu"]
    # What an undisturbed training would wait: here two start at once on a core, which disturbs their first iterations.
    argv += ["--input-wait-s", f"{wait_s:.6f}", "--iterations", str(iterations)]
    return rig.client.start_job(
        f"{model}-{number}", argv, workload=workload, memory=MEMORY, iterations=iterations, share=SHARE
    ).id


def wait(store: JobStore, ids: Sequence[str]) -> list[Job]:
    """Until all are over. Raises SystemExit where one does not succeed."""
    until = time.monotonic() + _GIVEN_UP_S
    jobs: list[Job] = []
    while not jobs or any(job.state not in OVER for job in jobs):
        if time.monotonic() > until:
            sys.exit("sharing: the trainings do not end")
        time.sleep(_LOOK_S)
        jobs = [store.get("default", id_) for id_ in ids]
    for job in jobs:
        if job.outcome is not Outcome.SUCCEEDED:
            sys.exit(f"sharing: {job.name} ended as {job.outcome}: {job.reason}")
    return jobs


def drive(rig: Rig, made: Turn, done: threading.Event) -> None:
    """A steady load until the trainings are over."""
    began, ran_s = time.monotonic(), 0.0
    while not done.is_set():
        sent = rig.drive(_DRIVEN_S, rate=RATE)
        ran_s += float(sum(run for run, status in zip(sent.run, sent.status, strict=True) if status == 200))
    made.harvest_s_per_s = ran_s / (time.monotonic() - began)


class Measured:
    """An interference model: what the table says."""

    def __init__(self, told: Slowdowns) -> None:
        self._told = told

    def slowdown(self, job: SimulatedJob, beside: Sequence[SimulatedJob]) -> float:
        return max((self._told.get((job.model, other.model), math.inf) for other in beside), default=1.0)

    def workload(self, job: SimulatedJob) -> str:
        return job.model


def simulated_s(alone_s: Mapping[str, float], made: Turn) -> float:
    """The mean completion time of the set of a turn in the simulator."""
    world = JobWorld(
        name="lab.bench.sharing",
        nodes=1,
        gpus=PARTITIONS,
        device="cpu",
        memory_mib=2048.0,
        interference=Measured(made.told),
        share=SHARE,
    )
    first_at = made.jobs[0].created_at
    jobs = [
        SimulatedJob(
            id=job.id,
            submit_s=job.created_at - first_at,
            gpus=1,
            seconds=alone_s[job.request.workload],
            model=job.request.workload,
            iteration_s=alone_s[job.request.workload] / max(1, job.request.iterations),
            memory_mib=job.request.memory_mib,
        )
        for job in made.jobs
    ]
    result = simulate_jobs(world, jobs, job_setting(OWN), seed=0)
    return statistics.fmean(end - submit for end, submit in zip(result.end_s, result.submit_s, strict=True))


def lone(turns: Iterable[Turn]) -> set[str]:
    """Workloads that share with nobody in any of these turns."""
    found = set(WORKLOADS)
    for one in turns:
        shared = {pair.job for pair in one.pairs} | {pair.other for pair in one.pairs}
        found -= {job.request.workload for job in one.jobs if job.id in shared}
    return found


def lone_s(one: Turn, workloads: Iterable[str]) -> float:
    """Mean seconds that these workloads were on a GPU instance in a turn."""
    return statistics.fmean(one.alone_s[workload] for workload in sorted(workloads))


def by_turns(make: Callable[[str], Turn], count: int) -> tuple[dict[str, list[Turn]], dict[str, float]]:
    """
    The turns of each setting that count, ``count`` of each, and what is said of the others.

    They are made by turns. While the ``count``-th quickest turn of a setting, by trainings that share with nobody, was
    disturbed, the setting has another one, at most ``FURTHER``. Raises SystemExit where every workload shares in some turn.
    """
    turns: dict[str, list[Turn]] = {SJF: [], OWN: []}
    for _ in range(count):
        for setting, made in turns.items():
            made.append(make(setting))

    def paces() -> dict[str, list[float]]:
        workloads = lone(one for made in turns.values() for one in made)
        if not workloads:
            sys.exit("sharing: no training runs alone in every turn, so a disturbed machine cannot be told")
        return {setting: [lone_s(one, workloads) for one in made] for setting, made in turns.items()}

    while True:
        seconds = paces()
        quickest = min(min(each) for each in seconds.values())
        again = [
            setting
            for setting, each in seconds.items()
            if sorted(each)[count - 1] > DISTURBED * quickest and len(each) < count + FURTHER
        ]
        if not again:
            break
        for setting in again:
            progress(f"{setting}: a turn was disturbed from outside; once more")
            turns[setting].append(make(setting))
    kept = {
        setting: sorted(sorted(range(len(each)), key=each.__getitem__)[:count]) for setting, each in seconds.items()
    }
    slowest = max(seconds[setting][index] for setting, indices in kept.items() for index in indices)
    figures = {
        "left_out": float(sum(len(made) - count for made in turns.values())),
        "pace": slowest / quickest,
    }
    return {setting: [turns[setting][index] for index in indices] for setting, indices in kept.items()}, figures


def run(size: Size, rows: Rows) -> dict[str, float]:
    """All figures."""
    turns, controls = by_turns(lambda setting: turn(setting, size.seconds, rows), size.turns)
    with_functions = turn(OWN, LONGER * size.seconds, rows, functions=True)
    completion_s = {setting: statistics.fmean(one.completion_s for one in made) for setting, made in turns.items()}
    alone_s = {
        workload: statistics.fmean(one.alone_s[workload] for one in turns[SJF]) for workload in turns[SJF][0].alone_s
    }
    simulated = statistics.fmean(simulated_s(alone_s, one) for one in turns[OWN])
    pairs = [pair for one in turns[OWN] for pair in one.pairs]
    errors = [
        math.log(pair.measured / pair.predicted)
        for pair in pairs
        if pair.measured is not None and pair.predicted is not None
    ]
    figures = {
        "jct_ratio": completion_s[OWN] / completion_s[SJF],
        **controls,
        "jct_s.sjf": completion_s[SJF],
        "jct_s.smore_jobs": completion_s[OWN],
        "jct_s.functions": with_functions.completion_s,
        "jct_s.simulated": simulated,
        "simulated_error": abs(simulated / completion_s[OWN] - 1),
        "pairs": len(errors),
        "host_over_share": sum(
            not pair.guest and pair.loss_low is not None and pair.loss_low > SHARE
            for pair in [*pairs, *with_functions.pairs]
        ),
        "judged": len(with_functions.losses),
        "harvest_s_per_s": with_functions.harvest_s_per_s,
    }
    if errors:
        figures["pair_rmsle"] = math.sqrt(statistics.fmean(error**2 for error in errors))
    if with_functions.losses:
        figures["worst_job_loss"] = max(with_functions.losses)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="trainings of a third of the length, one turn")
    options = parser.parse_args()
    end_on_sigterm()
    size = QUICK if options.quick else WHOLE
    partitions = one_core_partitions()
    if len(partitions) < PARTITIONS:
        sys.exit(f"sharing: {PARTITIONS} cores are needed")
    worker = Settings().worker
    place = cpu_partition(1), sharing(worker.sharing_mode, worker.function_nice)
    with tempfile.TemporaryDirectory(prefix="smore-sharing-rows-") as folder:
        rows = rows_of(place, partitions[0].device, worker.function_nice, Path(folder))
        figures = run(size, rows)
    if options.json:
        emit("lab.bench.sharing", figures, seconds=size.seconds, turns=size.turns, rows=rows.origin)
    else:
        print(json.dumps({name: rounded(value) for name, value in figures.items()}, indent=1))


if __name__ == "__main__":
    main()
