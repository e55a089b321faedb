"""
The interface of a forecaster, and the forecasters that only count.

Counts are [F, T]: requests of F functions in T minutes, NaN = not counted. A forecaster is fitted on a span, updated
minute by minute, and asked for the following minutes. Its bytes hold its parameters and its state.
"""

import io
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Longest gap in minutes; longer gaps count as this long.
LONGEST_GAP: Final = 1440
#: Candidate periods of a seasonal forecaster, minutes.
PERIODS: Final = (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440)


class Forecaster(Protocol):
    """A forecaster of F functions; the functions and their order are fixed by the fit."""

    name: ClassVar[str]

    def fit(self, counts: Floats) -> None:
        """Fit on [F, T], oldest minute first. The state is then that after the last minute."""
        ...

    def update(self, counts: Floats) -> None:
        """Advance by one minute with the counts [F], without training."""
        ...

    def forecast(self, horizon: int = 1) -> tuple[Floats, Floats]:
        """
        ``mean`` and ``any`` [F, horizon] of the next minutes, see ``scheduler.policy.prewarm.window.Forecast``; NaN =
        unknown.
        """
        ...

    def dumps(self) -> bytes: ...

    @classmethod
    def loads(cls, raw: bytes) -> Self:
        """The forecaster from its bytes. Raises ValueError for bytes that ``dumps`` of this class did not write."""
        ...


def checked(counts: Floats) -> Floats:
    """[F, T] as floats. Negative and infinite counts become NaN. Raises ValueError for another shape."""
    checked_counts = np.array(counts, float)
    if checked_counts.ndim != 2:
        raise ValueError(f"counts have {checked_counts.ndim} dimensions: [functions, minutes] is expected")
    checked_counts[~np.isfinite(checked_counts) | (checked_counts < 0)] = np.nan
    return checked_counts


def column(counts: Floats, functions: int) -> Floats:
    """The counts [F] of one minute as [F, 1], checked."""
    minute = checked(np.asarray(counts, float).reshape(-1, 1))
    if len(minute) != functions:
        raise ValueError(f"{len(minute)} counts for {functions} functions")
    return minute


def pack(name: str, arrays: Mapping[str, NDArray[Any]], **meta: object) -> bytes:
    buffer = io.BytesIO()
    head = np.frombuffer(json.dumps({"forecaster": name, **meta}, sort_keys=True).encode(), np.uint8)
    np.savez(buffer, allow_pickle=False, meta=head, **arrays)
    return buffer.getvalue()


def unpack(name: str, raw: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """(meta, arrays) from the bytes of :func:`pack`. Raises ValueError for other bytes or another name."""
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        meta: dict[str, Any] = json.loads(arrays.pop("meta").tobytes())
    except Exception as error:
        raise ValueError(f"not the bytes of a forecaster: {error}") from error
    if meta.get("forecaster") != name:
        raise ValueError(f"bytes of {meta.get('forecaster')!r}, not of {name!r}")
    return meta, arrays


def chance(mean: Floats) -> Floats:
    """The chance of at least one request for a Poisson stream with this mean."""
    return np.asarray(-np.expm1(-mean))


class Seasonal:
    """
    Seasonal-naive: the count one period ago. The period of each function is the one of :data:`PERIODS` with the
    smallest mean absolute difference over the span of the fit. ``period`` fixes it for all functions.
    """

    name: ClassVar[str] = "seasonal-naive"

    def __init__(self, *, period: int | None = None) -> None:
        self._fixed = period
        self._last = np.zeros((0, 0))
        self._period = np.zeros(0, np.int64)

    def fit(self, counts: Floats) -> None:
        counts = checked(counts)
        length = counts.shape[1]
        options = [period for period in PERIODS if 2 * period <= length] or [1]
        if self._fixed is not None:
            options = [self._fixed]
        errors = np.full((len(options), len(counts)), np.inf)
        for index, period in enumerate(options):
            if period < length:
                difference = np.abs(counts[:, period:] - counts[:, :-period])
                counted = np.isfinite(difference)
                # A long period has few repetitions, so one assumed difference of one request is added.
                errors[index] = (np.where(counted, difference, 0).sum(axis=1) + 1) / np.maximum(1, counted.sum(axis=1))
        self._period = np.array(options, np.int64)[np.argmin(errors, axis=0)]
        width = max(options)
        self._last = np.full((len(counts), width), np.nan)
        tail = counts[:, -width:]
        self._last[:, width - tail.shape[1] :] = tail

    def update(self, counts: Floats) -> None:
        self._last = np.concatenate([self._last[:, 1:], column(counts, len(self._last))], axis=1)

    def forecast(self, horizon: int = 1) -> tuple[Floats, Floats]:
        width = self._last.shape[1]
        ahead = np.arange(horizon)[None, :] % self._period[:, None]
        mean = np.take_along_axis(self._last, width - self._period[:, None] + ahead, axis=1)
        return mean, np.where(np.isnan(mean), np.nan, np.where(mean > 0, 1.0, 0.0))

    def dumps(self) -> bytes:
        return pack(self.name, {"last": self._last, "period": self._period}, fixed=self._fixed)

    @classmethod
    def loads(cls, raw: bytes) -> Self:
        meta, arrays = unpack(cls.name, raw)
        forecaster = cls(period=meta["fixed"])
        forecaster._last, forecaster._period = arrays["last"], arrays["period"]
        return forecaster


class Renewal:
    """
    The hazard of a request by the age of the current gap: the share of the function's gaps of at least that length that
    ended at that length.

    A gap is counted in whole minutes between minutes with requests, so that requests at fixed intervals are met to the
    minute. ``prior`` virtual gaps with a hazard of ``tail`` / age stand for missing data. A gap also counts with the
    weight ``spill`` for the minute before and after.
    """

    name: ClassVar[str] = "renewal"

    def __init__(self, *, prior: float = 1.0, tail: float = 0.3, spill: float = 0.1) -> None:
        self._beliefs = (prior, tail, spill)
        self._gaps = np.zeros((0, LONGEST_GAP + 1), np.float32)
        self._age = np.zeros(0, np.int64)
        self._size = np.zeros(0)

    def fit(self, counts: Floats) -> None:
        counts = checked(counts)
        self._gaps = np.zeros((len(counts), LONGEST_GAP + 1), np.float32)
        self._age = np.full(len(counts), -1, np.int64)
        self._size = np.ones(len(counts))
        for minute in range(counts.shape[1]):
            self.update(counts[:, minute])

    def update(self, counts: Floats) -> None:
        now = column(counts, len(self._age))[:, 0]
        active = now > 0
        # A minute that was not counted changes a gap as a minute without requests does.
        begun = self._age >= 0
        ended = np.flatnonzero(active & begun)
        self._gaps[ended, np.minimum(self._age[ended] + 1, LONGEST_GAP)] += 1
        full = ended[self._gaps[ended].sum(axis=1) > LONGEST_GAP]
        self._gaps[full] *= 0.5
        self._age[begun] += 1
        self._age[active] = 0
        self._size[active] += 0.1 * (now[active] - self._size[active])

    def _hazard(self, first: int) -> Floats:
        """[F]: the chance that the gap ends ``first`` minutes after the last update."""
        prior, tail, spill = self._beliefs
        age = np.minimum(np.maximum(self._age, 0) + first, LONGEST_GAP)
        rows = np.arange(len(age))
        width = np.array([-1, 0, 1])
        places = np.clip(age[:, None] + width, 1, LONGEST_GAP)
        near = self._gaps[rows[:, None], places].astype(float) * np.array([spill, 1 - 2 * spill, spill])
        after = np.cumsum(self._gaps[:, ::-1], axis=1, dtype=np.float64)[:, ::-1]
        at_risk = after[rows, age] + spill * (self._gaps[rows, np.maximum(age - 1, 0)])
        hazard = (near.sum(axis=1) + prior * np.minimum(1.0, tail / age)) / (
            np.maximum(at_risk, near.sum(axis=1)) + prior
        )
        return np.where(self._age < 0, 0.0, np.minimum(hazard, 1.0))

    def forecast(self, horizon: int = 1) -> tuple[Floats, Floats]:
        if not len(self._age):
            return np.zeros((0, horizon)), np.zeros((0, horizon))
        active = np.zeros((len(self._age), horizon))
        alone = np.ones(len(self._age))
        total = np.maximum(1.0, self._gaps.sum(axis=1, dtype=float))
        for ahead in range(horizon):
            hazard = self._hazard(ahead + 1)
            # A request comes at the end of the current gap, or of a gap that began in a forecast minute before.
            active[:, ahead] = alone * hazard
            for back in range(ahead):
                active[:, ahead] += active[:, back] * self._gaps[:, ahead - back] / total
            alone = alone * (1 - hazard)
        active = np.clip(active, 0.0, 1.0)
        return active * np.maximum(self._size, 1.0)[:, None], active

    def dumps(self) -> bytes:
        return pack(self.name, {"gaps": self._gaps, "age": self._age, "size": self._size}, beliefs=list(self._beliefs))

    @classmethod
    def loads(cls, raw: bytes) -> Self:
        meta, arrays = unpack(cls.name, raw)
        prior, tail, spill = meta["beliefs"]
        forecaster = cls(prior=prior, tail=tail, spill=spill)
        forecaster._gaps, forecaster._age, forecaster._size = arrays["gaps"], arrays["age"], arrays["size"]
        return forecaster


def rolling(
    forecaster: Forecaster, counts: Floats, begin: int, *, refit_every: int = 0, span: int | None = None
) -> tuple[Floats, Floats]:
    """
    ``mean`` and ``any`` [F, T] one minute ahead for the minutes from ``begin`` on, NaN before; each uses earlier
    minutes only.

    ``refit_every``: minutes between fits on the last ``span`` minutes (None: on all earlier ones); 0 = one fit only.
    """
    functions, length = counts.shape
    mean, any_ = np.full((functions, length), np.nan), np.full((functions, length), np.nan)

    def history(minute: int) -> Floats:
        return counts[:, max(0, minute - (span or minute)) : minute]

    forecaster.fit(history(begin))
    for minute in range(begin, length):
        if refit_every and minute > begin and (minute - begin) % refit_every == 0:
            forecaster.fit(history(minute))
        ahead, chances = forecaster.forecast(1)
        mean[:, minute], any_[:, minute] = ahead[:, 0], chances[:, 0]
        forecaster.update(counts[:, minute])
    return mean, any_
