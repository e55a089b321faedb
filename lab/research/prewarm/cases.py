"""Evaluates every prewarming rule on one real trace: tunes on its first part, scores on the rest."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from lab.research.prewarm.prices import (
    PRICES,
    PRODUCT,
    TrainingPart,
    base_price,
    chosen,
    crossfit_default,
    crossfit_prices,
    default_price,
    mixed,
    own_prices,
)
from lab.research.prewarm.rules import counted, histogram, lsth_grid
from lab.research.prewarm.scores import Rates, Replays, Scored, rates, scored
from lab.research.prewarm.workloads import TRAIN, Bools, Floats, blend, classes, forecasts, oracle_forecasts, workload
from ml.forecast.choice import Ahead
from scheduler.backtest.cost import cost, priced
from scheduler.backtest.instances import Setup, Workload
from scheduler.policy.prewarm.kernel import (
    ORACLE,
)
from smore.process.settings import PrewarmSettings

SEEDS: Final = (0, 1, 2, 3, 4)
LOADS_S: Final = (1.5, 5.0)

#: Prices of a cold start, GB-seconds of held memory, at which ``gap_closed`` is computed.
RATIOS: Final = (30.0, 300.0, 3000.0)

DEALS: Final = 5
#: Quantiles of the forecast at which the paper's rule is evaluated (``ls-lstm-quantile``).
QUANTILES: Final = (0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """``functions``: number of functions of each file, evenly spread (None = all). ``neural``: with the LSTMs."""

    name: str
    files: tuple[str, ...]
    functions: int | None
    seeds: tuple[int, ...]
    loads_s: tuple[float, ...]
    neural: bool


PRESETS: Final = {
    preset.name: preset
    for preset in (
        Preset(name="small", files=("8h",), functions=60, seeds=(0,), loads_s=(1.5,), neural=False),
        Preset(name="check", files=("8h",), functions=None, seeds=(0,), loads_s=(1.5,), neural=False),
        Preset(name="check-1d", files=("1d",), functions=None, seeds=(0,), loads_s=(1.5,), neural=False),
        Preset(name="full", files=("8h", "1d"), functions=None, seeds=SEEDS, loads_s=LOADS_S, neural=True),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceEvaluation:
    """
    The evaluation of one trace with one load time. ``scores``: by rule. ``curves``: the rules of each family.
    ``crossfit``: ours with base prices that were tuned on other functions, one for each partition into folds;
    ``crossfit_default``: the live platform's forecasters and one default price, chosen on other functions likewise.
    ``prices_gb_s`` [F].
    """

    work: Workload
    parts: dict[str, Bools]
    scores: dict[str, Scored]
    curves: dict[str, list[str]]
    ahead: dict[str, Ahead]
    crossfit: list[Scored]
    crossfit_default: list[Scored]
    base_price_gb_s: float
    prices_gb_s: Floats
    default_price_gb_s: float
    sources: list[str]
    lsth: str
    gap_closed: dict[str, float]
    from_minute: int

    @property
    def wall_s(self) -> float:
        """Seconds of the scored part."""
        return 60.0 * (int(self.work.counts.shape[1]) - self.from_minute)

    def rates(self, name: str, part: str) -> Rates:
        return rates(self.scores[name].tally, self.parts[part], self.wall_s)


def evaluate(
    preset: Preset, file: str, load_s: float, traces: Path, kept: Path | None, say: Callable[[str], None]
) -> TraceEvaluation:
    """Evaluate all rules on a trace. ``kept``: the folder of stored forecasts and replays."""
    work = workload(traces, file, load_s, preset.functions)
    length = work.counts.shape[1]
    train = int(TRAIN * length)
    replays = Replays(None if kept is None else kept / "replays")
    cut = replace(work, counts=work.counts[:, :train], drawn={})
    training = TrainingPart(work=cut, begin=int(TRAIN * train), replays=replays)
    parts = classes(work.counts[:, :train])
    ahead = forecasts(work, preset.neural, None if kept is None else kept / "forecasts", say)
    scores: dict[str, Scored] = {}
    curves: dict[str, list[str]] = {}

    def add(family: str, setup: Setup) -> Scored:
        say(f"{file}, {load_s:g} s: {setup.name}")
        scores[setup.name] = scored(replays, work, setup, preset.seeds, train, family)
        curves.setdefault(family, []).append(setup.name)
        return scores[setup.name]

    # LSTH: the published setting, and the cheapest one of the whole grid in the training part.
    grid = lsth_grid()
    costs = [float(cost(training.tally(setup), work, RATIOS[1]).sum()) for setup in grid]
    published, best = grid[0], grid[int(np.argmin(costs))]
    reference = replace(best, name="lsth tuned") if best is not published else published
    trained = training.tally(reference)

    @cache
    def at(price: float) -> tuple[Setup, list[str]]:
        return chosen(work, training, price, ahead)

    say(f"{file}, {load_s:g} s: prices")
    ladder = np.stack([training.tally(at(price)[0]) for price in PRICES])
    base = base_price(ladder, trained, parts, parts["overall"])
    steps = own_prices(ladder, trained, base)
    add("never", Setup(name="never"))
    for seconds in (10.0, 60.0, 300.0, 600.0, 1200.0, 3600.0):
        add("keep-alive", Setup(name=f"keep-alive {seconds:g} s", keep_s=seconds))
    add("always", Setup(name="always", keep_s=1e9, base=np.ones(work.counts.shape, np.int64)))
    add("oracle", Setup(name="oracle", how=ORACLE))
    for minutes in (240, 60, 20):
        add("hhp", histogram("hhp" if minutes == 240 else f"hhp {minutes} min", 1.0, range_minutes=minutes))
    add("lsth", published)
    if reference is not published:
        add("lsth", reference)
    for minutes in (60, 20):
        add("lsth", histogram(f"lsth {minutes} min", 0.5, range_minutes=minutes))
    for name in ("seasonal-naive", "intermittent", "renewal"):
        add(name, counted(name, work, ahead[name]))
    if preset.neural:
        add("lstm", counted("lstm long", work, ahead["long"]))
        add("lstm", counted("lstm short", work, ahead["short"]))
        for alpha in (0.5, 0.25, 0.75):
            add("ls-lstm", counted("ls-lstm" if alpha == 0.5 else f"ls-lstm {alpha:g}", work, blend(ahead, alpha)))
        add("shared-lstm", counted("shared-lstm", work, ahead["shared"]))
        for quantile in QUANTILES:
            add("ls-lstm-quantile", counted(f"ls-lstm-quantile {quantile:g}", work, ahead["blend"], quantile))
    true_counts = oracle_forecasts(work)
    add("counts-known", counted("ls-lstm, counts known", work, true_counts))
    add("ours", mixed("ours", steps, lambda price: at(price)[0]))
    sources = [at(PRICES[step])[1][row] for row, step in enumerate(steps.tolist())]
    add("ours", replace(at(PRICES[base])[0], name="ours, one price"))
    add("gaps", mixed("ours, gaps alone", steps, lambda price: priced("gaps", work, price, None)))
    say(f"{file}, {load_s:g} s: ours on functions that its base price was not tuned on")
    crossfit = [
        scored(
            replays,
            work,
            mixed(f"ours, deal {deal}", crossfit_prices(ladder, trained, parts, deal), lambda price: at(price)[0]),
            preset.seeds,
            train,
        )
        for deal in range(DEALS)
    ]
    say(f"{file}, {load_s:g} s: the default price")
    forecasts_of_product = {name: ahead[name] for name in PRODUCT}

    @cache
    def live(price: float) -> Setup:
        return chosen(work, training, price, forecasts_of_product)[0]

    live_ladder = np.stack([training.tally(live(price)) for price in PRICES])
    add("default", replace(live(PrewarmSettings().price_gb_s), name="default price"))
    crossfit_default_price = [
        scored(
            replays,
            work,
            mixed(f"default, deal {deal}", crossfit_default(live_ladder, trained, deal), live),
            preset.seeds,
            train,
        )
        for deal in range(DEALS)
    ]
    gap_closed = {}
    for ratio in (3.0, 10.0, *RATIOS, 100.0, 1000.0, 1e4, 1e5, 1e6):
        at_ratio = add("ours", replace(at(ratio)[0], name=f"ours at {ratio:g}"))
        if ratio in RATIOS:
            at_lsth = min(
                (name for name in curves["lsth"][: 1 + (reference is not published)]),
                key=lambda rule: _total(scores[rule], work, ratio),
            )
            theirs, floor = _total(scores[at_lsth], work, ratio), _total(scores["oracle"], work, ratio)
            gap_closed[f"{ratio:g}"] = (theirs - _total(at_ratio, work, ratio)) / max(1e-9, theirs - floor)
    return TraceEvaluation(
        work=work,
        parts=parts,
        scores=scores,
        curves=curves,
        ahead=ahead,
        crossfit=crossfit,
        crossfit_default=crossfit_default_price,
        base_price_gb_s=PRICES[base],
        prices_gb_s=np.array([PRICES[step] for step in steps.tolist()]),
        sources=sources,
        default_price_gb_s=PRICES[default_price(live_ladder, trained, parts["overall"])],
        lsth=reference.name,
        gap_closed=gap_closed,
        from_minute=train,
    )


def _total(scored_rule: Scored, work: Workload, price_gb_s: float) -> float:
    return float(cost(scored_rule.tally, work, price_gb_s).sum())
