"""The policies that a run may name: each made anew for a run from its seed."""

from collections.abc import Callable
from typing import Any

from scheduler.policy.engine import Engine
from scheduler.policy.knobs import PRESETS, UnknownPolicy, preset
from scheduler.policy.policy import Policy

Factory = Callable[[int], Policy]


def factory(name: str) -> Factory:
    """
    Of a named setting, or of a placement rule of one's own (``./mine.py:Mine``, ``module:Mine``), with knobs that differ
    after colons: ``edf-util:sm_cap=0.9``, a number, true, false or a word.

    Raises UnknownPolicy, which names the settings or knobs that there are.
    """
    setting, knobs = parse(name)
    preset(setting, **knobs)
    return lambda seed: Engine(preset(setting, **({"seed": seed} | knobs)))


def parse(name: str) -> tuple[str, dict[str, Any]]:
    """(setting, knobs that differ). Raises UnknownPolicy where a knob has no value."""
    setting, *changed = name.split(":")
    if changed and setting not in PRESETS and "=" not in changed[0]:
        setting = f"{setting}:{changed.pop(0)}"
    return setting, dict(map(_knob, changed))


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
