"""Pictures of what was measured, after figures 14 and 17."""

from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from lab.research.compare.by_policy import draw_side
from lab.research.compare.policy_style import policy_style
from lab.research.compare.section import Measured
from lab.research.style import canvas
from lab.simulation.metrics import FIGURE_14

#: Figure 17 of the paper, by its text: GPU instances → milliseconds of a decision, at low and at high load.
PUBLISHED_MS: Final = {"low load": {8: 0.01, 1024: 1.0}, "high load": {1024: 0.1}}


def draw_decisions(measured: Measured) -> Figure:
    """Figure 17: time of one decision over the number of GPU instances."""
    note = (
        "One placement among so many GPU instances with 8 functions, state updates included; rings: the paper's"
        " figures, of its own machine."
    )
    figure = canvas(7.2, 4.2, measured.caption(note))
    axes = figure.subplots()
    series = (
        ("full_us_", "all GPU instances weighed (low load)", 0),
        ("sampled_us_", "first fit among a sample (high load)", 1),
    )
    for prefix, label, position in series:
        times = sorted(
            (int(name.removeprefix(prefix)), value)
            for name, value in measured.figures.items()
            if name.startswith(prefix)
        )
        colour, marker, _ = policy_style(position)
        axes.plot(
            [n for n, _ in times],
            [us / 1000 for _, us in times],
            marker=marker,
            color=colour,
            linewidth=1.6,
            label=label,
        )
    for position, (load, points) in enumerate(PUBLISHED_MS.items()):
        axes.plot(
            [*points],
            [*points.values()],
            linestyle="none",
            marker="o",
            markersize=9,
            markerfacecolor="none",
            color=policy_style(position)[0],
            label=f"paper, {load}" + (" (1,024: less than)" if len(points) > 1 else ""),
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("GPU instances")
    axes.set_ylabel("time of one decision (ms)")
    axes.grid(linewidth=0.4)
    axes.legend(loc="upper left", fontsize=8)
    return figure


def draw_live(measured: Measured) -> Figure:
    """Figure 14 where the platform itself ran: the metrics by policy."""
    metrics = [metric for metric in FIGURE_14 if any(name.startswith(f"{metric}.") for name in measured.figures)]
    names = list(
        dict.fromkeys(name.partition(".")[2] for name in measured.figures if name.partition(".")[0] in FIGURE_14)
    )
    caption = measured.caption("Through REST; lines: 95 % intervals where the file has them.")
    return draw_side(names, metrics, measured.interval, caption)
