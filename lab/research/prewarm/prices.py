"""
Tunes prices of a cold start on the training part of a trace, so that cold starts are no more than those of LSTH, or
waste no more than a share of LSTH's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lab.research.prewarm.rules import cut
from lab.research.prewarm.scores import Replays, cold_rate
from lab.research.prewarm.workloads import Bools, Floats, Ints
from ml.forecast.choice import Ahead, choose
from ml.forecast.forecaster import Renewal, Seasonal
from scheduler.backtest.cost import Backtest, priced, waste_s
from scheduler.backtest.instances import Setup, Workload
from scheduler.policy.prewarm.kernel import (
    COLDS,
    REQUESTS,
)

#: Tolerance: R_cs at most this much above LSTH's.
TOLERANCE: Final = 0.005
#: Candidate prices of a function, GB-seconds, half an octave apart.
PRICES: Final = tuple(2.0 ** (step / 2) for step in range(27))
#: Virtual requests that are added to each function when its cold starts are compared with LSTH's, as a share of all
#: requests: a function with few requests hardly changes the pooled rate, and its own rate is uncertain.
PRIOR_SHARE: Final = 0.03
#: Number of folds of functions, and of random partitions into folds.
FOLDS: Final = 5

#: Waste over LSTH's that the default price may cost.
DEFAULT_WASTE: Final = 0.8
#: Forecasters of the live platform (ml/forecast/foresight.py).
PRODUCT: Final = (Seasonal.name, Renewal.name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingPart:
    """The training part of a trace: rules learn before the minute ``begin`` and are compared from it on."""

    work: Workload
    begin: int
    replays: Replays

    def tally(self, setup: Setup, only: Bools | None = None) -> Floats:
        return self.replays.tally(self.work, cut(setup, self.work.counts.shape[1]), 0, self.begin, only)


def chosen(
    work: Workload, training: TrainingPart, price_gb_s: float, ahead: Mapping[str, Ahead]
) -> tuple[Setup, list[str]]:
    """Ours at a price, and the source of each function's forecasts, chosen as the live platform chooses it."""
    judge = Backtest(training.work, training.begin, price_gb_s, training.replays.tally)
    sources = choose(ahead, training.work.counts.astype(float), judge)
    names = list(ahead)
    places = np.array([names.index(source) if source in ahead else -1 for source in sources], np.int64)
    others = tuple(priced(name, work, price_gb_s, ahead[name]) for name in names)
    return replace(priced("ours", work, price_gb_s, None), choice=places, others=others), sources


def base_price(ladder: Floats, theirs: Floats, parts: Mapping[str, Bools], tuned_on: Bools) -> int:
    """
    The lowest step of :data:`PRICES` from which on R_cs of the functions ``tuned_on`` [F] is within the tolerance of
    LSTH's, overall and for bursty functions.

    ``ladder`` [PRICES, F, FIELDS]: the training part at each price; ``theirs`` [F, FIELDS]: LSTH's.
    """
    classes_of = [parts[name] & tuned_on for name in ("overall", "bursty") if (parts[name] & tuned_on).any()]
    first = len(PRICES) - 1
    for step in range(len(PRICES) - 1, -1, -1):
        if any(cold_rate(ladder[step], mask) > cold_rate(theirs, mask) + TOLERANCE for mask in classes_of):
            break
        first = step
    return first


def own_prices(ladder: Floats, theirs: Floats, base: int) -> Ints:
    """
    [F] steps of :data:`PRICES`: the base, or the next step at which the function's own cold starts are within their
    limit.
    """
    allowed = theirs[:, COLDS] + TOLERANCE / 2 * (theirs[:, REQUESTS] + PRIOR_SHARE * theirs[:, REQUESTS].sum())
    steps = np.full(len(theirs), len(PRICES) - 1, np.int64)
    for step in range(len(PRICES) - 1, base - 1, -1):
        steps[ladder[step, :, COLDS] <= allowed] = step
    return steps


def crossfit_prices(ladder: Floats, theirs: Floats, parts: Mapping[str, Bools], deal: int) -> Ints:
    """[F] steps of :data:`PRICES`; each function's base price is tuned on the other folds."""
    steps = np.zeros(len(theirs), np.int64)
    for held in folds(len(theirs), deal):
        steps[held] = own_prices(ladder, theirs, base_price(ladder, theirs, parts, ~held))[held]
    return steps


def folds(functions: int, deal: int) -> list[Bools]:
    """The masks [F] of a random partition of the functions."""
    fold = np.random.default_rng(deal).permutation(functions) % FOLDS
    return [fold == held for held in range(FOLDS)]


def mixed(name: str, steps: Ints, setup_at: Callable[[float], Setup]) -> Setup:
    """One setup that gives each function its own price."""
    used, position = np.unique(steps, return_inverse=True)
    others = tuple(setup_at(PRICES[int(step)]) for step in used)
    return replace(others[0], name=name, choice=position.astype(np.int64), others=others)


def default_price(ladder: Floats, theirs: Floats, tuned_on: Bools) -> int:
    """
    The highest step of :data:`PRICES` up to which the functions ``tuned_on`` [F] waste at most :data:`DEFAULT_WASTE`
    times as many instance-seconds as under LSTH.
    """
    allowed = DEFAULT_WASTE * waste_s(theirs[tuned_on]).sum()
    dearest = 0
    for step in range(len(PRICES)):
        if waste_s(ladder[step, tuned_on]).sum() > allowed:
            break
        dearest = step
    return dearest


def crossfit_default(ladder: Floats, theirs: Floats, deal: int) -> Ints:
    """[F] steps of :data:`PRICES`; the default price of each fold is chosen on the other folds."""
    steps = np.zeros(len(theirs), np.int64)
    for held in folds(len(theirs), deal):
        steps[held] = default_price(ladder, theirs, ~held)
    return steps
