"""
Predicts what one neighbour costs: recipes that learn from measured pairs, fitted predictors with upper bounds, and
their files.

``RECIPES[name].fit(samples, seed)`` gives a :class:`Predictor`. Three recipes are those of the paper's table V on the
24 raw numbers of table III (12 a side, section IV-B); their parameters are frozen, so that "better than the paper's
recipe" stays a fixed mark:

======= ============================================================================================================
linear  least squares
bagging 200 regression trees, each on a bootstrap sample
paper   random forest of 200 trees, unlimited depth, leaves of one sample (the paper gives none of these)
ours    a Gaussian process on logarithms, see below
======= ============================================================================================================

**ours.** Degradations spread over orders of magnitude and Eq. 2 judges their logarithm, so the target is ln(1 +
degradation). Each side is described by logarithms of table III and by what its solo run tells (:data:`COLUMNS`), in
groups of alike columns; two workloads are as alike as a Matern 3/2 kernel says of the distance, to which each group
contributes with a length of its own. The covariance of pairs is::

    v k_victim + a k_aggressor + b k_victim k_aggressor + c k_pair + d (linear) + noise

which says: a victim is sensitive and an aggressor heavy by itself, some meet worse than that, and what processor
sharing alone would do (:func:`sharing`) is known. Lengths and amplitudes maximise the marginal likelihood times a prior
(Rasmussen and Williams 2006, ch. 5): 48 pairs leave no room for a validation set, and the prior keeps a column that few
pairs tell about from being believed.

**Bounds** are conformal (Vovk et al. 2005; Barber et al. 2021, arXiv:1905.02928): a quantile of the residuals, in log
space, of pairs that were left out. Whole pairs are left out, since repeats of a pair, and its other direction, tell of
each other. For ours the residuals of any left-out set follow from the inverse covariance (Rasmussen and Williams,
section 5.4.2) and are counted in units of the process's own deviation, so a bound widens away from what was measured.
For a workload whose model the training part did not have, they are those of left-out models.

A predictor is kept as arrays and a manifest, never as a pickle: loading a file runs no code of it.
"""

import hashlib
import io
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ml.measure.rows import FEATURES, BadRow
from ml.predict import gaussian
from ml.predict.samples import DIRECTIONS, METRICS, SOLO, Direction, Floats, Ints, Samples

VERSION: Final = 1

#: Which side of a pair is of a model that the training part had not.
Unseen: TypeAlias = Literal["none", "victim", "aggressor", "both"]
UNSEEN: Final[tuple[Unseen, ...]] = ("none", "victim", "aggressor", "both")

#: A model of which fewer pairs were measured counts as unseen when bounds are set.
KNOWN_PAIRS: Final = 4

#: The 24 numbers of section IV-B.
PAPER_FEATURES: Final = tuple(f"{side}.{name}" for side in ("victim", "aggressor") for name in FEATURES)


class BadArtifact(ValueError):
    """A stored predictor that must not be used: damaged, of another version, or made for other features."""


def log_target(samples: Samples) -> Floats:
    """ln(1 + degradation) [n]; what noise made negative counts as none (A5)."""
    logs: Floats = np.log1p(np.maximum(samples.target, 0.0))
    return logs


def paper_features(samples: Samples) -> Floats:
    """[n, 24] in the order of :data:`PAPER_FEATURES`."""
    return np.hstack([samples.victim, samples.aggressor])


class Model(Protocol):
    """The learned part of a predictor: pure functions of arrays."""

    def log_mean(self, samples: Samples) -> Floats:
        """Prediction of :func:`log_target` [n], at least 0."""
        ...

    def spread(self, samples: Samples) -> Floats:
        """The unit in which the residual of each sample is counted [n], in log space."""
        ...

    def arrays(self) -> Mapping[str, NDArray[Any]]: ...


Scores: TypeAlias = Mapping[Unseen, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """
    A fitted recipe. ``victims`` and ``aggressors``: the models it has met on each side. ``scores``: residuals of
    left-out pairs in units of the spread, ascending, by which side's model was left out with them; empty where no
    bounds were asked for. ``place``: where it holds.
    """

    recipe: str
    direction: Direction
    model: Model
    victims: frozenset[str]
    aggressors: frozenset[str]
    scores: Scores
    place: tuple[str, str] | None = None

    def predict(self, samples: Samples) -> Floats:
        """Degradations [n] as fractions, at least 0. BadRow for another direction."""
        self._check(samples)
        fractions: Floats = np.expm1(self.model.log_mean(samples))
        return fractions

    def upper(self, samples: Samples, coverage: float = 0.9) -> Floats:
        """
        Degradations [n] that are not exceeded with the probability ``coverage``, as fractions.

        With fewer left-out pairs than 1 / (1 - coverage) it is the largest residual known, which may cover less.
        """
        self._check(samples)
        if not 0 < coverage < 1:
            raise ValueError(f"a coverage is between 0 and 1, not {coverage}")
        if not len(self.scores.get("none", ())):
            raise ValueError("this predictor was fitted without bounds")
        quantiles = np.array([self._quantile(side, coverage) for side in UNSEEN])
        known_victim = np.array([name in self.victims for name in samples.victims], bool)
        known_aggressor = np.array([name in self.aggressors for name in samples.aggressors], bool)
        side = ~known_victim * UNSEEN.index("victim") + ~known_aggressor * UNSEEN.index("aggressor")
        bound: Floats = self.model.log_mean(samples) + quantiles[side] * self.model.spread(samples)
        return np.expm1(np.maximum(bound, 0.0))

    def _quantile(self, side: Unseen, coverage: float) -> float:
        scores = self.scores.get(side, self.scores["none"])
        return float(scores[min(len(scores), int(np.ceil((len(scores) + 1) * coverage))) - 1])

    def _check(self, samples: Samples) -> None:
        if samples.direction != self.direction:
            raise BadRow(f"a predictor of the direction {self.direction!r} was given {samples.direction!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """
    How a predictor is made. ``learn(samples, seed, bounds)`` gives the model and, where bounds are asked for, the
    scores; ``restore`` makes the model from its arrays again.
    """

    name: str
    features: tuple[str, ...]
    learn: Callable[[Samples, int, bool], tuple[Model, Scores]]
    restore: Callable[[Mapping[str, NDArray[Any]]], Model]

    def fit(
        self, samples: Samples, seed: int, *, bounds: bool = True, place: tuple[str, str] | None = None
    ) -> Predictor:
        """
        ``bounds=False`` leaves out what only :meth:`Predictor.upper` needs. Raises BadRow for fewer than two pairs.
        """
        if len(np.unique(samples.pair)) < 2:
            raise BadRow(
                f"{len(np.unique(samples.pair))} pairs of {samples.name or 'samples'}: a predictor needs at least two"
            )
        model, scores = self.learn(samples, seed, bounds)
        return Predictor(
            recipe=self.name,
            direction=samples.direction,
            model=model,
            victims=_known(samples.victims, samples.pair),
            aggressors=_known(samples.aggressors, samples.pair),
            scores=scores,
            place=place,
        )


def _known(models: Sequence[str], pair: Ints) -> frozenset[str]:
    met = {(name, int(number)) for name, number in zip(models, pair, strict=True)}
    return frozenset(name for name, count in Counter(name for name, _ in met).items() if count >= KNOWN_PAIRS)


# ----------------------------------------------------------------------------------------------------------------------
# The recipes of the paper.


class Estimator(Protocol):
    """What is used of scikit-learn, which has no types of its own."""

    def fit(self, inputs: Floats, target: Floats) -> object: ...

    def get_params(self) -> Mapping[str, Any]: ...


def estimator(name: str, seed: int) -> Estimator:
    """The regressor of a recipe of the paper, not fitted. Frozen: every comparison here is against these."""
    # Imported when needed: a scheduler that only looks up its table has no use for it.
    from sklearn.ensemble import BaggingRegressor, RandomForestRegressor  # type: ignore[import-untyped]
    from sklearn.linear_model import LinearRegression  # type: ignore[import-untyped]
    from sklearn.tree import DecisionTreeRegressor  # type: ignore[import-untyped]

    made: Estimator
    match name:
        case "linear":
            made = LinearRegression()
        case "bagging":
            made = BaggingRegressor(DecisionTreeRegressor(), n_estimators=200, random_state=seed)
        case "paper":
            made = RandomForestRegressor(n_estimators=200, max_depth=None, min_samples_leaf=1, random_state=seed)
        case _:
            raise KeyError(name)
    return made


#: Parts into which the pairs are divided to leave each out once.
FOLDS: Final = 5


def _paper_recipe(name: str, restore: "Callable[[Mapping[str, NDArray[Any]]], Model]") -> Recipe:
    def once(samples: Samples, seed: int) -> Model:
        fitted = estimator(name, seed)
        fitted.fit(paper_features(samples), np.maximum(samples.target, 0.0))
        return restore(_linear_arrays(fitted) if name == "linear" else _tree_arrays(fitted))

    def learn(samples: Samples, seed: int, bounds: bool) -> tuple[Model, Scores]:
        return once(samples, seed), {"none": _left_out(samples, seed, once)} if bounds else {}

    return Recipe(name=name, features=PAPER_FEATURES, learn=learn, restore=restore)


def _left_out(samples: Samples, seed: int, once: Callable[[Samples, int], Model]) -> Floats:
    """Residuals of every sample, ascending, by a model that has not seen its pair."""
    residuals = np.empty(len(samples))
    pairs = np.random.default_rng(seed).permutation(np.unique(samples.pair))
    for part in np.array_split(pairs, min(FOLDS, len(pairs))):
        out = np.isin(samples.pair, part)
        residuals[out] = log_target(samples)[out] - once(samples.take(~out), seed).log_mean(samples.take(out))
    return np.sort(residuals)


@dataclass(frozen=True, slots=True)
class Linear:
    """Weights [24] and a constant, on the raw numbers, to a fraction."""

    weights: Floats
    constant: Floats

    def log_mean(self, samples: Samples) -> Floats:
        logs: Floats = np.log1p(np.maximum(paper_features(samples) @ self.weights + self.constant, 0.0))
        return logs

    def spread(self, samples: Samples) -> Floats:
        return np.ones(len(samples))

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        return {"weights": self.weights, "constant": self.constant}


def _linear_arrays(fitted: Any) -> Mapping[str, NDArray[Any]]:
    return {"weights": np.asarray(fitted.coef_, float), "constant": np.asarray(fitted.intercept_, float)}


@dataclass(frozen=True, slots=True)
class Trees:
    """
    The nodes of all trees in one row of arrays. ``roots``: the first node of each tree. A node sends a sample with
    ``feature`` <= ``threshold`` to ``child``, any other to the one after it; a leaf sends every sample to itself
    (threshold infinite). The prediction, a fraction, is the mean over trees of ``value`` at the leaf.
    """

    roots: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: Floats
    child: NDArray[np.int32]
    value: Floats

    def log_mean(self, samples: Samples) -> Floats:
        # scikit-learn compares inputs in single precision with thresholds in double.
        inputs = paper_features(samples).astype(np.float32).astype(float)
        count, width = inputs.shape
        values, total = inputs.ravel(), np.zeros(count)
        leaf = np.isinf(self.threshold)
        for root in self.roots:
            node = np.full(count, root, np.int32)
            moving = np.arange(count, dtype=np.int32) if not leaf[root] else np.zeros(0, np.int32)
            at = node[moving]
            while len(moving):
                at = self.child[at] + (values[moving * width + self.feature[at]] > self.threshold[at])
                ended = leaf[at]
                node[moving[ended]] = at[ended]
                moving, at = moving[~ended], at[~ended]
            total += self.value[node]
        logs: Floats = np.log1p(np.maximum(total / len(self.roots), 0.0))
        return logs

    def spread(self, samples: Samples) -> Floats:
        return np.ones(len(samples))

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        return {
            "roots": self.roots,
            "feature": self.feature,
            "threshold": self.threshold,
            "child": self.child,
            "value": self.value,
        }


def _tree_arrays(fitted: Any) -> Mapping[str, NDArray[Any]]:
    """
    The arrays of :class:`Trees` from a fitted ensemble: nodes are numbered anew, level by level, so that siblings are
    neighbours.
    """
    roots, parts, offset = [], [], 0
    for member in fitted.estimators_:
        tree = member.tree_
        left, right = tree.children_left, tree.children_right
        order = [0]
        for node in order:
            if left[node] >= 0:
                order += [left[node], right[node]]
        old = np.array(order)
        new = np.empty(len(old), np.int32)
        new[old] = np.arange(len(old), dtype=np.int32) + offset
        leaf = left[old] < 0
        parts.append(
            (
                np.where(leaf, 0, tree.feature[old]).astype(np.int32),
                np.where(leaf, np.inf, tree.threshold[old]),
                np.where(leaf, new[old], new[np.where(leaf, 0, left[old])]).astype(np.int32),
                tree.value[old, 0, 0],
            )
        )
        roots.append(offset)
        offset += len(old)
    feature, threshold, child, value = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return {
        "roots": np.array(roots, np.int32),
        "feature": feature,
        "threshold": threshold,
        "child": child,
        "value": value,
    }


# ----------------------------------------------------------------------------------------------------------------------
# Ours.

#: Shares of the device that a victim may get while its aggressor is busy too. Which holds the data tell; None: sharing
#: explains nothing.
SHARES: Final = (None, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)

#: What describes a side, in groups of one length scale each.
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
    known = {
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
    counts = {f"ln {name}": np.log1p(feature[name]) for name in FEATURES if f"ln {name}" not in known}
    return [(known | counts)[name] for names in SIDE_GROUPS.values() for name in names]


def sharing(victim_solo: Floats, aggressor_solo: Floats, share: float) -> tuple[Floats, Floats]:
    """
    Mean and worst degradation [n] of a victim that gets ``share`` of the device while the aggressor is busy and all of
    it while that waits for its input, both without a pause otherwise: what would be if only time were shared. NaN where
    times are unknown.

    A busy phase of the aggressor is drawn out to busy / (1 - share). The worst run begins together with such a phase.
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
    """[n, len(COLUMNS)] in the order of :data:`COLUMNS`; NaN where a value is unknown."""
    mean, worst = sharing(samples.victim_solo, samples.aggressor_solo, share or 0.5)
    ratio = samples.victim_solo[:, SOLO.index("mean_s")] / samples.aggressor_solo[:, SOLO.index("mean_s")]
    found = [
        *_side_columns(samples.victim, samples.victim_solo),
        *_side_columns(samples.aggressor, samples.aggressor_solo),
        np.log1p(mean),
        np.log1p(worst),
        np.log(ratio),
    ]
    return np.column_stack(found)


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
    """The numbers of the columns of each group."""
    numbers = iter(range(len(COLUMNS)))
    victim, aggressor, pair = (
        [[next(numbers) for _ in names] for names in groups.values()]
        for groups in (SIDE_GROUPS, SIDE_GROUPS, PAIR_GROUPS)
    )
    return gaussian.Layout(victim=victim, aggressor=aggressor, pair=pair)


@dataclass(frozen=True, slots=True)
class Ours:
    """``share``: of the device, that the victim gets; the process tells what comes on top of it."""

    share: float | None
    process: gaussian.Process

    def log_mean(self, samples: Samples) -> Floats:
        return np.maximum(shared(samples, self.share) + self.process.mean(columns(samples, self.share)), 0.0)

    def spread(self, samples: Samples) -> Floats:
        return self.process.deviation(columns(samples, self.share))

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        share = np.array(np.nan if self.share is None else self.share)
        return {"share": share} | {name: np.asarray(getattr(self.process, name)) for name in _PROCESS_ARRAYS}


_PROCESS_ARRAYS: Final = ("centre", "scale", "level", "unit", "inputs", "hyper", "weights", "root")


def _restore_ours(arrays: Mapping[str, NDArray[Any]]) -> Model:
    known: dict[str, Any] = {name: arrays[name] for name in _PROCESS_ARRAYS}
    known |= {name: float(arrays[name]) for name in ("level", "unit")}
    share = float(arrays["share"])
    return Ours(None if np.isnan(share) else share, gaussian.Process(layout=_layout(), **known))


def _learn_ours(samples: Samples, seed: int, bounds: bool) -> tuple[Model, Scores]:
    layout, target = _layout(), log_target(samples)
    unit = float(target.std()) or 1.0
    share = max(
        SHARES, key=lambda one: gaussian.evidence(columns(samples, one), (target - shared(samples, one)) / unit, layout)
    )
    process = gaussian.fit(columns(samples, share), target - shared(samples, share), layout, seed=seed)
    if not bounds:
        return Ours(share, process), {}
    victims, aggressors = np.array(samples.victims), np.array(samples.aggressors)
    out: dict[Unseen, list[Any]] = {
        "none": [samples.pair == pair for pair in np.unique(samples.pair)],
        "victim": [victims == name for name in np.unique(victims)],
        "aggressor": [aggressors == name for name in np.unique(aggressors)],
        "both": [(victims == name) | (aggressors == name) for name in np.unique([victims, aggressors])],
    }
    scores: dict[Unseen, Floats] = {}
    for side, masks in out.items():
        parts = [np.flatnonzero(mask) for mask in masks if not mask.all()]
        if parts:
            scores[side] = np.sort(np.concatenate(process.left_out(parts)))
    return Ours(share, process), scores


RECIPES: Final[Mapping[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        _paper_recipe("linear", lambda arrays: Linear(*(arrays[name] for name in ("weights", "constant")))),
        _paper_recipe(
            "bagging",
            lambda arrays: Trees(*(arrays[name] for name in ("roots", "feature", "threshold", "child", "value"))),
        ),
        _paper_recipe(
            "paper",
            lambda arrays: Trees(*(arrays[name] for name in ("roots", "feature", "threshold", "child", "value"))),
        ),
        Recipe(name="ours", features=COLUMNS, learn=_learn_ours, restore=_restore_ours),
    )
}


def fit(samples: Samples, seed: int = 0, *, recipe: str = "ours", place: tuple[str, str] | None = None) -> Predictor:
    """A predictor with bounds, by default of our recipe. KeyError for a recipe that does not exist."""
    return RECIPES[recipe].fit(samples, seed, place=place)


# ----------------------------------------------------------------------------------------------------------------------
# Files.

MANIFEST: Final = "manifest.json"
ARRAYS: Final = "arrays.npz"


def save(predictor: Predictor, folder: Path) -> None:
    """
    Write ``arrays.npz`` and ``manifest.json`` into ``folder``, which is made where it is absent.

    The manifest comes last, by renaming: a reader sees the old predictor, this one, or by its digest that the arrays
    are not those of the manifest.
    """
    folder.mkdir(parents=True, exist_ok=True)
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
        "features": RECIPES[predictor.recipe].features,
        "victims": sorted(predictor.victims),
        "aggressors": sorted(predictor.aggressors),
        "sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
    }
    for name, content in ((ARRAYS, buffer.getvalue()), (MANIFEST, json.dumps(manifest, indent=1).encode())):
        draft = folder / f"{name}.new"
        draft.write_bytes(content)
        draft.replace(folder / name)


def load(folder: Path) -> Predictor:
    """
    The predictor that :func:`save` wrote. Raises BadArtifact for one that is damaged, of another version, of a recipe
    that is not known here, or made for other features; OSError where there is none.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["version"] != VERSION:
            raise BadArtifact(f"{folder.name}: version {manifest['version']!r}, {VERSION} is expected")
        recipe = RECIPES.get(manifest["recipe"])
        if recipe is None:
            raise BadArtifact(f"{folder.name}: the recipe {manifest['recipe']!r} is not known")
        if tuple(manifest["features"]) != recipe.features:
            differ = sorted(set(manifest["features"]) ^ set(recipe.features)) or ["their order"]
            raise BadArtifact(f"{folder.name}: made for other features ({', '.join(differ[:4])})")
        if manifest["direction"] not in DIRECTIONS:
            raise BadArtifact(f"{folder.name}: a direction {manifest['direction']!r}")
        content = (folder / ARRAYS).read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
            raise BadArtifact(f"{folder.name}: {ARRAYS} is damaged or belongs to another manifest")
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return Predictor(
            recipe=recipe.name,
            direction=manifest["direction"],
            model=recipe.restore(
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
        raise BadArtifact(f"{folder.name}: not a stored predictor: {error}") from error
