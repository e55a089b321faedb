"""Draws the scores of prewarming rules: figures 15 and 16 of the paper, and cold starts against held memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from lab.research.prewarm.cases import TraceEvaluation
from lab.research.prewarm.report import point
from lab.research.style import BLUE, GREEN, GREY, ORANGE, RED, SKY, STYLE

#: Colour and marker of each family.
LOOKS: Final = {
    "ours": (BLUE, "o"),
    "lsth": (ORANGE, "s"),
    "hhp": (GREEN, "^"),
    "keep-alive": (GREY, "D"),
    "ls-lstm": (RED, "v"),
    "seasonal-naive": (SKY, "P"),
}
#: Minutes that figure 15 shows.
SHOWN: Final = 120


def draw(cases: Sequence[TraceEvaluation], folder: Path) -> list[Path]:
    """Write each picture of each case as SVG and PNG; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for case in cases:
        end = f"{case.work.name}-{case.work.load_s:g}s"
        with mpl.rc_context(STYLE):
            for name, figure in (
                ("figure-15", _forecasts(case)),
                ("figure-16", _rates(case)),
                ("pareto", _pareto(case)),
            ):
                for kind, metadata in (("svg", {"Date": None}), ("png", None)):
                    written.append(folder / f"prewarm-{name}-{end}.{kind}")
                    figure.savefig(written[-1], metadata=metadata, dpi=110)
    return written


def _example(case: TraceEvaluation, part: str) -> int | None:
    """The function with the median number of requests in the scored part, of a class's functions with requests."""
    counts = case.work.counts[:, case.from_minute :].sum(axis=1)
    rows = np.flatnonzero(case.parts[part] & (counts > 0))
    return int(rows[np.argsort(counts[rows], kind="stable")[len(rows) // 2]]) if len(rows) else None


def _forecasts(case: TraceEvaluation) -> Figure:
    """Figure 15 for three classes: arrived requests, and the forecast one minute ahead."""
    source = "blend" if "blend" in case.ahead else "renewal"
    label = "LS-LSTM (Eq. 8)" if source == "blend" else "renewal"
    figure = Figure(figsize=(9.2, 6.4), layout="constrained")
    panels = figure.subplots(3, 1)
    for axes, part in zip(panels, ("dense", "mid", "sparse"), strict=True):
        row = _example(case, part)
        if row is None:
            axes.text(0.5, 0.5, "no function of this class", ha="center", transform=axes.transAxes)
            continue
        span = slice(case.from_minute, min(case.work.counts.shape[1], case.from_minute + SHOWN))
        arrived, ahead = case.work.counts[row, span], case.ahead[source][0][row, span]
        minutes = np.arange(len(arrived))
        axes.bar(minutes, arrived, 0.9, color="0.8", label="arrived")
        axes.step(minutes, ahead, where="mid", color=BLUE, linewidth=1.2, label=label)
        both = ((arrived > 0) == (ahead >= 0.5)).mean()
        axes.set_title(
            f"{part}: {100 * both:.0f} % of minutes correctly forecast to have requests or none", loc="left", fontsize=9
        )
        axes.set_ylabel("requests in a minute")
        # Above the axes, whatever the lines do.
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0, fontsize=8)
        axes.grid(axis="y", linewidth=0.4)
    panels[-1].set_xlabel(f"minute of the scored part ({case.work.name})")
    return figure


def _rates(case: TraceEvaluation) -> Figure:
    """Figure 16: both rates, overall and for bursty functions."""
    rules = (
        "hhp",
        "lsth",
        case.lsth,
        "ls-lstm",
        "ls-lstm-quantile 0.95",
        "seasonal-naive",
        "keep-alive 600 s",
        "ours",
        "oracle",
    )
    names = [name for name in dict.fromkeys(rules) if name in case.scores]
    parts = [part for part in ("overall", "bursty") if case.parts[part].any()]
    figure = Figure(figsize=(9.2, 4.2), layout="constrained")
    headings = ("cold-start rate R_cs", "loaded without work, share of the total time")
    for column, (axes, heading) in enumerate(zip(figure.subplots(1, 2), headings, strict=True)):
        for position, part in enumerate(parts):
            case_rates = [case.rates(name, part) for name in names]
            values = [100 * (rate.r_cs if column == 0 else rate.r_rw_alone) for rate in case_rates]
            shift = 0.4 * (position - (len(parts) - 1) / 2)
            bars = axes.bar(np.arange(len(names)) + shift, values, 0.38, color=(BLUE, ORANGE)[position], label=part)
            axes.bar_label(bars, [f"{value:.2g}" if column == 0 else f"{value:.0f}" for value in values], fontsize=7)
        if column == 0:
            axes.set_yscale("symlog", linthresh=0.1)
            axes.set_ylim(0, 2 * max(axes.get_ylim()[1], 1.0))
        else:
            axes.set_ylim(0, 108)
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor", fontsize=8)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        axes.set_title(f"{heading} (less is better)", loc="left", fontsize=9)
        axes.grid(axis="y", linewidth=0.4)
        axes.set_axisbelow(True)
    figure.axes[0].legend(fontsize=8)
    return figure


def _pareto(case: TraceEvaluation) -> Figure:
    """Cold starts against held memory."""
    figure = Figure(figsize=(7.6, 4.8), layout="constrained")
    axes = figure.subplots()
    for family, (colour, marker) in LOOKS.items():
        points = sorted(point(case, name) for name in case.curves.get(family, ()))
        if points:
            spent, cold = np.array(points).T
            line = "-" if family in ("ours", "keep-alive", "hhp", "lsth") else "none"
            axes.plot(
                spent,
                100 * cold,
                linestyle=line,
                marker=marker,
                color=colour,
                linewidth=1.2,
                markersize=5,
                label=family,
            )
    for name in ("never", "always", "oracle"):
        spent_at, cold_at = point(case, name)
        axes.plot(spent_at, max(1e-3, 100 * cold_at), "x", color="0.2")
        axes.annotate(name, (spent_at, max(1e-3, 100 * cold_at)), textcoords="offset points", xytext=(5, 4), fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("GB-seconds loaded without work")
    axes.set_ylabel("cold-start rate R_cs (%)")
    axes.set_title(f"{case.work.name}, cold start {case.work.load_s:g} s, not compressed", loc="left", fontsize=9)
    axes.grid(linewidth=0.4)
    axes.legend(fontsize=8)
    return figure
