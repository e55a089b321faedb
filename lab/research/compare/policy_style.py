"""How policies look in every picture of a comparison: colours, bars with intervals, and the scale of their axis."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from lab.research.compare.claims import ClaimVerdict
from lab.research.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY
from lab.simulation.metrics import Interval

#: Colour, marker and hatch of the policies of a comparison, in their order.
POLICY_STYLES: Final = (
    (BLUE, "o", ""),
    (ORANGE, "s", "//"),
    (GREEN, "^", "\\\\"),
    (RED, "D", ".."),
    (SKY, "v", "xx"),
    (GREY, "P", "++"),
)
#: Colour, marker and colour of its face of each verdict on a claim: none of a policy's colours.
VERDICT_STYLES: Final = {
    ClaimVerdict.HELD: (BLACK, "o", BLACK),
    ClaimVerdict.FAILED: (PURPLE, "X", PURPLE),
    ClaimVerdict.EQUAL: (PURPLE, "s", "white"),
    ClaimVerdict.UNKNOWN: (BLACK, "o", "white"),
}
#: Ratio of the largest value to the smallest one from which an axis is logarithmic.
WIDE: Final = 100.0


def policy_style(position: int) -> tuple[str, str, str]:
    """Colour, marker and hatch of the policy at this position of a comparison."""
    return POLICY_STYLES[position % len(POLICY_STYLES)]


def draw_bars(
    axes: Axes, places: Sequence[float], intervals: Sequence[Interval], position: int, *, width: float, label: str
) -> None:
    """
    Bars of one policy at the x coordinates ``places``, with 95 % intervals where they are finite; a NaN is written as
    "undefined".
    """
    colour, _, hatch = policy_style(position)
    means = [value.mean for value in intervals]
    axes.bar(places, means, width, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=label)
    for place, value in zip(places, intervals, strict=True):
        if math.isfinite(value.low):
            axes.plot([place, place], [value.low, value.high], color="0.1", linewidth=1.4)
        if math.isnan(value.mean):
            # At the foot of the axis, whatever its scale.
            foot = axes.get_xaxis_transform()
            axes.text(
                place,
                0.0,
                " undefined",
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=6.5,
                color="0.35",
                transform=foot,
            )


def scale(axes: Axes, values: Iterable[float]) -> None:
    """
    Make the y axis logarithmic if the values differ a hundredfold or more, and say so beside it. An axis that has zero
    or negative values too is linear below the smallest positive one.
    """
    numbers = [value for value in values if math.isfinite(value)]
    positive = [value for value in numbers if value > 0]
    if not positive or max(positive) < WIDE * min(positive):
        return
    if min(numbers) > 0:
        axes.set_yscale("log")
        axes.set_ylim(bottom=min(positive) / 2)
    else:
        axes.set_yscale("symlog", linthresh=min(positive))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("log scale", fontsize=8)
