"""Metrics of trainings' losses and budgets."""

from typing import Any

from msgspec.structs import replace

from scheduler.jobs import losses
from smore.domain.job import JobRequest, JobState
from smore.messages.reports import JobReport, Report
from smore.postgres.jobs import Job
from smore.process import observability as metrics
from tests.support import fake_platform

MEASURED = {"loss": 0.04, "loss_low": 0.01, "loss_high": 0.07}


def row(id_: str, state: JobState = JobState.RUNNING, gpus: tuple[str, ...] = ("g0",)) -> Job:
    request = JobRequest(budget=0.05)
    return Job(id=id_, project="p", name=f"name-{id_}", request=request, gpus=gpus, state=state, created_at=0.0)


def reported(gpu: str, *jobs: tuple[str, dict[str, Any]]) -> Report:
    ranks = [
        JobReport(id=id_, project="p", state="running", pid=1, memory_mib=1.0, iterations=1, **figures)
        for id_, figures in jobs
    ]
    return replace(fake_platform.report(), gpu=gpu, jobs=ranks)


def shown(name: str, job: str) -> float | None:
    return metrics.CONTROL.get_sample_value(name, {"training": job, "project": "p"})


def test_a_training_that_runs_has_its_budget_and_once_it_is_measured_its_loss() -> None:
    rows = [row("a"), row("b"), row("c", JobState.QUEUED)]
    losses.show(rows, [reported("g0", ("a", MEASURED), ("b", {}))])
    assert [shown("smore_job_budget", f"name-{id_}") for id_ in "abc"] == [0.05, 0.05, None]
    assert [shown("smore_job_loss", f"name-{id_}") for id_ in "abc"] == [0.04, None, None]
    assert (shown("smore_job_loss_low", "name-a"), shown("smore_job_loss_high", "name-a")) == (0.01, 0.07)
    losses.show([], [])
    assert shown("smore_job_loss", "name-a") is None
    assert shown("smore_job_budget", "name-a") is None


def test_the_loss_of_a_gang_is_that_of_its_slowest_rank_once_all_are_measured() -> None:
    gang = [row("a", gpus=("g0", "g1"))]
    slower = {"loss": 0.06, "loss_low": 0.02, "loss_high": 0.09}
    losses.show(gang, [reported("g0", ("a", MEASURED)), reported("g1", ("a", {}))])
    assert shown("smore_job_loss", "name-a") is None
    losses.show(gang, [reported("g0", ("a", slower)), reported("g1", ("a", MEASURED))])
    assert shown("smore_job_loss", "name-a") == 0.06
