"""A policy as people spell it: its name, and knobs that differ from its setting."""

from typing import Any

from scheduler.policy.setting import UnknownPolicy


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """
    (name of a setting, knobs that differ) of ``name:knob=value:knob=value``, a value being a number, true, false or a
    word. The name may be that of a class, ``module:Class``. Raises UnknownPolicy where a knob has no value.
    """
    name, *changed = text.split(":")
    if changed and changed[0].isidentifier():
        name = f"{name}:{changed.pop(0)}"
    return name, dict(map(_knob, changed))


def _knob(text: str) -> tuple[str, Any]:
    knob, sign, value = text.partition("=")
    if not sign:
        raise UnknownPolicy(f"{text!r} is not of the form knob=value")
    if value in ("true", "false"):
        return knob, value == "true"
    for kind in (int, float):
        try:
            return knob, kind(value)
        except ValueError:
            continue
    return knob, value
