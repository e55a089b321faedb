"""
``python -m ml.foresight``: what will arrive, from what was counted: fit a forecaster, and forecast with it, for every function at once.

The ``learn`` worker runs it as a child, each minute and each time a fit is due. Counts come from Postgres, the fitted forecaster goes
there; forecasts go to Redis whole (smore/forecasts.py), where the leader finds them.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ml.learning import yield_to_others
from smore import observability
from smore.db import make_engine
from smore.forecasts import Board, Counted, Forecasts
from smore.prewarming import MINUTE_S, Past, Prewarming
from smore.queue import connect
from smore.settings import PrewarmSettings, Settings, settings

Floats = NDArray[np.float64]

#: Minutes of the past that a fit and a forecast see: the long model's day, twice, so that each minute of a day was seen before.
SPAN_MIN: Final = 2 * 1440
#: Minutes of the past that lie in Redis for the rules of a new leader.
TAUGHT_MIN: Final = 1440


class Craft(Protocol):
    """The art of forecasting, apart from where counts come from and forecasts go."""

    def fit(self, counts: Floats) -> bytes:
        """A fitted forecaster of ``counts`` [F, T], arrivals per minute, NaN where nobody counted."""
        ...

    def forecast(self, model: bytes, counts: Floats, horizon: int) -> tuple[Floats, Floats, list[str]]:
        """
        (mean [F, H], chance of any [F, H], sources [F]) of the minutes that follow ``counts`` [F, T]. The first rows are the functions that
        it was fitted on, those behind them are new.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command came to. ``seconds``: reading, computing and writing."""

    result: Literal["fitted", "published", "skipped", "failed"]
    reason: str
    version: int | None = None
    functions: int = 0
    seconds: float = 0.0


class Foresight:
    """The forecasts of one platform. Postgres away is SQLAlchemy's OperationalError, Redis away redis-py's error."""

    def __init__(
        self, door: Prewarming, board: Board, knobs: PrewarmSettings, craft: Callable[[], Craft], clock: Callable[[], float] = time.time
    ) -> None:
        self._door = door
        self._board = board
        self._knobs = knobs
        self._craft = craft
        self._clock = clock

    def fit(self, *, asked: bool) -> Outcome:
        """Fit on what was counted, where that is asked for or due, and there is enough of it."""
        began, now = time.perf_counter(), self._clock()
        newest = self._door.newest()
        past = self._door.past(now - SPAN_MIN * MINUTE_S, now)
        self._teach(past)
        if newest is not None and not asked and now - newest.created_at < self._knobs.refit_s:
            # Redis may have lost it.
            self._board.use(newest.version)
            return Outcome(result="skipped", reason="The last fit is not old.", version=newest.version)
        known = sum(past.known)
        if known < self._knobs.least_minutes or not past.counts:
            reason = f"{known} minutes were counted, {self._knobs.least_minutes} are needed."
            return Outcome(result="skipped", reason=reason, functions=len(past.counts))
        functions = sorted(past.counts)
        model = self._craft().fit(matrix(past, functions))
        manifest = {"functions": functions, "minutes": known, "from_at": past.from_at}
        version = self._door.store(manifest, model)
        self._board.use(version)
        return Outcome(
            result="fitted", reason=f"{known} minutes", version=version, functions=len(functions), seconds=time.perf_counter() - began
        )

    def forecast(self) -> Outcome:
        """Forecast from the beginning of this minute on, and publish."""
        began, now = time.perf_counter(), self._clock()
        fitted = self._door.newest()
        if fitted is None:
            return Outcome(result="skipped", reason="No forecaster was fitted yet.")
        past = self._door.past(now - SPAN_MIN * MINUTE_S, now)
        first = [str(function) for function in fitted.manifest["functions"]]
        functions = first + sorted(past.counts.keys() - set(first))
        mean, any_, sources = self._craft().forecast(fitted.model, matrix(past, functions), self._knobs.horizon)
        shape = (len(functions), self._knobs.horizon)
        if mean.shape != shape or any_.shape != shape:
            return Outcome(result="failed", reason=f"forecasts of shape {mean.shape} and {any_.shape}, {shape} is expected")
        forecasts = Forecasts(
            version=self._board.version() + 1, model=fitted.version, made_at=now, from_at=past.from_at + len(past.known) * MINUTE_S,
            horizon=self._knobs.horizon, functions=functions, sources=sources, mean=mean.astype("<f4").tobytes(),
            any=any_.astype("<f4").tobytes(),
        )  # fmt: skip
        self._board.publish(forecasts)
        silent = int((~np.isfinite(mean).all(axis=1)).sum())
        return Outcome(
            result="published", reason=f"{silent} without numbers", version=forecasts.version, functions=len(functions),
            seconds=time.perf_counter() - began,
        )  # fmt: skip

    def _teach(self, past: Past) -> None:
        """Lay out what the rules of a new leader are taught."""
        skipped = max(0, len(past.known) - TAUGHT_MIN)
        counts = {
            function: [value for minute, count in sorted(minutes.items()) if minute >= skipped for value in (minute - skipped, count)]
            for function, minutes in past.counts.items()
        }
        known = [minute - skipped for minute, counted in enumerate(past.known) if counted and minute >= skipped]
        self._board.put_counts(Counted(from_at=past.from_at + skipped * MINUTE_S, known=known, counts=counts))


def matrix(past: Past, functions: Sequence[str]) -> Floats:
    """Arrivals [F, T]; NaN where nobody counted, also where somebody counted a part."""
    counts = np.zeros((len(functions), len(past.known)))
    for row, function in enumerate(functions):
        for minute, count in past.counts.get(function, {}).items():
            counts[row, minute] = count
    counts[:, ~np.asarray(past.known, bool)] = np.nan
    return counts


# ---- the command -------------------------------------------------------------------------------------------------------------------------


@contextmanager
def foresight(config: Settings) -> Iterator[Foresight]:
    """Of the platform that the settings name. Raises ValueError where they do not."""
    if config.postgres.url is None or config.redis.url is None:
        raise ValueError("SMORE_POSTGRES__URL and SMORE_REDIS__URL must be set")
    engine = make_engine(config.postgres.url, "foresight")
    try:
        with connect(config) as client:
            yield Foresight(Prewarming(engine), Board(client, config.redis.prefix), config.prewarm, craft)
    finally:
        engine.dispose()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="ml.foresight", description="Forecasts of arrivals.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("forecast", help="forecast from this minute on, and publish")
    commands.add_parser("fit", help="fit on what was counted").add_argument("--if-due", action="store_true", help="only where it is time")
    options = parser.parse_args(arguments)
    config = settings()
    observability.configure(config, "foresight")
    yield_to_others(config)
    try:
        with foresight(config) as door:
            outcome = door.forecast() if options.command == "forecast" else door.fit(asked=not options.if_due)
    except (ValueError, OSError) as error:
        outcome = Outcome(result="failed", reason=str(error))
    print(json.dumps(asdict(outcome)), flush=True)
    return 1 if outcome.result == "failed" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
