"""The policies that a run may name: each made anew for a run from its seed."""

from collections.abc import Callable

from scheduler.policy.core import Engine, Policy
from scheduler.policy.knobs import preset

Factory = Callable[[int], Policy]


def factory(name: str) -> Factory:
    """Of a named setting. Raises UnknownPolicy, which names those that there are."""
    preset(name)
    return lambda seed: Engine(preset(name, seed=seed))
