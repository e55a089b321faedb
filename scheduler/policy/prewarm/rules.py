"""The rules by name."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from scheduler.policy.forecast import Forecast
from scheduler.policy.prewarm import kernel
from scheduler.policy.prewarm.fixed import Always, KeepAlive, Never, Oracle
from scheduler.policy.prewarm.histogram import hhp, lsth
from scheduler.policy.prewarm.ls_lstm import PaperRule
from scheduler.policy.prewarm.priced import Priced
from scheduler.policy.prewarm.window import PrewarmRule

#: ``ls-lstm`` is the rule of the paper: the caller chooses the forecaster behind it. ``ls-lstm-quantile`` prepares for
#: a quantile of the forecast instead of its mean, so that a minute that was predicted a little too low is not cold.
RULES: Final[Mapping[str, Callable[..., PrewarmRule]]] = {
    "never": Never,
    "always": Always,
    "keep-alive": KeepAlive,
    "oracle": Oracle,
    "hhp": hhp,
    "lsth": lsth,
    "ls-lstm": PaperRule,
    "ls-lstm-quantile": partial(PaperRule, quantile=0.95),
    "priced": Priced,
}


def rule(name: str, **knobs: Any) -> PrewarmRule:
    """
    A new rule for one function. ValueError for a name or knob that does not exist, or for a value that makes no sense.
    """
    make = RULES.get(name)
    if make is None:
        raise ValueError(f"{name!r} is no prewarming rule: {', '.join(RULES)} are")
    try:
        return make(**knobs)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def prepare() -> None:
    """Compile what rules and their replay run, or take it from the cache."""
    none, tally = np.zeros(1, np.int64), np.zeros(kernel.FIELDS)
    rows = np.zeros((8, kernel.COLUMNS))
    used = kernel.replay(
        np.zeros(1),
        1.0,
        1.0,
        none,
        none,
        none,
        True,
        kernel.KEEP,
        0.0,
        1.0,
        np.zeros(11),
        *kernel.no_idle_times(1, 1),
        *kernel.no_gaps(1.0, 1.0, 1.0, 0.3),
        rows,
        tally,
        0.0,
    )
    kernel.reduce(rows, used, tally, 0.0, 60.0)
    kernel.wanted(np.ones((1, 1)), np.ones((1, 1)), np.ones(1), 1.0, np.ones(1))
    forecast = Forecast(from_at=0.0, mean=np.ones(1), any=np.ones(1))
    for made in (rule("lsth"), rule("priced", price_gb_s=1.0, load_s=1.0, run_s=1.0)):
        made.minute(0.0, None, forecast)
        made.arrived(1.0)
        made.idle(2.0, 1)
        made.arrived(3.0)
        made.idle(4.0, 1)
