"""
A world made of what a platform served: what is measured stays as it was, what cannot be known is as the table says.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from lab.simulation import history_world, policies
from lab.simulation.history_world import HistoryGpu, RecordedSpan
from lab.simulation.result import SUCCEEDED
from lab.simulation.simulator import simulate
from lab.simulation.world import BadWorld
from scheduler.policy.degradation import Degradation
from smore.domain.degradation import K_MAX
from smore.domain.function import FunctionSpec, Profile
from smore.domain.invocation import State

START = 1_790_000_000.0


@dataclass(frozen=True, kw_only=True)
class Invocation:
    function: str = "default/a"
    revision: int = 1
    state: State = State.SUCCEEDED
    attempt: int = 1
    arrival_at: float = START
    deadline_at: float = START + 1.0
    finished_at: float = START + 0.5
    rows: int = 1
    run_s: float | None = 0.04
    batch: int | None = 1
    batch_rows: int | None = 1
    cold: bool | None = False
    load_s: float | None = None
    slowdown: float = 0.0
    wait_s: float | None = 0.002

    @property
    def met(self) -> bool:
        return self.state is State.SUCCEEDED and self.finished_at <= self.deadline_at


SPEC = FunctionSpec(
    entrypoint="zoo.echo:Function",
    max_warm=4,
    keep_alive_s=-1,
    profile=Profile(
        run_s={1: 0.05, 8: 0.2}, load_s=1.5, memory_mib=300.0, utilisation=0.5, degradation=0.4, model="bert/cpu"
    ),
)
GPU = HistoryGpu(name="gpu0", device="X", sharing_mode="time-slice", memory_mib=4096.0, slots=8)
BUSY = replace(
    GPU,
    utilisation=0.6,
    function_utilisation=0.1,
    job="j1",
    workload="resnet50/cpu/training/8",
    iteration_s=0.1,
    mean_s=0.102,
    budget=0.05,
)


def history(*served: Invocation, gpus: tuple[HistoryGpu, ...] = (GPU,), table: object = None) -> RecordedSpan:
    return RecordedSpan(served=served, gpus=gpus, specs={("default/a", 1): SPEC, ("default/a", 2): SPEC}, table=table)  # type: ignore[arg-type]


@dataclass(frozen=True)
class OneTable:
    place: Degradation
    version: int = 1

    def at(self, device: str, sharing_mode: str) -> Degradation | None:
        return self.place if (device, sharing_mode) == ("X", "time-slice") else None


def table(**weights: float) -> OneTable:
    """
    One training (loses 10 %), one function (loses 20 % beside it, 30 % beside another); weights as given from k = 2 on.
    """
    gamma, alpha, beta = (np.ones((K_MAX + 1, 2, 2)) for _ in range(3))
    for name, array in (("gamma", gamma), ("alpha", alpha), ("beta", beta)):
        array[2:] = weights.get(name, 1.0)

    def matrix(value: float) -> np.ndarray:
        return np.full((1, 1), value)

    return OneTable(
        Degradation(
            trainings={"resnet50/cpu/training/8": 0},
            batches={"bert/cpu": [(1, 0)]},
            training_model=np.array([0]),
            function_model=np.array([1]),
            training=matrix(0.1),
            training_upper=matrix(0.1),
            function=matrix(0.2),
            function_upper=matrix(0.2),
            functions=matrix(0.3),
            functions_upper=matrix(0.3),
            gamma=gamma,
            alpha=alpha,
            beta=beta,
            gain=np.array([0.2]),
            cost=np.array([0.3]),
        )
    )


def test_run_times_and_cold_starts_are_those_measured() -> None:
    """Each invocation takes what it took, less the degradation that was expected of it."""
    served = [
        Invocation(arrival_at=START + at, deadline_at=START + at + 5, run_s=run, slowdown=lost)
        for at, run, lost in ((0.0, 0.04, 0.0), (10.0, 0.06, 0.5), (20.0, 0.05, 0.0))
    ] + [Invocation(arrival_at=START + 30, deadline_at=START + 35, run_s=9.0, cold=True, load_s=0.7)]
    found = history(*served)

    world = history_world.world(found)
    result = simulate(world, history_world.trace(found), policies.factory("fifo"), seed=0)

    assert world.load_s(world.functions[0]) == 0.7
    assert world.use(world.functions[0], 1).seconds == 0.04
    assert (result.status == SUCCEEDED).all()
    # The first is a cold start, of which only the run counts; the cold one's own run time is no warm one, so another's
    # is drawn.
    assert result.run_s[:3].tolist() == pytest.approx([0.04, 0.04, 0.05])
    assert result.run_s[3] in (pytest.approx(0.04), pytest.approx(0.05))
    assert result.cold.tolist() == [True, False, False, False]
    assert result.start_s[0] == pytest.approx(0.7 + 0.002)


def test_sizes_that_were_not_measured_are_as_declared_in_proportion() -> None:
    world = history_world.world(history(Invocation(run_s=0.025, batch_rows=1)))
    function = world.functions[0]

    assert world.use(function, 1).seconds == 0.025
    assert world.use(function, 8).seconds == pytest.approx(0.2 * 0.025 / 0.05)
    never = history_world.world(
        history(Invocation(state=State.EXPIRED, attempt=0, run_s=None, batch_rows=None, cold=None))
    )
    assert never.use(never.functions[0], 8).seconds == 0.2
    assert never.load_s(never.functions[0]) == 1.5


def test_co_location_costs_what_the_table_says() -> None:
    """Eq. 3 and 4 with weights of k = 3 for two functions beside a training."""
    found = history(Invocation(), gpus=(BUSY,), table=table(gamma=2.0, alpha=0.5, beta=3.0))
    world = history_world.world(found)
    contention = world.contention(world.gpus[0])
    kind = contention.kind("default/a@1", 1)

    assert contention.slowdowns([]) == (1.0, [])
    assert contention.slowdowns([kind]) == (pytest.approx(1.1), [pytest.approx(1.2)])
    training, slow = contention.slowdowns([kind, kind])
    assert training == pytest.approx(1 + 2 * 2.0 * 0.1)
    assert slow == pytest.approx([1 + 0.5 * 0.2 + 3.0 * 0.3] * 2)
    assert contention.training is not None and contention.training.u == 0.6


def test_what_no_table_knows_costs_what_was_declared() -> None:
    for known, gpu in ((None, BUSY), (table(), replace(BUSY, sharing_mode="mps"))):
        world = history_world.world(history(Invocation(), gpus=(gpu,), table=known))
        contention = world.contention(world.gpus[0])
        kind = contention.kind("default/a@1", 1)
        assert contention.slowdowns([kind, kind]) == (pytest.approx(1.8), [pytest.approx(1.8)] * 2)
    # A job that the table does not know, with functions that it does.
    world = history_world.world(history(Invocation(), gpus=(replace(BUSY, workload=""),), table=table()))
    contention = world.contention(world.gpus[0])
    kind = contention.kind("default/a@1", 1)
    assert contention.slowdowns([kind, kind]) == (pytest.approx(1.8), [pytest.approx(1.7)] * 2)


def test_the_policy_hears_what_a_leader_would() -> None:
    """Places, jobs and budgets as they were; what is added has nothing on it."""
    found = history(Invocation(), gpus=(BUSY, replace(GPU, name="gpu1", device="Y")), table=table())
    world = history_world.world(found, more=3)

    assert [gpu.name for gpu in world.gpus] == ["gpu0", "gpu1", "gpu0+1", "gpu1+2", "gpu0+3"]
    assert [world.device(gpu) for gpu in world.gpus] == ["X", "Y", "X", "Y", "X"]
    assert [gpu.training is not None for gpu in world.gpus] == [True, False, False, False, False]
    assert world.gpus[0].budget == 0.05
    training = world.gpus[0].training
    assert training is not None and world.workload(training) == "resnet50/cpu/training/8"
    assert world.spec(world.functions[0], 0) is SPEC


def test_functions_use_what_was_seen_of_them() -> None:
    """
    Four batches ran for 0.2 s altogether, two invocations in one of them, and kept the GPU instance busy for 0.1 s of
    10.
    """
    served = [Invocation(arrival_at=START + at, deadline_at=START + at + 1, run_s=0.05) for at in range(3)]
    served += [Invocation(arrival_at=START + 5, deadline_at=START + 6, run_s=0.05, batch=2, batch_rows=2)] * 2
    seen = history_world.world(history(*served, gpus=(replace(GPU, function_utilisation=0.01, seen_s=10.0),)))
    unseen = history_world.world(history(*served))

    assert seen.use(seen.functions[0], 1).u == pytest.approx(0.5)
    assert math.isnan(unseen.share) and unseen.use(unseen.functions[0], 1).u == 0.5


def test_the_same_seed_gives_the_same_replay() -> None:
    served = [
        Invocation(
            arrival_at=START + 0.02 * number, deadline_at=START + 0.02 * number + 0.5, run_s=0.03 + 0.001 * (number % 7)
        )
        for number in range(40)
    ] + [
        Invocation(
            revision=2, state=State.EXPIRED, attempt=0, run_s=None, arrival_at=START + 0.4, deadline_at=START + 0.9
        )
    ]
    found = history(*served, gpus=(BUSY,), table=table())
    one, other, third = (
        simulate(
            history_world.world(found),
            history_world.trace(found),
            policies.factory("smore-product"),
            seed=seed,
            table=found.table,
        ).encode()
        for seed in (1, 1, 2)
    )

    assert one == other
    assert len(third) > 0


def test_what_happened_and_what_would_have_are_the_same_figures() -> None:
    served = [
        Invocation(finished_at=START + 0.2),
        Invocation(arrival_at=START + 1, deadline_at=START + 1.1, finished_at=START + 1.4, cold=True),
        Invocation(arrival_at=START + 2, deadline_at=START + 4, state=State.REJECTED, attempt=0),
        Invocation(arrival_at=START + 3, deadline_at=START + 4, state=State.EXPIRED, attempt=0),
    ]
    found = history(*served, gpus=(BUSY, replace(GPU, name="gpu1")))

    real = history_world.happened(found)

    assert {name: real[name] for name in ("dsr", "admission", "expired", "rejected", "failed", "cold")} == {
        "dsr": 0.25,
        "admission": 0.5,
        "expired": 0.25,
        "rejected": 0.25,
        "failed": 0.0,
        "cold": 0.5,
    }
    assert real["p50_s"] == pytest.approx(0.3)
    assert real["sfd"] == pytest.approx(0.02)
    assert real["function_utilisation"] == pytest.approx(0.05)
    result = simulate(history_world.world(found), history_world.trace(found), policies.factory("fifo"), seed=0)
    would = history_world.would_have(result)
    assert list(would) == list(real) == list(history_world.ROWS)
    # The first load ends too late for the first two, and serves the others.
    assert (would["admission"], would["dsr"], would["cold"]) == (1.0, 0.5, 0.5)
    assert all(math.isfinite(value) for value in would.values())


def test_a_span_without_anything_is_refused() -> None:
    with pytest.raises(BadWorld, match="since: no invocation has ended"):
        history_world.trace(history())
    with pytest.raises(BadWorld, match="gpus: no GPU instance reported"):
        history_world.world(history(Invocation(), gpus=()))
    with pytest.raises(BadWorld, match="the catalog does not know 'default/b@1'"):
        history_world.world(history(Invocation(function="default/b")))
