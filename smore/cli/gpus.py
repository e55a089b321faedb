"""``smore gpus``: GPU instances."""

from typing import TYPE_CHECKING

import typer

from smore.cli.terminal import Column, Output, OutputOption, connected, percent, show

if TYPE_CHECKING:
    from smore_client.types import Gpu

app = typer.Typer(help="GPU instances; alone: list them.", invoke_without_command=True)


def _list(output: Output) -> None:
    with connected() as client:
        gpus = client.gpus()
    columns: list[Column[Gpu]] = [
        ("gpu", lambda g: g.id),
        ("kind", lambda g: g.kind),
        ("device", lambda g: g.device),
        ("sharing", lambda g: g.sharing_mode),
        ("used", lambda g: percent(g.utilisation)),
        ("by functions", lambda g: percent(g.function_utilisation)),
        ("memory MiB", lambda g: f"{g.memory_used_mib:.0f}/{g.memory_total_mib:.0f}"),
        ("running", lambda g: f"{g.running}/{g.slots}"),
        ("warm", lambda g: [f"{w.function}:{w.state}" for w in g.warm]),
        ("paused", lambda g: g.paused),
        ("draining", lambda g: "drained" if g.drained else g.draining),
        ("health", lambda g: g.health or "ok"),
        ("strangers", lambda g: [f"{s.pid}:{'allowed' if s.allowed else 'protected'}" for s in g.strangers or ()]),
    ]
    show(gpus, columns, output)


@app.callback()
def without_command(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _list(output)


@app.command("ls")
def ls(output: OutputOption = Output.TABLE) -> None:
    """List GPU instances."""
    _list(output)


@app.command("pause")
def pause(gpu: str) -> None:
    """Place nothing new on a GPU instance."""
    with connected() as client:
        client.pause_gpu(gpu)


@app.command("resume")
def resume(gpu: str) -> None:
    """Place invocations on a GPU instance again."""
    with connected() as client:
        client.resume_gpu(gpu)


@app.command("allow")
def allow(gpu: str, pid: int) -> None:
    """Let functions run beside a process that nobody registered, until it ends."""
    from smore_client import admin

    with connected() as client:
        client.carry(admin.allow(gpu, pid, True))


@app.command("protect")
def protect(gpu: str, pid: int) -> None:
    """Keep functions away from such a process again."""
    from smore_client import admin

    with connected() as client:
        client.carry(admin.allow(gpu, pid, False))
