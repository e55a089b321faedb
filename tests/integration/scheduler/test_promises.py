"""Promised ends on a real Postgres and a real Redis: they are rows, they outlive leaders, and their outcome is written."""

from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine

from smore.domain.job import EARLIEST, JobState, Outcome, PromiseState
from smore.messages.commands import SetBudget
from smore.postgres.job_promises import JobPromise
from smore.postgres.jobs import Job
from smore.process.observability import CONTROL
from smore.process.settings import JobsSettings, Settings
from tests.support.job_stage import Stage

HOUR = 3600.0


@pytest.fixture
def stage(config: Settings, redis_client: "redis.Redis", engine: Engine, tmp_path: Path) -> Stage:
    jobs = JobsSettings(silent_s=60.0)
    return Stage(config.model_copy(update={"jobs": jobs, "home": tmp_path}), redis_client, engine)


def promise(stage: Stage, job: Job) -> JobPromise:
    return stage.jobs.promises([job.id])[job.id]


def counted(outcome: str) -> float:
    return CONTROL.get_sample_value("smore_job_promises_total", {"outcome": outcome}) or 0.0


def test_a_promise_is_written_shown_and_kept(stage: Stage) -> None:
    given, kept = counted("given"), counted("kept")
    by = stage.now + 9 * HOUR
    job = stage.submit("job", duration_s=HOUR, count=2, by=by)
    stage.pass_by()
    told = promise(stage, job)
    assert (told.by, told.outcome) == (pytest.approx(by), PromiseState.KEPT_SO_FAR)
    assert told.latest_start_at is not None and stage.now < told.latest_start_at < by - HOUR
    assert stage.entry(job).promised == pytest.approx(by)
    assert CONTROL.get_sample_value("smore_gpus_promised") == 2
    stage.pass_by()
    stage.ranks.tell(job.id, state="ended", exit_code=0)
    stage.pass_by(8 * HOUR)

    assert promise(stage, job).outcome is PromiseState.KEPT
    assert (counted("given"), counted("kept")) == (given + 1, kept + 1)
    assert [one.message for one in stage.jobs.decisions(job.id) if one.kind == "promise"] == [
        "Its promise is kept.",
        "Its end is promised.",
    ]


def test_what_cannot_be_kept_is_refused_or_waits_and_no_leader_asks_again(stage: Stage) -> None:
    long = stage.submit("long", duration_s=9 * HOUR, count=4)
    stage.pass_by()
    soon = stage.now + 4 * HOUR
    refused = stage.submit("refused", duration_s=HOUR, by=soon)
    waits = stage.submit("waits", duration_s=HOUR, by=soon, unless="queue")
    stage.pass_by()
    told = promise(stage, refused)
    assert (told.by, told.outcome, told.why) == (None, PromiseState.NONE, "others")
    assert told.earliest is not None and told.earliest > stage.now + 9 * HOUR
    assert long.id in told.message
    record = stage.job(refused)
    assert (record.state, record.outcome, record.reason) == (JobState.ENDED, Outcome.REFUSED, told.message)
    assert (stage.job(waits).state, promise(stage, waits).outcome) == (JobState.QUEUED, PromiseState.NONE)

    unknown = stage.submit("unknown", by=EARLIEST)
    stage.new_lead()
    stage.pass_by()
    assert promise(stage, unknown).why == "unknown"
    assert stage.job(waits).state is JobState.QUEUED
    assert len([one for one in stage.jobs.decisions(waits.id) if one.kind == "promise"]) == 1


def test_a_promise_outlives_its_leader_and_is_guarded_by_the_next_one(stage: Stage) -> None:
    runs = stage.submit("runs", duration_s=HOUR, count=4)
    stage.pass_by()
    job = stage.submit("job", duration_s=HOUR, count=4, by=EARLIEST)
    stage.pass_by()
    by = promise(stage, job).by
    assert by is not None
    stage.new_lead()
    # Whoever would run beyond its latest start does not start before it.
    blocks = stage.submit("blocks", duration_s=0.9 * HOUR, count=2, gpus=("a0", "a1"))
    stage.ranks.tell(runs.id, state="ended", exit_code=0)
    stage.pass_by()
    stage.pass_by()
    assert stage.entry(job).promised == pytest.approx(by)
    assert {stage.job(one).state for one in (job, blocks)} == {JobState.RUNNING, JobState.QUEUED}
    # A clock that is set back breaks nothing.
    stage.now -= HOUR
    stage.pass_by()
    assert promise(stage, job).outcome is PromiseState.KEPT_SO_FAR


@pytest.mark.parametrize("cause", ["host_lost", "failed"])
def test_what_breaks_a_promise_is_counted_apart(stage: Stage, cause: str) -> None:
    before = counted(f"broken_{cause}")
    job = stage.submit("job", duration_s=HOUR, by=stage.now + 3 * HOUR, restarts=9, gpus=("a0",))
    stage.pass_by()
    stage.pass_by()
    assert stage.job(job).state is JobState.RUNNING
    if cause == "failed":
        stage.ranks.tell(job.id, state="ended", exit_code=1)
    else:
        stage.ranks.silent = {"a0"}
    for _ in range(8):
        stage.pass_by(9)
    assert promise(stage, job).why == cause
    # It waits for its GPU instance, or runs again.
    outcome = PromiseState.AT_RISK if cause == "host_lost" else PromiseState.KEPT_SO_FAR
    assert promise(stage, job).outcome is outcome
    stage.new_lead()
    stage.pass_by()
    stage.pass_by(3 * HOUR)
    told = promise(stage, job)
    assert (told.outcome, told.why) == (PromiseState.BROKEN, cause)
    assert counted(f"broken_{cause}") == before + 1


def test_a_promise_is_at_risk_where_gpu_instances_are_lost_and_withdrawn_where_its_owner_stops_it(stage: Stage) -> None:
    withdrawn = counted("withdrawn")
    stage.submit("runs", duration_s=HOUR, count=2, gpus=("a0", "a1"))
    stage.pass_by()
    job = stage.submit("job", duration_s=HOUR, count=4, by=stage.now + 6 * HOUR)
    stage.pass_by()
    stage.ranks.silent = {"b1"}
    stage.pass_by(61)
    stage.pass_by()
    told = promise(stage, job)
    assert (told.outcome, told.why) == (PromiseState.AT_RISK, "closed")
    assert stage.entry(job).at_risk == "closed"
    stage.ranks.silent = set()
    stage.pass_by()
    stage.pass_by()
    assert promise(stage, job).outcome is PromiseState.KEPT_SO_FAR

    stage.jobs.stop("default", job.id)
    stage.pass_by()
    assert promise(stage, job).outcome is PromiseState.WITHDRAWN
    assert counted("withdrawn") == withdrawn + 1


def test_others_may_cost_a_promised_training_less_where_that_keeps_it_and_never_more_than_its_owner_says(
    stage: Stage,
) -> None:
    """Its iterations are measured to be so slow that little time is left; a later leader sees that they are no more."""
    job = stage.submit("job", duration_s=HOUR, iterations=1000, by=stage.now + 9 * HOUR, budget=0.1, share=0.5)
    stage.pass_by()
    stage.pass_by()

    def told() -> list[tuple[float, float | None]]:
        return [(one.budget, one.share) for _, one in stage.ranks.heard if isinstance(one, SetBudget)]

    assert told() == []
    stage.ranks.tell(job.id, iterations=1, solo_s=15.0, solo_count=20)
    for _ in range(3):
        stage.pass_by(6)
    [lower] = told()
    assert 0.01 <= lower[0] < 0.1 and lower[1] == 0.0
    assert stage.jobs.decisions(job.id)[0].kind == "budget"
    # What its owner said is what is shown, and what it comes back to.
    assert stage.job(job).request.budget == 0.1
    stage.new_lead()
    stage.ranks.tell(job.id, iterations=500, solo_s=10.0, solo_count=20)
    for _ in range(3):
        stage.pass_by(6)
    assert told() == [lower, (0.1, 0.5)]
    assert [one.kind for one in stage.jobs.decisions(job.id)].count("budget") == 2
