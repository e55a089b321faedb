"""``smore top``: what happens now, in a terminal, from the stream that the dashboard reads."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from smore.cli.terminal import AllProjectsOption, Column, cell, connected, percent, shown

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Lines of a table beside its rows: what stands above it, its headers, and how many rows are left out.
_FRAME: Final = 3
Row = Mapping[str, Any]
Order = Callable[[Row], Any]
#: A topic of the stream: what identifies a row of it, which come first, and its columns.
Topic = tuple[Callable[[Row], str], Order, Sequence[Column[Row]]]


def _harm(gpu: Row) -> float:
    """How near the upper bound of a training's loss is to its budget."""
    return max((job["loss_high"] / job["budget"] for job in gpu["jobs"] if job["loss_high"] is not None), default=-1)


#: By the key that is pressed: a word, and what orders the GPU instances. The first one holds at the start.
SORTS: Final[Mapping[str, tuple[str, Order]]] = {
    "u": ("used", lambda g: -g["utilisation"]),
    "n": ("name", lambda g: g["id"]),
    "h": ("harm", lambda g: -_harm(g)),
    "f": ("free memory", lambda g: g["memory_used_mib"] - g["memory_total_mib"]),
}


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
        SORTS["u"][1],
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
    room for is counted. Keys order the GPU instances: u by use, n by name, h by harm to their trainings, f by free memory.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from smore_client import admin

    rows: dict[str, Mapping[str, Row]] = {}
    console, sort = Console(highlight=False), "u"

    def pressed(key: str) -> None:
        nonlocal sort
        sort = key if key in SORTS else sort

    def screen() -> "RenderableType":
        keys = "  ".join(f"{key} {word}" for key, (word, _) in SORTS.items())
        now = {topic: list(of.values()) for topic, of in dict(rows).items()}
        height = None if once else console.height - 1
        tables = _tables(now, height, SORTS[sort][1])
        return Group(*tables, *([] if once else [Text(f"by {SORTS[sort][0]}: {keys}", style="dim", no_wrap=True)]))

    # It draws in a thread of its own, once a second: the topics come one after another.
    drawn = Live(console=console, screen=not once, auto_refresh=not once, refresh_per_second=1, get_renderable=screen)
    with connected() as client, suppress(KeyboardInterrupt), _typed(pressed), drawn:
        for change in client.stream(admin.watch(list(TOPICS), all_projects=all_projects)):
            known = {} if change.whole else dict(rows.get(change.topic, {}))
            for gone in change.gone:
                known.pop(gone, None)
            rows[change.topic] = known | {TOPICS[change.topic][0](row): row for row in change.rows}
            if once and len(rows) == len(TOPICS):
                break


@contextmanager
def _typed(pressed: Callable[[str], None]) -> Iterator[None]:
    """Tell of each key without waiting for a line, where there is a terminal; it is left as it was."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    def read() -> None:
        while key := os.read(sys.stdin.fileno(), 1):
            pressed(key.decode(errors="replace"))

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    threading.Thread(target=read, daemon=True).start()
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _tables(
    rows: Mapping[str, Sequence[Row]], height: int | None, sort: Order = SORTS["u"][1]
) -> "list[RenderableType]":
    """A table of each topic that has rows, no higher in all than the screen; None = of all rows. ``sort``: GPU instances."""
    from rich.table import Table
    from rich.text import Text

    order = {topic: of[1] for topic, of in TOPICS.items()} | {"gpus": sort}
    ordered = {topic: sorted(rows[topic], key=order[topic]) for topic in TOPICS if rows.get(topic)}
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
