"""How many GPU instances a setting in the style of Pollux gives each job, and when it changes that."""

import pytest

from scheduler.policy.jobs.events import Ended, GpuSeen, LimitsChanged, ProjectLimit
from tests.support.driven_jobs import NOW, DrivenJobs, gpus, started, stopped

#: One scales without any loss; of the other, four GPU instances are worth twice as much as two.
LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}
LATE = {1: 1.0, 2: 1.1, 4: 2.2}


def elastic(*nodes: int) -> DrivenJobs:
    return DrivenJobs("pollux-style", gpus(*nodes))


def look(jobs: DrivenJobs) -> list[str]:
    """The next look, and whatever follows from it at once; returns who was stopped."""
    stops = stopped(jobs.tell(later=jobs.wake_at - jobs.now))
    for id_ in stops:
        jobs.end(id_, Ended.PREEMPTED)
    return stops


def numbers(jobs: DrivenJobs) -> dict[str, int]:
    return {id_: len(names) for id_, (_, names) in jobs.running.items()}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, {"linear": 1}),
        (2, {"linear": 1, "late": 1}),
        # The second one lowers the time of a unit of work by 1/2 for the first job, by 1 - 1/1.1 for the other.
        (3, {"linear": 2, "late": 1}),
        # Two more for the first: 1/4 for two GPU instances. Three more for the other, 1 - 1/2.2 for three, do not fit.
        (5, {"linear": 4, "late": 1}),
        # Here they do, and gain more for each.
        (6, {"linear": 2, "late": 4}),
        # One is of no use to the first job.
        (7, {"linear": 2, "late": 4}),
        (8, {"linear": 4, "late": 4}),
        (9, {"linear": 4, "late": 4}),
    ],
)
def test_each_gpu_instance_goes_where_it_speeds_a_job_up_the_most(size: int, expected: dict[str, int]) -> None:
    jobs = elastic(size)
    jobs.submit("linear", count=4, speeds=LINEAR)
    jobs.submit("late", count=2, later=1, speeds=LATE)
    assert numbers(jobs) == {}
    look(jobs)

    assert numbers(jobs) == expected


def test_a_job_of_one_number_gets_it_whole_or_waits() -> None:
    jobs = elastic(4)
    for name in ("a", "b"):
        jobs.submit(name, count=3)
    look(jobs)

    assert numbers(jobs) == {"a": 3}


def test_who_comes_makes_others_give_and_who_ends_lets_them_take() -> None:
    jobs = elastic(4)
    jobs.submit("a", speeds=LINEAR)
    look(jobs)
    assert numbers(jobs) == {"a": 4}

    assert stopped(jobs.submit("b", later=610, speeds=LINEAR)) == []
    assert look(jobs) == ["a"]
    assert numbers(jobs) == {"a": 2, "b": 2}

    assert started(jobs.end("b", later=610)) == []
    assert look(jobs) == ["a"]
    assert numbers(jobs) == {"a": 4}


def test_a_job_is_changed_only_when_it_is_old_enough_to_gain() -> None:
    """
    Two GPU instances are worth 1.2 of one. With a change of 30 s that pays for a job of more than 150 s, because
    150 / 180 = 1 / 1.2.
    """
    jobs = elastic(2)
    for name in ("a", "b"):
        jobs.submit(name, count=1, speeds={1: 1.0, 2: 1.2})
    look(jobs)
    assert numbers(jobs) == {"a": 1, "b": 1}
    jobs.end("b", later=1)

    ages = []
    while numbers(jobs) == {"a": 1}:
        look(jobs)
        ages.append(jobs.now - NOW)
    # Looks are a minute apart, the first of them 20 s after the job came.
    assert ages == [80, 140, 200]
    assert numbers(jobs) == {"a": 2}


def test_only_gpu_instances_that_take_jobs_are_given_out() -> None:
    jobs = elastic(4)
    jobs.tell(GpuSeen(gpu="n0g3", node="n0", device="A", memory_mib=80_000.0, closed="drained"))
    for number in range(5):
        jobs.submit(f"j{number}", speeds=LINEAR)
    look(jobs)

    assert numbers(jobs) == {"j0": 1, "j1": 1, "j2": 1}


def test_a_project_gets_no_more_than_its_limit() -> None:
    jobs = elastic(8)
    jobs.tell(LimitsChanged(limits={"p": ProjectLimit(gpus=3)}))
    for name in ("a", "b"):
        jobs.submit(name, speeds=LINEAR)
    look(jobs)

    assert numbers(jobs) == {"a": 2, "b": 1}


def test_a_length_is_that_on_the_number_asked_for() -> None:
    """On four GPU instances in place of one, an hour is over after a quarter of an hour."""
    jobs = elastic(4)
    jobs.submit("a", hours=1.0, count=1, speeds=LINEAR)
    look(jobs)
    job = jobs.policy.jobs["a"]

    assert job.alone_s(jobs.now + 900) == pytest.approx(3600)
    assert jobs.entry("a").end_at == (pytest.approx(jobs.now + 900), pytest.approx(jobs.now + job.length.most_s / 4))
