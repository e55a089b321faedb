"""When a new invocation could end: what counts for the bounds by which gateways admit, and what does not."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import pytest

from scheduler.policy.decisions import Dispatch, FinishBounds, Refusal
from scheduler.policy.demand import Demand
from scheduler.policy.events import (
    Event,
    FunctionKnown,
    GpuLost,
    GpuReported,
    InstanceReported,
    InvocationArrived,
    InvocationSettled,
    OverridesChanged,
    PausesChanged,
)
from smore.domain.function import FunctionSpec, Profile
from smore.domain.invocation import Cause, End
from smore.domain.override import Override
from tests.support.driven import DrivenEngine
from tests.support.gate_stage import GateStage
from tests.support.policy_events import NOW

F = "p/f"


def known(name: str = F, *, run_s: float = 0.3, max_batch: int = 1, deadline_s: float = 60.0) -> FunctionKnown:
    profile = Profile(run_s={1: run_s}, load_s=1.0, memory_mib=1.0)
    spec = FunctionSpec(entrypoint="m:C", max_batch=max_batch, max_warm=8, deadline_s=deadline_s, profile=profile)
    return FunctionKnown(function=name, revision=1, spec=spec)


def gpu(name: str = "a", *, functions: Sequence[str] = (F,), warm: int = 1, slots: int = 1) -> GpuReported:
    return GpuReported(
        gpu=name,
        boot="b",
        at=NOW,
        slots=slots,
        memory_total=1000.0,
        memory_used=0.0,
        memory_idle=0.0,
        utilisation=0.0,
        function_utilisation=0.0,
        jobs=0,
        warm=[(function, 1, warm) for function in functions if warm],
    )


def arrived(id_: str, at: float, *, function: str = F, within: float = 600.0, attempt: int = 0) -> InvocationArrived:
    return InvocationArrived(
        function=function, revision=1, id=id_, attempt=attempt, arrival_at=at, deadline_at=at + within
    )


def ids(decisions: Sequence[object]) -> list[str]:
    return [id_ for decision in decisions if isinstance(decision, Dispatch) for id_, _ in decision.attempts]


def bounds(engine: DrivenEngine, now: float, function: str = F) -> FinishBounds:
    told = engine.bounds(now, function, 1)
    assert told is not None
    return told


def engine_with(*, run_s: float, gpus: int = 1) -> DrivenEngine:
    engine = DrivenEngine()
    engine.decide(NOW, [known(run_s=run_s), *(gpu(f"g{number}") for number in range(gpus))])
    return engine


# ---- time that says nothing of the rate ------------------------------------------------------------------------------


def test_a_pause_however_long_says_nothing_of_the_rate() -> None:
    """
    16 GPU instances with two slots each and 48 that come in half a minute while all are paused: none is refused for a
    wait that no paused minute can tell of, neither then nor right after the pause.
    """
    functions, gpus = ("p/one", "p/two"), [f"node{number:02}" for number in range(16)]
    engine = DrivenEngine()
    engine.decide(NOW, [*map(known, functions), *(gpu(name, functions=functions, slots=2) for name in gpus)])
    engine.decide(NOW, [PausesChanged(paused=frozenset({"*"}))])
    now = NOW
    for number in range(48):
        now += 0.6
        function = functions[number % 2]
        assert bounds(engine, now, function).backlog_s < 1.0, number
        engine.decide(now, [arrived(f"{number:03}", now, function=function)])
    assert max(bounds(engine, now, function).backlog_s for function in functions) < 1.0
    placed = ids(engine.decide(now + 1.0, [PausesChanged(paused=frozenset())]))
    assert len(placed) == 32
    told = bounds(engine, now + 1.0, functions[0])
    assert told.counted == 8
    assert told.backlog_s < 2.0
    assert told.each_s < 0.05


def _paused(what: str) -> Callable[[DrivenEngine], float]:
    def stretch(engine: DrivenEngine) -> float:
        engine.decide(NOW, [known(), gpu(), PausesChanged(paused=frozenset({what}))])
        engine.decide(NOW + 1.0, [arrived(str(number), NOW + 1.0) for number in range(4)])
        engine.decide(NOW + 60.0, [PausesChanged(paused=frozenset())])
        return NOW + 60.0

    return stretch


def _led_by_nobody(engine: DrivenEngine) -> float:
    """A new leader finds what came while nobody led."""
    engine.decide(NOW + 60.0, [known(), gpu(), *[arrived(str(number), NOW) for number in range(4)]])
    return NOW + 60.0


def _without_gpu(engine: DrivenEngine) -> float:
    engine.decide(NOW, [known(), gpu(), GpuLost(gpu="a")])
    engine.decide(NOW + 1.0, [arrived(str(number), NOW + 1.0) for number in range(4)])
    engine.decide(NOW + 60.0, [gpu()])
    return NOW + 60.0


def _loading(engine: DrivenEngine) -> float:
    engine.decide(NOW, [known(), gpu(warm=0, slots=0)])
    engine.decide(NOW + 1.0, [arrived(str(number), NOW + 1.0) for number in range(4)])
    ready = InstanceReported(function=F, revision=1, gpu="a", load_s=58.0, failed=False, evicted=False)
    engine.decide(NOW + 60.0, [ready])
    engine.decide(NOW + 60.0, [gpu()])
    return NOW + 60.0


def _given_back(engine: DrivenEngine) -> float:
    """One ran for a minute and comes back: it did not wait meanwhile."""
    engine.decide(NOW, [known(), gpu(slots=2, warm=2), arrived("0", NOW)])
    engine.decide(NOW + 60.0, [gpu(slots=0, warm=2), arrived("0", NOW, attempt=1)])
    engine.decide(NOW + 60.0, [arrived(str(number), NOW + 60.0) for number in range(1, 4)])
    return NOW + 60.0


@pytest.mark.parametrize(
    "stretch",
    [_paused("*"), _paused(f"f:{F}"), _paused("g:a"), _led_by_nobody, _without_gpu, _loading, _given_back],
    ids=["platform", "function", "gpu", "leader", "gpu lost", "load", "given back"],
)
def test_time_in_which_nothing_could_be_placed_says_nothing_of_the_rate(
    stretch: Callable[[DrivenEngine], float],
) -> None:
    """Instances times run time is all that counts: four at 0.3 s each, and one's own run."""
    engine = DrivenEngine()
    now = stretch(engine)
    assert bounds(engine, now).backlog_s < 5 * 0.3 + 0.2
    # What is placed then was placed at once, as far as the rate is concerned.
    running = ids(engine.decide(now + 0.1, [gpu()]))
    while running:
        now += 0.3
        settled = InvocationSettled(id=running.pop(), attempt=2 if running == ["0"] else 1, run_s=0.3, batch_rows=1)
        running = ids(engine.decide(now, [settled]))
        told = bounds(engine, now)
        assert told.each_s < 0.6
        assert told.backlog_s < (told.counted + 2) * 0.6


# ---- what does say something of it -----------------------------------------------------------------------------------


def test_a_long_run_is_no_standstill() -> None:
    """One instance, runs of 30 s, two wait: the rate is one in 30 s at every moment of a run."""
    engine = DrivenEngine()
    running = ids(engine.decide(NOW, [known(run_s=30.0, deadline_s=300.0), gpu(), arrived("0", NOW)]))
    engine.decide(NOW, [arrived(str(number), NOW) for number in range(1, 9)])
    now = NOW
    for run in range(4):
        for second in range(1, 30):
            told = bounds(engine, now + second)
            assert told.each_s == pytest.approx(30.0, rel=0.05), (run, second)
        now += 30.0
        settled = InvocationSettled(id=running.pop(), attempt=1, run_s=30.0, batch_rows=1)
        running = ids(engine.decide(now, [settled]))


def test_a_function_that_is_not_placed_though_it_could_be_is_told_so() -> None:
    """Another function holds the only slot: the longer nothing of this one is placed, the slower its rate."""
    engine = DrivenEngine()
    other = "p/other"
    engine.decide(
        NOW, [known(), known(other, run_s=60.0), gpu(functions=(F, other)), arrived("o", NOW, function=other)]
    )
    engine.decide(NOW, [arrived(str(number), NOW) for number in range(3)])
    early, late = bounds(engine, NOW + 1.0), bounds(engine, NOW + 20.0)
    assert early.each_s == pytest.approx(1.0, rel=0.1)
    assert late.each_s == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize("each_s", [0.1, 0.5])
def test_a_rate_below_that_of_the_instances_is_measured(each_s: float) -> None:
    """Placed one each ``each_s`` although a run takes a fraction of that: the window in between counts."""
    engine = DrivenEngine()
    engine.decide(NOW, [known(run_s=0.01), gpu(slots=0)])
    engine.decide(NOW, [arrived(f"{number:03}", NOW) for number in range(300)])
    now = NOW
    for _ in range(40):
        now += each_s
        (id_,) = ids(engine.decide(now, [gpu(slots=1)]))
        engine.decide(now, [gpu(slots=0), InvocationSettled(id=id_, attempt=1, run_s=0.01, batch_rows=1)])
    told = bounds(engine, now + each_s / 2)
    assert told.each_s == pytest.approx(each_s, rel=0.2)


def test_a_burst_after_an_idle_time_is_not_taken_for_slow() -> None:
    """Nothing for a minute, then forty at once, each of 50 ms: after half a second ten have been placed in that."""
    engine = DrivenEngine()
    running = ids(engine.decide(NOW, [known(run_s=0.05), gpu(), arrived("first", NOW)]))
    engine.decide(NOW + 0.05, [InvocationSettled(id=running.pop(), attempt=1, run_s=0.05, batch_rows=1)])
    now = NOW + 60.0
    running = ids(engine.decide(now, [arrived(f"{number:02}", now) for number in range(40)]))
    for _ in range(12):
        now += 0.05
        events: list[Event] = [InvocationSettled(id=running.pop(), attempt=1, run_s=0.05, batch_rows=1)]
        running = ids(engine.decide(now, events))
    told = bounds(engine, now)
    assert told.counted == 27
    assert told.each_s == pytest.approx(0.05, rel=0.15)


def test_what_expires_unplaced_goes_on_counting() -> None:
    """Deadlines of 0.2 s beside a standstill: the next that waits is told of the standstill, not of its own wait."""
    engine = DrivenEngine()
    short = replace(known(run_s=0.01), spec=replace(known(run_s=0.01).spec, deadline_s=0.2))
    engine.decide(NOW, [short, gpu(slots=0)])
    now = NOW
    for number in range(20):
        engine.decide(now, [arrived(f"{number}", now, within=0.2)])
        now += 0.2
        engine.decide(now, [])
    assert not engine.waiting.count(F)
    engine.decide(now, [arrived("last", now, within=0.2)])
    assert bounds(engine, now + 0.06).each_s > 1.0


# ---- runs that end before their time ---------------------------------------------------------------------------------


@pytest.mark.parametrize("callers", [1, 2])
def test_a_run_that_ended_before_its_time_does_not_count(callers: int) -> None:
    """
    Runs of 9.2 s by the first one, deadlines of 10 s, and each ends after a twentieth of that: callers, each with a GPU
    instance, that call one after the other are never refused, whether the runs teach something or raise.
    """
    for teaches in (True, False):
        engine = engine_with(run_s=9.2, gpus=callers)
        stage = GateStage(engine, NOW, lambda *_: 0.46, heard_s=0.001, teaches=teaches)
        for number in range(20 * callers):
            assert stage.send(F, 10.0), (teaches, number)
            # The caller whose turn is next has had its answer.
            stage.until(stage.now + 0.4611 / callers)


def test_a_run_that_goes_on_counts_still() -> None:
    """Two GPU instances, and one of two runs has ended: one more is let in, and the next is told of two runs."""
    stage = GateStage(engine_with(run_s=1.0, gpus=2), NOW, lambda at, *_: 0.05 if at == NOW else 1.0)
    assert stage.send(F, 1.5)
    stage.until(NOW + 0.01)
    assert stage.send(F, 1.5)
    stage.until(NOW + 0.02)
    stage.publish()
    assert not stage.send(F, 1.5), "both are busy"
    stage.until(NOW + 0.06)
    assert stage.send(F, 1.5)
    assert not stage.send(F, 1.5), "the one that is free has been promised"
    stage.until(NOW + 0.07)
    assert not stage.send(F, 1.5), "both are busy again"


# ---- a revision in quarantine ----------------------------------------------------------------------------------------


def test_what_all_gpu_instances_keep_out_is_said_to_be_and_ends() -> None:
    """One of two that quarantine it does not matter, nor one that is lost; what may outlast a quarantine waits."""
    shut = replace(gpu("a"), quarantined=[f"{F}@1"])
    engine = DrivenEngine()
    waiting = [arrived("soon", NOW, within=30.0), arrived("later", NOW)]
    assert not engine.decide(NOW, [known(), shut, gpu("b", slots=0), *waiting])
    assert bounds(engine, NOW).quarantined == 0
    (ended,) = engine.decide(NOW, [replace(shut, gpu="b")])
    assert isinstance(ended, End)
    assert (ended.id, ended.action, ended.cause) == ("soon", "fail", Cause.QUARANTINED)
    assert (bounds(engine, NOW).quarantined, bounds(engine, NOW).cold_s) == (1, inf)
    (ended,) = engine.decide(NOW, [arrived("next", NOW, within=30.0)])
    assert isinstance(ended, End)
    assert (ended.id, ended.cause) == ("next", Cause.QUARANTINED)
    answer = engine.ask(NOW, F, 1, 1, NOW + 5.0)
    assert answer is not None and answer.reasons.refused == {Refusal.QUARANTINED: 2}
    assert ids(engine.decide(NOW, [gpu("b")])) == ["later"], "lifted"
    assert bounds(engine, NOW).quarantined == 0
    engine.decide(NOW, [GpuLost(gpu="b")])
    assert bounds(engine, NOW).quarantined == 1


def test_a_pin_decides_which_quarantine_counts() -> None:
    engine = DrivenEngine()
    pinned = Override(function=F, gpus=("a",))
    engine.decide(NOW, [known(), replace(gpu("a"), quarantined=[f"{F}@1"]), gpu("b")])
    assert bounds(engine, NOW).quarantined == 0
    engine.decide(NOW, [OverridesChanged(overrides=[pinned])])
    assert bounds(engine, NOW).quarantined == 1


# ---- a slow time, and the way back -----------------------------------------------------------------------------------


def test_a_function_that_a_slow_time_made_look_too_slow_is_tried_again() -> None:
    """
    20 ms declared, deadlines of 100 ms, ten runs of 300 ms: refused at first, and let in again once it is fast; each
    that is let in meanwhile but the first is in time.
    """
    slow_until = NOW + 4.0
    stage = GateStage(engine_with(run_s=0.02), NOW, lambda at, _function, rows: 0.3 if at < slow_until else 0.02 * rows)
    for _ in range(10):
        assert stage.send(F, 10.0)
        stage.until(stage.now + 0.35)
    assert stage.now < slow_until
    assert not stage.send(F, 0.1), "what it takes now is known"
    sent = []
    while stage.now < NOW + 60.0:
        stage.until(stage.now + 0.05)
        sent.append(stage.send(F, 0.1))
    stage.until(stage.now + 1.0)
    assert all(sent[-400:]), "half a minute later nothing is left of it"
    admitted = [id_ for id_ in sent if id_]
    assert len(stage.late(admitted)) <= 2


def test_a_function_that_stays_slow_is_tried_ever_more_seldom() -> None:
    """Deadlines of 100 ms that no run meets: six minutes of four a second, of which a handful are let in and late."""
    stage = GateStage(engine_with(run_s=0.02), NOW, lambda _at, _function, _rows: 0.3)
    for _ in range(10):
        assert stage.send(F, 10.0)
        stage.until(stage.now + 0.35)
    tried_at = []
    while stage.now < NOW + 360.0:
        stage.until(stage.now + 0.25)
        if stage.send(F, 0.1):
            tried_at.append(stage.now)
    assert 3 <= len(tried_at) <= 20
    assert sum(at > NOW + 180.0 for at in tried_at) <= 3


def test_a_try_is_one_at_a_time_where_many_instances_stand_ready() -> None:
    """Eight GPU instances: while one run tries whether it is fast again, the gate counts on what was learned."""
    engine = engine_with(run_s=0.02, gpus=8)
    stage = GateStage(engine, NOW, lambda _at, _function, _rows: 0.3)
    for _ in range(10):
        assert stage.send(F, 10.0)
        stage.until(stage.now + 0.35)
    sent: list[str] = []
    while not sent:
        stage.until(stage.now + 0.1)
        sent += [id_ for _ in range(20) if (id_ := stage.send(F, 0.1))]
    stage.until(stage.now + 0.1)
    assert not stage.send(F, 0.1)
    assert len(sent) <= 4


def test_what_an_idle_function_was_learned_to_take_is_soon_in_force_again() -> None:
    """It takes three times what was declared, once a minute: a first run after an idle time says so at once."""
    demand = Demand(function=F, revision=1, spec=known(run_s=0.01).spec, column=0)
    now = NOW
    for _ in range(60):
        now += 0.1
        demand.observe_run(now, 1, 0.03)
    for _ in range(12):
        now += 60.0
        demand.forget(now)
        demand.observe_run(now, 1, 0.03)
        assert demand.run_s(1) == pytest.approx(0.03, rel=0.05)
    demand.forget(now + 60.0)
    assert demand.run_s(1) > 0.02, "so often disproved it is forgotten more slowly"
    # Fast at last: it is believed at once.
    demand.observe_run(now + 3600.0, 1, 0.01)
    demand.forget(now + 7200.0)
    demand.observe_run(now + 7200.0, 1, 0.01)
    assert demand.run_s(1) < 0.015


# ---- the earliest deadline that is named -----------------------------------------------------------------------------


def test_the_named_deadline_counts_what_the_placement_counts() -> None:
    """
    Runs of 205 ms on the average, the best of them 190 ms: the gate admits by what a placement expects, so nothing is
    let in that then expires.
    """
    runs = itertools.cycle([0.19, 0.21, 0.21, 0.21])
    stage = GateStage(engine_with(run_s=0.18), NOW, lambda *_: next(runs), heard_s=0.002)
    for _ in range(200):
        stage.send(F, 10.0)
        stage.until(stage.now + 0.4)
    for within_ms in range(150, 300):
        id_ = stage.send(F, within_ms / 1e3)
        named = stage.named_ms(F)
        stage.until(stage.now + 0.4)
        assert not id_ or stage.ended[id_] < inf, within_ms
        assert id_ or within_ms < named
    again = stage.send(F, stage.named_ms(F) / 1e3)
    stage.until(stage.now + 0.4)
    assert again and not stage.late([again])


def test_a_run_of_many_rows_is_promised_what_it_takes() -> None:
    known_ = known(run_s=0.05, max_batch=16)
    spec = replace(known_.spec, profile=replace(known_.spec.profile, run_s={1: 0.05, 2: 0.09, 8: 0.2}))
    demand = Demand(function=F, revision=1, spec=spec, column=0)
    engine = DrivenEngine()
    engine.decide(NOW, [replace(known_, spec=spec), gpu()])
    stage = GateStage(engine, NOW, lambda _at, _function, rows: demand.run_s(rows), heard_s=0.001)
    for rows in (1, 2, 3, 8, 13, 16):
        assert not stage.send(F, 0.01, rows=rows)
        id_ = stage.send(F, stage.named_ms(F, rows) / 1e3, rows=rows)
        stage.until(stage.now + 1.0)
        assert id_ and not stage.late([id_]), rows


def test_a_slot_that_others_hold_is_waited_for() -> None:
    """The only slot runs another function for 0.4 s more: so long the named deadline is away."""
    engine = DrivenEngine()
    other = "p/other"
    engine.decide(NOW, [known(run_s=0.01), known(other, run_s=0.5), gpu(functions=(F, other))])
    stage = GateStage(engine, NOW, lambda _at, function, _rows: 0.5 if function == other else 0.01)
    assert stage.send(other, 60.0)
    stage.until(NOW + 0.1)
    assert 0.4 < stage.named_ms(F) / 1e3 < 0.6
    id_ = stage.send(F, stage.named_ms(F) / 1e3)
    stage.until(NOW + 2.0)
    assert id_ and not stage.late([id_])


def test_how_late_arrivals_were_heard_of_is_forgotten_where_none_comes() -> None:
    """Where it makes the gate refuse all calls, none would come to teach that it is over."""
    engine = DrivenEngine()
    engine.decide(NOW, [known(), gpu()])
    engine.decide(NOW, [arrived("prompt", NOW, within=0.1)])
    engine.decide(NOW, [arrived(f"{number}", NOW - 0.2, within=0.1) for number in range(50)])
    late, later = engine.bounds(NOW, F, 1), engine.bounds(NOW + 60.0, F, 1)
    assert late is not None and later is not None
    assert late.backlog_s - later.backlog_s > 0.15 and later.backlog_s < 0.35
