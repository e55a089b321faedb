"""
Whatever is loaded ahead, parked and let go of in whatever order: what is busy stays, memory is not over its bounds,
budgets hold.
"""

import math
from contextlib import suppress
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policy import kernel
from scheduler.policy.decisions import Offload, Prewarm
from scheduler.policy.prewarm.window import WarmWindow
from smore.domain.function import FunctionSpec
from smore.messages.reports import WarmState
from tests.support.eventually import eventually
from tests.support.policy_events import function, known
from tests.support.pool_stage import Host
from tests.support.prewarm_stage import Stage, T, report, served
from worker.pool.errors import Unservable

NAMES = "abcd"
SPEC = FunctionSpec(entrypoint="m:C", memory_mib=100.0, max_warm=2, keep_alive_s=20.0)

handling = st.lists(
    st.tuples(
        st.sampled_from(
            ["run", "run", "release", "release", "prewarm", "prewarm", "offload", "forget", "rounds", "wait"]
        ),
        st.integers(0, 3),
        st.integers(0, 2),
    ),
    max_size=40,
)


@settings(max_examples=25, deadline=None)
@given(handling, st.sampled_from([0.0, 100.0, 1000.0]))
def test_what_is_busy_is_never_let_go_of(steps: list[tuple[str, int, int]], host_mib: float) -> None:
    stage = Host(host_mib)
    pool, seats = stage.pool, []
    for action, which, number in steps:
        name = NAMES[which]
        match action:
            case "run":
                # Where all of its instances, or all of the memory, are at work it would wait.
                with suppress(Unservable):
                    seats.append(stage.acquire(name, max_warm=2, keep_alive_s=20.0))
            case "release" if seats:
                pool.release(seats.pop(which % len(seats)))
            case "prewarm":
                pool.prewarm(f"p/{name}", 1, SPEC, number, hold_s=30.0)
                eventually(
                    lambda: not [one for one in pool.status.warm() if one.state is WarmState.LOADING], what="the load"
                )
            case "offload":
                pool.offload(f"p/{name}", 1, keep=number)
            case "forget":
                pool.offload(f"p/{name}", 1, gone=True)
                assert name not in [one.function.removeprefix("p/") for one in pool.status.parked()]
            case "rounds":
                pool.upkeep.round()
            case "wait":
                stage.now += 15.0
        assert not any(seat.runner.ended.is_set() for seat in seats)
        assert len({id(seat.runner) for seat in seats}) == len(seats)
        assert pool.status.memory_used_mib() <= 300.0
        assert stage.parked.host_mib <= host_mib
    alive = {runner.pid for runner in stage.made if not runner.ended.is_set()}
    assert set(pool.status.runners()) == alive, "every process that lives is somebody's"


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.01, 0.5),
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 4), st.floats(0.01, 0.5), st.booleans()), min_size=10, max_size=40
    ),
)
def test_loads_ahead_never_cost_a_training_more_than_its_account(
    degradation: float, steps: list[tuple[int, int, float, bool]]
) -> None:
    stage = Stage(share=1.0)
    now, warm = T, dict.fromkeys(range(3), 0)
    stage.at(
        now,
        known([[degradation] * 3]),
        *(function(n) for n in warm),
        *(served(n) for n in warm),
        report("a", now, training=0),
    )
    cluster = stage.engine.cluster
    begun, earns = float(cluster.fact(kernel.TOKENS)[0]), float(cluster.fact(kernel.REFILL)[0])
    # A load takes 1 s, and the training is slowed by so much of it.
    charge, spent = degradation / (1 + degradation), 0.0
    # What costs more than an account ever holds starts from a full one.
    overdraft = max(0.0, charge - begun)

    def told(at: float) -> None:
        # What is decided here gets lost on its way: it was charged, and may be charged again.
        counts = [(f"p/f{which}", 1, count) for which, count in warm.items() if count]
        stage.at(at, replace(report("a", at, training=0), warm=counts, memory_used=100.0 * sum(warm.values())))

    for number, wanted, passed, unloaded in steps:
        now += passed
        decisions = stage.hold(
            now, *([WarmWindow(from_at=now, until_at=math.inf, instances=wanted)] if wanted else []), number=number
        )
        for one in decisions:
            which = int(one.function[-1]) if isinstance(one, Prewarm | Offload) else -1
            if isinstance(one, Prewarm):
                spent += charge * max(0, one.instances - warm[which])
                warm[which] = max(warm[which], one.instances)
            elif isinstance(one, Offload):
                warm[which] = min(warm[which], one.keep)
        told(now)
        if unloaded:
            # Somebody needed the memory: what is held is to be loaded again.
            warm = dict.fromkeys(warm, 0)
            told(now + 0.001)
        assert spent <= begun + earns * (now - T) + overdraft + 1e-6
