"""
Pictures of measured rows, after figures 1 to 3 and table II of the paper, and of predictions against measurements.

The only module here that needs matplotlib, which the extra ``report`` installs. The same rows give the same files.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from lab.measure.plan import LADDERS
from lab.research.predictor.held_out import COVERAGE, FOLDS, LEAST_PAIRS, JudgedPredictions, pair_rows
from lab.research.predictor.observations import (
    COLD_RATIO,
    by_models,
    cells,
    cold_starts,
    ladders,
    noise,
    partition,
    utilisation,
    waits,
)
from lab.research.predictor.published import DIRECTION_TITLES, PHASES, PUBLISHED, counted, ordered, percent, title, when
from lab.research.predictor.text import PREDICTOR_PICTURES, PROFILE_PICTURES
from lab.research.style import BLUE, GREEN, GREY, ORANGE, RED, SKY, STYLE, canvas
from ml.predict.samples import DIRECTIONS, METRICS, Direction, Floats
from ml.rows import PlaceProfile, Role, Row

#: Observation I as the prose beside figure 1 puts it: shares of the device's time, from and to.
PUBLISHED_LEVELS: Final[Mapping[Role, Mapping[str, tuple[float, float]]]] = {
    "training": {
        **dict.fromkeys(("deepvit", "resnet50", "bert", "roberta"), (0.7, 1.0)),
        **dict.fromkeys(("deepfm", "mobilenet"), (0.0, 0.3)),
    },
    "function": {
        "bert": (0.65, 0.75),
        **dict.fromkeys(("vgg16", "mobilenet", "deepvit", "resnet50", "roberta", "deepfm", "segnet"), (0.0, 0.4)),
    },
}

METRIC_TITLES: Final = {
    "mean": "mean time of an iteration",
    "p50": "P50 latency",
    "p95": "P95 latency",
    "p99": "P99 latency",
}

#: Ticks of a degradation on a scale of log(1 + degradation), fractions.
TICKS: Final = (-0.5, -0.25, 0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


def caption(profile: PlaceProfile, rows: Sequence[Row], *notes: str) -> str:
    """Device, sharing mode, date and number of rows, then ``notes``."""
    place = f"{profile.place.device}; {profile.place.sharing_mode}"
    amount = f"{when(rows)}; {counted(len(rows), 'row')}" if rows else "no rows"
    return " ".join([f"{place}; {amount}.", *notes])


def _empty(axes: Axes, words: str) -> None:
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, color="0.35")


def _forward(values: Floats) -> Floats:
    return np.asarray(np.log1p(np.maximum(values, -0.99)))


def _back(values: Floats) -> Floats:
    return np.asarray(np.expm1(values))


def _wide(values: Sequence[float]) -> bool:
    """Whether degradations need a log scale to be read."""
    return max(values, default=0.0) > 1.0


def _ticks(low: float, high: float) -> list[float]:
    """The values of :data:`TICKS` between ``low`` and ``high``, without those too close to another; 0 is always kept."""
    least = 0.06 * (math.log1p(high) - math.log1p(low))
    taken = [0.0]
    for tick in sorted(TICKS, key=abs):
        if low <= tick <= high and all(abs(math.log1p(tick) - math.log1p(other)) > least for other in taken):
            taken.append(tick)
    return taken


def _degradation_axes(axes: Axes, which: Literal["x", "y"], values: Sequence[float]) -> None:
    """
    An axis of fractions in per cent; on a scale of log(1 + degradation), as in Eq. 2, if there are values above 100 %.
    """
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = min(0.0, min(values, default=0.0)), max(values, default=0.0)
    if _wide(values):
        low, high = float(np.expm1(np.log1p(low) * 1.1)), float(np.expm1(np.log1p(high) * 1.08))
        (axes.set_xscale if which == "x" else axes.set_yscale)("function", functions=(_forward, _back))
        axis.set_ticks(_ticks(low, high))
        axis.set_minor_locator(NullLocator())
    else:
        margin = 0.06 * max(high - low, 0.05)
        low, high = low - margin if low < 0 else 0.0, high + margin
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


def draw_utilisation(profile: PlaceProfile) -> Figure:
    """Figure 1: the share of the device's time that each model takes alone, by batch, in both roles."""
    rows = list(profile.solo.values())
    notes = [f"Counter: {profile.place.counter}. Numbers below the marks: batch. Grey: level in the paper (RTX 3090)."]
    if waits(profile):
        notes.append(
            "The share of a training follows from the wait for input, which was set, not measured (ModelCard.input_wait)."
        )
    if partition(profile):
        notes.append("A function runs without a pause, so it takes all of a CPU partition, whatever the model.")
    figure = canvas(9.2, 6.2, caption(profile, rows, *notes), "Utilisation alone, by model and batch (figure 1)")
    roles: tuple[tuple[Role, str], ...] = (("training", BLUE), ("function", ORANGE))
    for axes, (role, colour) in zip(figure.subplots(2, 1), roles, strict=True):
        shares = utilisation(profile, role)
        models = ordered({*PUBLISHED, *shares})
        for position, model in enumerate(models):
            if model in PUBLISHED_LEVELS[role]:
                low, high = PUBLISHED_LEVELS[role][model]
                axes.fill_between([position - 0.42, position + 0.42], 100 * low, 100 * high, color="0.9", linewidth=0)
            batches = sorted(shares.get(model, {}))
            x = position + 0.2 * (np.arange(len(batches)) - (len(batches) - 1) / 2)
            y = np.array([100 * shares[model][batch] for batch in batches])
            axes.plot(x, y, "o-", color=colour, markersize=5, linewidth=1)
            for at, share, batch in zip(x, y, batches, strict=True):
                axes.annotate(
                    str(batch), (at, share), (0, -6), textcoords="offset points", ha="center", va="top", fontsize=7
                )
            if not batches:
                axes.text(position, 50, "not\nmeasured", ha="center", va="center", fontsize=7, color="0.35")
        axes.set_title(role.capitalize(), loc="left")
        axes.set_xticks(range(len(models)), [title(model) for model in models])
        axes.set_xlim(-0.6, len(models) - 0.4)
        axes.set_ylim(0, 106)
        axes.set_yticks(range(0, 101, 20))
        axes.set_ylabel("busy time (%)")
        axes.grid(axis="y", linewidth=0.4)
        axes.set_axisbelow(True)
    return figure


def draw_pairs(profile: PlaceProfile) -> Figure:
    """
    Figure 2: degradation of each training by each function, and of each function by each training, mean over the
    measured batches.
    """
    return _heat_maps(profile, "pair", "Degradation by co-location, model by model (figure 2)", DIRECTIONS[:2])


def draw_functions(profile: PlaceProfile) -> Figure:
    """As figure 2, for functions by functions: the terms that Eq. 4 adds up."""
    return _heat_maps(profile, "functions", "Functions beside functions", ("functions",))


def draw_trainings(profile: PlaceProfile) -> Figure:
    """As figure 2, for trainings by trainings: what two that share a GPU instance cost each other."""
    return _heat_maps(profile, "trainings", "Trainings beside trainings", ("trainings",))


def _heat_maps(profile: PlaceProfile, kind: str, heading: str, directions: Sequence[Direction]) -> Figure:
    rows = [row for row in profile.colocations if row.kind == kind]
    words = caption(
        profile,
        rows,
        "Degradation in per cent (Eq. 1), mean over the pairs of batches measured; small: how many those are. Hatched:"
        " not measured. Colours go by log(1 + degradation); each square has its own scale.",
    )
    figure = canvas(6.2 * len(directions), 6.5, words, heading)
    for axes, direction in zip(np.atleast_1d(figure.subplots(1, len(directions))), directions, strict=True):
        _heat_map(figure, axes, direction, by_models(cells(profile, direction)))
    return figure


def _heat_map(
    figure: Figure, axes: Axes, direction: Direction, measured: Mapping[tuple[str, str], Sequence[float]]
) -> None:
    models = ordered({*PUBLISHED, *(model for pair in measured for model in pair)})
    values = np.full((len(models), len(models)), np.nan)
    for (victim, aggressor), degradations in measured.items():
        values[models.index(victim), models.index(aggressor)] = statistics.fmean(degradations)
    top = max(0.05, float(np.nanmax(values))) if measured else 1.0
    norm = FuncNorm((_forward, _back), vmin=0, vmax=top)
    axes.patch.set(hatch="////", edgecolor="0.8", facecolor="white")
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(np.maximum(values, 0)), cmap="cividis", norm=norm, edgecolors="white", linewidth=1
    )
    for (victim, aggressor), degradations in measured.items():
        mean = statistics.fmean(degradations)
        colour = "black" if float(norm(max(0.0, mean))) > 0.55 else "white"
        x, y = models.index(aggressor) + 0.5, models.index(victim) + 0.5
        number = f"{100 * mean:.1f}" if abs(mean) < 0.0995 else f"{100 * mean:.0f}"
        axes.text(x, y - 0.08, number, ha="center", va="center", fontsize=9, color=colour)
        axes.text(x, y + 0.32, f"n {len(degradations)}", ha="center", va="center", fontsize=6, color=colour)
    names = [title(model) for model in models]
    axes.set_xticks(np.arange(len(models)) + 0.5, names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(np.arange(len(models)) + 0.5, names)
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    slowed = "training" if direction in ("training", "trainings") else "function"
    beside = "training" if direction in ("function", "trainings") else "function"
    axes.set_ylabel(f"{slowed} that is slowed down")
    axes.set_xlabel(f"{beside} beside it")
    axes.set_title(f"{DIRECTION_TITLES[direction].capitalize()}\n({METRIC_TITLES[METRICS[direction]]})", loc="left")
    bar = figure.colorbar(mesh, ax=axes, shrink=0.7, pad=0.02)
    bar.set_ticks(
        _ticks(0.0, top) if top > 0.5 else [tick for tick in MaxNLocator(5).tick_values(0, top) if tick <= top]
    )
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
    bar.ax.yaxis.set_minor_locator(NullLocator())


def draw_concurrency(profile: PlaceProfile) -> Figure:
    """Figure 3: degradation over the number of functions at a time."""
    by_pair = ladders(profile)
    rows = [
        row
        for row in profile.colocations
        if len({m.workload for m in row.members[1:]}) == 1
        and (row.members[0].workload, row.members[1].workload) in by_pair
    ]
    notes = ["The functions are of one kind and run without a pause; bars: least and most of them."]
    missing = [f"{title(t.model)}/{title(f.model)}" for (t, f), steps in by_pair.items() if steps[0].k > 1]
    if missing:
        notes.append(f"One function alone was not measured for {', '.join(missing)}.")
    absent = [f"{title(t)}/{title(f)}" for t, f in LADDERS if (t, f) not in {(a.model, b.model) for a, b in by_pair}]
    if absent:
        notes.append(f"Not measured: {', '.join(absent)}.")
    figure = canvas(9.2, 4.6, caption(profile, rows, *notes), "Degradation by several functions at a time (figure 3)")
    styles = (
        (BLUE, "o", "-"),
        (ORANGE, "s", "--"),
        (GREEN, "^", ":"),
        (RED, "D", "-."),
        (SKY, "v", "-"),
        (GREY, "P", "--"),
    )
    left, right = figure.subplots(1, 2)
    for axes, side in ((left, "training"), (right, "function")):
        shown: list[float] = []
        for number, ((training, function), steps) in enumerate(by_pair.items()):
            colour, marker, line = styles[number % len(styles)]
            k = [step.k for step in steps]
            values = [step.training if side == "training" else step.function for step in steps]
            label = (
                f"{title(training.model)} (batch {training.batch}) with {title(function.model)} (batch"
                f" {function.batch})"
            )
            axes.plot(k, values, marker=marker, linestyle=line, color=colour, label=label, linewidth=1.3, markersize=5)
            if side == "function":
                least, most = [step.function_least for step in steps], [step.function_most for step in steps]
                axes.vlines(k, least, most, color=colour, linewidth=1)
                shown += most + least
            shown += values
        _degradation_axes(axes, "y", shown)
        axes.set_xticks(range(1, 9))
        axes.set_xlim(0.6, 8.4)
        axes.set_xlabel("functions at a time")
        axes.set_title(
            "Training: mean time of an iteration" if side == "training" else "Functions: P99 latency", loc="left"
        )
        axes.set_ylabel("degradation (Eq. 1)")
        axes.grid(axis="y", linewidth=0.4)
        if not by_pair:
            axes.set_yticks([])
            _empty(axes, "no row with several equal functions\nof the paper's three combinations")
    if by_pair:
        left.legend(loc="upper left", fontsize=7.5)
        # Room for it above the lines.
        left.set_ylim(top=left.get_ylim()[1] * 1.25)
    return figure


def draw_cold_starts(profile: PlaceProfile) -> Figure:
    """Table II: the cold start by phase, and over the warm run."""
    measured = cold_starts(profile)
    rows = [profile.solo[cold.workload] for cold in measured]
    words = caption(
        profile,
        rows,
        "Functions at their smallest measured batch, one start of a process each; the warm run is the median alone. The"
        " ratio counts imports, context and weights, as the paper does, not the first run. Paper: RTX 3090, table II.",
    )
    figure = canvas(9.2, 4.6, words, "Cold start against warm run (table II)")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    models = ordered({*PUBLISHED, *(cold.workload.model for cold in measured)})
    colours = dict(zip(PHASES, ((BLUE, ""), (ORANGE, "\\\\\\"), (GREEN, "///"), (SKY, "...")), strict=True))
    for number, (phase, words_) in enumerate(PHASES.items()):
        colour, hatch = colours[phase]
        positions = [models.index(cold.workload.model) for cold in measured]
        starts = [math.fsum([*cold.phases.values()][:number]) for cold in measured]
        lengths = [cold.phases[phase] for cold in measured]
        left.barh(
            positions,
            lengths,
            left=starts,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.3,
            height=0.65,
            label=words_,
        )
    for cold in measured:
        y = models.index(cold.workload.model)
        words_ = f" warm {1000 * cold.warm_p50_s:.3g} ms"
        left.annotate(
            words_, (math.fsum(cold.phases.values()), y), (2, 0), textcoords="offset points", va="center", fontsize=7
        )
        right.plot(cold.ratio, y, "o", color=BLUE, markersize=6, label="measured" if cold is measured[0] else None)
    for model in set(models) - {cold.workload.model for cold in measured}:
        left.text(0, models.index(model), " not measured", va="center", fontsize=7, color="0.35")
    for model, published in PUBLISHED.items():
        right.plot(
            1000 * published.cold_s / published.warm_ms,
            models.index(model),
            "D",
            markerfacecolor="none",
            color=GREY,
            markersize=6,
            label="paper" if model == "vgg16" else None,
        )
    right.axvline(COLD_RATIO, color=RED, linewidth=1, linestyle="--", label="limit of the rule")
    left.set_yticks(range(len(models)), [title(model) for model in models])
    left.invert_yaxis()
    left.set_xlim(0, 1.28 * max((math.fsum(cold.phases.values()) for cold in measured), default=1.0))
    left.set_xlabel("cold start by phase (s)")
    right.set_xscale("log")
    right.set_xlim(
        min([5.0, *(cold.ratio / 1.5 for cold in measured)]), max([1000.0, *(1.5 * cold.ratio for cold in measured)])
    )
    right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    right.set_xlabel("cold start over warm run")
    right.grid(axis="x", linewidth=0.4)
    above: dict[str, Any] = {
        "loc": "lower left",
        "bbox_to_anchor": (-0.03, 0.98),
        "fontsize": 7.5,
        "columnspacing": 1.0,
    }
    if measured:
        left.legend(ncols=len(PHASES), **above)
    right.legend(ncols=3, **above)
    return figure


def draw_calibration(profile: PlaceProfile, judged: Mapping[Direction, JudgedPredictions | None]) -> Figure:
    """Predicted against measured degradation by direction, with the upper bound as a second mark."""
    words = caption(
        profile,
        pair_rows(profile),
        f"Out-of-fold: {FOLDS} folds over whole pairs, recipe ours. A triangle is the {percent(COVERAGE)} upper bound"
        " of the point on its line: on or above the diagonal it covers what was measured. Axes go by log(1 +"
        " degradation) where values exceed 100 %.",
    )
    figure = canvas(4.1 * len(judged), 5.2, words, "Predicted against measured degradation")
    for axes, (direction, predictions) in zip(
        np.atleast_1d(figure.subplots(1, len(judged))), judged.items(), strict=True
    ):
        axes.set_title(DIRECTION_TITLES[direction].capitalize(), loc="left")
        axes.set_xlabel(f"measured degradation\n({METRIC_TITLES[METRICS[direction]]})")
        axes.set_ylabel("predicted degradation")
        axes.set_box_aspect(1)
        if predictions is None:
            _empty(axes, f"fewer than {LEAST_PAIRS} pairs")
            axes.set_xticks([])
            axes.set_yticks([])
            continue
        axes.vlines(predictions.actual, predictions.predicted, predictions.upper, color="0.85", linewidth=0.5, zorder=1)
        axes.plot(
            predictions.actual,
            predictions.upper,
            "^",
            color=ORANGE,
            markersize=3.5,
            alpha=0.6,
            markeredgewidth=0,
            label="upper bound",
            zorder=2,
        )
        axes.plot(
            predictions.actual,
            predictions.predicted,
            "o",
            color=BLUE,
            markersize=4,
            alpha=0.75,
            markeredgewidth=0,
            label="prediction",
            zorder=3,
        )
        values = [*predictions.actual, *predictions.predicted, *predictions.upper]
        _degradation_axes(axes, "x", values)
        _degradation_axes(axes, "y", values)
        axes.tick_params(axis="x", labelrotation=45)
        ends = axes.get_xlim()
        line = np.linspace(max(ends[0], -0.9), ends[1], 200)
        axes.plot(line, line, color="0.2", linewidth=0.9, label="equal", zorder=4)
        axes.text(
            0.98,
            0.02,
            f"{predictions.pairs} pairs, {len(predictions.actual)} samples\nRMSLE {predictions.rmsle:.3f}\ncovered"
            f" {percent(predictions.covered)}",
            transform=axes.transAxes,
            ha="right",
            va="bottom",
            fontsize=7.5,
        )
        axes.legend(loc="upper left", fontsize=7.5)
    return figure


def draw_errors(profile: PlaceProfile, judged: Mapping[Direction, JudgedPredictions | None]) -> Figure:
    """RMSLE by model, as the one slowed down and as the one beside it."""
    words = caption(
        profile,
        pair_rows(profile),
        f"Out-of-fold: {FOLDS} folds over whole pairs, recipe ours. RMSLE has no unit (Eq. 2). "
        "Dashed: deviation of repeats, which no predictor beats on average.",
    )
    figure = canvas(4.1 * len(judged), 4.4, words, "Error of the predictor by model")
    every = {
        name
        for predictions in judged.values()
        if predictions
        for name in (*predictions.samples.victims, *predictions.samples.aggressors)
    }
    models = ordered({*PUBLISHED, *every})
    marks: tuple[tuple[Literal["victim", "aggressor"], str, str, str, float], ...] = (
        ("victim", "slowed down", BLUE, "o", -0.15),
        ("aggressor", "beside it", ORANGE, "s", 0.15),
    )
    handles: dict[str, Artist] = {}
    for axes, (direction, predictions) in zip(
        np.atleast_1d(figure.subplots(1, len(judged), sharey=True)), judged.items(), strict=True
    ):
        axes.set_title(DIRECTION_TITLES[direction].capitalize(), loc="left")
        axes.set_xlabel("RMSLE")
        axes.set_yticks(range(len(models)), [title(model) for model in models])
        axes.set_ylim(len(models) - 0.5, -0.5)
        if predictions is None:
            _empty(axes, f"fewer than {LEAST_PAIRS} pairs")
            axes.set_xticks([])
            continue
        for side, label, colour, marker, shift in marks:
            errors = predictions.of_model(side)
            y = [models.index(model) + shift for model in errors]
            (handles[label],) = axes.plot(
                [error for error, _ in errors.values()], y, marker, color=colour, markersize=5
            )
        floor = noise(cells(profile, direction))
        if floor.freedom:
            handles["noise floor"] = axes.axvline(floor.deviation, color="0.3", linewidth=1, linestyle="--")
        axes.set_xlim(left=0)
        axes.grid(linewidth=0.4)
        axes.set_axisbelow(True)
    if handles:
        figure.legend([*handles.values()], [*handles], loc="outside upper right", ncols=3, fontsize=7.5)
    return figure


#: By the names of the files.
_PROFILE: Final[Mapping[str, Callable[[PlaceProfile], Figure]]] = {
    "utilisation": draw_utilisation,
    "pairs": draw_pairs,
    "functions": draw_functions,
    "trainings": draw_trainings,
    "concurrency": draw_concurrency,
    "cold-start": draw_cold_starts,
}
_PREDICTOR: Final[Mapping[str, Callable[[PlaceProfile, Mapping[Direction, JudgedPredictions | None]], Figure]]] = {
    "calibration": draw_calibration,
    "errors": draw_errors,
}


def _save(figure: Figure, path: Path, png: bool) -> Iterator[Path]:
    """``path`` without an ending; SVG without a date."""
    figure.savefig(path.with_suffix(".svg"), format="svg", metadata={"Date": None})
    yield path.with_suffix(".svg")
    if png:
        figure.savefig(path.with_suffix(".png"), format="png", dpi=150)
        yield path.with_suffix(".png")


def draw_profile(profile: PlaceProfile, folder: Path, *, png: bool = False) -> Iterator[Path]:
    """
    Draw all of :data:`PROFILE_PICTURES` into an existing folder; yields the files. Raises OSError where that
    fails.
    """
    with mpl.rc_context(STYLE):
        for name in PROFILE_PICTURES:
            yield from _save(_PROFILE[name](profile), folder / name, png)


def draw_predictor(
    profile: PlaceProfile, judged: Mapping[Direction, JudgedPredictions | None], folder: Path, *, png: bool = False
) -> Iterator[Path]:
    """
    Draw all of :data:`PREDICTOR_PICTURES` into an existing folder; yields the files. Raises OSError where that
    fails.
    """
    with mpl.rc_context(STYLE):
        for name in PREDICTOR_PICTURES:
            yield from _save(_PREDICTOR[name](profile, judged), folder / name, png)
