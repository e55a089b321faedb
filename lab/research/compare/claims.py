"""
The statements of the paper about its figure 14, as claims that a comparison can refute (section VIII-D).

A claim names a metric and the policy that the first policy is compared with. It is judged by the 95 % interval of the
paired differences over seeds, with three outcomes. In addition, the share of changed worlds is given in which the mean
difference has the claimed sign: worlds with every demand and exponent x U(0.7, 1.3), and one without interference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lab.simulation.metrics import FIGURE_14, TOLERANCE, Interval

#: Metrics of which large values are better: the paper claims "higher" of them, our own claims are "no worse"; of the
#: others the claim is "lower". Then the names of the metrics.
AT_LEAST: Final = frozenset({"dsr", "gui"})
TITLES: Final[Mapping[str, str]] = {
    "dsr": "deadlines met (DSR)",
    "gui": "utilisation gained (GUI)",
    "sfd": "degradation of trainings (SFD)",
    "sld": "degradation of functions (SLD)",
}
#: Smaller differences are rounding errors.
TIE: Final = 1e-9
#: How verdicts are reached, for whoever reads them.
RULE: Final = (
    f"“No worse” holds if the deficit is at most {100 * TOLERANCE:g} point with 95 % confidence, “higher” and “lower” if the"
    " whole interval is on that side. Each did not hold if the whole interval is on the other side, “higher” and “lower”"
    " also where the two are equal in every one of several seeds; else it cannot be said."
)


class ClaimVerdict(StrEnum):
    HELD = "held"
    FAILED = "did not hold"
    EQUAL = "equal"
    UNKNOWN = "cannot be said"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A comparison of ``first`` with ``other`` by one metric of figure 14."""

    metric: str
    first: str
    other: str

    @property
    def name(self) -> str:
        return f"{self.metric}.{self.other}"

    @property
    def published(self) -> bool:
        """Whether the paper claims it of its own scheduler; its utilisation is compared with ElasticFlow only."""
        baseline = self.other.startswith(("edf-util", "random")) and not self.other.startswith("random-budget")
        theirs = self.other == "elasticflow" or (baseline and self.metric != "gui")
        return self.first == "smore" and theirs

    @property
    def no_worse(self) -> bool:
        """
        Whether it allows a deficit. The paper's own claims do not: more deadlines than Random and EDF-util, a higher
        utilisation than ElasticFlow.
        """
        higher = self.published and (self.metric == "gui" or self.other != "elasticflow")
        return self.metric in AT_LEAST and not higher

    def __str__(self) -> str:
        relation = "no worse than" if self.no_worse else "higher than" if self.metric in AT_LEAST else "lower than"
        return f"{TITLES[self.metric]} of {self.first} {relation} {self.other}'s"

    def judge(self, advantage: Interval) -> ClaimVerdict:
        """
        ``advantage``: paired, positive = better.

        "No worse" holds if the deficit's upper bound is within the tolerance; "higher" and "lower" hold if the whole
        interval is positive. Each failed if the whole interval is on the other side; these two also where the interval
        is 0 to 0 (the two are equal in every seed). A single seed has no interval: unknown.
        """
        if math.isnan(advantage.low):
            return ClaimVerdict.UNKNOWN
        if advantage.low >= -TOLERANCE if self.no_worse else advantage.low > TIE:
            return ClaimVerdict.HELD
        if advantage.low == advantage.high == 0.0:
            return ClaimVerdict.EQUAL
        return ClaimVerdict.FAILED if advantage.high < -TIE else ClaimVerdict.UNKNOWN

    def sign(self, difference: float) -> bool:
        """Whether the mean advantage in one world has the claimed sign; equal is "no worse" alone."""
        return difference >= -TIE if self.no_worse else difference > TIE


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedClaim:
    """
    ``worlds``: share of the changed worlds with the claimed sign, NaN without any. ``calm``: the mean advantage without
    interference.
    """

    claim: Claim
    advantage: Interval
    verdict: ClaimVerdict
    worlds: float
    calm: float

    @property
    def equal(self) -> bool:
        """Whether the two policies have the same figure in every one of several seeds."""
        return self.advantage.low == self.advantage.high == 0.0

    @property
    def holds(self) -> float:
        """1 = held, 0 = failed or equal, NaN = unknown."""
        return {ClaimVerdict.HELD: 1.0, ClaimVerdict.FAILED: 0.0, ClaimVerdict.EQUAL: 0.0}.get(self.verdict, math.nan)

    @property
    def remark(self) -> str:
        """The worlds in which a claim that held loses its sign, '' if there are none."""
        if self.verdict is not ClaimVerdict.HELD:
            return ""
        lost = (
            []
            if math.isnan(self.worlds) or self.worlds == 1.0
            else [f"in {100 * (1 - self.worlds):.0f} % of the changed worlds"]
        )
        if abs(self.calm) <= TIE and not self.claim.no_worse:
            lost.append("without interference, where the policies do not differ")
        elif not math.isnan(self.calm) and not self.claim.sign(self.calm):
            lost.append("without interference")
        return f"its sign is lost {' and '.join(lost)}" if lost else ""


def claims(policies: Sequence[str]) -> list[Claim]:
    """The first policy compared with each other one, by all four metrics."""
    first, *others = policies
    return [Claim(metric=metric, first=first, other=other) for other in others for metric in FIGURE_14]


def judge(
    policies: Sequence[str],
    advantages: Mapping[str, Interval],
    worlds: Sequence[Mapping[str, float]],
    calm: Mapping[str, float],
) -> list[JudgedClaim]:
    """
    ``advantages``: claim's name → paired interval over seeds; ``worlds``: of each changed world claim's name → mean
    advantage; ``calm``: the same without interference, empty where it was not run.
    """
    judged = []
    for claim in claims(policies):
        kept = [claim.sign(world[claim.name]) for world in worlds]
        advantage = advantages[claim.name]
        judged.append(
            JudgedClaim(
                claim=claim,
                advantage=advantage,
                verdict=claim.judge(advantage),
                worlds=sum(kept) / len(kept) if kept else math.nan,
                calm=calm.get(claim.name, math.nan),
            )
        )
    return judged
