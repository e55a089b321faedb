"""
Forecasts of arrivals, one immutable blob with a version, made anew each minute; and how the leader acts on them.

The ``learn`` worker makes it (``ml/forecast/foresight.py``) and publishes it whole (smore/redis/forecasts.py). Beside
it lies what was counted lately, for rules that begin anew with a leader, and which forecaster is in use. Numbers are
float32, little-endian, row by row; NaN = nothing can be said.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from smore.domain.prewarming import PrewarmStatus

FORMAT: Final = 1


class BadForecast(ValueError):
    """The blob is cut, of another format, or its parts do not fit together."""


class Forecasts(msgspec.Struct, frozen=True, kw_only=True):
    """
    ``mean``, ``any`` [F, H]: expected arrivals of ``functions`` (``<project>/<name>``) in the minutes from ``from_at``
    + 60 h, and the chance of at least one; ``sources`` [F]: the forecaster that was best in each one's backtest.
    ``model``: version of the fit; ``lesson``: the imported arrivals that it rests on
    (``lesson`` in smore/redis/forecasts.py).
    """

    format: int = FORMAT
    version: int
    model: int
    made_at: float
    from_at: float
    horizon: int
    functions: list[str]
    sources: list[str]
    mean: bytes
    any: bytes
    lesson: int = 0


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """
    Arrivals per minute as they were counted: ``counts``: function → [minute, arrivals, minute, arrivals, ...], minutes
    since ``from_at``, those without arrivals left out; ``known``: minutes since ``from_at`` that somebody counted.
    Arrivals that were imported stand among them, ``lesson`` as in the forecasts.
    """

    format: int = FORMAT
    from_at: float
    known: list[int]
    counts: Mapping[str, Sequence[int]]
    lesson: int = 0


class PrewarmReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    ``forecasts``: version of the forecasts in use, 0 = none; ``jumps``: how often the clock was set since this leader
    began.
    """

    version: int = 1
    at: float
    rule: str
    on: bool
    share: float
    forecasts: int
    jumps: int
    functions: Sequence[PrewarmStatus]


encode_prewarm_report = msgspec.json.Encoder().encode
decode_prewarm_report = msgspec.json.Decoder(PrewarmReport).decode


class _Header(msgspec.Struct):
    format: int


_header = msgspec.msgpack.Decoder(_Header).decode
_forecasts = msgspec.msgpack.Decoder(Forecasts).decode
_counted = msgspec.msgpack.Decoder(Counted).decode
encode = msgspec.msgpack.Encoder().encode


def decode(raw: bytes) -> Forecasts:
    """
    Raises BadForecast for a blob that is cut, of another format, or whose numbers are more or fewer than its names say.
    """
    _check_format(raw)
    try:
        forecasts = _forecasts(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadForecast(f"not a forecast: {error}") from error
    size = 4 * len(forecasts.functions) * forecasts.horizon
    if (
        forecasts.horizon < 1
        or len(forecasts.sources) != len(forecasts.functions)
        or len(forecasts.mean) != size
        or len(forecasts.any) != size
    ):
        raise BadForecast(
            f"{len(forecasts.functions)} functions and {forecasts.horizon} minutes do not fit its numbers"
        )
    return forecasts


def decode_counted(raw: bytes) -> Counted:
    """Raises BadForecast."""
    _check_format(raw)
    try:
        return _counted(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadForecast(f"not counts: {error}") from error


def _check_format(raw: bytes) -> None:
    if sys.byteorder != "little":
        raise BadForecast("the numbers are little-endian, this machine is not")
    try:
        header = _header(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadForecast(f"not a forecast: {error}") from error
    if header.format != FORMAT:
        raise BadForecast(f"format {header.format}, {FORMAT} is expected")
