"""What a job's reports say of it, over one GPU instance and several."""

import dataclasses
import os

import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from api.routes import health
from api.schemas.jobs import JobBody, SecretOf
from api.trainings import limits as project_limits
from api.trainings.views import shown as view
from smore.domain.errors import LimitReached
from smore.domain.job import REFUSED, JobRequest, JobState, exit_of, outcome_of, state_of
from smore.domain.limits import Limits
from smore.messages.reports import JobReport, Report
from smore.postgres.jobs import Job
from tests.support import fake_platform

JOB = Job(
    id="j",
    project="default",
    name="train",
    request=JobRequest(argv=["zoo.train"]),
    gpus=["a", "b"],
    state=JobState.RUNNING,
    created_at=1.0,
    started_at=2.0,
    ended_at=None,
    exit_code=None,
)


def report(state: str = "running", solo_s: float = 0.0, shared_s: float = 0.0, iterations: int = 10) -> JobReport:
    return JobReport(
        id="j",
        project="default",
        state=state,
        pid=1,
        memory_mib=100,
        iterations=iterations,
        solo_s=solo_s,
        solo_count=int(solo_s > 0),
        shared_s=shared_s,
        shared_count=int(shared_s > 0),
    )


@pytest.mark.parametrize(
    ("reports", "degradation"),
    [
        ([], None),
        ([report()], None),
        ([report(solo_s=0.2)], None),
        ([report(shared_s=0.2)], None),
        ([report(solo_s=0.2, shared_s=0.25)], 0.25),
        # The slowest rank counts, on either side.
        ([report(solo_s=0.2, shared_s=0.25), report(solo_s=0.25, shared_s=0.2)], 0.0),
    ],
)
def test_degradation(reports: list[JobReport], degradation: float | None) -> None:
    assert view(JOB, reports).degradation == (None if degradation is None else pytest.approx(degradation))


def test_ranks_together() -> None:
    shown = view(JOB, [report(iterations=10), report(iterations=7)])

    assert (shown.iterations, shown.memory_mib) == (7, 200)


def test_the_loss_is_that_of_the_rank_with_the_highest_bound_once_all_are_known() -> None:
    ranks = [
        replace(report(), loss=loss, loss_low=loss - 0.01, loss_high=high, loss_windows=windows)
        for loss, high, windows in ((0.05, 0.06, 30), (0.04, 0.09, 9))
    ]
    shown = view(JOB, ranks)
    assert (shown.loss, shown.loss_low, shown.loss_high, shown.loss_windows) == (0.04, pytest.approx(0.03), 0.09, 9)
    assert view(JOB, [*ranks, report()]).loss is None
    assert (shown.budget, view(dataclasses.replace(JOB, request=JobRequest(budget=0.02)), ranks).budget) == (0.1, 0.02)


@pytest.mark.parametrize(
    ("stored", "reported", "state"),
    [
        (JobState.STARTING, ["running"], JobState.RUNNING),
        (JobState.STARTING, ["running", "ended"], JobState.RUNNING),
        (JobState.STOPPING, ["running"], JobState.STOPPING),
        (JobState.STOPPING, ["ended"], JobState.ENDED),
        (JobState.RUNNING, ["ended", "ended"], JobState.ENDED),
        (JobState.RUNNING, ["running", "lost"], JobState.LOST),
        (JobState.RUNNING, ["odd"], JobState.RUNNING),
    ],
)
def test_state_of_several_ranks(stored: JobState, reported: list[str], state: JobState) -> None:
    assert state_of(stored, set(reported)) is state


def test_a_job_ended_as_badly_as_its_worst_rank() -> None:
    assert [exit_of(codes) for codes in ([], [None], [0], [0, 0], [0, None], [None, 0, 3], [0, -11, 1])] == [
        None,
        None,
        0,
        0,
        None,
        3,
        -11,
    ]


@pytest.mark.parametrize(
    ("state", "exit_code", "asked", "reason", "outcome", "signal"),
    [
        (JobState.RUNNING, None, False, "", None, None),
        (JobState.STOPPING, None, True, "", None, None),
        (JobState.ENDED, 0, False, "", "succeeded", None),
        (JobState.ENDED, 3, False, "", "failed", None),
        (JobState.ENDED, REFUSED, False, "", "failed", None),
        (JobState.ENDED, -11, False, "", "killed", "SIGSEGV"),
        (JobState.ENDED, -99, False, "", "killed", "signal 99"),
        (JobState.ENDED, -15, True, "", "stopped", "SIGTERM"),
        (JobState.ENDED, None, True, "", "stopped", None),
        (JobState.ENDED, None, False, "", "unknown", None),
        (JobState.LOST, None, True, "", "unknown", None),
        (JobState.ENDED, REFUSED, False, "no such process", "refused", None),
        (JobState.ENDED, None, False, "not on the device", "detached", None),
    ],
)
def test_how_a_job_ended(
    state: JobState, exit_code: int | None, asked: bool, reason: str, outcome: str | None, signal: str | None
) -> None:
    assert outcome_of(state, exit_code, asked=asked, reason=reason) == outcome
    shown = view(dataclasses.replace(JOB, state=state, exit_code=exit_code, asked=asked, reason=reason), [])
    if state is not JobState.RUNNING:
        assert (shown.outcome, shown.signal, shown.reason) == (outcome, signal, reason or None)


def test_how_it_ended_is_told_before_it_is_written_down() -> None:
    ended = replace(report("ended"), exit_code=-11)
    shown = view(JOB, [ended, replace(ended, exit_code=0)])
    assert (shown.state, shown.outcome, shown.signal, shown.exit_code) == ("ended", "killed", "SIGSEGV", -11)
    suspended = view(JOB, [replace(report(), suspended=True), report()])
    assert (suspended.state, suspended.suspended, suspended.outcome) == ("running", True, None)


def gpu(name: str, *jobs: JobReport, total_mib: float = 1000) -> Report:
    return replace(fake_platform.report(), gpu=name, memory_total_mib=total_mib, jobs=jobs)


def declared(id_: str, mib: float, *gpus: str, state: JobState = JobState.RUNNING) -> Job:
    request = JobRequest(memory_mib=mib)
    return dataclasses.replace(JOB, id=id_, gpus=list(gpus), state=state, request=request)


def test_a_training_reserves_what_was_declared_or_what_it_holds() -> None:
    # One declared 400 MiB and holds more; one has declared nothing; what nobody reports yet counts as declared.
    a = gpu("a", replace(report(), id="x", reserve_mib=525), replace(report(), id="y", reserve_mib=100))
    b = gpu("b", total_mib=2000)
    jobs = [declared("x", 400, "a", "b"), declared("y", 0, "a")]
    assert project_limits.reserves(jobs, [a, b]) == {("x", "a"): 525, ("x", "b"): 420, ("y", "a"): 100}


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"=": "x"}, {"A\0": "x"}, {"A": "\0"}, {"A\n=": "x"}])
def test_a_variable_that_no_process_can_have_is_refused(env: dict[str, str | SecretOf]) -> None:
    with pytest.raises(ValidationError) as refused:
        JobBody(name="a", argv=["zoo.train"], env=env)
    assert {error["loc"][0] for error in refused.value.errors()} == {"env"}
    assert JobBody(name="a", argv=["zoo.train"], env={"A": "=", "b.c": ""}).env == {"A": "=", "b.c": ""}


def test_a_projects_trainings_are_bounded() -> None:
    a = gpu("a", replace(report(), id="y", reserve_mib=100), replace(report(), id="z"))
    jobs = [declared("x", 400, "a", state=JobState.STARTING), declared("y", 0, "a")]
    # One that was stopped counts as long as a worker tells of it.
    stopping = [declared("z", 0, "a", state=JobState.STOPPING), declared("gone", 0, "a", state=JobState.STOPPING)]
    assert [one.id for one in project_limits.going_on([*jobs, *stopping], [a])] == ["x", "y", "z"]

    def refusal(limits: Limits, wanted_mib: float = 0.0) -> object:
        try:
            project_limits.check_limits(jobs, [a], limits, 3, wanted_mib)
        except LimitReached as error:
            return error.details["field"], error.details["limit"]
        return None

    assert refusal(Limits()) is None
    assert refusal(Limits(jobs=2)) == ("jobs", 2)
    assert refusal(Limits(jobs=0)) == ("jobs", 0)
    assert refusal(Limits(job_memory_mib=730), 200) is None
    assert refusal(Limits(job_memory_mib=729), 200) == ("job_memory_mib", 729)
    assert refusal(Limits(job_memory_mib=521)) is None
    assert refusal(Limits(job_memory_mib=520)) == ("job_memory_mib", 520)
    with pytest.raises(LimitReached) as refused:
        project_limits.check_limits([*jobs, jobs[0]], [a], Limits(), 3)
    assert refused.value.details["retry_after_s"]


def test_a_supervisor_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for parent, count in ((None, 0), (os.getppid(), 0), (2**30, 1)):
        monkeypatch.setattr(health, "_SUPERVISOR", parent)
        assert len(health._warnings()) == count
