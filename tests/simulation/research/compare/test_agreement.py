"""Agreement of two sides: order, error, and what neither side can tell."""

import math

import pytest

from lab.research.compare.agreement import agreement

MEASURED = {"a": [0.9, 0.92, 0.91], "b": [0.7, 0.72, 0.69], "c": [0.5, 0.49, 0.52]}


def shifted(by: float) -> dict[str, list[float]]:
    return {name: [value + by for value in values] for name, values in MEASURED.items()}


def test_the_same_order_with_an_offset() -> None:
    found = agreement("dsr", MEASURED, shifted(0.05))

    assert (found.spearman, found.kendall) == (pytest.approx(1), pytest.approx(1))
    assert (found.apart, found.alike) == (3, 3)
    assert found.error.mean == found.bias.mean == pytest.approx(0.05)
    assert found.error.low == pytest.approx(0.05) == found.error.high


def test_the_reverse_order() -> None:
    found = agreement("dsr", MEASURED, {"a": MEASURED["c"], "b": MEASURED["b"], "c": MEASURED["a"]})

    assert (found.spearman, found.kendall) == (pytest.approx(-1), pytest.approx(-1))
    assert (found.apart, found.alike) == (3, 0)
    assert found.bias.mean == pytest.approx(0, abs=1e-9)
    assert found.error.mean == pytest.approx(2 * (sum(MEASURED["a"]) - sum(MEASURED["c"])) / 9)


def test_errors_of_both_signs_do_not_cancel_and_their_interval_is_over_repeats() -> None:
    found = agreement("dsr", {"a": [0.5, 0.5], "b": [0.5, 0.5]}, {"a": [0.6, 0.7], "b": [0.4, 0.3]})

    assert found.bias.mean == pytest.approx(0)
    assert found.error.mean == pytest.approx(0.15)
    assert found.error.low < 0.1 < 0.2 < found.error.high


def test_what_is_level_has_no_order() -> None:
    found = agreement("dsr", MEASURED, {name: [0.5, 0.5, 0.5] for name in MEASURED})

    assert math.isnan(found.spearman) and math.isnan(found.kendall)
    assert (found.apart, found.alike) == (3, 0)


def test_policies_that_scatter_are_not_told_apart() -> None:
    measured = {"a": [0.1, 0.9, 0.2], "b": [0.8, 0.1, 0.4]}

    assert agreement("dsr", measured, {"a": [1.0, 1.0, 1.0], "b": [0.0, 0.0, 0.0]}).apart == 0


def test_a_policy_without_a_value_is_left_out() -> None:
    found = agreement("sld", MEASURED, shifted(0.0) | {"b": [0.1, math.nan, 0.1]})

    assert found.policies == ("a", "c")
    assert found.spearman == pytest.approx(1)
    assert agreement("sld", {"a": [math.nan]}, {"a": [1.0]}).policies == ()


def test_sides_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="dsr: both sides need the same policies"):
        agreement("dsr", MEASURED, {"a": MEASURED["a"]})
