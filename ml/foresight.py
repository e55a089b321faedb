"""
``python -m ml.foresight``: what will arrive, from what was counted: fit a forecaster, and forecast with it, for every function at once.

The ``learn`` worker runs it as a child, each minute and each time a fit is due. Counts come from Postgres, the fitted forecaster goes
there; forecasts go to Redis whole (smore/forecasts.py), where the leader finds them.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ml.forecast.forecaster import Forecaster, Renewal, Seasonal, brier, rolling
from ml.learning import yield_to_others
from smore import observability
from smore.catalog import Catalog
from smore.db import make_engine
from smore.domain.function import Prewarming
from smore.forecasts import OWN, Board, Counted, Forecasts
from smore.prewarming import MINUTE_S, SPAN_MIN, Past
from smore.prewarming import Prewarming as History
from smore.queue import connect
from smore.settings import PrewarmSettings, Settings, settings

Floats = NDArray[np.float64]

#: Minutes of the past that lie in Redis for the rules of a new leader.
TAUGHT_MIN: Final = 1440


class Craft(Protocol):
    """The art of forecasting, apart from where counts come from and forecasts go."""

    def fit(self, counts: Floats, paper: Sequence[int]) -> bytes:
        """A fitted forecaster of ``counts`` [F, T], arrivals per minute, NaN where nobody counted; rows ``paper`` want LS-LSTM."""
        ...

    def forecast(self, model: bytes, since: Floats, horizon: int) -> tuple[Floats, Floats, list[str]]:
        """(mean [F, H], chance of any [F, H], sources [F]) of the minutes after ``since`` [F, K], which came after the fit."""
        ...


class Best:
    """
    For each function the forecaster that told best whether a minute has a request, in a rolling backtest over the last fifth of what was
    counted (Brier score, one minute ahead): a season, the gaps between minutes with requests, or neither: where the share of minutes with
    requests was as good, the rule goes by the gaps between requests itself, and is told so (``hold.OWN``). LS-LSTM has no choice.
    """

    def fit(self, counts: Floats, paper: Sequence[int]) -> bytes:
        begin = max(1, int(counts.shape[1] * 0.8))
        share = np.nanmean(np.concatenate([counts[:, :begin] > 0, np.zeros((len(counts), 1))], axis=1), axis=1)
        scores = [brier(np.repeat(share[:, None], counts.shape[1] - begin, axis=1), counts[:, begin:])]
        fitted: list[Forecaster] = [Seasonal(), Renewal()]
        for made in fitted:
            scores.append(brier(rolling(made, counts, begin)[1][:, begin:], counts[:, begin:]))
            made.fit(counts)
        # Where nothing can be compared the rule goes by its own.
        best = np.argmin(np.nan_to_num(np.stack(scores), nan=np.inf), axis=0)
        lstm = b""
        if len(paper):
            # It alone needs torch.
            from ml.forecast.lstm import LongShort

            network = LongShort()
            network.fit(counts[list(paper)])
            lstm = network.dumps()
        parts = {"choice": best.tolist(), "paper": list(paper), "models": [one.dumps() for one in fitted], "lstm": lstm}
        return msgspec.msgpack.encode(parts)

    def forecast(self, model: bytes, since: Floats, horizon: int) -> tuple[Floats, Floats, list[str]]:
        parts = _parts(model)
        functions = len(parts.choice)
        mean, any_ = np.full((functions, horizon), np.nan), np.full((functions, horizon), np.nan)
        sources = [OWN] * functions
        choice = np.array(parts.choice)
        fitted: list[Forecaster] = [Seasonal.loads(parts.models[0]), Renewal.loads(parts.models[1])]
        for place, made in enumerate(fitted, start=1):
            for minute in since.T:
                made.update(minute)
            rows = np.flatnonzero(choice == place)
            found = made.forecast(horizon)
            mean[rows], any_[rows] = found[0][rows], found[1][rows]
            for row in rows.tolist():
                sources[row] = made.name
        if parts.paper:
            from ml.forecast.lstm import LongShort

            network = LongShort.loads(parts.lstm)
            for minute in since[parts.paper].T:
                network.update(minute)
            mean[parts.paper], any_[parts.paper] = network.forecast(horizon)
            for row in parts.paper:
                sources[row] = network.name
        return mean, any_, sources


class _Parts(msgspec.Struct):
    choice: list[int]
    paper: list[int]
    models: list[bytes]
    lstm: bytes


_parts = msgspec.msgpack.Decoder(_Parts).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command came to. ``seconds``: reading, computing and writing."""

    result: Literal["fitted", "published", "skipped", "failed"]
    reason: str
    version: int | None = None
    functions: int = 0
    seconds: float = 0.0


class Foresight:
    """
    The forecasts of one platform. ``paper``: functions that want LS-LSTM.

    Postgres away is SQLAlchemy's OperationalError, Redis away redis-py's error.
    """

    def __init__(
        self, door: History, board: Board, knobs: PrewarmSettings, *, craft: Craft, paper: Callable[[], Collection[str]],
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._door = door
        self._board = board
        self._knobs = knobs
        self._craft = craft
        self._paper = paper
        self._clock = clock

    def fit(self, *, asked: bool) -> Outcome:
        """Fit on what was counted and imported, where that is asked for or due, and there is enough of it."""
        began, now = time.perf_counter(), self._clock()
        newest, lesson = self._door.newest(), self._board.lesson()
        past = self._door.past(now - SPAN_MIN * MINUTE_S, now)
        self._teach(past, lesson)
        self._board.learned(lesson)
        rests = newest is not None and newest.manifest.get("lesson", 0) == lesson
        if newest is not None and rests and not asked and now - newest.created_at < self._knobs.refit_s:
            # Redis may have lost it.
            self._board.use(newest.version)
            return Outcome(result="skipped", reason="The last fit is not old.", version=newest.version)
        seen, least = sorted({*past.counts, *past.imported}), self._knobs.least_minutes
        known = dict(zip(seen, np.isfinite(matrix(past, seen)).sum(axis=1).tolist(), strict=True))
        most = max(known.values(), default=sum(past.known))
        functions = [function for function in seen if known[function] >= least]
        if not functions:
            if not rests:
                # What it was fitted on was taken back.
                self._board.use(0)
            return Outcome(result="skipped", reason=f"{most} minutes were counted, {least} are needed.", functions=len(seen))
        counts = matrix(past, functions)
        # From the first minute that anybody knows: a backtest over nothing would choose blindly.
        counts = counts[:, np.isfinite(counts).any(axis=0).argmax() :]
        model = self._craft.fit(counts, [row for row, function in enumerate(functions) if function in self._paper()])
        manifest = {
            "functions": functions, "minutes": most, "until": past.from_at + len(past.known) * MINUTE_S, "lesson": lesson,
            "imported": {function: len(minutes) for function, minutes in past.imported.items()},
        }  # fmt: skip
        version = self._door.store(manifest, model)
        self._board.use(version)
        return Outcome(
            result="fitted", reason=f"{most} minutes", version=version, functions=len(functions), seconds=time.perf_counter() - began
        )

    def forecast(self) -> Outcome:
        """Forecast from the beginning of this minute on, and publish."""
        began, now = time.perf_counter(), self._clock()
        fitted = self._door.newest()
        if fitted is None:
            return Outcome(result="skipped", reason="No forecaster was fitted yet.")
        past = self._door.past(float(fitted.manifest["until"]), now)
        functions = [str(function) for function in fitted.manifest["functions"]]
        mean, any_, sources = self._craft.forecast(fitted.model, matrix(past, functions), self._knobs.horizon)
        shape = (len(functions), self._knobs.horizon)
        if mean.shape != shape or any_.shape != shape:
            return Outcome(result="failed", reason=f"forecasts of shape {mean.shape} and {any_.shape}, {shape} is expected")
        forecasts = Forecasts(
            version=self._board.version() + 1, model=fitted.version, made_at=now, from_at=past.from_at + len(past.known) * MINUTE_S,
            horizon=self._knobs.horizon, functions=functions, sources=sources, mean=mean.astype("<f4").tobytes(),
            any=any_.astype("<f4").tobytes(), lesson=int(fitted.manifest.get("lesson", 0)),
        )  # fmt: skip
        self._board.publish(forecasts)
        reason = ", ".join(f"{source} {count}" for source, count in sorted(Counter(sources).items()))
        return Outcome(
            result="published", reason=reason, version=forecasts.version, functions=len(functions),
            seconds=time.perf_counter() - began,
        )  # fmt: skip

    def _teach(self, past: Past, lesson: int) -> None:
        """Lay out what the rules of a new leader are taught."""
        skipped = max(0, len(past.known) - TAUGHT_MIN)
        counts: dict[str, list[int]] = {}
        for function in {*past.counts, *past.imported}:
            # A minute that was imported is none that was counted. In one that was counted in part something may have been seen.
            minutes = {**past.imported.get(function, {}), **past.counts.get(function, {})}
            counts[function] = [
                value for minute, count in sorted(minutes.items()) if count and minute >= skipped for value in (minute - skipped, count)
            ]
        known = [minute - skipped for minute, counted in enumerate(past.known) if counted and minute >= skipped]
        self._board.put_counts(Counted(from_at=past.from_at + skipped * MINUTE_S, known=known, counts=counts, lesson=lesson))


def matrix(past: Past, functions: Sequence[str]) -> Floats:
    """Arrivals [F, T]: as they were counted, else as they were imported, else NaN, also where somebody counted a part."""
    counts = np.zeros((len(functions), len(past.known)))
    for row, function in enumerate(functions):
        for minute, count in past.counts.get(function, {}).items():
            counts[row, minute] = count
    counts[:, ~np.asarray(past.known, bool)] = np.nan
    for row, function in enumerate(functions):
        for minute, count in past.imported.get(function, {}).items():
            counts[row, minute] = count
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
            catalog = Catalog(client, config.redis.prefix)

            def paper() -> Collection[str]:
                specs = {key: catalog.revision(key, entry.revision) for key, entry in catalog.functions().items()}
                return {key for key, spec in specs.items() if spec is not None and spec.prewarm is Prewarming.PAPER}

            yield Foresight(History(engine), Board(client, config.redis.prefix), config.prewarm, craft=Best(), paper=paper)
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
