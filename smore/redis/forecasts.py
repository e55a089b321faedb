"""
Prewarming in Redis: arrivals that are expected, one immutable blob with a version, made anew each minute; and how the
leader acts on them.

The ``learn`` worker makes it (``ml/forecast/foresight.py``) and puts it here whole. Beside it lies what was counted
lately, for rules that begin anew with a leader, and which forecaster is in use. Numbers are float32, little-endian, row
by row; NaN = nothing can be said.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec
import redis

FORMAT: Final = 1
#: The source of a forecast without numbers: the rule goes by the function's own gaps
#: (scheduler/policy/prewarm/window.py).
OWN: Final = "gaps"
#: A blob that nobody replaces is gone after this: it would have been stale long before.
TTL_S: Final = 3600


class BadForecast(ValueError):
    """The blob is cut, of another format, or its parts do not fit together."""


class Forecasts(msgspec.Struct, frozen=True, kw_only=True):
    """
    ``mean``, ``any`` [F, H]: expected arrivals of ``functions`` (``<project>/<name>``) in the minutes from ``from_at``
    + 60 h, and the chance of at least one; ``sources`` [F]: the forecaster that was best in each one's backtest.
    ``model``: version of the fit; ``lesson``: state of what was imported that it rests on (:meth:`Board.lesson`).
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


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """
    How the leader keeps one function. ``silence``: why its rule has no say and its keep-alive holds, '' = it has;
    ``source``: whose word is followed. ``holds``: (from, until, instances) in epoch seconds, until None = for ever.
    ``loaded``: those on their way included; ``unmet``: there is no room for what is wanted. ``parked`` instances lie in
    host memory, from where a load takes ``host_s``.
    """

    function: str
    revision: int
    mode: str
    source: str
    silence: str
    wanted: int
    loaded: int
    unmet: bool
    load_s: float
    holds: Sequence[tuple[float, float | None, int]]
    parked: int = 0
    host_s: float = 0.0


class State(msgspec.Struct, frozen=True, kw_only=True):
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
    functions: Sequence[Keeping]


encode_state = msgspec.json.Encoder().encode
decode_state = msgspec.json.Decoder(State).decode


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
        found = _forecasts(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadForecast(f"not a forecast: {error}") from error
    size = 4 * len(found.functions) * found.horizon
    if (
        found.horizon < 1
        or len(found.sources) != len(found.functions)
        or len(found.mean) != size
        or len(found.any) != size
    ):
        raise BadForecast(f"{len(found.functions)} functions and {found.horizon} minutes do not fit its numbers")
    return found


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


class Board:
    """
    Where forecasts hang out in Redis: the blob, its version, the counts, and the version of the forecaster in use.
    """

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._redis = client
        self._blob, self._version = f"{prefix}prewarm:forecasts", f"{prefix}prewarm:version"
        self._counts, self._model, self._state = (
            f"{prefix}prewarm:counts",
            f"{prefix}prewarm:model",
            f"{prefix}prewarm:state",
        )
        self._lesson, self._learned = f"{prefix}prewarm:lesson", f"{prefix}prewarm:learned"

    def publish(self, forecasts: Forecasts) -> None:
        """Put forecasts in place of the last ones, in one step."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.set(self._blob, encode(forecasts), ex=TTL_S)
        pipeline.set(self._version, forecasts.version)
        pipeline.execute()

    def version(self) -> int:
        """0 where none was published."""
        return int(cast("bytes | None", self._redis.get(self._version)) or 0)

    def current(self) -> Forecasts | None:
        """None where there are none (any more); raises BadForecast."""
        raw = cast("bytes | None", self._redis.get(self._blob))
        return None if raw is None else decode(raw)

    def put_counts(self, counted: Counted) -> None:
        self._redis.set(self._counts, encode(counted))

    def counts(self) -> Counted | None:
        """Raises BadForecast."""
        raw = cast("bytes | None", self._redis.get(self._counts))
        return None if raw is None else decode_counted(raw)

    def use(self, model: int) -> None:
        """A forecaster was fitted."""
        self._redis.set(self._model, model)

    def model(self) -> int:
        """Version of the forecaster in use, 0 = there is none."""
        return int(cast("bytes | None", self._redis.get(self._model)) or 0)

    def changed(self) -> None:
        """What was imported has changed: the learn worker fits anew when the next minute begins."""
        self._redis.incr(self._lesson)

    def lesson(self) -> int:
        """How often what was imported has changed."""
        return int(cast("bytes | None", self._redis.get(self._lesson)) or 0)

    def learned(self, lesson: int) -> None:
        """A fit has looked at what was imported."""
        self._redis.set(self._learned, lesson)

    def unlearned(self) -> bool:
        """Whether what was imported has changed since a fit looked at it."""
        lesson, learned = cast("list[bytes | None]", self._redis.mget(self._lesson, self._learned))
        return int(lesson or 0) != int(learned or 0)

    def tell(self, state: bytes, ttl_s: float) -> None:
        """How the leader keeps functions now (:class:`State`)."""
        self._redis.set(self._state, state, px=int(ttl_s * 1000))

    def state(self) -> bytes | None:
        """None where no leader has said so lately."""
        return cast("bytes | None", self._redis.get(self._state))
