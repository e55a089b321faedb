"""``smore drain``, ``boost`` and ``pin``: what an administrator sets over the policy for a while."""

from typing import Annotated

import typer

from smore.cli.gpus import WaitOption, drain_gpu, print_gpu, wait_s
from smore.cli.names import functions, gpus
from smore.cli.queues import DRAINED, RESUMED, print_everything, print_in_force
from smore.cli.terminal import (
    AnywayOption,
    EndOption,
    ForOption,
    FunctionName,
    Output,
    OutputOption,
    ProjectOption,
    YesOption,
    confirm,
    connected,
    span_s,
    write,
)


def drain(
    function: Annotated[
        str | None,
        typer.Argument(
            metavar="FUNCTION", autocompletion=functions, help="Take nothing new for it; what waits is served."
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(autocompletion=gpus, help="Place nothing more on this GPU instance, and unload what idles there."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Take nothing new at all.")] = False,
    end: EndOption = False,
    wait: WaitOption = None,
    project: ProjectOption = None,
    yes: YesOption = False,
    anyway: AnywayOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a function, a GPU instance or the whole platform run empty."""
    from smore_client import admin

    if (function is not None) + (gpu is not None) + everything != 1:
        raise typer.BadParameter("one of FUNCTION, --gpu and --all is expected")
    if wait is not None and (gpu is None or end):
        raise typer.BadParameter("--wait is for --gpu without --end")
    if everything and not end:
        confirm("Take nothing new any more, in all projects?", yes)
    with connected() as client:
        if gpu is not None and not end:
            drain_gpu(client, gpu, yes, wait_s(wait), output, anyway)
        elif gpu is not None:
            client.resume_gpu(gpu)
            print_gpu(client, gpu, output)
        else:
            client.carry((admin.resume if end else admin.drain)(function, project=project))
            if everything:
                print_everything(client, RESUMED if end else DRAINED, output)
            else:
                print_in_force(client, function, output, project)


def boost(
    function: FunctionName,
    factor: Annotated[float | None, typer.Argument(help="Times its priority.")] = None,
    for_: ForOption = None,
    end: EndOption = False,
    project: ProjectOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put a function before or behind others for a while: smore boost echo 4 --for 30m."""
    from smore_client import admin

    if (factor is None) != end:
        raise typer.BadParameter("either a FACTOR or --end is expected")
    for_s = span_s(for_) if for_ is not None else None
    with connected() as client:
        client.carry(admin.boost(function, factor, for_s=for_s, project=project))
        print_in_force(client, function, output, project)


def pin(
    function: FunctionName,
    gpu: Annotated[
        list[str] | None, typer.Argument(autocompletion=gpus, help="The only GPU instances it may go to.")
    ] = None,
    for_: ForOption = None,
    end: EndOption = False,
    project: ProjectOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Keep a function to some GPU instances, those that are away now too: while all of them are, it waits."""
    from smore_client import admin

    if bool(gpu) == end:
        raise typer.BadParameter("either GPU instances or --end is expected")
    for_s = span_s(for_) if for_ is not None else None
    with connected() as client:
        client.carry(admin.pin(function, gpu or [], for_s=for_s, project=project))
        print_in_force(client, function, output, project)
        away = set(gpu or []) - {gpu_instance.id for gpu_instance in client.gpus()} if gpu else set()
    if away:
        write(f"smore: away now: {', '.join(sorted(away))}", error=True)
