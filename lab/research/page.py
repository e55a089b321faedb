"""How every page of figures looks: one HTML document without scripts, whose tables stack on a narrow screen."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5b6577; --line: #dfe3ea; --back: #f6f7f9; --card: #fff;
  --code: #eceff3; --yes: #d8f0e6; --yes-ink: #00573f; --no: #fbe0d1; --no-ink: #8a3a00; --open: #e6e9ef;
  --open-ink: #414b5c; --sim: #e3eff8; --sim-ink: #00527f; --link: #0060a8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ef; --soft: #9ea9ba; --line: #323b49; --back: #12161c;
  --card: #1a2029; --code: #262e3a; --yes: #0f3d30; --yes-ink: #a5e6cf; --no: #4a260f; --no-ink: #ffc9a3;
  --open: #2c3542; --open-ink: #c3ccd9; --sim: #12354b; --sim-ink: #a8d8f5; --link: #7cc0f5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.55 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 32px 20px 80px; }
a { color: var(--link); }
h1 { font-size: 27px; margin: 0 0 6px; letter-spacing: -.01em; }
h2 { font-size: 21px; margin: 52px 0 4px; }
h3 { font-size: 16px; margin: 30px 0 8px; }
p { max-width: 76ch; margin: 6px 0 12px; overflow-wrap: break-word; }
.soft { color: var(--soft); }
nav { margin: 18px 0 0; display: flex; flex-wrap: wrap; gap: 8px; }
nav a { border: 1px solid var(--line); border-radius: 99px; background: var(--card); padding: 3px 13px; color: inherit; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { padding: 7px 11px; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
th { font-weight: 600; color: var(--soft); white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } td.n { white-space: nowrap; }
th.n { white-space: normal; }
td.n small { color: var(--soft); display: block; }
tr.ours td { font-weight: 600; }
.badge { display: inline-block; border-radius: 99px; padding: 1px 10px; font-size: 12.5px; font-weight: 600; white-space: nowrap; }
.yes { background: var(--yes); color: var(--yes-ink); } .no { background: var(--no); color: var(--no-ink); }
.open { background: var(--open); color: var(--open-ink); }
.kind { font-size: 12px; font-weight: 600; padding: 1px 9px; border-radius: 5px; margin-left: 8px; vertical-align: 2px; }
.simulated { background: var(--sim); color: var(--sim-ink); } .measured { background: var(--ink); color: var(--card); }
figure { margin: 14px 0 26px; background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px 8px; }
figure.measured-panel { border: 2px solid var(--ink); }
figure .picture { overflow-x: auto; background: #fff; border-radius: 6px; }
figure img, figure svg { width: 100%; height: auto; display: block; }
figure img { min-width: 560px; } figure svg { max-width: 700px; margin: 0 auto; }
figcaption { font-weight: 600; margin-bottom: 8px; }
figcaption .number { color: var(--soft); font-weight: 400; }
code { background: var(--code); border-radius: 4px; padding: 1px 5px; font-size: 13px; overflow-wrap: anywhere; }
ul { margin: 6px 0 12px; padding-left: 20px; }
@media (max-width: 640px) {
  main { padding: 20px 12px 60px; }
  thead { position: absolute; clip-path: inset(50%); height: 1px; width: 1px; overflow: hidden; }
  table, tbody, tr, td { display: block; width: 100%; }
  tr { padding: 8px 0; border-bottom: 1px solid var(--line); } tbody tr:last-child { border-bottom: 0; }
  td, tbody tr:last-child td { border-bottom: 0; padding: 3px 12px; }
  td:first-child { font-weight: 600; }
  td[data-label] { display: flex; justify-content: space-between; gap: 16px; text-align: right; white-space: normal; }
  td.prose[data-label] { display: block; text-align: left; } td.prose[data-label]::before { content: none; }
  td[data-label]::before { content: attr(data-label); color: var(--soft); text-align: left; flex: none; max-width: 45%; }
}
@media print { body { background: #fff; } figure, .scroll { break-inside: avoid; } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """
    A column of a table: its heading, what it means (shown where the pointer rests), and whether it has numbers, or
    sentences, which need no heading on a narrow screen.
    """

    heading: str
    meaning: str = ""
    number: bool = True
    prose: bool = False


def document(title: str, heading: str, about: str, links: str, body: str) -> str:
    """A whole document; ``links`` and ``body`` are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport"'
        f' content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f'<body><main><h1>{escape(heading)}</h1><p class="soft">{escape(about)}</p><nav>{links}</nav>{body}</main>'
        "</body></html>\n"
    )


def table(heading: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, ours: str = "") -> str:
    """
    A table under a heading ('' for none); cells are HTML, the first of a row names it. On a narrow screen each row
    becomes a list of its cells. ``ours``: the first cell of the row to highlight.
    """
    head = "".join(
        f"<th{' class=n' if column.number else ''}{_title(column)}>{escape(column.heading)}</th>" for column in columns
    )
    body = "".join(
        f"<tr{' class=ours' if ours and row[0] == ours else ''}>"
        + "".join(
            _cell(column, value, first=not place)
            for place, (column, value) in enumerate(zip(columns, row, strict=True))
        )
        + "</tr>"
        for row in rows
    )
    title = f"<h3>{heading}</h3>" if heading else ""
    return f"{title}<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _title(column: Column) -> str:
    return f' title="{escape(column.meaning)}"' if column.meaning else ""


def _cell(column: Column, value: str, *, first: bool) -> str:
    label = "" if first else f' data-label="{escape(column.heading)}"'
    kind = " class=prose" if column.prose else " class=n" if column.number else ""
    return f"<td{kind}{label}><div>{value}</div></td>"
