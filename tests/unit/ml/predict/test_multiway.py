"""Eq. 3 and 4 by hand, what their weights learn, and what that is worth on rows that they have not seen."""

import math
import random
from collections.abc import Callable
from statistics import fmean

import pytest

from ml.measure.rows import BadRow, Role, Workload
from ml.predict.multiway import (
    HIGHEST,
    K_MAX,
    Neighbour,
    Observation,
    Pairs,
    Update,
    UpdateRule,
    Weights,
    evaluate,
    function_degradation,
    learn,
    mean_error,
    training_degradation,
    update_function,
    update_training,
)
from smore.messages.degradation import Weight

MODELS = ("vgg16", "mobilenet", "deepvit", "resnet50", "bert", "roberta", "deepfm", "segnet")
NLMS = UpdateRule()


def beside(*pairs: tuple[str, float]) -> list[Neighbour]:
    return [Neighbour(model=model, degradation=degradation) for model, degradation in pairs]


# ---- Eq. 3 and 4 -----------------------------------------------------------------------------------------------------


def test_all_weights_one_is_the_plain_sum() -> None:
    weights = Weights()

    assert training_degradation(weights, "vgg16", beside(("bert", 0.1), ("deepfm", 0.25))) == pytest.approx(0.35)
    assert function_degradation(
        weights, "bert", Neighbour(model="vgg16", degradation=2.0), beside(("deepfm", 0.5), ("segnet", 0.25))
    ) == pytest.approx(2.75)
    assert training_degradation(weights, "vgg16", []) == 0.0


def test_equation_3_by_hand() -> None:
    weights = Weights(learned={("training", 2, "vgg16", "bert"): 1.5, ("training", 2, "vgg16", "deepfm"): 0.5})

    assert training_degradation(weights, "vgg16", beside(("bert", 0.1), ("deepfm", 0.2))) == pytest.approx(0.25)


def test_equation_4_by_hand() -> None:
    weights = Weights(learned={("function", 3, "bert", "vgg16"): 0.5, ("functions", 3, "bert", "deepfm"): 2.0})
    training, others = Neighbour(model="vgg16", degradation=2.0), beside(("deepfm", 0.5), ("segnet", 0.25))

    assert function_degradation(weights, "bert", training, others) == pytest.approx(0.5 * 2.0 + 2.0 * 0.5 + 0.25)


def test_a_function_that_runs_several_times_counts_as_often() -> None:
    weights = Weights(learned={("training", 3, "vgg16", "bert"): 2.0})

    # Two batches of one model share a weight.
    assert training_degradation(
        weights, "vgg16", beside(("bert", 0.1), ("bert", 0.3), ("deepfm", 0.2))
    ) == pytest.approx(1.0)


def test_a_pair_has_no_weight() -> None:
    """k = 1 is frozen (A11), and two functions without a training are a pair."""
    weights = Weights()

    assert update_training(weights, "vgg16", beside(("bert", 0.1)), 0.5, NLMS) == pytest.approx(0.4)
    update_function(weights, "bert", Neighbour(model="vgg16", degradation=1.0), [], 3.0, NLMS)
    update_function(weights, "bert", None, beside(("deepfm", 1.0)), 3.0, NLMS)

    assert weights.learned == {}
    # Learned beside a training, not applied to the pair.
    weights.learned["functions", 2, "bert", "deepfm"] = 3.0
    assert function_degradation(weights, "bert", None, beside(("deepfm", 1.0))) == 1.0


def test_an_unseen_k_starts_from_the_one_below() -> None:
    weights = Weights(learned={("training", 2, "vgg16", "bert"): 1.5})

    assert weights.value("training", 3, "vgg16", "bert") == 1.5
    assert weights.value("training", 2, "vgg16", "deepfm") == 1.0
    update_training(weights, "vgg16", beside(*[("bert", 0.1)] * 3), 0.45, NLMS)  # exactly what is predicted
    assert weights.learned["training", 3, "vgg16", "bert"] == pytest.approx(1.5)


def test_more_functions_than_k_max_are_weighed_as_k_max() -> None:
    weights = Weights()
    many = beside(*[("bert", 0.1)] * (K_MAX + 4))

    update_training(weights, "vgg16", many, 2.4, NLMS)

    assert [k for _, k, _, _ in weights.learned] == [K_MAX]
    assert training_degradation(weights, "vgg16", many) > 1.2


# ---- updates ---------------------------------------------------------------------------------------------------------


def test_updates_by_hand() -> None:
    """e = 0.5 - 0.3 = 0.2; x = 0.1 and 0.2 (A10)."""
    expected: dict[Update, tuple[float, float]] = {
        "nlms": (1 + 0.1 * 0.2 * 0.1 / (0.05 + 1e-3), 1 + 0.1 * 0.2 * 0.2 / (0.05 + 1e-3)),
        "literal": (1.02, 1.02),
        "grad": (1.002, 1.004),
    }
    for update, values in expected.items():
        weights = Weights()
        error = update_training(
            weights, "vgg16", beside(("bert", 0.1), ("deepfm", 0.2)), 0.5, UpdateRule(update=update)
        )
        assert error == pytest.approx(0.2)
        learned = [weights.value("training", 2, "vgg16", other) for other in ("bert", "deepfm")]
        assert learned == pytest.approx(values), update


def test_off_learns_nothing() -> None:
    weights = Weights()
    update_training(weights, "vgg16", beside(("bert", 0.1), ("deepfm", 0.2)), 0.5, UpdateRule(update="off"))

    assert weights.learned == {}


def test_weights_stay_within_their_bounds() -> None:
    weights, several = Weights(), beside(("bert", 0.1), ("deepfm", 0.2))
    for _ in range(100):
        update_training(weights, "vgg16", several, 1e6, NLMS)
    assert weights.value("training", 2, "vgg16", "bert") == HIGHEST
    for _ in range(100):
        update_training(weights, "vgg16", several, -1e6, NLMS)
    assert weights.value("training", 2, "vgg16", "bert") == 0.0


def test_neighbours_that_cost_nothing_take_no_blame() -> None:
    weights = Weights()
    update_training(weights, "vgg16", beside(("bert", 1e-9), ("deepfm", 0.0)), 0.5, NLMS)

    assert weights.value("training", 2, "vgg16", "bert") == pytest.approx(1.0)
    assert weights.value("training", 2, "vgg16", "deepfm") == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1])
def test_bad_numbers_are_refused_and_leave_the_weights(bad: float) -> None:
    weights = Weights()
    with pytest.raises(BadRow, match="bert"):
        training_degradation(weights, "vgg16", beside(("bert", bad)))
    with pytest.raises(BadRow, match="bert"):
        update_training(weights, "vgg16", beside(("deepfm", 0.1), ("bert", bad)), 0.5, NLMS)
    if not math.isfinite(bad):
        with pytest.raises(BadRow, match="observed"):
            update_training(weights, "vgg16", beside(("deepfm", 0.1), ("bert", 0.1)), bad, NLMS)
    assert weights.learned == {}


@pytest.mark.parametrize("fields", [{"update": "sgd"}, {"eta": 0.0}, {"eta": 2.0}, {"eps": 0.0}])
def test_a_rule_that_cannot_work_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        UpdateRule(**fields)  # type: ignore[arg-type]


# ---- what weights learn ----------------------------------------------------------------------------------------------


class Generator:
    """
    Pairs drawn at random and a truth for several functions: ``truth(sum of pairs, k)``.

    Eight models; degradations of trainings 0.02..0.3, of functions 0.5..4 by a training and 0.3..1.5 by a function.
    """

    def __init__(self, truth: Callable[[float, int], float], noise: float = 0.0) -> None:
        self._truth, self._noise = truth, noise
        self._random = random.Random(7)
        draw = self._random.uniform
        self.tr = {(i, j): draw(0.02, 0.3) for i in MODELS for j in MODELS}
        self.fn = {(j, i): draw(0.5, 4.0) for i in MODELS for j in MODELS}
        self.ff = {(j, w): draw(0.3, 1.5) for w in MODELS for j in MODELS}

    def training(self) -> tuple[str, list[Neighbour], float]:
        k = self._random.randint(2, 4)
        i, functions = self._random.choice(MODELS), self._random.choices(MODELS, k=k)
        neighbours = [Neighbour(model=j, degradation=self.tr[i, j]) for j in functions]
        return i, neighbours, self._actual(sum(one.degradation for one in neighbours), k)

    def function(self) -> tuple[str, Neighbour, list[Neighbour], float]:
        k = self._random.randint(2, 4)
        i, j, others = self._random.choice(MODELS), self._random.choice(MODELS), self._random.choices(MODELS, k=k - 1)
        training = Neighbour(model=i, degradation=self.fn[j, i])
        neighbours = [Neighbour(model=w, degradation=self.ff[j, w]) for w in others]
        plain = training.degradation + sum(one.degradation for one in neighbours)
        return j, training, neighbours, self._actual(plain, k)

    def _actual(self, plain: float, k: int) -> float:
        return self._truth(plain, k) * (1 + self._random.gauss(0, self._noise))


def super_additive(plain: float, k: int) -> float:
    """Every further function makes all of them worse."""
    return plain * (1 + 0.35 * (k - 1))


def processor_sharing(plain: float, k: int) -> float:
    """Neighbours stand in each other's way too, so that together they cost less than the sum."""
    return plain / (1 + 0.2 * (k - 1))


@pytest.mark.parametrize(("update", "gain"), [("nlms", 3.0), ("literal", 3.0)])
@pytest.mark.parametrize("truth", [super_additive, processor_sharing])
def test_3000_updates_cut_the_error_of_eq_3_to_a_third(
    update: Update, gain: float, truth: Callable[[float, int], float]
) -> None:
    """Learned weights err less than weights of one on sets of functions."""
    generator, weights = Generator(truth), Weights()

    def error() -> float:
        return fmean(
            abs(actual - training_degradation(weights, i, beside_))
            for i, beside_, actual in (generator.training() for _ in range(500))
        )

    before = error()
    for _ in range(3000):
        i, functions, actual = generator.training()
        update_training(weights, i, functions, actual, UpdateRule(update=update))

    assert before / error() >= gain


@pytest.mark.parametrize("truth", [super_additive, processor_sharing])
def test_3000_updates_cut_the_error_of_eq_4_to_a_third(truth: Callable[[float, int], float]) -> None:
    generator, weights = Generator(truth, noise=0.05), Weights()

    def error() -> float:
        drawn = [generator.function() for _ in range(500)]
        return fmean(
            abs(actual - function_degradation(weights, j, training, others)) for j, training, others, actual in drawn
        )

    before = error()
    for _ in range(3000):
        j, training, others, actual = generator.function()
        update_function(weights, j, training, others, actual, NLMS)

    assert before / error() >= 3.0


# ---- persistence -----------------------------------------------------------------------------------------------------


def test_published_weights_read_back_the_same() -> None:
    weights = Weights(
        learned={
            ("training", 2, "vgg16", "bert"): 1.5,
            ("training", 4, "vgg16", "bert"): 0.5,
            ("function", 3, "bert", "vgg16"): 1.0,
            ("functions", K_MAX, "bert", "deepfm"): 2.5,
        }
    )
    published = weights.published()

    assert Weights.of(published).learned == weights.learned
    # Without gaps from the first learned k on.
    assert [(w.k, w.value) for w in published if w.kind == "training"] == [(2, 1.5), (3, 1.5)] + [
        (k, 0.5) for k in range(4, K_MAX + 1)
    ]
    assert {w.k for w in published if w.kind == "functions"} == {K_MAX}
    assert Weights().published() == []


@pytest.mark.parametrize(
    "fields", [{"k": 1}, {"k": K_MAX + 1}, {"value": math.nan}, {"value": -1.0}, {"kind": "other"}]
)
def test_weights_that_cannot_be_are_refused(fields: dict[str, object]) -> None:
    values: dict[str, object] = {"kind": "training", "k": 2, "victim": "vgg16", "other": "bert", "value": 1.0}
    with pytest.raises(BadRow, match="not a weight"):
        Weights.of([Weight(**(values | fields))])  # type: ignore[arg-type]


# ---- on observations -------------------------------------------------------------------------------------------------


def workload(model: str, role: Role) -> Workload:
    return Workload(model=model, preset="cpu", role=role, batch=1)


def known(generator: Generator) -> Pairs:
    return {
        "training": lambda i, j: generator.tr[i.model, j.model],
        "function": lambda j, i: generator.fn[j.model, i.model],
        "functions": lambda j, w: generator.ff[j.model, w.model],
    }


def observed(
    generator: Generator,
    training: str,
    functions: list[str],
    at: float = 0.0,
    truth: Callable[[float, int], float] = super_additive,
) -> list[Observation]:
    """What each member of a set meets; the pairs are the generator's."""
    k, first, rest = len(functions), workload(training, "training"), [workload(j, "function") for j in functions]
    plain = sum(generator.tr[training, j] for j in functions)
    found = [Observation(victim=first, beside=tuple(rest), actual=truth(plain, k), at=at)]
    for number, j in enumerate(rest):
        others = [*rest[:number], *rest[number + 1 :]]
        plain = generator.fn[j.model, training] + sum(generator.ff[j.model, w.model] for w in others)
        found.append(Observation(victim=j, beside=(first, *others), actual=truth(plain, k), at=at))
    return found


def test_evaluation_holds_out_whole_sets_of_workloads() -> None:
    generator, draw = Generator(super_additive), random.Random(3)
    few = MODELS[:3]
    sets = {(draw.choice(few[:2]), *sorted(draw.choices(few, k=draw.randint(2, 3)))) for _ in range(200)}
    measured = [
        one
        for i, *functions in sorted(sets)
        for repeat in range(2)
        for one in observed(generator, i, functions, at=repeat)
    ]

    found = evaluate(measured, known(generator))

    assert found.training is not None
    assert found.function is not None
    assert (found.training.n, found.training.groups) == (2 * len(sets), len(sets))
    assert found.function.n == sum(2 * (len(one) - 1) for one in sets)
    for errors in (found.training, found.function):
        assert errors.in_sample < errors.ones / 3
        assert errors.in_sample <= errors.learned < errors.ones / 2


def test_evaluation_of_nothing_is_nothing() -> None:
    found = evaluate([], {})

    assert (found.training, found.function) == (None, None)


def test_evaluation_does_not_learn_from_what_it_judges() -> None:
    """One set of workloads alone: its weights are learned from nothing, so they stay one."""
    generator = Generator(super_additive)
    measured = [one for repeat in range(3) for one in observed(generator, "vgg16", ["bert", "bert"], at=repeat)]

    found = evaluate(measured, known(generator))

    assert found.training is not None
    assert found.training.learned == found.training.ones
    assert found.training.in_sample < found.training.ones / 10


def test_observations_teach_the_weights_of_their_models() -> None:
    generator = Generator(super_additive)
    measured = [*observed(generator, "vgg16", ["bert", "bert"]), *observed(generator, "vgg16", ["deepfm"])]

    weights = learn(measured, known(generator))

    # Twice the same function: one weight says it all. The pair teaches nothing.
    assert weights.learned["training", 2, "vgg16", "bert"] == pytest.approx(1.35, rel=0.05)
    assert {(kind, k, victim, other) for kind, k, victim, other in weights.learned} == {
        ("training", 2, "vgg16", "bert"),
        ("function", 2, "bert", "vgg16"),
        ("functions", 2, "bert", "bert"),
    }
    assert (
        mean_error(weights, measured[:3], known(generator)) < mean_error(Weights(), measured[:3], known(generator)) / 10
    )


def test_the_newest_observation_has_the_last_word() -> None:
    """
    The device changed: what was super-additive is a plain sum now. The order in which they are given does not matter.
    """
    generator = Generator(super_additive)
    older = observed(generator, "vgg16", ["bert", "bert"], at=1.0)[:1]
    newer = observed(generator, "vgg16", ["bert", "bert"], at=2.0, truth=lambda plain, _: plain)[:1]

    weights = learn([*newer, *older], known(generator), rule=UpdateRule(eta=1.0), epochs=1)

    assert weights.learned["training", 2, "vgg16", "bert"] == pytest.approx(1.0, abs=0.05)
