"""``smore settings``: what the platform's settings are, and where each comes from."""

import os
from dataclasses import dataclass
from typing import Annotated

import typer

from smore.cli.terminal import Column, Output, OutputOption, configuration, fail, show, warn_of_unknown_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A setting as it is shown; passwords are hidden."""

    name: str
    value: str
    source: str
    meaning: str


def settings(
    name: Annotated[str | None, typer.Argument(help="A name, or a part of names: queue, SMORE_API__PORT.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Those alone that the environment sets.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Settings with their values, sources and meanings, as this shell's environment sets them."""
    from smore.domain.spelling import did_you_mean
    from smore.process.environment import described, shown, value_of

    config = configuration()
    every = [
        Shown(
            name=one.variable,
            value=shown(value_of(config, one)),
            source="environment" if one.variable in os.environ else "default",
            meaning=one.meaning,
        )
        for one in described()
    ]
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
