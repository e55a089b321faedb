"""
Eq. 3 and 4 on the policy's arrays, against hand numbers and against the equations written out; what no table knows.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.leader.tables import ArrayTable
from scheduler.policy import kernel
from scheduler.policy.cluster import Batch, Cluster
from scheduler.policy.degradation import NoTable, PolicyTable
from scheduler.policy.demand import Demand
from scheduler.policy.events import GpuReported
from scheduler.policy.kernel import Floats
from smore.domain.degradation import Neighbour, of_function, of_training
from smore.domain.function import FunctionSpec
from smore.messages.degradation import PlaceTable, Table, Weight
from tests.support.tables import DEVICE, MODE, place


@dataclass(frozen=True, kw_only=True)
class Load:
    model: str
    rows: int
    declared: float


@dataclass(frozen=True)
class Effect:
    """Of one more batch on each GPU instance."""

    own: Floats
    own_upper: Floats
    training: Floats
    training_upper: Floats
    added: Floats
    known: Floats
    more: Floats


class Joined:
    """A cluster without revisions, in which batches are begun and ended by what they are."""

    def __init__(self, rows: Sequence[Sequence[str]]) -> None:
        self.cluster = Cluster()
        self._kinds: dict[Load, int] = {}
        self._batches: dict[tuple[int, Load], list[str]] = {}
        self._count = itertools.count()
        spec = FunctionSpec(entrypoint="m:C", max_warm=100)
        self.cluster.add_column(Demand(function="p/f", revision=1, spec=spec, column=0))
        for number, workloads in enumerate(rows):
            self.cluster.report(
                GpuReported(
                    gpu=f"g{number}",
                    boot="b",
                    at=0.0,
                    slots=100,
                    memory_total=1e6,
                    memory_used=0.0,
                    memory_idle=0.0,
                    utilisation=0.0,
                    function_utilisation=0.0,
                    jobs=len(workloads),
                    warm=[],
                    device=DEVICE,
                    sharing_mode=MODE,
                    workloads=workloads,
                )
            )

    def adopt(self, table: PolicyTable) -> None:
        self.cluster.adopt(table)

    def kind(self, of: Load) -> int:
        if of not in self._kinds:
            self._kinds[of] = self.cluster.add_kind(of.model, of.rows, of.declared)
        return self._kinds[of]

    def begin(self, row: int, of: Load) -> None:
        id_ = str(next(self._count))
        self._batches.setdefault((row, of), []).append(id_)
        self.cluster.begin(
            Batch(
                row=row,
                column=0,
                kind=self.kind(of),
                run_s=1.0,
                start_at=0.0,
                deadline_at=1e9,
                expected_end_at=1.0,
                members={id_: 1},
            ),
            0.0,
        )

    def end(self, row: int, of: Load) -> None:
        assert self.cluster.end(self._batches[row, of].pop(), 1, 0.0) is not None

    def effect(self, of: Load) -> Effect:
        kind = self.kind(of)
        fields = (
            kernel.OWN,
            kernel.OWN_UPPER,
            kernel.TRAINING,
            kernel.TRAINING_UPPER,
            kernel.IMPACT,
            kernel.KNOWN,
            kernel.MORE,
        )
        return Effect(*(self.cluster.effect(kind, field).copy() for field in fields))


def joined(table: PlaceTable | None, *rows: Sequence[str]) -> Joined:
    """A cluster with a GPU instance for each list of trainings."""
    made = Joined(rows)
    if table is not None:
        made.adopt(ArrayTable(Table(version=3, source="test", created_at=0.0, places=[table])))
    return made


def load(number: int, declared: float = 1.0) -> Load:
    return Load(model=f"f{number}/s" if number >= 0 else "", rows=1, declared=declared)


WEIGHTS = [
    Weight("training", 2, "t0", "f0", 2.0),
    Weight("function", 2, "f0", "t0", 0.5),
    Weight("functions", 2, "f0", "f1", 3.0),
]


def test_hand_numbers_with_weights() -> None:
    table = place([[0.1, 0.2]], [[0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]], weights=WEIGHTS)
    there = joined(table, ["t0/s/training/8"])
    alone = there.effect(load(0))
    assert (alone.training[0], alone.own[0], alone.added[0]) == pytest.approx((0.1, 0.3, 0.4))
    assert (alone.training_upper[0], alone.own_upper[0]) == pytest.approx((0.6, 0.8))
    assert alone.known[0]
    there.begin(0, load(1))
    both = there.effect(load(0))
    # k = 2: gamma 2 for f0, one for f1; alpha 0.5; beta of f0 by f1 is 3, of f1 by f0 one.
    assert both.training[0] == pytest.approx(2 * 0.1 + 0.2)
    assert both.own[0] == pytest.approx(0.5 * 0.3 + 3 * 0.6)
    assert both.added[0] == pytest.approx(2 * 0.1 + (0.5 * 0.3 + 3 * 0.6) + 0.7)
    there.end(0, load(1))
    again = there.effect(load(0))
    assert again.training[0] == pytest.approx(0.1)


def test_a_weight_that_was_not_learned_is_that_of_one_function_less() -> None:
    there = joined(place([[0.1, 0.2]], [[0.3, 0.4]], [[0, 0], [0, 0]], weights=WEIGHTS), ["t0/s/training/8"])
    for _ in range(3):
        there.begin(0, load(1))
    assert there.effect(load(0)).training[0] == pytest.approx(2 * 0.1 + 3 * 0.2)


def test_without_a_training_only_functions_count() -> None:
    there = joined(place([[0.1]], [[0.3]], [[0.5]]), [])
    assert there.effect(load(0)).training[0] == 0
    assert there.effect(load(0)).own[0] == 0
    there.begin(0, load(0))
    assert there.effect(load(0)).own[0] == pytest.approx(0.5)


@pytest.mark.parametrize("workloads", [[""], ["t9/s/training/8"]])
def test_a_training_that_no_table_knows_costs_and_loses_what_was_declared(workloads: list[str]) -> None:
    there = joined(place([[0.1]], [[0.3]], [[0.5]]), workloads)
    found = there.effect(load(0, declared=0.7))
    assert (found.training[0], found.own[0], found.own_upper[0]) == pytest.approx((0.7, 0.7, 0.7))
    assert not found.known[0]


def test_beside_two_trainings_a_function_is_slowed_by_both_and_the_one_that_loses_more_counts() -> None:
    table = place([[0.1, 0.3], [0.2, 0.1]], [[0.3, 0.0], [0.05, 0.0]], [[0.5, 0.6], [0.7, 0.8]])
    there = joined(table, ["t0/s/training/8", "t1/s/training/8"])
    alone = there.effect(load(0))
    assert (alone.own[0], alone.training[0], alone.more[0]) == pytest.approx((0.35, 0.2, 0.2))
    assert (alone.own_upper[0], alone.training_upper[0]) == pytest.approx((0.35 + 2 * 0.5, 0.7))
    assert alone.added[0] == pytest.approx((0.1 + 0.2) + 0.35)
    assert alone.known[0]
    there.begin(0, load(1))
    both = there.effect(load(0))
    # t0 loses 0.1 + 0.3 then, t1 0.2 + 0.1; f0 costs t1 more than t0.
    assert (both.training[0], both.more[0]) == pytest.approx((0.4, 0.2))
    assert both.own[0] == pytest.approx(0.35 + 0.6)


@pytest.mark.parametrize("second", ["", "t9/s/training/8"])
def test_of_two_trainings_that_no_table_knows_each_slows_a_function_as_declared(second: str) -> None:
    there = joined(place([[0.1]], [[0.3]], [[0.5]]), ["t0/s/training/8", second])
    found = there.effect(load(0, declared=0.7))
    assert (found.training[0], found.own[0], found.own_upper[0]) == pytest.approx((0.7, 1.4, 1.4))
    assert not found.known[0]


def test_a_function_that_no_table_knows_is_as_declared() -> None:
    there = joined(place([[0.1]], [[0.3]], [[0.5]]), ["t0/s/training/8"])
    there.begin(0, load(0))
    found = there.effect(load(-1, declared=0.25))
    assert found.training[0] == pytest.approx(0.1 + 0.25)
    assert found.own[0] == pytest.approx(0.25 * 2)
    assert not found.known[0]
    there.begin(0, load(-1, declared=0.25))
    beside = there.effect(load(0, declared=1.0))
    assert beside.training[0] == pytest.approx(0.1 + 0.1 + 0.25)
    assert not beside.known[0]


def test_another_device_is_not_answered_from_this_table() -> None:
    there = joined(place([[0.1]], [[0.3]], [[0.5]], device="another"), ["t0/s/training/8"])
    assert there.effect(load(0, declared=0.9)).own[0] == pytest.approx(0.9)


def test_a_new_table_recounts_what_runs() -> None:
    there = joined(None, ["t0/s/training/8"])
    there.begin(0, load(0, declared=0.9))
    assert there.effect(load(0, declared=0.9)).training[0] == pytest.approx(1.8)
    there.adopt(ArrayTable(Table(version=4, source="test", created_at=0.0, places=[place([[0.1]], [[0.3]], [[0.5]])])))
    assert there.cluster.places.table.version == 4
    assert there.effect(load(0)).training[0] == pytest.approx(0.2)
    there.end(0, load(0, declared=0.9))
    there.adopt(NoTable())
    assert there.effect(load(0, declared=0.9)).training[0] == pytest.approx(0.9)


@pytest.mark.parametrize("functions", [0, 1])
def test_a_place_of_which_only_functions_were_measured(functions: int) -> None:
    there = joined(place([], [], [[0.5]] * functions), ["t0/s/training/8"])
    assert there.effect(load(0, declared=0.7)).own[0] == pytest.approx(0.7)
    there.begin(0, load(0, declared=0.7))
    assert there.effect(load(0, declared=0.7)).own[0] == pytest.approx(0.7 + (0.5 if functions else 0.7))


def test_the_row_of_the_smallest_batch_with_room() -> None:
    table = place([[0.1, 0.2, 0.3]], [[0.0] * 3], [[0.0] * 3] * 3)
    sizes = PlaceTable(
        **{name: getattr(table, name) for name in table.__struct_fields__}
        | {"functions": ["f0/s/function/1", "f0/s/function/4", "f0/s/function/8"]}
    )
    there = joined(sizes, ["t0/s/training/8"])
    for rows, expected in ((1, 0.1), (2, 0.2), (4, 0.2), (5, 0.3), (100, 0.3)):
        assert there.effect(Load(model="f0/s", rows=rows, declared=1.0)).training[0] == pytest.approx(expected)


@dataclass(frozen=True)
class Case:
    table: PlaceTable
    rows: list[list[int]]
    running: list[list[int]]
    adding: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    j, f = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    cells = st.floats(0, 3)

    def matrix(rows: int, columns: int) -> list[list[float]]:
        return [[draw(cells) for _ in range(columns)] for _ in range(rows)]

    kinds: tuple[tuple[Literal["training", "function"], list[str]], ...] = (
        ("training", [f"t{i}" for i in range(j)]),
        ("function", [f"f{i}" for i in range(f)]),
    )
    weights = [
        Weight(kind, k, victim, other, draw(st.floats(0, 2)))
        for kind, victims in kinds
        for k, victim, other in itertools.product(
            (2, 3), victims, [f"f{i}" for i in range(f)] + [f"t{i}" for i in range(j)]
        )
        if draw(st.booleans())
    ]
    table = place(matrix(j, f), matrix(j, f), matrix(f, f), weights=weights)
    n = draw(st.integers(1, 3))
    rows = [draw(st.lists(st.integers(0, j - 1), max_size=2)) for _ in range(n)]
    running = [[draw(st.integers(0, f - 1)) for _ in range(draw(st.integers(0, 3)))] for _ in range(n)]
    return Case(table, rows, running, draw(st.integers(0, f - 1)))


@given(cases())
def test_every_row_is_what_the_equations_say(case: Case) -> None:
    there = joined(case.table, *([f"t{i}/s/training/8" for i in trainings] for trainings in case.rows))
    for row, running in enumerate(case.running):
        for number in running:
            there.begin(row, load(number))
    found = there.effect(load(case.adding))
    table, added = case.table, f"f{case.adding}"
    weight = table.learned().value
    for row, trainings in enumerate(case.rows):
        beside = [Neighbour(f"f{j}", table.cell(table.function_on_function, case.adding, j)) for j in case.running[row]]
        losses, rises = [0.0], [0.0]
        for i in trainings:
            now = [Neighbour(f"f{j}", table.cell(table.training, i, j)) for j in case.running[row]]
            then = [*now, Neighbour(added, table.cell(table.training, i, case.adding))]
            losses.append(of_training(f"t{i}", then).value(weight))
            rises.append(losses[-1] - of_training(f"t{i}", now).value(weight))
        by_trainings = [Neighbour(f"t{i}", table.cell(table.function, i, case.adding)) for i in trainings]
        own = of_function(added, by_trainings, beside).value(weight)
        assert found.training[row] == pytest.approx(max(losses))
        assert found.more[row] == pytest.approx(max(rises))
        assert found.own[row] == pytest.approx(own)
        assert found.known[row]
