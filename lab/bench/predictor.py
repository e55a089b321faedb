"""
The degradation table: ``python -m lab.bench.predictor --json [--quick] [--rows FILE ...]``.

From measured rows (by default those of the checkout, ``ml/data/*.jsonl``; of several places the one with the most
pairs) the predictors of the recipe "ours" are fitted. Then 100 trainings and 100 functions are made up around the
measured ones: each is a measured solo row whose sizes (flops, parameters, memory) and times are scaled by log-normal
factors of deviation 0.3, with a batch of its own. 240 of their pairs and 64 pairs of functions count as measured, with
degradations drawn from the measured ones. Times are medians.

Figures:

* ``fit_s``: three predictors with their bounds. ``rebuild_s``: all 100 x 100 pairs predicted and bounded in the three
  directions, put together with what was measured, encoded and checked. ``blob_kib``, ``decode_ms`` (checks included),
  ``arrays_ms`` (as the policy reads it): of that table.
* ``lookup_us_8``, ``lookup_us_1024``: one decision over so many GPU instances from the arrays: expected degradation of
  each training and of the function beside it, bounds of both, and the least impact among those within 10 %.
* ``forest_us_8``, ``forest_us_1024``: the peer, scikit-learn's random forest (the recipe "paper", one for each of the
  two directions, expected values alone), asked a row at a time; for 1,024 it is 128 times the figure for 8.
  ``forest_batch_us_1024``: the same, all rows in one call. ``lookup_ratio_8``, ``lookup_ratio_1024``,
  ``lookup_ratio_batch_1024``: peer / table.
* ``swap_mixtures``: tables that a reader saw and that were never published, while 100 x 100 tables replaced each other
  in a real Redis; ``swap_reads`` in ``swap_published`` publications. ``publish_ms`` and ``read_ms``: with nobody else
  at it, the decoding included.
"""

import argparse
import dataclasses
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import redis
import sklearn  # type: ignore[import-untyped]

from lab.bench import report
from lab.bench.servers import servers
from lab.research.predictor.measured import build, samples
from lab.simulation.recipes import RECIPES, estimator, paper_features
from ml.predict.samples import DIRECTIONS, METRICS, Direction, Floats, Samples
from ml.rows import Colocation, Member, PlaceProfile, Solo, Timing, Workload, degradation, profiles, read
from scheduler.leader.tables import ArrayTable
from smore.messages.degradation import PlaceTable, Table, decode, encode
from smore.redis.tables import Tables

TRAININGS = FUNCTIONS = 100
PAIRS, FUNCTION_PAIRS = 240, 64
INSTANCES = (8, 1024)
#: The degradation budget of a training: 10 %, as docs/paper.md reads section V-A.
ALLOWED = 0.10
SPREAD = 0.3


def _median_s(act: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        act()
        taken.append(time.perf_counter() - begin)
    return median(taken)


# ---- what is measured on ---------------------------------------------------------------------------------------------


def measured(files: Sequence[Path]) -> PlaceProfile:
    """The profile of the device mode with the most pairs. SystemExit without rows."""
    candidates = profiles(row for file in files for row in read(file))
    if not candidates:
        sys.exit("no measured rows: ml/data has none, name a file with --rows")
    return max(candidates, key=lambda profile: sum(row.kind == "pair" for row in profile.colocations))


def made_up(around: PlaceProfile, seed: int = 0) -> PlaceProfile:
    """
    :data:`TRAININGS` + :data:`FUNCTIONS` workloads like the measured ones, some of their pairs measured; see the
    module's docstring.
    """
    generator = random.Random(seed)
    profile = PlaceProfile(place=around.place)
    sides: dict[str, list[Workload]] = {}
    for role, count in (("training", TRAININGS), ("function", FUNCTIONS)):
        originals = sorted(workload for workload in around.solo if workload.role == role)
        made = [_like(around.solo[originals[number % len(originals)]], number, generator) for number in range(count)]
        profile.solo |= {solo.workload: solo for solo in made}
        sides[role] = [solo.workload for solo in made]
    drawn = {direction: _degradations(around, direction) for direction in DIRECTIONS}

    def pair(first: Workload, second: Workload, directions: tuple[Direction, Direction]) -> None:
        members = tuple(
            _member(profile.solo[workload], generator.choice(drawn[direction]))
            for workload, direction in zip((first, second), directions, strict=True)
        )
        profile.colocations.append(
            Colocation(
                place=around.place,
                members=members,
                utilisation=None,
                disturbance=None,
                seconds=1.0,
                at="2026-01-01T00:00:00+00:00",
            )
        )

    for _ in range(PAIRS):
        pair(generator.choice(sides["training"]), generator.choice(sides["function"]), ("training", "function"))
    for _ in range(FUNCTION_PAIRS):
        first, second = generator.sample(sides["function"], 2)
        pair(first, second, ("functions", "functions"))
    return profile


def _like(solo: Solo, number: int, generator: random.Random) -> Solo:
    batch = solo.workload.batch * 1000 + number
    sizes = {
        name: solo.features[name] * generator.lognormvariate(0, SPREAD)
        for name in ("flops", "parameters", "memory_bytes")
    }
    slower = generator.lognormvariate(0, SPREAD)
    return dataclasses.replace(
        solo,
        workload=dataclasses.replace(solo.workload, batch=batch),
        features={**solo.features, **sizes},
        timing=_scaled(solo.timing, slower),
        input_wait_s=solo.input_wait_s * slower,
    )


def _scaled(timing: Timing, by: float) -> Timing:
    return Timing(n=timing.n, mean=timing.mean * by, p50=timing.p50 * by, p95=timing.p95 * by, p99=timing.p99 * by)


def _member(solo: Solo, degraded: float) -> Member:
    return Member(
        workload=solo.workload, timing=_scaled(solo.timing, 1 + degraded), control=solo.timing, solo=solo.timing
    )


def _degradations(profile: PlaceProfile, direction: Direction) -> list[float]:
    kind = "functions" if direction == "functions" else "pair"
    role = "training" if direction == "training" else "function"
    members = [
        member
        for row in profile.colocations
        if row.kind == kind
        for member in row.members
        if member.workload.role == role
    ]
    return [degradation(member, METRICS[direction]) for member in members]


# ---- rebuilding and looking up ---------------------------------------------------------------------------------------


def rebuilding(around: PlaceProfile, made: PlaceProfile, repeats: int) -> tuple[dict[str, float], Table]:
    """Figures of the table's making and reading, and the table."""
    learned = {direction: samples(around, direction, name=direction) for direction in DIRECTIONS}
    report.progress(f"fitting on {', '.join(f'{len(part)} {direction}' for direction, part in learned.items())}")
    begin = time.perf_counter()
    predictors = {direction: RECIPES["ours"].fit(part, 0) for direction, part in learned.items()}
    figures = {"fit_s": time.perf_counter() - begin}
    built: list[Table] = []

    def rebuild() -> None:
        built.append(build([made], {made.place.key: predictors}, version=1, source="bench", created_at=0.0))

    report.progress("rebuilding")
    figures["rebuild_s"] = _median_s(rebuild, repeats)
    raw = encode(built[-1])
    figures["blob_kib"] = len(raw) / 1024
    figures["decode_ms"] = 1e3 * _median_s(lambda: decode(raw), 5 * repeats)
    figures["arrays_ms"] = 1e3 * _median_s(lambda: ArrayTable(built[-1]), 5 * repeats)
    return figures, built[-1]


class Look:
    """Decisions over ``instances`` GPU instances, each with a training of the table."""

    def __init__(self, place: PlaceTable, instances: int, seed: int = 0) -> None:
        shape = len(place.trainings), len(place.functions)
        self._training, self._training_upper, self._function, self._function_upper = (
            np.frombuffer(raw, "<f8").reshape(shape)
            for raw in (place.training, place.training_upper, place.function, place.function_upper)
        )
        generator = np.random.default_rng(seed)
        self.trainings = generator.integers(0, shape[0], instances)
        self.functions: list[int] = generator.integers(0, shape[1], 1000).tolist()

    def decide(self, function: int) -> tuple[int, float]:
        """
        The GPU instance with the least impact among those whose training keeps what it is promised, and the function's
        bound there.
        """
        at = self.trainings
        allowed = self._training_upper[at, function] <= ALLOWED
        impact = np.where(allowed, self._training[at, function] + self._function[at, function], np.inf)
        chosen = int(impact.argmin())
        return chosen, float(self._function_upper[at[chosen], function])

    def seconds(self, repeats: int) -> float:
        def all_of_them() -> None:
            for function in self.functions:
                self.decide(function)

        return _median_s(all_of_them, repeats) / len(self.functions)


def looking_up(around: PlaceProfile, made: PlaceProfile, place: PlaceTable, repeats: int) -> dict[str, float]:
    """The table beside the peer."""
    figures = {f"lookup_us_{count}": 1e6 * Look(place, count).seconds(repeats) for count in INSTANCES}
    report.progress("the peer: scikit-learn's forest")
    forests: list[tuple[Any, Direction]] = []
    for direction in DIRECTIONS[:2]:
        part = samples(around, direction, name=direction)
        forest: Any = estimator("paper", 0)
        forest.fit(paper_features(part), np.maximum(part.target, 0.0))
        forests.append((forest, direction))
    inputs = {count: _inputs(made, count) for count in INSTANCES}

    def a_row_at_a_time(rows: Mapping[Direction, Floats]) -> None:
        for forest, direction in forests:
            for position in range(len(rows[direction])):
                forest.predict(rows[direction][position : position + 1])

    def all_rows_at_once(rows: Mapping[Direction, Floats]) -> None:
        for forest, direction in forests:
            forest.predict(rows[direction])

    few, many = INSTANCES
    figures[f"forest_us_{few}"] = 1e6 * _median_s(lambda: a_row_at_a_time(inputs[few]), repeats)
    figures[f"forest_us_{many}"] = figures[f"forest_us_{few}"] * many / few
    figures[f"forest_batch_us_{many}"] = 1e6 * _median_s(lambda: all_rows_at_once(inputs[many]), repeats)
    for count in INSTANCES:
        figures[f"lookup_ratio_{count}"] = figures[f"forest_us_{count}"] / figures[f"lookup_us_{count}"]
    figures[f"lookup_ratio_batch_{many}"] = figures[f"forest_batch_us_{many}"] / figures[f"lookup_us_{many}"]
    return figures


def _inputs(made: PlaceProfile, count: int) -> dict[Direction, Floats]:
    """The peer's inputs of one decision over ``count`` GPU instances: rows of 24 numbers, by direction."""
    inputs: dict[Direction, Floats] = {}
    for direction in DIRECTIONS[:2]:
        part: Samples = samples(made, direction, name=direction)
        inputs[direction] = paper_features(part)[np.arange(count) % len(part)]
    return inputs


# ---- swapping --------------------------------------------------------------------------------------------------------


def _uniform(like: PlaceTable, version: int) -> Table:
    """A table in which every number is the version, so a mixture of two versions can be seen."""

    def fill(raw: bytes) -> bytes:
        return np.full(len(raw) // 8, float(version)).astype("<f8").tobytes()

    filled = {name: fill(getattr(like, name)) for name in _matrices(like)}
    return Table(version=version, source="bench", created_at=0.0, places=[msgspec.structs.replace(like, **filled)])


def _matrices(place: PlaceTable) -> Iterable[str]:
    return [name for name in place.__struct_fields__ if name != "measured" and isinstance(getattr(place, name), bytes)]


def _is_whole(table: Table) -> bool:
    place = table.places[0]
    numbers = [np.frombuffer(getattr(place, name), "<f8") for name in _matrices(place)]
    return all((part == table.version).all() for part in numbers)


def swapping(like: PlaceTable, seconds: float, repeats: int) -> dict[str, float]:
    """One thread publishes and one reads, for that long, through connections of their own."""
    report.progress("publishing and reading in a Redis")
    whole = [_uniform(like, version) for version in range(1, 21)]
    with (
        tempfile.TemporaryDirectory(prefix="smore-bench-") as home,
        servers(Path(home)) as urls,
        redis.from_url(urls.redis_url) as mine,
        redis.from_url(urls.redis_url) as other,
    ):
        writer, reader = Tables(mine, "bench:"), Tables(other, "bench:")
        writer.publish(whole[0])
        reads = mixtures = 0
        stop = threading.Event()

        def look() -> None:
            nonlocal reads, mixtures
            while not stop.is_set():
                table = reader.current()
                reads += 1
                mixtures += table is None or not _is_whole(table)

        thread = threading.Thread(target=look)
        thread.start()
        published, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            writer.publish(whole[published % len(whole)])
            published += 1
        stop.set()
        thread.join()
        return {
            "swap_reads": reads,
            "swap_published": published,
            "swap_mixtures": mixtures,
            "publish_ms": 1e3 * _median_s(lambda: writer.publish(whole[0]), 5 * repeats),
            "read_ms": 1e3 * _median_s(reader.current, 5 * repeats),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.predictor", description="The degradation table; see the module's docstring."
    )
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="few repeats, one second of swapping")
    parser.add_argument("--rows", type=Path, nargs="+", help="files of measured rows instead of the checkout's")
    options = parser.parse_args(arguments)
    repeats = 3 if options.quick else 9
    around = measured(options.rows or sorted((report.ROOT / "ml" / "data").glob("*.jsonl")))
    made = made_up(around)
    figures, table = rebuilding(around, made, repeats)
    figures |= looking_up(around, made, table.places[0], repeats)
    figures |= swapping(table.places[0], 1.0 if options.quick else 5.0, repeats)
    if options.json:
        report.emit(
            "predictor",
            figures,
            place=list(around.place.key),
            measured={"solo": len(around.solo), "colocations": len(around.colocations)},
            made_up={
                "trainings": TRAININGS,
                "functions": FUNCTIONS,
                "pairs": PAIRS,
                "function_pairs": FUNCTION_PAIRS,
                "spread": SPREAD,
            },
            peer=f"scikit-learn {sklearn.__version__}, RandomForestRegressor of 200 trees",
        )
    else:
        for name, value in sorted(figures.items()):
            print(f"{name:28}{report.rounded(value):>14g}")
    sys.exit(1 if figures["swap_mixtures"] else 0)


if __name__ == "__main__":
    main()
