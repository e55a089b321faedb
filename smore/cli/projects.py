"""``smore projects``: projects, what they may use and what they use."""

from typing import Annotated, Any, Final

import typer

from smore.cli.terminal import (
    Column,
    Output,
    OutputOption,
    ProjectName,
    connected,
    list_alone,
    moment,
    show,
    show_value,
    tell,
)

app = typer.Typer(help="Projects, what they may use and what they use; alone: list them.", invoke_without_command=True)

#: Columns that a narrow screen does without, the first of them first.
OPTIONAL: Final = ("created", "burst", "job_memory_mib", "rate_per_s", "warm_memory_mib", "share", "weight")


@list_alone(app, "List projects.")
def list_projects(output: Output) -> None:
    with connected() as client:
        projects = client.projects()

    def limit_column(name: str) -> Column[Any]:
        def cell(project: Any) -> str:
            limit = getattr(project.limits, name)
            used = getattr(project.use, name, None)
            if limit is None:
                return "no limit" if used is None else f"{used:g}, no limit"
            return f"{limit:g}" if used is None else f"{used:g} of {limit:g}"

        return name, cell

    columns: list[Column[Any]] = [
        ("name", lambda p: p.name),
        *(
            limit_column(name)
            for name in (
                "rate_per_s",
                "burst",
                "depth",
                "concurrency",
                "warm_memory_mib",
                "jobs",
                "job_memory_mib",
                "gpus",
                "weight",
                "share",
            )
        ),
        ("created", lambda p: moment(p.created_at)),
    ]
    show(projects, columns, output, optional=OPTIONAL)


@app.command("create")
def create(name: str, output: OutputOption = Output.TABLE) -> None:
    """Create a project; `smore keys create --project` then makes a key of it."""
    with connected() as client:
        created = client.create_project(name)
    tell(created.name, created, output)


@app.command("limit")
def limit(
    name: ProjectName,
    rate: Annotated[float | None, typer.Option(help="Invocations accepted a second, over time.")] = None,
    burst: Annotated[int | None, typer.Option(help="How many of them at once.")] = None,
    depth: Annotated[int | None, typer.Option(help="Invocations that wait.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Invocations that wait or run.")] = None,
    warm_memory: Annotated[float | None, typer.Option(help="Memory of all its warm instances, MiB.")] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Trainings that wait or run; without it SMORE_JOBS_PER_PROJECT.")
    ] = None,
    job_memory: Annotated[float | None, typer.Option(help="Memory kept for all its trainings, MiB.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPU instances that its trainings hold at a time.")] = None,
    weight: Annotated[
        float | None, typer.Option(help="Of its trainings in the queue: 2 counts their expected time half.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(help="What another training may cost one of its trainings that says nothing: 0.5 = half as much."),
    ] = None,
    output: OutputOption = Output.YAML,
) -> None:
    """Set all limits of a project; what is not named is not limited, but for the number of trainings."""
    from smore_client import admin
    from smore_client.types import Limits

    limits = Limits(
        rate_per_s=rate,
        burst=burst,
        depth=depth,
        concurrency=concurrency,
        warm_memory_mib=warm_memory,
        jobs=jobs,
        job_memory_mib=job_memory,
        gpus=gpus,
        weight=weight,
        share=share,
    )
    with connected() as client:
        show_value(client.carry(admin.set_limits(name, limits)), output)
