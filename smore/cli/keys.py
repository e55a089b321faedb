"""``smore keys``: API keys."""

from typing import Annotated, Any

import typer

from smore.cli import names
from smore.cli.terminal import (
    Column,
    Output,
    OutputOption,
    ProjectOption,
    connected,
    fail,
    list_alone,
    moment,
    problem,
    show,
    tell,
)

app = typer.Typer(help="API keys; alone: list them.", invoke_without_command=True)


@list_alone(app, "List API keys.")
def list_keys(output: Output) -> None:
    with connected() as client:
        keys = client.keys()
    columns: list[Column[Any]] = [
        ("id", lambda k: k.id),
        ("name", lambda k: k.name),
        ("project", lambda k: k.project),
        ("scopes", lambda k: k.scopes),
        ("created", lambda k: moment(k.created_at)),
    ]
    show(keys, columns, output)


@app.command("create")
def create(
    name: str,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=names.scopes, help="invoke, read, deploy, jobs or admin, once for each; else invoke, read."
        ),
    ] = None,
    project: ProjectOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create an API key and print it. It is shown this once."""
    from smore_client import ApiError

    with connected() as client:
        try:
            created = client.create_key(name, scope or ["invoke", "read"], project)
        except ApiError as error:
            if project is None or error.code != "not_found":
                raise
            fail(f"{problem(error)}\nnext: `smore projects create {project}` makes the project")
    tell(str(created.key), created, output)


@app.command("revoke")
def revoke(id_: Annotated[str, typer.Argument(metavar="ID", autocompletion=names.keys)]) -> None:
    """Revoke a key: requests with it are refused."""
    with connected() as client:
        client.revoke_key(id_)
