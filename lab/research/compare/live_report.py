"""
The result of a live comparison: one JSON document, a line for each run (``rows.csv``), and a page with the measured side,
the simulated side and how far they agree, each in a part of its own. No table and no picture holds both kinds;
agreement is given in numbers about the two.
"""

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lab.research import page
from lab.research.compare import report
from lab.research.compare.agreement import Agreement
from lab.research.compare.live import SHARED, LiveComparison
from lab.research.page import Column
from lab.simulation.metrics import Interval
from smore.domain.loss import Loss

if TYPE_CHECKING:
    from lab.research.compare.pictures import Picture

#: Columns by metric, of both sides and of the measured one alone.
COLUMNS: Final = {
    "dsr": Column(heading="DSR", meaning="deadlines met, of all submitted; measured: by the client"),
    "dsr_admitted": Column(heading="DSR admitted", meaning="deadlines met, of those dispatched"),
    "admission": Column(heading="admitted", meaning="dispatched, of all submitted"),
    "gui": Column(heading="GUI", meaning="utilisation gained, points"),
    "sfd": Column(heading="SFD", meaning="degradation of trainings: iteration time over that alone, less one"),
    "sld": Column(heading="SLD", meaning="degradation of functions, against their time alone"),
}
MEASURED_ONLY: Final = {
    "dsr_platform": Column(
        heading="DSR, platform", meaning="deadlines met by the platform's clock, from the gateway to the result"
    ),
    "refused": Column(heading="refused", meaning="answered 429 by the gateway, of all submitted"),
}


def figures(outcome: LiveComparison) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """
    Figures by name, and the 95 % intervals of those that have one; undefined figures are left out.

    ``<metric>.<policy>`` was measured, ``simulated.<metric>.<policy>`` was not; ``spearman.<metric>``,
    ``kendall.<metric>``, ``mae.<metric>``, ``bias.<metric>``, ``pairs_apart.<metric>``, ``pairs_alike.<metric>`` say
    how they agree; ``train_loss.<policy>`` is the mean over trainings of the estimates from all windows, in iteration
    times alone, as budgets are; ``statements_proven`` the part of the trainings whose budget was provably kept or not.
    """
    values: dict[str, float] = {}
    intervals: dict[str, dict[str, float]] = {}

    def put(name: str, interval: Interval) -> None:
        name = plain(name)
        if math.isfinite(interval.mean):
            values[name] = interval.mean
        if math.isfinite(interval.low) and math.isfinite(interval.high):
            intervals[name] = {"low": interval.low, "high": interval.high}

    for name, interval in outcome.intervals(outcome.measured).items():
        put(name, interval)
    for name, interval in outcome.intervals(outcome.simulated).items():
        if name.partition(".")[0] in SHARED:
            put(f"simulated.{name}", interval)
    for agreed in outcome.agreements():
        values |= {
            f"{name}.{agreed.metric}": value
            for name, value in (("spearman", agreed.spearman), ("kendall", agreed.kendall))
            if math.isfinite(value)
        }
        values |= {f"pairs_apart.{agreed.metric}": agreed.apart, f"pairs_alike.{agreed.metric}": agreed.alike}
        put(f"mae.{agreed.metric}", agreed.error)
        put(f"bias.{agreed.metric}", agreed.bias)
    for policy, losses in outcome.losses.items():
        pooled = together(losses)
        if pooled is not None:
            put(f"train_loss.{policy}", pooled)
    values["capacity_per_s"] = outcome.calibration.capacity_per_s
    if math.isfinite(outcome.statements_proven):
        values["statements_proven"] = outcome.statements_proven
    return values, intervals


def plain(name: str) -> str:
    """Names of figures have dots between their parts; other marks, which policies' names may have, are replaced."""
    return re.sub(r"[^\w.]", "_", name)


def together(losses: Mapping[str, Loss | None]) -> Interval | None:
    """Mean over trainings, each known independently; None while one is not known."""
    measured = [loss for loss in losses.values() if loss is not None]
    if not measured or len(measured) < len(losses):
        return None
    mean = math.fsum(loss.mean for loss in measured) / len(measured)
    below, above = (
        math.hypot(*sides) / len(measured)
        for sides in zip(*((loss.mean - loss.low, loss.high - loss.mean) for loss in measured), strict=True)
    )
    return Interval(mean=mean, low=mean - below, high=mean + above)


def write_rows(outcome: LiveComparison, path: Path) -> None:
    """A line for each run of either side."""
    sides = (("measured", outcome.measured), ("simulated", outcome.simulated))
    names = list(dict.fromkeys(metric for _, side in sides for by in side.values() for metric in by))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["side", "repeat", "policy", "machine_load", *names])
        for kind, side in sides:
            for policy, by in side.items():
                for repeat in range(outcome.plan.repeats):
                    load = f"{outcome.loads[policy][repeat]:.3g}" if kind == "measured" else ""
                    values = [by[name][repeat] if name in by else math.nan for name in names]
                    writer.writerow(
                        [kind, repeat, policy, load, *(repr(value) if math.isfinite(value) else "" for value in values)]
                    )


def write(folder: Path, outcome: LiveComparison, document: Mapping[str, Any], pictures: "Sequence[Picture]") -> Path:
    """
    ``live.json``, ``rows.csv``, the pictures and the page, into an existing folder. Returns the page. Raises
    OSError.
    """
    (folder / "live.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    write_rows(outcome, folder / "rows.csv")
    for picture in pictures:
        (folder / f"{picture.name}.svg").write_text(picture.svg)
    written = folder / report.PAGE
    written.write_text(_page(outcome, document, pictures))
    return written


def captions(outcome: LiveComparison, document: Mapping[str, Any]) -> tuple[str, str]:
    """Of the measured and of the simulated panel."""
    plan, calibration = outcome.plan, outcome.calibration
    rates = ", ".join(f"{rate:.1f}" for rate in outcome.rates)
    same = (
        f"Preset {plan.preset.name}, {plan.repeats} repeats of {plan.seconds:g} s at {rates} arrivals per second"
        f" ({plan.load:g} times the capacity at hand); code {document['revision']}. Lines: 95 % intervals over repeats."
    )
    world = plan.world
    return (
        (
            f"Measured through REST: {document['device']}; {len(world.gpus)} x {calibration.device}, {calibration.sharing_mode}; "
            f"{document['date']}. {same}"
        ),
        (
            f"Simulated: interference model {world.interference_model.name} with the times alone of calibration, a run taking"
            f" {outcome.slowdown_factor:.2f} times its work alone. {same}"
        ),
    )


def _page(outcome: LiveComparison, document: Mapping[str, Any], pictures: "Sequence[Picture]") -> str:
    measured, simulated = outcome.intervals(outcome.measured), outcome.intervals(outcome.simulated)
    captions_ = captions(outcome, document)
    functions = [function.name for function in outcome.plan.world.functions]
    parts = [_conditions(outcome)]
    for kind, values, columns, caption in (
        ("measured", measured, COLUMNS | MEASURED_ONLY, captions_[0]),
        ("simulated", simulated, COLUMNS, captions_[1]),
    ):
        heading = "Measured" if kind == "measured" else "Simulated"
        parts.append(
            f'<section id="{kind}"><h2>{heading}<span class="kind {kind}">{kind}</span></h2><p'
            f' class="soft">{escape(caption)}</p>'
            + report.table("In per cent, mean over repeats", outcome.plan.policies, columns, values.__getitem__)
            + report.table(
                "Admitted by function, per cent",
                outcome.plan.policies,
                report.by_function(functions),
                values.__getitem__,
            )
            + "".join(report.figure(picture) for picture in pictures if picture.measured == (kind == "measured"))
            + (_losses(outcome) if kind == "measured" else "")
            + "</section>"
        )
    parts += [_agreement(outcome.agreements()), _measures()]
    parts.append(f'<p class="soft">Made by <code>{escape(str(document["command"]))}</code></p>')
    about = (
        "Policies on the devices at hand, and the same arrivals, deadlines, functions and trainings in the simulator."
        " What was measured and what was simulated stand in parts of their own; how far they agree is said at the end."
        " Fractions are in per cent."
    )
    names = ("conditions", "measured", "simulated", "agreement", "measures")
    links = "".join(f'<a href="#{name}">{name}</a>' for name in names)
    return page.document("SMore: policies compared live", "Policies compared live", about, links, "".join(parts))


def _conditions(outcome: LiveComparison) -> str:
    """What was calibrated, and how the preset's trace was scaled."""
    calibration, plan = outcome.calibration, outcome.plan
    alone = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in calibration.solo_s.items())
    looks = ", ".join(f"{100 * look.met:.0f} % at {look.rate_per_s:.0f}/s" for look in calibration.looks)
    loads = [load for by in outcome.loads.values() for load in by if math.isfinite(load)]
    lines = [
        f"Alone, one row: {alone}; an answer takes {1e3 * calibration.network_s:.1f} ms beyond the run.",
        (
            f"Deadlines met at rising rates, without a budget: {looks}. The capacity is {calibration.capacity_per_s:.1f} in"
            " time a second."
        ),
        (
            f"The preset's trace, {float(plan.preset.trace.get('rate_per_min', 12_000)) / 60:.1f}/s, is scaled to"
            f" {plan.load:g} times that."
        ),
        (
            f"With a slowdown factor of {outcome.slowdown_factor:.2f} the simulator meets as many deadlines at those rates: so much longer"
            " than alone its runs take."
        ),
        "The simulator's policies get the degradations that "
        + (
            "the platform's leader had."
            if calibration.table is not None
            else "the preset says: the platform had published none."
        ),
    ]
    if loads:
        lines.append(f"Load average of the machine while it served: {min(loads):.1f} to {max(loads):.1f}.")
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    about = f"<p>{escape(plan.preset.about)}</p>" if plan.preset.about else ""
    return f'<section id="conditions"><h2>Conditions</h2>{about}<ul>{items}</ul></section>'


def _losses(outcome: LiveComparison) -> str:
    columns = [
        Column(heading="policy", number=False),
        Column(heading="training", number=False),
        Column(heading="lost"),
        Column(heading="windows"),
    ]
    rows = []
    for policy, losses in outcome.losses.items():
        for training, loss in losses.items():
            cells = ["not enough data", "–"]
            if loss is not None:
                bounds = f"<small>{100 * loss.low:+.1f} to {100 * loss.high:+.1f}</small>"
                cells = [f"{100 * loss.mean:+.1f}{bounds}", str(loss.windows)]
            rows.append([escape(policy), escape(training), *cells])
    return page.table("What trainings lost, by the closed windows of all repeats, per cent", columns, rows)


def _agreement(agreements: Sequence[Agreement]) -> str:
    columns = [
        Column(heading="metric", number=False),
        *(
            Column(heading=heading)
            for heading in (
                "Spearman",
                "Kendall",
                "pairs apart",
                "alike",
                "mean absolute error",
                "simulated less measured",
            )
        ),
    ]
    rows = [
        [
            escape(COLUMNS[agreed.metric].heading),
            _rank(agreed.spearman),
            _rank(agreed.kendall),
            str(agreed.apart),
            str(agreed.alike),
            report.cell(agreed.error),
            report.cell(agreed.bias),
        ]
        for agreed in agreements
    ]
    note = (
        "Rank correlations are of the policies' means. “Pairs apart”: pairs of policies that the measurement tells"
        " apart with 95 % confidence; “alike”: of those, the ones that are in the same order in the simulator. Errors"
        " are in points, with half a 95 % interval over repeats."
    )
    return (
        f'<section id="agreement"><h2>Agreement</h2>{page.table("By metric", columns, rows)}'
        f'<p class="soft">{note}</p></section>'
    )


def _measures() -> str:
    """What each measure is."""
    columns = [Column(heading="measure", number=False), Column(heading="what it is", number=False, prose=True)]
    rows = [[escape(column.heading), escape(column.meaning)] for column in (COLUMNS | MEASURED_ONLY).values()]
    return f'<section id="measures"><h2>Measures</h2>{page.table("", columns, rows)}</section>'


def _rank(value: float) -> str:
    return f"{value:+.2f}" if math.isfinite(value) else "–"
