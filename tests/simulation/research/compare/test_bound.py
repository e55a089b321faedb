"""The most that anybody could have reached: by hand, and against every policy that there is."""

from dataclasses import replace

import numpy as np
import pytest

from lab.research.compare.bound import MOST_INVOCATIONS, small, upper_bound
from lab.simulation import policies, traces
from lab.simulation.interference import InterferenceModel
from lab.simulation.predictor import Belief, table
from lab.simulation.result import SUCCEEDED
from lab.simulation.simulator import simulate
from lab.simulation.traces import Trace
from lab.simulation.world import BadWorld, Function, Gpu, World, load
from scheduler.policy.knobs import PRESETS

PLAIN = replace(InterferenceModel(), noise=0.0, time_sharing=False)
#: Seconds of BERT alone, and its slowdown beside another.
ALONE, SLOW = 0.037, (1 + 0.2 * 0.35 * 0.35) * 1.4**1.3 * 1.01


def world(*functions: str, count: int = 1, **changed: object) -> World:
    fields: dict[str, object] = {
        "name": "hand",
        "gpus": tuple(Gpu(name=f"gpu{number}") for number in range(count)),
        "functions": tuple(Function(name=name, model=name) for name in functions),
        "interference_model": PLAIN,
    }
    return World(**(fields | changed))  # type: ignore[arg-type]


def trace(*windows: tuple[float, float], functions: tuple[str, ...] = ("bert",)) -> Trace:
    """(arrival, seconds to the deadline) of invocations of the functions in turn."""
    n = len(windows)
    return Trace(
        name="hand",
        functions=functions,
        duration_s=1.0,
        arrival_s=np.array([at for at, _ in windows]),
        function=np.arange(n) % len(functions),
        rows=np.zeros(n, np.int64),
        factor=np.full(n, np.nan),
        deadline_s=np.array([seconds for _, seconds in windows]),
    )


@pytest.mark.parametrize(
    ("windows", "most"),
    [
        ([(0.1, 1.001 * ALONE)], 1),
        ([(0.1, 0.999 * ALONE)], 0),
        # Two at once: neither alone in time, but one after the other, or both slowed down, where there is room.
        ([(0.1, 1.1 * ALONE), (0.1, 1.1 * ALONE)], 1),
        ([(0.1, 1.1 * ALONE), (0.1, 2.01 * ALONE)], 2),
        ([(0.1, 1.001 * SLOW * ALONE), (0.1, 1.001 * SLOW * ALONE)], 2),
        ([(0.1, 1.1 * ALONE), (0.5, 1.1 * ALONE), (0.5, 1.1 * ALONE)], 2),
    ],
)
def test_by_hand_on_one_gpu_instance(windows: list[tuple[float, float]], most: int) -> None:
    assert upper_bound(world("bert"), trace(*windows), 0) == most


def test_more_gpu_instances_slots_and_memory_bind() -> None:
    pair = trace((0.1, 1.1 * ALONE), (0.1, 1.1 * ALONE))
    loose = trace((0.1, 1.7 * ALONE), (0.1, 1.7 * ALONE))
    calm = replace(PLAIN, interference=False)

    assert upper_bound(world("bert", count=2), pair, 0) == 2
    assert upper_bound(world("bert", interference_model=calm), loose, 0) == 2
    assert upper_bound(world("bert", interference_model=calm, gpus=(Gpu(name="gpu0", slots=1),)), loose, 0) == 1
    need = world("bert").memory_mib(Function(name="bert", model="bert"))
    assert (
        upper_bound(world("bert", interference_model=calm, gpus=(Gpu(name="gpu0", memory_mib=1.5 * need),)), loose, 0)
        == 1
    )


def test_nothing_is_loaded_before_the_beginning() -> None:
    """A cold start of BERT takes 2.6 s."""
    early, late = trace((0.1, 1.0)), trace((2.7, 1.1 * ALONE))

    assert upper_bound(world("bert", keep_warm=0), early, 0) == 0
    assert upper_bound(world("bert", keep_warm=0), late, 0) == 1
    assert upper_bound(world("bert"), early, 0) == 1


def test_only_small_cases_are_solved() -> None:
    many = trace(*[(0.1, 1.0)] * (MOST_INVOCATIONS + 1))

    assert not small(world("bert"), many)
    with pytest.raises(BadWorld, match="at most 12 invocations"):
        upper_bound(world("bert"), many, 0)
    assert not small(world("bert", functions=(Function(name="bert", model="bert", max_batch=2),)), trace((0.1, 1.0)))


def test_no_policy_beats_it() -> None:
    """Of any seed; and the best of them comes near it, so that it is worth something."""
    preset = load("small")
    found = preset.worlds[""]
    best = solved = 0
    for seed in range(4):
        given = traces.of(preset.trace, found, seed)
        belief = table(found, Belief(kind="exact", updates=0), 0)
        most = upper_bound(found, given, seed)
        met = {}
        for name in PRESETS:
            result = simulate(found, given, policies.factory(name), seed=seed, table=belief, name=name)
            met[name] = int(((result.status == SUCCEEDED) & (result.end_s <= result.deadline_s)).sum())
        assert max(met.values()) <= most <= len(given), met
        best, solved = best + max(met.values()), solved + most
    assert best >= 0.7 * solved
