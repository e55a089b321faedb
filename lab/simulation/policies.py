"""The policies that a run may name: each made anew for a run from its seed, and what it is told in a world."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lab.simulation.predictor import Belief
from lab.simulation.spelt import parse
from lab.simulation.world import World
from scheduler.policy.engine import Engine
from scheduler.policy.events import Event, GpuReported
from scheduler.policy.knobs import PRESETS, preset
from scheduler.policy.policy import Policy, Round
from scheduler.policy.setting import UnknownPolicy

Factory = Callable[[int], Policy]

#: Settings that are named after the paper: what they are told is predicted by its random forest.
OF_THE_PAPER: Final = frozenset({"smore", "smore-strict10", "smore-no-fast", "elasticflow"})


def factory(name: str) -> Factory:
    """
    Of a named setting, or of a placement rule of one's own (``./mine.py:Mine``, ``module:Mine``), with knobs that differ
    after colons: ``edf-util:sm_cap=0.9``, a number, true, false or a word. It is told all that the live leader is.

    Raises UnknownPolicy, which names the settings or knobs that there are.
    """
    return _factory(*parse(name))


def compared(name: str) -> Factory:
    """
    Of a policy as it stands in a comparison: like :func:`factory`, but those that :func:`chosen` gives no closed loop
    are not told what trainings were measured to lose.
    """
    setting, knobs, closed_loop = chosen(name)
    make = _factory(setting, knobs)
    return make if closed_loop else lambda seed: _OpenLoop(make(seed))


def chosen(name: str) -> tuple[str, dict[str, Any], bool]:
    """
    (setting, knobs, whether measured losses are told) of a policy's name in a comparison. The paper has no closed loop,
    so named settings have none but the product's and those of Random within its budget; ``closed_loop=true`` or ``false``
    among the knobs says otherwise.
    """
    setting, knobs = parse(name)
    own = setting not in PRESETS or setting.startswith(("smore-product", "random-budget"))
    closed_loop = knobs.pop("closed_loop", own)
    if not isinstance(closed_loop, bool):
        raise UnknownPolicy(f"closed_loop: {closed_loop!r} is neither true nor false")
    return setting, knobs, closed_loop


def belief(name: str, own: Mapping[str, object], changed: Mapping[str, object]) -> Belief:
    """
    What a policy is told: ``own`` of a preset, with the paper's recipe where the policy is named after the paper, and
    ``changed`` over both. Raises BadWorld, which names the field.
    """
    setting, _ = parse(name)
    return Belief.of(dict(own) | ({"recipe": "paper"} if setting in OF_THE_PAPER else {}) | dict(changed))


def asked(world: World, name: str) -> World:
    """The world with the policy's budget for each training that names none."""
    setting, knobs, _ = chosen(name)
    budget = preset(setting, **knobs).tau_training
    gpus = tuple(gpu if gpu.budget is not None else replace(gpu, budget=budget) for gpu in world.gpus)
    return replace(world, gpus=gpus)


def _factory(setting: str, knobs: dict[str, Any]) -> Factory:
    preset(setting, **knobs)
    return lambda seed: Engine(preset(setting, **({"seed": seed} | knobs)))


class _OpenLoop:
    """A policy that is told the budgets of trainings, and not what these were measured to lose."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def decide(self, now: float, events: Sequence[Event]) -> Round:
        return self._policy.decide(
            now, [_without_losses(event) if isinstance(event, GpuReported) else event for event in events]
        )


def _without_losses(report: GpuReported) -> GpuReported:
    return replace(report, losses=[replace(job, recent=None, closed=None, windows=()) for job in report.losses])
