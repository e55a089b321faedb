"""``smore queues``: what waits, by function."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from smore.cli.names import functions
from smore.cli.terminal import (
    AnywayOption,
    Column,
    FunctionName,
    Output,
    OutputOption,
    ProjectOption,
    YesOption,
    confirm,
    connected,
    list_alone,
    moment,
    say,
    show,
    show_value,
    write,
)

if TYPE_CHECKING:
    from datetime import datetime

    from smore_client import Client
    from smore_client.types import Queue

app = typer.Typer(help="What waits, by function; alone: list it.", invoke_without_command=True)


@list_alone(app, "List what waits.")
def list_queues(output: Output) -> None:
    with connected() as client:
        queues = client.queues()
    columns: list[Column[Any]] = [
        ("function", lambda q: q.function),
        ("waiting", lambda q: q.depth),
        ("of class batch", lambda q: q.batch),
        ("oldest", lambda q: f"{q.oldest_wait_s:.2f} s"),
        ("priority", lambda q: q.priority),
        ("paused", lambda q: q.paused),
        ("draining", lambda q: q.draining),
        ("boost", lambda q: None if q.boost == 1.0 else q.boost),
        ("pinned to", lambda q: q.pinned_to),
    ]
    show(queues, columns, output)


def in_force(queue: "Queue") -> str:
    """What is set over the policy for a function, in a line."""
    words = [
        *(["paused: nothing is dispatched"] if queue.paused else []),
        *(["draining: nothing new is taken"] if queue.draining else []),
        *([f"boost {queue.boost:g}{_until(queue.boost_until)}"] if queue.boost != 1.0 else []),
        *([f"pinned to {', '.join(queue.pinned_to)}{_until(queue.pinned_until)}"] if queue.pinned_to else []),
    ]
    return f"{queue.function}: {'; '.join(words) or 'no pause, drain, boost or pin'}; {queue.depth} waiting"


def _until(at: "datetime | None") -> str:
    return f" until {moment(at)}" if at is not None else ""


def print_in_force(client: "Client", function: str | None, output: Output, project: str | None = None) -> None:
    """Print what is set now: of one function, or None = of all."""
    from smore_client import admin

    queues = [each for each in client.carry(admin.queues(project=project)) if function in (None, each.function)]
    if output is not Output.TABLE:
        show_value(queues, output)
        return
    for queue in queues:
        say(in_force(queue))


#: What is in force over everything once it was paused, drained or resumed.
PAUSED: Final = ("paused: nothing is dispatched", "none starts; those that run go on")
DRAINED: Final = ("draining: nothing new is taken", "no new one is taken; those that wait start, those that run go on")
RESUMED: Final = ("no pause or drain", "new ones are taken and started")


def print_everything(client: "Client", set_now: tuple[str, str], output: Output) -> None:
    """Print ``set_now``, a line for the platform and one for trainings, then what is set of each function."""
    if output is Output.TABLE:
        platform, trainings = set_now
        say(f"platform: {platform}")
        say(f"trainings: {trainings}")
    print_in_force(client, None, output)


@app.command("pause")
def pause(
    function: Annotated[str | None, typer.Argument(metavar="FUNCTION", autocompletion=functions)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every function of every project.")] = False,
    yes: YesOption = False,
    anyway: AnywayOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop dispatching; requests go on being accepted and their deadlines run."""
    from smore_client import admin

    _one_or_all(function, everything)
    if everything:
        confirm("Stop dispatching everything, in all projects?", yes)
    with connected() as client:
        if function is None:
            client.carry(admin.pause_all(anyway=anyway))
            print_everything(client, PAUSED, output)
        else:
            client.pause(function)
            print_in_force(client, function, output)


@app.command("resume")
def resume(
    function: Annotated[str | None, typer.Argument(metavar="FUNCTION", autocompletion=functions)] = None,
    everything: Annotated[bool, typer.Option("--all", help="End the pause and the drain of everything.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Dispatch requests again, and take new ones."""
    from smore_client import admin

    _one_or_all(function, everything)
    with connected() as client:
        if function is None:
            client.carry(admin.resume(None))
            print_everything(client, RESUMED, output)
        else:
            client.resume(function)
            print_in_force(client, function, output)


def _one_or_all(function: str | None, everything: bool) -> None:
    if (function is None) != everything:
        raise typer.BadParameter("either a FUNCTION or --all is expected")


@app.command("purge")
def purge(
    function: FunctionName,
    project: ProjectOption = None,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel all that waits for a function; what runs goes on."""
    from smore_client import admin

    confirm(f"Cancel everything that waits for {function}?", yes)
    with connected() as client:
        cancelled = client.carry(admin.purge(function, project=project))
        if output is not Output.TABLE:
            show_value({"cancelled": cancelled}, output)
            return
        write(f"{cancelled} cancelled")
        print_in_force(client, function, output, project)
