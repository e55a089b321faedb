"""
What will arrive, from what was counted: fit a forecaster, and forecast with it, for every function at once.

A child of the ``learn`` worker does it (``scheduler/tasks/forecasting.py``), each minute and each time a fit is due.
Counts come from Postgres, the fitted forecaster goes there; forecasts go to Redis whole (smore/redis/forecasts.py),
where the leader finds them.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ml.forecast.choice import Judge, choose
from ml.forecast.forecaster import Forecaster, Renewal, Seasonal, rolling
from smore.messages.forecasts import Counted, Forecasts
from smore.postgres.arrivals import MINUTE_S, SPAN_MIN, Past
from smore.postgres.arrivals import Prewarming as History
from smore.process.settings import PrewarmSettings
from smore.redis.forecasts import Board

Floats = NDArray[np.float64]

#: Minutes of the past that lie in Redis for the rules of a new leader.
TAUGHT_MIN: Final = 1440


class Craft(Protocol):
    """The art of forecasting, apart from where counts come from and forecasts go."""

    def fit(self, functions: Sequence[str], counts: Floats, paper: Sequence[int], before: bytes | None) -> bytes:
        """
        A fitted forecaster of ``counts`` [F, T], arrivals per minute, NaN where nobody counted; rows ``paper`` want
        LS-LSTM. ``before``: what the last fit gave, of whatever functions there were.
        """
        ...

    def forecast(self, model: bytes, since: Floats, horizon: int) -> tuple[Floats, Floats, list[str]]:
        """
        (mean [F, H], chance of any [F, H], sources [F]) of the minutes after ``since`` [F, K], which came after the
        fit.
        """
        ...


#: What a backtest of these counts [F, T] of these functions, from that minute on, is judged by.
Judging = Callable[[Sequence[str], Floats, int], Judge]


class Best:
    """
    For each function the forecaster that would have cost least in a rolling backtest over the last fifth of what was
    counted (``ml/forecast/choice.py``): a season, or the gaps between minutes with requests; or neither, then the rule
    goes by the gaps between requests itself and is told so (``hold.OWN``). LS-LSTM has no choice; it goes on from the
    weights of the fit before.
    """

    def __init__(self, judging: Judging) -> None:
        self._judging = judging

    def fit(self, functions: Sequence[str], counts: Floats, paper: Sequence[int], before: bytes | None) -> bytes:
        begin = max(1, int(counts.shape[1] * 0.8))
        fitted: list[Forecaster] = [Seasonal(), Renewal()]
        ahead = {made.name: rolling(made, counts, begin) for made in fitted}
        for made in fitted:
            made.fit(counts)
        chosen = choose(ahead, counts, self._judging(functions, counts, begin))
        lstm = b""
        if len(paper):
            # It alone needs torch.
            from ml.forecast.lstm import LongShort

            network, names = LongShort(), [functions[row] for row in paper]
            # A fit of another version of this code, or without LS-LSTM, teaches nothing.
            with suppress(msgspec.DecodeError, ValueError):
                old = _parts(before or b"")
                kept = LongShort.loads(old.lstm)
                kept.rearrange([old.names.index(name) if name in old.names else -1 for name in names])
                network = kept
            network.fit(counts[list(paper)])
            lstm = network.dumps()
        parts = _Parts(
            sources=chosen.sources,
            paper=list(paper),
            names=[functions[row] for row in paper],
            models=[one.dumps() for one in fitted],
            lstm=lstm,
        )
        return msgspec.msgpack.encode(parts)

    def forecast(self, model: bytes, since: Floats, horizon: int) -> tuple[Floats, Floats, list[str]]:
        parts = _parts(model)
        sources = list(parts.sources)
        mean, any_ = np.full((len(sources), horizon), np.nan), np.full((len(sources), horizon), np.nan)
        fitted: list[Forecaster] = [Seasonal.loads(parts.models[0]), Renewal.loads(parts.models[1])]
        for made in fitted:
            for minute in since.T:
                made.update(minute)
            rows = np.flatnonzero(np.array(sources) == made.name)
            found = made.forecast(horizon)
            mean[rows], any_[rows] = found[0][rows], found[1][rows]
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
    """``sources`` [F]: who foresees each function; ``paper``: rows with LS-LSTM, whose ``names`` are these."""

    sources: list[str]
    paper: list[int]
    names: list[str]
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
        self,
        door: History,
        board: Board,
        knobs: PrewarmSettings,
        *,
        craft: Craft,
        paper: Callable[[], Collection[str]],
        clock: Callable[[], float] = time.time,
    ) -> None:
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
            return Outcome(
                result="skipped", reason=f"{most} minutes were counted, {least} are needed.", functions=len(seen)
            )
        counts = matrix(past, functions)
        # From the first minute that anybody knows: a backtest over nothing would choose blindly.
        counts = counts[:, np.isfinite(counts).any(axis=0).argmax() :]
        wanted = self._paper()
        paper = [row for row, function in enumerate(functions) if function in wanted]
        model = self._craft.fit(functions, counts, paper, None if newest is None else newest.model)
        manifest = {
            "functions": functions,
            "minutes": most,
            "until": past.from_at + len(past.known) * MINUTE_S,
            "lesson": lesson,
            "imported": {function: len(minutes) for function, minutes in past.imported.items()},
        }
        version = self._door.store(manifest, model)
        self._board.use(version)
        return Outcome(
            result="fitted",
            reason=f"{most} minutes",
            version=version,
            functions=len(functions),
            seconds=time.perf_counter() - began,
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
            return Outcome(
                result="failed", reason=f"forecasts of shape {mean.shape} and {any_.shape}, {shape} is expected"
            )
        forecasts = Forecasts(
            version=self._board.version() + 1,
            model=fitted.version,
            made_at=now,
            from_at=past.from_at + len(past.known) * MINUTE_S,
            horizon=self._knobs.horizon,
            functions=functions,
            sources=sources,
            mean=mean.astype("<f4").tobytes(),
            any=any_.astype("<f4").tobytes(),
            lesson=int(fitted.manifest.get("lesson", 0)),
        )
        self._board.publish(forecasts)
        reason = ", ".join(f"{source} {count}" for source, count in sorted(Counter(sources).items()))
        return Outcome(
            result="published",
            reason=reason,
            version=forecasts.version,
            functions=len(functions),
            seconds=time.perf_counter() - began,
        )

    def _teach(self, past: Past, lesson: int) -> None:
        """Lay out what the rules of a new leader are taught."""
        skipped = max(0, len(past.known) - TAUGHT_MIN)
        counts: dict[str, list[int]] = {}
        for function in {*past.counts, *past.imported}:
            # A minute that was imported is none that was counted. In one that was counted in part something may have
            # been seen.
            minutes = {**past.imported.get(function, {}), **past.counts.get(function, {})}
            counts[function] = [
                value
                for minute, count in sorted(minutes.items())
                if count and minute >= skipped
                for value in (minute - skipped, count)
            ]
        known = [minute - skipped for minute, counted in enumerate(past.known) if counted and minute >= skipped]
        self._board.put_counts(
            Counted(from_at=past.from_at + skipped * MINUTE_S, known=known, counts=counts, lesson=lesson)
        )


def matrix(past: Past, functions: Sequence[str]) -> Floats:
    """
    Arrivals [F, T]: as they were counted, else as they were imported, else NaN, also where somebody counted a part.
    """
    counts = np.zeros((len(functions), len(past.known)))
    for row, function in enumerate(functions):
        for minute, count in past.counts.get(function, {}).items():
            counts[row, minute] = count
    counts[:, ~np.asarray(past.known, bool)] = np.nan
    for row, function in enumerate(functions):
        for minute, count in past.imported.get(function, {}).items():
            counts[row, minute] = count
    return counts
