"""
What the paper says of its figure 14, made into claims that a comparison can refuse (section VIII-D).

A claim names a metric and the policy that the first one is held against. It is judged on the paired differences over
seeds, by their 95 % interval, and has three outcomes: nobody can say more than the seeds do. Beside that stands in how
many other worlds the mean difference has the sign that the claim wants: with every demand and exponent x U(0.7, 1.3),
and in one in which nothing interferes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduler.simulation.metrics import FIGURE_14, TOLERANCE, Interval

#: "At least" is claimed of what is to be large, "lower" of degradations; and what each metric is called.
AT_LEAST: Final = frozenset({"dsr", "gui"})
TITLES: Final[Mapping[str, str]] = {
    "dsr": "deadlines met (DSR)",
    "gui": "utilisation gained (GUI)",
    "sfd": "degradation of trainings (SFD)",
    "sld": "degradation of functions (SLD)",
}
#: Differences below this are rounding.
TIE: Final = 1e-9


class Verdict(StrEnum):
    HELD = "held"
    FAILED = "did not hold"
    UNKNOWN = "cannot be said"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """``first`` against ``other`` by one metric of figure 14."""

    metric: str
    first: str
    other: str

    @property
    def name(self) -> str:
        return f"{self.metric}.{self.other}"

    @property
    def published(self) -> bool:
        """Whether the paper says it of its own scheduler; of utilisation it compares itself with ElasticFlow alone."""
        theirs = self.other == "elasticflow" or (self.other.startswith(("edf-util", "random")) and self.metric != "gui")
        return self.first == "smore" and theirs

    def __str__(self) -> str:
        relation = "no worse than" if self.metric in AT_LEAST else "lower than"
        return f"{TITLES[self.metric]} of {self.first} {relation} {self.other}'s"

    def judge(self, advantage: Interval) -> Verdict:
        """
        ``advantage``: paired, positive = better.

        At least as good: held where the deficit's upper bound is at most a point. Lower: held where the whole interval
        is. Either did not hold where the whole interval is on the other side. A single seed says nothing.
        """
        if math.isnan(advantage.low):
            return Verdict.UNKNOWN
        if advantage.low >= -TOLERANCE if self.metric in AT_LEAST else advantage.low > TIE:
            return Verdict.HELD
        return Verdict.FAILED if advantage.high < -TIE else Verdict.UNKNOWN

    def sign(self, difference: float) -> bool:
        """Whether a mean advantage in one world has the sign that is claimed: equal is no worse, but not lower."""
        return difference >= -TIE if self.metric in AT_LEAST else difference > TIE


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """
    ``worlds``: share of the changed worlds in which the sign is the claimed one, NaN without any; ``calm``: without
    interference.
    """

    claim: Claim
    advantage: Interval
    verdict: Verdict
    worlds: float
    calm: float

    @property
    def holds(self) -> float:
        """1 held, 0 did not, NaN cannot be said."""
        return {Verdict.HELD: 1.0, Verdict.FAILED: 0.0}.get(self.verdict, math.nan)

    @property
    def remark(self) -> str:
        """What must be added to a claim that held where it does not hold everywhere."""
        if self.verdict is not Verdict.HELD:
            return ""
        lost = (
            []
            if math.isnan(self.worlds) or self.worlds == 1.0
            else [f"in {100 * (1 - self.worlds):.0f} % of the changed worlds"]
        )
        if abs(self.calm) <= TIE and self.claim.metric not in AT_LEAST:
            lost.append("without interference, where there is nothing to tell apart")
        elif not math.isnan(self.calm) and not self.claim.sign(self.calm):
            lost.append("without interference")
        return f"its sign is lost {' and '.join(lost)}" if lost else ""


def claims(policies: Sequence[str]) -> list[Claim]:
    """The first policy against each other one, by all four metrics."""
    first, *others = policies
    return [Claim(metric=metric, first=first, other=other) for other in others for metric in FIGURE_14]


def judge(
    policies: Sequence[str],
    advantages: Mapping[str, Interval],
    worlds: Sequence[Mapping[str, float]],
    calm: Mapping[str, float],
) -> list[Judged]:
    """
    ``advantages``: claim's name → paired interval over seeds; ``worlds``: of each changed world claim's name → mean
    advantage; ``calm``: the same without interference, empty where it was not run.
    """
    found = []
    for claim in claims(policies):
        kept = [claim.sign(world[claim.name]) for world in worlds]
        advantage = advantages[claim.name]
        found.append(
            Judged(
                claim=claim,
                advantage=advantage,
                verdict=claim.judge(advantage),
                worlds=sum(kept) / len(kept) if kept else math.nan,
                calm=calm.get(claim.name, math.nan),
            )
        )
    return found
