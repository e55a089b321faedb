"""
What a profiler would measure in a simulated world. Nothing else tells a policy how workloads interfere.

A profiler reads counters and clocks. Its counter of utilisation is no instrument for the demands of the interference
model: it reads each workload wrong by a factor of its own, for good, in steps of one per cent. A measured degradation
has the noise of one measured row.

The noise of rows is that of repeated rows on the CPU partition (docs/research/predictor.md, noise floor). The counter's
deviation is fitted: with it ``ours`` errs on held-out rows of the world ``digest`` as it does on measured ones, see
:data:`MEASURED_RMSLE`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lab.simulation.counter import read
from lab.simulation.interference import MODELS, BadInterferenceModel, Contention, InterferenceModel, Use
from lab.simulation.learned import Measured, ObservedSet, Pairs, Side
from lab.simulation.world import World, workloads
from ml.predict.samples import SOLO, Direction
from ml.rows import FEATURES
from smore.domain.degradation import K_MAX

Floats = NDArray[np.float64]

#: Directions of the simulated interference. Two trainings on one GPU are simulated elsewhere
#: (lab/simulation/jobs).
SIMULATED: Final[tuple[Direction, ...]] = ("training", "function", "functions")
#: Deviation of one measured row in log space, by direction: repeats of a row (docs/research/predictor.md).
ROW_NOISE: Final[Mapping[Direction, float]] = {"training": 0.049, "function": 0.119, "functions": 0.094}
#: RMSLE of a recipe on measured rows that it had not seen, by direction, with the bounds of 95 % of the splits
#: where they were kept: ``python -m lab.research.predictor.evaluate --json`` (docs/research/predictor.md). Gavel's and ParvaGPU's rows lie
#: between 0.078 and 0.255 (ours).
MEASURED_RMSLE: Final[Mapping[str, Mapping[Direction, tuple[float, float, float]]]] = {
    "ours": {
        "training": (0.047, 0.043, 0.051),
        "function": (0.138, 0.126, 0.157),
        "functions": (0.134, 0.116, 0.163),
    },
    "paper": {
        "training": (0.054, math.nan, math.nan),
        "function": (0.213, math.nan, math.nan),
        "functions": (0.138, math.nan, math.nan),
    },
}


def measure(
    interference_model: InterferenceModel,
    sevenths: int,
    extra: Sequence[tuple[str, int]],
    fraction: float,
    exact: bool,
    seed: int,
) -> Measured:
    """
    Of all trainings that run on a slice and all functions, with the batches ``extra`` besides; a share ``fraction`` of
    the pairs is for learning. ``exact``: all pairs, without noise.
    """
    trainings, places = _trainings(interference_model, sevenths)
    functions = _functions(interference_model, extra)
    bare = interference_model.on(sevenths, None)
    kinds = [bare.kind(*name) for name in functions]
    lost: dict[Direction, Floats] = {
        "training": np.zeros((len(trainings), len(functions))),
        "function": np.zeros((len(trainings), len(functions))),
        "functions": np.array([[bare.slowdowns([one, other])[1][0] - 1.0 for other in kinds] for one in kinds]),
    }
    for i, place in enumerate(places):
        for j, name in enumerate(functions):
            slow, (own,) = place.slowdowns([place.kind(*name)])
            lost["training"][i, j], lost["function"][i, j] = slow - 1.0, own - 1.0
    random = np.random.default_rng([seed, 4])
    known = _known(lost["training"].shape, functions, fraction, random)
    victims = [place.training for place in places if place.training is not None]
    return Measured(
        trainings=_side(interference_model, "training", trainings, victims, seed),
        functions=_side(interference_model, "function", functions, [bare.alone(kind) for kind in kinds], seed),
        pairs={
            direction: Pairs(matrix, np.ones(matrix.shape, bool), 0.0)
            if exact
            else Pairs(
                _noisy(matrix, ROW_NOISE[direction], random),
                known["functions" if direction == "functions" else "pairs"],
                ROW_NOISE[direction],
            )
            for direction, matrix in lost.items()
        },
    )


def observe(world: World, sevenths: int, measured: Measured, count: int, seed: int) -> list[ObservedSet]:
    """``count`` sets of two to K_MAX of the world's functions beside its trainings, as a running platform meets them."""
    pairs = sorted({gpu.training.pair for gpu in world.gpus if gpu.training is not None and gpu.sevenths == sevenths})
    names = sorted({(function.model, function.batch) for function in world.functions})
    if not pairs:
        return []
    random = np.random.default_rng([seed, 5])
    places = [world.interference_model.on(sevenths, pair) for pair in pairs]
    observed = []
    for _ in range(count):
        which, k = int(random.integers(len(pairs))), int(random.integers(2, K_MAX + 1))
        chosen = [names[number] for number in random.integers(len(names), size=k).tolist()]
        slow, own = places[which].slowdowns([places[which].kind(*name) for name in chosen])
        j, noise = int(random.integers(k)), random.standard_normal(2)
        observed.append(
            ObservedSet(
                training=measured.trainings.names.index(pairs[which]),
                functions=tuple(measured.functions.names.index(name) for name in chosen),
                training_lost=slow * math.exp(ROW_NOISE["training"] * noise[0]) - 1.0,
                looked_at=j,
                function_lost=own[j] * math.exp(ROW_NOISE["function"] * noise[1]) - 1.0,
            )
        )
    return observed


def _trainings(interference_model: InterferenceModel, sevenths: int) -> tuple[list[tuple[str, int]], list[Contention]]:
    names: list[tuple[str, int]] = []
    places: list[Contention] = []
    for model in (model for model in MODELS if model in interference_model.demands["training"]):
        for batch in interference_model.batches(model, "training"):
            try:
                places.append(interference_model.on(sevenths, (model, batch)))
            except BadInterferenceModel:
                continue
            names.append((model, batch))
    return names, places


def _functions(interference_model: InterferenceModel, extra: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    sizes = {
        model: set(interference_model.batches(model, "function"))
        for model in MODELS
        if model in interference_model.demands["function"]
    }
    for model, batch in extra:
        sizes[model].add(batch)
    return [(model, batch) for model, batches in sizes.items() for batch in sorted(batches)]


def _side(
    interference_model: InterferenceModel, role: str, names: Sequence[tuple[str, int]], uses: Sequence[Use], seed: int
) -> Side:
    solo = np.full((len(names), len(SOLO)), np.nan)
    for row, (model, batch), use in zip(solo, names, uses, strict=True):
        utilisation, memory_utilisation = read(role, model, batch, (use.u, use.b), seed)
        # Where a device is shared by time, what a training leaves is a wait; on a GPU it is room beside it.
        wait = use.seconds * (1.0 - utilisation) if role == "training" and use.features else 0.0
        known = {
            "utilisation": utilisation,
            "memory_utilisation": memory_utilisation,
            "busy_s": use.seconds - wait,
            "wait_s": wait,
            "mean_s": use.seconds * interference_model.mean,
            "p50_s": use.seconds,
            "p99_s": use.seconds * interference_model.p99,
        }
        for name, value in known.items():
            row[SOLO.index(name)] = value
    features = np.array([_features(interference_model, model, role, batch) for model, batch in names])
    return Side(list(names), features, solo)


def _features(interference_model: InterferenceModel, model: str, role: str, batch: int) -> list[float]:
    measured = interference_model.use(model, role, batch).features
    if measured:
        return list(measured)
    known = workloads()[model]
    affine = {name: known[role][name][0] + known[role][name][1] * batch for name in ("flops", "memory_bytes")}
    return [float(batch if name == "batch" else affine.get(name, known.get(name))) for name in FEATURES]


def _noisy(lost: Floats, noise: float, random: np.random.Generator) -> Floats:
    return np.asarray(np.maximum((1.0 + lost) * np.exp(noise * random.standard_normal(lost.shape)) - 1.0, 0.0))


def _known(
    shape: tuple[int, ...], functions: Sequence[tuple[str, int]], fraction: float, random: np.random.Generator
) -> Mapping[str, NDArray[np.bool_]]:
    """Which cells are measured for learning: a random share of training x function; functions by A7."""
    total = shape[0] * shape[1]
    pairs = np.zeros(total, bool)
    pairs[random.choice(total, max(2, round(fraction * total)), replace=False)] = True
    smallest = np.array([batch == min(size for name, size in functions if name == model) for model, batch in functions])
    among = smallest[:, None] & smallest[None, :]
    rest = np.flatnonzero(~among.ravel())
    tenth = np.zeros(among.size, bool)
    tenth[random.choice(rest, round(0.1 * len(rest)), replace=False)] = True
    return {"pairs": pairs.reshape(shape), "functions": among | tenth.reshape(among.shape)}
