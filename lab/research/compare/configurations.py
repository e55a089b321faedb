"""Pictures of several configurations, after figures 11, 13 and 18: a group of bars or a row for each."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from lab.research.compare.policy_style import POLICY_STYLES, draw_bars, scale
from lab.research.compare.section import Section
from lab.research.style import BLUE, ORANGE, SKY, canvas, percent_axis
from lab.simulation import timeline


def draw_configurations(section: Section) -> Figure:
    """
    Figure 11: degradation of functions and of trainings by configuration, of as many policies as there are colours.
    """
    shown = section.policies[: len(POLICY_STYLES)]
    figure = canvas(
        9.2,
        4.0,
        section.caption("Lines: 95 % intervals over seeds. Run times over the mean alone; undefined: none ran."),
    )
    places = np.arange(len(section.configurations))
    width = 0.8 / len(shown)
    for axes, metric, heading in zip(
        figure.subplots(1, 2), ("sld", "sfd"), ("Functions (SLD)", "Trainings (SFD)"), strict=True
    ):
        for position, policy in enumerate(shown):
            shift = width * (position - (len(shown) - 1) / 2)
            values = [section.interval(f"{metric}.{policy}", configuration) for configuration in section.configurations]
            draw_bars(axes, (places + shift).tolist(), values, position, width=width * 0.92, label=policy)
        names = [(policy, configuration) for policy in shown for configuration in section.configurations]
        scale(axes, (section.interval(f"{metric}.{policy}", configuration).mean for policy, configuration in names))
        axes.set_title(heading, loc="left")
        axes.set_xticks(places, section.configurations, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_xlim(-0.6, len(places) - 0.4)
        percent_axis(axes)
        axes.grid(axis="y", linewidth=0.4)
        axes.set_axisbelow(True)
    figure.axes[0].set_ylabel(", ".join(["degradation", *filter(None, [figure.axes[0].get_ylabel()])]))
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(shown), fontsize=8)
    return figure


def draw_gain(section: Section) -> Figure:
    """Figure 13: utilisation exclusive and with the first policy's functions."""
    policy = section.policies[0]
    figure = canvas(
        8.2, 3.8, section.caption(f"{policy}; above the bars the gain in points; lines: 95 % intervals over seeds.")
    )
    axes = figure.subplots()
    for place, configuration in enumerate(section.configurations):
        shared, gain = (
            section.interval(f"utilisation.{policy}", configuration),
            section.interval(f"gui.{policy}", configuration),
        )
        axes.bar(place - 0.2, shared.mean - gain.mean, 0.38, color="0.75", label="exclusive" if not place else None)
        draw_bars(axes, [place + 0.2], [shared], 0, width=0.38, label="with functions" if not place else "")
        top = max(value for value in (shared.mean, shared.high) if not math.isnan(value))
        axes.text(place + 0.2, top + 0.02, f"{100 * gain.mean:+.1f}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(
        range(len(section.configurations)), section.configurations, rotation=20, ha="right", rotation_mode="anchor"
    )
    axes.set_ylim(0, 1.25)
    axes.set_yticks(np.arange(0, 1.01, 0.2))
    percent_axis(axes)
    axes.set_ylabel("mean utilisation")
    axes.legend(loc="upper left", ncols=2, fontsize=8)
    axes.grid(axis="y", linewidth=0.4)
    axes.set_axisbelow(True)
    return figure


def draw_slices(section: Section) -> Figure:
    """Figure 18: what co-location adds to MISO's assignment, slice by slice, of the first policy."""
    policy = section.policies[0]
    note = (
        f"{policy} on the slices that MISO assigns, which never change; without functions the assignment is MISO's"
        " alone. Mean over seeds; a function's degradation is against the whole device, so a small slice alone is part"
        " of it."
    )
    figure = canvas(9.6, 2.6 + 1.5 * len(section.configurations), section.caption(note))
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
            percent_axis(axes, "x")
            axes.grid(axis="x", linewidth=0.4)
            axes.set_axisbelow(True)
    handles, labels = zip(
        *(pair for axes in panels[0, :2] for pair in zip(*axes.get_legend_handles_labels(), strict=True)), strict=True
    )
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), fontsize=8)
    return figure
