"""What a training's iterations take alone and beside others."""

import pytest

from worker.training.beside import ALONE_S, IterationTimes, PaceBeside

HOST, GUEST = frozenset[str](), frozenset({"guest"})


def iterate(beside: PaceBeside, begin: float, count: int, seconds: float) -> float:
    """``count`` iterations from ``begin`` on; their end."""
    for number in range(1, count + 1):
        beside.add(begin + number * seconds, seconds)
    return begin + count * seconds


def test_iterations_count_by_who_else_trains() -> None:
    beside = PaceBeside()
    iterate(beside, 0.0, 5, 1.0)
    assert beside.alone == IterationTimes(), "nobody has said yet who trains here"
    assert beside.meet(10.0, HOST)
    assert not beside.meet(11.0, HOST)
    at = iterate(beside, 10.0, 200, 0.1)
    alone = beside.alone
    assert (alone.mean, alone.error) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-9))
    # It has come and does not iterate yet.
    assert beside.meet(at, None)
    at = iterate(beside, at, 20, 0.5)
    assert beside.meet(at, GUEST)
    beside.add(at + 0.1, 0.4)
    iterate(beside, at + 0.1, 100, 0.15)
    assert (beside.beside.mean, beside.beside.n) == (pytest.approx(0.15), 100), (
        "one that began before counts for nothing"
    )
    assert beside.since == at
    # The last block, during which the other one may have come, is left out.
    assert beside.alone.mean == pytest.approx(0.1)
    assert 150 <= beside.alone.n < 200


def test_alone_goes_back_a_while_and_a_short_time_alone_does_not_replace_a_long_one() -> None:
    beside = PaceBeside()
    beside.meet(0.0, HOST)
    at = iterate(beside, 0.0, int(2 * ALONE_S), 1.0)
    assert beside.alone.n <= ALONE_S + 3
    before = beside.alone
    beside.meet(at, GUEST)
    beside.meet(at + 10, HOST)
    iterate(beside, at + 10, 3, 2.0)
    assert beside.alone.n >= before.n - 3
    assert beside.alone.mean == 1.0
    iterate(beside, at + 16, 30, 2.0)
    assert beside.alone.mean == 2.0


def test_scatter_is_that_of_blocks_and_outlives_the_worker() -> None:
    beside = PaceBeside(IterationTimes(0.5, 40, 0.01))
    assert beside.alone == IterationTimes(0.5, 40, 0.01)
    beside.meet(0.0, HOST)
    at = 0.0
    for turn in range(20):
        at = iterate(beside, at, 20, 0.1 if turn % 2 else 0.2)
    # Blocks by turns slow and fast: far more than the standard error of 400 independent iterations.
    assert beside.alone.error > 0.003
    assert beside.alone.mean == pytest.approx(0.15)
