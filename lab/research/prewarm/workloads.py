"""The traces of an evaluation, classes of their functions, and forecasts of their arrivals."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lab.research.prewarm.intermittent import Intermittent
from lab.research.prewarm.shared import Shared
from lab.simulation.azure import by_function, invocations
from ml.forecast.choice import Ahead
from ml.forecast.forecaster import Forecaster, Renewal, Seasonal, rolling
from ml.forecast.lstm import Grouped
from scheduler.backtest.instances import Workload
from smore.domain.errors import NotFound

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
TRAIN: Final = 0.6

#: Seconds of a warm run (table I) and GB of weights and activations at batch 1
#: (``lab/simulation/data/workloads.json``).
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

LEAST_S: Final = 0.001


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


def oracle_forecasts(work: Workload) -> Ahead:
    """Forecasts equal to the counts: the paper's rule with perfect forecasts."""
    mean = work.counts.astype(float)
    return mean, (mean > 0).astype(float)
