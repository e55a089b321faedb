"""``smore functions``: functions, their revisions, and how many of them stand ready."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from smore.cli import names, series
from smore.cli.terminal import (
    Column,
    FunctionName,
    Output,
    OutputOption,
    YesOption,
    confirm,
    connected,
    fail,
    list_alone,
    moment,
    show,
    show_value,
    span_s,
    tell,
)

if TYPE_CHECKING:
    from smore_client.types import Function

GpuOption = Annotated[str | None, typer.Option(autocompletion=names.gpus, help="On this GPU instance only.")]

#: State of a revision → what its first run came to.
FIRST_RUN: Final = {"pending": "under way", "active": "passed", "failed": "failed"}

app = typer.Typer(help="Functions and their revisions; alone: list them.", invoke_without_command=True)


@list_alone(app, "List functions.")
def list_functions(output: Output) -> None:
    with connected() as client:
        functions = client.functions()
    columns: list[Column[Any]] = [
        ("name", lambda f: f.name),
        ("revision", lambda f: f.revision or "none serves"),
        ("entrypoint", lambda f: f.entrypoint),
        ("deadline", lambda f: None if f.deadline_ms is None else f"{f.deadline_ms:g} ms"),
        (
            "inputs",
            lambda f: _inputs(f) if f.revision else None,
        ),
    ]
    show(functions, columns, output)


def _inputs(function: "Function") -> object:
    if function.inputs is None:
        return "json"
    return [f"{tensor.name}:{tensor.datatype}{list(tensor.shape)}" for tensor in function.inputs]


@app.command("show")
def show_function(name: FunctionName, since: series.OverTimeOption = None, output: series.ShownOption = None) -> None:
    """Everything about one function, or how it was called and served: smore functions show NAME --since 1d."""
    with connected() as client:
        if since is None:
            show_value(client.function(name), series.whole(output))
            return
        drawn = output or series.SeriesOutput.TABLE
        found = client.function_series(name, **series.span(since, drawn))
    series.show_function(found, drawn)


@app.command("revisions")
def revisions(name: FunctionName, output: OutputOption = Output.TABLE) -> None:
    """
    A function's revisions, the newest first.

    Column "serves": the one that takes the traffic. Column "first run": what its first run came to. One that passed can take
    the traffic: smore functions rollback NAME REVISION. Column "error": the first line; -o yaml shows the log behind it.
    """
    with connected() as client:
        listed, serving = client.revisions(name), client.function(name).revision
    columns: list[Column[Any]] = [
        ("revision", lambda r: r.revision),
        ("serves", lambda r: "yes" if r.revision == serving else None),
        ("first run", lambda r: FIRST_RUN.get(r.state, r.state)),
        ("entrypoint", lambda r: r.entrypoint),
        ("created", lambda r: moment(r.created_at)),
        ("error", lambda r: _first_line(r.error) if r.error else None),
    ]
    show(listed, columns, output)


def _first_line(error: str) -> str:
    """Without the words that announce the log on the next lines."""
    return error.partition("\n")[0].removesuffix(" Its log:")


@app.command("rollback")
def rollback(
    name: FunctionName,
    revision: Annotated[int, typer.Argument(autocompletion=names.revisions)],
    output: OutputOption = Output.TABLE,
) -> None:
    """Give the traffic to an earlier revision."""
    with connected() as client:
        function = client.rollback(name, revision)
    tell(f"{name} revision {function.revision}", function, output)


@app.command("scale")
def scale(
    name: FunctionName,
    min_warm: Annotated[
        int | None, typer.Option(help="Instances that stand ready at any time, on all GPU instances together.")
    ] = None,
    max_warm: Annotated[int | None, typer.Option(help="Instances on each GPU instance, at most.")] = None,
    keep_alive: Annotated[
        str | None, typer.Option(help="How long an idle one stays where no rule decides: 10m, 0, or -1 = for ever.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option("--prewarm", autocompletion=names.prewarm_modes, help="Who decides: auto, off, or paper."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change how many instances of a function stand ready, until another revision takes its traffic."""
    keep_alive_s = None if keep_alive is None else -1.0 if keep_alive == "-1" else span_s(keep_alive)
    options = {"min_warm": min_warm, "max_warm": max_warm, "keep_alive_s": keep_alive_s, "prewarm": mode}
    changes = {key: value for key, value in options.items() if value is not None}
    if not changes:
        fail("nothing to change: name one of --min-warm, --max-warm, --keep-alive, --prewarm")
    with connected() as client:
        function = client.set_scaling(name, changes)
    tell(_in_force(function), function, output)


def _in_force(function: "Function") -> str:
    """How many instances of a function stand ready, in a line."""
    scaling = function.scaling
    if scaling is None:
        return f"{function.name}: no revision serves"
    alive = "for ever" if scaling.keep_alive_s < 0 else f"{scaling.keep_alive_s:g} s"
    return (
        f"{function.name} revision {function.revision}: min_warm {scaling.min_warm}, max_warm {scaling.max_warm},"
        f" keep_alive {alive}, prewarm {scaling.prewarm}"
    )


@app.command("quarantined")
def quarantined(output: OutputOption = Output.TABLE) -> None:
    """List revisions that are shut out everywhere after faults of a device."""
    with connected() as client:
        refused = client.quarantined()
    columns: list[Column[Any]] = [
        ("function", lambda q: q.function),
        ("revision", lambda q: q.revision),
        ("last fault", lambda q: q.cause),
        ("gpu", lambda q: q.gpu),
        ("since", lambda q: moment(q.at)),
    ]
    show(refused, columns, output)


@app.command("lift")
def lift(name: FunctionName, output: OutputOption = Output.TABLE) -> None:
    """Let revisions of a function run again that were shut out."""
    with connected() as client:
        lifted = client.lift(name)
    tell(f"{name}: revision {', '.join(map(str, lifted))} may run again", lifted, output)


@app.command("delete")
def delete(name: FunctionName, yes: YesOption = False) -> None:
    """Delete a function; what waits for it fails."""
    confirm(f"Delete {name} with its revisions? What waits for it fails.", yes)
    with connected() as client:
        client.delete(name)


@app.command("warm")
def warm(name: FunctionName, gpu: GpuOption = None, output: OutputOption = Output.TABLE) -> None:
    """Load a function before it is asked for."""
    with connected() as client:
        told = client.warm(name, gpu)
    tell(f"{name}: {', '.join(told)} will load it", told, output)


@app.command("offload")
def offload(name: FunctionName, gpu: GpuOption = None, output: OutputOption = Output.TABLE) -> None:
    """Unload a function where it is idle."""
    with connected() as client:
        told = client.offload(name, gpu)
    tell(f"{name}: {', '.join(told)} will unload it where it is idle", told, output)
