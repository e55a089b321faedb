"""
Evaluates prewarming rules on real traces: workloads, forecasts, rules, replays, tuning of prices, and reports.

The module is longer than 500 lines: its steps form one evaluation of a trace, in the order in which they run.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ml.forecast.azure import by_function, invocations
from ml.forecast.choice import Ahead, choose
from ml.forecast.forecaster import Forecaster, Renewal, Seasonal, brier, mase, rolling
from ml.forecast.intermittent import Intermittent
from ml.forecast.lstm import Grouped, Shared
from scheduler.policy.prewarm import kernel
from scheduler.policy.prewarm.kernel import (
    AHEADS,
    BUSY_S,
    COLD_MINUTES,
    COLDS,
    HISTOGRAM,
    IDLE_ALONE_S,
    LATES,
    ORACLE,
    REQUEST_MINUTES,
    REQUESTS,
)
from scheduler.policy.prewarm.ls_lstm import instances_for, requests_of
from scheduler.simulation import instances
from scheduler.simulation.backtest import Backtest, cost, priced, waste_s
from scheduler.simulation.instances import Setup, Workload, score
from smore.domain.errors import NotFound

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

TRAIN: Final = 0.6
SEEDS: Final = (0, 1, 2, 3, 4)
LOADS_S: Final = (1.5, 5.0)
#: Seconds of a warm run (table I) and GB of weights and activations at batch 1
#: (``scheduler/simulation/data/workloads.json``).
TABLE_I: Final = (
    ("vgg16", 0.003, 0.668),
    ("mobilenet", 0.009, 0.092),
    ("deepvit", 0.011, 0.283),
    ("resnet50", 0.013, 0.247),
    ("bert", 0.037, 0.519),
    ("roberta", 0.010, 0.578),
    ("deepfm", 0.008, 0.039),
    ("segnet", 0.050, 4.215),
)
#: Prices of a cold start, GB-seconds of held memory, at which ``gap_closed`` is computed.
RATIOS: Final = (30.0, 300.0, 3000.0)
#: Tolerance: R_cs at most this much above LSTH's.
TOLERANCE: Final = 0.005
#: Candidate prices of a function, GB-seconds, half an octave apart.
PRICES: Final = tuple(2.0 ** (step / 2) for step in range(27))
#: Virtual requests that are added to each function when its cold starts are compared with LSTH's, as a share of all
#: requests: a function with few requests hardly changes the pooled rate, and its own rate is uncertain.
PRIOR_SHARE: Final = 0.03
#: Number of folds of functions, and of random partitions into folds.
FOLDS: Final = 5
DEALS: Final = 5
#: Quantiles of the forecast at which the paper's rule is evaluated (``ls-lstm-quantile``).
QUANTILES: Final = (0.9, 0.95, 0.99)
RESAMPLES: Final = 1000
#: Settings of the live platform: the keep-alive of a function without one of its own (smore/domain/function.py), and
#: its forecasters (ml/forecast/foresight.py).
KEEP_ALIVE_S: Final = 600.0
PRODUCT: Final = (Seasonal.name, Renewal.name)
LEAST_S: Final = 0.001


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


def workload(folder: Path, file: str, load_s: float, functions: int | None = None) -> Workload:
    """The workload of the trace ``8h`` or ``1d``. Raises NotFound if a file is missing."""
    needed = ("invocations", "durations", "memory") if file == "8h" else ("one_day_rows",)
    paths = [folder / f"{name}.csv.gz" for name in needed]
    for path in paths:
        if not path.exists():
            raise NotFound(f"{path} does not exist: give the folder of the Azure trace with --traces")
    if file == "8h":
        trace = invocations(paths[0])
        seconds, megabytes = (
            by_function(paths[1], "percentile_Average_50"),
            by_function(paths[2], "AverageAllocatedMb_pct50"),
        )
        run_s = np.array([max(LEAST_S, seconds[name] / 1000.0) for name in trace.names])
        memory = np.array([megabytes[name] / 1024.0 for name in trace.names])
    else:
        trace = invocations(paths[0], "row_id")
        models = [TABLE_I[row % len(TABLE_I)] for row in range(len(trace.names))]
        run_s, memory = np.array([model[1] for model in models]), np.array([model[2] for model in models])
    total = len(trace.names)
    chosen = np.arange(total) if functions is None else np.unique(np.linspace(0, total - 1, functions).astype(int))
    return Workload(
        name=file,
        names=tuple(trace.names[row] for row in chosen),
        counts=trace.counts[chosen].astype(np.int64),
        run_s=run_s[chosen],
        memory_gb=memory[chosen],
        load_s=load_s,
    )


def classes(counts: NDArray[np.int64]) -> dict[str, Bools]:
    """The mask [F] of each class, from these minutes only."""
    active = (counts > 0).mean(axis=1)
    mean = counts.mean(axis=1)
    bursty = counts.var(axis=1) >= 5.0 * mean
    return {
        "overall": np.ones(len(counts), bool),
        "dense": active >= 0.5,
        "mid": (active < 0.5) & (active > 0.05),
        "sparse": active <= 0.05,
        "bursty": bursty & (mean > 0),
    }


# ---- forecasts -------------------------------------------------------------------------------------------------------
def _forecasters(neural: bool) -> dict[str, tuple[Callable[[], Forecaster], int, int | None]]:
    """The forecasters by name: constructor, minutes between fits (0 = once), minutes to fit on (None = all)."""
    forecasters: dict[str, tuple[Callable[[], Forecaster], int, int | None]] = {
        "seasonal-naive": (Seasonal, 60, None),
        "renewal": (Renewal, 0, None),
        "intermittent": (Intermittent, 0, None),
    }
    if neural:
        forecasters["short"] = (lambda: Grouped(span=60, epochs=15, warm=3), 10, 60)
        forecasters["long"] = (lambda: Grouped(span=1440, epochs=15, warm=1), 60, None)
        forecasters["shared"] = (Shared, 120, None)
    return forecasters


def forecasts(work: Workload, neural: bool, kept: Path | None, say: Callable[[str], None]) -> dict[str, Ahead]:
    """
    Forecasts one minute ahead for all minutes from the middle of the training part on. ``kept``: the folder that stores
    them between runs, by trace and forecaster.
    """
    ahead: dict[str, Ahead] = {}
    length = work.counts.shape[1]
    begin = int(TRAIN * TRAIN * length)
    for name, (make, every, span) in _forecasters(neural).items():
        stored = None if kept is None else kept / f"{work.name}-{len(work.names)}-{name}.npz"
        if stored is not None and stored.exists():
            with np.load(stored) as arrays:
                ahead[name] = (arrays["mean"], arrays["any"])
            continue
        say(f"{work.name}: forecasting ({name})")
        ahead[name] = rolling(make(), work.counts.astype(float), begin, refit_every=every, span=span)
        if stored is not None:
            stored.parent.mkdir(parents=True, exist_ok=True)
            np.savez(stored, mean=ahead[name][0], any=ahead[name][1])
    if neural:
        ahead["blend"] = blend(ahead, 0.5)
    return ahead


def blend(ahead: Mapping[str, Ahead], alpha: float) -> Ahead:
    """The weighted forecast of Eq. 8."""
    mean = alpha * ahead["long"][0] + (1 - alpha) * ahead["short"][0]
    return mean, -np.expm1(-mean)


# ---- rules -----------------------------------------------------------------------------------------------------------
def histogram(
    name: str, gamma: float, *, head: float = 5.0, tail: float = 99.0, range_minutes: int = 240, stand_in: bool = False
) -> Setup:
    """The rule HHP (``gamma`` = 1) or LSTH."""
    return Setup(
        name=name, how=HISTOGRAM, knobs=(gamma, head, tail, 0.1, 10, 2.0, 0.5, float(stand_in), range_minutes, 1440, 60)
    )


def lsth_grid() -> list[Setup]:
    """The settings of LSTH that are tried, the published one first."""
    grid = [histogram("lsth", 0.5)]
    for tail in (99.0, 90.0):
        for range_minutes in (240, 60, 20):
            for stand_in in (False, True):
                for gamma in (0.3, 0.7):
                    name = f"lsth {gamma:g} 5/{tail:g} {range_minutes} min{' stand-in' if stand_in else ''}"
                    grid.append(histogram(name, gamma, tail=tail, range_minutes=range_minutes, stand_in=stand_in))
    return grid[:1] + [setup for setup in grid[1:] if setup.knobs != grid[0].knobs]


def counted(name: str, work: Workload, ahead: Ahead, quantile: float | None = None) -> Setup:
    """The paper's rule behind a forecaster; ``quantile``: see ``scheduler.policy.prewarm.ls_lstm.requests_of``."""
    mean = np.nan_to_num(ahead[0])
    requests = np.vectorize(lambda one: requests_of(one, quantile), otypes=[np.int64])(mean)
    base = np.zeros(requests.shape, np.int64)
    for function in range(len(requests)):
        for minute in np.flatnonzero(requests[function]):
            base[function, minute] = instances_for(int(requests[function, minute]), float(work.run_s[function]))
    return Setup(name=name, base=base, close=requests)


def cut(setup: Setup, minutes: int) -> Setup:
    """The setup for the first ``minutes`` of a trace."""

    def first(counts: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        return None if counts is None else counts[:, :minutes]

    return replace(
        setup,
        base=first(setup.base),
        close=first(setup.close),
        told=first(setup.told),
        others=tuple(cut(other, minutes) for other in setup.others),
    )


# ---- scores ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """
    The rates of a class of functions. ``r_cs`` (Eq. 7) and ``r_cs_minutes`` (share of the minutes with requests that
    have a cold start): pooled, 0..1.

    ``r_rw`` (Eq. 6; assumption A44: waste is counted per instance): instance-seconds loaded or loading without work,
    over the total time, the mean over functions. The pooled rate is the same, because all functions have the same total
    time. It exceeds 1 where several instances are idle. ``r_rw_alone``: seconds in which a function is loaded or
    loading and none of its instances works, over the total time, the mean over functions, 0..1. ``r_rw_loaded``: the
    instance-seconds of ``r_rw`` over the seconds loaded, pooled, 0..1.
    """

    r_cs: float
    r_cs_minutes: float
    r_rw: float
    r_rw_alone: float
    r_rw_loaded: float


def cold_rate(tally: Floats, part: Bools) -> float:
    """R_cs, pooled over the functions of the mask ``part``."""
    total = tally[part].sum(axis=0)
    return float(total[COLDS] / max(1.0, total[REQUESTS]))


def rates(tally: Floats, part: Bools, wall_s: float) -> Rates:
    """The rates of ``tally`` [F, FIELDS] over ``wall_s`` seconds."""
    total = tally[part].sum(axis=0)
    waste, wall = float(waste_s(total)), max(1.0, wall_s * int(part.sum()))
    return Rates(
        r_cs=cold_rate(tally, part),
        r_cs_minutes=float(total[COLD_MINUTES] / max(1.0, total[REQUEST_MINUTES])),
        r_rw=waste / wall,
        r_rw_alone=float(total[IDLE_ALONE_S]) / wall,
        r_rw_loaded=waste / max(1e-9, waste + float(total[BUSY_S])),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """The result of one rule on one trace: ``tally`` [F, FIELDS], the mean of all seeds."""

    name: str
    family: str
    tally: Floats


class Replays:
    """
    Replays with stored results: an interrupted run continues where it stopped, and a run with other rules replays only
    the new ones.

    A tally is stored in ``folder`` (None = nowhere) under a hash of all its inputs: trace, setup, seed and the code of
    the replay.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._code = "".join(inspect.getsource(module) for module in (kernel, instances)).encode()

    def tally(self, work: Workload, setup: Setup, seed: int, from_minute: int, only: Bools | None = None) -> Floats:
        """See ``scheduler.simulation.instances.score``."""
        if self._folder is None:
            return score(work, setup, seed, from_minute, only=only)
        stored = self._folder / f"{self._name(work, setup, seed, from_minute, only)}.npy"
        if stored.exists():
            return np.asarray(np.load(stored))
        tally = score(work, setup, seed, from_minute, only=only)
        stored.parent.mkdir(parents=True, exist_ok=True)
        part = stored.with_suffix(".part")
        with part.open("wb") as file:
            np.save(file, tally)
        part.rename(stored)
        return tally

    def _name(self, work: Workload, setup: Setup, seed: int, from_minute: int, only: Bools | None) -> str:
        digest = hashlib.blake2b(self._code, digest_size=16)

        def add(*parts: object) -> None:
            for part in parts:
                if isinstance(part, np.ndarray):
                    digest.update(f"{part.dtype}{part.shape}".encode())
                    digest.update(np.ascontiguousarray(part).tobytes())
                else:
                    digest.update(f"{part!r};".encode())

        def add_setup(one: Setup) -> None:
            add(one.how, one.keep_s, one.knobs, one.price_s, one.base, one.close, one.told, one.guard, one.choice)
            for other in one.others:
                add_setup(other)

        add(work.counts, work.run_s, work.memory_gb, work.load_s, seed, from_minute, only)
        add_setup(setup)
        return digest.hexdigest()


def scored(
    replays: Replays, work: Workload, setup: Setup, seeds: Sequence[int], from_minute: int, family: str = ""
) -> Scored:
    tally = np.mean([replays.tally(work, setup, seed, from_minute) for seed in seeds], axis=0)
    return Scored(name=setup.name, family=family or setup.name, tally=tally)


def intervals(ours: Floats, theirs: Floats, part: Bools, seed: int = 0) -> dict[str, tuple[float, float]]:
    """
    95 % intervals over functions: the difference of R_cs, the ratios of R_rw and of waste over the seconds loaded.
    """
    random = np.random.default_rng(seed)
    rows = np.flatnonzero(part)
    samples: dict[str, list[float]] = {"rcs_diff": [], "rrw_wall_ratio": [], "rrw_loaded_ratio": []}
    if not len(rows):
        return {}
    for _ in range(RESAMPLES):
        drawn = random.choice(rows, len(rows))
        our_total, their_total = ours[drawn].sum(axis=0), theirs[drawn].sum(axis=0)
        our_waste, their_waste = float(waste_s(our_total)), float(waste_s(their_total))
        samples["rcs_diff"].append(float((our_total[COLDS] - their_total[COLDS]) / max(1.0, our_total[REQUESTS])))
        samples["rrw_wall_ratio"].append(our_waste / max(1e-9, their_waste))
        samples["rrw_loaded_ratio"].append(
            (our_waste / max(1e-9, our_waste + our_total[BUSY_S]))
            / max(1e-9, their_waste / max(1e-9, their_waste + their_total[BUSY_S]))
        )
    return {
        name: (float(np.quantile(values, 0.025)), float(np.quantile(values, 0.975))) for name, values in samples.items()
    }


# ---- tuning on the training part -------------------------------------------------------------------------------------
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


# ---- the evaluation --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceEvaluation:
    """
    The evaluation of one trace with one load time. ``scores``: by rule. ``curves``: the rules of each family.
    ``crossfit``: ours with base prices that were tuned on other functions, one for each partition into folds.
    ``prices_gb_s`` [F].
    """

    work: Workload
    parts: dict[str, Bools]
    scores: dict[str, Scored]
    curves: dict[str, list[str]]
    ahead: dict[str, Ahead]
    crossfit: list[Scored]
    base_price_gb_s: float
    prices_gb_s: Floats
    product_price_gb_s: float
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
    training = TrainingPart(work=work.cut(train), begin=int(TRAIN * train), replays=replays)
    parts = classes(work.counts[:, :train])
    ahead = forecasts(work, preset.neural, None if kept is None else kept / "forecasts", say)
    scores: dict[str, Scored] = {}
    curves: dict[str, list[str]] = {}

    def add(family: str, setup: Setup) -> Scored:
        say(f"{file}, {load_s:g} s: {setup.name}")
        scores[setup.name] = scored(replays, work, setup, preset.seeds, train, family)
        curves.setdefault(family, []).append(setup.name)
        return scores[setup.name]

    # LSTH: the published setting, and the cheapest one in the training part.
    grid = lsth_grid()[:4] if preset.name == "small" else lsth_grid()
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
        base_price_gb_s=PRICES[base],
        prices_gb_s=np.array([PRICES[step] for step in steps.tolist()]),
        sources=sources,
        product_price_gb_s=product_price(work, training, ahead, say),
        lsth=reference.name,
        gap_closed=gap_closed,
        from_minute=train,
    )


def oracle_forecasts(work: Workload) -> Ahead:
    """Forecasts equal to the counts: the paper's rule with perfect forecasts."""
    mean = work.counts.astype(float)
    return mean, (mean > 0).astype(float)


def _total(scored_rule: Scored, work: Workload, price_gb_s: float) -> float:
    return float(cost(scored_rule.tally, work, price_gb_s).sum())


def point(case: TraceEvaluation, name: str) -> tuple[float, float]:
    """(GB-seconds of waste, R_cs) of a rule over all functions."""
    tally = case.scores[name].tally
    return float((waste_s(tally) * case.work.memory_gb).sum()), cold_rate(tally, case.parts["overall"])


def above(case: TraceEvaluation) -> list[str]:
    """Baselines that beat ours: at their GB-seconds the curve of ours has a higher R_cs."""
    ours = sorted(point(case, name) for name in case.curves["ours"])
    spent, cold = (
        np.log([our_point[0] for our_point in ours]),
        np.minimum.accumulate([our_point[1] for our_point in ours]),
    )
    names = []
    for family, members in case.curves.items():
        if family not in ("ours", "gaps", "oracle", "counts-known", "always", "never"):
            for name in members:
                theirs = point(case, name)
                if np.interp(np.log(theirs[0]), spent, cold, left=np.inf) > theirs[1] + 1e-9:
                    names.append(name)
    return names


def rows(case: TraceEvaluation) -> list[dict[str, Any]]:
    """One row per rule and class, as the tables show them."""
    table_rows = []
    for name, scored_rule in case.scores.items():
        for part, mask in case.parts.items():
            if not mask.any():
                continue
            total = scored_rule.tally[mask].sum(axis=0)
            table_rows.append(
                {
                    "rule": name,
                    "class": part,
                    "functions": int(mask.sum()),
                    "requests": float(total[REQUESTS]),
                    **asdict(case.rates(name, part)),
                    "waste_per_wall_s": float(waste_s(total)) / case.wall_s,
                    "gb_s": float((waste_s(scored_rule.tally[mask]) * case.work.memory_gb[mask]).sum()),
                    "late": float(total[LATES] / max(1.0, total[REQUESTS])),
                    "loads_ahead": float(total[AHEADS]),
                }
            )
    return table_rows


def forecast_rows(case: TraceEvaluation) -> list[dict[str, Any]]:
    """One row per forecaster and class, over the scored minutes: the mean Brier score and the median scaled error."""
    counts = case.work.counts.astype(float)
    since = case.from_minute
    table_rows = []
    for name, (mean, any_) in case.ahead.items():
        brier_scores, scaled_errors = brier(any_[:, since:], counts[:, since:]), mase(mean, counts, since)
        for part, mask in case.parts.items():
            if mask.any():
                table_rows.append(
                    {
                        "forecaster": name,
                        "class": part,
                        "brier": float(np.nanmean(brier_scores[mask])),
                        "mase": float(np.nanmedian(scaled_errors[mask])),
                    }
                )
    return table_rows


def figures(cases: Sequence[TraceEvaluation]) -> dict[str, float]:
    """
    ``<name>.<trace>[.5s].<all|bursty>.<time|crossfit>``, with the load time if it is not 1.5 s. ``time``: tuned on the
    training part of the same functions. ``crossfit``: with base prices from other functions, the mean over partitions;
    ``crossfit_worst``: the worst partition.
    """
    values_by_name: dict[str, float] = {}
    for case in cases:
        suffix = f".{case.work.name}" + ("" if case.work.load_s == LOADS_S[0] else f".{case.work.load_s:g}s")
        for part, called in (("overall", "all"), ("bursty", "bursty")):
            mask = case.parts[part]
            if not mask.any():
                continue
            theirs = case.rates(case.lsth, part)
            for split, tallies in (
                ("time", [case.scores["ours"].tally]),
                ("crossfit", [scored_rule.tally for scored_rule in case.crossfit]),
            ):
                ours = [rates(tally, mask, case.wall_s) for tally in tallies]
                compared = {
                    "rcs_diff_to_lsth": [rate.r_cs - theirs.r_cs for rate in ours],
                    "rcs_minutes_diff_to_lsth": [rate.r_cs_minutes - theirs.r_cs_minutes for rate in ours],
                    "rrw_wall_ratio_to_lsth": [rate.r_rw / theirs.r_rw for rate in ours],
                    "rrw_alone_ratio_to_lsth": [rate.r_rw_alone / theirs.r_rw_alone for rate in ours],
                    "rrw_loaded_ratio_to_lsth": [rate.r_rw_loaded / theirs.r_rw_loaded for rate in ours],
                }
                for name, values in compared.items():
                    values_by_name[f"{name}{suffix}.{called}.{split}"] = float(np.mean(values))
                    if len(values) > 1:
                        values_by_name[f"{name}{suffix}.{called}.{split}_worst"] = max(values)
            floor = case.rates("oracle", part)
            values_by_name[f"rrw_wall_floor_to_lsth{suffix}.{called}"] = floor.r_rw / theirs.r_rw
            values_by_name[f"rrw_loaded_floor_to_lsth{suffix}.{called}"] = floor.r_rw_loaded / theirs.r_rw_loaded
        for ratio, share in case.gap_closed.items():
            values_by_name[f"gap_closed_{ratio}{suffix}"] = share
        values_by_name[f"above_pareto{suffix}"] = float(len(above(case)))
        values_by_name[f"base_price_gb_s{suffix}"] = case.base_price_gb_s
        values_by_name[f"product_price_gb_s{suffix}"] = case.product_price_gb_s
    return values_by_name


def report(cases: Sequence[TraceEvaluation]) -> dict[str, Any]:
    return {
        "figures": figures(cases),
        "cases": [
            {
                "trace": case.work.name,
                "load_s": case.work.load_s,
                "functions": len(case.work.names),
                "base_price_gb_s": case.base_price_gb_s,
                "product_price_gb_s": case.product_price_gb_s,
                "prices_gb_s": {
                    f"{price:g}": int((case.prices_gb_s == price).sum())
                    for price in np.unique(case.prices_gb_s).tolist()
                },
                "lsth": case.lsth,
                "compression": 1,
                "sources": {name: case.sources.count(name) for name in sorted(set(case.sources))},
                "intervals": {
                    part: intervals(case.scores["ours"].tally, case.scores[case.lsth].tally, mask)
                    for part, mask in case.parts.items()
                    if mask.any()
                },
                "above_pareto": above(case),
                "gap_closed": case.gap_closed,
                "rows": rows(case),
                "forecasts": forecast_rows(case),
            }
            for case in cases
        ],
    }


def table(case: TraceEvaluation) -> str:
    """Plain text of one case."""
    lines = [
        f"{case.work.name}, cold start {case.work.load_s:g} s, base price {case.base_price_gb_s:.4g} GB-s, LSTH:"
        f" {case.lsth}"
    ]
    lines.append(
        f"{'rule':28} {'class':8} {'R_cs %':>8} {'minutes %':>9} {'R_rw %':>8} {'loaded %':>8} {'GB-s':>11}"
        f" {'late %':>7}"
    )
    for row in rows(case):
        lines.append(
            f"{row['rule']:28} {row['class']:8} {100 * row['r_cs']:8.3f} {100 * row['r_cs_minutes']:9.3f}"
            f" {100 * row['r_rw']:8.2f} {100 * row['r_rw_loaded']:8.2f} {row['gb_s']:11.4g} {100 * row['late']:7.3f}"
        )
    return "\n".join(lines)
