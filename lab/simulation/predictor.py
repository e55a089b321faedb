"""
What the policy of a run believes: the pair-wise predictor trained on what a profiler measured in its world, and the
weights of Eq. 3 and 4.

As on the platform: a share of all pairs of a training and a function is measured (A6), besides the square of functions
at their smallest batch and a tenth of its other batches (A7); a recipe (``recipes.py``) predicts the rest; the weights
learn from sets of several functions. ``profiler.py`` says what a measurement tells, ``learned.py`` what is made of it.

``exact`` instead takes the true pairs, without noise or prediction.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, get_args

import numpy as np

from lab.simulation import learned, profiler
from lab.simulation.interference import MODELS, decode, encode
from lab.simulation.learned import Measured, PairTable
from lab.simulation.recipes import RECIPES
from lab.simulation.world import Reader, World
from scheduler.policy.degradation import Degradation, PolicyTable

Kind = Literal["sampled", "exact", "none"]
_NUMBERS: Final = {model: number for number, model in enumerate(MODELS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """
    ``kind``: sampled, exact, or none (nothing is known: every degradation as declared). ``fraction`` of the pairs that
    are measured; ``recipe`` of ``recipes.py``; ``updates`` of the weights, 0: they stay one. ``bias``: what
    predicted losses of trainings are multiplied by in the end, so that the closed loop has an error to correct.
    """

    kind: Kind = "sampled"
    fraction: float = 0.2
    recipe: str = "ours"
    updates: int = 3000
    bias: float = 1.0

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Belief":
        """From a preset. Raises BadWorld, which names the field."""
        reader = Reader(document, "predictor")
        belief = cls(
            kind=reader.word("kind", "sampled", get_args(Kind)),  # type: ignore[arg-type]
            fraction=reader.number("fraction", 0.2, 0.01, 1.0),
            recipe=reader.word("recipe", "ours", tuple(RECIPES)),
            updates=reader.whole("updates", 3000, 0, 1_000_000),
            bias=reader.number("bias", 1.0, 0.01, 100.0),
        )
        reader.end()
        return belief


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """
    A :class:`scheduler.policy.degradation.PolicyTable`. ``rmsle``: of the predicted cells against the truth, by direction.
    """

    version: int
    places: Mapping[tuple[str, str], Degradation]
    rmsle: Mapping[str, float]

    def at(self, device: str, sharing_mode: str) -> Degradation | None:
        return self.places.get((device, sharing_mode))


def table(world: World, belief: Belief, seed: int) -> PolicyTable | None:
    """Of all places of a world; the same for the same seed. None for the belief ``none``."""
    if belief.kind == "none":
        return None
    places: dict[tuple[str, str], Degradation] = {}
    errors: dict[str, float] = {}
    for sevenths in sorted({gpu.sevenths for gpu in world.gpus}):
        gpu = next(gpu for gpu in world.gpus if gpu.sevenths == sevenths)
        degradation, rmsle = _place(world, sevenths, belief, seed)
        places[world.device(gpu), world.interference_model.sharing_mode] = replace(
            degradation,
            training=degradation.training * belief.bias,
            training_upper=degradation.training_upper * belief.bias,
        )
        errors |= {f"{direction}.{sevenths}": value for direction, value in rmsle.items()}
    return Tables(version=1, places=places, rmsle=errors)


# Two recipes of each place of a seed, for all configurations of a preset.
@lru_cache(maxsize=8)
def _pair_table(
    document: str,
    sevenths: int,
    extra: tuple[tuple[str, int], ...],
    kind: Kind,
    fraction: float,
    recipe: str,
    seed: int,
) -> tuple[Measured, PairTable]:
    """In an interference model (as JSON), on a slice: the same for all configurations of a preset."""
    measured = profiler.measure(decode(json.loads(document)), sevenths, extra, fraction, kind == "exact", seed)
    return measured, learned.pair_table(measured, recipe, seed)


def _place(world: World, sevenths: int, belief: Belief, seed: int) -> tuple[Degradation, Mapping[str, float]]:
    preset = world.interference_model.preset
    extra = tuple(sorted({(one.model, one.batch * size) for one in world.functions for size in {1, one.max_batch}}))
    document = json.dumps(encode(world.interference_model), sort_keys=True)
    measured, known = _pair_table(document, sevenths, extra, belief.kind, belief.fraction, belief.recipe, seed)
    trainings, functions, cells = measured.trainings, measured.functions, known.cells
    observed = profiler.observe(world, sevenths, measured, belief.updates, seed)
    gamma, alpha, beta = learned.weights(measured, cells, observed, _NUMBERS)
    batches: dict[str, list[tuple[int, int]]] = {}
    for index, (model, batch) in enumerate(functions.names):
        batches.setdefault(f"{model}/{preset}", []).append((batch, index))
    return Degradation(
        trainings={f"{model}/{preset}/training/{batch}": index for index, (model, batch) in enumerate(trainings.names)},
        batches={name: sorted(sizes) for name, sizes in batches.items()},
        training_model=np.array([_NUMBERS[model] for model, _ in trainings.names], np.int64),
        function_model=np.array([_NUMBERS[model] for model, _ in functions.names], np.int64),
        training=cells["training"][0],
        training_upper=cells["training"][1],
        function=cells["function"][0],
        function_upper=cells["function"][1],
        functions=cells["functions"][0],
        functions_upper=cells["functions"][1],
        gamma=gamma,
        alpha=alpha,
        beta=beta,
        gain=learned.gain(measured),
        cost=(cells["training"][0] + cells["function"][0]).mean(axis=0),
    ), known.rmsle
