"""What observations teach the weights of Eq. 3 and 4, and what that is worth on rows that they have not seen."""

import math
import random
from collections.abc import Callable

import pytest

from ml.predict.multiway import Observation, Pairs, learn, mean_error, published, weights_of
from ml.rows import BadRow, Role, Workload
from smore.domain import degradation
from smore.domain.degradation import K_MAX, Weights
from smore.messages.degradation import Weight
from tests.support.several import MODELS, Generator, super_additive

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
    listed = published(weights)

    assert weights_of(listed).learned == weights.learned
    # Without gaps from the first learned k on.
    assert [(w.k, w.value) for w in listed if w.kind == "training"] == [(2, 1.5), (3, 1.5)] + [
        (k, 0.5) for k in range(4, K_MAX + 1)
    ]
    assert {w.k for w in listed if w.kind == "functions"} == {K_MAX}
    assert published(Weights()) == []


@pytest.mark.parametrize(
    "fields", [{"k": 1}, {"k": K_MAX + 1}, {"value": math.nan}, {"value": -1.0}, {"kind": "other"}]
)
def test_weights_that_cannot_be_are_refused(fields: dict[str, object]) -> None:
    values: dict[str, object] = {"kind": "training", "k": 2, "victim": "vgg16", "other": "bert", "value": 1.0}
    with pytest.raises(BadRow, match="not a weight"):
        weights_of([Weight(**(values | fields))])  # type: ignore[arg-type]


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


def test_weights_are_worth_something_on_sets_of_workloads_that_they_have_not_seen() -> None:
    generator, draw = Generator(super_additive), random.Random(3)
    few = MODELS[:3]
    sets = {(draw.choice(few[:2]), *sorted(draw.choices(few, k=draw.randint(2, 3)))) for _ in range(200)}
    measured = [
        one
        for i, *functions in sorted(sets)
        for repeat in range(2)
        for one in observed(generator, i, functions, at=repeat)
    ]

    pairs, apart = known(generator), sorted({one.group for one in measured})
    weights = {group: learn([one for one in measured if one.group != group], pairs) for group in apart}
    for side in ("training", "function"):
        judged = [one for one in measured if one.side == side]
        learned = [mean_error(weights[one.group], [one], pairs) for one in judged]
        assert math.fsum(learned) / len(learned) < mean_error(Weights(), judged, pairs) / 2


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


def test_the_newest_observation_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The device changed: what was super-additive is a plain sum now. The order in which they are given does not matter.
    """
    generator = Generator(super_additive)
    older = observed(generator, "vgg16", ["bert", "bert"], at=1.0)[:1]
    newer = observed(generator, "vgg16", ["bert", "bert"], at=2.0, truth=lambda plain, _: plain)[:1]

    monkeypatch.setattr(degradation, "ETA", 1.0)
    weights = learn([*newer, *older], known(generator), epochs=1)

    assert weights.learned["training", 2, "vgg16", "bert"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1])
def test_bad_numbers_are_refused(bad: float) -> None:
    generator = Generator(super_additive)
    measured = observed(generator, "vgg16", ["bert", "deepfm"])
    if not math.isfinite(bad):
        broken = Observation(victim=measured[0].victim, beside=measured[0].beside, actual=bad, at=0.0)
        with pytest.raises(BadRow, match="observed"):
            learn([broken], known(generator))
    generator.tr["vgg16", "bert"] = bad
    with pytest.raises(BadRow, match="bert"):
        learn(measured, known(generator))


def test_without_a_training_a_set_of_k_has_the_weights_of_one_less() -> None:
    """As the policy reads them: three functions alone are two neighbours each."""
    generator = Generator(super_additive)
    victim, *others = [workload(model, "function") for model in ("bert", "deepfm", "segnet")]

    weights = learn([Observation(victim=victim, beside=tuple(others), actual=3.0, at=0.0)], known(generator))

    assert {k for _, k, _, _ in weights.learned} == {2}
