"""``smore jobs``: serverful jobs."""

import sys
import time
from typing import Annotated, Any, Final

import typer

from smore.cli.names import gpus
from smore.cli.terminal import (
    EXIT_FAILED,
    Column,
    JobId,
    Output,
    OutputOption,
    connected,
    fail,
    list_alone,
    moment,
    ms,
    percent,
    say,
    show,
    show_value,
    tell,
)

app = typer.Typer(help="Serverful jobs; alone: list them.", invoke_without_command=True)

#: Columns that a narrow screen does without, the first of them first.
OPTIONAL: Final = ("command", "source", "alone", "shared", "iterations", "gpus", "budget")
#: Seconds that ``jobs attach`` waits for the GPU worker to report whether the process exists.
SEEN_S = 5.0


def _state(job: Any) -> str:
    """The state of a job, and how it ended."""
    if job.suspended:
        return f"{job.state}, suspended by a signal: no steps"
    match job.outcome:
        case None:
            return str(job.state)
        case "killed":
            return f"{job.state}: killed by {job.signal}"
        case "failed":
            return f"{job.state}: failed, exit code {job.exit_code}"
        case "refused" | "detached":
            return f"{job.state}: {job.outcome}, {job.reason}"
        case "stopped":
            return f"{job.state}: stopped by its owner"
        case _:
            return f"{job.state}: {job.outcome}"


@list_alone(app, "List serverful jobs.")
def list_jobs(output: Output) -> None:
    with connected() as client:
        jobs = client.jobs()
    columns: list[Column[Any]] = [
        ("id", lambda j: j.id),
        ("name", lambda j: j.name),
        ("state", _state),
        ("gpus", lambda j: j.gpus),
        ("iterations", lambda j: j.iterations),
        ("alone", lambda j: ms(j.solo_s)),
        ("shared", lambda j: ms(j.shared_s)),
        ("degradation", lambda j: percent(j.degradation) if j.measured else "unmeasured"),
        ("loss", lambda j: percent(j.loss)),
        ("budget", lambda j: percent(j.budget)),
        ("source", lambda j: j.source),
        ("command", lambda j: j.argv),
    ]
    show(jobs, columns, output, optional=OPTIONAL)


@app.command("start", context_settings={"ignore_unknown_options": True})
def start(
    name: str,
    argv: Annotated[list[str], typer.Argument(help="After --: an allowed module and its arguments.")],
    gpu: Annotated[
        list[str] | None,
        typer.Option(autocompletion=gpus, help="GPU instance, once for each; without it the least loaded one."),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Which profiled training it is: model/size/training/batch.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="What it may lose to functions at most, 0.01 to 1; without it 0.1.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Kept for it on each GPU instance, such as 12GiB; else what it was seen to hold.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start a training job, for example: smore jobs start night -- zoo.train --model resnet50."""
    with connected() as client:
        started = client.start_job(name, argv, gpu, workload=workload, budget=budget, memory=memory)
    tell(started.id, started, output)


@app.command("show")
def show_job(id_: JobId, output: OutputOption = Output.YAML) -> None:
    """Everything about one job."""
    with connected() as client:
        show_value(client.job(id_), output)


@app.command("statement")
def statement(id_: JobId, output: OutputOption = Output.TABLE) -> None:
    """What functions have got beside a job, and what it has lost to them."""
    with connected() as client:
        figures = client.statement(id_)
    if output is Output.TABLE:
        say(figures.summary)
        for step in figures.steps[:10]:
            say(f"{moment(step.at)}  {step.gpu}  {step.step}  (duty {step.duty:.0%}, predictions x {step.factor:.2f})")
    else:
        show_value(figures, output)


@app.command("stop")
def stop(id_: JobId, output: OutputOption = Output.TABLE) -> None:
    """End a job. One that runs elsewhere is let go: it trains on, and is not followed any more."""
    with connected() as client:
        stopped = client.stop_job(id_)
    ended = stopped.source == "started" or stopped.state != "stopping"
    trains_on = "no longer followed; it was started elsewhere and trains on"
    tell(f"{stopped.name} is {stopped.state if ended else trains_on}", stopped, output)


@app.command("attach")
def attach(
    pid: Annotated[int, typer.Option(min=1, help="Its process number on the machine of the GPU instance.")],
    gpu: Annotated[
        str | None,
        typer.Option(autocompletion=gpus, help="Where it trains; needed where the platform cannot find out."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the job; without it pid-<number>.")] = None,
    workload: Annotated[
        str | None, typer.Option(help="Which profiled training it is: model/size/training/batch.")
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
        if output is Output.TABLE:
            unmeasured = "its degradation is not measured: that needs smore.track() in its loop"
            say(f"{attached.id} on {attached.gpu}; {unmeasured}")
        # The GPU worker alone can see whether the process exists.
        until = time.monotonic() + SEEN_S
        while (job := client.job(attached.id)).state == "starting":
            if time.monotonic() > until:
                print(
                    f"its GPU worker has not reported yet whether process {pid} exists: see smore jobs",
                    file=sys.stderr,
                )
                return
            time.sleep(0.1)
    if output is not Output.TABLE:
        show_value(job, output)
    if job.state in ("ended", "lost"):
        fail(f"{attached.id}: {job.reason or 'it has ended'}", EXIT_FAILED)
