"""Which executions and windows of the running platform say what a neighbour costs, and which do not."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ml.learn.live import MIN_RUNS, History, IterationWindow, Observed, Pair, TimedRun, TrainedJob, live_rows, parse
from ml.rows import BadRow
from tests.support.measured import PLACE, alone_s, function, solo, training

T0 = 1_790_000_000.0
HERE = PLACE.key
F, T = function("bert", 2), training("vgg16", 8)
G = function("vgg16", 8)
U = training("bert", 8)
ALONE = {HERE: {F: solo(F), G: solo(G), T: solo(T), U: solo(U)}}
JOB = TrainedJob(id="j1", gpus=("cpu0",), workload=T, created=T0 - 60, began=T0 - 59, ended=math.inf)


def run(number: int, **changes: Any) -> TimedRun:
    """Twenty milliseconds every tenth of a second beside ``j1``, each a bit slower than the one before."""
    start = T0 + number / 10
    made = TimedRun(
        gpu="cpu0",
        place=HERE,
        model="bert/cpu",
        rows=2,
        run_s=0.05 + number / 1e4,
        start=start,
        end=start + 0.06,
        sound=True,
        beside=False,
        jobs=("j1",),
    )
    return replace(made, **changes)


def runs(count: int = MIN_RUNS, first: int = 0, **changes: Any) -> list[TimedRun]:
    return [run(number, **changes) for number in range(first, first + count)]


def rows(
    found: Sequence[TimedRun],
    jobs: Sequence[TrainedJob] = (JOB,),
    windows: Sequence[IterationWindow] = (),
    before: Sequence[Observed] = (),
) -> list[Observed]:
    return list(live_rows(History(runs=found, jobs=jobs, windows=windows), ALONE, before).rows)


def passed(found: Sequence[TimedRun], jobs: Sequence[TrainedJob] = (JOB,)) -> dict[str, int]:
    return dict(live_rows(History(runs=found, jobs=jobs), ALONE).passed)


def test_a_function_beside_one_training() -> None:
    (row,) = rows(runs())

    assert row.cell == (HERE, "function", F, (T,))
    # Nearest rank: the 99th of a hundred; without runs alone the profile is the reference.
    assert row.seconds == pytest.approx(0.05 + 98 / 1e4)
    assert (row.alone_s, row.alone_from) == (solo(F).timing.p99, "profile")
    assert row.degradation == row.seconds / row.alone_s - 1
    assert (row.n, row.at) == (MIN_RUNS, T0 + 9.9 + 0.06)


def test_runs_alone_are_the_better_reference() -> None:
    alone = runs(MIN_RUNS, gpu="cpu1", jobs=(), run_s=0.02)

    (row,) = rows([*runs(), *alone])
    assert (row.alone_s, row.alone_n, row.alone_from) == (0.02, MIN_RUNS, "live")
    (row,) = rows([*runs(), *alone[1:]])
    assert row.alone_from == "profile"


def test_fewer_than_the_minimum_is_no_sample() -> None:
    assert rows(runs(MIN_RUNS - 1)) == []
    assert passed(runs(MIN_RUNS - 1)) == {"too few runs yet": MIN_RUNS - 1}


def test_a_run_counts_once() -> None:
    (first,) = rows(runs())

    # Of a cell there is one row an hour.
    assert rows(runs(3 * MIN_RUNS), before=[first]) == []
    assert rows([*runs(MIN_RUNS), *runs(MIN_RUNS - 1, first=36_000)], before=[first]) == []
    (second,) = rows([*runs(MIN_RUNS), *runs(MIN_RUNS, first=36_000)], before=[first])
    assert second.n == MIN_RUNS
    assert second.at > first.at + 3590


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sound": False}, "not warm or not succeeded"),
        ({"model": ""}, "function not named"),
        ({"beside": True}, "functions beside not recorded"),
        ({"jobs": ()}, "jobs changed or several"),
        ({"jobs": ("j1", "j2")}, "jobs changed or several"),
        ({"rows": 3}, "not profiled here"),
        ({"place": ("another device", HERE[1])}, "not profiled here"),
        ({"place": (HERE[0], "mps")}, "not profiled here"),
    ],
)
def test_what_is_no_sample(changes: dict[str, Any], why: str) -> None:
    assert rows(runs(**changes)) == []
    assert passed(runs(**changes)) == {why: MIN_RUNS}


def pair(**changes: Any) -> Pair:
    """``T`` beside ``U``: half as long again."""
    made = Pair(training=T, beside=U, place=HERE, at=T0, alone_s=0.1, beside_s=0.15, by_profile=False)
    return replace(made, **changes)


def test_a_training_beside_a_training() -> None:
    both = History(pairs=[pair(), pair(training=U, beside=T, beside_s=0.3, by_profile=True)])
    first, second = live_rows(both, ALONE).rows

    assert first.cell == (HERE, "trainings", T, (U,))
    assert (first.degradation, first.alone_from, first.at) == (pytest.approx(0.5), "live", T0)
    assert (second.victim, second.degradation, second.alone_from) == (U, pytest.approx(2.0), "profile")
    assert parse(first.document()) == first
    # One row an hour of a cell; what it has counted does not count again.
    later = History(
        pairs=[pair(), pair(at=T0 + 10), pair(at=T0 + 4000, beside_s=0.2), pair(at=T0 + 4001, beside_s=0.4)]
    )
    assert live_rows(History(pairs=[pair(), pair(at=T0 + 10)]), ALONE, [first]).rows == []
    (third,) = live_rows(later, ALONE, [first]).rows
    assert (third.n, third.degradation) == (3, pytest.approx(1.5))


def test_a_pair_of_trainings_that_nobody_names_or_profiled_is_no_sample() -> None:
    pairs = [pair(beside=None), pair(place=("another device", HERE[1])), pair(beside=training("bert", 2))]

    assert live_rows(History(pairs=pairs), ALONE).rows == []
    assert live_rows(History(pairs=pairs), ALONE).passed == {"pair: job not named": 1, "pair: not profiled here": 2}


def test_another_sharing_mode_never_comes_together() -> None:
    other = (HERE[0], "mps")
    alone = ALONE | {other: ALONE[HERE]}
    half = MIN_RUNS // 2
    mixed = [*runs(half), *runs(half, first=half, place=other)]

    assert live_rows(History(runs=mixed, jobs=[JOB]), alone).rows == []
    found = live_rows(History(runs=[*runs(), *runs(first=MIN_RUNS, place=other)], jobs=[JOB]), alone).rows
    assert [row.place for row in found] == [HERE, other]


def test_a_function_that_began_meanwhile_changes_the_co_runners() -> None:
    """The worker notes what runs at the start alone; the later one gives the earlier one away."""
    late = [replace(one, start=one.start + 0.05, end=one.end + 0.03, model="", beside=True) for one in runs()]

    assert rows([*runs(), *late]) == []
    cold = [replace(one, sound=False) for one in late]
    assert rows([*runs(), *cold]) == []


def test_a_long_run_covers_all_that_began_within_it() -> None:
    long = run(0, start=T0 - 1, end=T0 + 5, model="")

    assert passed([long, *runs(60)])["functions beside changed or not known"] == 50


def test_a_job_that_came_or_went_changes_the_co_runners() -> None:
    assert rows(runs(), jobs=[replace(JOB, began=T0)]) == []
    assert rows(runs(), jobs=[replace(JOB, ended=T0 + 8)]) == []
    assert rows(runs(), jobs=[replace(JOB, began=math.inf)]) == []
    unseen = replace(JOB, id="j2", created=T0 + 5, began=T0 + 6)
    assert rows(runs(), jobs=[JOB, unseen]) == []
    assert len(rows(runs(), jobs=[JOB, replace(unseen, gpus=("cpu1",))])) == 1
    assert passed(runs(), jobs=[replace(JOB, workload=None)]) == {"job not named": MIN_RUNS}


# A function beside several


def beside_g(**changes: Any) -> list[TimedRun]:
    """
    A hundred runs of F that compute for 50 ms, each with one of G that begins 10 ms before that and ends 20 ms after
    it.
    """
    own = runs(run_s=0.05, beside=True, **changes)
    others = [
        replace(one, model="vgg16/cpu", rows=8, start=one.start - 0.01, end=one.end + 0.02, run_s=0.08) for one in own
    ]
    return [*own, *(replace(one, beside=False) for one in others)]


def of_f(found: Sequence[TimedRun], jobs: Sequence[TrainedJob] = (JOB,)) -> list[Observed]:
    return [row for row in rows(found, jobs) if row.victim == F]


def test_a_function_beside_a_training_and_a_function() -> None:
    (row,) = of_f(beside_g())

    assert (row.direction, row.aggressor, row.others) == ("function", T, (G,))
    assert row.cell == (HERE, "function", F, (T, G))
    assert (row.n, row.seconds, row.alone_s) == (MIN_RUNS, 0.05, solo(F).timing.p99)
    # G met F for 50 of its 80 ms: that is not nearly all of its time.
    assert len(rows(beside_g())) == 1
    assert passed(beside_g()) == {"functions beside changed or not known": MIN_RUNS}


def test_a_function_that_runs_twice_is_two_co_runners() -> None:
    twice = [*beside_g(), *(one for one in beside_g() if one.model == "vgg16/cpu")]

    (row,) = of_f(twice)
    assert row.beside == (T, G, G)


def test_several_functions_without_a_training() -> None:
    two = beside_g(jobs=())

    (row,) = of_f([*two, *(one for one in two if one.model == "vgg16/cpu")], jobs=[])
    assert row.beside == (G, G)
    # Two functions are a pair.
    assert of_f(two, jobs=[]) == []
    assert passed(two, jobs=[])["two functions without a training"] == MIN_RUNS


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        # Away for a tenth of the run, then for a little more.
        ({"run_s": 0.0651}, MIN_RUNS),
        ({"run_s": 0.0649}, 0),
        # A neighbour of which nothing is known, or that was loading.
        ({"model": ""}, 0),
        ({"sound": False}, 0),
        ({"rows": 3}, 0),
    ],
)
def test_the_set_must_be_there_for_nearly_all_of_the_run(changes: dict[str, object], count: int) -> None:
    found = [replace(one, **changes) if one.model == "vgg16/cpu" else one for one in beside_g()]  # type: ignore[arg-type]

    assert sum(row.n for row in of_f(found)) == count


def test_a_set_that_changes_is_passed_over_and_counted() -> None:
    """G goes in the middle of the run and comes back at once as another batch."""
    another = [
        replace(one, model="vgg16/cpu", rows=rows_, start=one.start + shift, end=one.start + shift + 0.025, run_s=0.025)
        for one in runs()
        for rows_, shift in ((8, 0.01), (2, 0.035))
    ]
    found = [*runs(run_s=0.05), *another]

    assert [row for row in rows(found) if row.victim == F] == []
    assert passed(found)["functions beside changed or not known"] == MIN_RUNS


def test_each_set_needs_runs_of_its_own() -> None:
    # Beside the first of F's runs there was nothing but the training.
    first, *found = beside_g()
    found = [replace(first, beside=False), *(one for one in found if one.start >= T0)]

    assert of_f(found) == []
    assert passed(found)["too few runs yet"] == MIN_RUNS


# A training beside functions


def window(**changes: Any) -> IterationWindow:
    made = IterationWindow(
        job="j1",
        gpu="cpu0",
        place=HERE,
        end=T0 + 60,
        window_s=60.0,
        solo_s=0.2,
        solo_count=0,
        shared_s=0.3,
        shared_count=200,
    )
    return replace(made, **changes)


#: Back to back for a minute: at work for nearly all of it.
BUSY = [run(number, run_s=0.098, end=T0 + number / 10 + 0.099) for number in range(600)]
LASTING = replace(JOB, ended=math.inf, began=T0 - 59)


def trainings(
    found: Sequence[TimedRun], *windows: IterationWindow, jobs: Sequence[TrainedJob] = (LASTING,)
) -> list[Observed]:
    return [row for row in rows(found, jobs, windows) if row.direction == "training"]


def test_a_training_beside_one_function() -> None:
    (row,) = trainings(BUSY, window())

    assert (row.victim, row.aggressor, row.n, row.seconds) == (T, F, 200, 0.3)
    assert (row.alone_s, row.alone_from) == (alone_s(T), "profile")


def test_iterations_alone_of_the_same_job_are_the_better_reference() -> None:
    earlier = window(end=T0 - 10, shared_count=0, solo_count=100, solo_s=0.21)

    (row,) = trainings(BUSY, earlier, window())
    assert (row.alone_s, row.alone_n, row.alone_from) == (0.21, 100, "live")


def test_iterations_beside_another_training_are_no_reference() -> None:
    earlier = window(end=T0 - 10, shared_count=0, solo_count=100, solo_s=0.21)
    guest = TrainedJob(id="j2", gpus=("cpu0",), workload=U, created=T0 - 60, began=T0 - 59, ended=T0 - 15)

    (row,) = trainings(BUSY, earlier, window(), jobs=(LASTING, guest))
    assert row.alone_from == "profile"


def test_windows_overlap_but_iterations_count_once() -> None:
    (row,) = trainings(BUSY, window(), window(end=T0 + 61, shared_s=0.4))
    assert (row.n, row.seconds, row.at) == (200, 0.3, T0 + 60)


def test_windows_of_one_cell_are_one_row() -> None:
    later = [replace(one, start=one.start + 60, end=one.end + 60) for one in BUSY]

    (row,) = trainings([*BUSY, *later], window(), window(end=T0 + 120, shared_s=0.2, shared_count=300))
    assert (row.n, row.at) == (500, T0 + 120)
    assert row.seconds == pytest.approx(0.24)


@pytest.mark.parametrize(
    "found",
    [
        # A function that is at work half of the time.
        [replace(one, run_s=0.05) for one in BUSY],
        # Another batch, another function, two at once for once, one that was cold.
        [*BUSY[:300], *(replace(one, rows=1) for one in BUSY[300:])],
        [*BUSY[:300], *(replace(one, model="vgg16/cpu") for one in BUSY[300:])],
        [*BUSY, run(1, start=T0 + 0.11)],
        [*BUSY[:300], replace(BUSY[300], sound=False), *BUSY[301:]],
        [],
    ],
)
def test_a_window_in_which_the_co_runners_changed_is_no_sample(found: list[TimedRun]) -> None:
    assert trainings(found, window()) == []


#: The same functions side by side, with a gap of 2 %.
TOGETHER = [*BUSY, *(replace(one, model="vgg16/cpu", rows=8, beside=True) for one in BUSY)]


def test_a_training_beside_two_functions() -> None:
    (row,) = trainings(TOGETHER, window())

    assert (row.victim, row.beside, row.n, row.seconds) == (T, (F, G), 200, 0.3)
    # A third one for less than a tenth of the time does not change what it says.
    (row,) = trainings([*TOGETHER, *(replace(one, beside=True) for one in BUSY[:40])], window())
    assert row.beside == (F, G)


@pytest.mark.parametrize(
    "found",
    [
        # One of them leaves; they take turns; both are at work for half of the time.
        TOGETHER[:900],
        [one for position, one in enumerate(TOGETHER) if position < 300 or position >= 900],
        [replace(one, run_s=0.05) for one in TOGETHER],
        [*TOGETHER, *(replace(one, beside=True) for one in BUSY[:100])],
        [*TOGETHER[1:], replace(TOGETHER[0], sound=False)],
    ],
)
def test_a_window_in_which_the_set_changed_is_no_sample(found: list[TimedRun]) -> None:
    history = History(runs=found, jobs=[LASTING], windows=[window()])

    assert [row for row in live_rows(history, ALONE).rows if row.direction == "training"] == []
    assert live_rows(history, ALONE).passed["window: co-runners changed"] == 1


def test_too_few_iterations_are_no_sample() -> None:
    assert trainings(BUSY, window(shared_count=19)) == []


def test_a_window_of_another_sharing_mode_is_no_sample() -> None:
    assert trainings(BUSY, window(place=(HERE[0], "mps"))) == []


def test_a_job_on_two_gpu_instances_is_no_sample() -> None:
    assert trainings(BUSY, window(), jobs=[replace(LASTING, gpus=("cpu0", "cpu1"))]) == []


def test_a_row_and_its_document() -> None:
    (row,) = rows(runs())
    document = row.document()

    assert parse(document) == row
    assert document["place"] == {"device": HERE[0], "sharing_mode": HERE[1]}
    # As version 1 wrote it, without others; and a set through JSON.
    older = {key: value for key, value in document.items() if key != "others"} | {"version": 1}
    assert parse(older) == row
    (several,) = of_f(beside_g())
    assert parse(json.loads(json.dumps(several.document()))) == several
    for wrong in ({"version": 3}, {"row": "solo"}, {"seconds": 0.0}, {"alone_s": math.nan}, {"direction": "functions"}):
        with pytest.raises(BadRow):
            parse(document | wrong)
