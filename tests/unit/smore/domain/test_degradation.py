"""Eq. 3 and 4 by hand, and how their weights learn."""

from collections.abc import Callable
from statistics import fmean

import pytest

from smore.domain.degradation import (
    HIGHEST,
    K_MAX,
    Neighbour,
    Weights,
    of_function,
    of_training,
)
from tests.support.several import Generator, processor_sharing, super_additive


def beside(*pairs: tuple[str, float]) -> list[Neighbour[str]]:
    return [Neighbour(model, degradation) for model, degradation in pairs]


def training_degradation(weights: Weights, training: str, functions: list[Neighbour[str]]) -> float:
    return of_training(training, functions).value(weights.value)


def function_degradation(
    weights: Weights, function: str, training: Neighbour[str] | None, others: list[Neighbour[str]]
) -> float:
    return of_function(function, [training] if training else [], others).value(weights.value)


def update_training(weights: Weights, training: str, functions: list[Neighbour[str]], actual: float) -> float:
    return weights.learn(of_training(training, functions), actual)


def update_function(
    weights: Weights,
    function: str,
    training: Neighbour[str] | None,
    others: list[Neighbour[str]],
    actual: float,
) -> float:
    return weights.learn(of_function(function, [training] if training else [], others), actual)


# ---- Eq. 3 and 4 -----------------------------------------------------------------------------------------------------


def test_all_weights_one_is_the_plain_sum() -> None:
    weights = Weights()

    assert training_degradation(weights, "vgg16", beside(("bert", 0.1), ("deepfm", 0.25))) == pytest.approx(0.35)
    assert function_degradation(
        weights, "bert", Neighbour("vgg16", 2.0), beside(("deepfm", 0.5), ("segnet", 0.25))
    ) == pytest.approx(2.75)
    assert training_degradation(weights, "vgg16", []) == 0.0


def test_equation_3_by_hand() -> None:
    weights = Weights(learned={("training", 2, "vgg16", "bert"): 1.5, ("training", 2, "vgg16", "deepfm"): 0.5})

    assert training_degradation(weights, "vgg16", beside(("bert", 0.1), ("deepfm", 0.2))) == pytest.approx(0.25)


def test_equation_4_by_hand() -> None:
    weights = Weights(learned={("function", 3, "bert", "vgg16"): 0.5, ("functions", 3, "bert", "deepfm"): 2.0})
    training, others = Neighbour("vgg16", 2.0), beside(("deepfm", 0.5), ("segnet", 0.25))

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

    assert update_training(weights, "vgg16", beside(("bert", 0.1)), 0.5) == pytest.approx(0.4)
    update_function(weights, "bert", Neighbour("vgg16", 1.0), [], 3.0)
    update_function(weights, "bert", None, beside(("deepfm", 1.0)), 3.0)

    assert weights.learned == {}
    # Learned beside a training, not applied to the pair.
    weights.learned["functions", 2, "bert", "deepfm"] = 3.0
    assert function_degradation(weights, "bert", None, beside(("deepfm", 1.0))) == 1.0


def test_an_unseen_k_starts_from_the_one_below() -> None:
    weights = Weights(learned={("training", 2, "vgg16", "bert"): 1.5})

    assert weights.value("training", 3, "vgg16", "bert") == 1.5
    assert weights.value("training", 2, "vgg16", "deepfm") == 1.0
    update_training(weights, "vgg16", beside(*[("bert", 0.1)] * 3), 0.45)  # exactly what is predicted
    assert weights.learned["training", 3, "vgg16", "bert"] == pytest.approx(1.5)


def test_more_functions_than_k_max_are_weighed_as_k_max() -> None:
    weights = Weights()
    many = beside(*[("bert", 0.1)] * (K_MAX + 4))

    update_training(weights, "vgg16", many, 2.4)

    assert [k for _, k, _, _ in weights.learned] == [K_MAX]
    assert training_degradation(weights, "vgg16", many) > 1.2


# ---- updates ---------------------------------------------------------------------------------------------------------


def test_updates_by_hand() -> None:
    """e = 0.5 - 0.3 = 0.2; x = 0.1 and 0.2 (A10)."""
    weights = Weights()
    error = update_training(weights, "vgg16", beside(("bert", 0.1), ("deepfm", 0.2)), 0.5)
    assert error == pytest.approx(0.2)
    learned = [weights.value("training", 2, "vgg16", other) for other in ("bert", "deepfm")]
    assert learned == pytest.approx([1 + 0.1 * 0.2 * 0.1 / (0.05 + 1e-3), 1 + 0.1 * 0.2 * 0.2 / (0.05 + 1e-3)])


def test_weights_stay_within_their_bounds() -> None:
    weights, several = Weights(), beside(("bert", 0.1), ("deepfm", 0.2))
    for _ in range(100):
        update_training(weights, "vgg16", several, 1e6)
    assert weights.value("training", 2, "vgg16", "bert") == HIGHEST
    for _ in range(100):
        update_training(weights, "vgg16", several, -1e6)
    assert weights.value("training", 2, "vgg16", "bert") == 0.0


def test_neighbours_that_cost_nothing_take_no_blame() -> None:
    weights = Weights()
    update_training(weights, "vgg16", beside(("bert", 1e-9), ("deepfm", 0.0)), 0.5)

    assert weights.value("training", 2, "vgg16", "bert") == pytest.approx(1.0)
    assert weights.value("training", 2, "vgg16", "deepfm") == 1.0


# ---- what weights learn ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truth", [super_additive, processor_sharing])
def test_3000_updates_cut_the_error_of_eq_3_to_a_third(truth: Callable[[float, int], float]) -> None:
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
        update_training(weights, i, functions, actual)

    assert before / error() >= 3.0


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
        update_function(weights, j, training, others, actual)

    assert before / error() >= 3.0
