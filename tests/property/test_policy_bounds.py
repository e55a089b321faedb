"""
Whatever the table says and whatever comes: no budget is passed by its own prediction, and the order of GPU instances
means nothing.
"""

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.policy import kernel
from scheduler.policy.decisions import Dispatch
from scheduler.policy.events import Event, InvocationSettled, TableUpdated
from scheduler.policy.knobs import preset
from tests.support.driven import DrivenEngine
from tests.support.policy_events import NOW, arrived, function, gpu, known, own, placed

Placed = Iterator[list[tuple[str, str]]]
FUNCTIONS, TRAININGS = 3, 4

losses = st.floats(0.0, 0.3)
#: What each training loses to each function, what each function loses to each training, and to each function.
tables = st.tuples(
    st.lists(st.tuples(*[losses] * FUNCTIONS), min_size=TRAININGS, max_size=TRAININGS),
    st.lists(st.tuples(*[losses] * FUNCTIONS), min_size=TRAININGS, max_size=TRAININGS),
    st.lists(st.tuples(*[losses] * FUNCTIONS), min_size=FUNCTIONS, max_size=FUNCTIONS),
).map(lambda found: known(*found))
#: (None = the oldest of what runs ends, else a function comes; seconds since the step before)
plans = st.lists(st.tuples(st.none() | st.integers(0, FUNCTIONS - 1), st.floats(0.0, 0.5)), max_size=40)


def gpus(
    order: tuple[int, ...] = tuple(range(TRAININGS)), budgets: tuple[float, ...] = (0.1,) * TRAININGS
) -> list[Event]:
    """One for each training; none has as much free memory as another, so that nothing is alike."""
    return [
        gpu(f"g{number}", number, functions=FUNCTIONS, memory_used=100.0 * number, losses=own(budgets[number]))
        for number in order
    ]


def run(
    engine: DrivenEngine,
    table: TableUpdated,
    plan: list[tuple[int | None, float]],
    reports: list[Event],
    *,
    alone: bool = False,
) -> Placed:
    """Yields what was placed after each step; ``alone``: each ends, or goes without having run, before the next comes."""
    engine.decide(NOW, [table, *[function(number) for number in range(FUNCTIONS)], *reports])
    now = NOW
    running: list[str] = []
    for step, (which, passed) in enumerate(plan):
        now += passed
        if alone:
            which = step % FUNCTIONS if which is None else which
        if which is None:
            events: list[Event] = [InvocationSettled(id=running.pop(0), attempt=1)] if running else []
        else:
            events = [arrived(which, f"{step:03d}", at=now, within=2.0)]
        found = placed(engine.decide(now, events))
        running += [id_ for id_, _ in found]
        yield found
        if alone:
            engine.decide(now, [InvocationSettled(id=f"{step:03d}", attempt=1)])
            running = []


@settings(max_examples=100, deadline=None)
@given(tables, plans, st.tuples(*[st.floats(0.01, 0.3)] * TRAININGS))
def test_no_training_is_predicted_to_lose_more_than_its_budget(
    table: TableUpdated, plan: list[tuple[int | None, float]], budgets: tuple[float, ...]
) -> None:
    engine = DrivenEngine(preset("smore"))
    for _ in run(engine, table, plan, gpus(budgets=budgets)):
        # What one more batch of a function would make of it, less what that batch adds.
        loss = engine.cluster.effect(0, kernel.TRAINING) - engine.cluster.effect(0, kernel.MORE)
        assert (loss <= engine.cluster.fact(kernel.BUDGET) + 1e-9).all()


@settings(max_examples=100, deadline=None)
@given(
    tables,
    plans,
    st.permutations(range(TRAININGS)),
    st.sampled_from(["smore", "smore-product", "elasticflow", "edf-util", "fifo"]),
)
def test_the_order_of_gpu_instances_means_nothing(
    table: TableUpdated, plan: list[tuple[int | None, float]], order: list[int], name: str
) -> None:
    one, other = (
        list(run(DrivenEngine(preset(name)), table, plan, gpus(rows)))
        for rows in (tuple(range(TRAININGS)), tuple(order))
    )
    assert one == other


#: f0 fits beside no training. f1 fits beside each, and costs the last one least.
ONE_FITS_NOWHERE = known([[0.3, 0.01 * (TRAININGS - number), 0.0] for number in range(TRAININGS)])


@settings(max_examples=100, deadline=None)
@given(tables, plans)
@example(ONE_FITS_NOWHERE, [(0, 0.0)] * TRAININGS + [(1, 0.0)])
def test_elasticflow_is_smore_where_nothing_ever_waits_beside_another(
    table: TableUpdated, plan: list[tuple[int | None, float]]
) -> None:
    """They differ in order and in the fast mode only."""
    one, other = (
        list(run(DrivenEngine(preset(name)), table, plan, gpus(), alone=True)) for name in ("smore", "elasticflow")
    )
    assert one == other


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["smore", "smore-product", "elasticflow", "edf-util-all", "random-all"]),
    st.lists(st.integers(0, FUNCTIONS - 1), min_size=100, max_size=100),
    st.tuples(*[st.floats(0.0, 9_000.0)] * TRAININGS),
    st.tuples(*[st.floats(10.0, 4_000.0)] * FUNCTIONS),
)
def test_a_hundred_dispatches_at_once_never_take_more_memory_than_there_is(
    policy: str, which: list[int], used: tuple[float, ...], sizes: tuple[float, ...]
) -> None:
    """No report comes between them: what is on its way to a load is reserved."""
    engine = DrivenEngine(preset(policy))
    told = [function(number, max_warm=62) for number in range(FUNCTIONS)]
    told = [
        replace(one, spec=replace(one.spec, profile=replace(one.spec.profile, memory_mib=size)))
        for one, size in zip(told, sizes, strict=True)
    ]
    clear = known([[0.0] * FUNCTIONS] * TRAININGS)
    reports = [
        gpu(f"g{number}", number, warm=0, slots=62, memory_used=used[number], utilisation=0.0)
        for number in range(TRAININGS)
    ]
    decisions = engine.decide(
        NOW, [clear, *told, *reports, *[arrived(one, f"{number:03d}") for number, one in enumerate(which)]]
    )
    taken = dict.fromkeys((report.gpu for report in reports), 0.0)
    for decision in decisions:
        if isinstance(decision, Dispatch):
            taken[decision.gpu] += sizes[int(decision.function[-1])]
    for report in reports:
        assert taken[report.gpu] <= max(0.0, report.memory_total - report.memory_used) + 1e-6
