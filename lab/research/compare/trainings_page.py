"""
The page of a comparison of settings of the queue of trainings: claims, tables with intervals, pictures, and what the
measures mean. It contains its pictures and needs no other file; pictures and tables (CSV) lie beside it too.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lab.research import page
from lab.research.compare import trainings
from lab.research.compare.measures import ESTIMATES, few_seeds
from lab.research.compare.report import BADGE, PAGE, TO_MEASURES, figure, save
from lab.research.compare.trainings import JobPlan, Values
from lab.research.compare.trainings_settings import in_words
from lab.research.page import Column
from lab.simulation.jobs.metrics import HEADINGS, MEANINGS, MORE
from lab.simulation.jobs.world import JobPreset, JobWorld
from lab.simulation.metrics import Interval

if TYPE_CHECKING:
    from lab.research.compare.pictures import Picture

TABLE: Final = "table.csv"
#: Measures of one table; all others stand in another one.
TIMES: Final = ("jct", "jct_median", "p95", "jct_p99", "wait", "wait_median", "wait_p99", "makespan")


def write(
    folder: Path,
    plan: JobPlan,
    preset: JobPreset,
    by: Values,
    compared: Mapping[str, Interval],
    pictures: "Sequence[Picture]",
    *,
    command: str,
    revision: str,
) -> Path:
    """Write page, pictures and tables into a folder, which is made if it is absent. Returns the page. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    world = preset.world
    rows = trainings.write_rows(plan, by, folder)
    _write_table(folder / TABLE, plan, compared)
    save(folder, pictures)
    facts = [
        ("command", f"<code>{escape(command)}</code>"),
        ("version", f"<code>{escape(revision)}</code>"),
        ("what two on a GPU cost each other", escape(", ".join(plan.truths))),
        ("lengths", f"wrong by e to the power of N(0, {plan.lengths:g})" if plan.lengths else "known exactly"),
        ("slowdowns", f"predicted with an error of {plan.noise:g} in the logarithm" if plan.noise else "known exactly"),
        ("cluster", f"{world.nodes} nodes of {world.gpus} GPU instances"),
        (
            "a resumption, after a failure or after a job was stopped",
            f"{world.resume_s:g} s from the start of the attempt",
        ),
        ("runs", f"{plan.seeds} seeds{' under each' if len(plan.truths) > 1 else ''}"),
        (
            "changed in the trace",
            escape(", ".join(f"{name}={value}" for name, value in plan.trace.items())) or "nothing",
        ),
        ("tables", " ".join(f'<a href="{name}">{name}</a>' for name in (TABLE, rows.name))),
    ]
    body = [
        f'<section id="{escape(world.name)}"><h2>{escape(world.name)}</h2><p>{escape(preset.about)}</p>',
        f"<ul class='soft'>{''.join(f'<li>{name}: {value}</li>' for name, value in facts)}</ul>",
        _claims(plan, compared),
        f"<p>{escape(words)}</p>" if (words := trainings.same_in_words(plan, by)) else "",
        _settings(plan, world),
        _figures("Times, hours", TIMES, plan, compared),
        _figures("Other figures", [name for name in _there(plan, compared) if name not in TIMES], plan, compared),
        f"<p class='soft'>{ESTIMATES} {TO_MEASURES}</p>",
        *map(figure, pictures),
        _reductions(plan, compared),
        _ratios(plan, compared),
        "</section>",
        _measures(),
    ]
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in (world.name, "measures"))
    words = (
        "Settings of the queue of trainings on a simulated clock. A simulated number tests the logic of scheduling; it"
        " says nothing about a device. Times are in hours, intervals are 95 % over seeds, differences paired by seed."
    )
    written = folder / PAGE
    written.write_text(page.document("SMore: trainings compared", "Trainings compared", words, links, "".join(body)))
    return written


def _claims(plan: JobPlan, compared: Mapping[str, Interval]) -> str:
    first = plan.policies[0]
    columns = [
        Column(heading="claim", number=False),
        Column(heading="verdict", number=False),
        Column(heading="hours less", meaning="mean completion of the other one, less this one's"),
        Column(heading="per cent less"),
    ]
    rows = []
    for name, (claim, verdict) in trainings.judged(plan, compared).items():
        part = compared[f"reduction.jct.{first}.{name.removeprefix('jct.')}"]
        badge = f"<span class='badge {BADGE[verdict]}'>{verdict.value}</span>"
        less = compared[f"advantage.{name}"]
        if less.low == less.high == 0.0:
            rows.append([escape(claim), badge, "0<small>equal in every seed</small>", "0"])
        else:
            rows.append([escape(claim), badge, _between(less), _between(part, 100.0)])
    note = f"{trainings.RULE} {few_seeds(plan.seeds)} {trainings.PER_CENT}"
    return page.table("Claims", columns, rows) + f"<p class='soft'>{note}</p>" if rows else ""


def _settings(plan: JobPlan, world: JobWorld) -> str:
    """What each setting is, and what it costs to stop a job."""
    columns = [Column(heading="setting", number=False), Column(heading="what it does", number=False, prose=True)]
    return page.table("Settings", columns, [[escape(name), escape(in_words(name, world))] for name in plan.policies])


def _figures(heading: str, names: Sequence[str], plan: JobPlan, compared: Mapping[str, Interval]) -> str:
    columns = [Column(heading="setting", number=False)]
    columns += [Column(heading=HEADINGS[name], meaning=MEANINGS[name]) for name in names]
    rows = [[escape(policy), *(_cell(compared[f"{name}.{policy}"]) for name in names)] for policy in plan.policies]
    return page.table(heading, columns, rows)


def _there(plan: JobPlan, compared: Mapping[str, Interval]) -> list[str]:
    """The measures that these runs have."""
    return [name for name in MEANINGS if f"{name}.{plan.policies[0]}" in compared]


def _reductions(plan: JobPlan, compared: Mapping[str, Interval]) -> str:
    """By how many per cent the mean completion of a row is below that of a column."""
    if len(plan.policies) < 2:
        return ""
    columns = [Column(heading="setting", number=False), *(Column(heading=f"below {name}") for name in plan.policies)]
    rows = []
    for ours in plan.policies:
        named = (f"reduction.jct.{ours}.{theirs}" for theirs in plan.policies)
        rows.append([escape(ours), *(_between(compared[name], 100.0) if name in compared else "–" for name in named)])
    return page.table("Mean completion: per cent by which it is lower, mean of the seeds", columns, rows)


def _ratios(plan: JobPlan, compared: Mapping[str, Interval]) -> str:
    """Mean completions of the first over the others', under each interference model."""
    if len(plan.truths) < 2:
        return ""
    first, *others = plan.policies
    columns = [Column(heading=f"{first} over", number=False), *(Column(heading=truth) for truth in plan.truths)]
    rows = [
        [escape(other), *(_between(compared[f"ratio.{first}.{other}.{truth}"]) for truth in plan.truths)]
        for other in others
    ]
    return page.table("Ratio of mean completions by slowdown", columns, rows)


def _measures() -> str:
    columns = [Column(heading=heading, number=False) for heading in ("measure", "what it is", "better")]
    rows = [
        [escape(heading), escape(MEANINGS[name]), "more" if name in MORE else "less"]
        for name, heading in HEADINGS.items()
    ]
    note = "Below a mean stands its 95 % interval over seeds (Student), cut off at 0, of shares at 1 too; one seed has none."
    return (
        f'<section id="measures"><h2>Measures</h2>{page.table("", columns, rows)}<p class="soft">{note}</p></section>'
    )


def _cell(value: Interval) -> str:
    between = f"<small>{value.low:,.2f} to {value.high:,.2f}</small>" if math.isfinite(value.low) else ""
    return f"{value.mean:,.2f}{between}"


def _between(value: Interval, factor: float = 1.0) -> str:
    digits = 0 if factor > 1 else 2
    # Rounded first: what is rounded to -0 reads 0.
    rounded = (round(factor * one, digits) + 0.0 for one in (value.low, value.mean, value.high))
    low, mean, high = (f"{one:.{digits}f}" for one in rounded)
    return mean + (f"<small>{low} to {high}</small>" if math.isfinite(value.low) else "<small>one seed</small>")


def _write_table(path: Path, plan: JobPlan, compared: Mapping[str, Interval]) -> None:
    """A line for each setting and measure: mean and 95 % interval over seeds."""
    names: Iterable[tuple[str, str]] = ((policy, name) for policy in plan.policies for name in _there(plan, compared))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["policy", "metric", "mean", "low", "high"])
        for policy, name in names:
            value = compared[f"{name}.{policy}"]
            writer.writerow([policy, name, *(repr(one) for one in (value.mean, value.low, value.high))])
