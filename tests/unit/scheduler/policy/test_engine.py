"""
What the knobs mean: budgets, protection of what runs, SM, samples, orders, and the baselines that are the same engine.
"""

import ast
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from scheduler.policy import kernel
from scheduler.policy.decisions import Dispatch, Refusal
from scheduler.policy.events import (
    Event,
    GpuLost,
    InvocationArrived,
    InvocationSettled,
)
from scheduler.policy.knobs import BUDGETS, EXECUTED_S, PRESETS, Choice, Knobs, Order, preset
from scheduler.policy.load import LoadSwitch
from scheduler.policy.setting import UnknownPolicy
from smore.domain.invocation import Cause, End
from tests.support.driven import DrivenEngine
from tests.support.policy_events import NOW, arrived, function, gpu, known, own, placed


def refused(engine: DrivenEngine) -> Counter[str]:
    """Codes of the last weighing, in words."""
    names = {value: name for name, value in vars(kernel).items() if name.isupper() and isinstance(value, int)}
    return Counter(names[int(code)] for code in engine.cluster.code[: len(engine.cluster)])


# ---- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("training", "fits"), [(0.09, True), (0.11, False)])
def test_predicted_degradation_stays_within_the_budget(training: float, fits: bool) -> None:
    engine = DrivenEngine(preset("smore"))
    decisions = engine.decide(NOW, [known([[training]]), function(0), gpu("a", functions=1), arrived(0, "1")])
    assert placed(decisions) == ([("1", "a")] if fits else [])


def test_functions_together_stay_within_the_budget() -> None:
    """Eq. 3 counts all that run there: two at 4 % fit under 10 %, a third does not."""
    engine = DrivenEngine(preset("smore"))
    events: list[Event] = [known([[0.04]]), function(0), gpu("a", functions=1), *[arrived(0, str(i)) for i in range(4)]]
    assert [id_ for id_, _ in placed(engine.decide(NOW, events))] == ["0", "1"]
    assert placed(engine.decide(NOW + 0.01, [InvocationSettled(id="0", attempt=1)])) == [("2", "a")]


def test_a_jobs_own_budget_counts() -> None:
    engine = DrivenEngine(preset("smore"))
    events: list[Event] = [
        known([[0.04]]),
        function(0),
        gpu("a", functions=1, losses=own(0.01)),
        gpu("b", functions=1, losses=own(0.05)),
        arrived(0, "1"),
    ]
    (dispatch,) = engine.decide(NOW, events)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.gpu == "b"
    assert dispatch.reasons.refused == {Refusal.BUDGET: 1}


def test_an_account_is_spent_and_earns() -> None:
    """
    A function that costs half of the training while it runs, 0.1 s at a time: more than the budget at any moment, a
    tenth of the time on average. Two seconds of a 10 % budget are 0.182 s; each run costs 0.1 x 0.5 / 1.5 = 0.0333 s.
    """
    engine = DrivenEngine(preset("smore-product", guard=0.0))
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.1), gpu("a", functions=1)])
    done, now, count = 0, NOW, 0
    while now < NOW + 100.0:
        for id_, _ in placed(engine.decide(now, [arrived(0, f"{count}", at=now, within=0.2)])):
            done += 1
            engine.decide(now + 0.1, [InvocationSettled(id=id_, attempt=1, run_s=0.1, batch_rows=1)])
        now, count = now + 0.1, count + 1
    cost, budget = 0.1 * 0.5 / 1.5, 0.8 * 0.1 / 1.1
    assert done * cost == pytest.approx(budget * (100.0 + 2.0), rel=0.02)


def test_an_account_earns_nothing_while_a_window_is_closed() -> None:
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=1.0), gpu("a", functions=1), arrived(0, "1")])
    earns, left = 0.8 * 0.1 / 1.1, 0.8 * 0.1 / 1.1 * 2.0 - 1.0 * 0.5 / 1.5
    for at, closed in ((1.0, True), (1.3, True), (1.6, False), (2.0, False)):
        engine.decide(NOW + at, [gpu("a", functions=1, at=NOW + at, closed=closed)])
    assert kernel.tokens(engine.cluster.rows, 0, NOW + 2.0, 2.0) == pytest.approx(left + earns * (1.0 + 0.4))


def test_what_it_really_took_is_what_the_account_pays() -> None:
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.1), gpu("a", functions=1), arrived(0, "1")])
    full = 0.8 * 0.1 / 1.1 * 2.0
    assert kernel.tokens(engine.cluster.rows, 0, NOW, 2.0) == pytest.approx(full - 0.1 * 0.5 / 1.5)
    engine.decide(NOW, [InvocationSettled(id="1", attempt=1, run_s=0.3, batch_rows=1)])
    assert kernel.tokens(engine.cluster.rows, 0, NOW, 2.0) == pytest.approx(full - 3 * 0.1 * 0.5 / 1.5)


def test_what_costs_more_than_an_account_holds_may_go_when_it_is_full() -> None:
    engine = DrivenEngine(preset("smore-product"))
    first = engine.decide(
        NOW, [known([[1.0]]), function(0, run_s=10.0), gpu("a", functions=1), arrived(0, "1", within=60.0)]
    )
    assert placed(first) == [("1", "a")]
    # The debt is paid back before anybody else may.
    settled = InvocationSettled(id="1", attempt=1, run_s=10.0, batch_rows=1)
    assert placed(engine.decide(NOW + 10.0, [settled, arrived(0, "2", at=NOW + 10.0, within=500.0)])) == []
    assert placed(engine.decide(NOW + 69.0, [])) == [("2", "a")]


def test_another_training_begins_with_an_account_of_its_own() -> None:
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[1.0]]), function(0, run_s=10.0), gpu("a", functions=1), arrived(0, "1", within=60.0)])
    assert kernel.tokens(engine.cluster.rows, 0, NOW, 2.0) < 0
    engine.decide(NOW + 1.0, [gpu("a", None, functions=1, at=NOW + 1.0), gpu("a", functions=1, at=NOW + 2.0)])
    assert kernel.tokens(engine.cluster.rows, 0, NOW + 2.0, 2.0) == pytest.approx(0.8 * 0.1 / 1.1 * 2.0)


def test_without_a_training_no_budget_is_asked() -> None:
    for name in ("smore", "smore-product"):
        engine = DrivenEngine(preset(name))
        assert placed(
            engine.decide(NOW, [known([[5.0]]), function(0), gpu("a", None, functions=1), arrived(0, "1")])
        ) == [("1", "a")]


# ---- acceptable ------------------------------------------------------------------------------------------------------


def test_deadline_counts_predicted_degradation() -> None:
    """10 ms alone, 1.5 x slower beside the training: 25 ms."""
    for within, fits in ((0.024, False), (0.026, True)):
        engine = DrivenEngine(preset("smore"))
        events: list[Event] = [
            known([[0.0]], [[1.5]]),
            function(0),
            gpu("a", functions=1),
            arrived(0, "1", within=within),
        ]
        assert bool(placed(engine.decide(NOW, events))) is fits


def test_what_runs_still_meets_its_deadline() -> None:
    """f1 doubles f0's time: f0 has 10 ms to go and 15 ms left, so f1 waits; half-way through f0 it may go."""
    engine = DrivenEngine(preset("smore"))
    table = known([[0.0, 0.0]], functions=[[0.0, 1.0], [0.0, 0.0]])
    engine.decide(NOW, [table, function(0), function(1), gpu("a", functions=2), arrived(0, "1", within=0.015)])
    assert placed(engine.decide(NOW, [arrived(1, "2")])) == []
    assert refused(engine) == {"BREAKS_OTHERS": 1}
    assert placed(engine.decide(NOW + 0.006, [gpu("a", functions=2, at=NOW + 0.006)])) == [("2", "a")]


def test_what_is_late_already_protects_nobody() -> None:
    engine = DrivenEngine(preset("smore"))
    table = known([[0.0, 0.0]], functions=[[0.0, 1.0], [0.0, 0.0]])
    engine.decide(NOW, [table, function(0), function(1), gpu("a", functions=2), arrived(0, "1", within=0.015)])
    assert placed(
        engine.decide(NOW + 0.02, [gpu("a", functions=2, at=NOW + 0.02), arrived(1, "2", at=NOW + 0.02)])
    ) == [("2", "a")]


def test_strict10_bounds_functions_too() -> None:
    events: list[Event] = [known([[0.0]], [[0.2]]), function(0), gpu("a", functions=1), arrived(0, "1")]
    assert placed(DrivenEngine(preset("smore")).decide(NOW, events)) == [("1", "a")]
    assert placed(DrivenEngine(preset("smore-strict10")).decide(NOW, events)) == []


def test_nothing_is_placed_where_no_sm_is_left() -> None:
    engine = DrivenEngine(preset("smore"))
    assert (
        placed(
            engine.decide(
                NOW, [known([[0.0]]), function(0, sm=0.3), gpu("a", functions=1, utilisation=0.8), arrived(0, "1")]
            )
        )
        == []
    )
    assert refused(engine) == {"NO_SM": 1}
    # What runs there counts before the counter has seen it.
    engine = DrivenEngine(preset("smore"))
    events: list[Event] = [
        known([[0.0]]),
        function(0, sm=0.3),
        gpu("a", functions=1, utilisation=0.3),
        *[arrived(0, str(i)) for i in range(4)],
    ]
    assert [id_ for id_, _ in placed(engine.decide(NOW, events))] == ["0", "1"]


@pytest.mark.parametrize("policy", ["smore", "edf-util-total"])
def test_past_use_of_functions_is_not_counted_again(policy: str) -> None:
    """
    The training uses 0.5; functions used 0.4 in the last interval and are done: one of 0.3 fits, and again after it has
    ended.
    """
    engine = DrivenEngine(preset(policy))
    busy = gpu("a", functions=1, utilisation=0.9, function_utilisation=0.4)
    decisions = engine.decide(NOW, [known([[0.0]]), function(0, sm=0.3), busy, arrived(0, "1"), arrived(0, "2")])
    assert placed(decisions) == [("1", "a")]  # two of them would take 1.1
    # A report while it runs: what it uses is reserved once.
    assert placed(engine.decide(NOW + 0.001, [gpu("a", functions=1, utilisation=0.9, function_utilisation=0.4)])) == []
    assert engine.cluster.fact(kernel.SM)[0] == pytest.approx(0.8)
    assert placed(engine.decide(NOW + 0.002, [InvocationSettled(id="1", attempt=1)])) == [("2", "a")]


def test_a_later_deadline_in_the_lane_is_tried_where_the_earliest_cannot_be_met() -> None:
    engine = DrivenEngine(preset("smore"))
    events: list[Event] = [
        known([[0.0]], [[1.5]]),
        function(0),
        gpu("a", functions=1),
        arrived(0, "1", within=0.02),
        arrived(0, "2", within=0.03),
    ]
    assert placed(engine.decide(NOW, events)) == [("2", "a")]
    assert engine.waiting.count("p/f0") == 1


# ---- high load -------------------------------------------------------------------------------------------------------


def test_load_switch_has_hysteresis() -> None:
    switch = LoadSwitch(high=0.7, low=0.5, hold_s=2.0)
    assert not switch.fast(0.0, 1.0, 0, 10)
    assert switch.fast(0.0, 1.0, 10, 10)
    assert switch.fast(1.0, 1.0, 4, 10)
    assert switch.fast(2.9, 1.0, 4, 10)
    assert not switch.fast(3.0, 1.0, 4, 10)
    # A burst of 2 s of work within a moment is an offered load of 2 ln 2, which halves each second.
    switch.arrived(3.0, 2.0)
    assert switch.offered(3.0) == pytest.approx(2 * math.log(2))
    assert switch.fast(3.0, 1.0, 0, 10)
    assert switch.offered(4.0) == pytest.approx(math.log(2))


def test_high_load_takes_the_first_acceptable_of_at_most_d() -> None:
    """Of 100 GPU instances two accept; ten are looked at, in the sample's order."""
    engine = DrivenEngine(preset("smore", hold_s=1e9))
    budgets = [0.1 if number in (7, 42) else 0.0 for number in range(100)]
    engine.decide(
        NOW,
        [known([[0.05]]), function(0), *[gpu(f"g{i:02d}", functions=1, losses=own(b)) for i, b in enumerate(budgets)]],
    )
    found, looked = Counter[str](), []
    for number in range(300):
        now = NOW + number
        engine.load.is_high = True
        for decision in engine.decide(now, [arrived(0, f"{number}", at=now, within=0.5)]):
            assert isinstance(decision, Dispatch)
            looked.append(1 + sum(decision.reasons.refused.values()))
            found[decision.gpu] += 1
            engine.decide(now, [InvocationSettled(id=f"{number}", attempt=1)])
        engine.decide(now + 0.6, [])
    assert max(looked) <= 10
    # One sample in five holds one of the two, and they are alike.
    assert 30 < found.total() < 100
    assert set(found) == {"g07", "g42"}
    assert 0.25 < found["g07"] / found.total() < 0.75


def test_few_gpu_instances_are_all_weighed_by_the_product() -> None:
    """A scan of few costs what a sample costs, and finds the best."""
    engine = DrivenEngine(preset("smore-product"))
    table = known([[0.02], [0.05], [0.08]])
    engine.decide(NOW, [table, function(0), *[gpu(f"g{i}", 2 - i % 3, functions=1) for i in range(30)]])
    for number in range(10):
        engine.load.is_high = True
        (decision,) = engine.decide(NOW, [arrived(0, f"{number}")])
        assert isinstance(decision, Dispatch)
        assert int(decision.gpu[1:]) % 3 == 2


def test_warm_ones_are_looked_at_first() -> None:
    engine = DrivenEngine(preset("smore-product", fast_from=0))
    events: list[Event] = [function(0), *[gpu(f"g{i:02d}", None, functions=1, warm=int(i == 77)) for i in range(100)]]
    engine.decide(NOW, events)
    engine.load.is_high = True
    assert placed(engine.decide(NOW, [arrived(0, "1")])) == [("1", "g77")]


def test_figure_6_of_the_paper() -> None:
    """
    Three functions in order of P and four GPUs. A goes where the training loses least; where B would be least there is
    no memory for it, so it goes where it is least of the others; C would break the budget everywhere and goes back, and
    the round goes on with the next.
    """
    table = known(
        [[0.05, 0.05, 0.2, 0.05], [0.02, 0.05, 0.3, 0.04], [0.08, 0.01, 0.15, 0.06], [0.04, 0.03, 0.12, 0.01]]
    )
    cluster = [gpu(f"g{number}", number, functions=1) for number in range(4)]
    cluster[2] = replace(
        cluster[2], memory_used=9_450.0, warm=[]
    )  # 50 MiB are left below the reserve; an instance takes 100
    engine = DrivenEngine(preset("smore"))
    events: list[Event] = [table, *[function(number) for number in range(4)], *cluster]
    engine.decide(NOW, events)

    decisions = engine.decide(NOW, [arrived(number, "ABCD"[number]) for number in range(3)])

    assert placed(decisions) == [("A", "g1"), ("B", "g3")]
    assert sorted(engine.cluster.code[:4].tolist()) == sorted([kernel.OVER_BUDGET] * 3 + [kernel.NO_MEMORY])
    assert engine.waiting.count("p/f2") == 1 and not any(isinstance(decision, End) for decision in decisions)
    # C waits and blocks nobody: D, which comes after it in the order, is placed beside it.
    assert placed(engine.decide(NOW + 0.001, [arrived(3, "D", at=NOW + 0.001)])) == [("D", "g3")]


# ---- baselines -------------------------------------------------------------------------------------------------------


def test_orders() -> None:
    """One slot: the highest P, the earliest deadline, or who came first."""
    for name, first in (
        ("smore", "high"),
        ("elasticflow", "urgent"),
        ("fifo", "old"),
        ("random", "old"),
        ("edf-util", "urgent"),
    ):
        engine = DrivenEngine(preset(name))
        events: list[Event] = [
            function(0, gain=0.9, degradation=0.1),
            function(1, gain=0.1, degradation=0.1),
            function(2, gain=0.2, degradation=0.1),
            gpu("a", None, slots=1),
            InvocationArrived(
                function="p/f0", revision=1, id="high", attempt=0, arrival_at=NOW - 0.1, deadline_at=NOW + 3
            ),
            InvocationArrived(
                function="p/f1", revision=1, id="urgent", attempt=0, arrival_at=NOW - 0.2, deadline_at=NOW + 1
            ),
            InvocationArrived(
                function="p/f2", revision=1, id="old", attempt=0, arrival_at=NOW - 0.3, deadline_at=NOW + 2
            ),
        ]
        assert placed(engine.decide(NOW, events)) == [(first, "a")], name


def test_elasticflow_is_smore_where_there_is_no_queue() -> None:
    """They differ in order and in the fast mode only."""
    table = known([[0.02, 0.05, 0.2], [0.01, 0.08, 0.05]], [[0.1, 0.2, 0.3], [0.3, 0.1, 0.2]], [[0.2] * 3] * 3)
    logs = []
    for name in ("smore", "elasticflow"):
        engine, log = DrivenEngine(preset(name)), []
        engine.decide(NOW, [table, *[function(i) for i in range(3)], *[gpu(f"g{i}", i % 2) for i in range(4)]])
        for number in range(60):
            now = NOW + 0.3 * number
            log += placed(engine.decide(now, [arrived(number % 3, f"{number}", at=now)]))
            engine.decide(now + 0.2, [InvocationSettled(id=f"{number}", attempt=1)])
        logs.append(log)
    assert logs[0] == logs[1]
    assert len(logs[0]) == 60


def test_edf_util_counts_the_training_alone_and_takes_the_least_utilised() -> None:
    events: list[Event] = [
        function(0, sm=0.3),
        gpu("a", functions=1, utilisation=0.7),
        gpu("b", functions=1, utilisation=0.5),
        gpu("c", functions=1, utilisation=0.7, function_utilisation=0.5),
        *[arrived(0, str(i)) for i in range(2)],
    ]
    assert [name for _, name in placed(DrivenEngine(preset("edf-util")).decide(NOW, events))] == ["b", "b"]
    # With what runs there counted, b is full after the first.
    assert [name for _, name in placed(DrivenEngine(preset("edf-util-total")).decide(NOW, events))] == ["b", "c"]


def test_baselines_place_what_is_too_late_and_too_dear() -> None:
    for name in ("random", "edf-util", "fifo"):
        events: list[Event] = [
            known([[5.0]], [[5.0]]),
            function(0),
            gpu("a", functions=1),
            arrived(0, "1", within=0.02),
        ]
        assert placed(DrivenEngine(preset(name)).decide(NOW, events)) == [("1", "a")]


@pytest.mark.parametrize("name", ["random", "edf-util", "edf-util-spread"])
def test_late_invocations_are_executed_where_a_baseline_says_so(name: str) -> None:
    """Its run would end after its deadline: dropped, or executed all the same; what nothing takes ends some time."""
    late: list[Event] = [function(0), gpu("a", functions=1), arrived(0, "1", at=NOW - 6.0, within=5.0)]
    (dropped,) = DrivenEngine(preset(name)).decide(NOW, late)
    assert isinstance(dropped, End) and dropped.cause is Cause.DEADLINE_EXPIRED
    engine = DrivenEngine(preset(f"{name}-all"))
    assert placed(engine.decide(NOW, late)) == [("1", "a")]
    assert engine.decide(NOW + 1.0, [gpu("a", functions=1, utilisation=1.0, slots=0), arrived(0, "2")]) == []
    assert isinstance(engine.decide(NOW + 5.0 + EXECUTED_S, [])[0], End)


def test_edf_util_can_spread_over_all_that_pass() -> None:
    """
    The least utilised by a counter that is behind takes all; a random choice goes to others, never to one that has no
    SM left.
    """
    events: list[Event] = [
        function(0),
        gpu("a", functions=1, utilisation=0.3),
        gpu("b", functions=1, utilisation=0.2),
        gpu("full", functions=1, utilisation=0.9),
        *[arrived(0, str(i)) for i in range(8)],
    ]
    assert {name for _, name in placed(DrivenEngine(preset("edf-util")).decide(NOW, events))} == {"b"}
    assert {name for _, name in placed(DrivenEngine(preset("edf-util-spread")).decide(NOW, events))} == {"a", "b"}


def test_exclusive_keeps_away_from_trainings() -> None:
    engine = DrivenEngine(preset("exclusive"))
    assert placed(engine.decide(NOW, [function(0), gpu("a", functions=1), arrived(0, "1")])) == []
    assert refused(engine) == {"BESIDE_TRAINING": 1}
    assert placed(engine.decide(NOW, [gpu("b", None, functions=1)])) == [("1", "b")]


def test_random_takes_any_and_agrees_with_itself() -> None:
    def run(seed: int) -> list[str]:
        engine = DrivenEngine(preset("random", seed=seed))
        engine.decide(NOW, [function(0), *[gpu(f"g{i}", functions=1) for i in range(4)]])
        return [name for _, name in placed(engine.decide(NOW, [arrived(0, str(i)) for i in range(20)]))]

    assert run(1) == run(1) != run(2)
    assert set(run(1)) == {"g0", "g1", "g2", "g3"}


@pytest.mark.parametrize("budget", BUDGETS)
def test_random_within_the_product_s_budget_differs_from_it_in_order_and_choice_alone(budget: int) -> None:
    """Which are worth what lies between the two: so it keeps away from loads, too, where an instance is idle elsewhere."""
    product, random = preset(f"smore-product-b{budget}"), preset(f"random-budget-b{budget}")
    assert (random.order, random.choice) == (Order.ARRIVAL, Choice.RANDOM)
    assert replace(random, name=product.name, order=product.order, choice=product.choice) == product
    events: list[Event] = [function(0), *[gpu(f"g{i}", None, functions=int(i < 2)) for i in range(4)]]
    for warm_first, went in ((True, {"g0", "g1"}), (False, {"g0", "g1", "g2", "g3"})):
        engine = DrivenEngine(preset(random.name, warm_first=warm_first))
        engine.decide(NOW, events)
        assert {name for _, name in placed(engine.decide(NOW, [arrived(0, str(i)) for i in range(40)]))} == went


def test_random_choice_never_rests_on_what_was_weighed_for_another() -> None:
    """
    Whatever the load: of a sample only what was looked at is known, and a GPU instance may be full or gone since it was
    last weighed.
    """
    for seed in range(8):
        engine = DrivenEngine(preset("random", fast=True, d_least=1, d_share=0.0, seed=seed))
        there = [gpu(f"g{i}", functions=1, slots=2) for i in range(4)]
        engine.decide(NOW, [function(0, max_batch=1), *there, arrived(0, "first")])
        first = engine.cluster.used.tolist()

        went = placed(engine.decide(NOW, [GpuLost(gpu="g0"), *[arrived(0, f"{i}") for i in range(20)]]))

        assert engine.load.is_high
        assert engine.cluster.used.tolist() == [first[0], 2, 2, 2]
        assert "g0" not in {name for _, name in went}


def test_the_order_of_gpu_instances_does_not_matter() -> None:
    """Where impacts differ, whichever reported first."""
    table = known([[0.02], [0.05], [0.08]])
    reports = [gpu("a", 2, functions=1), gpu("b", 0, functions=1), gpu("c", 1, functions=1)]
    for name in ("smore", "smore-product", "elasticflow"):
        for turned in (reports, reports[::-1], [reports[1], reports[2], reports[0]]):
            engine = DrivenEngine(preset(name, fast=False))
            assert placed(engine.decide(NOW, [table, function(0), *turned, arrived(0, "1")])) == [("1", "b")]


# ---- knobs -----------------------------------------------------------------------------------------------------------


def test_presets_carry_their_names() -> None:
    assert {name for name, knobs in PRESETS.items() if knobs.name != name} == set()
    assert Knobs() == PRESETS["smore"]


def test_knobs_from_json() -> None:
    knobs = preset("smore-product", tau_training=0.05, order="deadline", impact=[2, 1, 0.5], d_least=4)
    assert (knobs.tau_training, knobs.order, knobs.impact, knobs.d_least) == (0.05, Order.DEADLINE, (2.0, 1.0, 0.5), 4)


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("spine", {}, "'spine' is not a policy; there are smore"),
        ("smroe", {}, r"'smroe' is not a policy; did you mean smore\? There are smore"),
        ("smore", {"tau_trainin": 0.1}, r"did you mean tau_training.*\? There are name"),
        ("smore", {"tau": 0.1}, "'tau' is not a knob; there are name"),
        ("smore", {"tau_training": -0.1}, "tau_training: -0.1 is out of range"),
        ("smore", {"tau_training": math.nan}, "tau_training: nan is out of range"),
        ("smore", {"tau_training": math.inf}, "tau_training: inf is out of range"),
        ("smore", {"ageing_per_s": math.inf}, "ageing_per_s: inf is out of range"),
        ("smore", {"tau_training": "0.1"}, "tau_training: '0.1' cannot be its value"),
        ("smore", {"order": "best"}, "order: 'best' cannot be its value"),
        ("smore", {"fast": 1}, "fast: 1 cannot be its value"),
        ("smore", {"d_least": True}, "d_least: True cannot be its value"),
        ("smore", {"impact": [1, 1]}, r"impact: \(1.0, 1.0\) is out of range"),
        ("smore", {"load_lo": 0.9}, "load_hi: 0.7 is out of range"),
    ],
)
def test_unknown_or_impossible_knobs_are_named(name: str, changed: dict[str, object], words: str) -> None:
    with pytest.raises(UnknownPolicy, match=words):
        preset(name, **changed)


# ---- asked, not placed -----------------------------------------------------------------------------------------------


def test_ask_places_nothing_and_says_what_would_be() -> None:
    engine = DrivenEngine(preset("smore"))
    engine.decide(
        NOW, [known([[0.05], [0.2]], [[0.5], [0.0]]), function(0), gpu("a", functions=1), gpu("b", 1, functions=1)]
    )
    for _ in range(2):
        answer = engine.ask(NOW, "p/f0", 1, 1, NOW + 1.0)
        assert answer is not None
        assert (answer.row_gpu, answer.cold, answer.start_at) == ("a", False, NOW)
        assert answer.finish_at == answer.earliest_deadline_at == pytest.approx(NOW + 0.015)
        assert {candidate.gpu: candidate.refusal for candidate in answer.reasons.candidates} == {
            "a": None,
            "b": Refusal.BUDGET,
        }
    assert not engine.cluster.batches
    assert engine.ask(NOW, "p/f0", 2, 1, NOW + 1.0) is None


def test_ask_says_for_how_long_a_budget_lets_nothing_start() -> None:
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]], [[0.5]]), function(0), gpu("a", functions=1)])
    first = engine.ask(NOW, "p/f0", 1, 1, NOW + 10.0)
    assert first is not None and first.budget_s == 0.0
    engine.cluster.take_tokens(0, 5.0, NOW)
    second = engine.ask(NOW + 0.001, "p/f0", 1, 1, NOW + 10.0)
    assert second is not None and 1.0 < second.budget_s < float("inf")


def test_ask_names_the_earliest_deadline() -> None:
    engine = DrivenEngine(preset("smore"))
    engine.decide(NOW, [known([[0.05]], [[0.5]]), function(0), gpu("a", functions=1)])
    answer = engine.ask(NOW, "p/f0", 1, 1, NOW + 0.012)
    assert answer is not None
    assert answer.row_gpu is None
    assert answer.earliest_deadline_at == pytest.approx(NOW + 0.015)
    engine.decide(NOW, [gpu("a", functions=1, losses=own(0.01))])
    refused_ = engine.ask(NOW, "p/f0", 1, 1, NOW + 1.0)
    assert refused_ is not None
    assert refused_.earliest_deadline_at is None


def test_a_shadow_decides_and_does_not_act() -> None:
    table = known([[0.02], [0.09]])
    reports = [gpu("a", functions=1, utilisation=0.6), gpu("b", 1, functions=1, utilisation=0.4)]
    alone, beside = (
        DrivenEngine(preset("smore", fast=False)),
        DrivenEngine(preset("smore", fast=False), preset("edf-util")),
    )
    events: list[Event] = [table, function(0), *reports, *[arrived(0, str(i)) for i in range(3)]]
    plain, shadowed = alone.decide(NOW, events), beside.decide(NOW, events)
    assert placed(plain) == placed(shadowed) == [("0", "a"), ("1", "a"), ("2", "a")]
    told = [decision.reasons.shadow for decision in shadowed if isinstance(decision, Dispatch)]
    assert {(one.policy, one.gpu) for one in told if one is not None} == {("edf-util", "b")}
    assert all(decision.reasons.shadow is None for decision in plain if isinstance(decision, Dispatch))


def test_prepare_compiles_all_that_a_decision_calls() -> None:
    """
    And for one set of types each: another one would be compiled while a leader decides. In a process that has decided
    nothing else.
    """
    told = (
        "from scheduler.policy import kernel; from scheduler.policy.engine import prepare; prepare();print({name:"
        " len(one.signatures) for name, one in vars(kernel).items() if hasattr(one, 'signatures') and name[0] != '_'})"
    )
    found = subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True).stdout
    assert set(ast.literal_eval(found).values()) == {1}, found


def test_a_call_that_only_asks_changes_nothing() -> None:
    """Something waits that could be placed by now: a question does not place it, and the wake-up stays."""
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[1.0]]), function(0, run_s=10.0), gpu("a", functions=1), arrived(0, "1", within=60.0)])
    settled = InvocationSettled(id="1", attempt=1, run_s=10.0, batch_rows=1)
    assert placed(engine.decide(NOW + 10.0, [settled, arrived(0, "2", at=NOW + 10.0, within=500.0)])) == []
    wake_at = engine.wake_at
    engine.pressed(NOW + 69.0)
    engine.buckets(NOW + 69.0)
    assert engine.ask(NOW + 69.0, "p/f0", 1, 1, NOW + 500.0) is not None
    assert (engine.wake_at, engine.waiting.count("p/f0")) == (wake_at, 1)
    assert placed(engine.decide(NOW + 69.0, [])) == [("2", "a")]
