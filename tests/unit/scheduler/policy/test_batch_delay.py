"""A batch that waits for more of its kind while what its run would cost is scarce."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler.policy.decisions import Decision, Dispatch
from scheduler.policy.events import GpuLost
from scheduler.policy.knobs import preset
from tests.support.driven import DrivenEngine
from tests.support.policy_events import NOW, arrived, batched, gpu, known

#: What an account of 10 % earns a second, and holds when it is full, seconds.
EARNS = 0.8 * 0.1 / 1.1
#: What a run counts for where it is held against a deadline.
GUARDED = 1.05
FULL = 2.0 * EARNS
#: What one costs beside the training of :func:`stage`, and what eight together cost, seconds.
ONE = 0.01 / 3
EIGHT = 0.02 / 3
#: Spent so much of a full one, an account holds what one costs.
SPENT = FULL - 1.01 * ONE


def stage(run_s: dict[int, float] | None = None, *, spent: float = SPENT, **knobs: object) -> DrivenEngine:
    """A training that loses half as much again to each function. Its account holds what one costs, and no more."""
    engine = DrivenEngine(preset("smore-product", **knobs))
    functions = [batched(number, run_s or {1: 0.01, 8: 0.02}) for number in range(2)]
    engine.decide(NOW, [known([[0.5, 0.5]]), *functions, gpu("a", functions=2)])
    engine.cluster.take_tokens(0, spent, NOW)
    return engine


def batches(decisions: Sequence[Decision]) -> list[tuple[str, int]]:
    return [(one.function, len(one.attempts)) for one in decisions if isinstance(one, Dispatch)]


def test_it_waits_for_half_of_its_time() -> None:
    engine = stage()
    assert batches(engine.decide(NOW, [arrived(0, "0", within=1.0)])) == []
    assert engine.wake_at == pytest.approx(NOW + 0.5)
    assert batches(engine.decide(NOW + 0.3, [arrived(0, "1", at=NOW + 0.3, within=1.0)])) == []
    assert batches(engine.decide(NOW + 0.49, [])) == []
    assert batches(engine.decide(NOW + 0.5, [])) == [("p/f0", 2)]


def test_a_full_one_goes_at_once() -> None:
    many = [arrived(0, str(number), within=1.0) for number in range(8)]
    assert batches(stage(spent=FULL - 1.01 * EIGHT).decide(NOW, many)) == [("p/f0", 8)]


@pytest.mark.parametrize(
    ("run_s", "spent", "company"),
    [({1: 0.01, 8: 0.02}, 0.4 * FULL, 0.5), ({1: 0.01, 8: 0.075}, SPENT, 0.5), ({1: 0.01, 8: 0.02}, SPENT, 0.0)],
    ids=["the account is not short", "in company it costs as much", "not asked for"],
)
def test_nobody_waits_for_nothing(run_s: dict[int, float], spent: float, company: float) -> None:
    engine = stage(run_s, spent=spent, company=company)
    assert batches(engine.decide(NOW, [arrived(0, "0", within=1.0)])) == [("p/f0", 1)]


def test_nobody_waits_for_an_account_that_earns_nothing() -> None:
    assert batches(stage(spent=0.0, tau_training=0.0).decide(NOW, [arrived(0, "0", within=1.0)])) == [("p/f0", 1)]


def test_it_leaves_while_its_account_could_still_earn_a_larger_one() -> None:
    """Two take 11.4 ms and cost what is earned in 52 ms: of 80 ms it may wait 16."""
    engine = stage()
    engine.decide(NOW, [arrived(0, "0", within=0.08)])
    run_s = 0.01 + 0.01 / 7
    assert engine.wake_at - NOW == pytest.approx(0.08 - run_s - run_s / 3 / EARNS)
    assert batches(stage().decide(NOW, [arrived(0, "0", within=0.05)])) == [("p/f0", 1)]


def test_others_leave_it_what_it_will_cost() -> None:
    """The account could pay for eight of another function, but a part of it is kept for the one that waits."""
    others = [arrived(1, str(number), within=1.0) for number in range(1, 9)]
    spent = FULL - 1.01 * EIGHT
    assert batches(stage(spent=spent).decide(NOW, others)) == [("p/f1", 8)]
    engine = stage(spent=spent)
    assert batches(engine.decide(NOW, [arrived(0, "0", within=1.0)])) == []
    assert batches(engine.decide(NOW, others)) == []
    # Half a second pays for both.
    assert sorted(batches(engine.decide(NOW + 0.5, []))) == [("p/f0", 1), ("p/f1", 8)]


def test_the_gate_lets_in_who_finds_room_in_it() -> None:
    """The batch leaves in half a second, whoever joins."""
    engine = stage()
    engine.decide(NOW, [arrived(0, "0", within=1.0)])
    told = engine.bounds(NOW, "p/f0", 1)
    assert told is not None
    assert told.backlog_s == pytest.approx(0.5 + GUARDED * engine.cluster.demands[0].run_s(2))
    assert told.each_s > 0


def test_the_gate_lets_in_no_more_than_are_worth_waiting_for() -> None:
    """
    Of 80 ms some are left for waiting where there is to be one more, of a second for seven: who finds no room waits for
    the account.
    """
    each = []
    for within in (0.08, 1.0):
        engine = stage()
        engine.decide(NOW, [arrived(0, "0", within=within)])
        told = engine.bounds(NOW, "p/f0", 1)
        assert told is not None
        assert told.backlog_s == pytest.approx(engine.wake_at - NOW + GUARDED * engine.cluster.demands[0].run_s(2))
        each.append(told.each_s)
    assert each[0] == pytest.approx(7 * each[1])


def test_rooms_are_invocations_of_the_lane_that_waits() -> None:
    """One of three rows leaves room for one more of its kind in eight rows, one of one row for seven."""
    each = []
    for rows in (1, 3):
        engine = stage(spent=FULL - 0.0044)  # three rows cost 4.3 ms
        engine.decide(NOW, [replace(arrived(0, "0", within=1.0), rows=rows)])
        told = engine.bounds(NOW, "p/f0", 1)
        assert told is not None
        each.append(told.each_s)
    assert each[1] == pytest.approx(7 * each[0])


def test_it_is_forgotten_with_who_waited_and_with_its_gpu_instance() -> None:
    engine = stage()
    engine.decide(NOW, [arrived(0, "0", within=1.0)])
    held = engine.buckets(NOW)
    engine.decide(NOW + 1.0, [])
    engine.waiting.remove("0")
    engine.decide(NOW + 1.0, [])
    assert engine.wake_at == float("inf")
    again = stage()
    again.decide(NOW, [arrived(0, "0", within=1.0)])
    assert again.buckets(NOW) == held
    again.decide(NOW + 0.1, [GpuLost(gpu="a")])
    assert batches(again.decide(NOW + 0.2, [gpu("b", functions=2, at=NOW + 0.2)])) == [("p/f0", 1)]
