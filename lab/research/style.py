"""
How every picture looks: palette, drawing settings, captions, and an SVG that is the same for the same data.

Only modules that draw import this one: matplotlib comes with the extra ``report``.
"""

import io
from textwrap import fill
from typing import Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

#: Okabe and Ito's palette, told apart by readers of every colour vision.
BLUE, ORANGE, GREEN, RED, SKY, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#7F7F7F"
PURPLE, BLACK = "#CC79A7", "#000000"
#: Drawing settings, in force only while this module draws. The salt makes the ids in an SVG the same every time.
STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "smore",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
}


def canvas(width: float, height: float, caption: str, heading: str = "") -> Figure:
    """An empty figure, in inches, with a heading above and a caption below."""
    figure = Figure(figsize=(width, height), layout="constrained")
    if heading:
        figure.suptitle(heading, x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel(fill(caption, int(width * 15.5)), x=0.01, ha="left", fontsize=7.5, color="0.25")
    return figure


def percent_axis(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """Write the fractions of an axis in per cent."""
    (axes.yaxis if which == "y" else axes.xaxis).set_major_formatter(
        FuncFormatter(lambda value, _: f"{100 * value:.4g} %")
    )


def svg(figure: Figure) -> str:
    """The figure as an SVG document without a date."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()
