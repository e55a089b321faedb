"""``smore top``: what happens now, in a terminal, from the stream that the dashboard reads."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from smore.cli.terminal import AllProjectsOption, Column, cell, connected, percent, shown

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Lines of a table beside its rows: what stands above it, its headers, and how many rows are left out.
_FRAME: Final = 3
Row = Mapping[str, Any]
#: A topic of the stream: what identifies a row of it, which come first, and its columns.
Topic = tuple[Callable[[Row], str], Callable[[Row], Any], Sequence[Column[Row]]]


def _lost(row: Row) -> str | None:
    if row["loss"] is None:
        return None
    return f"{percent(row['loss'])} ({percent(row['loss_low'])} to {percent(row['loss_high'])}) of {percent(row['budget'])}"


def _gpu_state(row: Row) -> str | None:
    if row["silent_since"]:
        return "silent"
    return row["health"] or next((word for word in ("paused", "drained", "draining") if row[word]), None)


TOPICS: Final[Mapping[str, Topic]] = {
    "problems": (lambda p: p["id"], lambda p: p["since"] or "", [("problems", lambda p: p["text"])]),
    "gpus": (
        lambda g: g["id"],
        lambda g: -g["utilisation"],
        [
            ("GPU instance", lambda g: g["id"]),
            ("used", lambda g: percent(g["utilisation"])),
            ("functions", lambda g: percent(g["function_utilisation"])),
            ("MiB", lambda g: f"{g['memory_used_mib']:.0f} of {g['memory_total_mib']:.0f}"),
            ("warm", lambda g: len(g["warm"])),
            ("trainings", lambda g: ", ".join(job["name"] or job["id"] for job in g["jobs"])),
            ("state", _gpu_state),
        ],
    ),
    "trainings": (
        lambda t: t["id"],
        lambda t: -(t["loss_high"] or 0) / (t["budget"] or 1),
        [
            ("training", lambda t: t["name"]),
            ("state", lambda t: t["state"]),
            ("GPU instances", lambda t: ", ".join(t["gpus"])),
            ("iterations", lambda t: t["iterations"]),
            ("lost to functions", _lost),
        ],
    ),
    "queues": (
        lambda q: f"{q['project']}/{q['function']}",
        lambda q: (-q["depth"], -q["oldest_wait_s"]),
        [
            ("function", lambda q: f"{q['project']}/{q['function']}"),
            ("wait", lambda q: q["depth"]),
            ("the oldest, s", lambda q: f"{q['oldest_wait_s']:.1f}"),
            ("state", lambda q: next((word for word in ("paused", "draining") if q[word]), None)),
        ],
    ),
}


def top(
    all_projects: AllProjectsOption = False,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
) -> None:
    """
    Show GPU instances, trainings, queues and problems as they change, until Ctrl-C.

    Those come first that are busiest, that have lost most of their budgets, and for which most waits; what the screen has no
    room for is counted.
    """
    from rich.console import Console, Group
    from rich.live import Live

    from smore_client import admin

    rows: dict[str, dict[str, Row]] = {}
    console = Console(highlight=False)

    def screen() -> "RenderableType":
        height = None if once else console.height
        return Group(*_tables({topic: list(of.values()) for topic, of in rows.items()}, height))

    with connected() as client, suppress(KeyboardInterrupt):
        with Live(console=console, screen=not once, auto_refresh=False) as live:
            for change in client.stream(admin.watch(list(TOPICS), all_projects=all_projects)):
                known = rows.setdefault(change.topic, {})
                if change.whole:
                    known.clear()
                for gone in change.gone:
                    known.pop(gone, None)
                known |= {TOPICS[change.topic][0](row): row for row in change.rows}
                if len(rows) < len(TOPICS):
                    continue
                if not once:
                    live.update(screen(), refresh=True)
                    continue
                break
        if once:
            console.print(screen())


def _tables(rows: Mapping[str, Sequence[Row]], height: int | None) -> "list[RenderableType]":
    """A table of each topic that has rows, no higher in all than the screen; None = of all rows."""
    from rich.table import Table
    from rich.text import Text

    ordered = {topic: sorted(rows[topic], key=TOPICS[topic][1]) for topic in TOPICS if rows.get(topic)}
    room = {topic: len(of) for topic, of in ordered.items()}
    while height is not None and sum(room.values()) + _FRAME * len(room) > height and max(room.values()) > 1:
        room[max(room, key=lambda topic: room[topic])] -= 1
    tables: list[RenderableType] = []
    for topic, of in ordered.items():
        columns = TOPICS[topic][2]
        table = Table(box=None, pad_edge=False, header_style="bold", expand=len(columns) == 1)
        for header, _ in columns:
            table.add_column(header, no_wrap=True, overflow="ellipsis")
        for row in of[: room[topic]]:
            table.add_row(*(Text(shown(cell(get(row)))) for _, get in columns))
        left_out = len(of) - room[topic]
        tables += [table, Text(f"and {left_out} more" if left_out else "", style="dim")]
    return tables
