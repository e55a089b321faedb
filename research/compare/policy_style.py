"""How policies look in every picture of a comparison, and bars with their intervals."""

import math
from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes

from research.style import BLUE, GREEN, GREY, ORANGE, RED, SKY
from scheduler.simulation.metrics import Interval

#: Colour, marker and hatch of the policies of a comparison, in their order.
POLICY_STYLES: Final = (
    (BLUE, "o", ""),
    (ORANGE, "s", "//"),
    (GREEN, "^", "\\\\"),
    (RED, "D", ".."),
    (SKY, "v", "xx"),
    (GREY, "P", "++"),
)


def policy_style(position: int) -> tuple[str, str, str]:
    """Colour, marker and hatch of the policy at this position of a comparison."""
    return POLICY_STYLES[position % len(POLICY_STYLES)]


def draw_bars(
    axes: Axes, places: Sequence[float], intervals: Sequence[Interval], position: int, *, width: float, label: str
) -> None:
    """
    Bars of one policy at the x coordinates ``places``, with 95 % intervals where they are finite; a NaN is written as
    "none".
    """
    colour, _, hatch = policy_style(position)
    means = [one.mean for one in intervals]
    axes.bar(places, means, width, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=label)
    for place, one in zip(places, intervals, strict=True):
        if math.isfinite(one.low):
            axes.plot([place, place], [one.low, one.high], color="0.1", linewidth=1.4)
        if math.isnan(one.mean):
            axes.text(place, 0.0, " none", rotation=90, ha="center", va="bottom", fontsize=6.5, color="0.35")
