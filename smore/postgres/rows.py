"""
The tables of Postgres.

Four parts. The **catalog** (projects, api_keys, functions, revisions, jobs, job_*) is the truth about what exists;
``catalog.py`` and ``jobs.py`` are its only writers. The **audit** says who changed what; ``audit.py`` writes each row once.
**Measured rows and predictors** (profile_rows, predictors) belong to ``predictors.py``. The **history** (all others) is
what the event stream said; ``history/recorder.py`` is its only writer. It has no foreign keys, because it is written in
bulk and no row may wait for another.

The sums of the history are in ``sums.py``. A new database gets these tables; ``migrations/`` changes older
ones, and a test holds the result equal to these.
"""

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

from sqlalchemy import (
    ARRAY,
    DDL,
    BigInteger,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    ScalarSelect,
    column,
    event,
    func,
    literal_column,
    select,
    table,
    text,
)
from sqlalchemy.orm import Mapped, Session, column_property, mapped_column

from smore.domain.errors import NotFound
from smore.domain.function import RevisionState
from smore.domain.invocation import State
from smore.domain.job import JobState, Outcome, PromiseState
from smore.domain.predictor import PredictorState
from smore.domain.spelling import nothing_named
from smore.postgres import sums as sums  # its tables belong to the same metadata
from smore.postgres.base import Base as Base

_Value = TypeVar("_Value")
_MOMENTS: Final = (datetime, datetime | None)

# The catalog


class ProjectRow(Base):
    __tablename__ = "projects"

    name: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    #: See smore/domain/limits.py; what is not named is not limited.
    limits: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))


class ApiKeyRow(Base):
    """``digest``: see :func:`smore.domain.access.read_token`."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.name"), index=True)
    name: Mapped[str]
    digest: Mapped[str]
    scopes: Mapped[list[str]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    revoked_at: Mapped[datetime | None]


class FunctionRow(Base):
    """
    ``revision`` takes the traffic, 0 = none yet. A deleted function keeps its row, so that its revisions continue to count
    if the name is registered again.
    """

    __tablename__ = "functions"

    project: Mapped[str] = mapped_column(ForeignKey("projects.name"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(server_default="0")
    deadline_s: Mapped[float | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())
    deleted_at: Mapped[datetime | None]


class RevisionRow(Base):
    """
    ``declared``: the spec as it was registered; ``spec``: the same with what the canary measured; ``log``: why it failed.
    """

    __tablename__ = "revisions"
    __table_args__ = (ForeignKeyConstraint(["project", "function"], ["functions.project", "functions.name"]),)

    project: Mapped[str] = mapped_column(primary_key=True)
    function: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[RevisionState]
    declared: Mapped[dict[str, Any]]
    spec: Mapped[dict[str, Any]]
    measured: Mapped[dict[str, Any] | None]
    log: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    settled_at: Mapped[datetime | None]


def _of_attempts(name: str) -> ScalarSelect[int]:
    """The largest of a column of :class:`JobAttemptRow` over the attempts of a :class:`JobRow`, 0 = there is none."""
    attempts = table("job_attempts", column("job"), column(name, BigInteger))
    largest = func.coalesce(func.max(attempts.c[name]), 0)
    return select(largest).where(attempts.c.job == literal_column("jobs.id")).scalar_subquery()


class JobRow(Base):
    """
    A serverful job. ``spec``: what its owner asks for (:class:`smore.domain.job.JobRequest`); ``env``: its variables,
    sealed (smore/process/vault.py). ``gpus``: where it is, or was when it ended. ``source``: started, tracked or attached;
    ``rank_group`` and ``ranks`` (GPU instance → process) of one that was attached.

    ``state`` is written by ``Store.jobs.move`` alone. ``asked``: its owner stopped it; ``reason``: why the platform
    refused it or let it go, or ended it. Times in seconds: ``waited_s`` in the queue and ``ran_s`` on GPU instances,
    both until the last change; ``not_before``: the end of its back-off. ``moved``: its place among operators' orders, 0 =
    none. ``lost_s``: what of ``ran_s`` other trainings beside it cost it. ``iterations`` that its last complete checkpoint
    holds, which lies on the node ``home`` ('' = every node sees it). ``reached``: the most iterations that an attempt has
    come to; ``began_with``: what the last attempt began with. ``estimate_*``: what was expected of its length when it
    started last. ``past_budgets``: pairs of the moment (epoch seconds) until which a
    budget held, and that budget, the first one first. ``ratios``: of one that succeeded, source of a length → what it really
    took over what that source told. ``request_key``: the Idempotency-Key of the request that made it, and
    ``request_digest``: of its body.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "project", "id"),
        Index(
            "ix_jobs_request_key",
            "project",
            "request_key",
            unique=True,
            postgresql_where=text("request_key IS NOT NULL"),
        ),
        Index("ix_jobs_unfinished", "id", postgresql_where=text("state <> 'ended' AND state <> 'lost'")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.name"))
    name: Mapped[str]
    argv: Mapped[list[str]]
    gpus: Mapped[list[str]]
    state: Mapped[JobState]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    exit_code: Mapped[int | None]
    spec: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    env: Mapped[bytes | None]
    source: Mapped[str] = mapped_column(server_default="started")
    workload: Mapped[str] = mapped_column(server_default="")
    budget: Mapped[float] = mapped_column(server_default=text("0.1"))
    past_budgets: Mapped[list[Any]] = mapped_column(server_default=text("'[]'::jsonb"))
    memory_mib: Mapped[float] = mapped_column(server_default=text("0"))
    rank_group: Mapped[str] = mapped_column(server_default="")
    ranks: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    asked: Mapped[bool] = mapped_column(server_default=text("false"))
    reason: Mapped[str] = mapped_column(server_default="")
    outcome: Mapped[Outcome | None]
    attempt: Mapped[int] = mapped_column(server_default=text("0"))
    queued_at: Mapped[datetime | None]
    waited_s: Mapped[float] = mapped_column(server_default=text("0"))
    ran_s: Mapped[float] = mapped_column(server_default=text("0"))
    lost_s: Mapped[float] = mapped_column(server_default=text("0"))
    not_before: Mapped[datetime | None]
    moved: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    restarts: Mapped[int] = mapped_column(server_default=text("0"))
    short_ends: Mapped[int] = mapped_column(server_default=text("0"))
    iterations: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    home: Mapped[str] = mapped_column(server_default="")
    reached: Mapped[int] = column_property(_of_attempts("iterations"))
    began_with: Mapped[int] = column_property(_of_attempts("iterations_from"))
    estimate_s: Mapped[float | None]
    estimate_90_s: Mapped[float | None]
    estimate_source: Mapped[str] = mapped_column(server_default="")
    ratios: Mapped[dict[str, Any] | None]
    request_key: Mapped[str | None]
    request_digest: Mapped[str | None]


class JobAttemptRow(Base):
    """
    An attempt of a job on ``gpus``, the rank of each its place there. ``up_at``: when all ranks were reported;
    ``ended_at``: when none of them lived any more. ``why`` it ended ('' = it goes on) and in words ``message``.
    ``iterations_from`` and ``iterations``: of the job, when it began and at the last report. ``micro_batches``: in how many
    parts it runs its batch; ``lost_s``: what other trainings beside it cost it, seconds.
    """

    __tablename__ = "job_attempts"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    gpus: Mapped[list[str]]
    nodes: Mapped[list[str]]
    started_at: Mapped[datetime]
    up_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    why: Mapped[str] = mapped_column(server_default="")
    message: Mapped[str] = mapped_column(server_default="")
    exit_code: Mapped[int | None]
    iterations_from: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    iterations: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    micro_batches: Mapped[int] = mapped_column(server_default=text("1"))
    lost_s: Mapped[float] = mapped_column(server_default=text("0"))


class JobPairRow(Base):
    """
    What an attempt of a job lost to one of another job on the same ``gpus``, from when that was placed there until one of the
    two ended (null = both go on). Each pair has two rows, one for either. ``guest``: the job came to the other one.

    Slowdowns (an iteration takes so many times as long as alone; null = not known): ``predicted``, and above
    ``predicted_90`` in one case of ten; ``measured`` over the first minute in which both made iterations. ``loss`` with its
    95 % interval: over all of the pair's time, a fraction of the iteration time alone. ``alone_s``, ``beside_s``: mean
    iteration times that these rest on, seconds. ``held_s``: how long the job was held back for the other's sake.
    """

    __tablename__ = "job_pairs"
    __table_args__ = (Index(None, "other"),)

    job: Mapped[str] = mapped_column(
        ForeignKey("jobs.id", name="fk_job_pairs_job_jobs", ondelete="CASCADE"), primary_key=True
    )
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    other: Mapped[str] = mapped_column(
        ForeignKey("jobs.id", name="fk_job_pairs_other_jobs", ondelete="CASCADE"), primary_key=True
    )
    other_attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    guest: Mapped[bool]
    gpus: Mapped[list[str]]
    device: Mapped[str]
    sharing_mode: Mapped[str]
    from_at: Mapped[datetime]
    until_at: Mapped[datetime | None]
    predicted: Mapped[float | None]
    predicted_90: Mapped[float | None]
    measured: Mapped[float | None]
    loss: Mapped[float | None]
    loss_low: Mapped[float | None]
    loss_high: Mapped[float | None]
    alone_s: Mapped[float | None]
    beside_s: Mapped[float | None]
    held_s: Mapped[float] = mapped_column(server_default=text("0"))


class JobDecisionRow(Base):
    """
    What the job scheduler decided of a job, in the transaction that changed the job. ``token``: of the leader that did;
    ``kind``: start, stop, requeue or finish; ``reasons`` of a start, see scheduler/policy/jobs/decisions.py.
    """

    __tablename__ = "job_decisions"
    __table_args__ = (Index(None, "job", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    token: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str]
    gpus: Mapped[list[str]]
    message: Mapped[str] = mapped_column(server_default="")
    reasons: Mapped[dict[str, Any] | None]


class JobPromiseRow(Base):
    """
    What was decided of a job that asked for a promise: its moment ``by``, None = nothing was promised, and ``why`` and
    ``message`` say why; the latest start that went with it, and the ``earliest`` moment that would have been promised. ``why`` of
    an ``outcome`` that is bad: in a word, what was the cause.
    """

    __tablename__ = "job_promises"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    by: Mapped[datetime | None]
    told_at: Mapped[datetime] = mapped_column(server_default=func.now())
    latest_start_at: Mapped[datetime | None]
    earliest: Mapped[datetime | None]
    outcome: Mapped[PromiseState]
    why: Mapped[str] = mapped_column(server_default="")
    message: Mapped[str] = mapped_column(server_default="")


class JobLeaderRow(Base):
    """The one row of the job scheduler's fencing token: who does not hold ``token`` changes nothing."""

    __tablename__ = "job_leader"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    token: Mapped[int] = mapped_column(BigInteger)


event.listen(JobLeaderRow.__table__, "after_create", DDL("INSERT INTO job_leader (id, token) VALUES (1, 0)"))  # type: ignore[no-untyped-call]


class AuditRow(Base):
    """
    One change, written once by ``smore/postgres/audit.py``. The database refuses to update or delete it.

    ``project``: of what was changed, not of the key. ``before`` and ``after``: the part that changed, null = it was not
    there.
    """

    __tablename__ = "audit"
    __table_args__ = (Index(None, "project", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    project: Mapped[str]
    key_id: Mapped[str]
    #: Method and path template, for instance ``PUT /v1/functions/{function}/slo``.
    route: Mapped[str]
    target: Mapped[str]
    before: Mapped[dict[str, Any] | None]
    after: Mapped[dict[str, Any] | None]
    request_id: Mapped[str]
    #: The session of a browser that made it (smore/redis/sessions.py: named), null = the key itself.
    session: Mapped[str | None]


# For each row and for TRUNCATE, which looks at no row. Who owns the table can drop a trigger: this stops mistakes and
# stolen queries.
_REFUSE: Final = """
CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the audit is append-only: %% is refused', TG_OP;
END
$$;
CREATE TRIGGER audit_rows BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_append_only();
CREATE TRIGGER audit_whole BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()
"""
event.listen(AuditRow.__table__, "after_create", DDL(_REFUSE))  # type: ignore[no-untyped-call]


class SecretRow(Base):
    """``sealed``: see smore/process/vault.py."""

    __tablename__ = "secrets"

    project: Mapped[str] = mapped_column(ForeignKey("projects.name"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    sealed: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())


# Measured rows, predictors, imported traces


class ProfileRow(Base):
    """
    A measured row (ml/rows.py, ml/learn/live.py). ``id``: SHA-256 of its canonical JSON, so that the same row is
    stored once.

    ``kind``: the document's ``row``; ``at``: when it was measured; ``recorded_at``: when it was stored.
    """

    __tablename__ = "profile_rows"

    id: Mapped[str] = mapped_column(primary_key=True)
    device: Mapped[str]
    sharing_mode: Mapped[str]
    kind: Mapped[str]
    at: Mapped[datetime]
    #: ``imported`` or ``live``.
    source: Mapped[str]
    document: Mapped[dict[str, Any]]
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.now())


class PredictorRow(Base):
    """
    A set of fitted predictors and the table made from them: one row for every attempt.

    ``reason``: why it is in its state, in words; ``manifest``: counts, errors and calibration (ml/learn/learning.py);
    ``table``: the published blob (smore/messages/degradation.py); ``artifact``: a zip of the saved predictors. Both blobs
    are missing where it was not published.
    """

    __tablename__ = "predictors"
    __table_args__ = (
        Index("ix_predictors_champion", "state", unique=True, postgresql_where=text("state = 'champion'")),
    )

    version: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    state: Mapped[PredictorState]
    reason: Mapped[str] = mapped_column(server_default="")
    manifest: Mapped[dict[str, Any]]
    table: Mapped[bytes | None]
    artifact: Mapped[bytes | None]


class TraceRow(Base):
    """
    Arrivals that were recorded elsewhere and imported, for forecasters alone (``smore/postgres/arrivals.py`` is the only
    writer). ``name``: of the file; ``digest``: SHA-256 of its bytes. They count as arrivals in [from_at, until_at).
    """

    __tablename__ = "traces"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.name"), index=True)
    name: Mapped[str]
    digest: Mapped[str]
    from_at: Mapped[datetime]
    until_at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class TraceCountRow(Base):
    """
    ``counts``: arrivals of ``function`` in each minute from the trace's ``from_at`` on; ``source``: its name in the file.
    """

    __tablename__ = "trace_counts"

    trace: Mapped[int] = mapped_column(ForeignKey("traces.id", ondelete="CASCADE"), primary_key=True)
    function: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str]
    counts: Mapped[list[int]] = mapped_column(ARRAY(Integer))


# The history

#: Vacuum a large table once a fiftieth of it has changed, not a fifth, so that space which retention freed is soon used.
VACUUM: Final = {"autovacuum_vacuum_scale_factor": 0.02, "autovacuum_vacuum_insert_scale_factor": 0.02}


class InvocationRow(Base):
    """
    An id begins with its time, so the newest rows are last in every index. A newer version may write other causes.
    ``gate_s``: the earliest feasible finish that the admission gate compared with the deadline, seconds from arrival; null
    = none was published.
    """

    __tablename__ = "invocations"
    __table_args__ = (
        Index(None, "project", "id"),
        Index(None, "project", "function", "id"),
        # For lists of one state. Nearly all invocations succeed, so a list of those needs no index of its own.
        Index("ix_invocations_unsuccessful", "project", "state", "id", postgresql_where=text("state <> 'succeeded'")),
        Index(
            "ix_invocations_unsuccessful_function",
            "project",
            "function",
            "state",
            "id",
            postgresql_where=text("state <> 'succeeded'"),
        ),
        # No BRIN: once retention has freed space, new rows are stored between old ones.
        Index(None, "arrival_at"),
        {"postgresql_with": VACUUM},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str]
    function: Mapped[str]
    revision: Mapped[int]
    state: Mapped[State]
    cause: Mapped[str]
    attempt: Mapped[int]
    starts: Mapped[int]
    arrival_at: Mapped[datetime]
    deadline_at: Mapped[datetime]
    claimed_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    gpu: Mapped[str]
    rows: Mapped[int]
    key_id: Mapped[str]
    trace: Mapped[str]
    gate_s: Mapped[float | None]


class ExecutionRow(Base):
    """
    One attempt on a GPU instance. ``state``: dispatched, running, a final state, or queued = it returned to the queue
    (``cause`` says why).

    ``load_s``: seconds by phase of a cold start; ``batch``: invocations that ran together; ``co_runners``: functions, and
    ``jobs``: serverful jobs on the GPU instance meanwhile; ``predicted``: the decision's predictions for this GPU
    instance, zeros left out; ``unforeseen``: why no instance stood ready, for a cold start
    (scheduler/policy/prewarm/status.py: ColdStartReason).
    """

    __tablename__ = "executions"
    __table_args__ = (
        Index(None, "finished_at"),
        {"postgresql_with": VACUUM},
    )

    invocation: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    project: Mapped[str]
    function: Mapped[str]
    gpu: Mapped[str]
    decision_id: Mapped[int | None] = mapped_column(BigInteger)
    state: Mapped[State]
    cause: Mapped[str]
    cold: Mapped[bool | None]
    load_s: Mapped[dict[str, Any] | None]
    run_s: Mapped[float | None]
    batch: Mapped[int | None]
    rows: Mapped[int | None]
    co_runners: Mapped[list[Any] | None]
    jobs: Mapped[list[Any] | None]
    predicted: Mapped[dict[str, Any] | None]
    device: Mapped[str | None]
    sharing_mode: Mapped[str | None]
    unforeseen: Mapped[str | None]
    claimed_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class DecisionRow(Base):
    """
    A dispatch and its reasons, packed (smore/messages/reasons.py). ``id``: that of its stream entry, milliseconds << 20 |
    sequence; the executions name it.
    """

    __tablename__ = "decisions"
    __table_args__ = ({"postgresql_with": VACUUM},)

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    project: Mapped[str]
    function: Mapped[str]
    gpu: Mapped[str]
    at: Mapped[datetime]
    decision: Mapped[dict[str, Any]]


class JobWindowRow(Base):
    """
    A serverful job's iterations as last reported in the ten seconds from ``at``: means over the last ``window_s``, and
    their counts.
    """

    __tablename__ = "job_windows"
    __table_args__ = (Index(None, "at", postgresql_using="brin"),)

    job: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(primary_key=True)
    #: A job on several GPU instances has a row for each.
    gpu: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str]
    iterations: Mapped[int] = mapped_column(BigInteger)
    window_s: Mapped[float]
    solo_s: Mapped[float]
    solo_count: Mapped[int]
    shared_s: Mapped[float]
    shared_count: Mapped[int]
    device: Mapped[str]
    sharing_mode: Mapped[str]


class LossWindowRow(Base):
    """
    A closed window of a serverful job and the iterations beside it (smore/domain/loss.py), which show what functions cost
    it. Times in seconds. A window is kept for as long as the job runs, whatever the retention. The key's index has what an
    estimate needs: the windows of one job are on as many pages.
    """

    __tablename__ = "loss_windows"
    __table_args__ = (
        PrimaryKeyConstraint("job", "gpu", "start_at", postgresql_include=["before_s", "closed_s", "after_s"]),
        Index(None, "start_at", postgresql_using="brin"),
    )

    job: Mapped[str]
    #: A job on several GPU instances has windows on each.
    gpu: Mapped[str]
    start_at: Mapped[datetime]
    end_at: Mapped[datetime]
    project: Mapped[str]
    before_s: Mapped[float]
    before_n: Mapped[int]
    closed_s: Mapped[float]
    closed_n: Mapped[int]
    closed_sd: Mapped[float]
    after_s: Mapped[float]
    after_n: Mapped[int]


class BudgetStepRow(Base):
    """
    A step of the closed loop of a training's budget (scheduler/policy/budget/controller.py); ``id``: its entry of the stream as a
    number.
    """

    __tablename__ = "budget_steps"
    __table_args__ = (Index(None, "job", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    job: Mapped[str]
    gpu: Mapped[str]
    at: Mapped[datetime]
    step: Mapped[str]
    duty: Mapped[float]
    factor: Mapped[float]


class GpuSampleRow(Base):
    """A GPU instance in the second from ``at``; utilisations 0..1, by ``counter``."""

    __tablename__ = "gpu_samples"
    __table_args__ = (Index(None, "at", postgresql_using="brin"),)

    gpu: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(primary_key=True)
    utilisation: Mapped[float]
    function_utilisation: Mapped[float]
    memory_used_mib: Mapped[float]
    memory_total_mib: Mapped[float]
    running: Mapped[int]
    counter: Mapped[str]
    device: Mapped[str]
    sharing_mode: Mapped[str]


class InstanceRow(Base):
    """
    A warm instance from its load to its end (smore/messages/stream.py: Warmed). ``id``: its worker's boot and a number;
    times in seconds.

    ``prewarmed``: loaded before a request asked for it; ``outcome``: open, hit, late, wasted or failed, and ``cold`` where
    a request asked for the load; ``why``: what ended it, '' = it lives; ``saved``: runs that were warm only because it
    was held; ``host``: it was loaded from pinned host memory.
    """

    __tablename__ = "instances"
    __table_args__ = (Index(None, "project", "function", "asked_at"), Index(None, "asked_at", postgresql_using="brin"))

    id: Mapped[str] = mapped_column(primary_key=True)
    gpu: Mapped[str]
    boot: Mapped[str]
    project: Mapped[str]
    function: Mapped[str]
    revision: Mapped[int]
    prewarmed: Mapped[bool]
    outcome: Mapped[str]
    why: Mapped[str] = mapped_column(server_default="")
    asked_at: Mapped[datetime]
    ready_at: Mapped[datetime | None]
    used_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    told_at: Mapped[datetime]
    load_s: Mapped[float]
    busy_s: Mapped[float]
    idle_s: Mapped[float]
    uses: Mapped[int]
    saved: Mapped[int]
    memory_mib: Mapped[float]
    host: Mapped[bool] = mapped_column(server_default=text("false"))


class ForecasterRow(Base):
    """A fitted forecaster of arrivals. ``model``: its bytes; ``manifest``: what it was fitted on, and its errors."""

    __tablename__ = "forecasters"

    version: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    manifest: Mapped[dict[str, Any]]
    model: Mapped[bytes]


class StreamCursorRow(Base):
    """The last entry of the event stream that is in Postgres. It changes in the transaction that writes the rows."""

    __tablename__ = "stream_cursor"

    name: Mapped[str] = mapped_column(primary_key=True)
    last_id: Mapped[str]
    version: Mapped[int]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())


def require_project(session: Session, name: str) -> ProjectRow:
    """Raises NotFound."""
    row = session.get(ProjectRow, name)
    if row is None:
        raise NotFound(nothing_named("project", name, session.scalars(select(ProjectRow.name))))
    return row


def value_of(kind: type[_Value], row: Any, **given: Any) -> _Value:
    """
    A dataclass with what is ``given``, else what ``row`` has under a field's name. Moments are in UTC, or epoch seconds
    where the field is a number.
    """
    cells = {field: getattr(row, field.name) for field in fields(cast(Any, kind)) if field.name not in given}
    moments = {
        field.name: cell.astimezone(UTC) if field.type in _MOMENTS else cell.timestamp()
        for field, cell in cells.items()
        if isinstance(cell, datetime)
    }
    return kind(**{field.name: cell for field, cell in cells.items()} | moments | given)
