"""Speeds by number of GPUs: what Muri's authors measured, and what is assumed of everything else."""

import pytest

from lab.simulation.jobs.speeds import ITERATION_MS, NUMBERS, speeds
from lab.simulation.rows import locate, read_rows
from smore.traces.public import BUNDLED


def test_iteration_times_are_those_of_the_bundled_traces() -> None:
    rows = read_rows(locate("jobs/muri_traces.csv", (BUNDLED,)), ("model_name", "num_gpu", "iteration_time"))
    measured = {(row["model_name"], int(row["num_gpu"])): float(row["iteration_time"]) for _, row in rows}
    assert measured == {
        (model, number): times[place] for model, times in ITERATION_MS.items() for place, number in enumerate(NUMBERS)
    }


def test_each_gpu_keeps_its_batch() -> None:
    on_two = speeds("vgg16", 2)
    assert list(on_two) == [1, 2, 4, 8, 16, 32]
    assert (on_two[1], on_two[2]) == (pytest.approx(191 / 107 / 2), 1.0)
    assert on_two[32] == pytest.approx(16 * 191 / 336)


def test_between_two_numbers_an_iteration_lies_on_a_straight_line_and_beyond_them_it_takes_no_longer() -> None:
    # On six GPUs half way between 533 and 555 ms.
    assert speeds("a2c", 6)[8] == pytest.approx(8 / 6 * 544 / 555)
    assert speeds("a2c", 48)[32] == pytest.approx(32 / 48)


def test_what_pollux_authors_run_on_one_gpu_keeps_its_number() -> None:
    assert speeds("ncf", 1) == {}


def test_what_nobody_measured_scales_as_the_mean_of_what_was() -> None:
    means = [sum(times[0] / times[place] for times in ITERATION_MS.values()) / 8 for place in range(6)]
    assert list(speeds("imagenet", 1).values()) == pytest.approx(
        [n * mean for n, mean in zip(NUMBERS, means, strict=True)]
    )
