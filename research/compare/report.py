"""
One page for people: claims and whether they held, tables with intervals, and the figures of the paper as plots of our
own.

It is made from folders that ``compare --out`` wrote and, in panels of their own, from results of benchmarks. The page
holds its pictures and needs no other file; they lie beside it too.
"""

import base64
import math
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from research.compare.claims import ClaimVerdict, JudgedClaim
from research.compare.section import Measured, Section, seeds_in_words
from scheduler.simulation.metrics import Interval

if TYPE_CHECKING:
    from research.compare.pictures import Picture

PAGE: Final = "index.html"
#: Columns of the table of a comparison: metric → heading and what it means.
COLUMNS: Final = {
    "dsr": ("DSR", "deadlines met, of all submitted"),
    "dsr_admitted": ("DSR admitted", "deadlines met, of those dispatched"),
    "admission": ("admitted", "dispatched, of all submitted"),
    "gui": ("GUI", "utilisation gained, points"),
    "sfd": ("SFD", "degradation of trainings"),
    "train_loss": ("training lost", "iterations that did not happen"),
    "sld": ("SLD", "degradation of functions, against the mean alone"),
    "sld_p99": ("SLD (P99)", "the same against the P99 alone"),
    "cold": ("cold starts", "of those dispatched"),
    "waste": ("waste", "instance time loaded and idle"),
    "harvest": ("harvest", "solo seconds of deadline-met work per second and GPU instance"),
}
_BADGE: Final = {ClaimVerdict.HELD: "yes", ClaimVerdict.FAILED: "no", ClaimVerdict.UNKNOWN: "open"}

STYLE: Final = """
:root { color-scheme: light; --ink: #1c2330; --soft: #5b6577; --line: #dfe3ea; --back: #f6f7f9; --card: #fff; --blue: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.55 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 32px 20px 80px; }
h1 { font-size: 27px; margin: 0 0 6px; letter-spacing: -.01em; }
h2 { font-size: 21px; margin: 52px 0 4px; }
h3 { font-size: 16px; margin: 30px 0 8px; }
p { max-width: 76ch; margin: 6px 0 12px; }
.soft { color: var(--soft); }
nav { margin: 18px 0 0; display: flex; flex-wrap: wrap; gap: 8px; }
nav a { border: 1px solid var(--line); border-radius: 99px; background: var(--card); padding: 3px 13px; color: inherit; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { padding: 7px 11px; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
th { font-weight: 600; color: var(--soft); white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.n small { color: var(--soft); display: block; }
.badge { display: inline-block; border-radius: 99px; padding: 1px 10px; font-size: 12.5px; font-weight: 600; white-space: nowrap; }
.yes { background: #d8f0e6; color: #00573f; } .no { background: #fbe0d1; color: #8a3a00; } .open { background: #e6e9ef; color: #414b5c; }
.kind { font-size: 12px; font-weight: 600; padding: 1px 9px; border-radius: 5px; margin-left: 8px; vertical-align: 2px; }
.simulated { background: #e3eff8; color: #00527f; } .measured { background: #1c2330; color: #fff; }
figure { margin: 14px 0 26px; background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px 8px; }
figure.measured-panel { border: 2px solid var(--ink); }
figure img { width: 100%; height: auto; display: block; }
figcaption { font-weight: 600; margin-bottom: 8px; }
figcaption .number { color: var(--soft); font-weight: 400; }
code { background: #eceff3; border-radius: 4px; padding: 1px 5px; font-size: 13px; overflow-wrap: anywhere; }
ul { margin: 6px 0 12px; padding-left: 20px; }
@media print { body { background: #fff; } figure, .scroll { break-inside: avoid; } }
"""


def revision() -> str:
    """The checkout's tag or short hash, with ``-dirty`` when it has changes; ``unknown`` where git knows none."""
    root = Path(__file__).resolve().parents[2]
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
    """The page and its pictures, into a folder that is made where it is absent. OSError where that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    body = []
    for section in sections:
        pictures = list(draw(section))
        _save(folder, pictures)
        body.append(_section(section, pictures))
    _save(folder, measured)
    written = folder / PAGE
    written.write_text(_page(sections, body, measured, results))
    return written


def _save(folder: Path, pictures: "Iterable[Picture]") -> None:
    for picture in pictures:
        (folder / f"{picture.name}.svg").write_text(picture.svg)


def _page(
    sections: Sequence[Section], body: Sequence[str], measured: "Sequence[Picture]", results: Sequence[Measured]
) -> str:
    links = [f'<a href="#{escape(section.preset)}">{escape(section.preset)}</a>' for section in sections]
    if measured:
        links.append('<a href="#measured">measured</a>')
        words = (
            "These were measured, not simulated; no number here stands in a table or picture above, and none above"
            " stands here."
        )
        commands = "".join(
            f"<li><code>{escape(str(one.document.get('command', one.path.name)))}</code></li>" for one in results
        )
        panels = "".join(map(figure, measured))
        body = [
            *body,
            f'<section id="measured"><h2>Measured</h2><p class="soft">{words}</p>{panels}<ul>{commands}</ul></section>',
        ]
    about = (
        "Policies on a simulated clock over GPU instances whose contention is known exactly. A simulated number tests"
        " the logic of scheduling; it says nothing about a device. Fractions are in per cent, intervals are 95 % over"
        " seeds."
    )
    return page("SMore: policies compared", "Policies compared", about, "".join(links), "".join(body))


def page(title: str, heading: str, about: str, links: str, body: str) -> str:
    """A whole document in the house's style; ``links`` and ``body`` are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport"'
        ' content="width=device-width,'
        f' initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style></head><body><main><h1>{escape(heading)}</h1><p'
        f' class="soft">{escape(about)}</p><nav>{links}</nav>{body}</main></body></html>\n'
    )


def _section(section: Section, pictures: "Sequence[Picture]") -> str:
    document = section.document
    parts = [
        (
            f'<section id="{escape(section.preset)}"><h2>{escape(section.preset)}<span class="kind'
            ' simulated">simulated</span></h2>'
        ),
        f"<p>{escape(document['about'])}</p><p class='soft'>{escape(section.caption())}</p>",
    ]
    if section.judged:
        parts.append(_claims(section))
    parts += [
        _table(section),
        _by_configuration(section),
        _instances(section),
        _admission(section),
        *map(figure, pictures),
    ]
    parts.append(f'<p class="soft">Made by <code>{escape(document["command"])}</code></p></section>')
    return "".join(parts)


def _claims(section: Section) -> str:
    worlds = int(section.document["worlds"])
    head = "<th>claim</th><th>said by</th><th></th><th class='n'>points better</th>"
    if worlds:
        head += f"<th class='n'>sign holds in {worlds} worlds</th><th class='n'>without interference</th>"
    rows = "".join(_claim(one, worlds) for one in section.judged)
    note = (
        "Judged on differences paired by seed. “No worse”: the deficit is at most one point with 95 % confidence."
        " “Lower”: the whole interval is. Where the interval allows either, it cannot be said."
    )
    if worlds:
        note += (
            f" The sign of the mean difference is looked at again in {worlds} worlds with every demand and exponent"
            " times U(0.7, 1.3), and in one in which nothing interferes."
        )
    return framed("Claims", head, rows) + f"<p class='soft'>{note}</p>"


def _claim(one: JudgedClaim, worlds: int) -> str:
    low, high = one.advantage.low, one.advantage.high
    bounds = (
        f"<small>{100 * low:+.2f} to {100 * high:+.2f}</small>" if math.isfinite(low) else "<small>one seed</small>"
    )
    remark = f"<br><span class='soft'>{escape(one.remark)}</span>" if worlds and one.remark else ""
    cells = (
        f"<td>{escape(str(one.claim))}{remark}</td><td>{'the paper' if one.claim.published else 'ours'}</td>"
        f"<td><span class='badge {_BADGE[one.verdict]}'>{one.verdict.value}</span></td>"
        f"<td class='n'>{100 * one.advantage.mean:+.2f}{bounds}</td>"
    )
    if worlds:
        cells += f"<td class='n'>{100 * one.worlds:.0f} %</td><td class='n'>{100 * one.calm:+.2f}</td>"
    return f"<tr>{cells}</tr>"


def cell(one: Interval) -> str:
    """Per cent, with half its interval."""
    if math.isnan(one.mean):
        return "<td class='n'>–</td>"
    half = f"<small>± {100 * (one.high - one.low) / 2:.2f}</small>" if math.isfinite(one.low) else ""
    return f"<td class='n'>{100 * one.mean:.2f}{half}</td>"


def _table(section: Section) -> str:
    bound = ""
    if section.bound is not None:
        dashes = "<td class='n'>–</td>" * (len(COLUMNS) - 1)
        bound = f"<tr><td>offline upper bound</td>{cell(section.interval('dsr.upper-bound'))}{dashes}</tr>"
    several = len(section.configurations)
    over = f"mean of {several} configurations" if several > 1 else "one configuration"
    return table(
        f"In per cent, {over}, {seeds_in_words(section.seeds)}", section.policies, COLUMNS, section.interval, bound
    )


#: What the paper says that "deadlines met" is a share of.
SENTENCES: Final = (
    "The paper draws the “deadline satisfactory ratio” at 16,000 requests a minute (VIII-D), which is over all that"
    " were submitted, and says that effectiveness “can be measured by the ratio of functions admitted that can meet"
    " their deadlines” (VIII-B), which is over those that were dispatched. Both stand here."
)


def _by_configuration(section: Section) -> str:
    """Deadlines met and training lost in each configuration, where there are several."""
    if len(section.configurations) == 1:
        return ""
    parts = [f"<p class='soft'>{SENTENCES}</p>"]
    for metric in ("dsr", "dsr_admitted", "train_loss"):
        heading, meaning = COLUMNS[metric]

        def found(name: str, metric: str = metric) -> Interval:
            configuration, _, policy = name.partition(".")
            return section.interval(f"{metric}.{policy}", configuration)

        columns = {configuration: (configuration, meaning) for configuration in section.configurations}
        parts.append(table(f"{heading} by configuration: {meaning}, per cent", section.policies, columns, found))
    return "".join(parts)


def _instances(section: Section) -> str:
    """How many instances each policy had, which is no share."""

    def number(name: str) -> str:
        return f"<td class='n'>{section.interval(name).mean:.2f}</td>"

    rows = "".join(
        f"<tr><td>{escape(policy)}</td>{number(f'loaded_at_start.{policy}')}{number(f'loaded.{policy}')}</tr>"
        for policy in section.policies
    )
    head = "<th>policy</th><th class='n'>at the start</th><th class='n'>mean over time</th>"
    return framed("Instances loaded on a GPU instance", head, rows)


def _admission(section: Section) -> str:
    names = [function.name for function in section.world(section.configurations[0]).functions]
    return table("Admitted by function, per cent", section.policies, by_function(names), section.interval)


def by_function(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Columns of a table of admission."""
    return {f"admission.{name}": (name, "dispatched, of those submitted") for name in names}


def table(
    heading: str,
    policies: Sequence[str],
    columns: Mapping[str, tuple[str, str]],
    found: Callable[[str], Interval],
    more: str = "",
) -> str:
    """
    A line for each policy. ``columns``: metric → heading and meaning; ``found``: ``<metric>.<policy>`` → value;
    ``more``: more lines.
    """
    head = "".join(f"<th class='n' title='{escape(meaning)}'>{escape(name)}</th>" for name, meaning in columns.values())
    rows = "".join(
        f"<tr><td>{escape(policy)}</td>{''.join(cell(found(f'{metric}.{policy}')) for metric in columns)}</tr>"
        for policy in policies
    )
    return framed(heading, f"<th>policy</th>{head}", rows + more)


def framed(heading: str, head: str, rows: str) -> str:
    """A table under a heading that scrolls where it is wider than the page."""
    return (
        f"<h3>{heading}</h3><div"
        f" class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def figure(picture: "Picture") -> str:
    """A picture in its frame, which says whether it was measured."""
    data = base64.b64encode(picture.svg.encode()).decode()
    kind = "measured" if picture.measured else "simulated"
    frame = " class='measured-panel'" if picture.measured else ""
    return (
        f"<figure{frame}><figcaption>{escape(picture.heading)} <span class='number'>after figure {picture.figure} of"
        f" the paper</span><span class='kind {kind}'>{kind}</span></figcaption><img alt='{escape(picture.words)}'"
        f" src='data:image/svg+xml;base64,{data}'></figure>"
    )
