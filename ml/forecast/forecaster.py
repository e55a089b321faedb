"""
What every forecaster is, and those that need no training but counting.

Counts are [F, T]: requests of F functions in T minutes; NaN: nobody counted. A forecaster is fitted on a span, then
told one minute after the other, and asked for the minutes that follow. Its bytes hold all of it: what it learned and
where it stands.
"""

import io
import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Minutes after which a gap is no longer told apart from longer ones.
LONGEST_GAP: Final = 1440
#: Periods in minutes that a seasonal forecaster chooses from.
PERIODS: Final = (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440)


class Forecaster(Protocol):
    """Of ``F`` functions, the same ones from the fit on."""

    name: ClassVar[str]

    def fit(self, counts: Floats) -> None:
        """Learn from [F, T], oldest first, and stand behind its last minute."""
        ...

    def update(self, counts: Floats) -> None:
        """The next minute has come: [F]. Nothing is trained."""
        ...

    def forecast(self, horizon: int = 1) -> tuple[Floats, Floats]:
        """
        ``mean`` and ``any`` [F, horizon] of the next minutes, see ``scheduler.policy.prewarm.window.Forecast``; NaN:
        not known.
        """
        ...

    def dumps(self) -> bytes: ...

    @classmethod
    def loads(cls, raw: bytes) -> Self:
        """ValueError for what ``dumps`` of this class did not write."""
        ...


def checked(counts: Floats) -> Floats:
    """[F, T] as floats. ValueError for another shape; what is no count (negative, infinite) is taken as not counted."""
    found = np.array(counts, float)
    if found.ndim != 2:
        raise ValueError(f"counts have {found.ndim} dimensions: [functions, minutes] is expected")
    found[~np.isfinite(found) | (found < 0)] = np.nan
    return found


def column(counts: Floats, functions: int) -> Floats:
    """[F] of one minute as [F, 1], checked."""
    found = checked(np.asarray(counts, float).reshape(-1, 1))
    if len(found) != functions:
        raise ValueError(f"{len(found)} counts for {functions} functions")
    return found


def pack(name: str, arrays: Mapping[str, NDArray[Any]], **meta: object) -> bytes:
    buffer = io.BytesIO()
    head = np.frombuffer(json.dumps({"forecaster": name, **meta}, sort_keys=True).encode(), np.uint8)
    np.savez(buffer, allow_pickle=False, meta=head, **arrays)
    return buffer.getvalue()


def unpack(name: str, raw: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """(meta, arrays). ValueError for anything else than bytes of :func:`pack` under this name."""
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        meta: dict[str, Any] = json.loads(arrays.pop("meta").tobytes())
    except Exception as error:
        raise ValueError(f"no forecaster: {error}") from error
    if meta.get("forecaster") != name:
        raise ValueError(f"bytes of {meta.get('forecaster')!r}, not of {name!r}")
    return meta, arrays


def chance(mean: Floats) -> Floats:
    """Of at least one request, where only a mean is known: that of a Poisson stream."""
    return np.asarray(-np.expm1(-mean))


class Seasonal:
    """
    Seasonal-naive: what came a period ago. The period of each function is the one of :data:`PERIODS` whose repetition
    was nearest to what came, by the mean absolute difference over the span of the fit (``period``: the same for all).
    """

    name: ClassVar[str] = "seasonal-naive"

    def __init__(self, *, period: int | None = None) -> None:
        self._fixed = period
        self._last = np.zeros((0, 0))
        self._period = np.zeros(0, np.int64)

    def fit(self, counts: Floats) -> None:
        counts = checked(counts)
        length = counts.shape[1]
        options = [one for one in PERIODS if 2 * one <= length] or [1]
        if self._fixed is not None:
            options = [self._fixed]
        errors = np.full((len(options), len(counts)), np.inf)
        for place, period in enumerate(options):
            if period < length:
                difference = np.abs(counts[:, period:] - counts[:, :-period])
                known = np.isfinite(difference)
                # A long period has few repetitions: a difference of one request counts for those it has not had.
                errors[place] = (np.where(known, difference, 0).sum(axis=1) + 1) / np.maximum(1, known.sum(axis=1))
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
        made = cls(period=meta["fixed"])
        made._last, made._period = arrays["last"], arrays["period"]
        return made


class Renewal:
    """
    By how long ago the last minute with a request was: the share of the function's gaps of that length or longer that
    ended then.

    A gap is counted in whole minutes between minutes with requests, so that what comes on the clock is met to the
    minute. ``prior`` gaps with a hazard of ``tail`` / age stand for what is not known; a gap also counts a little
    (``spill``) for the minutes beside it.
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
        # A minute that nobody counted makes a gap no shorter and no longer than it would have been without requests.
        begun = self._age >= 0
        ended = np.flatnonzero(active & begun)
        self._gaps[ended, np.minimum(self._age[ended] + 1, LONGEST_GAP)] += 1
        full = ended[self._gaps[ended].sum(axis=1) > LONGEST_GAP]
        self._gaps[full] *= 0.5
        self._age[begun] += 1
        self._age[active] = 0
        self._size[active] += 0.1 * (now[active] - self._size[active])

    def _hazard(self, first: int) -> Floats:
        """[F]: that the gap ends ``first`` minutes after the last minute that was told."""
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
        found = np.zeros((len(self._age), horizon))
        alone = np.ones(len(self._age))
        total = np.maximum(1.0, self._gaps.sum(axis=1, dtype=float))
        for ahead in range(horizon):
            hazard = self._hazard(ahead + 1)
            # It is active then after a gap that is under way, or after one that began in a minute before.
            found[:, ahead] = alone * hazard
            for back in range(ahead):
                found[:, ahead] += found[:, back] * self._gaps[:, ahead - back] / total
            alone = alone * (1 - hazard)
        found = np.clip(found, 0.0, 1.0)
        return found * np.maximum(self._size, 1.0)[:, None], found

    def dumps(self) -> bytes:
        return pack(self.name, {"gaps": self._gaps, "age": self._age, "size": self._size}, beliefs=list(self._beliefs))

    @classmethod
    def loads(cls, raw: bytes) -> Self:
        meta, arrays = unpack(cls.name, raw)
        prior, tail, spill = meta["beliefs"]
        made = cls(prior=prior, tail=tail, spill=spill)
        made._gaps, made._age, made._size = arrays["gaps"], arrays["age"], arrays["size"]
        return made


def rolling(
    forecaster: Forecaster, counts: Floats, begin: int, *, refit_every: int = 0, span: int | None = None
) -> tuple[Floats, Floats]:
    """
    ``mean`` and ``any`` [F, T] one minute ahead, for the minutes from ``begin`` on, NaN before; each is made with what
    came earlier alone.

    ``refit_every``: minutes after which it is fitted anew on the last ``span`` (None: on all that lies behind); 0:
    never.
    """
    functions, length = counts.shape
    mean, any_ = np.full((functions, length), np.nan), np.full((functions, length), np.nan)

    def past(minute: int) -> Floats:
        return counts[:, max(0, minute - (span or minute)) : minute]

    forecaster.fit(past(begin))
    for minute in range(begin, length):
        if refit_every and minute > begin and (minute - begin) % refit_every == 0:
            forecaster.fit(past(minute))
        ahead, chances = forecaster.forecast(1)
        mean[:, minute], any_[:, minute] = ahead[:, 0], chances[:, 0]
        forecaster.update(counts[:, minute])
    return mean, any_


def brier(any_: Floats, counts: Floats) -> Floats:
    """
    [F]: mean squared difference between the chance of a request and whether there was one; NaN where nothing was
    forecast.
    """
    came = np.where(np.isnan(counts), np.nan, counts > 0)
    squares = (any_ - came) ** 2
    known = np.isfinite(squares)
    return np.asarray(
        np.where(
            known.any(axis=1), np.where(known, squares, 0).sum(axis=1) / np.maximum(1, known.sum(axis=1)), math.nan
        )
    )


def mase(mean: Floats, counts: Floats, begin: int) -> Floats:
    """
    [F]: mean absolute error of the minutes from ``begin`` on, over that of "as in the minute before" in the minutes
    before them (Hyndman and Koehler, 2006); NaN where nothing changed there.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        wrong = np.nanmean(np.abs(mean[:, begin:] - counts[:, begin:]), axis=1)
        usual = np.nanmean(np.abs(np.diff(counts[:, :begin], axis=1)), axis=1)
        return np.where(usual > 0, wrong / usual, math.nan)
