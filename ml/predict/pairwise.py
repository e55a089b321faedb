"""
Predicts the degradation that one neighbour causes: a recipe that learns from measured pairs, fitted predictors with upper
bounds, and their files. What it is compared with is in ``lab/simulation/recipes.py``.

**ours** is a Gaussian process on logarithms. Degradations span orders of magnitude and Eq. 2 compares logarithms, so the
target is ln(1 + degradation). Each side is described by logarithms of table III and by its solo run (:data:`COLUMNS`). The
columns form groups, and each group has its own length scale. The similarity of two workloads is a Matern 3/2 kernel of
their scaled distance. The covariance of two pairs is::

    v k_victim + a k_aggressor + b k_victim k_aggressor + c k_pair + d (linear) + noise

The first two terms are the victim's sensitivity and the aggressor's weight, the third their interaction. The effect of
processor sharing alone (:func:`sharing`) is computed, not learned. Length scales and amplitudes maximise the marginal
likelihood times a prior (Rasmussen and Williams 2006, ch. 5): 48 pairs are too few for a validation set, and the prior
keeps the process from trusting a column that few pairs inform.

**Bounds** are conformal (Vovk et al. 2005; Barber et al. 2021, arXiv:1905.02928): a quantile of the residuals, in log
space, of pairs that were left out. Whole pairs are left out, because repeats of a pair, and its other direction, are
not independent of it. The residuals of any left-out set follow from the inverse covariance (Rasmussen and Williams,
section 5.4.2) and are divided by the process's own deviation, so a bound widens away from measured pairs. For a workload
whose model was not in the training data, the residuals are those of left-out models.

A predictor is stored as arrays and a manifest, never as a pickle: loading a file runs no code from it.
"""

import hashlib
import io
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ml.predict import gaussian
from ml.predict.samples import DIRECTIONS, METRICS, SOLO, Direction, Floats, Ints, Samples
from ml.rows import FEATURES, BadRow

VERSION: Final = 1

#: The side of a pair whose model was not in the training data.
UnseenSide: TypeAlias = Literal["none", "victim", "aggressor", "both"]
UNSEEN: Final[tuple[UnseenSide, ...]] = ("none", "victim", "aggressor", "both")

#: A model with fewer measured pairs than this counts as unseen when a bound is chosen.
KNOWN_PAIRS: Final = 4

#: Where all measured pairs are of this many models or fewer, a bound lies further above the prediction by the factor of
#: its side: the smallest, in steps of a tenth up to 1.5 and of a quarter above, at which 90 % bounds covered 90 % on each
#: kind of public and own rows (docs/research/predictor.md).
FEW_MODELS: Final = 3
WIDER: Final[Mapping[UnseenSide, float]] = {"none": 1.4, "victim": 1.3, "aggressor": 1.1, "both": 1.75}


class BadArtifact(ValueError):
    """A stored predictor that cannot be used: damaged, of another version, or made for other features."""


def log_target(samples: Samples) -> Floats:
    """ln(1 + degradation) [n]; negative degradations (noise) count as 0 (assumption A5)."""
    logs: Floats = np.log1p(np.maximum(samples.target, 0.0))
    return logs


class Model(Protocol):
    """The learned part of a predictor: pure functions of arrays."""

    def log_mean(self, samples: Samples) -> Floats:
        """Predicted :func:`log_target` [n], at least 0."""
        ...

    def spread(self, samples: Samples) -> Floats:
        """The unit of each sample's residual [n], in log space."""
        ...


Scores: TypeAlias = Mapping[UnseenSide, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPredictor:
    """
    A fitted recipe. ``victims`` and ``aggressors``: the models that it was fitted on, by side. ``scores``: residuals of
    left-out pairs in units of the spread, ascending, by the side whose model was left out with them; empty if it was
    fitted without bounds. ``place``: the device and sharing mode of its samples.
    """

    recipe: str
    direction: Direction
    model: Model
    victims: frozenset[str]
    aggressors: frozenset[str]
    scores: Scores
    place: tuple[str, str] | None = None

    def predict(self, samples: Samples) -> Floats:
        """Degradations [n] as fractions, at least 0. Raises BadRow for samples of another direction."""
        self._check(samples)
        fractions: Floats = np.expm1(self.model.log_mean(samples))
        return fractions

    def upper(self, samples: Samples, coverage: float = 0.9) -> Floats:
        """
        Bounds [n], as fractions, that degradations do not exceed with the probability ``coverage``.

        With fewer left-out pairs than 1 / (1 - coverage), the bound uses the largest residual and may cover less.
        """
        self._check(samples)
        if not 0 < coverage < 1:
            raise ValueError(f"a coverage is between 0 and 1, not {coverage}")
        if not len(self.scores.get("none", ())):
            raise ValueError("this predictor was fitted without bounds")
        quantiles = np.array([self._quantile(side, coverage) for side in UNSEEN])
        seen_victim = np.array([name in self.victims for name in samples.victims], bool)
        seen_aggressor = np.array([name in self.aggressors for name in samples.aggressors], bool)
        side = ~seen_victim * UNSEEN.index("victim") + ~seen_aggressor * UNSEEN.index("aggressor")
        bound: Floats = self.model.log_mean(samples) + quantiles[side] * self.model.spread(samples)
        return np.expm1(np.maximum(bound, 0.0))

    def _quantile(self, side: UnseenSide, coverage: float) -> float:
        scores = self.scores.get(side, self.scores["none"])
        return float(scores[min(len(scores), int(np.ceil((len(scores) + 1) * coverage))) - 1])

    def _check(self, samples: Samples) -> None:
        if samples.direction != self.direction:
            raise BadRow(f"a predictor of the direction {self.direction!r} was given {samples.direction!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a predictor is made. ``learn(samples, seed, bounds)`` gives the model and, if ``bounds``, the scores."""

    name: str
    learn: Callable[[Samples, int, bool], tuple[Model, Scores]]

    def fit(
        self, samples: Samples, seed: int = 0, *, bounds: bool = True, place: tuple[str, str] | None = None
    ) -> FittedPredictor:
        """
        Fit. ``bounds=False`` skips the scores, which only :meth:`FittedPredictor.upper` needs. Raises BadRow for fewer
        than two pairs.
        """
        if len(np.unique(samples.pair)) < 2:
            raise BadRow(
                f"{len(np.unique(samples.pair))} pairs of {samples.name or 'samples'}: a predictor needs at least two"
            )
        model, scores = self.learn(samples, seed, bounds)
        return FittedPredictor(
            recipe=self.name,
            direction=samples.direction,
            model=model,
            victims=_well_measured(samples.victims, samples.pair),
            aggressors=_well_measured(samples.aggressors, samples.pair),
            scores=scores,
            place=place,
        )


def _well_measured(models: Sequence[str], pair: Ints) -> frozenset[str]:
    model_pairs = {(name, int(number)) for name, number in zip(models, pair, strict=True)}
    return frozenset(name for name, count in Counter(name for name, _ in model_pairs).items() if count >= KNOWN_PAIRS)


# ----------------------------------------------------------------------------------------------------------------------
# Ours.

#: Candidates for the share of the device that a victim gets while its aggressor is busy; the data choose. None: no
#: sharing term.
SHARES: Final = (None, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)

#: Columns of one side, in groups with one length scale each.
SIDE_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "size": ("ln flops", "ln memory", "ln batch"),
    "architecture": (
        "ln parameters",
        "ln activations",
        "ln conv",
        "ln linear",
        "ln norm",
        "ln relu",
        "ln embedding",
        "ln pooling",
        "ln dropout",
    ),
    "time": ("ln mean",),
    "use": ("utilisation", "memory utilisation", "waiting", "ln median", "ln tail"),
    "kernels": ("ln kernels", "ln kernel mean", "ln kernel longest"),
}
PAIR_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "sharing": ("ln mean sharing", "ln worst sharing"),
    "ratio": ("ln mean ratio",),
}
COLUMNS: Final = (
    *(f"{side}.{name}" for side in ("victim", "aggressor") for names in SIDE_GROUPS.values() for name in names),
    *(name for names in PAIR_GROUPS.values() for name in names),
)


def _side_columns(table: Floats, solo: Floats) -> list[Floats]:
    feature = dict(zip(FEATURES, table.T, strict=True))
    alone = dict(zip(SOLO, solo.T, strict=True))
    columns = {
        "ln flops": np.log1p(feature["flops"]),
        "ln memory": np.log1p(feature["memory_bytes"]),
        "ln mean": np.log(alone["mean_s"]),
        "utilisation": alone["utilisation"],
        "memory utilisation": alone["memory_utilisation"],
        "waiting": alone["wait_s"] / alone["mean_s"],
        "ln median": np.log(alone["p50_s"] / alone["mean_s"]),
        "ln tail": np.log(alone["p99_s"] / alone["mean_s"]),
        "ln kernels": np.log1p(alone["kernels_per_run"]),
        "ln kernel mean": np.log1p(alone["kernel_mean_us"]),
        "ln kernel longest": np.log1p(alone["kernel_longest_us"]),
    }
    counts = {f"ln {name}": np.log1p(feature[name]) for name in FEATURES if f"ln {name}" not in columns}
    return [(columns | counts)[name] for names in SIDE_GROUPS.values() for name in names]


def sharing(victim_solo: Floats, aggressor_solo: Floats, share: float) -> tuple[Floats, Floats]:
    """
    Mean and worst degradation [n] if only the device's time were shared: the victim gets ``share`` of the device while
    the aggressor is busy, and all of it while the aggressor waits for its input; both run without a pause otherwise.
    NaN where times are unknown.

    The aggressor's busy phase stretches to busy / (1 - share). The worst run begins together with such a phase.
    """
    busy, wait = (victim_solo[:, SOLO.index(name)] for name in ("busy_s", "wait_s"))
    phase, pause = (aggressor_solo[:, SOLO.index(name)] for name in ("busy_s", "wait_s"))
    phase = phase / (1.0 - share)
    work = share * phase + pause
    mean = busy * (phase + pause) / work
    rest = busy % work
    worst = (busy // work) * (phase + pause) + np.where(
        rest <= share * phase, rest / share, phase + rest - share * phase
    )
    alone, tail = (victim_solo[:, SOLO.index(name)] for name in ("mean_s", "p99_s"))
    tail = np.where(np.isnan(tail), alone, tail)
    return (mean + wait) / alone - 1.0, np.maximum((worst + wait) / tail - 1.0, 0.0)


def columns(samples: Samples, share: float | None) -> Floats:
    """[n, len(COLUMNS)] in the order of :data:`COLUMNS`; NaN = unknown."""
    mean, worst = sharing(samples.victim_solo, samples.aggressor_solo, share or 0.5)
    ratio = samples.victim_solo[:, SOLO.index("mean_s")] / samples.aggressor_solo[:, SOLO.index("mean_s")]
    stacked = [
        *_side_columns(samples.victim, samples.victim_solo),
        *_side_columns(samples.aggressor, samples.aggressor_solo),
        np.log1p(mean),
        np.log1p(worst),
        np.log(ratio),
    ]
    return np.column_stack(stacked)


def shared(samples: Samples, share: float | None) -> Floats:
    """
    ln(1 + degradation) [n] that sharing alone would cause, in the direction's metric; 0 where times are unknown or
    ``share`` is None.
    """
    if share is None:
        return np.zeros(len(samples))
    mean, worst = sharing(samples.victim_solo, samples.aggressor_solo, share)
    return np.nan_to_num(np.log1p(mean if METRICS[samples.direction] == "mean" else worst), nan=0.0)


def _layout() -> gaussian.Layout:
    """The column numbers of each group."""
    numbers = iter(range(len(COLUMNS)))
    victim, aggressor, pair = (
        [[next(numbers) for _ in names] for names in groups.values()]
        for groups in (SIDE_GROUPS, SIDE_GROUPS, PAIR_GROUPS)
    )
    return gaussian.Layout(victim=victim, aggressor=aggressor, pair=pair)


@dataclass(frozen=True, slots=True)
class Ours:
    """``share``: of the device, that the victim gets. ``process`` predicts what is added to the effect of sharing."""

    share: float | None
    process: gaussian.GaussianProcess

    def log_mean(self, samples: Samples) -> Floats:
        return np.maximum(shared(samples, self.share) + self.process.mean(columns(samples, self.share)), 0.0)

    def spread(self, samples: Samples) -> Floats:
        return self.process.deviation(columns(samples, self.share))

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        share = np.array(np.nan if self.share is None else self.share)
        return {"share": share} | {name: np.asarray(getattr(self.process, name)) for name in _PROCESS_ARRAYS}


_PROCESS_ARRAYS: Final = ("centre", "scale", "level", "unit", "inputs", "hyper", "weights", "root")


def _restore_ours(arrays: Mapping[str, NDArray[Any]]) -> Model:
    fields: dict[str, Any] = {name: arrays[name] for name in _PROCESS_ARRAYS}
    fields |= {name: float(arrays[name]) for name in ("level", "unit")}
    share = float(arrays["share"])
    return Ours(None if np.isnan(share) else share, gaussian.GaussianProcess(layout=_layout(), **fields))


def _learn_ours(samples: Samples, seed: int, bounds: bool) -> tuple[Model, Scores]:
    layout, target = _layout(), log_target(samples)
    unit = float(target.std()) or 1.0
    share = max(
        SHARES,
        key=lambda candidate: gaussian.log_marginal_likelihood(
            columns(samples, candidate), (target - shared(samples, candidate)) / unit, layout
        ),
    )
    process = gaussian.fit(columns(samples, share), target - shared(samples, share), layout, seed=seed)
    if not bounds:
        return Ours(share, process), {}
    victims, aggressors = np.array(samples.victims), np.array(samples.aggressors)
    left_out_masks: dict[UnseenSide, list[Any]] = {
        "none": [samples.pair == pair for pair in np.unique(samples.pair)],
        "victim": [victims == name for name in np.unique(victims)],
        "aggressor": [aggressors == name for name in np.unique(aggressors)],
        "both": [(victims == name) | (aggressors == name) for name in np.unique([victims, aggressors])],
    }
    few = len({*samples.victims, *samples.aggressors}) <= FEW_MODELS
    scores: dict[UnseenSide, Floats] = {}
    for side, masks in left_out_masks.items():
        parts = [np.flatnonzero(mask) for mask in masks if not mask.all()]
        if parts:
            residuals = np.sort(np.concatenate(process.left_out(parts)))
            scores[side] = np.where(residuals > 0, residuals * (WIDER[side] if few else 1.0), residuals)
    return Ours(share, process), scores


OURS: Final = Recipe(name="ours", learn=_learn_ours)


# ----------------------------------------------------------------------------------------------------------------------
# Files.

MANIFEST: Final = "manifest.json"
ARRAYS: Final = "arrays.npz"


def dump(predictor: FittedPredictor) -> dict[str, bytes]:
    """The files ``arrays.npz`` and ``manifest.json``, which names the digest of the other, of a predictor of ours."""
    assert isinstance(predictor.model, Ours)
    scores = {f"scores.{side}": values for side, values in predictor.scores.items()}
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        allow_pickle=False,
        **{f"model.{name}": array for name, array in predictor.model.arrays().items()},
        **scores,
    )
    manifest = {
        "version": VERSION,
        "recipe": predictor.recipe,
        "direction": predictor.direction,
        "place": predictor.place,
        "features": COLUMNS,
        "victims": sorted(predictor.victims),
        "aggressors": sorted(predictor.aggressors),
        "sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
    }
    return {ARRAYS: buffer.getvalue(), MANIFEST: json.dumps(manifest, indent=1).encode()}


def load(files: Mapping[str, bytes]) -> FittedPredictor:
    """
    The predictor of these files by :func:`dump`. Raises BadArtifact if they are damaged, of another version, of an
    unknown recipe, or made for other features.
    """
    try:
        manifest = json.loads(files[MANIFEST])
        if manifest["version"] != VERSION:
            raise BadArtifact(f"version {manifest['version']!r}, {VERSION} is expected")
        if manifest["recipe"] != OURS.name:
            raise BadArtifact(f"unknown recipe {manifest['recipe']!r}")
        if tuple(manifest["features"]) != COLUMNS:
            differ = sorted(set(manifest["features"]) ^ set(COLUMNS)) or ["their order"]
            raise BadArtifact(f"made for other features ({', '.join(differ[:4])})")
        if manifest["direction"] not in DIRECTIONS:
            raise BadArtifact(f"unknown direction {manifest['direction']!r}")
        content = files[ARRAYS]
        if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
            raise BadArtifact(f"{ARRAYS} is damaged or belongs to another manifest")
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return FittedPredictor(
            recipe=OURS.name,
            direction=manifest["direction"],
            model=_restore_ours(
                {name.removeprefix("model."): array for name, array in arrays.items() if name.startswith("model.")}
            ),
            victims=frozenset(manifest["victims"]),
            aggressors=frozenset(manifest["aggressors"]),
            scores={side: arrays[f"scores.{side}"] for side in UNSEEN if f"scores.{side}" in arrays},
            place=None if manifest["place"] is None else (str(manifest["place"][0]), str(manifest["place"][1])),
        )
    except BadArtifact:
        raise
    except (LookupError, TypeError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise BadArtifact(f"not a stored predictor: {error}") from error
