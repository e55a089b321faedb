"""``smore prewarm``: which functions are kept ready, and what that cost and saved."""

from typing import Annotated, Any, Final

import typer

from smore.cli import launch
from smore.cli.terminal import Column, Output, OutputOption, connected, say, show, show_value, span_s

app = typer.Typer(
    help="How functions are kept ready; alone: as it is now, and what it came to.", invoke_without_command=True
)


#: Columns that a narrow screen does without, the first of them first.
OPTIONAL: Final = ("failed", "wasted", "late", "hit", "because", "mode")

Since = Annotated[str, typer.Option(help="How far back is counted: 90s, 30m, 24h.")]


def _show_status(since: str, output: Output) -> None:
    with connected() as client:
        status = client.prewarm(span_s(since))
    if output is not Output.TABLE:
        show_value(status, output)
        return
    counts = status.counts
    say(
        (f"rule {status.rule}" if status.on else "switched off")
        + (f", forecasts {status.forecasts or 'none'}" if status.leading else ", no leader")
        + f"; in {since}: {counts.cold} of {counts.invocations} cold, {counts.saved} saved, {counts.idle_gb_s:.1f} GB s"
        " idle" + (f", {counts.host_loads} loads out of host memory" if counts.host_loads else "")
    )
    columns: list[Column[Any]] = [
        ("function", lambda f: f.function),
        ("mode", lambda f: f.mode),
        ("follows", lambda f: f.source + (f" ({f.silence})" if f.silence else "")),
        (
            "ready",
            lambda f: (
                f"{f.loaded} of {f.wanted}"
                + (" (no room)" if f.unmet else "")
                + (f", {f.parked} parked" if f.parked else "")
            ),
        ),
        ("hit", lambda f: f.counts.hits),
        ("late", lambda f: f.counts.late),
        ("wasted", lambda f: f.counts.wasted),
        ("failed", lambda f: f.counts.failed),
        ("saved", lambda f: f.counts.saved),
        ("cold", lambda f: f"{f.counts.cold} of {f.counts.invocations}"),
        (
            "because",
            lambda f: ", ".join(
                f"{reason} {count}" for reason, count in sorted(f.counts.unforeseen.items(), key=lambda i: -i[1])
            ),
        ),
        ("GB s idle", lambda f: f"{f.counts.idle_gb_s:.1f}"),
    ]
    show(status.functions, columns, output, optional=OPTIONAL)


@app.callback()
def without_command(context: typer.Context, since: Since = "24h", output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _show_status(since, output)


@app.command("report", context_settings=launch.PASSED_ON)
def report(context: typer.Context) -> None:
    """
    A page: what keeping ready came to, and what other rules would have made of it: smore prewarm report --since 24h
    --out page.
    """
    launch.start("prewarm", *context.args)
