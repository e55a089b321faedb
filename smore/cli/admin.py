"""
The commands of administrators: limits, drains, boosts, pins, purges, targets, the trail of changes, and the doctor.
"""

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from smore.cli.terminal import (
    EXIT_FAILED,
    Column,
    Id,
    Output,
    OutputOption,
    connected,
    fail,
    moment,
    percent,
    show,
    show_value,
    span_s,
)

slo = typer.Typer(
    help="Targets: deadlines of functions and budgets of jobs; alone: list them.", invoke_without_command=True
)
projects = typer.Typer(
    help="Projects, what they may use and what they use; alone: list them.", invoke_without_command=True
)

ForOption = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="How long: 90s, 30m, 2h, 1d; without it until --end.")
]
EndOption = Annotated[bool, typer.Option("--end", help="Take it back.")]
ProjectOption = Annotated[str | None, typer.Option(help="Of this project; without it that of your key.")]
#: For so long a GPU worker's word about an attached process is waited for.
SEEN_S = 5.0
Function = Annotated[str, typer.Argument(metavar="FUNCTION")]


# ---- what is done to queues and GPU instances ------------------------------------------------------------------------


def drain(
    function: Annotated[
        str | None, typer.Argument(metavar="FUNCTION", help="Take nothing new for it; what waits is served.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Place nothing more on this GPU instance, and unload what idles there.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Take nothing new at all.")] = False,
    end: EndOption = False,
    project: ProjectOption = None,
) -> None:
    """Let a function, a GPU instance or the whole platform run empty."""
    from smore_client import admin

    if (function is not None) + (gpu is not None) + everything != 1:
        raise typer.BadParameter("one of FUNCTION, --gpu and --all is expected")
    with connected() as client:
        if gpu is not None:
            if end:
                client.resume_gpu(gpu)
            else:
                client.carry(admin.drain_gpu(gpu))
        else:
            client.carry((admin.resume if end else admin.drain)(function, project=project))


def boost(
    function: Function,
    factor: Annotated[float | None, typer.Argument(help="Times its priority.")] = None,
    for_: ForOption = None,
    end: EndOption = False,
    project: ProjectOption = None,
) -> None:
    """Put a function before or behind others for a while: smore boost echo 4 --for 30m."""
    from smore_client import admin

    if (factor is None) != end:
        raise typer.BadParameter("either a FACTOR or --end is expected")
    for_s = span_s(for_) if for_ is not None else None
    with connected() as client:
        client.carry(admin.boost(function, factor, for_s=for_s, project=project))


def pin(
    function: Function,
    gpu: Annotated[list[str] | None, typer.Argument(help="The only GPU instances it may go to.")] = None,
    for_: ForOption = None,
    end: EndOption = False,
    project: ProjectOption = None,
) -> None:
    """Keep a function to some GPU instances, those that are away now too: while all of them are, it waits."""
    from smore_client import admin

    if bool(gpu) == end:
        raise typer.BadParameter("either GPU instances or --end is expected")
    for_s = span_s(for_) if for_ is not None else None
    with connected() as client:
        client.carry(admin.pin(function, gpu or [], for_s=for_s, project=project))
        away = set(gpu or []) - {one.id for one in client.gpus()} if gpu else set()
    if away:
        print(f"smore: not there now: {', '.join(sorted(away))}", file=sys.stderr)


def purge(function: Function, project: ProjectOption = None) -> None:
    """Cancel all that waits for a function; what runs goes on."""
    from smore_client import admin

    with connected() as client:
        print(f"{client.carry(admin.purge(function, project=project))} cancelled")


def gpus_allow(gpu: str, pid: int) -> None:
    """Let functions run beside a process that nobody registered, until it ends."""
    from smore_client import admin

    with connected() as client:
        client.carry(admin.allow(gpu, pid, True))


def gpus_protect(gpu: str, pid: int) -> None:
    """Take that back."""
    from smore_client import admin

    with connected() as client:
        client.carry(admin.allow(gpu, pid, False))


# ---- targets ---------------------------------------------------------------------------------------------------------


@slo.callback()
def slo_(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is not None:
        return
    with connected() as client:
        found: list[dict[str, Any]] = [
            {"kind": "function", "name": f.name, "deadline_ms": f.deadline_ms} for f in client.functions()
        ]
        found += [
            {"kind": "job", "name": j.name, "id": j.id, "budget": j.budget, "loss": j.loss}
            for j in client.jobs()
            if j.state not in ("ended", "lost")
        ]
    columns: list[Column[Any]] = [
        ("", lambda one: one["kind"]),
        ("name", lambda one: one["name"]),
        ("id", lambda one: one.get("id")),
        ("target", lambda one: f"{one['deadline_ms']:g} ms" if one.get("deadline_ms") else percent(one.get("budget"))),
        ("measured loss", lambda one: percent(one.get("loss"))),
    ]
    show(found, columns, output)


@slo.command("function")
def slo_function(
    name: Function,
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


@slo.command("job")
def slo_job(
    id_: Id, budget: Annotated[float, typer.Argument(help="What it may lose to functions at most, 0.01 to 1.")]
) -> None:
    """Set the degradation budget of a training job."""
    from smore_client import admin

    with connected() as client:
        client.carry(admin.set_budget(id_, budget))


# ---- projects --------------------------------------------------------------------------------------------------------


def _list_projects(output: Output) -> None:
    with connected() as client:
        found = client.projects()

    def of(name: str) -> Column[Any]:
        def cell(project: Any) -> str:
            most = getattr(project.limits, name)
            used = getattr(project.use, name, None)
            return f"{'' if used is None else f'{used:g} of '}{'any' if most is None else f'{most:g}'}"

        return name, cell

    columns: list[Column[Any]] = [
        ("name", lambda p: p.name),
        *(
            of(name)
            for name in ("rate_per_s", "burst", "depth", "concurrency", "warm_memory_mib", "jobs", "job_memory_mib")
        ),
        ("created", lambda p: moment(p.created_at)),
    ]
    show(found, columns, output)


@projects.callback()
def projects_(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _list_projects(output)


@projects.command("ls")
def projects_ls(output: OutputOption = Output.TABLE) -> None:
    """List projects."""
    _list_projects(output)


@projects.command("create")
def projects_create(name: str) -> None:
    """Create a project; `smore keys create --project` then makes a key of it."""
    with connected() as client:
        print(client.create_project(name).name)


@projects.command("limit")
def projects_limit(
    name: str,
    rate: Annotated[float | None, typer.Option(help="Invocations accepted a second, over time.")] = None,
    burst: Annotated[int | None, typer.Option(help="How many of them at once.")] = None,
    depth: Annotated[int | None, typer.Option(help="Invocations that wait.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Invocations that wait or run.")] = None,
    warm_memory: Annotated[float | None, typer.Option(help="Memory of all its warm instances, MiB.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Trainings at once; without it SMORE_JOBS_PER_PROJECT.")] = None,
    job_memory: Annotated[float | None, typer.Option(help="Memory kept for all its trainings, MiB.")] = None,
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
    )
    with connected() as client:
        show_value(client.carry(admin.set_limits(name, limits)), output)


# ---- the trail -------------------------------------------------------------------------------------------------------


def audit(
    project: ProjectOption = None,
    key: Annotated[str | None, typer.Option(help="Id of the API key.")] = None,
    route: Annotated[str | None, typer.Option(help="A part of the route: slo, boost, DELETE…")] = None,
    target: Annotated[str | None, typer.Option(help="For instance function/echo.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="As far back: 30m, 2h, 7d.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    cursor: Annotated[int | None, typer.Option(help="Go on behind the entry of this number.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Who changed what, the newest first."""
    from smore_client import admin
    from smore_client.types import AuditEntry

    began = (datetime.now(UTC) - timedelta(seconds=span_s(since))).isoformat() if since is not None else None
    wanted = {"project": project, "key": key, "route": route, "target": target, "since": began}
    with connected() as client:
        page = client.carry(admin.audit(wanted, limit=limit, cursor=cursor))
    columns: list[Column[AuditEntry]] = [
        ("id", lambda e: e.id),
        ("at", lambda e: moment(e.at)),
        ("project", lambda e: e.project),
        ("key", lambda e: e.key_id),
        ("route", lambda e: e.route),
        ("target", lambda e: e.target),
        ("before", lambda e: _short(e.before)),
        ("after", lambda e: _short(e.after)),
    ]
    show(page.entries, columns, output)
    if page.next_cursor is not None and output is Output.TABLE:
        print(f"there are more: --cursor {page.next_cursor}")


def _short(value: dict[str, Any] | None) -> str | None:
    if value is None:
        return None
    shown = {
        name: moment(datetime.fromtimestamp(one, UTC))
        if name.endswith("_until") and isinstance(one, int | float)
        else one
        for name, one in value.items()
    }
    return ", ".join(f"{name}={one}" for name, one in shown.items())


# ---- the doctor ------------------------------------------------------------------------------------------------------


def doctor(output: OutputOption = Output.TABLE) -> None:
    """
    Look at the running installation for what is known to go wrong, with a remedy for each. Exit code 1 where something
    is broken.
    """
    from smore.local import doctor as ward

    found = ward.examine(ward.site())
    if output is not Output.TABLE:
        show_value(found, output)
    else:
        columns: list[Column[ward.Finding]] = [
            ("", lambda f: f.verdict.value),
            ("what", lambda f: f.name),
            ("found", lambda f: f.found),
        ]
        show(found, columns, output)
        for one in found:
            if one.fix:
                print(f"{one.verdict.value}: {one.name}\n  {one.fix}")
    broken = [one.name for one in found if one.verdict is ward.Verdict.BROKEN]
    if broken:
        fail(f"broken: {', '.join(broken)}", EXIT_FAILED)


# ---- training that runs already --------------------------------------------------------------------------------------


def jobs_attach(
    pid: Annotated[int, typer.Option(min=1, help="Its process number on the machine of the GPU instance.")],
    gpu: Annotated[str | None, typer.Option(help="Where it trains; needed where the platform cannot find out.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the job; without it pid-<number>.")] = None,
    workload: Annotated[
        str | None, typer.Option(help="Which profiled training it is: model/size/training/batch.")
    ] = None,
) -> None:
    """
    Watch a training that runs already, without a change to its code.

    Its GPU instance is then known to train; what it loses to functions stays unmeasured. `smore jobs stop` lets it go:
    it trains on.
    """
    from smore_client import admin

    with connected() as client:
        made = client.carry(admin.attach(name or f"pid-{pid}", pid, gpu=gpu, workload=workload))
        print(f"{made.id} on {made.gpu}; degradation unmeasured: smore.track() in its loop would tell it")
        # Whether there is such a process its GPU worker alone can say.
        until = time.monotonic() + SEEN_S
        while (job := client.job(made.id)).state == "starting":
            if time.monotonic() > until:
                print(
                    f"its GPU worker has not said yet whether process {pid} is there: smore jobs will tell",
                    file=sys.stderr,
                )
                return
            time.sleep(0.1)
    if job.state in ("ended", "lost"):
        fail(f"{made.id}: {job.reason or 'it has ended'}", EXIT_FAILED)


def add_to(app: typer.Typer, *, queues: typer.Typer, gpus: typer.Typer, jobs: typer.Typer) -> None:
    """Hang all of it on ``smore``."""
    app.add_typer(slo, name="slo")
    app.add_typer(projects, name="projects")
    for command in (drain, boost, pin, purge, audit, doctor):
        app.command()(command)
    queues.command("purge")(purge)
    gpus.command("allow")(gpus_allow)
    gpus.command("protect")(gpus_protect)
    jobs.command("attach")(jobs_attach)
