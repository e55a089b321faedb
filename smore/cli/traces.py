"""The commands of imported arrivals: ``smore traces``."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from smore.cli import names
from smore.cli.terminal import (
    Column,
    Output,
    OutputOption,
    connected,
    list_alone,
    moment,
    show,
    show_value,
    tell,
    write,
)

app = typer.Typer(
    help="Arrivals that were recorded elsewhere, for forecasters; alone: list them.", invoke_without_command=True
)


def _instant(text: str) -> datetime:
    """The instant that ``text`` names in ISO 8601; without a time zone, in this machine's."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time; write it as 2026-01-31T12:00:00Z") from None
    return instant if instant.tzinfo is not None else instant.astimezone()


@app.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help="CSV, gzip or not: per minute as Azure's trace, or per arrival."
        ),
    ],
    give: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="NAME=FUNCTION", help="What the file calls NAME came for FUNCTION."),
    ] = None,
    deal: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FUNCTION", autocompletion=names.functions, help="Gets what is busiest of the rest, in this order."
        ),
    ] = None,
    end: Annotated[
        datetime | None,
        typer.Option(
            parser=_instant, metavar="TIME", help="Where its last minute ends; else dates as they are, or now."
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """
    Let forecasters learn from a recorded trace until functions have been counted here: smore traces import day.csv.gz
    --deal echo.
    """
    from smore_client import admin

    with connected() as client:
        trace = client.carry(
            admin.import_trace(file.read_bytes(), name=_name(file), give=give or [], deal=deal or [], end=end)
        )
    if output is not Output.TABLE:
        show_value(trace, output)
        return
    write(
        f"trace {trace.id}: {moment(trace.since)} to {moment(trace.until)}; forecasters learn from it when the next minute"
        " begins"
    )
    columns: list[Column[Any]] = [
        ("function", lambda f: f.function),
        ("arrivals", lambda f: f.arrivals),
        ("in the file", lambda f: f.source),
    ]
    show(trace.functions, columns, output)


def _name(file: Path) -> str:
    """The file's name, with the characters alone that the platform accepts in a trace's name."""
    accepted = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in file.name
    )
    return accepted.lstrip(".-")[:128] or "trace.csv"


@list_alone(app, "What was imported, the newest first.", "list")
def list_traces(output: Output) -> None:
    from smore_client import admin

    with connected() as client:
        imported = client.carry(admin.traces())
    columns: list[Column[Any]] = [
        ("id", lambda t: t.id),
        ("file", lambda t: t.name),
        ("since", lambda t: moment(t.since)),
        ("until", lambda t: moment(t.until)),
        ("imported", lambda t: moment(t.created_at)),
        ("functions", lambda t: ", ".join(f"{f.function} {f.arrivals}" for f in t.functions)),
    ]
    show(imported, columns, output, optional=("imported", "since"))


@app.command("remove")
def remove(
    trace: Annotated[int, typer.Argument(metavar="ID", min=1, autocompletion=names.traces)],
    output: OutputOption = Output.TABLE,
) -> None:
    """Forget an imported trace; forecasters are fitted without it."""
    from smore_client import admin

    with connected() as client:
        client.carry(admin.remove_trace(trace))
    tell(f"trace {trace} removed", {"id": trace}, output)
