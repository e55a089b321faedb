"""``smore slo``: deadlines of functions and degradation budgets of jobs."""

from typing import Annotated, Any

import typer

from smore.cli.terminal import Column, FunctionName, JobId, Output, OutputOption, connected, percent, show, span_s

app = typer.Typer(
    help="Targets: deadlines of functions and budgets of jobs; alone: list them.", invoke_without_command=True
)


@app.callback()
def without_command(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is not None:
        return
    with connected() as client:
        targets: list[dict[str, Any]] = [
            {"kind": "function", "name": f.name, "deadline_ms": f.deadline_ms} for f in client.functions()
        ]
        targets += [
            {"kind": "job", "name": j.name, "id": j.id, "budget": j.budget, "loss": j.loss}
            for j in client.jobs()
            if j.state not in ("ended", "lost")
        ]
    columns: list[Column[Any]] = [
        ("name", lambda target: target["name"]),
        ("kind", lambda target: target["kind"]),
        (
            "target",
            lambda target: (
                f"{target['deadline_ms']:g} ms" if target.get("deadline_ms") else percent(target.get("budget"))
            ),
        ),
        ("measured loss", lambda target: percent(target.get("loss"))),
        ("id", lambda target: target.get("id")),
    ]
    show(targets, columns, output, optional=("id",))


@app.command("function")
def function(
    name: FunctionName,
    deadline: Annotated[
        str | None, typer.Argument(help="250ms, 5s, or milliseconds; without it the revision's own again.")
    ] = None,
) -> None:
    """Set the deadline of a function, over the one of its revision."""
    if deadline is not None and deadline.lstrip("-").replace(".", "", 1).isdecimal():
        deadline_ms: float | None = float(deadline)
    else:
        deadline_ms = None if deadline is None else span_s(deadline) * 1e3
    with connected() as client:
        client.set_slo(name, deadline_ms)


@app.command("job")
def job(
    id_: JobId, budget: Annotated[float, typer.Argument(help="What it may lose to functions at most, 0.01 to 1.")]
) -> None:
    """Set the degradation budget of a training job."""
    from smore_client import admin

    with connected() as client:
        client.carry(admin.set_budget(id_, budget))
