"""``smore secrets``: secrets of functions."""

import sys
from typing import Annotated, Any

import typer

from smore.cli import names
from smore.cli.terminal import Column, Output, connected, list_alone, moment, show

app = typer.Typer(help="Secrets of functions; alone: list their names.", invoke_without_command=True)


@list_alone(app, "List the names of secrets; their values are never shown.", "list")
def list_secrets(output: Output) -> None:
    with connected() as client:
        secrets = client.secrets()
    columns: list[Column[Any]] = [("name", lambda s: s.name), ("set", lambda s: moment(s.updated_at))]
    show(secrets, columns, output)


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(autocompletion=names.secrets)],
    file: Annotated[typer.FileText | None, typer.Option("--file", "-f", help="Read the value from here.")] = None,
) -> None:
    """
    Set a secret, or replace it.

    The value is read from a file, a pipe or the terminal, never from the command line, which other users of the machine
    can see.
    """
    if file is None and sys.stdin.isatty():
        value = typer.prompt(f"value of {name}", hide_input=True)
    else:
        value = (file or sys.stdin).read().removesuffix("\n")
    with connected() as client:
        client.set_secret(name, value)


@app.command("rm")
def rm(name: Annotated[str, typer.Argument(autocompletion=names.secrets)]) -> None:
    """Delete a secret. A warm instance that has it keeps it until it is offloaded."""
    with connected() as client:
        client.delete_secret(name)
