"""
What a decision costs: ``python -m bench.decision --json``.

On the arrays of the policy, without network: one placement (weigh, take the slot, and give it back at the end) among N
GPU instances that each train and run functions, with 8 and with 100 revisions. The paper (section VIII-B): 10 us at 8,
below 1,000 us at 1,024, 100 us with a sample. Medians over rounds, smallest of repetitions: what the code costs, not
what the machine does beside it.

============================== ==================================================================================================
figure                         microseconds
============================== ==================================================================================================
full_us_<n>, full100_us_<n>    one placement, all N weighed, state updates included; with 100 revisions
sampled_us_<n>                 the same by first fit in a sample where one GPU instance in eight accepts
refused_us_<n>                 a sample in which none does (all of d are looked at), no placement
numpy_us_<n>                   the peer: a plain numpy scan of four arrays, without updates and reasons
event_us_8                     an arrival and its end through ``decide``: events in, decisions with reasons out, 8 GPU instances
round100_us, single100_us      one round that places 100 waiting invocations; 100 rounds that place one each (8 GPU instances)
============================== ==================================================================================================
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from bench.report import emit, progress
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
from scheduler.policy.knobs import Knobs, preset
from smore.domain.function import FunctionSpec, Profile
from smore.messages.degradation import PlaceTable, Table

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


def engine(n: int, functions: int, knobs: Knobs, busy: int = 3) -> Engine:
    """
    ``n`` GPU instances, each with a training and ``busy`` batches of others under way, every revision warm everywhere.
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
    events += [report(row, warm) for row in range(n)]
    made.decide(NOW, events)
    for row in range(n):
        for slot in range(busy):
            column = (row + slot) % functions
            demand = made.cluster.demands[column]
            made.cluster.begin(batch(row, column, made.cluster.kind(demand, 1), f"busy-{row}-{slot}"), NOW)
    return made


def report(row: int, warm: Sequence[tuple[str, int, int]]) -> GpuReported:
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
        jobs=1,
        warm=warm,
        device=DEVICE,
        sharing_mode=MODE,
        workloads=[f"t{row % TRAININGS}/s/training/8"],
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


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.decision", description="What a decision costs.")
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON line")
    options = parser.parse_args(arguments)
    figures: dict[str, float] = {}
    full, sampled = preset("smore", fast=False), preset("smore")
    for n in SIZES:
        progress(f"{n} GPU instances")
        made = engine(n, 8, full)
        figures[f"full_us_{n}"] = microseconds(placement(made, fast=False))
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
    if options.json:
        emit("python -m bench.decision --json", figures)
    else:
        for name, value in figures.items():
            print(f"{name:18} {value:10.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
