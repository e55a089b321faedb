"""The policies that a run may name: each made anew for a run from its seed, and what it is told in a world."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from scheduler.policy.engine import Engine
from scheduler.policy.knobs import preset
from scheduler.policy.policy import Policy
from scheduler.policy.setting import parse
from scheduler.simulation.predictor import Belief
from scheduler.simulation.world import World

Factory = Callable[[int], Policy]

#: Settings that are named after the paper: what they are told is predicted by its random forest.
OF_THE_PAPER: Final = frozenset({"smore", "smore-strict10", "smore-no-fast", "elasticflow"})


def factory(name: str) -> Factory:
    """
    Of a named setting, or of a placement rule of one's own (``./mine.py:Mine``, ``module:Mine``), with knobs that differ
    after colons: ``edf-util:sm_cap=0.9``, a number, true, false or a word.

    Raises UnknownPolicy, which names the settings or knobs that there are.
    """
    setting, knobs = parse(name)
    preset(setting, **knobs)
    return lambda seed: Engine(preset(setting, **({"seed": seed} | knobs)))


def belief(name: str, own: Mapping[str, object], changed: Mapping[str, object]) -> Belief:
    """
    What a policy is told: ``own`` of a preset, with the paper's recipe where the policy is named after the paper, and
    ``changed`` over both. Raises BadWorld, which names the field.
    """
    setting, _ = parse(name)
    return Belief.of(dict(own) | ({"recipe": "paper"} if setting in OF_THE_PAPER else {}) | dict(changed))


def asked(world: World, name: str) -> World:
    """The world with the policy's budget for each training that names none."""
    setting, knobs = parse(name)
    budget = preset(setting, **knobs).tau_training
    gpus = tuple(gpu if gpu.budget is not None else replace(gpu, budget=budget) for gpu in world.gpus)
    return replace(world, gpus=gpus)
