"""The spine's policy on hand-made scenarios: events in, decisions out, no clock and no I/O."""

from math import inf
from typing import Any

import pytest

from scheduler.policy.decisions import Decision, Dispatch, Prewarm, Refusal
from scheduler.policy.demand import Demand
from scheduler.policy.events import (
    ClaimRefused,
    Event,
    FunctionKnown,
    FunctionRemoved,
    GpuLost,
    GpuReported,
    InvocationArrived,
    InvocationHeld,
    InvocationSettled,
    LoadWanted,
    PausesChanged,
)
from scheduler.policy.knobs import preset
from smore.domain.function import FunctionSpec, Profile
from smore.domain.invocation import Cause, End
from tests.support.driven import DrivenEngine

NOW = 1_000.0
#: What a run counts for where it is held against a deadline.
GUARDED = 1.05


def known(
    name: str, *, usage: float = 0.2, degradation: float = 0.1, run_s: float = 0.01, **fields: Any
) -> FunctionKnown:
    profile = Profile(
        run_s={1: run_s, 8: run_s * 2},
        load_s=fields.pop("load_s", 0.5),
        memory_mib=fields.pop("memory_mib", 100.0),
        usage_gain=usage,
        degradation=degradation,
    )
    return FunctionKnown(function=name, revision=1, spec=FunctionSpec(entrypoint="m:C", profile=profile, **fields))


def gpu(
    name: str,
    *,
    warm: dict[str, int] | None = None,
    slots: int = 8,
    jobs: int = 0,
    free: float = 1000.0,
    **fields: Any,
) -> GpuReported:
    return GpuReported(
        gpu=name,
        boot="b",
        at=NOW,
        slots=slots,
        memory_total=1000.0,
        memory_used=1000.0 - free,
        memory_idle=0.0,
        utilisation=0.0,
        function_utilisation=fields.pop("function_utilisation", 0.0),
        jobs=jobs,
        warm=[(function, 1, count) for function, count in (warm or {}).items()],
        **fields,
    )


def arrived(name: str, id_: str, *, at: float = NOW, within: float = 5.0, **fields: Any) -> InvocationArrived:
    return InvocationArrived(
        function=name, revision=1, id=id_, attempt=0, arrival_at=at, deadline_at=at + within, **fields
    )


def dispatches(decisions: list[Decision]) -> list[tuple[str, str, list[str]]]:
    return [(d.function, d.gpu, [id_ for id_, _ in d.attempts]) for d in decisions if isinstance(d, Dispatch)]


def run(*events: Event, policy: DrivenEngine | None = None, now: float = NOW) -> list[Decision]:
    return (policy or DrivenEngine()).decide(now, events)


def test_warm_instance_comes_first() -> None:
    """A GPU instance that has the model resident is chosen over an emptier one that would have to load it."""
    decisions = run(known("p/f"), gpu("a"), gpu("b", warm={"p/f": 1}), arrived("p/f", "1"))

    assert dispatches(decisions) == [("p/f", "b", ["1"])]


def test_least_impact_decides_between_equals() -> None:
    """Of two GPU instances without the model the one without a serverful job costs less."""
    decisions = run(known("p/f"), gpu("a", jobs=1), gpu("b"), arrived("p/f", "1"))

    assert dispatches(decisions) == [("p/f", "b", ["1"])]


def test_reasons_name_what_was_refused_and_why() -> None:
    decisions = run(known("p/f"), gpu("a", free=10.0), gpu("b", slots=0), gpu("c"), arrived("p/f", "1"))

    dispatch = next(d for d in decisions if isinstance(d, Dispatch))
    assert dispatch.reasons.refused == {Refusal.MEMORY: 1, Refusal.NO_SLOT: 1}
    assert [c.gpu for c in dispatch.reasons.candidates][:1] + sorted(
        c.gpu for c in dispatch.reasons.candidates[1:]
    ) == ["c", "a", "b"]
    assert dispatch.cold


def test_batches_what_waits_and_never_waits_for_company() -> None:
    """A lone request goes at once; what gathered behind it goes as one batch when the instance is free."""
    policy = DrivenEngine()
    first = run(known("p/f", max_batch=8), gpu("a", warm={"p/f": 1}), arrived("p/f", "0"), policy=policy)
    second = policy.decide(NOW + 0.001, [arrived("p/f", str(i)) for i in range(1, 6)])
    third = policy.decide(NOW + 0.02, [InvocationSettled(id="0", attempt=1, run_s=0.01, batch_rows=1)])

    assert dispatches(first) == [("p/f", "a", ["0"])]
    assert dispatches(second) == []
    assert dispatches(third) == [("p/f", "a", ["1", "2", "3", "4", "5"])]


def test_a_batch_between_two_known_sizes_takes_a_time_between() -> None:
    profile = Profile(run_s={1: 0.010, 4: 0.016, 8: 0.040}, load_s=1.0)
    demand = Demand(function="p/f", revision=1, spec=FunctionSpec(entrypoint="m:C", profile=profile), column=0)
    assert [demand.run_s(rows) for rows in (1, 2, 3, 4, 6, 8, 16)] == pytest.approx(
        [0.010, 0.012, 0.014, 0.016, 0.028, 0.040, 0.080]
    )
    demand.observe_run(NOW, 2, 0.032)
    # A size that was not known begins with what was expected of it.
    assert demand.run_s(2) == pytest.approx(0.9 * 0.012 + 0.1 * 0.032)


def declared(run_s: dict[int, float]) -> Demand:
    spec = FunctionSpec(entrypoint="m:C", profile=Profile(run_s=run_s, load_s=1.0))
    return Demand(function="p/f", revision=1, spec=spec, column=0)


def test_what_is_wrong_of_one_size_is_wrong_of_those_that_never_ran() -> None:
    """
    A first run that took five times as long as later ones must not make large batches look slow for ever, for nobody
    tries them then.
    """
    demand = declared({1: 0.050, 8: 0.320})
    for _ in range(100):
        demand.observe_run(NOW, 1, 0.050, slowdown=4.0)
    assert demand.run_s(1) == pytest.approx(0.010, rel=0.01)
    assert demand.run_s(8) == pytest.approx(0.064, rel=0.01)  # in proportion
    assert demand.best_s(8) == pytest.approx(0.320)  # none was faster than the best case
    for _ in range(100):
        demand.observe_run(NOW, 8, 0.030)
    assert demand.run_s(8) == pytest.approx(0.030, rel=0.01)
    assert demand.run_s(1) == pytest.approx(0.010, rel=0.1)  # its own runs have told of it
    assert demand.best_s(8) == pytest.approx(0.030, rel=0.01)
    demand.observe_run(NOW, 8, 0.0)  # a clock of low resolution
    demand.observe_run(NOW, 8, 0.030)
    assert demand.run_s(8) == pytest.approx(0.030, rel=0.2)
    assert 0 < demand.best_s(8) < 0.030


def test_a_batch_between_two_sizes_does_not_make_the_larger_one_look_faster() -> None:
    """15 ms a row, as declared: none of the batches says anything new."""
    demand = declared({1: 0.015, 16: 0.240})
    for number in range(200):
        rows = (9, 11, 13, 3, 16)[number % 5]
        demand.observe_run(NOW, rows, 0.015 * rows)
    for rows in (1, 4, 9, 16, 64):
        assert demand.run_s(rows) == pytest.approx(0.015 * rows)
        assert demand.best_s(rows) == pytest.approx(0.015 * rows)


@pytest.mark.parametrize("truth", [0.2, 0.5, 2.0, 3.0])
def test_sizes_that_run_by_turns_say_once_what_is_wrong(truth: float) -> None:
    times = {1: 0.05, 2: 0.09, 4: 0.17, 8: 0.32}
    demand = declared({1: times[1], 8: times[8]})
    for number in range(600):
        rows = (1, 2, 4)[number % 3]
        demand.observe_run(NOW, rows, truth * times[rows])
    assert demand.run_s(4) == pytest.approx(truth * times[4], rel=0.01)
    assert demand.run_s(8) == pytest.approx(truth * times[8], rel=0.1)
    assert demand.best_s(8) == pytest.approx(min(1.0, truth) * times[8], rel=0.1), (
        "never impossible for what others take"
    )
    for _ in range(1000):
        demand.observe_run(NOW, 2, times[2])
    assert demand.run_s(4) == pytest.approx(times[4], rel=0.1), "what was told long ago is forgotten"


def test_what_is_not_tried_is_never_expected_to_take_longer() -> None:
    """All runs so far were slowed by half, as predicted: alone it takes 10 ms, and the best that was seen are 15 ms."""
    demand = declared({1: 0.010})
    for _ in range(100):
        demand.observe_run(NOW, 1, 0.015, 0.5)
    assert demand.best_s(1) > 0.0145
    for _ in range(20):
        demand.relax()
    assert demand.run_s(1) == pytest.approx(0.010)


def test_a_declared_size_is_told_of_by_its_own_runs() -> None:
    demand = declared({1: 0.05, 3: 0.12})
    for _ in range(100):
        demand.observe_run(NOW, 3, 0.06)
    assert (demand.run_s(3), demand.run_s(1)) == (pytest.approx(0.06, rel=0.01), pytest.approx(0.025, rel=0.01))


def test_batch_shrinks_until_its_earliest_deadline_holds() -> None:
    """A batch that would break the earliest deadline in it is halved until it passes."""
    decisions = run(
        known("p/f", max_batch=8, run_s=0.010),
        gpu("a", warm={"p/f": 1}),
        *[arrived("p/f", str(i), within=0.011) for i in range(2)],
        policy=DrivenEngine(),
    )

    assert dispatches(decisions) == [("p/f", "a", ["0"])]


def test_other_shapes_and_loners_do_not_share() -> None:
    decisions = run(
        known("p/f", max_batch=8, max_warm=4),
        gpu("a", warm={"p/f": 4}),
        arrived("p/f", "1", shape="x"),
        arrived("p/f", "2", shape="y"),
        arrived("p/f", "3", shape="x"),
        arrived("p/f", "4", shape="x", alone=True),
    )

    assert {("1", "3"), ("2",), ("4",)} == {tuple(ids) for _, _, ids in dispatches(decisions)}


def test_priority_is_usage_gain_over_degradation() -> None:
    """With one slot the function of higher Eq. 5 goes first; deadlines do not matter between functions."""
    decisions = run(
        known("p/low", usage=0.1, degradation=0.2),
        known("p/high", usage=0.4, degradation=0.1),
        gpu("a", slots=1, warm={"p/low": 1, "p/high": 1}),
        arrived("p/low", "1", within=1.0),
        arrived("p/high", "2", within=5.0),
    )

    assert dispatches(decisions) == [("p/high", "a", ["2"])]


def test_ageing_overtakes_priority_within_its_bound() -> None:
    """A head that has waited 1/ageing_per_s longer than the others stands first whatever the priorities are."""
    ageing = preset("smore-product", order="priority", ageing_per_s=0.5)
    events: list[Event] = [
        known("p/low", usage=0.01, degradation=1.0),
        known("p/high", usage=1.0, degradation=0.01),
        gpu("a", slots=1, warm={"p/low": 1, "p/high": 1}),
        arrived("p/low", "1", at=NOW - 2.1, within=10),
        arrived("p/high", "2", at=NOW, within=10),
    ]

    assert dispatches(run(*events, policy=DrivenEngine(ageing))) == [("p/low", "a", ["1"])]
    assert dispatches(run(*events, policy=DrivenEngine(preset("smore-product", order="priority")))) == [
        ("p/high", "a", ["2"])
    ]


def test_fig_6_a_refused_function_does_not_block_the_next() -> None:
    """Three functions: the second does not fit anywhere and waits; the round goes on with the third."""
    decisions = run(
        known("p/a", usage=0.9),
        known("p/b", usage=0.5, memory_mib=900.0),
        known("p/c", usage=0.1),
        gpu("g1", free=500.0),
        gpu("g2", free=500.0),
        arrived("p/a", "1"),
        arrived("p/b", "2"),
        arrived("p/c", "3"),
    )

    assert [ids[0] for _, _, ids in dispatches(decisions)] == ["1", "3"]


def test_expires_what_cannot_finish_in_time() -> None:
    policy = DrivenEngine()
    run(known("p/f", run_s=0.1), gpu("a", slots=0), arrived("p/f", "1", within=1.0), policy=policy)

    assert policy.decide(NOW + 0.85, []) == []
    (ending,) = policy.decide(NOW + 0.95, [])
    assert isinstance(ending, End)
    assert (ending.id, ending.action, ending.cause) == ("1", "expire", Cause.DEADLINE_EXPIRED)


def test_rejects_what_no_gpu_instance_could_ever_hold() -> None:
    (ending,) = run(known("p/f", memory_mib=5000.0), gpu("a"), arrived("p/f", "1"))

    assert isinstance(ending, End)
    assert (ending.action, ending.cause) == ("reject", Cause.INFEASIBLE)


def test_loads_ahead_where_the_deadline_leaves_no_time_for_a_cold_start() -> None:
    """The first request of such a function expires, but somebody loads the model meanwhile; it is asked for once."""
    policy = DrivenEngine()
    decisions = run(known("p/f", run_s=0.01, load_s=2.0), gpu("a"), arrived("p/f", "1", within=0.5), policy=policy)

    assert [Prewarm(function="p/f", revision=1, gpu="a")] == decisions
    assert policy.decide(NOW + 0.1, [arrived("p/f", "2", at=NOW + 0.1, within=0.5)]) == []


def test_waits_for_a_busy_instance_rather_than_loading_a_second() -> None:
    policy = DrivenEngine()
    run(known("p/f", max_warm=2, load_s=0.5), gpu("a", warm={"p/f": 1}), arrived("p/f", "1"), policy=policy)

    assert policy.decide(NOW + 0.001, [arrived("p/f", "2", at=NOW + 0.001)]) == []


def test_refused_claim_frees_its_slot() -> None:
    policy = DrivenEngine()
    (first,) = run(known("p/f"), gpu("a", slots=1, warm={"p/f": 1}), arrived("p/f", "1"), policy=policy)
    assert isinstance(first, Dispatch)

    after = policy.decide(NOW, [ClaimRefused(id="1", attempt=0), arrived("p/f", "2")])
    assert dispatches(after) == [("p/f", "a", ["2"])]


def test_nothing_is_placed_on_what_is_lost_or_paused() -> None:
    policy = DrivenEngine()
    assert run(known("p/f"), gpu("a"), GpuLost(gpu="a"), arrived("p/f", "1"), policy=policy) == []
    assert policy.decide(NOW, [gpu("a"), PausesChanged(paused=frozenset({"g:a"}))]) == []
    assert policy.decide(NOW, [PausesChanged(paused=frozenset({"f:p/f"}))]) == []
    assert policy.decide(NOW, [PausesChanged(paused=frozenset({"*"}))]) == []
    assert dispatches(policy.decide(NOW, [PausesChanged(paused=frozenset())])) == [("p/f", "a", ["1"])]


def test_quarantined_revision_goes_elsewhere() -> None:
    decisions = run(known("p/f"), gpu("a", quarantined=["p/f@1"], warm={"p/f": 1}), gpu("b"), arrived("p/f", "1"))

    assert dispatches(decisions) == [("p/f", "b", ["1"])]


def test_removed_function_fails_what_waits() -> None:
    policy = DrivenEngine()
    run(known("p/f"), arrived("p/f", "1"), policy=policy)

    (ending,) = policy.decide(NOW, [FunctionRemoved(function="p/f")])
    assert isinstance(ending, End)
    assert ending.cause == Cause.FUNCTION_DELETED


def test_takes_over_what_runs_already() -> None:
    """A new leader counts what is held: a full GPU instance takes nothing until one of them ends."""
    policy = DrivenEngine()
    held = InvocationHeld(function="p/f", revision=1, id="0", attempt=1, rows=1, gpu="a", since_at=NOW)
    assert run(known("p/f"), gpu("a", slots=1, warm={"p/f": 1}), held, arrived("p/f", "1"), policy=policy) == []

    after = policy.decide(NOW + 0.1, [InvocationSettled(id="0", attempt=1)])
    assert dispatches(after) == [("p/f", "a", ["1"])]


def test_run_times_are_learned() -> None:
    """
    Measured batches move the estimate, so that a function slower than declared stops being promised what it cannot
    hold.
    """
    policy = DrivenEngine()
    run(known("p/f", run_s=0.01), gpu("a", warm={"p/f": 1}), policy=policy)
    for n in range(60):
        policy.decide(NOW + n, [gpu("a", warm={"p/f": 1}), arrived("p/f", f"{n}", at=NOW + n)])
        policy.decide(NOW + n + 0.1, [InvocationSettled(id=f"{n}", attempt=1, run_s=0.1, batch_rows=1)])

    told = policy.bounds(NOW + 59.2, "p/f", 1)
    assert told is not None
    assert (told.backlog_s, told.floor_s) == (pytest.approx(GUARDED * 0.1, rel=0.05), pytest.approx(0.1, rel=0.1))


def test_a_refusal_promises_no_less_than_a_cold_start() -> None:
    """The gate lets in what has no time for a load, so that one is asked for; what it names as the earliest has it."""
    policy = DrivenEngine()
    run(known("p/f", run_s=0.01, load_s=10.0), gpu("a"), policy=policy)
    told = policy.bounds(NOW, "p/f", 1)
    assert told is not None
    assert (told.backlog_s, told.cold_s) == (pytest.approx(0.01), pytest.approx(10.0 + GUARDED * 0.01))
    policy.decide(NOW + 1, [gpu("a", warm={"p/f": 1})])
    assert policy.bounds(NOW + 1, "p/f", 1).cold_s == 0.0  # type: ignore[union-attr]
    alone = DrivenEngine()
    run(known("p/f", run_s=0.01, load_s=1.0), policy=alone)
    assert alone.bounds(NOW, "p/f", 1).cold_s == inf, "nothing could load it"  # type: ignore[union-attr]


def test_a_call_refused_for_want_of_an_instance_loads_one() -> None:
    """Its own deadline is shorter than the load, its function's is not: without this, each one after it is refused."""
    policy = DrivenEngine()
    run(known("p/f", run_s=0.01, load_s=2.0, deadline_s=40.0), gpu("a"), gpu("b", jobs=1), policy=policy)
    wanted = LoadWanted(function="p/f", revision=1)
    assert policy.decide(NOW, [wanted, LoadWanted(function="p/gone", revision=1)]) == [
        Prewarm(function="p/f", revision=1, gpu="a")
    ]
    assert policy.decide(NOW + 1, [wanted]) == [], "it is asked for once"
    policy.decide(NOW + 2, [gpu("a", warm={"p/f": 1})])
    assert policy.decide(NOW + 60, [wanted]) == [], "one is there"


def test_gate_is_told_of_the_backlog() -> None:
    policy = DrivenEngine()
    run(known("p/f", run_s=0.1, max_batch=1), gpu("a", warm={"p/f": 1}), policy=policy)
    policy.decide(NOW, [arrived("p/f", str(i)) for i in range(11)])

    told = policy.bounds(NOW, "p/f", 1)
    assert told is not None
    assert (told.floor_s, told.each_s, told.counted) == (pytest.approx(0.1), pytest.approx(0.1), 10)
    assert 1.0 <= told.backlog_s <= 1.4
