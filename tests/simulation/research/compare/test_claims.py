"""What a comparison may say: held, did not hold, cannot be said."""

import math

import pytest

from lab.research.compare.claims import Claim, ClaimVerdict, claims, judge
from lab.simulation.metrics import FIGURE_14, Interval, advantage


def interval(low: float, high: float) -> Interval:
    return Interval(mean=(low + high) / 2, low=low, high=high)


@pytest.mark.parametrize(
    ("metric", "low", "high", "verdict"),
    [
        ("dsr", -0.009, 0.02, ClaimVerdict.HELD),
        ("dsr", -0.009, -0.001, ClaimVerdict.HELD),
        ("dsr", -0.02, 0.02, ClaimVerdict.UNKNOWN),
        ("dsr", -0.02, -0.001, ClaimVerdict.FAILED),
        ("gui", 0.0, 0.0, ClaimVerdict.HELD),
        ("sfd", 0.001, 0.02, ClaimVerdict.HELD),
        ("sfd", -0.001, 0.02, ClaimVerdict.UNKNOWN),
        ("sfd", 0.0, 0.0, ClaimVerdict.EQUAL),
        ("sld", -0.002, -0.001, ClaimVerdict.FAILED),
        ("sld", math.nan, math.nan, ClaimVerdict.UNKNOWN),
    ],
)
def test_a_claim_is_judged_by_its_paired_interval(metric: str, low: float, high: float, verdict: ClaimVerdict) -> None:
    assert Claim(metric=metric, first="a", other="b").judge(interval(low, high)) is verdict


def test_a_paired_difference_can_be_told_where_the_means_overlap() -> None:
    """Seeds differ by far more than the policies; each seed says the same."""
    ours, theirs = [0.30, 0.60, 0.90, 0.45], [0.28, 0.58, 0.885, 0.43]

    assert Claim(metric="sfd", first="a", other="b").judge(advantage("sfd", theirs, ours)) is ClaimVerdict.HELD


def test_every_other_policy_is_claimed_against_by_all_four() -> None:
    found = claims(["smore", "elasticflow", "random"])

    assert [claim.name for claim in found] == [
        f"{m}.{o}" for o in ("elasticflow", "random") for m in ("dsr", "gui", "sfd", "sld")
    ]
    assert str(found[0]) == "deadlines met (DSR) of smore no worse than elasticflow's"
    assert str(found[1]) == "utilisation gained (GUI) of smore higher than elasticflow's"
    assert str(found[2]) == "degradation of trainings (SFD) of smore lower than elasticflow's"
    assert str(found[4]) == "deadlines met (DSR) of smore higher than random's"
    assert found[4].judge(interval(-0.009, 0.02)) is ClaimVerdict.UNKNOWN
    assert found[4].judge(interval(0.0, 0.0)) is ClaimVerdict.EQUAL


def test_signs_are_counted_over_worlds() -> None:
    """Equal is no worse, but not lower."""
    names = ["dsr.b", "gui.b", "sfd.b", "sld.b"]
    worlds = [dict.fromkeys(names, value) for value in (0.1, 0.0, -0.1, 0.2)]

    found = judge(["a", "b"], dict.fromkeys(names, interval(0.01, 0.02)), worlds, dict.fromkeys(names, 0.0))

    assert [one.worlds for one in found] == [0.75, 0.75, 0.5, 0.5]
    assert all(one.holds == 1.0 for one in found)
    assert found[0].remark == "its sign is lost in 25 % of the changed worlds"
    assert found[2].remark.endswith("without interference, where the policies do not differ")
    alone = judge(["a", "b"], dict.fromkeys(names, interval(0.01, 0.02)), [], {})
    assert math.isnan(alone[0].worlds) and alone[0].remark == ""


def test_the_paper_compares_utilisation_with_elasticflow_alone() -> None:
    of_paper = {
        str(claim.name)
        for claim in claims(["smore", "elasticflow", "random-all", "random-budget-b10", "smore-product-b10"])
        if claim.published
    }
    assert of_paper == {f"{metric}.elasticflow" for metric in FIGURE_14} | {
        f"{metric}.random-all" for metric in ("dsr", "sfd", "sld")
    }
    assert not any(claim.published for claim in claims(["smore-product", "random"]))
