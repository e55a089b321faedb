"""Two trainings on one GPU instance: the closed forms, the pair theorem, groups, and micro-batches."""

from random import Random

import numpy as np
import pytest

from scheduler.policy.jobs.events import PairKnown
from scheduler.policy.jobs.pairs import Host, Pairs, Slowdown, end_beside, ends, share_now, wait_for

QUADRUPLES, STARTS = 20_000, 101


def simulated(a_s: float, a_x: float, b_s: float, b_x: float, start_s: float) -> float:
    """Mean end of a, which starts at ``start_s``, and b, which runs from 0 on: event by event."""
    left = {"a": a_s, "b": b_s}
    now, end = 0.0, {}
    slowed = {"a": a_x, "b": b_x}
    while left:
        running = [job for job in left if job == "b" or now >= start_s]
        factor = {job: slowed[job] if len(running) == 2 else 1.0 for job in running}
        step = min([left[job] * factor[job] for job in running] + ([start_s - now] if now < start_s else []))
        job = next((job for job in running if left[job] * factor[job] == step), None)
        for other in running:
            left[other] -= step / factor[other]
        now += step
        if job is not None:
            end[job] = now
            del left[job]
    return (end["a"] + end["b"]) / 2


def quadruples() -> list[tuple[float, float, float, float]]:
    draw = Random(20)
    return [
        (
            10 ** draw.uniform(-2, 3),
            1 + 10 ** draw.uniform(-3, 1),
            10 ** draw.uniform(-2, 3),
            1 + 10 ** draw.uniform(-3, 1),
        )
        for _ in range(QUADRUPLES)
    ]


def test_no_start_between_the_two_ends_is_better_than_the_better_of_them() -> None:
    """The pair theorem. The vectorised form is the scalar one, which the next test holds against a simulation."""
    a_s, a_x, b_s, b_x = (column[:, None] for column in np.array(quadruples()).T)
    start_s = b_s * np.linspace(0, 1, STARTS)
    a_end, b_end = a_x * a_s, b_x * (b_s - start_s)
    a_last = a_s / 2 + (1 - 1 / (2 * a_x)) * b_end
    b_last = (b_s - start_s) / 2 + (1 - 1 / (2 * b_x)) * a_end
    mean = start_s + np.where(a_end >= b_end, a_last, b_last)
    better = np.minimum(mean[:, 0], mean[:, -1])

    assert (mean.min(axis=1) >= better * (1 - 1e-12)).all()
    for row, quadruple in enumerate(quadruples()[:500]):
        assert mean[row, 0] == pytest.approx(share_now(*quadruple), rel=1e-12)
        assert mean[row, -1] == pytest.approx(wait_for(quadruple[0], quadruple[2]), rel=1e-12)


def test_the_closed_forms_are_what_a_simulation_of_two_jobs_gives() -> None:
    for a_s, a_x, b_s, b_x in quadruples():
        shared_s, waited_s = share_now(a_s, a_x, b_s, b_x), wait_for(a_s, b_s)
        assert abs(shared_s / simulated(a_s, a_x, b_s, b_x, 0.0) - 1) < 1e-9
        assert abs(waited_s / simulated(a_s, a_x, b_s, b_x, b_s) - 1) < 1e-9
        end, [its] = ends(a_s, [Host(b_s, a_x, b_x)])
        assert abs((end + its) / 2 / shared_s - 1) < 1e-9


def test_a_gang_is_as_slow_as_its_slowest_rank() -> None:
    # Beside the first for 30 s at a third of its speed, then beside the second at half: 10 + 20 of 40; 10 alone.
    assert end_beside(40.0, [(70.0, 2.0), (30.0, 3.0)]) == 80.0
    assert end_beside(20.0, [(70.0, 2.0), (30.0, 3.0)]) == 50.0
    # One that ends before a slower one never counts.
    assert end_beside(10.0, [(5.0, 2.0), (100.0, 3.0)]) == 30.0
    assert end_beside(10.0, []) == 10.0


def test_pairs_are_known_by_device_and_direction_and_forgotten_with_the_next_table() -> None:
    pairs = Pairs()
    pairs.learn([PairKnown("A", "a", "b", 1.2, 1.4), PairKnown("A", "b", "a", 0.9, 0.95)])
    assert pairs.of("A", "a", "b") == Slowdown(1.2, 1.4)
    assert pairs.of("A", "b", "a") == Slowdown(1.0, 1.0)
    assert pairs.of("B", "a", "b") is None
    pairs.note_worse("A", "a", "b")
    assert pairs.was_worse("A", "b", "a")
    pairs.learn([PairKnown("A", "a", "b", 1.3, 1.4)])
    assert not pairs.was_worse("A", "a", "b")
    assert pairs.of("A", "b", "a") is None
