"""The simulator of trainings: gangs, failures, restarts, wrong lengths, preemption; equal runs for equal inputs."""

from dataclasses import replace

import pytest

from lab.simulation.jobs.interference import Constant, Muri, interference_of
from lab.simulation.jobs.metrics import figures
from lab.simulation.jobs.simulator import simulate_jobs
from lab.simulation.jobs.traces import SimulatedJob, jobs
from lab.simulation.jobs.world import JobWorld, job_presets, load_job_preset
from lab.simulation.world import BadWorld
from scheduler.policy.jobs.knobs import SETTINGS, job_setting

WORLD = JobWorld(
    name="test", nodes=1, gpus=2, device="V100", memory_mib=1000.0, interference=Constant(1.0), resume_s=62.0
)


SHARED = replace(WORLD, share=10.0, interference=Constant(1.25))


def job(id_: str, submit_s: float, seconds: float, gpus: int = 1) -> SimulatedJob:
    return SimulatedJob(id=id_, submit_s=submit_s, gpus=gpus, seconds=seconds, memory_mib=100.0)


def test_a_run_by_hand() -> None:
    """Two GPUs: a and b run, the gang waits for both, c passes it because it fits."""
    run = [job("a", 0, 100), job("b", 0, 300), job("gang", 10, 50, gpus=2), job("c", 20, 400)]
    result = simulate_jobs(WORLD, run, job_setting("sjf"), seed=0)

    assert result.start_s == [0, 0, 500, 100]
    assert result.end_s == [100, 300, 550, 500]
    assert result.succeeded == [True] * 4
    found = figures(result)
    assert found["jct"] == pytest.approx((100 + 300 + 540 + 480) / 4 / 3600)
    assert found["makespan"] == pytest.approx(550 / 3600)
    assert found["gpu_share"] == pytest.approx((100 + 300 + 100 + 400) / 1100)
    assert found["slowdown_max"] == pytest.approx(540 / 50)


def test_a_job_that_is_stopped_for_another_goes_on_where_it_was() -> None:
    run = [job("long", 0, 10_000, gpus=2), job("short", 1000, 100, gpus=2)]
    result = simulate_jobs(WORLD, run, job_setting("srsf"), seed=0)

    assert result.end_s == [10_000 + 100 + 62, 1100]
    assert (result.preempted, result.attempts) == (1, [2, 1])


def test_two_queues_give_newcomers_a_turn() -> None:
    run = [job("first", 0, 20 * 3600, gpus=2), job("second", 60, 3600, gpus=2)]
    result = simulate_jobs(WORLD, run, job_setting("tiresias"), seed=0)

    # After eight GPU hours, which are four of its own, at a whole look.
    assert result.start_s == [0, 4 * 3600]
    assert result.end_s[1] == 5 * 3600
    assert result.end_s[0] == 21 * 3600 + 62


def test_another_number_of_gpus_has_its_own_speed_and_costs_half_a_minute() -> None:
    """
    Two GPUs. The first job has both from 0 on and is 2 * 517 / 525 times as fast as on one; when the second comes, each
    has one from the next whole minute on, and the first goes on 30 s later. When it has ended, the second has both at the
    next minute, 960, and goes on at 990.
    """
    run = [replace(job(name, at, seconds), model="a2c") for name, at, seconds in (("a", 0, 1000), ("b", 100, 10_000))]
    result = simulate_jobs(WORLD, run, job_setting("pollux-style"), seed=0)

    both = 2 * 517 / 525
    first = 120 + 30 + 1000 - 120 * both
    second = 960 + 30 + (10_000 - (960 - 120)) / both
    assert result.start_s == [0, 120]
    assert result.end_s == [pytest.approx(first), pytest.approx(second)]
    assert (result.preempted, result.attempts) == (2, [2, 2])
    assert result.gpu_s == [pytest.approx(120 + first), pytest.approx(2 * second - 960 - 120)]
    # A change is cheaper than a start after a failure, which stays as slow as in all settings.
    slower = simulate_jobs(replace(WORLD, resume_s=1000.0), run, job_setting("pollux-style"), seed=0)
    assert slower.end_s == result.end_s


@pytest.mark.parametrize("setting", ["smore-jobs", "sjf-bsbf", "sjf-ffs"])
def test_two_that_share_are_slower_while_both_run(setting: str) -> None:
    """The gang holds both GPUs; b comes beside it after 100 s, and the gang is as slow as the slower of its ranks."""
    run = [job("gang", 0, 1000, gpus=2), job("b", 100, 400)]
    result = simulate_jobs(SHARED, run, job_setting(setting), seed=0)

    assert result.start_s == [0, 100]
    # b takes 500 s, in which the gang does 400.
    assert result.end_s == [pytest.approx(1100), pytest.approx(600)]
    assert (result.guests, result.shared_s) == (1, pytest.approx(500))
    assert figures(result)["gpu_share"] == pytest.approx(1.0)
    assert figures(result)["guests"] == 0.5


def test_a_guest_that_does_not_fit_whole_runs_in_micro_batches() -> None:
    """600 MiB beside 600 of 1000: in four parts it needs 285, and an iteration takes 1.12 times as long."""
    run = [replace(job("gang", 0, 1000, gpus=2), memory_mib=600.0), replace(job("b", 100, 400), memory_mib=600.0)]
    assert simulate_jobs(SHARED, run, job_setting("smore-jobs"), seed=0).start_s == [0, 1000]
    parts = replace(SHARED, micro_batches=(2, 4), per_row_memory=0.7, part_cost=0.04)
    result = simulate_jobs(parts, run, job_setting("smore-jobs"), seed=0)

    assert result.start_s == [0, 100]
    # b takes 560 s, in which the gang does 448.
    assert result.end_s == [pytest.approx(1112), pytest.approx(660)]
    assert (result.guests, result.in_parts) == (1, 1)


def test_whoever_says_nothing_of_sharing_is_shared_with_by_nobody() -> None:
    run = [job("gang", 0, 1000, gpus=2), job("b", 100, 400)]
    for world in (replace(SHARED, share=0.0), SHARED):
        alone = [replace(one, memory_mib=0.0) for one in run] if world.share else run
        result = simulate_jobs(world, alone, job_setting("smore-jobs"), seed=0)
        assert (result.start_s, result.guests) == ([0, 1000], 0)


def test_what_is_predicted_wrongly_is_measured_after_a_minute() -> None:
    """With noise some pairs are worse than their owners allow; those are not formed again."""
    world = replace(SHARED, share=0.6, noise=0.15, gpus=1)
    run = [job("first", 0, 10_000), *(job(f"j{number}", 10 + number * 1000, 500) for number in range(5))]
    guests = {simulate_jobs(world, run, job_setting("smore-jobs"), seed=seed).guests for seed in range(10)}
    # All of them are refused, or all let in: 1.25 is within what is allowed.
    assert guests == {0, 5}
    worse = replace(world, interference=Constant(1.65))
    guests = {simulate_jobs(worse, run, job_setting("smore-jobs"), seed=seed).guests for seed in range(60)}
    assert guests == {0, 1}


def test_sharing_changes_nothing_where_nobody_may_share() -> None:
    """Figures of before there was sharing."""
    before = {
        "smore-jobs": 1.3825656286268746,
        "sjf": 1.3825656286268746,
        "fifo-backfill": 1.9770500288014539,
        "tiresias": 1.9914597826735796,
        "srsf": 1.1999634530444099,
    }
    preset = load_job_preset("jobs-small")
    for setting, jct in before.items():
        run = simulate_jobs(preset.world, jobs(preset.trace, preset.world.size, 0, ()), job_setting(setting), seed=0)
        assert figures(run)["jct"] == pytest.approx(jct, rel=1e-12)


def test_attempts_that_fail_start_again_from_their_checkpoint() -> None:
    world = replace(WORLD, attempts=0.5, restarts=20, checkpoint_s=100.0)
    run = [job(f"j{number}", 0, 1000) for number in range(30)]
    result = simulate_jobs(world, run, job_setting("smore-jobs"), seed=1)

    assert all(result.succeeded)
    assert max(result.attempts) > 2
    # What was done since the last checkpoint is done again, and each attempt after the first resumes for a minute.
    for on_s, attempts in zip(result.on_s, result.attempts, strict=True):
        assert 1000 + 62 * (attempts - 1) - 1e-6 <= on_s <= 1000 + (62 + 100) * (attempts - 1) + 1e-6
    none = simulate_jobs(replace(world, restarts=0), run, job_setting("smore-jobs"), seed=1)
    assert 0.2 < figures(none)["failed"] < 0.8


def test_nodes_that_fail_lose_gangs_and_nobody_for_ever() -> None:
    world = replace(WORLD, nodes=2, node_days=0.5, repair_h=2.0, restarts=100, checkpoint_s=600.0)
    run = [job(f"j{number}", number * 3600, 7200, gpus=1 + number % 4) for number in range(20)]
    result = simulate_jobs(world, run, job_setting("smore-jobs"), seed=3)

    assert all(result.succeeded)
    assert max(result.attempts) > 1
    assert sum(result.on_s) > sum(result.alone_s)


@pytest.mark.parametrize("setting", SETTINGS)
def test_equal_inputs_make_equal_runs_and_everything_ends(setting: str) -> None:
    for name, lengths in (("jobs-small", 0.0), ("jobs-small", 1.0), ("jobs-small-shared", 1.0)):
        preset = load_job_preset(name, lengths=lengths, noise=0.25)
        trace = jobs(preset.trace, preset.world.size, 4, ())
        first, second = (simulate_jobs(preset.world, trace, job_setting(setting), seed=4) for _ in range(2))
        assert replace(first, policy_s=0.0) == replace(second, policy_s=0.0)
        assert all(
            end > start >= submitted
            for submitted, start, end in zip(first.submit_s, first.start_s, first.end_s, strict=True)
        )


def test_lengths_that_are_wrong_cost_the_shortest_first() -> None:
    """Over some seeds: with lengths wrong by e^N(0, 1.5), shortest first is worse than with exact ones."""
    means = []
    for lengths in (0.0, 1.5):
        preset = load_job_preset("jobs-small", lengths=lengths)
        runs = [
            simulate_jobs(preset.world, jobs(preset.trace, preset.world.size, seed, ()), job_setting("sjf"), seed=seed)
            for seed in range(6)
        ]
        means.append(sum(figures(run)["jct"] for run in runs))
    assert means[0] < means[1]


def test_measured_pairs_stand_for_applications() -> None:
    """Of the bundled rows: BERT's stand-in beside ImageNet's is 4.86 times slower; a pair that did not fit is no pair."""
    imagenet, bert = (SimulatedJob(id=name, submit_s=0, gpus=2, seconds=1, model=name) for name in ("imagenet", "bert"))
    v100 = interference_of("gavel-v100")
    assert v100.slowdown(bert, [imagenet]) == pytest.approx(4.86, abs=0.005)
    assert v100.slowdown(imagenet, [bert]) == pytest.approx(1.72, abs=0.005)
    assert v100.slowdown(imagenet, ()) == 1.0
    with pytest.raises(BadWorld, match="knows the applications"):
        v100.slowdown(replace(bert, model="vgg16"), [imagenet])


def test_alone_nobody_is_slower_and_muri_adds_up_what_a_pair_asks_for() -> None:
    first = SimulatedJob(id="a", submit_s=0, gpus=1, seconds=1, iteration_s=1.0, busy_s=(0.8, 0.5, 0.0))
    second = SimulatedJob(id="b", submit_s=0, gpus=1, seconds=1, iteration_s=2.0, busy_s=(0.8, 1.6, 0.0))

    assert Muri().slowdown(first, ()) == 1.0
    # CPU 0.8 + 0.4, GPU 0.5 + 0.8: the GPU is asked for 1.3 times.
    assert Muri().slowdown(first, [second]) == pytest.approx(1.02 * 1.3**1.1)
    assert interference_of("constant=1.25").slowdown(first, [second]) == 1.25


@pytest.mark.parametrize("name", ["constant", "constant=0.5", "constant=x", "nothing", "muri=2", "gavel-a100"])
def test_unknown_interference_models_are_refused(name: str) -> None:
    with pytest.raises(BadWorld, match="truth"):
        interference_of(name)


@pytest.mark.parametrize("name", job_presets())
def test_presets_are_whole(name: str) -> None:
    preset = load_job_preset(name)
    assert preset.about
    assert set(preset.policies) <= set(SETTINGS)
