"""
Draws comparisons: figures 7 to 14, 17 and 18 of the paper as plots of our own.

The only module here that needs matplotlib, which the extra ``report`` installs. The same rows give the same files.
Captions say whether what is shown was simulated or measured, and nothing of both stands in one picture.
"""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from research.compare.claims import AT_LEAST, ClaimVerdict
from research.compare.section import Measured, Section
from research.predictor.pictures import BLUE, GREEN, GREY, ORANGE, RED, SKY, STYLE
from scheduler.simulation import timeline
from scheduler.simulation.metrics import FIGURE_14, TOLERANCE, Interval

#: What a policy is drawn with, wherever it is: its place in the comparison gives colour, marker and hatch.
_STYLES: Final = (
    (BLUE, "o", ""),
    (ORANGE, "s", "//"),
    (GREEN, "^", "\\\\"),
    (RED, "D", ".."),
    (SKY, "v", "xx"),
    (GREY, "P", "++"),
)
#: What the paper's policies are drawn with where their variants stand beside each other: colour and marker.
_ROOTS: Final = {
    "smore": (BLUE, "o"),
    "elasticflow": (ORANGE, "s"),
    "edf-util": (GREEN, "^"),
    "edf-util-spread": (SKY, "v"),
    "random": (RED, "D"),
}
#: The product with a budget of so many per cent.
_BUDGETED: Final = "smore-product-b"
#: As the paper's figure 17 is told in its text: GPU instances → ms of one decision, scanned whole and under high load.
PUBLISHED_MS: Final = {"low load": {8: 0.01, 1024: 1.0}, "high load": {1024: 0.1}}
#: Seconds of a bin where something is shown over time.
STEP_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """
    ``figure``: number in the paper; ``svg`` without a date, ``words`` say what is seen to those who do not see it.
    """

    name: str
    figure: str
    heading: str
    words: str
    measured: bool
    svg: str


def _look(position: int) -> tuple[str, str, str]:
    return _STYLES[position % len(_STYLES)]


def _figure(width: float, height: float, words: str) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.supxlabel(fill(words, int(width * 15.5)), x=0.01, ha="left", fontsize=7.5, color="0.25")
    return figure


def _percent(axes: Axes, which: str = "y") -> None:
    (axes.yaxis if which == "y" else axes.xaxis).set_major_formatter(
        FuncFormatter(lambda value, _: f"{100 * value:.4g} %")
    )


def _bars(
    axes: Axes, places: Sequence[float], intervals: Sequence[Interval], position: int, *, width: float, label: str
) -> None:
    """With 95 % intervals where there are any."""
    colour, _, hatch = _look(position)
    means = [one.mean for one in intervals]
    axes.bar(places, means, width, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=label)
    for place, one in zip(places, intervals, strict=True):
        if math.isfinite(one.low):
            axes.plot([place, place], [one.low, one.high], color="0.1", linewidth=1.4)
        if math.isnan(one.mean):
            axes.text(place, 0.0, " none", rotation=90, ha="center", va="bottom", fontsize=6.5, color="0.35")


# ---- one GPU instance: figures 7 to 10 -------------------------------------------------------------------------------


def draw_degradations(section: Section) -> Figure:
    """Figure 7: how the degradation of functions is distributed."""
    figure = _figure(
        7.2, 4.2, section.caption("Runs that ended, all seeds together; run time over the mean alone, less one.")
    )
    axes = figure.subplots()
    configuration = section.configurations[0]
    for position, policy in enumerate(section.policies):
        values = np.concatenate([timeline.degradations(result) for result in section.runs(configuration, policy)])
        values.sort()
        if not len(values):
            continue
        colour = _look(position)[0]
        below = [float((values <= limit).mean()) for limit in (0.1, 1.0)]
        label = f"{policy}: {100 * below[0]:.0f} % of runs within 10 %, {100 * below[1]:.0f} % within 100 %"
        axes.plot(1.0 + values, (np.arange(len(values)) + 1) / len(values), color=colour, linewidth=1.6, label=label)
    for limit in (1.1, 2.0):
        axes.axvline(limit, color="0.6", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [tick for tick in (0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 9.0, 17.0) if low <= tick <= high]
    axes.set_xticks(ticks)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * (value - 1):.0f} %"))
    axes.set_xlabel("degradation of an invocation")
    axes.set_ylabel("share of runs at or below")
    axes.set_ylim(0, 1.02)
    _percent(axes)
    axes.grid(linewidth=0.4)
    axes.legend(loc="lower right", fontsize=8)
    return figure


def draw_requests(section: Section) -> Figure:
    """Figures 8 and 12: invocations submitted and admitted over time, of the first two configurations."""
    shown = section.configurations[:2]
    policy = section.policies[0]
    seed = section.seeds[0]
    figure = _figure(
        7.2 if len(shown) == 1 else 9.2, 3.4, section.caption(f"Seed {seed}; {policy}; by second of arrival.")
    )
    panels = np.atleast_1d(figure.subplots(1, len(shown), sharey=True))
    for axes, configuration in zip(panels, shown, strict=True):
        submitted, admitted = timeline.requests(section.run(configuration, policy, seed), STEP_S)
        at = STEP_S * (np.arange(len(submitted)) + 0.5)
        axes.bar(at, submitted, STEP_S * 0.9, color="0.82", label=f"submitted: {submitted.sum():,}")
        axes.bar(at, admitted, STEP_S * 0.55, color=BLUE, label=f"admitted: {admitted.sum():,}")
        axes.set_title(configuration, loc="left")
        axes.set_xlabel("time (s)")
        axes.set_ylim(top=1.3 * float(submitted.max(initial=1)))
        axes.legend(loc="upper right", fontsize=8)
    panels[0].set_ylabel("invocations in a second")
    return figure


def draw_admission(section: Section) -> Figure:
    """Figure 9: which share of each function was admitted, over time and altogether."""
    policy = section.policies[0]
    runs = section.runs(section.configurations[0], policy)
    step = max(STEP_S, float(runs[0].meta["duration_s"]) / 20)
    share, total = timeline.admission(runs, step)
    order = np.argsort(-np.nan_to_num(total, nan=-1.0), kind="stable")
    names = [runs[0].functions[function] for function in order]
    note = f"{policy}, all seeds together, bins of {step:g} s by arrival. White: none was submitted."
    figure = _figure(9.2, 4.0, section.caption(note))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1.3))
    duration = float(runs[0].meta["duration_s"])
    edges = np.linspace(0, duration, share.shape[1] + 1)
    mesh = left.pcolormesh(
        edges,
        np.arange(len(order) + 1) - 0.5,
        np.ma.masked_invalid(share[order]),
        cmap="cividis",
        vmin=0,
        vmax=1,
        edgecolors="white",
        linewidth=0.6,
    )
    left.set_xlabel("time (s)")
    left.set_yticks(range(len(order)), names)
    left.invert_yaxis()
    left.set_title("Share admitted over time", loc="left")
    bar = figure.colorbar(mesh, ax=left, pad=0.02)
    _percent(bar.ax)
    right.barh(range(len(order)), np.nan_to_num(total[order]), color=BLUE, height=0.65)
    for row, value in enumerate(total[order]):
        right.text(
            value + 0.02 if value == value else 0.0,
            row,
            f"{100 * value:.0f} %" if value == value else "none",
            va="center",
            fontsize=8,
        )
    right.set_xlim(0, 1.2)
    right.set_xticks([0, 0.5, 1.0])
    _percent(right, "x")
    right.set_title("Whole run", loc="left")
    return figure


def draw_utilisation(section: Section) -> Figure:
    """Figure 10: utilisation over time, exclusive and with functions."""
    configuration, policy, seed = section.configurations[0], section.policies[0], section.seeds[0]
    result = section.run(configuration, policy, seed)
    step = max(0.1, float(result.meta["duration_s"]) / 200)
    shared, alone = timeline.utilisation(section.world(configuration), result, step)
    at = np.linspace(0, float(result.meta["duration_s"]), len(shared) + 1)
    note = f"Seed {seed}; {policy}; bins of {step:g} s; utilisation is min(1, sum of demands)."
    figure = _figure(7.2, 3.6, section.caption(note))
    axes = figure.subplots()
    axes.stairs(shared, at, baseline=alone, fill=True, color=SKY, alpha=0.6)
    axes.stairs(
        shared, at, baseline=None, color=BLUE, linewidth=1.2, label=f"with functions: mean {100 * shared.mean():.1f} %"
    )
    axes.stairs(
        alone,
        at,
        baseline=None,
        color=ORANGE,
        linewidth=1.6,
        linestyle="--",
        label=f"exclusive: mean {100 * alone.mean():.1f} %",
    )
    axes.set_ylim(0, 1.18)
    axes.set_yticks(np.arange(0, 1.01, 0.2))
    _percent(axes)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("utilisation")
    axes.legend(loc="upper right", ncols=2, fontsize=8)
    axes.grid(axis="y", linewidth=0.4)
    return figure


# ---- configurations: figures 11 and 13 -------------------------------------------------------------------------------


def draw_configurations(section: Section) -> Figure:
    """
    Figure 11: degradation of functions and of trainings by configuration, of as many policies as there are colours.
    """
    shown = section.policies[: len(_STYLES)]
    figure = _figure(
        9.2,
        4.0,
        section.caption("Lines: 95 % intervals over seeds. Run times over the mean alone; none: no function ran."),
    )
    places = np.arange(len(section.configurations))
    width = 0.8 / len(shown)
    for axes, metric, heading in zip(
        figure.subplots(1, 2), ("sld", "sfd"), ("Functions (SLD)", "Trainings (SFD)"), strict=True
    ):
        for position, policy in enumerate(shown):
            shift = width * (position - (len(shown) - 1) / 2)
            values = [section.interval(f"{metric}.{policy}", configuration) for configuration in section.configurations]
            _bars(axes, (places + shift).tolist(), values, position, width=width * 0.92, label=policy)
        axes.set_title(heading, loc="left")
        axes.set_xticks(places, section.configurations, rotation=30, ha="right", rotation_mode="anchor")
        _percent(axes)
        axes.grid(axis="y", linewidth=0.4)
        axes.set_axisbelow(True)
    figure.axes[0].set_ylabel("degradation")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(shown), fontsize=8)
    return figure


def draw_gain(section: Section) -> Figure:
    """Figure 13: utilisation exclusive and with the first policy's functions."""
    policy = section.policies[0]
    figure = _figure(
        8.2, 3.8, section.caption(f"{policy}; above the bars the gain in points; lines: 95 % intervals over seeds.")
    )
    axes = figure.subplots()
    for place, configuration in enumerate(section.configurations):
        shared, gain = (
            section.interval(f"utilisation.{policy}", configuration),
            section.interval(f"gui.{policy}", configuration),
        )
        axes.bar(place - 0.2, shared.mean - gain.mean, 0.38, color="0.75", label="exclusive" if not place else None)
        _bars(axes, [place + 0.2], [shared], 0, width=0.38, label="with functions" if not place else "")
        axes.text(place + 0.2, shared.mean + 0.02, f"+{100 * gain.mean:.1f}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(
        range(len(section.configurations)), section.configurations, rotation=20, ha="right", rotation_mode="anchor"
    )
    axes.set_ylim(0, 1.25)
    axes.set_yticks(np.arange(0, 1.01, 0.2))
    _percent(axes)
    axes.set_ylabel("mean utilisation")
    axes.legend(loc="upper left", ncols=2, fontsize=8)
    axes.grid(axis="y", linewidth=0.4)
    axes.set_axisbelow(True)
    return figure


# ---- policies: figure 14 ---------------------------------------------------------------------------------------------


def draw_methods(section: Section) -> Figure:
    """Figure 14: the four metrics by policy, and the first policy's paired advantage over each other one."""
    first, *others = section.policies
    note = (
        f"Above: means and 95 % intervals over seeds, mean over configurations. Below: by how many points {first} is"
        " better (right of the line), differences paired by seed, 95 % intervals; shaded: a deficit of at most one"
        " point."
    )
    figure = _figure(max(9.6, 3.0 + 0.9 * len(section.policies)), 5.6, section.caption(note))
    panels = figure.subplots(2, len(FIGURE_14), height_ratios=(2, 1.1), squeeze=False)
    for column, metric in enumerate(FIGURE_14):
        axes = panels[0, column]
        for position, policy in enumerate(section.policies):
            _bars(axes, [position], [section.interval(f"{metric}.{policy}")], position, width=0.75, label=policy)
        if metric == "dsr" and (bound := section.bound) is not None:
            axes.axhline(bound, color="0.2", linewidth=1.2, linestyle="--")
            axes.text(len(section.policies) - 0.6, bound, "offline bound", ha="right", va="bottom", fontsize=7.5)
        axes.set_title(
            f"{metric.upper()} ({'more' if FIGURE_14[metric] else 'less'} is better)", loc="left", fontsize=9
        )
        axes.set_xticks(
            range(len(section.policies)), section.policies, rotation=30, ha="right", rotation_mode="anchor", fontsize=8
        )
        _percent(axes)
        axes.grid(axis="y", linewidth=0.4)
        axes.set_axisbelow(True)
        _advantages(panels[1, column], section, metric, others)
    return figure


def _advantages(axes: Axes, section: Section, metric: str, others: Sequence[str]) -> None:
    if metric in AT_LEAST:
        axes.axvspan(-100 * TOLERANCE, 0, color="0.92", zorder=0)
    axes.axvline(0, color="0.3", linewidth=0.9)
    colours = {ClaimVerdict.HELD: GREEN, ClaimVerdict.FAILED: RED, ClaimVerdict.UNKNOWN: "0.45"}
    for row, other in enumerate(others):
        one = next(judged for judged in section.judged if judged.claim.name == f"{metric}.{other}")
        colour, found = colours[one.verdict], one.advantage
        if math.isfinite(found.low):
            axes.plot(
                [100 * found.low, 100 * found.high], [row, row], color=colour, linewidth=2.2, solid_capstyle="butt"
            )
        axes.plot(100 * found.mean, row, "o", color=colour, markersize=5)
    axes.set_yticks(range(len(others)), others if metric == next(iter(FIGURE_14)) else [""] * len(others), fontsize=8)
    axes.set_ylim(len(others) - 0.4, -0.6)
    axes.set_xlabel("points better")
    if metric == next(iter(FIGURE_14)):
        marks = [
            Line2D([], [], color=colour, marker="o", linewidth=2, label=verdict.value)
            for verdict, colour in colours.items()
        ]
        axes.figure.legend(handles=marks, loc="outside upper right", ncols=3, fontsize=7.5)


def draw_tradeoff(section: Section) -> Figure:
    """Deadlines met against training lost: a point for each policy, a curve for the product over its budgets."""
    budgets = sorted(int(policy.removeprefix(_BUDGETED)) for policy in section.policies if policy.startswith(_BUDGETED))
    others = [policy for policy in section.policies if not policy.startswith(_BUDGETED)]
    several = section.configurations if len(section.configurations) > 1 else []
    note = (
        "Means over seeds; above and left is better. Filled: late invocations are executed, as the paper says of"
        " Random; hollow: what cannot be in time is dropped. Numbers at the curve: budget of a training, rising."
        " Dotted: a tenth of the training lost."
    )
    figure = _figure(11.0 if several else 6.5, 7.2 if several else 5.6, section.caption(note))
    if several:
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.1, 2))[0]
        grid = right.subplots(math.ceil(len(several) / 2), 2, squeeze=False).flat
        panels = [
            (left.subplots(), None, "mean of all configurations"),
            *((next(grid), name, name) for name in several),
        ]
    else:
        panels = [(figure.subplots(), None, "")]
    for axes, configuration, title in panels:
        _trade(axes, section, others, budgets, configuration)
        axes.set_title(title, loc="left", fontsize=9)
    first = panels[0][0]
    first.set_xlabel("training lost")
    first.set_ylabel("deadlines met, of all submitted (DSR)")
    figure.legend(*first.get_legend_handles_labels(), loc="outside upper left", ncols=5 if several else 3, fontsize=8)
    return figure


def _trade(
    axes: Axes, section: Section, others: Sequence[str], budgets: Sequence[int], configuration: str | None
) -> None:
    size = 9 if configuration is None else 7

    def at(policy: str) -> tuple[float, float]:
        lost, met = (section.interval(f"{metric}.{policy}", configuration).mean for metric in ("train_loss", "dsr"))
        return lost, met

    for position, policy in enumerate(others):
        root = policy.removesuffix("-all")
        colour, marker = _ROOTS.get(root, _look(position)[:2])
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
    curve = [at(f"{_BUDGETED}{budget}") for budget in budgets]
    axes.plot(
        *zip(*curve, strict=True),
        color="0.1",
        marker="P",
        markersize=6,
        linewidth=1.6,
        label="smore-product, by budget",
    )
    for budget, point in zip(budgets, curve, strict=True) if configuration is None else ():
        axes.annotate(f"{budget} %", point, xytext=(5, -12), textcoords="offset points", fontsize=8)
    axes.axvline(0.1, color="0.6", linewidth=0.8, linestyle=":")
    axes.set_xlim(left=-0.01)
    axes.set_ylim(-0.03, 1.03)
    _percent(axes)
    _percent(axes, "x")
    axes.grid(linewidth=0.4)
    axes.set_axisbelow(True)


# ---- MIG: figure 18 --------------------------------------------------------------------------------------------------


def draw_slices(section: Section) -> Figure:
    """Figure 18: what co-location adds to MISO's assignment, slice by slice, of the first policy."""
    policy = section.policies[0]
    note = (
        f"{policy} on the slices that MISO assigns, which never change; without functions the assignment is MISO's"
        " alone. Mean over seeds; a function's degradation is against the whole device, so a small slice alone is part"
        " of it."
    )
    figure = _figure(9.6, 2.6 + 1.5 * len(section.configurations), section.caption(note))
    panels = figure.subplots(len(section.configurations), 3, squeeze=False)
    for row, configuration in zip(panels, section.configurations, strict=True):
        gpus = section.world(configuration).gpus
        runs = [timeline.by_gpu(result) for result in section.runs(configuration, policy)]
        names = [f"{gpu.sevenths}g  {gpu.training or 'no training'}" for gpu in gpus]

        def mean(index: int, name: str, runs: Sequence[Sequence[timeline.GpuFigures]] = runs) -> float:
            values = [getattr(run[index], name) for run in runs]
            return float(np.mean([value for value in values if value == value] or [np.nan]))

        y, every = np.arange(len(gpus)), range(len(gpus))
        row[0].barh(y - 0.2, [mean(i, "exclusive") for i in every], 0.38, color="0.75", label="MISO alone")
        row[0].barh(y + 0.2, [mean(i, "shared") for i in every], 0.38, color=BLUE, label="with functions")
        row[0].set_xlim(0, 1.05)
        row[1].barh(
            y - 0.2,
            [mean(i, "training") for i in every],
            0.38,
            color=ORANGE,
            hatch="//",
            edgecolor="white",
            label="training",
        )
        row[1].barh(y + 0.2, [mean(i, "functions") for i in every], 0.38, color=SKY, label="functions")
        shares = [mean(i, "admitted") for i in every]
        row[2].barh(y, shares, 0.6, color=BLUE)
        row[2].set_xlim(0, 1.25 * max([*shares, 0.01]))
        for place, share in zip(y, shares, strict=True):
            row[2].text(share, place, f" {100 * share:.1f} %", va="center", fontsize=8)
        total = section.interval(f"admission.{policy}", configuration)
        headings = ("Utilisation", "Degradation", f"Ran here, of all submitted ({100 * total.mean:.0f} % together)")
        for axes, heading in zip(row, headings, strict=True):
            axes.set_yticks(y, names if axes is row[0] else [""] * len(names))
            axes.invert_yaxis()
            axes.set_title(
                f"{configuration}: {heading[0].lower()}{heading[1:]}" if configuration else heading,
                loc="left",
                fontsize=9,
            )
            _percent(axes, "x")
            axes.grid(axis="x", linewidth=0.4)
            axes.set_axisbelow(True)
    handles, labels = zip(
        *(pair for axes in panels[0, :2] for pair in zip(*axes.get_legend_handles_labels(), strict=True)), strict=True
    )
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), fontsize=8)
    return figure


# ---- measured: figure 17, and the live comparison --------------------------------------------------------------------


def draw_decisions(measured: Measured) -> Figure:
    """Figure 17: time of one decision over the number of GPU instances."""
    note = (
        "One placement among so many GPU instances with 8 functions, state updates included; rings: what the paper says"
        " of its machine."
    )
    figure = _figure(7.2, 4.2, measured.caption(note))
    axes = figure.subplots()
    series = (
        ("full_us_", "all GPU instances weighed (low load)", 0),
        ("sampled_us_", "first fit among a sample (high load)", 1),
    )
    for prefix, label, position in series:
        found = sorted(
            (int(name.removeprefix(prefix)), value)
            for name, value in measured.figures.items()
            if name.startswith(prefix)
        )
        colour, marker, _ = _look(position)
        axes.plot(
            [n for n, _ in found],
            [us / 1000 for _, us in found],
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
            color=_look(position)[0],
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


def draw_side(names: Sequence[str], metrics: Sequence[str], found: Callable[[str], Interval], caption: str) -> Figure:
    """
    One side of a live comparison: bars by policy for each metric of figure 14. ``found``: ``<metric>.<policy>`` →
    value.
    """
    figure = _figure(9.6, 3.8, caption)
    for axes, metric in zip(np.atleast_1d(figure.subplots(1, len(metrics))), metrics, strict=True):
        for position, name in enumerate(names):
            _bars(axes, [position], [found(f"{metric}.{name}")], position, width=0.75, label=name)
        axes.set_title(
            f"{metric.upper()} ({'more' if FIGURE_14[metric] else 'less'} is better)", loc="left", fontsize=9
        )
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor", fontsize=8)
        _percent(axes)
        axes.grid(axis="y", linewidth=0.4)
        axes.set_axisbelow(True)
    return figure


# ---- which there are -------------------------------------------------------------------------------------------------


def draw(section: Section) -> Iterator[Picture]:
    """
    What can be drawn of a comparison: 14 of any, with a curve where the product stands in it with several budgets;
    besides it of slices figure 18, of one configuration 7 to 10, of several 11 to 13, and nothing of a case so small
    that it was solved.
    """
    if len(section.policies) > 1:
        yield _simulated(section, "methods", "14", "Policies compared", draw_methods(section))
    if sum(policy.startswith(_BUDGETED) for policy in section.policies) > 1:
        yield _simulated(section, "tradeoff", "14", "Deadlines met against training lost", draw_tradeoff(section))
    if section.bound is not None:
        return
    sliced = any(
        gpu.sevenths != 7 for configuration in section.configurations for gpu in section.world(configuration).gpus
    )
    if sliced:
        yield _simulated(section, "slices", "18", "Functions beside trainings on MIG slices", draw_slices(section))
    elif len(section.configurations) == 1:
        yield _simulated(section, "degradations", "7", "Degradation of functions", draw_degradations(section))
        yield _simulated(section, "requests", "8", "Submitted and admitted", draw_requests(section))
        yield _simulated(section, "admission", "9", "Admission by function", draw_admission(section))
        yield _simulated(section, "utilisation", "10", "Utilisation over time", draw_utilisation(section))
    else:
        yield _simulated(section, "configurations", "11", "Degradation by configuration", draw_configurations(section))
        yield _simulated(section, "requests", "12", "Submitted and admitted", draw_requests(section))
        yield _simulated(section, "gain", "13", "Utilisation by configuration", draw_gain(section))


def _simulated(section: Section, name: str, number: str, heading: str, figure: Figure) -> Picture:
    words = f"{heading}, simulated, preset {section.preset}"
    return Picture(
        name=f"{section.preset}-{name}", figure=number, heading=heading, words=words, measured=False, svg=_svg(figure)
    )


def draw_measured(decisions: Measured | None, live: Measured | None) -> Iterator[Picture]:
    if decisions is not None:
        svg = _svg(draw_decisions(decisions))
        yield Picture(
            name="decisions",
            figure="17",
            heading="Time of a decision",
            words="Time of one decision, measured",
            measured=True,
            svg=svg,
        )
    if live is not None:
        svg = _svg(draw_live(live))
        yield Picture(
            name="live",
            figure="14",
            heading="Policies compared live",
            words="Policies compared live, measured",
            measured=True,
            svg=svg,
        )


def draw_sides(names: Sequence[str], sides: Sequence[tuple[bool, Callable[[str], Interval], str]]) -> Iterator[Picture]:
    """
    Panels of a live comparison, one for each (measured or not, what was found, caption): the same axes, never the same
    picture.
    """
    for measured, found, caption in sides:
        kind = "measured" if measured else "simulated"
        heading = "Policies compared live" if measured else "The same arrivals in the simulator"
        yield Picture(
            name=f"live-{kind}",
            figure="14",
            heading=heading,
            words=f"DSR, GUI, SFD and SLD by policy, {kind}",
            measured=measured,
            svg=_svg(draw_side(names, list(FIGURE_14), found, caption)),
        )


def _svg(figure: Figure) -> str:
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


def styled(pictures: Iterator[Picture]) -> list[Picture]:
    """Drawn in the house's style."""
    with mpl.rc_context(STYLE):
        return list(pictures)
