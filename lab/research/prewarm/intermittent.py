"""Forecasts of intermittent demand with the library statsforecast (optional dependency ``forecast``)."""

from functools import lru_cache
from typing import Any, ClassVar, Final, Self

import numpy as np

from ml.forecast.forecaster import Floats, chance, checked, column, pack, unpack

#: Minutes of history that a forecast uses.
HISTORY: Final = 240


@lru_cache(maxsize=1)
def _models() -> Any:
    # Imported on first use: it takes seconds and is optional.
    import statsforecast.models

    return statsforecast.models


class Intermittent:
    """
    TSB (Teunter, Syntetos and Babai, 2011): the size of a request minute times the chance of one, both smoothed
    exponentially. ``alpha_d``, ``alpha_p``: the weights of the newest size and of the newest minute.
    """

    name: ClassVar[str] = "intermittent"

    def __init__(self, *, alpha_d: float = 0.2, alpha_p: float = 0.1) -> None:
        self._alphas = (alpha_d, alpha_p)
        self._last = np.zeros((0, 0))

    def fit(self, counts: Floats) -> None:
        self._last = checked(counts)[:, -HISTORY:]

    def update(self, counts: Floats) -> None:
        self._last = np.concatenate([self._last, column(counts, len(self._last))], axis=1)[:, -HISTORY:]

    def forecast(self, horizon: int = 1) -> tuple[Floats, Floats]:
        model = _models().TSB(alpha_d=self._alphas[0], alpha_p=self._alphas[1])
        occurs = _models().TSB(alpha_d=1.0, alpha_p=self._alphas[1])
        mean, any_ = np.full(len(self._last), np.nan), np.full(len(self._last), np.nan)
        for row, series in enumerate(self._last):
            counted = series[np.isfinite(series)]
            if len(counted) and counted.any():
                mean[row] = max(0.0, model.forecast(counted, 1)["mean"][0])
                any_[row] = min(1.0, max(0.0, occurs.forecast((counted > 0).astype(float), 1)["mean"][0]))
            elif len(counted):
                mean[row] = any_[row] = 0.0
        any_ = np.where(np.isfinite(any_), any_, chance(mean))
        return np.repeat(mean[:, None], horizon, axis=1), np.repeat(any_[:, None], horizon, axis=1)

    def dumps(self) -> bytes:
        return pack(self.name, {"last": self._last}, alphas=list(self._alphas))

    @classmethod
    def loads(cls, raw: bytes) -> Self:
        meta, arrays = unpack(cls.name, raw)
        forecaster = cls(alpha_d=meta["alphas"][0], alpha_p=meta["alphas"][1])
        forecaster._last = arrays["last"]
        return forecaster
