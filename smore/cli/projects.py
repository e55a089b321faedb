"""``smore projects``: projects, what they may use and what they use."""

from typing import Annotated, Any, Final

import typer

from smore.cli.terminal import (
    EXIT_USAGE,
    AnywayOption,
    Column,
    Output,
    OutputOption,
    ProjectName,
    connected,
    fail,
    list_alone,
    moment,
    show,
    show_value,
    tell,
)

app = typer.Typer(help="Projects, what they may use and what they use; alone: list them.", invoke_without_command=True)

#: Columns that a narrow screen does without, the first of them first.
OPTIONAL: Final = ("created", "promised", "burst", "job_memory_mib", "rate_per_s", "warm_memory_mib", "share", "weight")


@list_alone(app, "List projects.")
def list_projects(output: Output) -> None:
    with connected() as client:
        projects = client.projects()

    def limit_column(name: str) -> Column[Any]:
        def cell(project: Any) -> str:
            limit = getattr(project.held, name)
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
                "promised",
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


def _limit(help_: str) -> Any:
    return typer.Option(metavar="N|none", help=help_)


@app.command("limit")
def limit(
    name: ProjectName,
    rate: Annotated[str | None, _limit("Invocations accepted a second, over time.")] = None,
    burst: Annotated[str | None, _limit("How many of them at once.")] = None,
    depth: Annotated[str | None, _limit("Invocations that wait.")] = None,
    concurrency: Annotated[str | None, _limit("Invocations that wait or run.")] = None,
    warm_memory: Annotated[str | None, _limit("Memory of all its warm instances, MiB.")] = None,
    jobs: Annotated[str | None, _limit("Trainings that wait or run; without it SMORE_JOBS_PER_PROJECT.")] = None,
    job_memory: Annotated[str | None, _limit("Memory kept for all its trainings, MiB.")] = None,
    gpus: Annotated[str | None, _limit("GPU instances that its trainings hold at a time.")] = None,
    promised: Annotated[
        str | None, _limit("GPU instances for which its trainings have promised ends; else --gpus.")
    ] = None,
    weight: Annotated[str | None, _limit("Of its trainings in the queue: 2 counts their expected time half.")] = None,
    share: Annotated[
        str | None, _limit("What another training may cost one of its trainings that says nothing: 0.5 = half as much.")
    ] = None,
    anyway: AnywayOption = False,
    output: OutputOption = Output.YAML,
) -> None:
    """Change limits of a project: what is not named stays as it is, and none takes a limit away."""
    from smore_client import admin

    named = {
        "rate_per_s": rate,
        "burst": burst,
        "depth": depth,
        "concurrency": concurrency,
        "warm_memory_mib": warm_memory,
        "jobs": jobs,
        "job_memory_mib": job_memory,
        "gpus": gpus,
        "promised": promised,
        "weight": weight,
        "share": share,
    }
    changes = {limit: _number(text) for limit, text in named.items() if text is not None}
    if not changes:
        fail("which limit? smore projects limit --help names them", EXIT_USAGE)
    with connected() as client:
        show_value(client.carry(admin.set_limits(name, changes, anyway=anyway)), output)


def _number(text: str) -> float | None:
    """A limit as it was written, None = ``none``."""
    if text == "none":
        return None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        fail(f"{text}: a number, or none, is expected", EXIT_USAGE)
