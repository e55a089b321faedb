"""
The page of one or several comparisons: claims with their verdicts, tables with intervals, pictures, and what the
measures mean.

It is made of folders that ``compare --out`` wrote and, in panels of their own, of results of benchmarks. The page
contains its pictures and needs no other file. The pictures and the tables (CSV) lie beside it too.
"""

import base64
import math
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lab.research import page
from lab.research.compare.claims import RULE, ClaimVerdict, JudgedClaim
from lab.research.compare.comparison import alike_in_words
from lab.research.compare.measures import (
    CUT_OFF,
    ESTIMATES,
    MEASURES,
    Measure,
    few_seeds,
    undefined_policies,
    why_undefined,
)
from lab.research.compare.policy_words import in_words
from lab.research.compare.section import Measured, Section, seeds_in_words
from lab.research.page import Column
from lab.simulation.metrics import Interval

if TYPE_CHECKING:
    from lab.research.compare.pictures import Picture

PAGE: Final = "index.html"
#: The tables of a comparison's folder that lie beside the page.
TABLES: Final = ("table.csv", "rows.csv")
#: The class of a verdict's badge.
BADGE: Final = {
    ClaimVerdict.HELD: "yes",
    ClaimVerdict.FAILED: "no",
    ClaimVerdict.EQUAL: "no",
    ClaimVerdict.UNKNOWN: "open",
}


def revision() -> str:
    """The checkout's tag or short hash, with ``-dirty`` if files were changed; ``unknown`` without git."""
    root = Path(__file__).resolve().parents[3]
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "unknown"
    return described.stdout.strip() or "unknown"


def write(
    folder: Path,
    sections: Sequence[Section],
    draw: Callable[[Section], "Iterable[Picture]"],
    measured: "Sequence[Picture]" = (),
    results: Sequence[Measured] = (),
) -> Path:
    """
    Write the page, its pictures and its tables into a folder, which is made if it is absent. Returns the page.

    ``measured``: pictures of measurements, from ``results``. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    body = []
    for section in sections:
        pictures = list(draw(section))
        save(folder, pictures)
        body.append(_section(section, pictures, _copied(section, folder)))
    save(folder, measured)
    written = folder / PAGE
    written.write_text(_page(sections, body, measured, results))
    return written


def save(folder: Path, pictures: "Iterable[Picture]") -> None:
    """Write the pictures beside a page."""
    for picture in pictures:
        (folder / f"{picture.name}.svg").write_text(picture.svg)


def _copied(section: Section, folder: Path) -> list[str]:
    """The names of the comparison's tables beside the page; copied where the page is in another folder."""
    present = [name for name in TABLES if (section.folder / name).is_file()]
    if section.folder.resolve() == folder.resolve():
        return present
    names = [f"{section.preset}-{name}" for name in present]
    for name, copy in zip(present, names, strict=True):
        shutil.copyfile(section.folder / name, folder / copy)
    return names


def _page(
    sections: Sequence[Section], body: Sequence[str], measured: "Sequence[Picture]", results: Sequence[Measured]
) -> str:
    names = [section.preset for section in sections] + (["measured"] if measured else []) + ["measures"]
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)
    parts = [*body, _measured(measured, results) if measured else "", _measures()]
    about = (
        "Scheduling policies on a simulated clock, over GPU instances whose interference is known exactly. A simulated"
        " number tests the logic of scheduling; it says nothing about a device. Fractions are in per cent, intervals"
        " are 95 % over seeds."
    )
    return page.document("SMore: policies compared", "Policies compared", about, links, "".join(parts))


def _measured(pictures: "Sequence[Picture]", results: Sequence[Measured]) -> str:
    words = "These numbers were measured, not simulated. No table or picture above contains one of them."
    commands = "".join(
        f"<li><code>{escape(str(result.document.get('command', result.path.name)))}</code></li>" for result in results
    )
    panels = "".join(map(figure, pictures))
    return f'<section id="measured"><h2>Measured</h2><p class="soft">{words}</p>{panels}<ul>{commands}</ul></section>'


def _measures() -> str:
    """What each measure is."""
    columns = [
        Column(heading="measure", number=False),
        Column(heading="what it is", number=False, prose=True),
        Column(heading="better", number=False),
        Column(heading="undefined where", number=False),
    ]
    rows = [
        [escape(measure.heading), escape(measure.definition), measure.better or "–", escape(measure.undefined)]
        for measure in MEASURES.values()
    ]
    note = (
        "A figure is undefined (–) if in one of the seeds there is nothing to divide by. Below a mean stands its 95 %"
        f" interval. {CUT_OFF} Differences in points are means of the differences of each seed, and are not cut off."
    )
    return (
        f'<section id="measures"><h2>Measures</h2>{page.table("", columns, rows)}<p class="soft">{note}</p></section>'
    )


def _section(section: Section, pictures: "Sequence[Picture]", tables: Sequence[str]) -> str:
    document = section.document
    files = ", ".join(f'<a href="{escape(name)}">{escape(name)}</a>' for name in tables)
    parts = [
        (
            f'<section id="{escape(section.preset)}"><h2>{escape(section.preset)}<span class="kind'
            ' simulated">simulated</span></h2>'
        ),
        f"{_about(section)}<p class='soft'>{escape(section.caption())}</p>",
        f"<p class='soft'>As CSV: {files}</p>" if files else "",
        _claims(section) if section.judged else "",
        _table(section),
        _policies(section),
        _by_configuration(section),
        _instances(section),
        _admission(section),
        *map(figure, pictures),
        f'<p class="soft">Made by <code>{escape(document["command"])}</code></p></section>',
    ]
    return "".join(parts)


def _about(section: Section) -> str:
    """What was run: the preset's description, or the trace that took the place of its own."""
    about = escape(section.document["about"])
    if not section.trace_run:
        return f"<p>{about}</p>"
    return (
        f"<p>{escape(section.trace_run)}</p><p class='soft'>The preset's description, of its own trace, which was not"
        f" run: {about}</p>"
    )


def _policies(section: Section) -> str:
    """What each policy does."""
    columns = [Column(heading="policy", number=False), Column(heading="what it does", number=False, prose=True)]
    note = "All check memory and slots, and have the same instances at the start, trace, deadlines and predictions."
    rows = [[escape(policy), escape(in_words(policy))] for policy in section.policies]
    return page.table("Policies", columns, rows) + f"<p class='soft'>{note}</p>"


def _claims(section: Section) -> str:
    worlds = int(section.document["worlds"])
    columns = [
        Column(heading="claim", number=False),
        Column(heading="said by", number=False),
        Column(heading="verdict", number=False),
        Column(heading="points better"),
    ]
    note = f"Judged on differences paired by seed. {RULE} {few_seeds(len(section.seeds))}"
    if worlds:
        columns += [Column(heading=f"sign holds in {worlds} worlds"), Column(heading="without interference")]
        note += (
            f" The sign of the mean difference is checked again in {worlds} worlds, in which every demand and exponent"
            " is multiplied by U(0.7, 1.3), and in one without interference."
        )
    rows = [_claim(section, judged, worlds) for judged in section.judged]
    return page.table("Claims", columns, rows) + f"<p class='soft'>{note}</p>"


def _claim(section: Section, judged: JudgedClaim, worlds: int) -> list[str]:
    remark = f"<br><span class='soft'>{escape(judged.remark)}</span>" if worlds and judged.remark else ""
    cells = [
        f"{escape(str(judged.claim))}{remark}",
        "the paper" if judged.claim.published else "ours",
        f"<span class='badge {BADGE[judged.verdict]}'>{judged.verdict.value}</span>",
        _advantage(section, judged),
    ]
    if worlds:
        cells += [_number(judged.worlds, ".0f", " %"), _number(judged.calm, "+.2f")]
    return cells


def _advantage(section: Section, judged: JudgedClaim) -> str:
    """The paired difference in points, with its interval, or why there is none."""
    advantage, seeds = judged.advantage, len(section.seeds)
    if math.isnan(advantage.mean):
        count = section.undefined(f"advantage.{judged.claim.name}")
        return f"undefined<small>{why_undefined(judged.claim.metric, count, seeds)}</small>"
    if judged.equal:
        return "0<small>equal in every seed</small>"
    if math.isnan(advantage.low):
        return f"{100 * advantage.mean:+.2f}<small>one seed</small>"
    return f"{100 * advantage.mean:+.2f}<small>{100 * advantage.low:+.2f} to {100 * advantage.high:+.2f}</small>"


def _number(share: float, form: str, unit: str = "") -> str:
    return "–" if math.isnan(share) else f"{100 * share:{form}}{unit}"


def cell(value: Interval) -> str:
    """Per cent, with its interval; – if it is undefined."""
    if math.isnan(value.mean):
        return "–"
    between = f"<small>{100 * value.low:.2f} to {100 * value.high:.2f}</small>" if math.isfinite(value.low) else ""
    return f"{100 * value.mean:.2f}{between}"


#: A link to what the measures are.
TO_MEASURES: Final = "<a href='#measures'>What each measure is</a>"
#: Measures that stand in one table; all others, of trainings and GPU instances, stand in another one.
OF_FUNCTIONS: Final = ("dsr", "dsr_admitted", "admission", "sld", "sld_p99", "cold")


def _table(section: Section) -> str:
    """The measures in two tables, each narrow enough for a page."""
    several = len(section.configurations)
    over = f"mean of {several} configurations" if several > 1 else "one configuration"
    notes = f"in per cent, {over}, {seeds_in_words(section.seeds)}"
    bound = []
    if section.bound is not None:
        rest = ["–"] * (len(OF_FUNCTIONS) - 1)
        bound = [["offline upper bound", cell(section.interval("dsr.upper-bound")), *rest]]
    of_functions = {name: MEASURES[name] for name in OF_FUNCTIONS}
    others = {name: measure for name, measure in MEASURES.items() if name not in of_functions}
    tables = table(f"Functions, {notes}", section.policies, columns(of_functions), section.interval, bound)
    tables += table(f"Trainings and GPU instances, {notes}", section.policies, columns(others), section.interval)
    same = f"<p>{escape(words)}</p>" if (words := alike_in_words(section.same)) else ""
    said = "".join(f"<p>{escape(words)}</p>" for words in (*section.predictors, *section.exceeded))
    return tables + same + said + _undefined(section, MEASURES) + f"<p class='soft'>{ESTIMATES} {TO_MEASURES}</p>"


def _undefined(section: Section, metrics: Iterable[str]) -> str:
    """Why cells of the table have no value, a line for each measure; '' if all have one."""
    lines = []
    for metric in metrics:
        counts = {policy: section.undefined(f"{metric}.{policy}") for policy in section.policies}
        if words := undefined_policies(metric, counts, len(section.seeds)):
            heading = MEASURES[metric].heading if metric in MEASURES else metric.partition(".")[2]
            lines.append(f"<li>{escape(heading)} is undefined: {escape(words)}</li>")
    return f"<ul class='soft'>{''.join(lines)}</ul>" if lines else ""


#: What the paper says that "deadlines met" is a share of.
SENTENCES: Final = (
    "The paper draws the “deadline satisfactory ratio” at 16,000 requests a minute (VIII-D), which is over all that"
    " were submitted, and says that effectiveness “can be measured by the ratio of functions admitted that can meet"
    " their deadlines” (VIII-B), which is over those that were dispatched. Both are here."
)


def _by_configuration(section: Section) -> str:
    """Deadlines met and training lost in each configuration, if there are several."""
    if len(section.configurations) == 1:
        return ""
    parts = [f"<p class='soft'>{SENTENCES}</p>"]
    for metric in ("dsr", "dsr_admitted", "train_loss"):
        measure = MEASURES[metric]

        def value(name: str, metric: str = metric) -> Interval:
            configuration, _, policy = name.partition(".")
            return section.interval(f"{metric}.{policy}", configuration)

        by_configuration = {name: Column(heading=name, meaning=measure.meaning) for name in section.configurations}
        heading = f"{measure.heading} by configuration: {measure.meaning}, per cent"
        parts.append(table(heading, section.policies, by_configuration, value))
    return "".join(parts)


def _instances(section: Section) -> str:
    """How many instances each policy had: counts, no shares."""
    rows = [
        [escape(policy)]
        + [f"{section.interval(f'{name}.{policy}').mean:.2f}" for name in ("loaded_at_start", "loaded")]
        for policy in section.policies
    ]
    heads = [Column(heading="policy", number=False), Column(heading="at the start"), Column(heading="mean over time")]
    return page.table("Instances loaded on a GPU instance", heads, rows)


def _admission(section: Section) -> str:
    by_name = by_function(function.name for function in section.world(section.configurations[0]).functions)
    heading = "Admitted by function: dispatched, of those submitted, per cent"
    return table(heading, section.policies, by_name, section.interval) + _undefined(section, by_name)


def by_function(names: Iterable[str]) -> dict[str, Column]:
    """Columns of a table of admission."""
    return {f"admission.{name}": Column(heading=name, meaning="dispatched, of those submitted") for name in names}


def columns(measures: Mapping[str, Measure]) -> dict[str, Column]:
    """Columns of a table of measures."""
    return {name: Column(heading=measure.heading, meaning=measure.meaning) for name, measure in measures.items()}


def table(
    heading: str,
    policies: Sequence[str],
    by_metric: Mapping[str, Column],
    value: Callable[[str], Interval],
    more: Sequence[Sequence[str]] = (),
) -> str:
    """
    A table with a row for each policy. ``by_metric``: metric → column; ``value``: ``<metric>.<policy>`` → value;
    ``more``: rows of HTML to add.
    """
    rows = [[escape(policy), *(cell(value(f"{metric}.{policy}")) for metric in by_metric)] for policy in policies]
    return page.table(heading, [Column(heading="policy", number=False), *by_metric.values()], [*rows, *more])


def figure(picture: "Picture") -> str:
    """A picture in its frame, which says whether it was measured."""
    data = base64.b64encode(picture.svg.encode()).decode()
    kind = "measured" if picture.measured else "simulated"
    frame = " class='measured-panel'" if picture.measured else ""
    after = f" <span class='number'>after figure {picture.figure} of the paper</span>" if picture.figure else ""
    return (
        f"<figure{frame}><figcaption>{escape(picture.heading)}{after}<span class='kind {kind}'>{kind}</span></figcaption>"
        f"<div class='picture'><img alt='{escape(picture.words)}' src='data:image/svg+xml;base64,{data}'></div></figure>"
    )
