"""When a new invocation could end: what counts for the bounds by which gateways admit, and what does not."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from scheduler.policy.decisions import Dispatch, FinishBounds
from scheduler.policy.events import (
    Event,
    FunctionKnown,
    GpuLost,
    GpuReported,
    InstanceReported,
    InvocationArrived,
    InvocationSettled,
    PausesChanged,
)
from smore.domain.function import FunctionSpec, Profile
from tests.support.driven import DrivenEngine
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


# ---- time that says nothing of the rate ------------------------------------------------------------------------------


def test_a_pause_however_long_says_nothing_of_the_rate() -> None:
    """
    64 GPU instances with two slots each and 192 that come in half a minute while all are paused: none is refused for a
    wait that no paused minute can tell of, neither then nor right after the pause.
    """
    functions, gpus = ("p/one", "p/two"), [f"node{number:02}" for number in range(64)]
    engine = DrivenEngine()
    engine.decide(NOW, [*map(known, functions), *(gpu(name, functions=functions, slots=2) for name in gpus)])
    engine.decide(NOW, [PausesChanged(paused=frozenset({"*"}))])
    now = NOW
    for number in range(192):
        now += 0.16
        function = functions[number % 2]
        told = bounds(engine, now, function)
        assert told.backlog_s < 1.0, number
        engine.decide(now, [arrived(f"{number:03}", now, function=function)])
    assert max(bounds(engine, now, function).backlog_s for function in functions) < 1.0
    placed = ids(engine.decide(now + 1.0, [PausesChanged(paused=frozenset())]))
    assert len(placed) == 128
    told = bounds(engine, now + 1.0, functions[0])
    assert told.counted == 32
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
