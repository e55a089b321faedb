"""Forecasts: asked job by job, in any order, they say what the whole play says."""

from random import Random

from scheduler.policy.jobs.events import ProjectLimit
from scheduler.policy.jobs.plan import PlannedEnd, PlannedJob, QueueForecast
from scheduler.policy.jobs.projects import Projects
from scheduler.policy.jobs.spec import Needs

KEYS = (("V100", False), ("A100", False))


def made(seed: int) -> QueueForecast:
    draw, projects = Random(seed), Projects()
    projects.limits = {"p": ProjectLimit(gpus=6)}
    running = [(draw.uniform(1.0, 50.0), draw.choice(KEYS), draw.randint(1, 4), draw.choice("pq")) for _ in range(6)]
    for _, _, gpus, project in running:
        projects.held[project] += gpus
    waiting = [
        PlannedJob(
            id=f"j{place}",
            needs=Needs(draw.randint(1, 8), (), "", 0.0, ""),
            project=draw.choice("pq"),
            length_s=draw.uniform(1.0, 20.0),
            keys=KEYS[: draw.randint(1, 2)],
            from_at=draw.choice((0.0, 30.0)),
        )
        for place in range(12)
    ]
    ends = [PlannedEnd(*one) for one in running]
    return QueueForecast(5.0, dict.fromkeys(KEYS, 2), projects, ends, waiting, {}, {}, in_order=seed % 2 == 0)


def test_a_forecast_asked_for_one_job_after_another_is_that_of_the_whole_play() -> None:
    for seed in range(40):
        whole = made(seed).starts()
        asked = made(seed)
        ids = [f"j{place}" for place in range(12)]
        Random(seed).shuffle(ids)
        for id_ in ids:
            assert asked.start_of(id_) == whole.get(id_, float("inf")), (seed, id_)
        assert whole
