"""
Two trainings on one GPU instance: what each costs the other, and when both have ended.

With ``t`` the time left alone and ``x`` >= 1 the slowdown of each (A = x_a t_a, B = x_b t_b), the mean end of two that run
together from now on is t_a/2 + (1 - 1/(2 x_a)) B where A >= B, else t_b/2 + (1 - 1/(2 x_b)) A; of a that waits for b it
is t_b + t_a/2. No start between the two is better than the better of them (tests/unit/scheduler/policy/jobs/test_pairs.py).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scheduler.policy.jobs.events import PairKnown


class Slowdown(NamedTuple):
    """How many times longer an iteration takes: as expected, and at most in nine cases of ten."""

    expected: float
    most: float


#: Of two that run together although nobody has profiled them: each has half of the time.
UNPROFILED = Slowdown(2.0, 2.0)


class Pairs:
    """What is known of pairs, by device."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], Slowdown] = {}
        self._worse: set[tuple[str, str, str]] = set()

    def learn(self, pairs: Sequence[PairKnown]) -> None:
        """These and no others."""
        self._known = {
            (pair.device, pair.workload, pair.beside): Slowdown(max(1.0, pair.slowdown), max(1.0, pair.most))
            for pair in pairs
        }
        self._worse.clear()
        for pair in pairs:
            if pair.worse:
                self.note_worse(pair.device, pair.workload, pair.beside)

    def of(self, device: str, workload: str, beside: str) -> Slowdown | None:
        """Of ``workload`` beside another one, None = nobody has profiled the two."""
        return self._known.get((device, workload, beside))

    def gain(self, device: str, one: str, other: str) -> float:
        """The work that two do together of what one does alone, 0 = they were never profiled, or measured to be worse."""
        if self.was_worse(device, one, other):
            return 0.0
        first, second = self.of(device, one, other), self.of(device, other, one)
        return 1 / first.expected + 1 / second.expected if first is not None and second is not None else 0.0

    def note_worse(self, device: str, workload: str, beside: str) -> None:
        """``workload`` was measured to lose more than its owner allows."""
        self._worse |= {(device, workload, beside), (device, beside, workload)}

    def was_worse(self, device: str, workload: str, beside: str) -> bool:
        return (device, workload, beside) in self._worse


def share_now(a_s: float, a_x: float, b_s: float, b_x: float) -> float:
    """Mean end of two that run together from now on, from now on; ``a_s``, ``b_s`` alone, slowdowns ``a_x``, ``b_x``."""
    a_end, b_end = a_x * a_s, b_x * b_s
    if a_end >= b_end:
        return a_s / 2 + (1 - 1 / (2 * a_x)) * b_end
    return b_s / 2 + (1 - 1 / (2 * b_x)) * a_end


def wait_for(a_s: float, b_s: float) -> float:
    """Mean end of two of which a waits until b has ended."""
    return b_s + a_s / 2


class Host(NamedTuple):
    """A job beside which another one would start: its time left as it runs now, and both slowdowns."""

    left_s: float
    own: float
    its: float


def end_beside(left_s: float, others: Iterable[tuple[float, float]]) -> float:
    """
    When a job ends of which ``left_s`` are left alone, in seconds from now. ``others``: until when each is beside it, and
    how many times longer an iteration takes because of it; of several at a time the worst counts, because a gang is as
    slow as its slowest rank.
    """
    now = 0.0
    for until, slowdown in sorted(others, key=lambda other: -other[1]):
        if until <= now:
            continue
        done = (until - now) / slowdown
        if done >= left_s:
            return now + left_s * slowdown
        left_s -= done
        now = until
    return now + left_s


def ends(left_s: float, hosts: Sequence[Host]) -> tuple[float, list[float]]:
    """When a job would end that starts now beside ``hosts``, and when each of them, in seconds from now."""
    end = end_beside(left_s, [(host.left_s * host.its, host.own) for host in hosts])
    return end, [end_beside(host.left_s, [(end, host.its)]) for host in hosts]
