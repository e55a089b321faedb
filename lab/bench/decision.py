"""
What a decision costs: ``python -m lab.bench.decision --json``.

On the arrays of the policy, without network: one placement (weigh, take the slot, and give it back at the end) among N
GPU instances that each train and run functions, with 8 and with 100 revisions. The paper (section VIII-B): 10 us at 8,
below 1,000 us at 1,024, 100 us with a sample. Medians over rounds, smallest of repetitions: what the code costs, not
what the machine does beside it.

============================== ==================================================================================================
figure                         microseconds
============================== ==================================================================================================
full_us_<n>, full100_us_<n>    one placement, all N weighed, state updates included; with 100 revisions
second_training_<n>            (a ratio) ``full_us_<n>`` where two trainings share each GPU instance, over one on each
sampled_us_<n>                 the same by first fit in a sample where one GPU instance in eight accepts
refused_us_<n>                 a sample in which none does (all of d are looked at), no placement
numpy_us_<n>                   the peer: a plain numpy scan of four arrays, without updates and reasons
event_us_8                     an arrival and its end through ``decide``: events in, decisions with reasons out, 8 GPU instances
round100_us, single100_us      one round that places 100 waiting invocations; 100 rounds that place one each (8 GPU instances)
job_round_ms_64                milliseconds: a job ends, one starts, one comes, and the queue with expected times and reasons is
                               asked for; 64 GPU instances, 100 jobs wait, one of them first by patience
job_round_ms_1024              the same with 1,024 GPU instances, where 500 jobs wait
promised_round_ms_64           ``job_round_ms_64`` where 15 of the jobs that wait have promised ends
promised_round_ms_1024         ``job_round_ms_1024`` where 100 of them have
sim_jobs_per_s                 jobs a second in the simulator (preset jobs-muri, smore-jobs, mean over three windows)
============================== ==================================================================================================
"""

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lab.bench.report import emit, progress
from lab.simulation.jobs.simulator import simulate_jobs
from lab.simulation.jobs.traces import jobs
from lab.simulation.jobs.world import load_job_preset
from scheduler.leader.tables import ArrayTable
from scheduler.policy import kernel
from scheduler.policy.cluster import Batch
from scheduler.policy.engine import Engine
from scheduler.policy.events import (
    Event,
    FunctionKnown,
    GpuReported,
    InvocationArrived,
    InvocationSettled,
    TableUpdated,
)
from scheduler.policy.jobs.core import JobPolicy
from scheduler.policy.jobs.decisions import Start as JobStart
from scheduler.policy.jobs.events import (
    AttemptOver,
    Ended,
    GpuSeen,
    JobSubmitted,
    LimitsChanged,
    ProjectLimit,
    QueueAsked,
)
from scheduler.policy.jobs.knobs import job_setting
from scheduler.policy.jobs.spec import JobSpec
from scheduler.policy.knobs import Knobs, preset
from smore.domain.function import FunctionSpec, Profile
from smore.domain.job import JobRequest
from smore.messages.degradation import PlaceTable, Table
from smore.traces import public

SIZES = (8, 64, 1024, 16384)
DEVICE, MODE = "a GPU", "time-slice"
NOW = 1_000.0
TRAININGS, MODELS = 8, 8


def table() -> ArrayTable:
    """Eight trainings beside eight functions: degradations of a few per cent."""
    random = np.random.default_rng(0)

    def raw(*shape: int) -> bytes:
        return random.uniform(0.005, 0.02, shape).astype("<f8").tobytes()

    place = PlaceTable(
        device=DEVICE,
        sharing_mode=MODE,
        trainings=[f"t{i}/s/training/8" for i in range(TRAININGS)],
        functions=[f"f{i}/s/function/1" for i in range(MODELS)],
        training=raw(TRAININGS, MODELS),
        training_upper=raw(TRAININGS, MODELS),
        function=raw(TRAININGS, MODELS),
        function_upper=raw(TRAININGS, MODELS),
        function_on_function=raw(MODELS, MODELS),
        function_on_function_upper=raw(MODELS, MODELS),
        measured=bytes(TRAININGS * MODELS),
        solo_s=raw(MODELS),
        usage_gain=raw(MODELS),
        degradation=raw(MODELS),
        weights=[],
    )
    return ArrayTable(Table(version=1, source="bench", created_at=0.0, places=[place]))


def engine(n: int, functions: int, knobs: Knobs, busy: int = 3, trainings: int = 1) -> Engine:
    """
    ``n`` GPU instances, each with so many trainings and ``busy`` batches of others under way, every revision warm
    everywhere.
    """
    made = Engine(knobs)
    events: list[Event] = [TableUpdated(table=table())]
    for number in range(functions):
        profile = Profile(
            run_s={1: 0.01}, load_s=1.0, memory_mib=100.0, utilisation=0.02, model=f"f{number % MODELS}/s"
        )
        spec = FunctionSpec(entrypoint="m:C", max_warm=8, max_batch=1, deadline_s=60.0, profile=profile)
        events.append(FunctionKnown(function=f"p/f{number}", revision=1, spec=spec))
    warm = [(f"p/f{number}", 1, 8) for number in range(functions)]
    events += [report(row, warm, trainings) for row in range(n)]
    made.decide(NOW, events)
    for row in range(n):
        for slot in range(busy):
            column = (row + slot) % functions
            demand = made.cluster.demands[column]
            made.cluster.begin(batch(row, column, made.cluster.kind(demand, 1), f"busy-{row}-{slot}"), NOW)
    return made


def report(row: int, warm: Sequence[tuple[str, int, int]], trainings: int = 1) -> GpuReported:
    return GpuReported(
        gpu=f"g{row}",
        boot="b",
        at=NOW,
        slots=8,
        memory_total=80_000.0,
        memory_used=1_000.0,
        memory_idle=0.0,
        utilisation=0.3,
        function_utilisation=0.0,
        jobs=trainings,
        warm=warm,
        device=DEVICE,
        sharing_mode=MODE,
        workloads=[f"t{(row + number) % TRAININGS}/s/training/8" for number in range(trainings)],
    )


def batch(row: int, column: int, kind: int, id_: str) -> Batch:
    return Batch(
        row=row,
        column=column,
        kind=kind,
        run_s=0.01,
        start_at=NOW,
        deadline_at=NOW + 60.0,
        expected_end_at=NOW + 0.01,
        members={id_: 1},
    )


def microseconds(action: Callable[[], object], seconds: float = 0.4) -> float:
    """Of one call: the smallest mean of ten runs that take ``seconds`` together."""
    began = time.perf_counter()
    action()
    count = max(1, int(seconds / 10 / max(1e-7, time.perf_counter() - began)))
    best = math.inf
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(count):
            action()
        best = min(best, (time.perf_counter() - began) / count)
    return best * 1e6


def placement(made: Engine, *, fast: bool) -> Callable[[], object]:
    """Weigh, begin and end one batch of the revisions in turn."""
    cluster, turn, ids = made.cluster, itertools.cycle(range(len(made.cluster.demands))), itertools.count()

    def once() -> None:
        column = next(turn)
        demand = cluster.demands[column]
        kind = cluster.kind(demand, 1)
        weighed = made.placement.weigh(NOW, demand, kind, 1, NOW + 60.0, fast)
        id_ = str(next(ids))
        cluster.begin(batch(weighed.warm, column, kind, id_), NOW)
        cluster.end(id_, 1, NOW)

    return once


def refusal(made: Engine) -> Callable[[], object]:
    demand = made.cluster.demands[0]
    kind = made.cluster.kind(demand, 1)
    return lambda: made.placement.weigh(NOW, demand, kind, 1, NOW, True)


def plain(n: int) -> Callable[[], object]:
    """The peer: what four arrays and numpy make of it."""
    random = np.random.default_rng(0)
    sm, free, training, function = (random.random(n) for _ in range(4))

    def once() -> int:
        open_ = (sm + 0.02 <= 1.0) & (free > 0.1) & (training < 0.9)
        return int(np.argmin(np.where(open_, training + function, np.inf)))

    return once


def one_in_eight(made: Engine) -> None:
    """Only every eighth GPU instance accepts: the others are over their budget."""
    for row in range(len(made.cluster)):
        if row % 8:
            made.cluster.rows[kernel.BUDGET, row] = 0.0


def arrivals(count: int, start: int, now: float) -> list[Event]:
    return [
        InvocationArrived(
            function=f"p/f{number % 8}",
            revision=1,
            id=f"{start + number:08d}",
            attempt=0,
            arrival_at=now,
            deadline_at=now + 60.0,
        )
        for number in range(count)
    ]


def through(made: Engine, count: int) -> Callable[[], object]:
    """``count`` arrivals in one round, then their ends."""
    turn = itertools.count(step=count)

    def once() -> None:
        start = next(turn)
        placed = made.decide(NOW, arrivals(count, start, NOW))
        assert len(placed.decisions) == count
        made.decide(NOW, [InvocationSettled(id=f"{start + number:08d}", attempt=1) for number in range(count)])

    return once


def job_round(n: int, count: int, promised: int = 0) -> Callable[[], object]:
    """
    ``n`` GPU instances in nodes of 8 under as many jobs, ``count`` jobs wait: gangs of 1 to 8, of four projects of which
    one is at its limit; ``promised`` of them are promised an end in 4 to 10 days. Each call ends a job, which another one
    follows, and asks for the queue.
    """
    policy = JobPolicy(job_setting("smore-jobs"))
    draw = np.random.default_rng(0)
    numbers = itertools.count()

    def submitted(size: int, seconds: float, at: float) -> JobSubmitted:
        number = next(numbers)
        spec = JobSpec(
            id=f"j{number:06d}",
            project=f"p{number % 4}",
            name=f"n{number % 9}",
            request=JobRequest(count=size, duration_s=seconds),
        )
        return JobSubmitted(spec=spec, submitted_at=at)

    fleet = [
        GpuSeen(gpu=f"n{row // 8:03d}g{row % 8}", node=f"n{row // 8:03d}", device=DEVICE, memory_mib=80_000.0)
        for row in range(n)
    ]
    limits = {"p3": ProjectLimit(gpus=n // 4)}
    placed = policy.decide(NOW, [*fleet, LimitsChanged(limits=limits), *(submitted(1, 7_200.0, NOW) for _ in range(n))])
    running = [decision.id for decision in placed.decisions if isinstance(decision, JobStart)]
    # One has waited for longer than its patience.
    policy.decide(NOW + 1, [replace(submitted(8, 600.0, NOW + 1), waited_s=1e6)])
    sizes = draw.choice([1, 1, 1, 2, 4, 8], count)
    waiting = [submitted(int(size), float(draw.uniform(600, 90_000)), NOW + 2) for size in sizes[1:]]
    for place in range(promised):
        by = NOW + float(draw.uniform(4, 10)) * 86_400.0
        waiting[place] = replace(waiting[place], promised=by)
    policy.decide(NOW + 2, waiting)
    assert len(policy.queue.latest) == promised
    clock = itertools.count(NOW + 3)

    def once() -> None:
        ended, at = running.pop(0), next(clock)
        over = AttemptOver(id=ended, attempt=1, ended=Ended.SUCCEEDED)
        made = policy.decide(at, [over, submitted(1, 900.0, at), QueueAsked()])
        running.extend(decision.id for decision in made.decisions if isinstance(decision, JobStart))

    return once


def milliseconds(make: Callable[[], Callable[[], object]], calls: int) -> float:
    """
    Of the processor, for one of the first ``calls`` calls of what is made: the smallest median of five rounds, each with
    a new one.
    """
    medians = []
    for _ in range(5):
        action, spent = make(), []
        for _ in range(calls):
            began = time.process_time()
            action()
            spent.append(time.process_time() - began)
        medians.append(statistics.median(spent))
    return min(medians) * 1e3


def simulated_jobs_per_s() -> float:
    """By the processor's time, so that what runs beside it does not count."""
    preset = load_job_preset("jobs-muri")
    traces = [jobs(preset.trace, preset.world.size, seed, (public.BUNDLED,)) for seed in range(3)]
    knobs = job_setting("smore-jobs")
    best = 0.0
    for _ in range(3):
        began = time.process_time()
        for seed, trace in enumerate(traces):
            simulate_jobs(preset.world, trace, knobs, seed=seed)
        best = max(best, sum(map(len, traces)) / (time.process_time() - began))
    return best


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="lab.bench.decision", description="What a decision costs.")
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON line")
    options = parser.parse_args(arguments)
    figures: dict[str, float] = {}
    full, sampled = preset("smore", fast=False), preset("smore")
    for n in SIZES:
        progress(f"{n} GPU instances")
        made = engine(n, 8, full)
        one, two = placement(made, fast=False), placement(engine(n, 8, full, trainings=2), fast=False)
        # By turns, so that a machine that becomes slower does so for both.
        rounds = [(microseconds(one, 0.2), microseconds(two, 0.2)) for _ in range(5)]
        figures[f"full_us_{n}"] = min(alone for alone, _ in rounds)
        figures[f"second_training_{n}"] = statistics.median(beside / alone for alone, beside in rounds)
        figures[f"full100_us_{n}"] = microseconds(placement(engine(n, 100, full), fast=False))
        made = engine(n, 8, sampled)
        one_in_eight(made)
        figures[f"sampled_us_{n}"] = microseconds(placement(made, fast=True))
        figures[f"refused_us_{n}"] = microseconds(refusal(made))
        figures[f"numpy_us_{n}"] = microseconds(plain(n))
    product = preset("smore-product", account_s=1e9)
    made = engine(8, 8, product, busy=0)
    figures["event_us_8"] = microseconds(through(made, 1))
    for row in range(8):
        made.cluster.report(replace(report(row, [(f"p/f{number}", 1, 64) for number in range(8)]), slots=64))
    figures["round100_us"] = microseconds(through(made, 100))
    one = through(made, 1)
    figures["single100_us"] = 100 * microseconds(one)
    progress("trainings")
    figures["job_round_ms_64"] = milliseconds(lambda: job_round(64, 100), 20)
    figures["job_round_ms_1024"] = milliseconds(lambda: job_round(1024, 500), 20)
    figures["promised_round_ms_64"] = milliseconds(lambda: job_round(64, 100, 15), 20)
    figures["promised_round_ms_1024"] = milliseconds(lambda: job_round(1024, 500, 100), 20)
    figures["sim_jobs_per_s"] = simulated_jobs_per_s()
    if options.json:
        emit("python -m lab.bench.decision --json", figures)
    else:
        for name, value in figures.items():
            print(f"{name:22} {value:10.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
