"""The policies that a run may name: each made anew for a run from its seed."""

from collections.abc import Callable

from scheduler.policy.engine import Engine
from scheduler.policy.knobs import preset
from scheduler.policy.policy import Policy
from scheduler.policy.setting import parse

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
