"""The order of measurements: the whole space once, and every beginning balanced."""

from collections import Counter
from collections.abc import Sequence

import pytest

from lab.measure.plan import Amounts, Plan, Run
from ml.rows import Role, Workload
from zoo.options import NAMES


def batches(model: str, role: Role) -> Sequence[int]:
    return (1, 2, 4, 8)


PLAN = Plan(NAMES, "cpu", batches)


def test_the_space_is_taken_once() -> None:
    runs = list(PLAN.pairs())
    assert len(runs) == len(set(runs)) == 1024
    assert all(run.members[0].role == "training" and run.members[1].role == "function" for run in runs)


@pytest.mark.parametrize("amount", [8, 64, 240])
def test_every_beginning_is_balanced(amount: int) -> None:
    runs = list(PLAN.pairs())[:amount]
    for side in (0, 1):
        models = Counter(run.members[side].model for run in runs)
        assert set(models) == set(NAMES)
        assert max(models.values()) - min(models.values()) <= 1
    if amount >= 64:
        combinations = Counter((run.members[0].batch, run.members[1].batch) for run in runs)
        assert len(combinations) == 16
        assert max(combinations.values()) - min(combinations.values()) <= 4


def test_functions_beside_functions_are_every_pair_once() -> None:
    runs = list(PLAN.functions())
    assert len(runs) == 64
    assert len({frozenset(run.members) for run in runs}) == 64


def test_trainings_beside_trainings_are_every_pair_once() -> None:
    runs = list(PLAN.trainings())
    assert len(runs) == len({frozenset(run.members) for run in runs}) == 32 * 33 // 2
    assert all(run.trainings for run in runs)
    appearances = Counter(member for run in runs[:128] for member in run.members)
    assert len(appearances) == 32
    assert max(appearances.values()) <= 2 * min(appearances.values())


def test_named_trainings_are_all_paired_before_the_plans_own() -> None:
    named = [Workload(model="bert", preset="cpu-wait-0.6", role="training", batch=batch) for batch in (1, 2)]
    nothing = Amounts(pairs=0, functions=0, several=0, trainings=128, named=named, repeated_trainings=20)
    runs = PLAN.runs(nothing)
    assert len(runs) == len(set(runs)) == 3 + 128 + 20 * 4
    assert [run.members for run in runs if not run.repeat][:3] == [
        (named[0], named[0]),
        (named[0], named[1]),
        (named[1], named[1]),
    ]


def test_the_kinds_are_mixed_and_repeats_follow_their_first() -> None:
    runs = PLAN.runs(Amounts())
    assert len(runs) == len(set(runs)) == 240 + 64 + 60 + (20 + 10) * 4
    half = runs[: len(runs) // 2]
    assert sum(len(run.members) > 2 for run in half) == pytest.approx(30, abs=2)
    assert sum(run.repeat > 0 for run in half) == pytest.approx(60, abs=2)
    repeated = Counter(Run(members=run.members) for run in runs if run.repeat)
    assert set(repeated.values()) == {4}
    assert set(repeated) <= set(runs)


def test_several_have_up_to_eight_functions_at_a_time() -> None:
    sizes = Counter(len(run.members) - 1 for run in PLAN.runs(Amounts()) if len(run.members) > 2)
    assert set(sizes) == {2, 3, 4, 8}
    assert min(sizes[k] for k in (2, 3, 4)) >= 15


def test_few_models_are_enough() -> None:
    plan = Plan(["bert"], "cpu", batches)
    runs = plan.runs(Amounts(pairs=16, functions=3, several=5, repeated=1, repeated_functions=0, times=2))
    assert {workload.model for run in runs for workload in run.members} == {"bert"}
    assert sum(len(run.members) > 2 for run in runs) == 3  # two, three or four of the one function there is


def test_few_positions_need_few_workloads_alone() -> None:
    first = list(PLAN.pairs(1))[:64]
    assert {(run.members[0].batch, run.members[1].batch) for run in first} == {(2, 1)}
    assert len({workload for run in first for workload in run.members}) == 16
    assert len({(run.members[0].model, run.members[1].model) for run in first}) == 64
    # The others follow, each once.
    whole = list(PLAN.pairs(1))
    assert len(whole) == len(set(whole)) == 1024
    assert {(run.members[0].batch, run.members[1].batch) for run in list(PLAN.pairs(2))[:256]} == {
        (2, 1),
        (2, 4),
        (4, 1),
        (4, 4),
    }


def test_pairs_may_come_first_and_functions_at_the_smallest_batch_too() -> None:
    runs = PLAN.runs(
        Amounts(
            pairs=64, functions=40, several=9, repeated=8, repeated_functions=0, times=2, positions=1, pairs_first=True
        )
    )
    assert len(runs) == 64 + 40 + 9 + 8
    assert all(run.members[0].role == "training" and len(run.members) == 2 and not run.repeat for run in runs[:64])
    functions = [run for run in runs if run.members[0].role == "function"]
    assert {workload.batch for run in functions[:36] for workload in run.members} == {1}
    # What was alone for the pairs is alone for these too.
    assert {
        workload for run in runs[64:] for workload in run.members if workload.batch == 1 or workload.role == "training"
    } <= {workload for run in runs[:64] for workload in run.members}
