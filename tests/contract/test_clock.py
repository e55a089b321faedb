"""One contract of clocks, over the machine's and ManualClock: the time never goes back, and a wait ends when it is over."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from smore.testing import ManualClock
from tests.support.eventually import eventually

#: A sum of binary fractions, so the time is exact.
WAIT_S = 0.0625


@dataclass(frozen=True, kw_only=True)
class Clock:
    now: Callable[[], float]
    wait: Callable[[float], None]
    #: Let this much time pass where it does not pass by itself.
    let_pass: Callable[[float], None]


def real() -> Clock:
    return Clock(now=time.monotonic, wait=time.sleep, let_pass=lambda _: None)


def manual() -> Clock:
    clock = ManualClock(5.0)
    return Clock(now=clock, wait=clock.wait, let_pass=clock.advance)


@pytest.mark.parametrize("make", [real, manual])
def test_the_time_never_goes_back(make: Callable[[], Clock]) -> None:
    clock = make()
    seen = []
    for _ in range(3):
        seen.append(clock.now())
        clock.let_pass(0.25)
    assert seen == sorted(seen)


@pytest.mark.parametrize("make", [real, manual])
def test_a_wait_ends_when_its_time_has_passed_and_not_before(make: Callable[[], Clock]) -> None:
    clock = make()
    before = clock.now()
    ended: list[float] = []

    def wait() -> None:
        clock.wait(WAIT_S)
        ended.append(clock.now())

    thread = threading.Thread(target=wait)
    thread.start()

    def over() -> bool:
        """A wait that begins after the time has passed waits for the next."""
        clock.let_pass(WAIT_S)
        return bool(ended)

    eventually(over, what="the end of the wait")
    thread.join()
    assert ended[0] - before >= WAIT_S


def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(5.0)
    assert (clock(), clock()) == (5.0, 5.0)
    clock.advance(1.5)
    clock.advance(0.0)
    assert clock() == 6.5
    clock.advance_to(7.0)
    assert clock() == 7.0
    clock.wait(0.0)
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1.0)
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance_to(6.0)
