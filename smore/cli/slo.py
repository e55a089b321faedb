"""``smore slo``: deadlines of functions and degradation budgets of jobs."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smore.cli.terminal import (
    Column,
    FunctionName,
    JobId,
    Output,
    OutputOption,
    connected,
    percent,
    say,
    show,
    span_s,
    write,
)

if TYPE_CHECKING:
    from smore_client import Client

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
        target = client.set_slo(name, deadline_ms)
        held = "no deadline" if target.deadline_ms is None else f"deadline {target.deadline_ms:g} ms from arrival"
        say(f"{target.name}: {held}" + (", as its revision says" if deadline is None else ""))
        run_ms = _run_ms(client, name, target.revision) if deadline is not None else None
    if target.deadline_ms is not None and run_ms is not None and target.deadline_ms < run_ms:
        warning = f"its first run took {run_ms:.4g} ms: invocations may be refused, or end late"
        write(f"smore: {target.name}: {warning}", error=True)


def _run_ms(client: "Client", function: str, number: int) -> float | None:
    """What the first run of the revision that takes the traffic took, None = not known, or not for this key."""
    from smore_client import ApiError

    with suppress(ApiError):
        for revision in client.revisions(function):
            if revision.revision == number and revision.measured is not None:
                return revision.measured.run_ms
    return None


@app.command("job")
def job(
    id_: JobId, budget: Annotated[float, typer.Argument(help="What it may lose to functions at most, 0.01 to 19.")]
) -> None:
    """Set the degradation budget of a training job."""
    from smore_client import admin

    with connected() as client:
        job = client.carry(admin.set_budget(id_, budget))
    say(f"{job.name}: budget {job.budget * 100:.3g} % from now on; what was before is judged by the budget of then")
