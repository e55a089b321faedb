"""
Published forecasts and counts (smore/redis/forecasts.py) as the policy's events, and the rules that the settings name.
"""

import inspect
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

import numpy as np

from scheduler.policy.demand import Demand
from scheduler.policy.events import CountsKnown, ForecastsUpdated
from scheduler.policy.forecast import Forecast
from scheduler.policy.prewarm.prewarmer import PrewarmKnobs
from scheduler.policy.prewarm.rules import RULES, rule
from scheduler.policy.prewarm.status import SILENCES
from scheduler.policy.prewarm.window import PrewarmRule
from smore.domain.function import FunctionSpec, Prewarming
from smore.messages import forecasts as wire
from smore.process.settings import PrewarmSettings

#: The paper's rule, of functions with ``prewarm: paper``.
PAPER: Final = "ls-lstm"
#: Rules that have nothing to say without a forecast.
FORESEE: Final = frozenset(("ls-lstm", "ls-lstm-quantile", "priced"))
#: Why a function goes by its keep-alive although it has a rule.
SILENT: Final = tuple(reason.value for reason in SILENCES)
#: Minutes of the past that rules learn when a leader begins, all functions together: some tenths of a second.
TAUGHT: Final = 20_000


def updated(blob: wire.Forecasts) -> ForecastsUpdated:
    """The numbers are not copied."""
    shape = (len(blob.functions), blob.horizon)
    mean = np.frombuffer(blob.mean, "<f4").reshape(shape).astype(np.float64)
    any_ = np.frombuffer(blob.any, "<f4").reshape(shape).astype(np.float64)
    return ForecastsUpdated(
        made_at=blob.made_at,
        forecasts={
            function: Forecast(from_at=blob.from_at, mean=mean[index], any=any_[index], source=blob.sources[index])
            for index, function in enumerate(blob.functions)
        },
    )


def counts_known(counted: wire.Counted, most: int = TAUGHT) -> CountsKnown:
    """At most ``most`` minutes with arrivals, the newest of each function, an equal share for each."""
    share = max(1, most // max(1, len(counted.counts)))
    newest: dict[str, list[tuple[float, int]]] = {}
    for function, pairs in counted.counts.items():
        minutes = [
            (counted.from_at + 60.0 * minute, count) for minute, count in zip(pairs[::2], pairs[1::2], strict=True)
        ]
        newest[function] = minutes[-share:]
    return CountsKnown(counts=newest)


def prewarm_knobs(settings: PrewarmSettings) -> PrewarmKnobs:
    """Raises ValueError for a rule or knob that does not exist."""
    knobs: Mapping[Prewarming, tuple[str, dict[str, Any]]] = {
        Prewarming.AUTO: (settings.rule, settings.knobs),
        Prewarming.PAPER: (PAPER, {}),
    }

    def make(mode: Prewarming, demand: Demand) -> PrewarmRule:
        name, own = knobs[mode]
        return rule(name, **(_facts(name, demand, settings) | own))

    # A name or knob that does not exist fails at the start, not when the first function comes.
    spec = FunctionSpec(entrypoint="none:None")
    make(Prewarming.AUTO, Demand(function="none", revision=1, spec=spec, column=0))
    return PrewarmKnobs(
        rules=make,
        foresees=frozenset(mode for mode, (name, _) in knobs.items() if name in FORESEE),
        on=settings.on,
        share=settings.share,
        lead_s=settings.lead_s,
        stale_s=settings.stale_s,
    )


def _facts(name: str, demand: Demand, settings: PrewarmSettings) -> dict[str, Any]:
    """What is measured of a function and what a cold start is worth, as far as a rule asks for it."""
    keep_s = demand.spec.keep_alive_s if demand.spec.keep_alive_s >= 0 else inf
    facts = {
        "load_s": demand.load_s,
        "run_s": demand.run_s(1),
        "memory_gb": demand.memory_mib / 1024,
        "keep_s": keep_s,
        "seconds": keep_s,
        "price_gb_s": settings.price_gb_s,
    }
    maker: Callable[..., PrewarmRule] | None = RULES.get(name)
    parameters = inspect.signature(maker).parameters if maker is not None else {}
    return {key: value for key, value in facts.items() if key in parameters}
