"""
Tunes prices of a cold start on the training part of a trace, so that cold starts are no more than those of LSTH or of
the default keep-alive.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ml.forecast.choice import Ahead, choose
from ml.forecast.forecaster import Renewal, Seasonal
from research.prewarm.rules import cut
from research.prewarm.scores import Replays, cold_rate
from research.prewarm.workloads import Bools, Floats, Ints
from scheduler.policy.prewarm.kernel import (
    COLDS,
    REQUESTS,
)
from scheduler.simulation.backtest import Backtest, priced
from scheduler.simulation.instances import Setup, Workload

#: Tolerance: R_cs at most this much above LSTH's.
TOLERANCE: Final = 0.005
#: Candidate prices of a function, GB-seconds, half an octave apart.
PRICES: Final = tuple(2.0 ** (step / 2) for step in range(27))
#: Virtual requests that are added to each function when its cold starts are compared with LSTH's, as a share of all
#: requests: a function with few requests hardly changes the pooled rate, and its own rate is uncertain.
PRIOR_SHARE: Final = 0.03
#: Number of folds of functions, and of random partitions into folds.
FOLDS: Final = 5

#: Settings of the live platform: the keep-alive of a function without one of its own (smore/domain/function.py), and
#: its forecasters (ml/forecast/foresight.py).
KEEP_ALIVE_S: Final = 600.0
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
    sources = choose(ahead, training.work.counts.astype(float), judge).sources
    names = list(ahead)
    places = np.array([names.index(source) if source in ahead else -1 for source in sources], np.int64)
    others = tuple(priced(name, work, price_gb_s, ahead[name]) for name in names)
    return replace(priced("ours", work, price_gb_s, None), choice=places, others=others), sources


def smallest(holds: Callable[[float], bool]) -> float:
    """The smallest price, to an eighth of an octave, at which ``holds`` becomes true."""
    low, high = 0, 8 * 13
    while low < high:
        middle = (low + high) // 2
        if holds(2.0 ** (middle / 8)):
            high = middle
        else:
            low = middle + 1
    return float(2.0 ** (low / 8))


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
    fold = np.random.default_rng(deal).permutation(len(theirs)) % FOLDS
    steps = np.zeros(len(theirs), np.int64)
    for held in range(FOLDS):
        steps[fold == held] = own_prices(ladder, theirs, base_price(ladder, theirs, parts, fold != held))[fold == held]
    return steps


def mixed(name: str, steps: Ints, setup_at: Callable[[float], Setup]) -> Setup:
    """One setup that gives each function its own price."""
    used, position = np.unique(steps, return_inverse=True)
    others = tuple(setup_at(PRICES[int(step)]) for step in used)
    return replace(others[0], name=name, choice=position.astype(np.int64), others=others)


def product_price(
    work: Workload, training: TrainingPart, ahead: Mapping[str, Ahead], say: Callable[[str], None]
) -> float:
    """
    The smallest price at which the live platform, with its forecasters, has no more cold starts than its default
    keep-alive.
    """
    say(f"{work.name}, {work.load_s:g} s: the product's price")
    theirs = training.tally(Setup(name="keep-alive", keep_s=KEEP_ALIVE_S))[:, COLDS].sum()
    forecasts_of_product = {name: ahead[name] for name in PRODUCT}
    return smallest(
        lambda price: bool(
            training.tally(chosen(work, training, price, forecasts_of_product)[0])[:, COLDS].sum() <= theirs
        )
    )
