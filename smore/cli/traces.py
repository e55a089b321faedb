"""The commands of imported arrivals: ``smore traces``."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from smore.cli.terminal import Column, Output, OutputOption, connected, moment, show, show_value

traces = typer.Typer(
    help="Arrivals that were recorded elsewhere, for forecasters; alone: list them.", invoke_without_command=True
)


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time; 2026-01-31T12:00:00Z is") from None
    # Without a zone it is this machine's.
    return found if found.tzinfo is not None else found.astimezone()


@traces.command("import")
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
        list[str] | None, typer.Option(metavar="FUNCTION", help="Gets what is busiest of the rest, in this order.")
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
        made = client.carry(
            admin.import_trace(file.read_bytes(), name=_name(file), give=give or [], deal=deal or [], end=end)
        )
    if output is not Output.TABLE:
        show_value(made, output)
        return
    print(
        f"trace {made.id}: {moment(made.since)} to {moment(made.until)}; forecasters learn from it when the next minute"
        " begins"
    )
    columns: list[Column[Any]] = [
        ("function", lambda f: f.function),
        ("arrivals", lambda f: f.arrivals),
        ("in the file", lambda f: f.source),
    ]
    show(made.functions, columns, output)


def _name(file: Path) -> str:
    """As the platform takes it."""
    kept = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in file.name
    )
    return kept.lstrip(".-")[:128] or "trace.csv"


def _list(output: Output) -> None:
    from smore_client import admin

    with connected() as client:
        found = client.carry(admin.traces())
    columns: list[Column[Any]] = [
        ("id", lambda t: t.id),
        ("file", lambda t: t.name),
        ("since", lambda t: moment(t.since)),
        ("until", lambda t: moment(t.until)),
        ("imported", lambda t: moment(t.created_at)),
        ("functions", lambda t: ", ".join(f"{f.function} {f.arrivals}" for f in t.functions)),
    ]
    show(found, columns, output)


@traces.callback()
def traces_(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _list(output)


@traces.command("list")
def list_(output: OutputOption = Output.TABLE) -> None:
    """What was imported, the newest first."""
    _list(output)


@traces.command("remove")
def remove(trace: Annotated[int, typer.Argument(metavar="ID", min=1)]) -> None:
    """Forget an imported trace; forecasters are fitted without it."""
    from smore_client import admin

    with connected() as client:
        client.carry(admin.remove_trace(trace))
    print(f"trace {trace} removed")
