"""
Whatever happens in whatever order: the arrays equal a fresh count, nothing is over its bounds, nothing is lost, replays
agree.
"""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policy.decisions import Dispatch
from scheduler.policy.events import (
    ClaimRefused,
    Event,
    FunctionKnown,
    GpuLost,
    GpuReported,
    InvocationArrived,
    InvocationSettled,
    OverridesChanged,
    WarmLimits,
)
from scheduler.policy.knobs import preset
from scheduler.policy.ordering import LEAST_SHARE
from smore.domain.function import FunctionSpec, Profile
from smore.domain.invocation import End
from smore.domain.override import Override
from tests.support.driven import DrivenEngine

FUNCTIONS = ("p/a", "p/b", "p/c")
GPUS = ("g0", "g1", "g2")
SLOTS = 3
MEMORY = 1000.0

steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["arrive", "arrive", "arrive", "settle", "return", "refuse", "report", "lose", "wait", "steer", "limit"]
        ),
        st.integers(0, 1000),
        st.floats(0.001, 3.0),
    ),
    max_size=60,
)


def specs() -> list[Event]:
    return [
        FunctionKnown(
            function=name,
            revision=1,
            spec=FunctionSpec(
                entrypoint="m:C",
                max_batch=batch,
                max_warm=2,
                profile=Profile(
                    run_s={1: 0.05, 4: 0.1}, load_s=0.3, memory_mib=300.0, usage_gain=0.1 * batch, degradation=0.1
                ),
            ),
        )
        for name, batch in zip(FUNCTIONS, (1, 4, 8), strict=True)
    ]


def report(name: str, now: float, warm: dict[str, int]) -> GpuReported:
    return GpuReported(
        gpu=name,
        boot="b",
        at=now,
        slots=SLOTS,
        memory_total=MEMORY,
        memory_used=300.0 * sum(warm.values()),
        memory_idle=0.0,
        utilisation=0.5,
        function_utilisation=0.1,
        jobs=1,
        warm=[(function, 1, count) for function, count in warm.items()],
    )


class World:
    """The queue and the workers as a policy sees them: enough truth to know what must hold."""

    def __init__(self, seed: int, ahead_s: float = 0.0) -> None:
        self.policy = DrivenEngine(preset("smore-product", seed=seed, ahead_s=ahead_s))
        self.now = 1000.0
        self.waiting: dict[str, InvocationArrived] = {}
        self.running: dict[str, tuple[int, str]] = {}
        self.ended: Counter[str] = Counter()
        self.submitted = 0
        self.pins: dict[str, Override] = {}
        self.log: list[object] = []
        self.feed([*specs(), *[report(name, self.now, {}) for name in GPUS]])

    def feed(self, events: list[Event]) -> None:
        for decision in self.policy.decide(self.now, events):
            self.log.append(decision)
            if isinstance(decision, Dispatch):
                pin = self.pins.get(decision.function)
                assert pin is None or decision.gpu in (pin.left(self.now).gpus or GPUS)
                for id_, attempt in decision.attempts:
                    invocation = self.waiting.pop(id_)  # KeyError: dispatched twice, or never arrived
                    assert attempt == invocation.attempt
                    assert invocation.function == decision.function
                    self.running[id_] = (attempt + 1, decision.gpu)
            elif isinstance(decision, End):
                del self.waiting[decision.id]
                self.ended[decision.id] += 1
        self.check()

    def check(self) -> None:
        cluster = self.policy.cluster
        used, outstanding = cluster.rebuilt()
        np.testing.assert_array_equal(used, cluster.used)
        np.testing.assert_array_equal(outstanding, cluster.outstanding)
        assert (cluster.used <= cluster.slots).all()
        for (row, column), batch in cluster.ahead.items():
            assert batch.members and cluster.outstanding[row, column], "it is behind one that runs"
        assert set(cluster.batches) == set(self.running)
        assert len(self.policy.waiting) == len(self.waiting)
        assert self.submitted == len(self.waiting) + len(self.running) + len(self.ended)
        assert all(count == 1 for count in self.ended.values())
        assert (cluster.reserved >= 0).all()
        assert (cluster.reserved[cluster.used == 0] == 0).all()

    def step(self, action: str, number: int, span: float) -> None:
        if action == "arrive":
            self.submitted += 1
            invocation = InvocationArrived(
                function=FUNCTIONS[number % 3],
                revision=1,
                id=f"{self.submitted:06d}",
                attempt=0,
                arrival_at=self.now,
                deadline_at=self.now + span,
            )
            self.waiting[invocation.id] = invocation
            self.feed([invocation])
        elif action == "wait":
            self.now += span
            self.feed([])
        elif action == "report":
            self.feed([report(GPUS[number % 3], self.now, {FUNCTIONS[number % 2]: number % 3})])
        elif action == "steer":
            self.pins = {
                FUNCTIONS[number % 3]: Override(
                    function=FUNCTIONS[number % 3],
                    boost=1.0 + number,
                    gpus=(GPUS[number % 2],),
                    pin_until=self.now + span,
                )
            }
            self.feed([OverridesChanged(overrides=list(self.pins.values()))])
        elif action == "limit":
            self.feed([WarmLimits(mib={"p": 300.0 * (number % 4)})])
        elif action == "lose":
            self.feed([GpuLost(gpu=GPUS[number % 3])])
        elif self.running:
            id_ = sorted(self.running)[number % len(self.running)]
            attempt, _ = self.running.pop(id_)
            if action == "settle":
                self.ended[id_] += 1
                self.feed([InvocationSettled(id=id_, attempt=attempt, run_s=span, batch_rows=1)])
            else:
                back = InvocationArrived(
                    function=FUNCTIONS[number % 3],
                    revision=1,
                    id=id_,
                    attempt=attempt,
                    arrival_at=self.now - 1,
                    deadline_at=self.now + span,
                )
                self.waiting[id_] = back
                self.feed([ClaimRefused(id=id_, attempt=attempt - 1), back] if action == "refuse" else [back])


@settings(max_examples=150, deadline=None)
@given(steps, st.sampled_from([0.0, 0.1]))
def test_arrays_and_counts_hold(plan: list[tuple[str, int, float]], ahead_s: float) -> None:
    """Invariants are checked after every event (World.check)."""
    world = World(0, ahead_s)
    for step in plan:
        world.step(*step)

    # Once everything that runs has ended and every deadline has passed, nothing is left over.
    while world.running:
        world.step("settle", 0, 0.1)
    world.now += 10.0
    world.feed([])
    assert not world.waiting
    assert not world.policy.cluster.batches and not world.policy.cluster.ahead
    assert not world.policy.cluster.used.any()


@settings(max_examples=50, deadline=None)
@given(steps)
def test_same_events_same_decisions(plan: list[tuple[str, int, float]]) -> None:
    one, other = World(0), World(0)
    for step in plan:
        one.step(*step)
        other.step(*step)

    assert one.log == other.log


@settings(max_examples=60, deadline=None)
@given(
    ageing=st.floats(0.1, 5.0),
    usage=st.floats(0.0, 1.0),
    service_s=st.floats(0.01, 0.5),
    burst=st.integers(1, 4),
    rival=st.floats(0.0, 1.0),
)
def test_starvation_bound(ageing: float, usage: float, service_s: float, burst: int, rival: float) -> None:
    """
    One slot, a stream of rivals: whoever is dispatched while another waits, the other's head has not waited 1/ageing s
    longer than its own.

    So a function whose head has is next, whatever the priorities are (docs/architecture.md).
    """
    policy = DrivenEngine(preset("smore-product", order="priority", ageing_per_s=ageing))
    gains = {"p/low": usage, "p/high": rival}
    known: list[Event] = [
        FunctionKnown(
            function=name,
            revision=1,
            spec=FunctionSpec(
                entrypoint="m:C", profile=Profile(run_s={1: service_s}, usage_gain=gain, degradation=0.01, load_s=0.1)
            ),
        )
        for name, gain in gains.items()
    ]
    now, served, waiting = 1000.0, 0, {"p/low": [(1000.0, "low")], "p/high": []}
    report = GpuReported(
        gpu="g",
        boot="b",
        at=now,
        slots=1,
        memory_total=MEMORY,
        memory_used=0.0,
        memory_idle=0.0,
        utilisation=0.0,
        function_utilisation=0.0,
        jobs=0,
        warm=[(name, 1, 1) for name in gains],
    )
    events: list[Event] = [
        *known,
        report,
        InvocationArrived(function="p/low", revision=1, id="low", attempt=0, arrival_at=now, deadline_at=now + 1e6),
    ]
    while served < 200 and waiting["p/low"]:
        for n in range(burst):
            id_ = f"high-{served}-{n}"
            waiting["p/high"].append((now, id_))
            events.append(
                InvocationArrived(
                    function="p/high", revision=1, id=id_, attempt=0, arrival_at=now, deadline_at=now + 1e6
                )
            )
        (dispatch,) = (decision for decision in policy.decide(now, events) if isinstance(decision, Dispatch))
        other = "p/low" if dispatch.function == "p/high" else "p/high"
        (arrival, id_), *waiting[dispatch.function] = waiting[dispatch.function]
        assert dispatch.attempts == [(id_, 0)]
        if waiting[other]:
            assert arrival - waiting[other][0][0] <= 1 / ageing + 1e-6
        now += service_s
        served += 1
        events = [InvocationSettled(id=id_, attempt=1, run_s=service_s, batch_rows=1)]


@settings(max_examples=60, deadline=None)
@given(
    usage=st.floats(min_value=0.05, max_value=1.0),
    low_s=st.floats(min_value=0.005, max_value=0.5),
    high_s=st.floats(min_value=0.005, max_value=0.5),
    burst=st.integers(min_value=1, max_value=4),
)
def test_shares_bound_starvation(usage: float, low_s: float, high_s: float, burst: int) -> None:
    """
    One slot, two functions that always have something waiting: what each has had of the run time, over its weight,
    never differs by more than one batch of each (start-time fair queueing).
    """
    policy = DrivenEngine(preset("smore-product"))
    runs, gains = {"p/low": low_s, "p/high": high_s}, {"p/low": usage, "p/high": 1.0}
    weights = {name: max(LEAST_SHARE, gain / 1.0) for name, gain in gains.items()}
    now, number = 1000.0, 0
    events: list[Event] = [
        FunctionKnown(
            function=name,
            revision=1,
            spec=FunctionSpec(
                entrypoint="m:C", profile=Profile(run_s={1: runs[name]}, usage_gain=gain, degradation=1.0, load_s=0.1)
            ),
        )
        for name, gain in gains.items()
    ]
    events.append(
        GpuReported(
            gpu="g",
            boot="b",
            at=now,
            slots=1,
            memory_total=MEMORY,
            memory_used=0.0,
            memory_idle=0.0,
            utilisation=0.0,
            function_utilisation=0.0,
            jobs=0,
            warm=[(name, 1, 1) for name in gains],
        )
    )
    had = dict.fromkeys(gains, 0.0)
    for _ in range(200):
        for name in gains:
            for _ in range(burst):
                number += 1
                events.append(
                    InvocationArrived(
                        function=name, revision=1, id=str(number), attempt=0, arrival_at=now, deadline_at=now + 1e6
                    )
                )
        (dispatch,) = (decision for decision in policy.decide(now, events) if isinstance(decision, Dispatch))
        name = dispatch.function
        had[name] += runs[name] / weights[name]
        assert abs(had["p/low"] - had["p/high"]) <= sum(runs[each] / weights[each] for each in gains) + 1e-6
        now += runs[name]
        events = [InvocationSettled(id=dispatch.attempts[0][0], attempt=1, run_s=runs[name], batch_rows=1)]
