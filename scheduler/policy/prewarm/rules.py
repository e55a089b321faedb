"""The rules by name."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from scheduler.policy.prewarm.counted import Counted
from scheduler.policy.prewarm.fixed import Always, KeepAlive, Never, Told
from scheduler.policy.prewarm.histogram import hhp, lsth
from scheduler.policy.prewarm.hold import WarmPolicy
from scheduler.policy.prewarm.priced import Priced

#: ``ls-lstm`` is the rule of the paper: which forecaster stands behind its numbers is the caller's affair.
RULES: Final[Mapping[str, Callable[..., WarmPolicy]]] = {
    "never": Never,
    "always": Always,
    "keep-alive": KeepAlive,
    "oracle": Told,
    "hhp": hhp,
    "lsth": lsth,
    "ls-lstm": Counted,
    "priced": Priced,
}


def rule(name: str, **knobs: Any) -> WarmPolicy:
    """A new rule for one function. ValueError for a name or knob that does not exist, or for a value that makes no sense."""
    make = RULES.get(name)
    if make is None:
        raise ValueError(f"{name!r} is no prewarming rule: {', '.join(RULES)} are")
    try:
        return make(**knobs)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error
