"""The recipe: its process against plain formulas, bounds that cover, and stored predictors."""

import dataclasses
import hashlib
import io
import json
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ml.predict import gaussian, pairwise
from ml.predict.pairwise import (
    ARRAYS,
    COLUMNS,
    KNOWN_PAIRS,
    MANIFEST,
    OURS,
    SHARES,
    UNSEEN,
    BadArtifact,
    FittedPredictor,
    Ours,
    columns,
    dump,
    load,
    log_target,
    shared,
    sharing,
)
from ml.predict.samples import SOLO, Floats, Samples
from ml.rows import FEATURES, BadRow
from tests.support.pairs import alone, halves, rmsle, world

pytestmark = pytest.mark.numeric

PLACE = ("CPU partition: 1 core", "time-slice")


@pytest.fixture(scope="module")
def known() -> Samples:
    return world(40, 1)


@pytest.fixture(scope="module")
def fresh() -> Samples:
    """Pairs that nobody has seen, partly of models that nobody has seen, with inputs far outside."""
    found = world(60, 1, models=8).take(np.arange(40, 60))
    strange = ["m99" if number % 3 == 0 else name for number, name in enumerate(found.victims)]
    far = found.victim * np.where(np.arange(20) % 4 == 0, 1e4, 1.0)[:, None]
    return replace(found, victims=strange, victim=far)


@pytest.fixture(scope="module")
def fitted(known: Samples) -> FittedPredictor:
    """With its bounds."""
    return OURS.fit(known, 3, place=PLACE)


@pytest.fixture(scope="module")
def small(known: Samples) -> FittedPredictor:
    """Of a few pairs: a file that is soon read."""
    return OURS.fit(known.take(np.arange(10)), 3, place=PLACE)


# ---- what sharing does -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("busy", "wait", "pause", "mean", "worst"),
    [
        (1.0, 0.0, 0.0, 1.0, 1.0),  # an aggressor without a pause: half the device, twice the time
        (
            2.0,
            0.0,
            1.0,
            0.5,
            0.5,
        ),  # a busy phase of 2 s (work of 1) and a pause of 1 s (work of 1): a whole round of 3 s
        (1.0, 0.0, 1.0, 0.5, 1.0),  # all of it may fall into the busy phase
        (1.5, 0.0, 1.0, 0.5, 2 / 3),  # 2 s in the phase and 0.5 s after it
        (1.0, 1.0, 0.0, 0.5, 0.5),  # its own waiting is not drawn out
    ],
)
def test_sharing_by_hand(busy: float, wait: float, pause: float, mean: float, worst: float) -> None:
    """Share one half; the aggressor is busy for 1 s alone. The P99 alone is the mean here."""

    def side(busy: float, wait: float) -> Floats:
        values = {"busy_s": busy, "wait_s": wait, "mean_s": busy + wait, "p99_s": busy + wait}
        return np.array([[values.get(name, np.nan) for name in SOLO]])

    found = sharing(side(busy, wait), side(1.0, pause), 0.5)

    assert (found[0][0], found[1][0]) == (pytest.approx(mean), pytest.approx(worst))


def test_a_direction_is_explained_in_its_own_metric() -> None:
    training = world(20, 0)
    training = replace(training, aggressor_solo=alone(training.aggressor_solo[:, SOLO.index("mean_s")], 1e-3))
    mean, worst = sharing(training.victim_solo, training.aggressor_solo, 0.3)

    assert shared(training, 0.3) == pytest.approx(np.log1p(mean))
    assert shared(replace(training, direction="function"), 0.3) == pytest.approx(np.log1p(worst))
    assert (np.abs(mean - worst) > 1e-3).any()
    assert not shared(training, None).any()


def test_columns_are_named_and_each_is_in_one_group(known: Samples) -> None:
    found = dict(zip(COLUMNS, columns(known, 0.4).T, strict=True))

    assert found["victim.ln flops"] == pytest.approx(np.log1p(known.victim[:, 0]))
    assert found["aggressor.ln dropout"] == pytest.approx(np.log1p(known.aggressor[:, FEATURES.index("dropout")]))
    assert found["aggressor.ln tail"] == pytest.approx(np.full(40, np.log(1.2)))
    assert np.isnan(found["victim.ln kernels"]).all()
    mean, worst = sharing(known.victim_solo, known.aggressor_solo, 0.4)
    assert found["ln worst sharing"] == pytest.approx(np.log1p(worst))
    assert found["ln mean sharing"] == pytest.approx(np.log1p(mean))
    layout = pairwise._layout()
    assert sorted(column for group in layout.groups for column in group) == list(range(len(COLUMNS)))
    assert [COLUMNS[column] for column in layout.line] == ["ln mean sharing", "ln worst sharing", "ln mean ratio"]
    assert all(COLUMNS[column].startswith("aggressor.") for group in layout.aggressor for column in group)


def test_the_share_that_made_the_data_is_found() -> None:
    """Only an aggressor that waits for its input tells what its victim gets while it is busy."""
    found = world(40, 2)
    mean_s = found.aggressor_solo[:, SOLO.index("mean_s")]
    found = replace(found, aggressor_solo=alone(mean_s, mean_s * np.random.default_rng(0).uniform(0.0, 0.9, 40)))
    for share in (0.25, 0.7):
        true, _ = sharing(found.victim_solo, found.aggressor_solo, share)
        model = OURS.fit(replace(found, target=true), 0, bounds=False).model

        assert isinstance(model, Ours)
        assert (share in SHARES, model.share) == (True, share)
        assert model.log_mean(found) == pytest.approx(np.log1p(true), abs=1e-3)


def test_times_that_nobody_measured_are_no_obstacle() -> None:
    unmeasured = np.full((40, len(SOLO)), np.nan)
    found = replace(world(40, 3), victim_solo=unmeasured, aggressor_solo=unmeasured)
    predictor = OURS.fit(found)

    assert np.isfinite(predictor.upper(found)).all()
    assert rmsle(predictor, found) < 0.8 * log_target(found).std()


# ---- the process -----------------------------------------------------------------------------------------------------

LAYOUT = gaussian.Layout(victim=[[0, 1], [2]], aggressor=[[3, 4], [5]], pair=[[6], [7]])


def plain(hyper: Floats, first: Floats, second: Floats) -> Floats:
    """The covariance as the module's docstring has it, one number after another."""
    weights, (victim, aggressor, both, pair, line) = np.exp(hyper[:6]), np.exp(hyper[6:11])

    def kernel(x: Floats, y: Floats, groups: Sequence[Sequence[int]], numbers: Sequence[int]) -> float:
        squared = sum(
            weights[n] * np.mean([(x[c] - y[c]) ** 2 for c in group]) for n, group in zip(numbers, groups, strict=True)
        )
        return (1 + math.sqrt(3 * squared)) * math.exp(-math.sqrt(3 * squared))

    found = np.empty((len(first), len(second)))
    for i, x in enumerate(first):
        for j, y in enumerate(second):
            v, a = kernel(x, y, LAYOUT.victim, (0, 1)), kernel(x, y, LAYOUT.aggressor, (2, 3))
            product = (x[6] * y[6] + x[7] * y[7]) / 2
            found[i, j] = (
                victim * v + aggressor * a + both * v * a + pair * kernel(x, y, LAYOUT.pair, (4, 5)) + line * product
            )
    return found


def inputs_and_target(count: int, seed: int = 0) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(seed)
    inputs = generator.normal(0.0, 1.0, (count, 8))
    return inputs, np.sin(inputs[:, 0]) * inputs[:, 3] + 0.5 * inputs[:, 6] + generator.normal(0.0, 0.1, count)


def drawn_hyper(seed: int = 0) -> Floats:
    means, deviations = LAYOUT.prior()
    return means + 0.5 * deviations * np.random.default_rng(seed).normal(0.0, 1.0, len(means))


def conditioned(like: gaussian.GaussianProcess, inputs: Floats, standard: Floats) -> gaussian.GaussianProcess:
    """The same process with the same hyperparameters after other samples, by plain formulas."""
    noise = math.exp(like.hyper[-1]) + gaussian.JITTER
    covariance = plain(like.hyper, inputs, inputs) + noise * np.eye(len(inputs))
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    weights: Floats = np.linalg.solve(covariance, standard).astype(float)
    return replace(like, inputs=inputs, weights=weights, root=root)


def process(count: int = 25, *, hyper: Floats | None = None) -> tuple[gaussian.GaussianProcess, Floats, Floats]:
    """A process after ``count`` samples, their columns and target; columns are standard and the target is not."""
    inputs, standard = inputs_and_target(count)
    empty = gaussian.GaussianProcess(
        layout=LAYOUT,
        centre=np.zeros(8),
        scale=np.ones(8),
        level=2.0,
        unit=3.0,
        inputs=inputs,
        weights=standard,
        hyper=drawn_hyper() if hyper is None else hyper,
        root=np.eye(count),
    )
    return conditioned(empty, inputs, standard), inputs, 2.0 + 3.0 * standard


def test_the_covariance_is_the_one_of_the_docstring() -> None:
    first, second = inputs_and_target(6)[0], inputs_and_target(9, 1)[0]

    assert gaussian._covariance(LAYOUT, drawn_hyper(), first, second) == pytest.approx(
        plain(drawn_hyper(), first, second), rel=1e-12
    )


@pytest.mark.parametrize("count", [1, 255, 256, 257, 700])
def test_the_fast_covariance_is_the_plain_one(count: int) -> None:
    """All pairs of some sides, in disorder, over several chunks: each side repeats."""
    found, inputs, _ = process()
    generator = np.random.default_rng(count)
    sides = generator.normal(0.0, 1.0, (20, 8))
    rows = np.column_stack(
        [
            sides[generator.integers(0, 20, count), :3],
            sides[generator.integers(0, 20, count), 3:6],
            generator.normal(size=(count, 2)),
        ]
    )
    fast = list(found._crosses(rows))

    assert [len(part) for part in fast] == [
        min(gaussian.CHUNK, count - begin) for begin in range(0, count, gaussian.CHUNK)
    ]
    assert np.concatenate(fast) == pytest.approx(
        gaussian._covariance(LAYOUT, found.hyper, rows, inputs), rel=1e-11, abs=1e-12
    )


def test_mean_and_deviation_of_many_rows_are_those_of_each() -> None:
    found, _, _ = process()
    rows = np.tile(inputs_and_target(30, 4)[0], (20, 1))
    alone = [(found.mean(rows[n : n + 1])[0], found.deviation(rows[n : n + 1])[0]) for n in range(30)]

    assert np.column_stack([found.mean(rows), found.deviation(rows)]) == pytest.approx(
        np.tile(alone, (20, 1)), rel=1e-10
    )


def test_mean_and_deviation_are_the_plain_formulas() -> None:
    """Equations 2.25 and 2.26, the noise of a new measurement included."""
    found, inputs, target = process()
    rows = inputs_and_target(7, 3)[0]
    noise = math.exp(found.hyper[-1]) + gaussian.JITTER
    inverse = np.linalg.inv(plain(found.hyper, inputs, inputs) + noise * np.eye(len(inputs)))
    cross = plain(found.hyper, rows, inputs)
    variance = np.diag(plain(found.hyper, rows, rows) - cross @ inverse @ cross.T) + noise

    assert found.mean(rows) == pytest.approx(2.0 + cross @ inverse @ (target - 2.0), rel=1e-9)
    assert found.deviation(rows) == pytest.approx(3.0 * np.sqrt(variance), rel=1e-9)


def test_without_noise_the_mean_goes_through_the_samples() -> None:
    quiet = drawn_hyper()
    quiet[-1] = -30.0
    found, inputs, target = process(hyper=quiet)
    noisy = drawn_hyper()
    noisy[-1] = 2.0

    assert found.mean(inputs) == pytest.approx(target, abs=1e-3)
    assert found.deviation(inputs).max() < 0.05 * found.deviation(inputs + 2.0).min()
    assert np.abs(process(hyper=noisy)[0].mean(inputs) - target).max() > 1.0


def test_the_deviation_grows_away_from_the_samples_and_then_stays() -> None:
    found, inputs, _ = process()
    away = found.deviation(inputs.mean(0) + np.outer([0.0, 1.0, 2.0, 3.0], np.ones(8)))
    assert (np.diff(away) > 0).all()

    beyond = found.deviation(np.array([[gaussian.FAR] * 8, [10 * gaussian.FAR] * 8, [1e9] * 8]))
    assert beyond[0] == beyond[1] == beyond[2]


def test_what_is_unknown_is_the_mean_of_its_column() -> None:
    found, _, _ = process()
    found = replace(found, centre=np.arange(8.0))

    assert found.mean(np.full((1, 8), np.nan)) == pytest.approx(found.mean(np.arange(8.0)[None]))


def test_left_out_is_as_if_conditioned_anew() -> None:
    found, inputs, target = process()
    standard = (target - found.level) / found.unit
    parts = [np.array([4]), np.array([0, 7, 8]), np.arange(10, 20)]
    for part, scores in zip(parts, found.left_out(parts), strict=True):
        rest = np.setdiff1d(np.arange(len(target)), part)
        without = conditioned(found, inputs[rest], standard[rest])
        assert scores == pytest.approx(
            (target[part] - without.mean(inputs[part])) / without.deviation(inputs[part]), rel=1e-6
        )


def test_a_fit_standardises_and_conditions_on_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, standard = inputs_and_target(30)
    table, target = 5.0 + 2.0 * inputs, 7.0 + 4.0 * standard
    table[3, 1] = np.nan
    monkeypatch.setattr(gaussian, "SOUGHT_ON", 12)
    found = gaussian.fit(table, target, LAYOUT, seed=0)

    whole = table[~np.isnan(table[:, 1]), 1]
    assert found.centre[1] == pytest.approx(whole.mean())
    assert found.scale[1] == pytest.approx(math.sqrt((((whole - whole.mean()) ** 2).sum() + 2 * 0.25) / (29 + 2)))
    assert [found.level, found.unit] == pytest.approx([target.mean(), target.std()])
    assert len(found.inputs) == 30
    anew = conditioned(found, found.inputs, (target - found.level) / found.unit)
    assert found.mean(table) == pytest.approx(anew.mean(table), rel=1e-8)
    assert found.deviation(table) == pytest.approx(anew.deviation(table), rel=1e-8)
    assert np.corrcoef(found.mean(table), target)[0, 1] > 0.9


def test_the_evidence_is_the_marginal_likelihood() -> None:
    inputs, target = inputs_and_target(20)
    standard = (inputs - inputs.mean(0)) / np.sqrt((20 * inputs.var(0) + 2 * 0.25) / 22)
    hyper, _ = LAYOUT.prior()
    covariance = plain(hyper, standard, standard) + (math.exp(hyper[-1]) + gaussian.JITTER) * np.eye(20)
    rest = target - target.mean()
    expected = -0.5 * rest @ np.linalg.solve(covariance, rest) - 0.5 * np.linalg.slogdet(covariance)[1]

    assert gaussian.log_marginal_likelihood(inputs, target, LAYOUT) == pytest.approx(expected, rel=1e-9)


Objective = Callable[[Floats], tuple[float, Floats]]


@pytest.fixture
def sought(monkeypatch: pytest.MonkeyPatch) -> tuple[Objective, Floats, Floats]:
    """The objective that a fit minimises, where it began and what it found."""
    noted: list[tuple[Objective, Floats]] = []
    minimum = gaussian.minimum

    def spy(objective: Objective, start: Floats, unit: Floats) -> Floats:
        noted.append((objective, start))
        return minimum(objective, start, unit)

    monkeypatch.setattr(gaussian, "minimum", spy)
    found = gaussian._best_hyperparameters(*inputs_and_target(20), LAYOUT)
    [(objective, start)] = noted
    return objective, start, found


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_the_gradient_is_that_of_finite_differences(sought: tuple[Objective, Floats, Floats], seed: int | None) -> None:
    objective, start, _ = sought
    at = start if seed is None else drawn_hyper(seed)
    steps = 1e-5 * np.eye(len(at))
    slopes = [(objective(at + step)[0] - objective(at - step)[0]) / 2e-5 for step in steps]

    assert objective(at)[1] == pytest.approx(slopes, rel=1e-5, abs=1e-6)


def test_the_objective_is_likelihood_times_prior_and_gets_better(sought: tuple[Objective, Floats, Floats]) -> None:
    objective, start, found = sought
    inputs, target = inputs_and_target(20)
    hyper = drawn_hyper(2)
    means, deviations = LAYOUT.prior()
    covariance = plain(hyper, inputs, inputs) + (math.exp(hyper[-1]) + gaussian.JITTER) * np.eye(20)
    likelihood = 0.5 * target @ np.linalg.solve(covariance, target) + 0.5 * np.linalg.slogdet(covariance)[1]

    assert objective(hyper)[0] == pytest.approx(
        likelihood + 0.5 * (((hyper - means) / deviations) ** 2).sum(), rel=1e-9
    )
    assert objective(found)[0] < objective(start)[0] - 1.0
    assert np.abs(objective(found)[1]).max() < 0.1 * np.abs(objective(start)[1]).max()


def rosenbrock(x: Floats) -> tuple[float, Floats]:
    bend = x[1] - x[0] ** 2
    return float((1 - x[0]) ** 2 + 100 * bend**2), np.array([-2 * (1 - x[0]) - 400 * x[0] * bend, 200 * bend])


def test_the_minimum_of_a_known_function() -> None:
    found = gaussian.minimum(rosenbrock, np.array([-1.2, 1.0]), np.ones(2), iterations=200)

    assert found == pytest.approx([1.0, 1.0], abs=0.02)
    stopped = gaussian.minimum(rosenbrock, np.array([-1.2, 1.0]), np.ones(2), iterations=3)
    assert rosenbrock(found)[0] < rosenbrock(stopped)[0] < rosenbrock(np.array([-1.2, 1.0]))[0]


def test_the_search_steps_back_from_where_there_is_no_value() -> None:
    def walled(x: Floats) -> tuple[float, Floats]:
        if x[0] > 2.5:
            raise np.linalg.LinAlgError
        return float((x[0] - 2.0) ** 4), np.array([4 * (x[0] - 2.0) ** 3])

    assert gaussian.minimum(walled, np.array([-30.0]), np.array([20.0])) == pytest.approx([2.0], abs=0.3)


def test_a_search_from_the_minimum_stays() -> None:
    assert gaussian.minimum(rosenbrock, np.ones(2), np.ones(2)).tolist() == [1.0, 1.0]


# ---- bounds ----------------------------------------------------------------------------------------------------------


class Fixed:
    """ln 2 for everybody, with a spread of a half."""

    def log_mean(self, samples: Samples) -> Floats:
        return np.full(len(samples), math.log(2.0))

    def spread(self, samples: Samples) -> Floats:
        return np.full(len(samples), 0.5)


def fixed(**scores: Sequence[float]) -> FittedPredictor:
    found: dict[Any, Floats] = {side: np.array(values, float) for side, values in scores.items()}
    some = frozenset({"m0"})
    return FittedPredictor(
        recipe="ours", direction="training", model=Fixed(), victims=some, aggressors=some, scores=found
    )


@pytest.mark.parametrize(
    ("count", "coverage", "position"),
    [(9, 0.9, 9), (10, 0.9, 10), (19, 0.9, 18), (20, 0.9, 19), (99, 0.9, 90), (99, 0.5, 50), (3, 0.9, 3), (1, 0.1, 1)],
)
def test_the_bound_is_the_quantile_of_n_plus_one(count: int, coverage: float, position: int, known: Samples) -> None:
    """The ceil((n + 1) x coverage)-th smallest of n, times the spread, on top of the mean in log space."""
    upper = fixed(none=[0.01 * number for number in range(1, count + 1)]).upper(known, coverage)

    assert upper == pytest.approx(np.full(40, 2.0 * math.exp(0.5 * 0.01 * position) - 1.0))


def test_a_bound_is_at_least_nothing(known: Samples) -> None:
    assert not fixed(none=[-50.0]).upper(known).any()


def test_each_side_that_is_not_known_has_its_own_quantile(known: Samples) -> None:
    four = replace(known.take(np.arange(4)), victims=["m0", "x", "m0", "x"], aggressors=["m0", "m0", "x", "x"])
    predictor = fixed(none=[0.2], victim=[0.4], aggressor=[0.6], both=[0.8])

    assert UNSEEN == ("none", "victim", "aggressor", "both")
    assert np.log1p(predictor.upper(four)) - math.log(2.0) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    # Without scores of its own a side takes those of known models.
    assert np.log1p(fixed(none=[0.2], victim=[0.4]).upper(four)) - math.log(2.0) == pytest.approx([0.1, 0.2, 0.1, 0.1])


def test_a_model_is_known_after_some_pairs() -> None:
    """Different pairs count, repeats do not; each side by itself."""
    found = world(40, 0).take(np.arange(2 * KNOWN_PAIRS + 3))
    n = KNOWN_PAIRS
    victims = ["often"] * n + ["repeated"] * n + ["seldom"] * 3
    aggressors = ["a", "b", "c", *["common"] * (2 * n)]
    pair = np.array([*range(n), *[n] * n, *range(n + 1, n + 4)])
    predictor = OURS.fit(replace(found, victims=victims, aggressors=aggressors, pair=pair), 0, bounds=False)

    assert predictor.victims == {"often"}
    assert predictor.aggressors == {"common"}


def test_bounds_cover_what_they_promise() -> None:
    """
    Pairs drawn from one space are exchangeable. The mean as a bound would cover about a half, the largest residual
    everything.
    """
    covered, half, below = [], [], []
    for seed in range(8):
        learned, held = halves(world(260, seed), 60)
        predictor = OURS.fit(learned, seed)
        covered.append((held.target <= predictor.upper(held, 0.9)).mean())
        half.append((held.target <= predictor.upper(held, 0.5)).mean())
        below.append((held.target <= predictor.predict(held)).mean())

    assert 0.86 < np.mean(covered) < 0.94
    assert 0.43 < np.mean(half) < 0.57
    assert np.mean(below) < 0.8


def test_ours_leaves_out_pairs_and_models(known: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[Any]] = []
    left_out = gaussian.GaussianProcess.left_out

    def spy(self: gaussian.GaussianProcess, parts: Sequence[Any]) -> list[Floats]:
        asked.append([part.tolist() for part in parts])
        return left_out(self, parts)

    monkeypatch.setattr(gaussian.GaussianProcess, "left_out", spy)
    twice = replace(known, pair=np.arange(40) // 2)
    predictor = OURS.fit(twice)

    assert asked[0] == [[2 * pair, 2 * pair + 1] for pair in range(20)]
    for parts, names in (
        (asked[1], [known.victims]),
        (asked[2], [known.aggressors]),
        (asked[3], [known.victims, known.aggressors]),
    ):
        models = sorted({name for side in names for name in side})
        assert parts == [[n for n in range(40) if any(side[n] == model for side in names)] for model in models]
    assert {side: len(scores) for side, scores in predictor.scores.items()} | {"both": 0} == {
        "none": 40,
        "victim": 40,
        "aggressor": 40,
        "both": 0,
    }
    assert all((np.diff(scores) >= 0).all() for scores in predictor.scores.values())


def test_the_bound_of_an_unseen_model_is_wider() -> None:
    learned, held = halves(world(200, 4), 100)
    predictor = OURS.fit(learned)
    new = ["new"] * len(held)
    bounds = [
        predictor.upper(replace(held, victims=victims, aggressors=aggressors))
        for victims, aggressors in (
            (held.victims, held.aggressors),
            (new, held.aggressors),
            (held.victims, new),
            (new, new),
        )
    ]

    assert predictor.victims >= set(held.victims)
    assert predictor.aggressors >= set(held.aggressors)
    for wider in bounds[1:]:
        assert (wider > bounds[0]).all()
    assert (bounds[0] > predictor.predict(held)).all()


def test_bounds_of_three_models_are_wider_by_their_sides_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    three, four = (world(60, 0, models=models) for models in (3, 4))
    wide = [OURS.fit(known) for known in (three, four)]
    monkeypatch.setattr(pairwise, "WIDER", dict.fromkeys(UNSEEN, 1.0))
    plain = [OURS.fit(known) for known in (three, four)]

    assert pairwise.FEW_MODELS == 3
    for side, factor in zip(UNSEEN, (1.4, 1.3, 1.1, 1.75), strict=True):
        before = plain[0].scores[side]
        np.testing.assert_allclose(wide[0].scores[side], np.where(before > 0, factor * before, before))
        np.testing.assert_array_equal(wide[1].scores[side], plain[1].scores[side])
    np.testing.assert_array_equal(wide[0].predict(three), plain[0].predict(three))


def test_bounds_widen_away_from_what_was_measured(known: Samples, fitted: FittedPredictor) -> None:
    model = fitted.model
    far = replace(known, victim=known.victim * 1e3, victim_solo=known.victim_solo * 30)

    assert (model.spread(far) > model.spread(known)).all()


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1])
def test_less_than_two_pairs_teach_nothing(count: int, known: Samples) -> None:
    one = replace(known.take(np.arange(5 * count)), pair=np.zeros(5 * count, np.int64))

    with pytest.raises(BadRow, match=f"{count} pairs of world: a predictor needs at least two"):
        OURS.fit(one, 0)


def test_two_pairs_are_enough(known: Samples) -> None:
    two = known.take(np.arange(2))

    predictor = OURS.fit(two)
    assert predictor.predict(two) == pytest.approx(two.target, rel=0.7)
    assert (predictor.upper(known) >= 0).all()


def test_equal_degradations_are_learned_as_they_are(known: Samples) -> None:
    predictor = OURS.fit(replace(known, target=np.full(40, 0.3)))

    assert predictor.predict(known) == pytest.approx(np.full(40, 0.3), abs=1e-6)


def test_another_direction_is_refused(known: Samples, fitted: FittedPredictor) -> None:
    other = replace(known, direction="function")

    with pytest.raises(BadRow, match="of the direction 'training' was given 'function'"):
        fitted.predict(other)
    with pytest.raises(BadRow, match="of the direction 'training' was given 'function'"):
        fitted.upper(other)


def test_nothing_asked_is_nothing_answered(known: Samples, fitted: FittedPredictor) -> None:
    none = known.take(np.zeros(0, np.int64))

    assert (fitted.predict(none).shape, fitted.upper(none).shape) == ((0,), (0,))


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_coverage_is_between_0_and_1(coverage: float, known: Samples, fitted: FittedPredictor) -> None:
    with pytest.raises(ValueError, match="a coverage is between 0 and 1"):
        fitted.upper(known, coverage)


def test_without_bounds_there_is_none(known: Samples) -> None:
    with pytest.raises(ValueError, match="without bounds"):
        OURS.fit(known, 0, bounds=False).upper(known)


@pytest.mark.parametrize("name", ["target", "victim", "aggressor"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_number_no_sample(name: str, bad: float, known: Samples) -> None:
    array = getattr(known, name).copy()
    array[3] = bad

    with pytest.raises(BadRow, match=f"{name} of world holds a value that is not a number"):
        dataclasses.replace(known, **{name: array})


@pytest.mark.parametrize("name", ["victim", "aggressor", "victim_solo", "aggressor_solo", "pair"])
def test_arrays_of_another_shape_are_refused(name: str, known: Samples) -> None:
    array = getattr(known, name)

    with pytest.raises(BadRow, match=f"{name} has the shape"):
        dataclasses.replace(known, **{name: array[:-1]})
    if array.ndim == 2:
        with pytest.raises(BadRow, match=f"{name} has the shape"):
            dataclasses.replace(known, **{name: array[:, :-1]})


def test_a_time_of_nothing_and_a_missing_name_are_refused(known: Samples) -> None:
    with pytest.raises(BadRow, match="-1 or less"):
        replace(known, target=np.full(40, -1.0))
    with pytest.raises(BadRow, match="as many names"):
        replace(known, victims=known.victims[:-1])


def test_a_seed_decides(known: Samples, fresh: Samples, fitted: FittedPredictor) -> None:
    assert np.array_equal(OURS.fit(known, 3).upper(fresh), fitted.upper(fresh))


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_stored_predictor_is_the_same_again(fresh: Samples, fitted: FittedPredictor) -> None:
    files = dump(fitted)
    again = load(files)

    assert np.array_equal(again.predict(fresh), fitted.predict(fresh))
    for coverage in (0.5, 0.9):
        assert np.array_equal(again.upper(fresh, coverage), fitted.upper(fresh, coverage))
    for part in ("recipe", "direction", "victims", "aggressors", "place"):
        assert getattr(again, part) == getattr(fitted, part)
    assert type(again.model) is type(fitted.model)
    assert sorted(files) == [ARRAYS, MANIFEST]


def test_no_place_and_no_bounds_are_kept_as_such(known: Samples) -> None:
    again = load(dump(OURS.fit(known, 0, bounds=False)))
    assert (again.recipe, again.place, again.scores) == ("ours", None, {})


def test_where_nothing_is_stored(small: FittedPredictor) -> None:
    with pytest.raises(BadArtifact, match=MANIFEST):
        load({})
    with pytest.raises(BadArtifact, match=ARRAYS):
        load({MANIFEST: dump(small)[MANIFEST]})


def test_arrays_of_another_predictor_are_noticed(known: Samples, small: FittedPredictor) -> None:
    others = dump(OURS.fit(known.take(np.arange(8)), 0))

    with pytest.raises(BadArtifact, match="damaged or belongs to another manifest"):
        load(dump(small) | {ARRAYS: others[ARRAYS]})


Files = dict[str, bytes]


def tell(files: Files, **changes: object) -> None:
    """Change entries of the manifest; None takes one away."""
    manifest = json.loads(files[MANIFEST]) | changes
    told = {name: value for name, value in manifest.items() if value is not None}
    files[MANIFEST] = json.dumps(told).encode()


def arrays_of(files: Files, content: bytes) -> None:
    """Other arrays, with a manifest that vouches for them."""
    files[ARRAYS] = content
    tell(files, sha256=hashlib.sha256(content).hexdigest())


def packed(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=True, **arrays)
    return buffer.getvalue()


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :]


DAMAGE: Mapping[str, tuple[Callable[[Files], object], str]] = {
    "cut arrays": (lambda at: at.update({ARRAYS: at[ARRAYS][:-30]}), "damaged or belongs"),
    "empty arrays": (lambda at: at.update({ARRAYS: b""}), "damaged or belongs"),
    "a flipped byte": (lambda at: at.update({ARRAYS: flipped(at[ARRAYS], 100)}), "damaged or belongs"),
    "another digest": (lambda at: tell(at, sha256="0" * 64), "damaged or belongs"),
    "no digest": (lambda at: tell(at, sha256=None), "sha256"),
    "vouched, but cut": (lambda at: arrays_of(at, at[ARRAYS][:-30]), "not a stored predictor"),
    "vouched, but empty": (lambda at: arrays_of(at, b""), "not a stored predictor"),
    "vouched, but no archive": (lambda at: arrays_of(at, b"weights"), "not a stored predictor"),
    "vouched, but a single array": (
        lambda at: arrays_of(at, b"\x93NUMPY\x01\x00" + bytes(64)),
        "not a stored predictor",
    ),
    "vouched, but without an array": (lambda at: arrays_of(at, packed(**{"model.weights": np.zeros(24)})), "centre"),
    "another version": (lambda at: tell(at, version=2), "version 2, 1 is expected"),
    "no version": (lambda at: tell(at, version=None), "version"),
    "fewer features": (lambda at: tell(at, features=COLUMNS[:-1]), COLUMNS[-1]),
    "features in disorder": (lambda at: tell(at, features=COLUMNS[::-1]), "their order"),
    "an unknown recipe": (lambda at: tell(at, recipe="forest"), "unknown recipe 'forest'"),
    "a recipe that is none": (lambda at: tell(at, recipe=["ours"]), "unknown recipe"),
    "features that are none": (lambda at: tell(at, features=3), "not a stored predictor"),
    "an unknown direction": (lambda at: tell(at, direction="sideways"), "'sideways'"),
    "a place that is none": (lambda at: tell(at, place=[]), "not a stored predictor"),
    "half a place": (lambda at: tell(at, place=["X"]), "not a stored predictor"),
    "victims that are none": (lambda at: tell(at, victims=3), "not a stored predictor"),
    "no JSON": (lambda at: at.update({MANIFEST: b'{"version": 1,'}), "not a stored predictor"),
    "no text": (lambda at: at.update({MANIFEST: b"\xff\xfe\x00"}), "not a stored predictor"),
    "an empty manifest": (lambda at: at.update({MANIFEST: b""}), "not a stored predictor"),
    "a manifest that is a list": (lambda at: at.update({MANIFEST: b"[1]"}), "not a stored predictor"),
}


@pytest.fixture
def unpickled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of pickle: nothing may be."""
    asked: list[str] = []
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_, name=name, **__: asked.append(name))
    return asked


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_noticed(damage: str, small: FittedPredictor, unpickled: list[str]) -> None:
    files = dump(small)
    assert load(files).recipe == "ours"
    change, why = DAMAGE[damage]
    change(files)

    with pytest.raises(BadArtifact, match=why):
        load(files)
    assert unpickled == []


def test_every_flipped_byte_of_vouched_arrays_is_noticed_or_harmless(small: FittedPredictor) -> None:
    """
    Whatever a byte breaks, in the archive's structure or in a compressed array, nothing but BadArtifact comes out.
    """
    files = dump(small)
    whole, noticed = files[ARRAYS], 0
    for position in range(0, len(whole), 7):
        arrays_of(files, flipped(whole, position))
        try:
            load(files)
        except BadArtifact:
            noticed += 1

    assert noticed > len(whole) // 7 // 2


class Bomb:
    def __reduce__(self) -> Any:
        return pytest.fail, ("code of a stored predictor was run",)


@pytest.mark.parametrize("name", ["model.weights", "scores.none", "something else"])
def test_no_code_of_a_file_is_run(name: str, small: FittedPredictor, unpickled: list[str]) -> None:
    files = dump(small)
    with np.load(io.BytesIO(files[ARRAYS]), allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    arrays_of(files, packed(**arrays | {name: np.array([Bomb()], object)}))

    with pytest.raises(BadArtifact, match="allow_pickle"):
        load(files)
    assert unpickled == []


def test_a_pickle_in_place_of_the_arrays_is_not_opened(small: FittedPredictor, unpickled: list[str]) -> None:
    files = dump(small)
    arrays_of(files, pickle.dumps(Bomb()))

    with pytest.raises(BadArtifact, match="not a stored predictor"):
        load(files)
    assert unpickled == []


def test_what_is_stored_are_arrays_of_numbers(small: FittedPredictor) -> None:
    files = dump(small)
    with np.load(io.BytesIO(files[ARRAYS]), allow_pickle=False) as stored:
        kinds = {name: stored[name].dtype.kind for name in stored.files}

    assert set(kinds.values()) == {"f"}
    assert {name.partition(".")[0] for name in kinds} == {"model", "scores"}
    assert isinstance(load(files).model, Ours)
