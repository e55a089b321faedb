"""
Whoever is refused and sends again at once with the deadline that the refusal named is let in, and is in time where runs
take what they are expected to take.
"""

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policy.demand import Demand
from scheduler.policy.events import Event, FunctionKnown
from scheduler.policy.knobs import preset
from tests.support.driven import DrivenEngine
from tests.support.gate_stage import GateStage
from tests.support.policy_events import NOW, function, gpu, known

FUNCTIONS = 2
runs = st.floats(0.002, 0.5)


@dataclass(frozen=True)
class World:
    """``growth``: of a run, from one row to eight; ``slowed``: by the training of each GPU instance, -1 = none has one."""

    gpus: int
    slots: int
    warm: int
    max_batch: int
    run_s: tuple[float, float]
    growth: float
    heard_s: float
    slowed: float


worlds = st.builds(
    World,
    gpus=st.integers(1, 3),
    slots=st.integers(1, 4),
    warm=st.integers(1, 3),
    max_batch=st.sampled_from([1, 2, 8]),
    run_s=st.tuples(runs, runs),
    growth=st.floats(1.0, 8.0),
    heard_s=st.floats(0.0, 0.01),
    slowed=st.just(-1.0) | st.floats(0.0, 0.6),
)


def batched(number: int, run_s: dict[int, float], most: int) -> FunctionKnown:
    told = function(number, max_batch=most)
    return replace(told, spec=replace(told.spec, profile=replace(told.spec.profile, run_s=run_s)))


#: (seconds since the one before, how many at once)
arrivals = st.lists(st.tuples(st.floats(0.0, 0.4), st.integers(1, 6)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(worlds, arrivals, st.integers(1, 8), st.floats(0.0, 0.2))
def test_the_named_deadline_is_let_in_and_met(
    world: World, before: list[tuple[float, int]], rows: int, pause_s: float
) -> None:
    """One function's traffic, while the other one runs beside it; what was published is of this moment."""
    times = [{1: run_s, 8: run_s * world.growth} for run_s in world.run_s]
    functions = [batched(number, times[number], world.max_batch) for number in range(FUNCTIONS)]
    reports: list[Event] = [
        gpu(f"g{number}", None if world.slowed < 0 else 0, functions=FUNCTIONS, warm=world.warm, slots=world.slots)
        for number in range(world.gpus)
    ]
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.0] * FUNCTIONS], [[max(0.0, world.slowed)] * FUNCTIONS]), *functions, *reports])
    # What a fresh demand expects is what it takes.
    times_of = {
        told.function: Demand(function=told.function, revision=1, spec=told.spec, column=0).run_s for told in functions
    }
    stage = GateStage(
        engine, NOW, lambda _at, name, rows: times_of[name](rows) * (1.0 + max(0.0, world.slowed)), world.heard_s
    )
    stage.until(NOW)
    stage.send("p/f1", 60.0)
    for gap_s, together in before:
        stage.until(stage.now + gap_s)
        for _ in range(together):
            stage.send("p/f0", 60.0)
    # Nothing is on its way to the leader.
    stage.until(stage.now + max(pause_s, world.heard_s))
    stage.publish()
    named_s = stage.named_ms("p/f0", rows) / 1e3
    id_ = stage.send("p/f0", named_s, rows)
    assert id_, "refused with the deadline that was named"
    while id_ not in stage.ended:
        stage.until(stage.now + 0.5)
    assert not stage.late([id_]), (named_s, stage.ended[id_])
