"""An engine with a prewarmer under test, whose rules are scripts, and what it is given."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scheduler.policy.decisions import Decision, Offload, Prewarm
from scheduler.policy.demand import Demand
from scheduler.policy.events import (
    Event,
    ForecastsUpdated,
    GpuReported,
    TrafficMoved,
)
from scheduler.policy.forecast import Forecast
from scheduler.policy.knobs import preset
from scheduler.policy.prewarm.prewarmer import Prewarmer, PrewarmKnobs
from scheduler.policy.prewarm.window import PrewarmRule, WarmWindow
from smore.domain.function import Prewarming
from tests.support.driven import DrivenEngine
from tests.support.policy_events import gpu

#: The beginning of a minute.
T = 60_000.0


class Script:
    """A rule that answers what a test has said, else holds what is there, and remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []
        self.on_minute: Sequence[WarmWindow] | None = None
        self.on_idle: Sequence[WarmWindow] | None = None

    def arrived(self, at: float) -> Sequence[WarmWindow] | None:
        self.heard.append(("arrived", at))
        return None

    def idle(self, at: float, instances: int, busy: int = 0) -> Sequence[WarmWindow] | None:
        self.heard.append(("idle", at, instances, busy))
        return (
            self.on_idle
            if self.on_idle is not None
            else [WarmWindow(from_at=at, until_at=math.inf, instances=instances + busy)]
        )

    def minute(self, at: float, count: int | None, forecast: Forecast | None) -> Sequence[WarmWindow] | None:
        self.heard.append(("minute", at, count, None if forecast is None else forecast.source))
        return self.on_minute

    def minutes(self) -> list[tuple[object, ...]]:
        return [line[1:] for line in self.heard if line[0] == "minute"]


class Stage:
    """
    An engine with a keeper; every function has a scripted rule. Loads take 1 s (test_policy_engine.function) and the
    lead is 1 s.
    """

    def __init__(self, *, foresees: bool = False, **knobs: object) -> None:
        self.rules: dict[str, Script] = {}
        modes = frozenset((Prewarming.AUTO, Prewarming.PAPER)) if foresees else frozenset[Prewarming]()
        self.prewarmer = Prewarmer(PrewarmKnobs(rules=self._rule, foresees=modes, **knobs))  # type: ignore[arg-type]
        self.engine = DrivenEngine(preset("smore-product"), prewarmer=self.prewarmer)

    def _rule(self, mode: Prewarming, demand: Demand) -> PrewarmRule:
        return self.rules.setdefault(demand.function, Script())

    def at(self, now: float, *events: Event) -> list[Decision]:
        return self.engine.decide(now, list(events))

    def hold(self, now: float, *holds: WarmWindow, number: int = 0) -> list[Decision]:
        """The rule of a function answers this from ``now`` on, by the end of a batch."""
        rule = self.rules[f"p/f{number}"]
        rule.on_idle = holds
        self.prewarmer.idle(now, self.engine.cluster.demands[number], 1, 0)
        return self.at(now)


def standing(stage: Stage, number: int = 0) -> object:
    return next(one for one in stage.prewarmer.reports.statuses() if one.function == f"p/f{number}")


def served(number: int = 0) -> TrafficMoved:
    return TrafficMoved(function=f"p/f{number}", revision=1)


def report(name: str, at: float, warm: int = 0, *, training: int | None = None, **fields: Any) -> GpuReported:
    """10,000 MiB, ``warm`` idle instances of f0 with 100 MiB each."""
    known_: dict[str, object] = {
        "at": at,
        "memory_used": 100.0 * warm,
        "memory_idle": 100.0 * warm,
        "idle": [("p/f0", 1, 100.0, 5.0)] * warm,
        "warm": [("p/f0", 1, warm)] if warm else [],
    }
    return replace(gpu(name, training), **(known_ | fields))  # type: ignore[arg-type]


def forecasts(
    made_at: float, value: float = 1.0, functions: Sequence[str] = ("p/f0",), source: str = "naive"
) -> ForecastsUpdated:
    made = {
        name: Forecast(from_at=made_at, mean=np.full(5, value), any=np.full(5, min(value, 1.0)), source=source)
        for name in functions
    }
    return ForecastsUpdated(made_at=made_at, forecasts=made)


def kinds(decisions: Sequence[Decision]) -> list[tuple[str, str, int]]:
    found = []
    for one in decisions:
        if isinstance(one, Prewarm):
            found.append(("prewarm", one.gpu, one.instances))
        elif isinstance(one, Offload):
            found.append(("offload", one.gpu, one.keep))
    return found
