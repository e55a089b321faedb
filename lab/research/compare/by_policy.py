"""Pictures that set policies side by side, after figure 14."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lab.research.compare.claims import AT_LEAST
from lab.research.compare.policy_style import VERDICT_STYLES, draw_bars, policy_style, scale
from lab.research.compare.section import Section
from lab.research.style import BLACK, BLUE, GREEN, ORANGE, RED, SKY, canvas, percent_axis
from lab.simulation.metrics import FIGURE_14, TOLERANCE, Interval

#: What the paper's policies are drawn with where their variants stand beside each other: colour and marker.
_ROOTS: Final = {
    "smore": (BLUE, "o"),
    "elasticflow": (ORANGE, "s"),
    "edf-util": (GREEN, "^"),
    "edf-util-spread": (SKY, "v"),
    "random": (RED, "D"),
}
#: Those that have a curve over their budgets: colour, marker and line.
CURVES: Final = {"smore-product": (BLACK, "P", "-"), "random-budget": (RED, "X", "--")}


def budgets(policies: Sequence[str], setting: str) -> list[int]:
    """The budgets, in per cent, with which a setting stands among policies, rising."""
    return sorted(int(rest) for policy in policies if (rest := policy.removeprefix(f"{setting}-b")).isdecimal())


def draw_methods(section: Section) -> Figure:
    """Figure 14: the four metrics by policy, and the paired advantage of the first policy over each other one."""
    first, *others = section.policies
    note = (
        f"Above: means and 95 % intervals over seeds, mean over configurations. Below: by how many points {first} is"
        " better (right of the line), differences paired by seed, 95 % intervals; shaded: a deficit of at most one"
        " point."
    )
    figure = canvas(max(9.6, 3.0 + 0.9 * len(section.policies)), 5.6, section.caption(note))
    panels = figure.subplots(2, len(FIGURE_14), height_ratios=(2, 1.1), squeeze=False)
    for column, metric in enumerate(FIGURE_14):
        axes = panels[0, column]
        for position, policy in enumerate(section.policies):
            draw_bars(axes, [position], [section.interval(f"{metric}.{policy}")], position, width=0.75, label=policy)
        scale(axes, (section.interval(f"{metric}.{policy}").mean for policy in section.policies))
        if metric == "dsr" and (bound := section.bound) is not None:
            axes.axhline(bound, color="0.2", linewidth=1.2, linestyle="--")
            axes.text(len(section.policies) - 0.6, bound, "offline bound", ha="right", va="bottom", fontsize=7.5)
        axes.set_title(
            f"{metric.upper()} ({'more' if FIGURE_14[metric] else 'less'} is better)", loc="left", fontsize=9
        )
        axes.set_xlim(-0.6, len(section.policies) - 0.4)
        axes.set_xticks(
            range(len(section.policies)), section.policies, rotation=30, ha="right", rotation_mode="anchor", fontsize=8
        )
        percent_axis(axes)
        axes.grid(axis="y", linewidth=0.4)
        axes.set_axisbelow(True)
        _advantages(panels[1, column], section, metric, others)
    return figure


def _advantages(axes: Axes, section: Section, metric: str, others: Sequence[str]) -> None:
    if metric in AT_LEAST:
        axes.axvspan(-100 * TOLERANCE, 0, color="0.92", zorder=0)
    axes.axvline(0, color="0.3", linewidth=0.9)
    for row, other in enumerate(others):
        judged = next(judged for judged in section.judged if judged.claim.name == f"{metric}.{other}")
        (colour, marker, face), advantage = VERDICT_STYLES[judged.verdict], judged.advantage
        if math.isnan(advantage.mean):
            axes.text(0, row, " undefined", va="center", fontsize=7, color="0.35")
            continue
        if math.isfinite(advantage.low):
            ends = [100 * advantage.low, 100 * advantage.high]
            axes.plot(ends, [row, row], color=colour, linewidth=2.2, solid_capstyle="butt")
        axes.plot(100 * advantage.mean, row, marker, color=colour, markerfacecolor=face, markersize=5)
    axes.set_yticks(range(len(others)), others if metric == next(iter(FIGURE_14)) else [""] * len(others), fontsize=8)
    axes.set_ylim(len(others) - 0.4, -0.6)
    axes.set_xlabel("points better")
    if metric == next(iter(FIGURE_14)):
        marks = [
            Line2D([], [], color=colour, marker=marker, markerfacecolor=face, linewidth=2, label=verdict.value)
            for verdict, (colour, marker, face) in VERDICT_STYLES.items()
        ]
        axes.figure.legend(handles=marks, loc="outside upper right", ncols=len(marks), fontsize=7.5)


def draw_tradeoff(section: Section) -> Figure:
    """
    Deadlines met against training lost: a point for each policy; for the product, and for Random within its budget, a
    curve over the budgets.
    """
    curves = {setting: budgets(section.policies, setting) for setting in CURVES}
    drawn = {f"{setting}-b{budget}" for setting, by in curves.items() for budget in by}
    others = [policy for policy in section.policies if policy not in drawn]
    several = section.configurations if len(section.configurations) > 1 else []
    note = (
        "Means over seeds; above and left is better. Filled: late invocations are executed, as the paper says of"
        " Random; hollow: what cannot be in time is dropped. Numbers at a curve: budget of a training, rising."
        " Dotted: a tenth of the training lost."
    )
    figure = canvas(11.0 if several else 6.5, 7.2 if several else 5.6, section.caption(note))
    if several:
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.1, 2))[0]
        grid = right.subplots(math.ceil(len(several) / 2), 2, squeeze=False).flat
        panels = [
            (left.subplots(), None, "mean of all configurations"),
            *((next(grid), name, name) for name in several),
        ]
    else:
        panels = [(figure.subplots(), None, "")]
    for unused in grid if several else ():
        unused.remove()
    for axes, configuration, title in panels:
        _trade(axes, section, others, curves, configuration)
        axes.set_title(title, loc="left", fontsize=9)
    first = panels[0][0]
    first.set_xlabel("training lost")
    first.set_ylabel("deadlines met, of all submitted (DSR)")
    figure.legend(*first.get_legend_handles_labels(), loc="outside upper left", ncols=5 if several else 3, fontsize=8)
    return figure


def _trade(
    axes: Axes,
    section: Section,
    others: Sequence[str],
    curves: Mapping[str, Sequence[int]],
    configuration: str | None,
) -> None:
    size = 9 if configuration is None else 7

    def at(policy: str) -> tuple[float, float]:
        lost, met = (section.interval(f"{metric}.{policy}", configuration).mean for metric in ("train_loss", "dsr"))
        return lost, met

    for position, policy in enumerate(others):
        root = policy.removesuffix("-all")
        colour, marker = _ROOTS.get(root, policy_style(position)[:2])
        filled = policy.endswith("-all") or f"{root}-all" not in others
        lost, met = at(policy)
        axes.plot(
            lost,
            met,
            linestyle="none",
            marker=marker,
            markersize=size,
            color=colour,
            markeredgewidth=1.6,
            markerfacecolor=colour if filled else "none",
            label=policy,
            zorder=5 - position / 10,
        )
    for setting, each in curves.items():
        if not each:
            continue
        curve, (colour, marker, line) = [at(f"{setting}-b{budget}") for budget in each], CURVES[setting]
        label = f"{setting}, by budget"
        axes.plot(
            *zip(*curve, strict=True), line, color=colour, marker=marker, markersize=6, linewidth=1.6, label=label
        )
        for budget, point in zip(each, curve, strict=True) if configuration is None else ():
            axes.annotate(f"{budget} %", point, xytext=(5, -12), textcoords="offset points", fontsize=8)
    axes.axvline(0.1, color="0.6", linewidth=0.8, linestyle=":")
    axes.set_xlim(left=-0.01)
    axes.set_ylim(-0.03, 1.03)
    percent_axis(axes)
    percent_axis(axes, "x")
    axes.grid(linewidth=0.4)
    axes.set_axisbelow(True)


def draw_side(names: Sequence[str], metrics: Sequence[str], value: Callable[[str], Interval], caption: str) -> Figure:
    """
    One side of a live comparison: bars by policy for each metric of figure 14. ``value``: ``<metric>.<policy>`` →
    its value.
    """
    figure = canvas(9.6, 3.8, caption)
    for axes, metric in zip(np.atleast_1d(figure.subplots(1, len(metrics))), metrics, strict=True):
        for position, name in enumerate(names):
            draw_bars(axes, [position], [value(f"{metric}.{name}")], position, width=0.75, label=name)
        scale(axes, (value(f"{metric}.{name}").mean for name in names))
        axes.set_title(
            f"{metric.upper()} ({'more' if FIGURE_14[metric] else 'less'} is better)", loc="left", fontsize=9
        )
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor", fontsize=8)
        percent_axis(axes)
        axes.grid(axis="y", linewidth=0.4)
        axes.set_axisbelow(True)
    return figure
