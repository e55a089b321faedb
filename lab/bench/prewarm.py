"""
What forecasting costs at platform size: ``python -m lab.bench.prewarm [--json] [--quick]``.

Arrival counts are made up (Poisson, each function with a rate of its own).

Figures:

* ``forecast_10k_s``: giving LS-LSTM (Eq. 8, the long and the short model, each function with weights of its own) the
  minute that ended and asking it for the next two; 10,000 functions, median of five.
* ``retrain_1k_s``: fitting both models of 1,000 functions anew, the long one on a day, the short one on an hour, up to
  50 epochs with early stopping. ``retrain_warm_1k_s``: again from the weights of that fit, as the platform does every
  ten minutes.
* ``shared_*``: the same with one network for all functions and a state for each; ``renewal_*``: by counting alone.
* ``choose_1k_s``: fitting the forecasters that a platform has without LSTMs on two days, with the backtest that chooses
  one for each function.
* ``single_train_s``: the grouped code with one function in the group, the price of a loop over functions.

Beside the seconds of a training, ``*_cpu_s`` is the CPU time of all cores, which other work on the machine changes
little; ``load_average`` is that of the machine at the start. ``--quick`` takes two epochs and a tenth of the functions;
its figures carry their size in their names and are not comparable.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from lab.bench import report
from lab.research.prewarm.shared import Shared
from ml.forecast.forecaster import Floats, Forecaster, Renewal
from ml.forecast.foresight import Best
from ml.forecast.lstm import LongShort
from scheduler.tasks.forecasting import Rehearsal
from smore.process.settings import PrewarmSettings

DAY: int = 1440


def made_up(functions: int, minutes: int) -> Floats:
    """Arrivals [functions, minutes]."""
    random = np.random.default_rng(0)
    return random.poisson(random.lognormal(-1.0, 2.0, functions)[:, None], (functions, minutes)).astype(float)


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def each_minute(forecaster: Forecaster, functions: int) -> float:
    """A minute's work: what ended is told, what comes is asked for; median of five."""
    now = made_up(functions, 6)

    def minute(which: int) -> None:
        forecaster.update(now[:, which])
        forecaster.forecast(2)

    minute(5)
    return statistics.median(seconds(lambda which=which: minute(which)) for which in range(5))  # type: ignore[misc]


def measured(quick: bool, only_forecast: bool) -> dict[str, float]:
    many, some, epochs = (1000, 100, 2) if quick else (10_000, 1000, 50)
    size = {1000: "1k", 10_000: "10k", 100: "100"}
    figures: dict[str, float] = {}
    report.progress(f"a minute of {many} functions")
    for name, made in (("", LongShort(epochs=0)), ("renewal_", Renewal()), ("shared_", Shared(epochs=0))):
        made.fit(made_up(many, 60))
        figures[f"{name}forecast_{size[many]}_s"] = each_minute(made, many)
    if only_forecast:
        return figures
    day = made_up(some, DAY)
    for name, fitted in (("", LongShort(epochs=epochs)), ("shared_", Shared(epochs=3 * epochs))):
        report.progress(f"training {some} functions ({name or 'grouped'})")
        for how in ("retrain", "retrain_warm"):
            before = time.process_time()
            figures[f"{name}{how}_{size[some]}_s"] = taken = seconds(lambda fitted=fitted: fitted.fit(day))  # type: ignore[misc]
            figures[f"{name}{how}_{size[some]}_cpu_s"] = worked = time.process_time() - before
            report.progress(f"{name}{how}: {taken:.1f} s, {worked:.1f} s of all cores")
    report.progress(f"choosing for {some} functions")
    names, days = [str(row) for row in range(some)], made_up(some, 2 * DAY)
    crafts = Best(
        lambda functions, counts, begin: Rehearsal(functions, counts, begin, {}, PrewarmSettings().price_gb_s)
    )
    figures[f"choose_{size[some]}_s"] = seconds(lambda: crafts.fit(names, days, [], None))
    report.progress("training one function alone")
    figures["single_train_s"] = seconds(lambda: LongShort(epochs=epochs).fit(day[:1]))
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.prewarm", description="Forecasting at platform size; see the docstring."
    )
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="a tenth of the functions, two epochs")
    parser.add_argument("--only-forecast", action="store_true", help="no training")
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    figures = measured(options.quick, options.only_forecast)
    if options.json:
        report.emit("prewarm", figures, threads=torch.get_num_threads(), load_average=round(load, 1))
    else:
        for name, value in figures.items():
            print(f"{name:28}{report.rounded(value):>12g}")
        print(f"{'load average':28}{load:>12.1f}")


if __name__ == "__main__":
    main()
