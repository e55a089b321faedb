"""``smore jobs``: serverful jobs, and the queue in which they wait."""

from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from smore.cli import job_words, names, own_program, series
from smore.cli.logs import write_line
from smore.cli.terminal import (
    EXIT_USAGE,
    AllProjectsOption,
    AnywayOption,
    Column,
    JobId,
    Output,
    OutputOption,
    ProjectOption,
    connected,
    fail,
    moment,
    ms,
    percent,
    say,
    say_page,
    show,
    show_value,
    tell,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smore_client import Client
    from smore_client.job_requests import JobOptions
    from smore_client.types import Job

app = typer.Typer(
    help="Serverful jobs; alone: list them. A job's name will do wherever its id does.", invoke_without_command=True
)


class Unless(StrEnum):
    """What becomes of a training whose end cannot be promised."""

    REFUSE = "refuse"
    QUEUE = "queue"


#: States of jobs that are not over.
GOING_ON: Final = ("queued", "held", "starting", "running", "stopping")


@app.callback()
def without_command(
    context: typer.Context,
    project: ProjectOption = None,
    all_projects: AllProjectsOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    if context.invoked_subcommand is None:
        list_jobs(project, all_projects, output)


@app.command("ls")
def list_jobs(
    project: ProjectOption = None, all_projects: AllProjectsOption = False, output: OutputOption = Output.TABLE
) -> None:
    """
    List serverful jobs.

    Column "loss": what functions cost it, by closed windows; the budget bounds it. Columns "alone", "shared" and
    "degradation": its iterations of the last minute without and with functions beside them, and how much longer the latter
    took, whatever the cause. Only the loss counts for the budget.
    """
    with connected() as client:
        jobs = client.jobs(project=project, all_projects=all_projects)
        elsewhere = ""
        if output is Output.TABLE and project is None and not all_projects:
            elsewhere = _elsewhere(client, jobs)
    columns: list[Column[Any]] = [
        *([("project", lambda j: j.project)] if all_projects else []),
        ("name", lambda j: j.name),
        ("state", job_words.state),
        ("gpus", lambda j: j.gpus),
        ("iterations", lambda j: j.iterations),
        ("loss", job_words.loss),
        ("budget", lambda j: percent(j.budget)),
        ("alone", lambda j: ms(j.solo_s)),
        ("shared", lambda j: ms(j.shared_s)),
        ("degradation", lambda j: percent(j.degradation) if j.measured else "unmeasured"),
        ("source", lambda j: j.source),
        ("id", lambda j: j.id),
        ("command", lambda j: j.argv),
    ]
    shown = show(
        jobs,
        columns,
        output,
        optional=("command", "source", "id", "alone", "shared", "degradation", "budget", "loss", "gpus"),
    )
    for line in job_words.loss_legend(jobs):
        if line.partition(":")[0] in shown:
            say(line)
    if elsewhere:
        say(elsewhere)


def _elsewhere(client: "Client", own: "Sequence[Job]") -> str:
    """That other projects have jobs, "" = they have none, or the key is no operator's."""
    from smore_client import ApiError

    try:
        every = client.jobs(GOING_ON, all_projects=True)
    except ApiError:
        return ""
    others = [job for job in every if job.project not in {one.project for one in own}]
    if not others:
        return ""
    projects = ", ".join(sorted({job.project for job in others}))
    return f"{len(others)} more of other projects ({projects}) run or wait: smore jobs --all-projects"


@app.command("queue")
def queue(output: OutputOption = Output.TABLE) -> None:
    """
    What runs, then what waits, in its order: when it starts and ends if nobody shorter comes, and what it waits for.

    Column "length": what is left of it; "10m..22m" = 10 minutes are expected, in one case of ten more than 22; "60m?" =
    hardly known, in one case of ten more than ten times as long.
    """
    with connected() as client:
        answer = client.job_queue()
    if output is not Output.TABLE:
        show_value(answer, output)
        return
    columns: list[Column[Any]] = [
        ("", lambda j: j.place or ""),
        ("job", lambda j: j.name),
        ("project", lambda j: j.project),
        ("gpus", lambda j: j.count),
        ("length", job_words.length),
        ("state", lambda j: j.state),
        ("where", job_words.where),
        ("starts", lambda j: job_words.until(j.start_at, j.start_late_at) if j.place else None),
        ("ends", lambda j: job_words.until(j.end_at, j.end_late_at)),
        ("promised", job_words.promised),
        ("why", lambda j: j.why if j.place else None),
    ]
    if answer.jobs:
        several = len({job.project for job in answer.jobs}) > 1
        shown = show(
            answer.jobs,
            columns if several else [column for column in columns if column[0] != "project"],
            output,
            optional=("why", "length", "gpus", "project", "promised"),
        )
        if "length" in shown:
            for line in job_words.length_legend([job_words.length(job) or "" for job in answer.jobs]):
                say(line)
        if any(job.place and job.start_at for job in answer.jobs):
            say("starts, ends: if nobody shorter comes")
    else:
        write("No job runs or waits.")
    if answer.kept:
        names = {job.id: job.name for job in answer.jobs}
        are = "GPU instance is" if answer.kept == 1 else "GPU instances are"
        promised = any(job.why == "promised" for job in answer.jobs)
        others = "promised ends" if promised else "a training of another project"
        whom = names.get(answer.kept_for, answer.kept_for) if answer.kept_for else others
        write(f"{answer.kept} free {are} kept for {whom}.")
    if not answer.leading:
        why = f": {answer.refused}" if answer.refused else ""
        write(f"smore: no job scheduler leads{why}; what runs goes on, and nothing is started", error=True)
    say_page(client.url, "plan")


@app.command("start", context_settings={"ignore_unknown_options": True})
def start(
    name: Annotated[str, typer.Argument(autocompletion=names.jobs)],
    argv: Annotated[
        list[str],
        typer.Argument(help="After --: an entry point or, with an operator's key, any program, and its arguments."),
    ],
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, metavar="N", help="On so many GPU instances of one kind; 1.")
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=names.gpus, help="On this GPU instance, once for each: it waits for exactly these."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(autocompletion=names.devices, help="The kind of GPU that it needs, as `smore gpus` names it."),
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="How long it is: so many iterations in all.")] = None,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="How long it is: 30m, 2h, 1d.")] = None,
    restarts: Annotated[int, typer.Option(min=0, help="How often it is started again after it has failed.")] = 0,
    grace: Annotated[
        str | None, typer.Option(metavar="TIME", help="From SIGTERM to SIGKILL, time for a checkpoint; 10s.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable of its environment.")] = None,
    secret: Annotated[
        list[str] | None, typer.Option(metavar="VARIABLE=SECRET", help="A variable that holds a secret of the project.")
    ] = None,
    cwd: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where an own program starts; without it this folder.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(autocompletion=names.workloads, help="Which profiled training it is: model/size/training/batch."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="What it may lose to functions at most, 0.01 to 19; without it 0.1.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Kept for it on each GPU instance, such as 12GiB; else what it was seen to hold.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            help="Another training may train beside it and make an iteration take 1 + SHARE times as long; 0 = none may."
        ),
    ] = None,
    micro_batches: Annotated[
        str | None,
        typer.Option(metavar="1,2,4", help="In how many parts its loop can run a batch (tracker.micro_batches)."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Promise its end by then: 18:00, a date and time, 6h (from now), or earliest."
        ),
    ] = None,
    unless: Annotated[
        Unless, typer.Option(help="Where no end can be promised by then: refuse it, or queue it without a promise.")
    ] = Unless.REFUSE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say when it would start and end.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """
    Start a training as soon as there is room for it.

    smore jobs start night --gpus 2 --duration 2h -- zoo.train --model resnet50

    smore jobs start night -- ./train.py --lr 1

    It prints the job's id; where it runs, or what it waits for, stands on stderr.
    """
    if iterations is not None and duration is not None:
        fail("--iterations and --duration both say how long it is: give one of them", EXIT_USAGE)
    variables: dict[str, Any] = dict(_pair(each, "--env") for each in env or ())
    variables |= {variable: {"secret": of} for variable, of in (_pair(each, "--secret") for each in secret or ())}
    with connected({"count": "--gpus", "gpus": "--gpu", "micro_batches": "--micro-batches"}) as client:
        command, folder = own_program.resolved(argv, cwd, client.url)
        asked: JobOptions = {
            "gpus": gpu,
            "env": variables,
            "workload": workload,
            "budget": budget,
            "memory": memory,
            "count": gpus,
            "device": device,
            "iterations": iterations,
            "duration": duration,
            "restarts": restarts or None,
            "grace": grace,
            "cwd": folder,
            "share": share,
            "micro_batches": _counts(micro_batches),
            "by": job_words.next_time(by) if by is not None else None,
            "unless": unless.value if by is not None else None,
        }
        if dry_run:
            trial = client.try_job(name, command, **asked)
            tell(job_words.tried(name, trial), trial, output)
            return
        job = client.start_job(name, command, **asked)
        said = _placed(client, job)
    tell(job.id, job, output)
    write(said, error=True)
    if output is Output.TABLE:
        say_page(client.url, "trainings", job.id)


def _placed(client: "Client", job: "Job") -> str:
    """Where a job that was just started runs, what it waits for, or that nobody has decided about it."""
    from smore_client import ClientError

    if job.state == "queued" and job.expected is None:
        # A key that may start jobs and not read them does not learn it.
        with suppress(ClientError):
            queue = client.job_queue()
            if not queue.leading:
                return job_words.leaderless(job, queue.refused or "")
    return job_words.placed(job)


def _counts(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        fail(f"--micro-batches {text}: whole numbers separated by commas are expected", EXIT_USAGE)


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        fail(f"{option} {text}: NAME=VALUE is expected", EXIT_USAGE)
    return name, value


@app.command("show")
def show_job(
    job: JobId,
    since: series.OverTimeOption = None,
    project: ProjectOption = None,
    output: series.ShownOption = None,
) -> None:
    """Everything about one job, or how it went: smore jobs show JOB --since 1d."""
    with connected() as client:
        if since is None:
            show_value(client.job(job, project=project), series.whole(output))
            return
        drawn = output or series.SeriesOutput.TABLE
        found = client.job_series(job, project=project, **series.span(since, drawn))
    series.show_job(found, drawn)


@app.command("explain")
def explain(job: JobId, project: ProjectOption = None, output: OutputOption = Output.TABLE) -> None:
    """Why a job waits, runs where it runs, or is over."""
    with connected() as client:
        answer = client.explain_job(job, project=project)
        expected, source = answer.expected, ""
        badly = answer.state not in GOING_ON and job_words.ended_badly(client.job(answer.id, project=project))
        if output is Output.TABLE and expected is not None:
            guessed = expected.source == "assumed"
            source = (
                job_words.guess(client.job(answer.id, project=project))
                if guessed
                else SOURCES.get(expected.source, expected.source)
            )
    if output is not Output.TABLE:
        show_value(answer, output)
        return
    if expected is None:
        say(f"{answer.name} ({answer.state}): {answer.summary}")
    elif expected.place:
        say(
            f"{answer.name} waits in place {expected.place} since {job_words.span(expected.waited_s)}: {answer.summary}"
        )
        say(job_words.outlook(expected))
    else:
        ends = job_words.until(expected.end_at, expected.end_late_at)
        on = f" on {', '.join(expected.gpus)}" if expected.gpus else ""
        say(f"{answer.name} is {answer.state}{on}" + (f", expected to end {ends}." if ends else "."))
        if expected.beside:
            say(answer.summary)
    if expected is not None:
        if expected.promised_by:
            say(f"Its end is promised by {job_words.promised(expected)}.")
        say(
            f"What is left: {job_words.span(expected.length_s)}, in one case of ten more than"
            f" {job_words.span(expected.length_90_s)} ({source})."
        )
    if badly:
        say(f"What it printed: smore jobs logs {job}" + (f" --project {project}" if project is not None else ""))
    for place in answer.places[:PLACES]:
        say(f"  {place.gpu} {place.message}.")
    if len(answer.places) > PLACES:
        say(f"  ... and {len(answer.places) - PLACES} more GPU instances: --output json has all of them.")
    for decision in answer.decisions[:10]:
        on = f" on {', '.join(decision.gpus)}" if decision.gpus else ""
        message = f": {decision.message}" if decision.message else ""
        say(f"{moment(decision.at)}  attempt {decision.attempt}  {decision.kind}{on}{message}")
    say_page(client.url, "trainings", answer.id, project=project)


#: GPU instances that an explanation lists.
PLACES = 16
#: Sources of lengths in words.
SOURCES = {
    "measured": "iterations left times their time now",
    "former": "iterations times their time in former runs",
    "profile": "iterations times the profile's time",
    "declared": "the duration that its owner said",
    "name": "the last runs of its name",
    "project": "the project's last runs",
    "platform": "the platform's last runs",
}


@app.command("attempts")
def attempts(job: JobId, project: ProjectOption = None, output: OutputOption = Output.TABLE) -> None:
    """The starts of a job: where each ran, how it ended, how far it came."""
    with connected() as client:
        of_job = client.job_attempts(job, project=project)
    columns: list[Column[Any]] = [
        ("attempt", lambda a: a.attempt),
        ("gpus", lambda a: a.gpus),
        ("nodes", lambda a: a.nodes),
        ("started", lambda a: moment(a.started_at)),
        ("took", lambda a: job_words.span((a.ended_at - a.started_at).total_seconds()) if a.ended_at else None),
        ("iterations", lambda a: f"{a.iterations_from}..{a.iterations}"),
        ("ended", job_words.attempt_end),
        ("message", lambda a: a.message),
    ]
    show(of_job, columns, output, optional=("nodes", "message", "started"))


@app.command("logs")
def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes until it is over.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Of this rank of a job on several GPU instances.")] = 0,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Lines to begin with.")] = 100,
    project: ProjectOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """What a job prints, from whatever machine it runs on. With -o json each line is an object."""
    with connected() as client, suppress(KeyboardInterrupt):
        record = client.job(job, project=project)
        if record.source != "started":
            fail(f"{record.name} was started elsewhere: what it prints is where it was started, not here")
        for line in client.job_logs(job, rank=rank, lines=lines, follow=follow, project=project):
            write_line(line.text, line, output, flush=follow)


@app.command("statement")
def statement(job: JobId, project: ProjectOption = None, output: OutputOption = Output.TABLE) -> None:
    """What functions have got beside a job, what it has lost to them, and whether its budget was kept."""
    with connected() as client:
        figures = client.statement(job, project=project)
    if output is Output.TABLE:
        say(figures.summary)
        for step in figures.steps[:10]:
            say(f"{moment(step.at)}  {step.gpu}  {step.step}  (duty {step.duty:.0%}, predictions x {step.factor:.2f})")
    else:
        show_value(figures, output)


@app.command("stop")
def stop(job: JobId, project: ProjectOption = None, output: OutputOption = Output.TABLE) -> None:
    """End a job. One that runs elsewhere is let go: it trains on, and is not followed any more."""
    stopped = _changed(job, "stop", project)
    if stopped.state == "stopping" and stopped.source != "started":
        said = "is no longer followed; it was started elsewhere and trains on"
    else:
        said = "has ended" if stopped.state == "ended" else f"is {stopped.state}"
    tell(f"{stopped.name} {said}", stopped, output)


@app.command("hold")
def hold(
    job: JobId, project: ProjectOption = None, anyway: AnywayOption = False, output: OutputOption = Output.TABLE
) -> None:
    """Keep a job that waits from being started, until it is released."""
    held = _changed(job, "hold", project, anyway)
    tell(f"{held.name} is held: smore jobs release {held.name}", held, output)


@app.command("release")
def release(job: JobId, project: ProjectOption = None, output: OutputOption = Output.TABLE) -> None:
    """Let a job that is held wait for its turn again."""
    released = _changed(job, "release", project)
    tell(f"{released.name} waits for its turn", released, output)


@app.command("restart")
def restart(job: JobId, project: ProjectOption = None, output: OutputOption = Output.TABLE) -> None:
    """Queue a job that is over again; it goes on from its last checkpoint, or starts from the beginning without one."""
    restarted = _changed(job, "restart", project)
    begins = (
        f"goes on from its last checkpoint, iteration {restarted.checkpoint}"
        if restarted.checkpoint
        else "starts from the beginning: it has written no checkpoint (smore.checkpoint)"
    )
    tell(f"{restarted.name} waits for its turn, and {begins}", restarted, output)


@app.command("allow")
def allow(job: JobId, project: ProjectOption = None, output: OutputOption = Output.TABLE) -> None:
    """Let a training count that reports from elsewhere and whose process no GPU worker sees; for operators."""
    allowed = _changed(job, "allow", project)
    tell(f"{allowed.name} counts from now on", allowed, output)


@app.command("move")
def move(
    job: JobId,
    first: Annotated[bool, typer.Option("--first", help="Before all others that wait.")] = False,
    project: ProjectOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put a job that waits before all others; for operators."""
    from smore_client import admin

    if not first:
        fail("where to? smore jobs move JOB --first", EXIT_USAGE)
    with connected() as client:
        moved = client.carry(admin.move_job_first(job, project=project))
    tell(f"{moved.name} is before all others that wait", moved, output)


def _changed(job: str, action: str, project: str | None, anyway: bool = False) -> Any:
    from smore_client import admin

    with connected() as client:
        return client.carry(admin.change_job(job, action, project=project, anyway=anyway))


@app.command("attach")
def attach(
    pid: Annotated[int, typer.Option(min=1, help="Its process number on the machine of the GPU instance.")],
    gpu: Annotated[
        str | None,
        typer.Option(autocompletion=names.gpus, help="Where it trains; needed where the platform cannot find out."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the job; without it pid-<number>.")] = None,
    workload: Annotated[
        str | None,
        typer.Option(autocompletion=names.workloads, help="Which profiled training it is: model/size/training/batch."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """
    Watch a training that runs already, without a change to its code.

    Its GPU instance is then known to train; what it loses to functions stays unmeasured. `smore jobs stop` lets it go:
    it trains on.
    """
    from smore_client import admin

    with connected() as client:
        attached = client.carry(admin.attach(name or f"pid-{pid}", pid, gpu=gpu, workload=workload))
    unmeasured = "its degradation is not measured: that needs smore.track() in its loop"
    tell(f"{attached.id} on {attached.gpu}; {unmeasured}", attached, output)
    if attached.beside_now:
        write(f"smore: {', '.join(attached.beside_now)} trains there too", error=True)
