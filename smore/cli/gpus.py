"""``smore gpus``: GPU instances."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from smore.cli.series import SeriesOption, SeriesOutput, SinceOption, show_gpu, show_lanes, span
from smore.cli.terminal import (
    AnywayOption,
    Column,
    GpuName,
    Output,
    OutputOption,
    YesOption,
    asks,
    confirm,
    connected,
    fail,
    list_alone,
    percent,
    say,
    say_page,
    show,
    span_s,
    tell,
    write,
)

if TYPE_CHECKING:
    from smore_client import Client
    from smore_client.types import Gpu, PredictorPlace

app = typer.Typer(help="GPU instances; alone: list them.", invoke_without_command=True)


#: Seconds between two looks at a GPU instance that is waited for.
ASK_S: Final = 0.5
WaitOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Wait until the GPU instance is empty, so long at most: 90s, 10m, 2h."),
]

#: Columns that a narrow screen does without, the first of them first.
OPTIONAL: Final = ("sharing", "kind", "device", "strangers", "draining", "paused", "by functions")


def wait_s(wait: str | None) -> float | None:
    """The seconds of :data:`WaitOption`. Raises typer.BadParameter."""
    return span_s(wait) if wait is not None else None


def unmeasured(gpus: "Sequence[Gpu]", places: "Sequence[PredictorPlace]") -> str:
    """Which GPU instances have no measured rows, and what to do; "" = all have some."""
    measured = {(place.device, place.sharing_mode) for place in places if place.measured}
    names = [gpu.id for gpu in gpus if (gpu.device, gpu.sharing_mode) not in measured]
    if not names:
        return ""
    return (
        f"No measured rows: {', '.join(names)}. Predictions there are guesses until an operator has measured the device:"
        " `smore profile --minutes 20` on its machine."
    )


@list_alone(app, "List GPU instances.")
def list_gpus(output: Output) -> None:
    from smore_client import ApiError

    with connected() as client:
        gpus, line, names, warnings = client.gpus(), "", dict[str, str](), list[str]()
        if output is Output.TABLE:
            with suppress(ApiError):
                # An instance that is silent is in no list.
                warnings = [each for each in client.ready().get("warnings", ()) if each.startswith("GPU instances ")]
            # Both need Postgres, and the list does not.
            with suppress(ApiError):
                names = _names(client, gpus)
                line = unmeasured(gpus, client.predictor().places)
    columns: list[Column[Gpu]] = [
        ("gpu", lambda g: g.id),
        ("kind", lambda g: g.kind),
        ("device", lambda g: g.device),
        ("sharing", lambda g: g.sharing_mode),
        ("used", lambda g: percent(g.utilisation)),
        ("by functions", lambda g: percent(g.function_utilisation)),
        ("memory MiB", lambda g: f"{g.memory_used_mib:.0f}/{g.memory_total_mib:.0f}"),
        ("running", lambda g: f"{g.running}/{g.slots}"),
        ("trainings", lambda g: _trainings(g, names)),
        ("warm", lambda g: [f"{w.function}:{w.state}" for w in g.warm]),
        ("paused", lambda g: g.paused),
        ("draining", lambda g: "drained" if g.drained else g.draining),
        ("health", lambda g: g.health or "ok"),
        ("strangers", lambda g: [f"{s.pid}:{'allowed' if s.allowed else 'protected'}" for s in g.strangers or ()]),
    ]
    show(gpus, columns, output, optional=OPTIONAL)
    for each in [*warnings, *([line] if line else [])]:
        say(each)
    if output is Output.TABLE:
        say_page(client.url)


def _names(client: "Client", gpus: "Sequence[Gpu]") -> dict[str, str]:
    """The names of the trainings that the GPU instances report, by id; of other projects than ``default`` with theirs."""
    return {
        job.id: job.name if project == "default" else f"{project}/{job.name}"
        for project in {job.project for gpu in gpus for job in gpu.jobs}
        for job in client.jobs(("starting", "running", "stopping"), project=project)
    }


def _trainings(gpu: "Gpu", names: Mapping[str, str]) -> list[str]:
    """The trainings there: those that may be named, and how many more there are."""
    shared = any(job.guest for job in gpu.jobs)
    shown = [
        names.get(job.id, job.id) + (f" ({'guest' if job.guest else 'host'})" if shared else "") for job in gpu.jobs
    ]
    hidden = gpu.trainings - len(shown)
    return [*shown, *([f"{hidden} of another project"] if hidden > 0 else [])]


def _in_force(gpu: "Gpu") -> str:
    """What people have set for a GPU instance, in a line."""
    unregistered = gpu.strangers or ()
    words = [
        *(["paused: nothing new is placed"] if gpu.paused else []),
        *(["drained" if gpu.drained else "draining: nothing new is placed"] if gpu.draining else []),
        *(f"process {one.pid} is {'allowed' if one.allowed else 'protected'}" for one in unregistered),
    ]
    trains = f", {gpu.trainings} trainings go on" if gpu.trainings > 1 else ", a training goes on" * gpu.trainings
    return f"{gpu.id}: {'; '.join(words) or 'no pause or drain'}; {gpu.running} of {gpu.slots} slots run{trains}"


def print_gpu(client: "Client", name: str, output: Output) -> None:
    """Print what is set now; nothing where the GPU instance does not report."""
    gpu = next((each for each in client.gpus() if each.id == name), None)
    if gpu is not None or output is not Output.TABLE:
        tell(_in_force(gpu) if gpu is not None else "", gpu, output)


def confirm_last(client: "Client", name: str, yes: bool) -> None:
    """Ask in a terminal where no other GPU instance would take anything new."""
    if asks(yes) and not any(gpu.id != name and not (gpu.paused or gpu.draining) for gpu in client.gpus()):
        confirm(f"No GPU instance but {name} takes anything new: after this nothing is placed any more. Go on?", yes)


def drain_gpu(client: "Client", name: str, yes: bool, wait_s: float | None, output: Output, anyway: bool) -> None:
    """
    What ``smore gpus drain`` and ``smore drain --gpu`` do. ``wait_s``: for how long to wait until nothing is left there,
    None = not at all. The command ends with exit code 1 where something still is.
    """
    from smore_client import admin

    confirm_last(client, name, yes)
    client.carry(admin.drain_gpu(name, anyway=anyway))
    until, said = time.monotonic() + (wait_s or 0.0), ""
    while wait_s is not None and (left := _left(client, name)):
        if left != said:
            write(f"waiting: {left}", error=True, flush=True)
            said = left
        if time.monotonic() > until:
            print_gpu(client, name, output)
            fail(f"{name} is not empty after {wait_s:g} s: {left}; it stays drained")
        time.sleep(ASK_S)
    print_gpu(client, name, output)


def _left(client: "Client", name: str) -> str:
    """What is still on a GPU instance that is drained, in words; "" = nothing."""
    from smore_client import ApiError

    gpu = next((each for each in client.gpus() if each.id == name), None)
    if gpu is None:
        return "it does not report"
    if gpu.drained:
        return ""
    if not gpu.draining:
        return "somebody has ended its drain"
    names: Mapping[str, str] = {}
    with suppress(ApiError):  # Postgres may be away
        names = _names(client, [gpu])
    trainings = _trainings(gpu, names)
    words = [
        *([f"{gpu.running} runs"] if gpu.running else []),
        *([f"trainings: {', '.join(trainings)}"] if trainings else []),
        *([f"loaded: {', '.join(one.function for one in gpu.warm)}"] if gpu.warm else []),
    ]
    return "; ".join(words) or "its next report"


@app.command("show")
def show_over_time(
    gpu: GpuName,
    since: SinceOption = "1h",
    lanes: Annotated[
        bool, typer.Option("--lanes", help="What was there: warm instances, closed windows, invocations.")
    ] = False,
    output: SeriesOption = SeriesOutput.TABLE,
) -> None:
    """How busy a GPU instance was, and by whom: smore gpus show cpu0 --since 6h."""
    with connected() as client:
        if lanes:
            show_lanes(client.gpu_lanes(gpu, **span(since, output)), output)
        else:
            show_gpu(gpu, client.gpu_series([gpu], **span(since, output)), output)


@app.command("pause")
def pause(
    gpu: GpuName, yes: YesOption = False, anyway: AnywayOption = False, output: OutputOption = Output.TABLE
) -> None:
    """Place nothing new on a GPU instance. What runs goes on, and what is loaded stays loaded."""
    with connected() as client:
        confirm_last(client, gpu, yes)
        client.pause_gpu(gpu, anyway=anyway)
        print_gpu(client, gpu, output)


@app.command("drain")
def drain(
    gpu: GpuName,
    wait: WaitOption = None,
    yes: YesOption = False,
    anyway: AnywayOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """
    Place nothing new on a GPU instance, and unload what idles there; `smore gpus` says "drained" when nothing is left.
    Trainings there run to their end.
    """
    with connected() as client:
        drain_gpu(client, gpu, yes, wait_s(wait), output, anyway)


@app.command("undrain")
@app.command("resume")
def resume(gpu: GpuName, output: OutputOption = Output.TABLE) -> None:
    """Place invocations on a GPU instance again: end its pause and its drain."""
    with connected() as client:
        client.resume_gpu(gpu)
        print_gpu(client, gpu, output)


@app.command("forget")
def forget(gpu: GpuName, output: OutputOption = Output.TABLE) -> None:
    """Do not expect a silent GPU instance any more: no warning names it until it reports again."""
    from smore_client import admin

    with connected() as client:
        client.carry(admin.forget_gpu(gpu))
    tell(f"{gpu} is not expected any more", {"forgotten": gpu}, output)


@app.command("allow")
def allow(gpu: GpuName, pid: int, output: OutputOption = Output.TABLE) -> None:
    """Let functions run beside a process that nobody registered, until it ends."""
    from smore_client import admin

    with connected() as client:
        client.carry(admin.allow(gpu, pid, True))
        print_gpu(client, gpu, output)


@app.command("protect")
def protect(gpu: GpuName, pid: int, output: OutputOption = Output.TABLE) -> None:
    """Keep functions away from such a process again."""
    from smore_client import admin

    with connected() as client:
        client.carry(admin.allow(gpu, pid, False))
        print_gpu(client, gpu, output)
