"""
``smore …``: the platform from a shell. Each noun has its own module; this one assembles them.

What a command needs beyond typer is imported inside it: ``smore --help`` loads neither the HTTP client nor the
settings.
"""

import sys
from collections.abc import Callable
from typing import Annotated, Final

import typer

from smore.cli import (
    audit,
    dashboard,
    data,
    deploy,
    functions,
    gpus,
    init,
    invocations,
    jobs,
    keys,
    launch,
    logs,
    machine,
    metrics,
    overrides,
    policies,
    predictor,
    prewarm,
    projects,
    queues,
    run,
    secrets,
    series,
    settings,
    slo,
    terminal,
    top,
    traces,
)

HELP: Final = """
Deep-learning functions in the idle part of GPUs that are busy training.

The platform of this machine is spoken to, or the one at SMORE_URL with the key in SMORE_API_KEY.

`smore --install-completion` lets bash, zsh, fish or PowerShell complete commands, functions, GPU instances, trainings and other names.

Exit codes: 0 done; 1 the request was refused or failed; 2 wrong usage; 3 the platform cannot be reached.
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show all that the platform said of an error.")
    ] = False,
) -> None:
    terminal.verbose.set(verbose)


# The order is that of `smore --help`.
command: Callable[..., None]
for command in (
    init.init,
    run.run,
    deploy.deploy,
    invocations.invoke,
    invocations.status,
    invocations.result,
    invocations.cancel,
    invocations.explain,
    invocations.ps,
):
    app.command()(command)
for command in (policies.compare, policies.replay):
    app.command(context_settings=launch.PASSED_ON)(command)
app.command("open")(dashboard.open_dashboard)
app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(predictor.profile)
for command in (
    machine.up,
    machine.down,
    machine.backup,
    machine.health,
    machine.version,
    dashboard.whoami,
    logs.logs,
    overrides.drain,
    overrides.boost,
    overrides.pin,
    queues.purge,
    audit.audit,
    series.harvest,
    series.usage,
    top.top,
    machine.doctor,
    settings.settings,
):
    app.command()(command)
for name, group in {
    "prewarm": prewarm.app,
    "traces": traces.app,
    "data": data.app,
    "profiles": predictor.profiles,
    "predictor": predictor.app,
    "functions": functions.app,
    "gpus": gpus.app,
    "metrics": metrics.app,
    "jobs": jobs.app,
    "queues": queues.app,
    "keys": keys.app,
    "secrets": secrets.app,
    "slo": slo.app,
    "projects": projects.app,
}.items():
    app.add_typer(group, name=name)


def main() -> None:
    """The entry point of ``smore``."""
    try:
        app(prog_name="smore")
    except TimeoutError as error:
        sys.exit(f"smore: {error}")


if __name__ == "__main__":
    main()
