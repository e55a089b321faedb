"""Whatever happens in whatever order: the arrays equal a fresh count, nothing is over its bounds, nothing is lost, replays agree."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policy.core import Knobs, Spine
from scheduler.policy.decisions import Dispatch, End
from scheduler.policy.events import ClaimRefused, Event, FunctionKnown, GpuLost, GpuReported, InvocationArrived, InvocationSettled
from smore.domain.function import FunctionSpec, Profile

FUNCTIONS = ("p/a", "p/b", "p/c")
GPUS = ("g0", "g1", "g2")
SLOTS = 3
MEMORY = 1000.0

steps = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "arrive", "settle", "return", "refuse", "report", "lose", "wait"]),
        st.integers(0, 1000),
        st.floats(0.001, 3.0),
    ),
    max_size=60,
)  # fmt: skip


def specs() -> list[Event]:
    return [
        FunctionKnown(
            function=name, revision=1,
            spec=FunctionSpec(
                entrypoint="m:C", max_batch=batch, max_warm=2,
                profile=Profile(run_s={1: 0.05, 4: 0.1}, load_s=0.3, memory_mib=300.0, usage_gain=0.1 * batch, degradation=0.1),
            ),
        )
        for name, batch in zip(FUNCTIONS, (1, 4, 8), strict=True)
    ]  # fmt: skip


def report(name: str, now: float, warm: dict[str, int]) -> GpuReported:
    return GpuReported(
        gpu=name, boot="b", at=now, slots=SLOTS, memory_total=MEMORY, memory_used=300.0 * sum(warm.values()), memory_idle=0.0,
        utilisation=0.5,
        function_utilisation=0.1, jobs=1, warm=[(function, 1, count) for function, count in warm.items()],
    )  # fmt: skip


class World:
    """The queue and the workers as a policy sees them: enough truth to know what must hold."""

    def __init__(self, seed: int) -> None:
        self.policy = Spine(knobs=Knobs(seed=seed))
        self.now = 1000.0
        self.waiting: dict[str, InvocationArrived] = {}
        self.running: dict[str, tuple[int, str]] = {}
        self.ended: Counter[str] = Counter()
        self.submitted = 0
        self.log: list[object] = []
        self.feed([*specs(), *[report(name, self.now, {}) for name in GPUS]])

    def feed(self, events: list[Event]) -> None:
        for decision in self.policy.decide(self.now, events):
            self.log.append(decision)
            if isinstance(decision, Dispatch):
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
        assert set(cluster.batches) == set(self.running)
        assert len(self.policy.waiting) == len(self.waiting)
        assert self.submitted == len(self.waiting) + len(self.running) + len(self.ended)
        assert all(count == 1 for count in self.ended.values())
        assert np.isfinite(cluster.training).all()

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
@given(steps)
def test_arrays_and_counts_hold(plan: list[tuple[str, int, float]]) -> None:
    """Invariants are checked after every event (World.check)."""
    world = World(0)
    for step in plan:
        world.step(*step)

    # Once everything that runs has ended and every deadline has passed, nothing is left over.
    while world.running:
        world.step("settle", 0, 0.1)
    world.now += 10.0
    world.feed([])
    assert not world.waiting
    assert not world.policy.cluster.batches
    assert not world.policy.cluster.used.any()


@settings(max_examples=50, deadline=None)
@given(steps)
def test_same_events_same_decisions(plan: list[tuple[str, int, float]]) -> None:
    one, other = World(0), World(0)
    for step in plan:
        one.step(*step)
        other.step(*step)

    assert one.log == other.log
