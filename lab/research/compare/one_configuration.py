"""Pictures of one configuration, after figures 7 to 10 and 12: the runs over time, and how far functions are slowed."""

from typing import Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from lab.research.compare.policy_style import policy_style
from lab.research.compare.section import Section
from lab.research.style import BLUE, ORANGE, SKY, canvas, percent_axis
from lab.simulation import timeline

#: Seconds of a bin where something is shown over time.
STEP_S: Final = 1.0


def draw_degradations(section: Section) -> Figure:
    """Figure 7: how the degradation of functions is distributed."""
    figure = canvas(
        7.2, 4.2, section.caption("Runs that ended, all seeds together; run time over the mean alone, less one.")
    )
    axes = figure.subplots()
    configuration = section.configurations[0]
    for position, policy in enumerate(section.policies):
        values = np.concatenate([timeline.degradations(result) for result in section.runs(configuration, policy)])
        values.sort()
        if not len(values):
            continue
        colour = policy_style(position)[0]
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
    percent_axis(axes)
    axes.grid(linewidth=0.4)
    axes.legend(loc="lower right", fontsize=8)
    return figure


def draw_requests(section: Section) -> Figure:
    """Figures 8 and 12: invocations submitted and admitted over time, of the first two configurations."""
    shown = section.configurations[:2]
    policy = section.policies[0]
    seed = section.seeds[0]
    figure = canvas(
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
    figure = canvas(9.2, 4.0, section.caption(note))
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
    percent_axis(bar.ax)
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
    percent_axis(right, "x")
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
    figure = canvas(7.2, 3.6, section.caption(note))
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
    percent_axis(axes)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("utilisation")
    axes.legend(loc="upper right", ncols=2, fontsize=8)
    axes.grid(axis="y", linewidth=0.4)
    return figure
