"""``smore settings``: what the platform's settings are, and where each comes from."""

import os
from dataclasses import dataclass
from typing import Annotated

import typer

from smore.cli import names
from smore.cli.terminal import (
    Column,
    Output,
    OutputOption,
    configuration,
    fail,
    searched,
    show,
    warn_of_unknown_settings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A setting as it is shown; passwords are hidden."""

    name: str
    value: str
    source: str
    meaning: str


def settings(
    name: Annotated[
        str | None,
        typer.Argument(autocompletion=names.settings, help="A name, or a part of names: queue, SMORE_API__PORT."),
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Those alone that are not the default.")] = False,
    running: Annotated[
        bool, typer.Option("--running", help="Those that this machine's platform was started with.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """
    Settings with their values, sources and meanings: as this shell's environment sets them, or as the running platform
    has them.
    """
    from smore.domain.spelling import did_you_mean
    from smore.local import started_settings
    from smore.process.environment import Described, described, shown, value_of

    config = configuration()
    there = started_settings.running_settings(config.home) if running else None
    if running and there is None:
        fail(searched())
    if there is not None:
        there = {"SMORE_HOME": str(config.home), **there}

    def row(one: Described) -> Shown:
        if there is None:
            value = shown(value_of(config, one))
            source = "environment" if one.variable in os.environ else "default"
        else:
            value = there.get(one.variable, "-")
            default = shown(one.field.get_default(call_default_factory=True))
            source = "default" if value == default else "set at its start"
        return Shown(name=one.variable, value=value, source=source, meaning=one.meaning)

    every = [row(one) for one in described() if there is None or one.variable in there]
    chosen = [one for one in every if name is None or name.upper() in one.name]
    if not chosen:
        fail(f"no setting has {name} in its name{did_you_mean(name or '', [one.name for one in every])}")
    columns: list[Column[Shown]] = [
        ("name", lambda one: one.name),
        ("value", lambda one: one.value),
        ("source", lambda one: one.source),
        ("meaning", lambda one: one.meaning),
    ]
    show([one for one in chosen if not changed or one.source != "default"], columns, output)
    warn_of_unknown_settings()
