"""
Forecasts of arrivals in the running platform: fits a forecaster for all functions at once, and publishes its forecasts.

A child process of the ``learn`` worker runs it (``scheduler/tasks/forecasting.py``) each minute and whenever a fit is
due. Counts are read from Postgres, the fitted forecaster is stored there, and forecasts are written to Redis
(smore/redis/forecasts.py), where the leader reads them.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ml.forecast.choice import Judge, choose
from ml.forecast.forecaster import Forecaster, Renewal, Seasonal, rolling
from smore.messages.forecasts import Counted, Forecasts
from smore.postgres.arrivals import MINUTE_S, SPAN_MIN, ArrivalCounts, ArrivalStore
from smore.process.settings import PrewarmSettings
from smore.redis.forecasts import PublishedForecasts

Floats = NDArray[np.float64]

#: Minutes of counts in Redis, from which a new leader's rules learn.
TAUGHT_MIN: Final = 1440


class ForecastToolkit(Protocol):
    """The functions that fit and forecast, without input or output."""

    def fit(self, functions: Sequence[str], counts: Floats, paper: Sequence[int], before: bytes | None) -> bytes:
        """
        The bytes of a forecaster fitted on ``counts`` [F, T], arrivals per minute, NaN = not counted. The rows
        ``paper`` use LS-LSTM. ``before``: the bytes of the last fit, possibly of other functions.
        """
        ...

    def forecast(self, model: bytes, since: Floats, horizon: int) -> tuple[Floats, Floats, list[str]]:
        """
        (mean [F, H], chance of any [F, H], sources [F]) of the minutes after ``since`` [F, K], the counts since the
        fit.
        """
        ...


#: Makes the judge of a backtest, from (functions, counts [F, T], first judged minute).
Judging = Callable[[Sequence[str], Floats, int], Judge]


class Best:
    """
    For each function the forecaster with the least cost in a rolling backtest over the last fifth of the counts
    (``ml/forecast/choice.py``): seasonal, or by the gaps between minutes with requests. If neither is better, the rule
    uses the gaps between requests, and the source is ``smore.domain.prewarming.OWN``. The rows ``paper`` always use LS-LSTM, which
    continues from the weights of the fit before.
    """

    def __init__(self, judging: Judging) -> None:
        self._judging = judging

    def fit(self, functions: Sequence[str], counts: Floats, paper: Sequence[int], before: bytes | None) -> bytes:
        begin = max(1, int(counts.shape[1] * 0.8))
        fitted: list[Forecaster] = [Seasonal(), Renewal()]
        ahead = {forecaster.name: rolling(forecaster, counts, begin) for forecaster in fitted}
        for forecaster in fitted:
            forecaster.fit(counts)
        sources = choose(ahead, counts, self._judging(functions, counts, begin))
        lstm = b""
        if len(paper):
            # Imported here: only LS-LSTM needs torch.
            from ml.forecast.lstm import LongShort

            network, names = LongShort(), [functions[row] for row in paper]
            # Bytes of another version, or without LS-LSTM, are ignored.
            with suppress(msgspec.DecodeError, ValueError):
                old = _parts(before or b"")
                kept = LongShort.loads(old.lstm)
                kept.rearrange([old.names.index(name) if name in old.names else -1 for name in names])
                network = kept
            network.fit(counts[list(paper)])
            lstm = network.dumps()
        parts = _Parts(
            sources=sources,
            paper=list(paper),
            names=[functions[row] for row in paper],
            models=[forecaster.dumps() for forecaster in fitted],
            lstm=lstm,
        )
        return msgspec.msgpack.encode(parts)

    def forecast(self, model: bytes, since: Floats, horizon: int) -> tuple[Floats, Floats, list[str]]:
        parts = _parts(model)
        sources = list(parts.sources)
        mean, any_ = np.full((len(sources), horizon), np.nan), np.full((len(sources), horizon), np.nan)
        fitted: list[Forecaster] = [Seasonal.loads(parts.models[0]), Renewal.loads(parts.models[1])]
        for forecaster in fitted:
            for minute in since.T:
                forecaster.update(minute)
            rows = np.flatnonzero(np.array(sources) == forecaster.name)
            forecasts = forecaster.forecast(horizon)
            mean[rows], any_[rows] = forecasts[0][rows], forecasts[1][rows]
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
    """
    ``sources`` [F]: the source of each function's forecasts. ``paper``: the rows with LS-LSTM, ``names``: their
    functions.
    """

    sources: list[str]
    paper: list[int]
    names: list[str]
    models: list[bytes]
    lstm: bytes


_parts = msgspec.msgpack.Decoder(_Parts).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastResult:
    """The result of a command. ``seconds``: time of reading, computing and writing."""

    result: Literal["fitted", "published", "skipped", "failed"]
    reason: str
    version: int | None = None
    functions: int = 0
    seconds: float = 0.0


@dataclass(eq=False)
class Foresight:
    """
    The forecasts of one platform. ``paper``: the functions that use LS-LSTM.

    Raises SQLAlchemy's OperationalError while Postgres is away, and redis-py's error while Redis is away.
    """

    history: ArrivalStore
    published: PublishedForecasts
    knobs: PrewarmSettings
    _: KW_ONLY
    toolkit: ForecastToolkit
    paper: Callable[[], Collection[str]]
    clock: Callable[[], float] = time.time

    def fit(self, *, asked: bool) -> ForecastResult:
        """Fit on counted and imported arrivals if ``asked`` or if a fit is due, and if there are enough minutes."""
        began, now = time.perf_counter(), self.clock()
        newest, lesson = self.history.newest(), self.published.lesson()
        past = self.history.past(now - SPAN_MIN * MINUTE_S, now)
        self._publish_counts(past, lesson)
        self.published.learned(lesson)
        unchanged = newest is not None and newest.manifest.get("lesson", 0) == lesson
        if newest is not None and unchanged and not asked and now - newest.created_at < self.knobs.refit_s:
            # Redis may have lost the version.
            self.published.use_model(newest.version)
            return ForecastResult(result="skipped", reason="The last fit is recent enough.", version=newest.version)
        candidates, least = sorted({*past.counts, *past.imported}), self.knobs.least_minutes
        known_minutes = dict(zip(candidates, np.isfinite(matrix(past, candidates)).sum(axis=1).tolist(), strict=True))
        most = max(known_minutes.values(), default=sum(past.counted))
        functions = [function for function in candidates if known_minutes[function] >= least]
        if not functions:
            if not unchanged:
                # The arrivals that it was fitted on have been withdrawn.
                self.published.use_model(0)
            return ForecastResult(
                result="skipped", reason=f"{most} minutes were counted; {least} are needed.", functions=len(candidates)
            )
        counts = matrix(past, functions)
        # Start at the first known minute: a backtest over unknown minutes would choose at random.
        counts = counts[:, np.isfinite(counts).any(axis=0).argmax() :]
        wanted = self.paper()
        paper = [row for row, function in enumerate(functions) if function in wanted]
        model = self.toolkit.fit(functions, counts, paper, None if newest is None else newest.model)
        manifest = {
            "functions": functions,
            "minutes": most,
            "until": past.from_at + len(past.counted) * MINUTE_S,
            "lesson": lesson,
            "imported": {function: len(minutes) for function, minutes in past.imported.items()},
        }
        version = self.history.store(manifest, model)
        self.published.use_model(version)
        return ForecastResult(
            result="fitted",
            reason=f"{most} minutes",
            version=version,
            functions=len(functions),
            seconds=time.perf_counter() - began,
        )

    def forecast(self) -> ForecastResult:
        """Forecast from the start of the current minute on, and publish."""
        began, now = time.perf_counter(), self.clock()
        fitted = self.history.newest()
        if fitted is None:
            return ForecastResult(result="skipped", reason="No forecaster has been fitted yet.")
        past = self.history.past(float(fitted.manifest["until"]), now)
        functions = [str(function) for function in fitted.manifest["functions"]]
        mean, any_, sources = self.toolkit.forecast(fitted.model, matrix(past, functions), self.knobs.horizon)
        shape = (len(functions), self.knobs.horizon)
        if mean.shape != shape or any_.shape != shape:
            return ForecastResult(
                result="failed", reason=f"forecasts of shape {mean.shape} and {any_.shape}, {shape} is expected"
            )
        forecasts = Forecasts(
            version=self.published.version() + 1,
            model=fitted.version,
            made_at=now,
            from_at=past.from_at + len(past.counted) * MINUTE_S,
            horizon=self.knobs.horizon,
            functions=functions,
            sources=sources,
            mean=mean.astype("<f4").tobytes(),
            any=any_.astype("<f4").tobytes(),
            lesson=int(fitted.manifest.get("lesson", 0)),
        )
        self.published.publish(forecasts)
        reason = ", ".join(f"{source} {count}" for source, count in sorted(Counter(sources).items()))
        return ForecastResult(
            result="published",
            reason=reason,
            version=forecasts.version,
            functions=len(functions),
            seconds=time.perf_counter() - began,
        )

    def _publish_counts(self, past: ArrivalCounts, lesson: int) -> None:
        """Write to Redis the counts that a new leader's rules learn from."""
        skipped = max(0, len(past.counted) - TAUGHT_MIN)
        counts: dict[str, list[int]] = {}
        for function in {*past.counts, *past.imported}:
            # An imported minute does not count as known. A minute that was counted in part may have requests.
            minutes = {**past.imported.get(function, {}), **past.counts.get(function, {})}
            counts[function] = [
                value
                for minute, count in sorted(minutes.items())
                if count and minute >= skipped
                for value in (minute - skipped, count)
            ]
        known_minutes = [
            minute - skipped for minute, counted in enumerate(past.counted) if counted and minute >= skipped
        ]
        self.published.put_counts(
            Counted(from_at=past.from_at + skipped * MINUTE_S, known=known_minutes, counts=counts, lesson=lesson)
        )


def matrix(past: ArrivalCounts, functions: Sequence[str]) -> Floats:
    """Arrivals [F, T]: imported counts where there are any, otherwise counted ones; NaN where neither is complete."""
    counts = np.zeros((len(functions), len(past.counted)))
    for row, function in enumerate(functions):
        for minute, count in past.counts.get(function, {}).items():
            counts[row, minute] = count
    counts[:, ~np.asarray(past.counted, bool)] = np.nan
    for row, function in enumerate(functions):
        for minute, count in past.imported.get(function, {}).items():
            counts[row, minute] = count
    return counts
