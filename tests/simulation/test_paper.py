"""What the paper says of its scheduler, in runs small enough for every day."""

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pytest

from lab.simulation import counter, metrics, policies, traces
from lab.simulation.interference import InterferenceModel, Law
from lab.simulation.predictor import Belief, table
from lab.simulation.result import SUCCEEDED
from lab.simulation.simulator import simulate
from lab.simulation.traces import Trace
from lab.simulation.world import Function, Gpu, Training, World, load

#: Invocations by function of the Azure trace of fig14, seed 0, in the order of its functions: what is drawn from where
#: the data are absent.
SHARES = (573, 200, 87, 23, 1010, 12443, 1741, 11)


@pytest.mark.parametrize("degradation", [0.5, 1.5, 2.5])
@pytest.mark.parametrize("policy", ["random-all", "smore:sm_rule=none"])
def test_interference_sets_a_ceiling_of_deadlines(policy: str, degradation: float) -> None:
    """
    Deadlines are U(1, 4) x P99: whoever is slowed by d beside every training there is meets (3 - d) / 3 of them at
    most.

    A training and a function fill the device to the brim, where a check of SMs would refuse by the monitor's noise.
    """
    forced = Law(memory=0.0, exponent=1.0, crowd=0.0, by_training=(0.5 + degradation) / 0.5)
    demands = {"training": {"bert": (0.5, 0.0)}, "function": {"vgg16": (0.5, 0.0)}}
    interference_model = InterferenceModel(
        function=forced, training=Law(memory=0.0, crowd=0.0), demands=demands, growth=0.0, noise=0.0, time_sharing=False
    )
    gpus = tuple(Gpu(name=f"gpu{number}", slots=1, training=Training(model="bert", batch=16)) for number in range(4))
    world = World(
        name="forced",
        gpus=gpus,
        functions=(Function(name="vgg16", model="vgg16"),),
        interference_model=interference_model,
        warm_share=1.0,
    )
    trace = traces.of({"kind": "poisson", "rate_per_min": 1200, "seconds": 40}, world, 0)

    result = simulate(world, trace, policies.factory(policy), seed=0, table=table(world, Belief(kind="exact"), 0))

    met = ((result.status == SUCCEEDED) & (result.end_s <= result.deadline_s)).mean()
    ceiling = (3.0 - degradation) / 3.0
    error = 3.0 * (ceiling * (1.0 - ceiling) / len(trace)) ** 0.5
    assert ceiling - error - 0.05 <= met <= ceiling + error, len(trace)


def drawn(world: World, rate_per_min: float, seconds: float) -> Trace:
    random = np.random.default_rng(7)
    n = int(rate_per_min / 60 * seconds)
    return Trace(
        name="drawn",
        functions=tuple(function.name for function in world.functions),
        duration_s=seconds,
        arrival_s=np.sort(random.uniform(0.0, seconds, n)),
        function=random.choice(len(SHARES), n, p=np.array(SHARES) / sum(SHARES)),
        rows=np.zeros(n, np.int64),
        factor=random.uniform(*world.deadline, n),
        deadline_s=np.full(n, np.nan),
    )


@pytest.fixture(autouse=True, scope="module")
def right_counter() -> Iterator[None]:
    """The paper's check of SMs supposes a counter that reads what a workload demands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counter, "COUNTER_SD", 0.0)
        counter.read.cache_clear()
        yield
    counter.read.cache_clear()


@cache
def compared(configuration: str, rate_per_min: float) -> Mapping[str, Mapping[str, float]]:
    """Figures by policy in the world of the repaired figure 14, four seconds of it."""
    world = load("fig14-paper").worlds[configuration]
    trace = drawn(world, rate_per_min, 4.0)
    belief = table(world, Belief(kind="exact", updates=0), 0)
    exclusive = simulate(world, trace.none(), policies.factory("fifo"), seed=0)
    return {
        name: metrics.figures(
            simulate(world, trace, policies.factory(name), seed=0, table=belief, name=name), exclusive
        )
        for name in ("smore", "elasticflow", "edf-util-all", "edf-util-spread-all", "random-all")
    }


def test_nearly_everything_is_admitted_beside_mobilenet() -> None:
    """Section VIII-C: 12,000 requests a minute on 8 GPUs."""
    found = compared("mobilenet-same", 12_000.0)["smore"]
    assert found["admission"] > 0.97
    assert found["dsr"] > 0.97


@pytest.mark.parametrize("configuration", ["mobilenet-same", "vgg16-mix"])
def test_who_looks_at_degradation_degrades_less(configuration: str) -> None:
    """Figure 14 at 16,000 a minute: functions and trainings are slowed less by SMore than by who does not look."""
    found = compared(configuration, 16_000.0)
    for other in ("edf-util-all", "edf-util-spread-all", "random-all"):
        for metric in ("sfd", "sld"):
            assert found["smore"][metric] < 0.5 * found[other][metric], (other, metric)
    for metric in ("sfd", "sld"):
        assert found["smore"][metric] <= found["elasticflow"][metric] + 0.005, metric
