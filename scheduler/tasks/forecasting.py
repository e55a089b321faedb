"""
``python -m scheduler.tasks.forecasting``: the child of the ``learn`` worker that fits forecasters and forecasts with
them (``ml/forecast/foresight.py``).

Here the art of forecasting meets the rule that forecasts serve: which forecaster a function gets is judged by what the
platform's own rule would have cost behind it.
"""

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from ml.forecast.foresight import Best, ForecastResult, Foresight
from ml.learn.learning import yield_to_others
from smore.domain.function import FunctionSpec, Prewarming
from smore.postgres.arrivals import ArrivalStore
from smore.postgres.connection import make_engine
from smore.process import observability
from smore.process.environment import settings
from smore.process.settings import Settings
from smore.redis.catalog import Catalog
from smore.redis.connection import connect
from smore.redis.forecasts import PublishedForecasts

if TYPE_CHECKING:
    from ml.forecast.choice import Ahead, Judge

Floats = NDArray[np.float64]

#: Of a function that the catalog does not know any more.
UNKNOWN: Final = FunctionSpec(entrypoint="none:None")


class Rehearsal:
    """
    Functions of a platform under the priced rule, with their own run times, memories and cold starts
    (``ml.forecast.choice.Judge``).

    ``counts`` [F, T], NaN where nobody counted: such a minute is replayed as one without requests.
    """

    def __init__(
        self, names: Sequence[str], counts: Floats, begin: int, specs: Mapping[str, FunctionSpec], price_gb_s: float
    ) -> None:
        # A forecast needs no compiled replay, and is made each minute by a process of its own.
        from scheduler.backtest.cost import Backtest
        from scheduler.backtest.instances import Workload

        profiles = [specs.get(name, UNKNOWN).profile for name in names]
        loads = np.array([one.load_s for one in profiles])
        requests = np.nan_to_num(counts).astype(np.int64)
        #: Rows with the same cold start, and their backtest.
        self._groups: list[tuple[NDArray[np.int64], Backtest]] = []
        for load_s in np.unique(loads):
            rows = np.flatnonzero(loads == load_s)
            work = Workload(
                name="counted",
                names=tuple(names[row] for row in rows.tolist()),
                counts=requests[rows],
                load_s=float(load_s),
                run_s=np.array([profiles[row].run_time_s(1) for row in rows]),
                memory_gb=np.array([profiles[row].memory_mib / 1024 for row in rows]),
            )
            self._groups.append((rows, Backtest(work, begin, price_gb_s)))

    def __call__(self, ahead: "Ahead | None", only: NDArray[np.bool_]) -> Floats:
        found = np.zeros(len(only))
        for rows, backtest in self._groups:
            found[rows] = backtest(None if ahead is None else (ahead[0][rows], ahead[1][rows]), only[rows])
        return found


@contextmanager
def foresight(config: Settings) -> Iterator[Foresight]:
    """Of the platform that the settings name. Raises ValueError where they do not."""
    if config.postgres.url is None or config.redis.url is None:
        raise ValueError("SMORE_POSTGRES__URL and SMORE_REDIS__URL must be set")
    engine = make_engine(config.postgres.url, "foresight")
    try:
        with connect(config) as client:
            catalog = Catalog(client, config.redis.prefix)

            def specs() -> dict[str, FunctionSpec]:
                known = {key: catalog.revision(key, entry.revision) for key, entry in catalog.functions().items()}
                return {key: spec for key, spec in known.items() if spec is not None}

            def paper() -> Collection[str]:
                return {key for key, spec in specs().items() if spec.prewarm is Prewarming.PAPER}

            def judging(names: Sequence[str], counts: Floats, begin: int) -> "Judge":
                return Rehearsal(names, counts, begin, specs(), config.prewarm.price_gb_s)

            published = PublishedForecasts(client, config.redis.prefix)
            yield Foresight(ArrivalStore(engine), published, config.prewarm, toolkit=Best(judging), paper=paper)
    finally:
        engine.dispose()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scheduler.tasks.forecasting", description="Forecasts of arrivals.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("forecast", help="forecast from this minute on, and publish")
    commands.add_parser("fit", help="fit on what was counted").add_argument(
        "--if-due", action="store_true", help="only where it is time"
    )
    options = parser.parse_args(arguments)
    config = settings()
    observability.configure(config, "foresight")
    yield_to_others(config)
    try:
        with foresight(config) as door:
            outcome = door.forecast() if options.command == "forecast" else door.fit(asked=not options.if_due)
    except (ValueError, OSError) as error:
        outcome = ForecastResult(result="failed", reason=str(error))
    print(json.dumps(asdict(outcome)), flush=True)
    return 1 if outcome.result == "failed" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
