"""What the scheduler has learned by runs and loads, so that the next leader goes on with it."""

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedTimes:
    """
    Of one batch size, seconds alone: what is expected of it, usually and when all goes well, the same by its own runs,
    and how many of those there were, older ones fading. Raises ValueError for what is no time.
    """

    rows: int
    run_s: float
    best_s: float
    own_run_s: float
    own_best_s: float
    runs: float

    def __post_init__(self) -> None:
        _check(self.rows > 0 and self.runs >= 0)
        _check(all(0 < each < _MOST_S for each in (self.run_s, self.best_s, self.own_run_s, self.own_best_s)))
        _check(isfinite(self.runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """
    Of a revision, after ``lessons`` observations. ``load_s``, ``host_s``: a cold start, a load out of host memory (None
    = there was none). ``usage``, ``degradation``: the averages of Eq. 5, of so many observations (``observed``).
    ``ran_at``: when its last run ended, epoch seconds; ``forget_s``: how fast what that said is forgotten. Raises
    ValueError for what cannot be.
    """

    revision: int
    lessons: int
    times: tuple[LearnedTimes, ...]
    load_s: float
    host_s: float | None
    usage: float
    degradation: float
    observed: float
    ran_at: float
    forget_s: float

    def __post_init__(self) -> None:
        _check(all(0 <= each < _MOST_S for each in (self.load_s, self.host_s or 0.0, self.usage, self.degradation)))
        _check(self.observed > 0 and 0 < self.forget_s < _MOST_S)
        _check(isfinite(self.observed) and isfinite(self.ran_at))


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCost:
    """
    Of what functions cost a training (scheduler/policy/budget/controller.py: corrected): how many times the
    prediction, the standard error of that, when the last window began that was learned from (epoch seconds), and the
    sums behind it. Raises ValueError for what cannot be.
    """

    factor: float
    error: float
    seen: float
    lost: float
    charged: float
    noise: float

    def __post_init__(self) -> None:
        _check(0 < self.factor < _MOST_S and 0 <= self.error < _MOST_S and 0 <= self.noise < _MOST_S)
        _check(all(isfinite(each) for each in (self.seen, self.lost, self.charged)))


#: No time that anybody measures is as long, seconds.
_MOST_S = 1e9


def _check(good: bool) -> None:
    if not good:
        raise ValueError("out of range")
