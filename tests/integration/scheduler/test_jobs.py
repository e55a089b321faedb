"""The job scheduler on a real Postgres and a real Redis, with workers that only say that they obey."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine, text, update
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from api.trainings import views
from lab.bench.told_again import replay
from scheduler.jobs.decider import Decider
from scheduler.jobs.lead import WentWrong
from scheduler.policy.jobs.knobs import SETTINGS
from scheduler.policy.jobs.own_rule import OwnJobRule
from smore.cli import job_words
from smore.domain.job import Action, JobRequest, JobState, Outcome
from smore.domain.job_rule import WaitingJob
from smore.messages.commands import DropCheckpoints, ForgetJob, StartJob, StopJob
from smore.postgres.catalog import Store
from smore.postgres.job_ledger import Fenced, JobLedger
from smore.postgres.jobs import Job, JobChange
from smore.postgres.rows import JobPairRow
from smore.process.observability import CONTROL
from smore.process.settings import JobsSettings, Settings
from smore.process.vault import Vault, make_key, seal_env
from smore.redis.fleet import Fleet
from tests.support.eventually import PATIENCE, eventually
from tests.support.job_stage import Stage


@pytest.fixture
def stage(config: Settings, redis_client: "redis.Redis", engine: Engine, tmp_path: Path) -> Stage:
    jobs = JobsSettings(record=tmp_path / "record", silent_s=60.0, checkpoints_days=30.0)
    return Stage(config.model_copy(update={"jobs": jobs, "home": tmp_path}), redis_client, engine)


def ended(outcome: str) -> float:
    return CONTROL.get_sample_value("smore_jobs_ended_total", {"outcome": outcome, "project": "default"}) or 0.0


def test_a_training_that_is_killed_is_counted_and_told_in_the_same_words(stage: Stage) -> None:
    stage.pass_by()
    # Before anything has ended, and before there is a training at all.
    assert CONTROL.get_sample_value("smore_jobs_ended_total", {"outcome": "killed", "project": "default"}) is not None
    first, job = stage.submit("first", count=4), stage.submit("doomed")
    stage.pass_by()
    later = stage.submit("later")
    stage.jobs.put_first("default", later.id)
    stage.pass_by()
    waiting = views.explanation(stage.job(later), stage.entry(later), [], [], [], leading=True)
    assert waiting.summary.startswith("An operator put it before all others that wait. ")
    before = ended("killed")
    stage.ranks.tell(first.id, state="ended", exit_code=0)
    for _ in range(3):
        stage.pass_by()
    stage.ranks.tell(job.id, state="ended", exit_code=-9)
    with capture_logs() as lines:
        stage.pass_by()
    [line] = [line for line in lines if line["event"] == "training over"]
    assert (line["log_level"], line["ended"], line["name"]) == ("warning", "killed by SIGKILL", "doomed")
    assert ended("killed") == before + 1
    over = views.explanation(stage.job(job), None, stage.jobs.decisions(job.id), [], [], leading=True)
    assert over.summary.startswith("It is over: killed by SIGKILL. ") and "failed" not in over.summary
    [attempt] = stage.jobs.attempts(job.id)
    assert job_words.attempt_end(attempt) == "killed by SIGKILL"
    moved = views.explanation(stage.job(later), None, stage.jobs.decisions(later.id), [], [], leading=True)
    assert moved.decisions[-1].message.startswith("An operator put it before all others that wait.")


def test_a_gang_starts_whole_and_the_next_one_waits_its_turn(stage: Stage, tmp_path: Path) -> None:
    make_key(stage.config.secrets_file)
    env = seal_env(Vault.open(stage.config.secrets_file), "default", "big", {"SEED": "7"})
    request = JobRequest(argv=["zoo.train"], count=2, secrets={"TOKEN": "HUB"}, restarts=1, iterations=100)
    big = stage.jobs.submit("default", "big", request, env)
    wide, next_ = stage.submit("wide", count=2), stage.submit("next", count=3)
    stage.pass_by()
    assert stage.states(big, wide, next_) == [JobState.STARTING, JobState.STARTING, JobState.QUEUED]
    told = [
        (gpu, command) for gpu, command in stage.ranks.heard if isinstance(command, StartJob) and command.id == big.id
    ]
    assert len(told) == 2
    for gpu, command in told:
        assert command.gpus[command.rank] == gpu
        assert (command.world, command.local_world, command.attempt) == (2, 2, 1), "on one node"
        asked = command.request
        assert (command.env, asked.secrets, asked.iterations) == ({"SEED": "7"}, {"TOKEN": "HUB"}, 100)
    queue = stage.queue.queue()
    assert queue is not None
    waiting = next(entry for entry in queue.jobs if entry.id == next_.id)
    assert (waiting.place, waiting.gpus, waiting.message != "") == (1, [], True)
    stage.pass_by()
    assert stage.states(big, wide) == [JobState.RUNNING, JobState.RUNNING]

    before = ended("succeeded")
    for job in (big, wide):
        stage.ranks.tell(job.id, state="ended", exit_code=0, iterations=100)
    stage.pass_by()
    assert stage.states(big, wide, next_) == [JobState.ENDED, JobState.ENDED, JobState.STARTING]
    assert (stage.job(big).outcome, stage.job(big).exit_code) == (Outcome.SUCCEEDED, 0)
    stage.pass_by()
    assert {id_ for _, id_, _ in stage.ranks.ranks} == {next_.id}, "recorded ends are forgotten"
    [attempt] = stage.jobs.attempts(big.id)
    assert (attempt.why, attempt.iterations) == ("succeeded", 100)
    assert ended("succeeded") == before + 2
    assert [decision.kind for decision in stage.jobs.decisions(big.id)] == ["finish", "start"]
    calls = list(replay(tmp_path / "record"))
    assert sum(len(placed) for placed, _ in calls) == 3
    assert all(placed == again for placed, again in calls)


def test_a_failed_training_is_started_again_from_its_checkpoint(stage: Stage) -> None:
    job = stage.submit("frail", count=2, restarts=1)
    stage.pass_by()
    stage.pass_by(100)
    stage.ranks.tell(job.id, iterations=40)
    first = stage.job(job).gpus[0]
    stage.ranks.tell(job.id, [first], checkpoint_iterations=30)
    stage.pass_by(10)
    stage.ranks.tell(job.id, [first], state="ended", exit_code=-9)
    stage.pass_by()
    # The other rank hears that it must end.
    assert stage.ranks.alive(job.id) == []
    stage.pass_by()
    waits = stage.job(job)
    assert (waits.state, waits.restarts, waits.iterations, waits.attempt) == (JobState.QUEUED, 1, 30, 1)
    assert waits.home == stage.ranks.gpus[first]
    [attempt] = stage.jobs.attempts(job.id)
    assert (attempt.why, attempt.exit_code, attempt.iterations) == ("failed", -9, 40)
    stage.pass_by(5)
    assert stage.states(job) == [JobState.QUEUED], "its back-off"
    stage.pass_by(10)
    again = stage.job(job)
    assert (again.state, again.attempt) == (JobState.STARTING, 2)
    assert {stage.ranks.gpus[gpu] for gpu in again.gpus} == {waits.home}
    # Its last checkpoint was written after the last report of the first attempt.
    stage.ranks.tell(job.id, again.gpus[:1], checkpoint_iterations=35)
    stage.pass_by(6)
    assert shown(stage, job) == (40, 35), "what the first attempt reached, and what the second one began with"
    stage.ranks.tell(job.id, iterations=3)
    stage.pass_by(6)
    assert shown(stage, job)[0] == 40
    stage.ranks.tell(job.id, iterations=7)
    assert shown(stage, job)[0] == 42
    stage.pass_by(6)
    stage.ranks.silent |= set(again.gpus)
    stage.new_lead()
    stage.pass_by(0)
    assert stage.jobs.attempts(job.id)[1].iterations == 42, "a new leader has heard nothing of its ranks yet"
    stage.ranks.silent.clear()
    stage.ranks.tell(job.id, state="ended", exit_code=1)
    stage.pass_by()
    stage.pass_by()
    over = stage.job(job)
    assert (over.state, over.outcome, over.exit_code) == (JobState.ENDED, Outcome.FAILED, 1)
    assert "restart" in stage.jobs.attempts(job.id)[1].message
    assert stage.jobs.restart("default", job.id).state is JobState.QUEUED
    stage.pass_by()
    assert (stage.job(job).state, stage.job(job).attempt) == (JobState.STARTING, 3)


def test_what_was_told_of_its_end_is_shown_as_long_as_its_first_attempt_is_its_last(stage: Stage) -> None:
    job = stage.submit("told", duration_s=600.0, restarts=1)
    stage.pass_by()
    stage.pass_by()
    told = views.shown(stage.job(job), [])
    assert told.started_at is not None and told.told_end_at is not None and told.told_late_at is not None
    assert (told.told_end_at - told.started_at).total_seconds() == 600
    assert told.told_late_at >= told.told_end_at and told.told_source == "declared"

    stage.ranks.tell(job.id, state="ended", exit_code=1)
    stage.pass_by()
    stage.pass_by()
    stage.pass_by(15)
    again = stage.job(job)
    assert again.attempt == 2 and views.shown(again, []).told_end_at is None


def shown(stage: Stage, job: Job) -> tuple[int, int]:
    """A job's iterations as the API shows them, and those that its last attempt began with."""
    ranks = [rank for (_, id_, _), rank in stage.ranks.ranks.items() if id_ == job.id]
    return views.shown(stage.job(job), ranks).iterations, stage.jobs.attempts(job.id)[-1].iterations_from


def test_a_silent_host_loses_its_trainings_and_a_rank_that_turns_up_later_ends(stage: Stage) -> None:
    job = stage.submit("far", count=2, restarts=2)
    stage.pass_by()
    stage.pass_by()
    node = stage.ranks.gpus[stage.job(job).gpus[0]]
    gone = {gpu for gpu, on in stage.ranks.gpus.items() if on == node}
    stage.ranks.silent |= gone
    for _ in range(11):
        stage.pass_by(5)
    assert stage.states(job) == [JobState.RUNNING]
    stage.new_lead()
    stage.pass_by(5)
    stage.pass_by(5)
    assert stage.states(job) == [JobState.QUEUED], "another leader goes on counting its silence"
    stage.pass_by(11)
    stage.pass_by()
    again = stage.job(job)
    assert (again.state, again.attempt) == (JobState.RUNNING, 2)
    assert not gone & set(again.gpus)
    stage.ranks.silent.clear()
    stage.pass_by()
    stage.pass_by()
    assert {attempt for _, attempt in stage.ranks.alive(job.id)} == {2}
    assert stage.jobs.attempts(job.id)[0].why == "lost"
    assert stage.states(job) == [JobState.RUNNING]


@pytest.mark.parametrize("forged", [2**63, 2**64 - 6, -(2**63) - 1])
def test_a_count_that_nobody_can_write_down_stops_no_other_training(stage: Stage, forged: int) -> None:
    evil, honest = stage.submit("evil"), stage.submit("honest")
    stage.pass_by()
    stage.pass_by()
    assert stage.states(evil, honest) == [JobState.RUNNING, JobState.RUNNING]
    stage.ranks.tell(evil.id, iterations=forged)
    stage.ranks.tell(honest.id, state="ended", exit_code=0)
    later = stage.submit("later")
    with pytest.raises(WentWrong, match=evil.id):
        stage.pass_by(10.0)
    assert stage.states(honest, later) == [JobState.ENDED, JobState.STARTING], "in that very round"
    # As its process does: the state is thrown away, and the training passed over for a while.
    stage.new_lead()
    stage.pass_by()
    stage.pass_by(10.0)
    assert stage.states(evil, later) == [JobState.RUNNING, JobState.RUNNING]
    assert "passed over" not in stage.queue.failing()
    stage.apart._until.clear()
    stage.ranks.tell(evil.id, iterations=7, state="ended", exit_code=0)
    stage.pass_by()
    assert stage.states(evil) == [JobState.ENDED], "it is decided about again"


def test_a_training_that_somebody_else_has_ended_stops_no_other(stage: Stage) -> None:
    gone, honest = stage.submit("gone"), stage.submit("honest")
    stage.pass_by()
    stage.pass_by()
    assert stage.states(gone, honest) == [JobState.RUNNING, JobState.RUNNING]
    stage.jobs.move(gone.id, Action.END, JobChange(exit_code=0))
    stage.ranks.tell(honest.id, state="ended", exit_code=0)
    later = stage.submit("later")
    with pytest.raises(WentWrong, match=gone.id):
        stage.pass_by(10.0)
    assert stage.states(honest, later) == [JobState.ENDED, JobState.STARTING], "in that very round"


def test_a_report_that_cannot_be_read_stops_no_other_training(stage: Stage, redis_client: "redis.Redis") -> None:
    job = stage.submit("t")
    stage.ranks.silent.add("a0")
    redis_client.sadd(f"{stage.config.redis.prefix}gpus", "a0")
    stage.ranks.beat()
    redis_client.set(f"{stage.config.redis.prefix}gpu:a0", b'{"gpu": "a0", "jobs": null}')
    reports = Fleet(redis_client, stage.config.redis.prefix).reports()
    assert [report.gpu for report in reports] == ["a1", "b0", "b1"]
    stage.lead.round(stage.now, stage.at)
    stage.ranks.beat()
    assert stage.states(job) == [JobState.STARTING]


def test_a_leader_that_dies_neither_loses_nor_doubles(stage: Stage) -> None:
    jobs = [stage.submit(f"job-{number}") for number in range(6)]
    stage.pass_by()
    old = stage.lead
    stage.ranks.deaf |= set(stage.ranks.gpus)
    stage.new_lead()
    stage.ranks.tell(jobs[0].id, state="ended", exit_code=0)
    stage.ranks.beat()
    with pytest.raises(Fenced):
        old.round(stage.now + 1, stage.at + 1)
    stage.ranks.deaf.clear()
    for _ in range(4):
        stage.pass_by(3)
        for job in jobs:
            if stage.ranks.alive(job.id):
                stage.ranks.tell(job.id, state="ended", exit_code=0)
    stage.pass_by()
    assert stage.states(*jobs) == [JobState.ENDED] * 6
    assert [len(stage.jobs.attempts(job.id)) for job in jobs] == [1] * 6
    assert stage.ranks.alive(jobs[0].id) == []


def test_a_guest_whose_leader_died_before_it_told_the_worker_is_started_as_a_guest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy, light = "resnet50/cpu/training/8", "deepfm/cpu/training/8"
    stage.publish({(heavy, light): 0.1, (light, heavy): 0.2})
    hosts = [
        stage.submit(f"host-{n}", workload=heavy, duration_s=4000.0, memory_mib=256.0, share=0.5) for n in range(4)
    ]
    stage.pass_by()
    # One takes more than it said: beside it there is no room.
    [full] = stage.job(hosts[0]).gpus
    stage.ranks.tell(hosts[0].id, memory_mib=1e9, iterations=10, solo_s=1.0, solo_count=10)
    stage.pass_by(6.0)
    guest = stage.submit("guest", workload=light, duration_s=600.0, memory_mib=256.0, share=0.5)

    def dies(*_: object) -> None:
        raise redis.ConnectionError

    with monkeypatch.context() as patched:
        patched.setattr(Fleet, "send", dies)
        with pytest.raises(redis.ConnectionError):
            stage.pass_by()
    assert stage.states(guest) == [JobState.STARTING]
    stage.new_lead()
    stage.pass_by()
    told = next(command for _, command in stage.ranks.heard if isinstance(command, StartJob) and command.id == guest.id)
    [host] = [pair.other for pair in stage.jobs.pairs(guest.id)]
    assert told.hosts == [host]
    assert told.gpus != [full]


def test_two_trainings_share_a_gpu_instance_and_are_measured(stage: Stage, tmp_path: Path) -> None:
    heavy, light = "resnet50/cpu/training/8", "deepfm/cpu/training/8"
    stage.publish({(heavy, light): 0.1, (light, heavy): 0.2})
    shared = {"share": 0.5, "memory_mib": 256.0}
    hosts = [stage.submit(f"host-{n}", workload=heavy, duration_s=4000.0, **shared) for n in range(4)]
    stage.pass_by()
    stage.pass_by()
    guest = stage.submit("guest", workload=light, duration_s=600.0, **shared)
    alone = stage.submit("alone", workload=light, duration_s=700.0, memory_mib=256.0)
    stage.pass_by()
    assert stage.states(guest, alone) == [JobState.STARTING, JobState.QUEUED]
    told = next(command for _, command in stage.ranks.heard if isinstance(command, StartJob) and command.id == guest.id)
    [host] = [job for job in hosts if job.id in told.hosts]
    assert stage.ask(workload=light, duration_s=500.0, **shared).beside != []
    assert stage.ask(workload=light, duration_s=500.0).beside == []
    assert (told.request.share, told.micro_batches, told.gpus) == (0.5, 1, stage.job(host).gpus)
    stage.pass_by()
    before = stage.entry(guest)
    assert (before.beside, before.guest, stage.entry(host).guest) == ([host.id], True, False)
    # The next leader knows who was there first, and what has been measured since.
    stage.ranks.tell(host.id, alone_s=1.0, alone_n=100, alone_se=0.01)
    stage.new_lead()
    stage.pass_by()
    stage.measure(host, guest, 1.15)
    stage.measure(guest, host, 1.3)
    stage.pass_by(70.0)
    stage.pass_by()
    after = stage.entry(guest)
    assert (after.beside, after.guest) == ([host.id], True)
    assert "measured" in stage.entry(host).message and "expected" in after.message, "its time alone is not known"
    [of_host] = stage.jobs.pairs(host.id)
    assert (of_host.guest, of_host.predicted, of_host.measured) == (False, pytest.approx(1.1), pytest.approx(1.15))
    assert of_host.loss_low is not None and of_host.loss_high is not None
    assert of_host.loss_low < 0.15 < of_host.loss_high

    worse = (of_host.device, heavy, light)
    assert JobLedger(stage.engine).worse_since(0.0) == set(), "its owner allows half as much again"
    with Session(stage.engine) as session:
        session.execute(update(JobPairRow).where(JobPairRow.job == host.id).values(measured=1.6))
        session.commit()
    assert JobLedger(stage.engine).worse_since(0.0) == {worse}
    assert JobLedger(stage.engine).worse_since(time.time() + 1e6) == set()

    stage.ranks.tell(host.id, state="ended", exit_code=0)
    stage.pass_by()
    stage.pass_by()
    assert stage.states(host, guest) == [JobState.ENDED, JobState.RUNNING]
    assert stage.job(host).lost_s > 5.0
    assert (stage.entry(guest).beside, stage.entry(guest).guest) == ([], False)
    # Alone at last, it shows what it lost before.
    stage.ranks.tell(guest.id, alone_s=1.0, alone_n=100, alone_se=0.01, beside=[], beside_since=0.0)
    stage.pass_by(6.0)
    [of_guest] = stage.jobs.pairs(guest.id)
    assert (of_guest.guest, of_guest.loss) == (True, pytest.approx(0.3))
    assert of_guest.until_at is not None
    calls = list(replay(tmp_path / "record"))
    assert sum(len(placed) for placed, _ in calls) >= 5
    assert all(placed == again for placed, again in calls)


def test_where_no_profile_was_imported_the_table_tells_what_iterations_take_alone(stage: Stage) -> None:
    heavy, light = "resnet50/cpu/training/8", "deepfm/cpu/training/8"
    stage.publish({(heavy, light): 0.1, (light, heavy): 0.2}, {heavy: 4.0, light: 1.0})
    shared = {"share": 0.5, "memory_mib": 256.0}
    host, *_ = [stage.submit(f"host-{n}", workload=heavy, iterations=1000, **shared) for n in range(4)]
    stage.pass_by()
    assert (stage.entry(host).source, stage.entry(host).length_s) == ("profile", pytest.approx(4000.0, rel=0.01))
    guest = stage.submit("guest", workload=light, iterations=600, **shared)
    stage.pass_by()
    stage.pass_by()
    [beside] = stage.entry(guest).beside
    stage.ranks.tell(guest.id, beside=[beside], beside_since=stage.now, beside_s=1.25, beside_n=60, beside_se=0.01)
    stage.pass_by(70.0)
    stage.pass_by(6.0)
    [pair] = stage.jobs.pairs(guest.id)
    assert (pair.measured, pair.loss, pair.alone_s) == (pytest.approx(1.25), pytest.approx(0.25), 1.0)
    assert pair.loss_low is None, "it was never alone itself"


def test_what_iterations_took_in_former_runs_is_known_by_the_number_of_gpu_instances(
    stage: Stage, engine: Engine
) -> None:
    """A profile is of one GPU instance: of a gang the runs of gangs tell."""
    heavy = "resnet50/cpu/training/8"
    stage.publish({(heavy, heavy): 0.1}, {heavy: 4.0})
    stage.pass_by()
    assert stage.submit("gang", workload=heavy, iterations=100, count=2)
    gang = stage.submit("night", workload=heavy, iterations=100, count=2)
    stage.pass_by()
    assert stage.entry(gang).source == "assumed"
    stage.pass_by()
    stage.ranks.tell(gang.id, iterations=100, solo_s=7.0, solo_count=20)
    stage.pass_by(6)
    stage.ranks.tell(gang.id, state="ended", exit_code=0)
    stage.pass_by()
    with engine.begin() as connection:
        # The test moves the clock of the job scheduler, not that of Postgres.
        connection.execute(
            text("UPDATE job_attempts SET up_at = ended_at - interval '700 s' WHERE job = :job"), {"job": gang.id}
        )
    again, one = (stage.submit(f"again-{n}", workload=heavy, iterations=50, count=n) for n in (2, 1))
    stage.pass_by()
    assert (stage.entry(again).source, stage.entry(again).length_s) == ("former", pytest.approx(350.0, rel=0.01))
    assert (stage.entry(one).source, stage.entry(one).length_s) == ("profile", pytest.approx(200.0, rel=0.01))


def test_a_guest_that_outgrows_what_it_said_ends_and_comes_back_alone(stage: Stage) -> None:
    heavy, light = "resnet50/cpu/training/8", "deepfm/cpu/training/8"
    stage.publish({(heavy, light): 0.1, (light, heavy): 0.2})
    hosts = [
        stage.submit(f"host-{n}", workload=heavy, duration_s=4000.0, memory_mib=256.0, share=0.5) for n in range(4)
    ]
    stage.pass_by()
    guest = stage.submit("guest", workload=light, duration_s=600.0, memory_mib=256.0, share=0.5)
    stage.pass_by()
    stage.pass_by()
    assert stage.states(guest) == [JobState.RUNNING]
    stage.ranks.tell(guest.id, guest=True, memory_mib=400.0)
    stage.pass_by()
    stage.pass_by()
    back = stage.job(guest)
    assert (back.state, back.restarts, back.request.share) == (JobState.QUEUED, 0, 0.0)
    assert back.request.memory_mib == 400.0
    [attempt] = stage.jobs.attempts(guest.id)
    assert attempt.why == "outgrown"
    assert "400 MiB" in attempt.message
    assert stage.states(*hosts) == [JobState.RUNNING] * 4
    stage.new_lead()
    stage.pass_by()
    assert stage.states(guest) == [JobState.QUEUED], "nobody else is beside it any more, and no GPU instance is free"
    stage.ranks.tell(hosts[0].id, state="ended", exit_code=0)
    stage.pass_by()
    stage.pass_by()
    assert stage.states(guest) == [JobState.RUNNING]


def test_what_owners_and_operators_say_is_heard(stage: Stage, store: Store) -> None:
    running = [stage.submit(f"r{number}") for number in range(4)]
    stage.pass_by()
    stage.pass_by()
    first, held, stopped = stage.submit("first"), stage.submit("held"), stage.submit("stopped")
    stage.pass_by()
    stage.jobs.put_first("default", held.id)
    stage.jobs.hold("default", first.id)
    assert stage.jobs.stop("default", stopped.id).outcome is Outcome.STOPPED
    stage.jobs.stop("default", running[0].id)
    stage.pass_by()
    assert StopJob(version=1, id=running[0].id, attempt=1) in [command for _, command in stage.ranks.heard]
    stage.pass_by()
    over = stage.job(running[0])
    assert (over.state, over.outcome, over.exit_code) == (JobState.ENDED, Outcome.STOPPED, -15)
    assert stage.states(held, first) == [JobState.STARTING, JobState.HELD]
    stage.jobs.release("default", first.id)
    stage.ranks.tell(running[1].id, state="ended", exit_code=0)
    stage.pass_by()
    assert stage.states(first, stopped) == [JobState.STARTING, JobState.ENDED]


def test_ranks_that_do_not_come_up_end_the_attempt(stage: Stage) -> None:
    stage.ranks.deaf |= {"b0", "b1"}
    job = stage.submit("half", gpus=["a0", "b0"])
    for _ in range(14):
        stage.pass_by(5)
    stage.ranks.deaf.clear()
    stage.pass_by()
    stage.pass_by(6)
    over = stage.job(job)
    assert (over.state, over.outcome) == (JobState.ENDED, Outcome.REFUSED)
    assert "b0" in over.reason
    for _ in range(3):
        stage.pass_by(6)
    assert stage.ranks.ranks == {}, "a start that was read late is ended and forgotten"
    assert any(isinstance(command, ForgetJob) for _, command in stage.ranks.heard)


def test_what_runs_elsewhere_occupies_its_gpu_instance_and_is_lost_in_silence(stage: Stage) -> None:
    attached = stage.jobs.attach("default", "theirs", "a0", source="tracked", group="g", rank="r")
    stage.ranks.ranks["a0", attached.id, 0] = stage.ranks._began(
        StartJob(version=1, id=attached.id, project="default", name="theirs", request=JobRequest(), env={})
    )
    jobs = [stage.submit(f"j{number}") for number in range(4)]
    stage.pass_by()
    assert stage.states(attached) == [JobState.RUNNING]
    assert sorted(state.value for state in stage.states(*jobs)) == ["queued", "starting", "starting", "starting"]
    stage.ranks.silent.add("a0")
    for _ in range(15):
        stage.pass_by(5)
    assert stage.states(attached) == [JobState.LOST]


def test_a_dry_run_and_a_clock_that_is_set_back(stage: Stage) -> None:
    job = stage.submit("here")
    stage.pass_by()
    stage.pass_by()
    stage.now -= 7200
    waits = stage.submit("wide", count=4)
    stage.pass_by()
    queue = stage.queue.queue()
    assert queue is not None
    assert {entry.id: entry.waited_s >= 0 for entry in queue.jobs} == {job.id: True, waits.id: True}
    stage.now -= 7200
    stage.pass_by(60)
    stage.new_lead()
    stage.pass_by(60)
    queue = stage.queue.queue()
    assert queue is not None
    [waited_s] = [entry.waited_s for entry in queue.jobs if entry.id == waits.id]
    assert 119 <= waited_s < 7200, "another leader forgets nothing of it, and adds nothing"
    assert stage.jobs.move(job.id, Action.RUN) is None, "it runs already"

    assert stage.queue.lead("t", 60.0)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(stage.queue.places, waits.id, PATIENCE)
        while not asking.done():
            stage.pass_by(0)
        stands = {place.gpu: place.refused for place in asking.result()}
    assert stands == {gpu: "busy" if gpu in stage.job(job).gpus else None for gpu in ("a0", "a1", "b0", "b1")}

    ask = stage.ask
    assert set(ask(count=3).gpus) == {"a0", "a1", "b0", "b1"} - set(stage.job(job).gpus)
    late = ask(count=4).expected
    assert late is not None
    assert (late.gpus, late.start_at is not None, late.message != "") == ([], True, True)
    assert (ask(count=5).field, ask(count=5).largest) == ("count", 4)
    assert (ask(memory_mib=2048).field, ask(memory_mib=2048).largest) == ("memory", 2048)
    assert stage.states(waits) == [JobState.QUEUED]


def test_checkpoints_go_when_their_job_is_over_for_long(stage: Stage, engine: Engine) -> None:
    names = ("old", "young", "running")
    jobs = {name: stage.submit(name) for name in names}
    stage.pass_by()
    stage.ranks.tell(jobs["old"].id, checkpoint_iterations=5)
    stage.pass_by(10)
    for name in ("old", "young"):
        stage.ranks.tell(jobs[name].id, state="ended", exit_code=0)
    stage.pass_by()
    with engine.begin() as connection:
        long_ago = text("UPDATE jobs SET ended_at = now() - interval '31 days' WHERE id = :id")
        connection.execute(long_ago, {"id": jobs["old"].id})
    stage.ranks.aged = {"b1": [*(job.id for job in jobs.values()), "of-another-platform"]}
    stage.pass_by(100)
    stage.pass_by()
    dropped = [(gpu, command.id) for gpu, command in stage.ranks.heard if isinstance(command, DropCheckpoints)]
    assert dropped == [("b1", jobs["old"].id)]
    again = stage.jobs.restart("default", jobs["old"].id)
    assert (again.iterations, again.home) == (0, ""), "it may begin anywhere, and begins anew"


class LongNamesFirst:
    def order(self, job: WaitingJob) -> float:
        return -{"first": 5, "b": 1, "bbb": 3}[job.name]


def test_a_rule_of_ones_own_leads_until_it_fails(stage: Stage, redis_client: "redis.Redis") -> None:
    """Then the product's goes on with the same trainings."""

    def failures() -> float:
        return CONTROL.get_sample_value("smore_job_rule_failures_total") or 0.0

    def runs(job: Job) -> None:
        def running() -> bool:
            stage.ranks.beat()
            return stage.states(job) == [JobState.RUNNING]

        eventually(running, what=f"{job.name} runs")

    def setting() -> str:
        queue = stage.queue.queue()
        return queue.setting if queue is not None else ""

    before, stop = failures(), threading.Event()
    own = OwnJobRule("mine:Mine", LongNamesFirst())  # type: ignore[arg-type]
    knobs = replace(SETTINGS["smore-jobs"], name="mine:Mine", rule=own)
    stage.ranks.beat()
    thread = threading.Thread(target=Decider(redis_client, stage.engine, stage.config, stop, knobs).run, daemon=True)
    thread.start()
    try:
        first, earlier, later = (stage.submit(name, count=4) for name in ("first", "b", "bbb"))
        runs(first)
        assert setting() == "mine:Mine"
        stage.ranks.tell(first.id, state="ended", exit_code=0)
        runs(later)
        unknown = stage.submit("unknown", count=4)
        eventually(lambda: setting() == "smore-jobs", what="smore-jobs decides")
        assert failures() == before + 1
        stage.ranks.tell(later.id, state="ended", exit_code=0)
        runs(earlier)
        assert stage.states(unknown) == [JobState.QUEUED]
    finally:
        stop.set()
        thread.join(5 * PATIENCE)
    assert not thread.is_alive()
