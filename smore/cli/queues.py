"""``smore queues``: what waits, by function."""

from typing import Any

import typer

from smore.cli.terminal import Column, FunctionName, Output, OutputOption, ProjectOption, connected, show

app = typer.Typer(help="What waits, by function; alone: list it.", invoke_without_command=True)


def _list(output: Output) -> None:
    with connected() as client:
        queues = client.queues()
    columns: list[Column[Any]] = [
        ("function", lambda q: q.function),
        ("waiting", lambda q: q.depth),
        ("oldest", lambda q: f"{q.oldest_wait_s:.2f} s"),
        ("priority", lambda q: q.priority),
        ("paused", lambda q: q.paused),
        ("draining", lambda q: q.draining),
        ("boost", lambda q: None if q.boost == 1.0 else q.boost),
        ("pinned to", lambda q: q.pinned_to),
    ]
    show(queues, columns, output)


@app.callback()
def without_command(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _list(output)


@app.command("ls")
def ls(output: OutputOption = Output.TABLE) -> None:
    """List what waits."""
    _list(output)


@app.command("pause")
def pause(function: str) -> None:
    """Stop dispatching; requests go on being accepted and their deadlines run."""
    with connected() as client:
        client.pause(function)


@app.command("resume")
def resume(function: str) -> None:
    """Dispatch a function's requests again."""
    with connected() as client:
        client.resume(function)


@app.command("purge")
def purge(function: FunctionName, project: ProjectOption = None) -> None:
    """Cancel all that waits for a function; what runs goes on."""
    from smore_client import admin

    with connected() as client:
        print(f"{client.carry(admin.purge(function, project=project))} cancelled")
