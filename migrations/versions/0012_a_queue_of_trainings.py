"""a queue of trainings: what was in a job's tags becomes columns, attempts, decisions"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"

#: Columns with a default that is right for the jobs that there are.
PLAIN: tuple[tuple[str, Any, Any], ...] = (
    ("source", sa.Text(), "started"),
    ("workload", sa.Text(), ""),
    ("rank_group", sa.Text(), ""),
    ("reason", sa.Text(), ""),
    ("home", sa.Text(), ""),
    ("estimate_source", sa.Text(), ""),
    ("spec", postgresql.JSONB(none_as_null=True), sa.text("'{}'::jsonb")),
    ("ranks", postgresql.JSONB(none_as_null=True), sa.text("'{}'::jsonb")),
    ("budget", sa.Double(), sa.text("0.1")),
    ("memory_mib", sa.Double(), sa.text("0")),
    ("waited_s", sa.Double(), sa.text("0")),
    ("ran_s", sa.Double(), sa.text("0")),
    ("asked", sa.Boolean(), sa.text("false")),
    ("moved", sa.BigInteger(), sa.text("0")),
    ("iterations", sa.BigInteger(), sa.text("0")),
    *((name, sa.Integer(), sa.text("0")) for name in ("attempt", "restarts", "short_ends")),
)
EMPTY: tuple[tuple[str, Any], ...] = (
    ("env", sa.LargeBinary()),
    ("outcome", sa.String(16)),
    ("queued_at", sa.DateTime(timezone=True)),
    ("not_before", sa.DateTime(timezone=True)),
    ("estimate_s", sa.Double()),
    ("estimate_90_s", sa.Double()),
    ("ratios", postgresql.JSONB(none_as_null=True)),
)

# The bag becomes columns. A job that runs is attempt 0: it was started before there was a queue.
UNPACK = """
    UPDATE jobs SET
        source = coalesce(tags ->> 'source', 'started'),
        workload = coalesce(tags ->> 'workload', ''),
        budget = coalesce((tags ->> 'budget')::float8, 0.1),
        memory_mib = coalesce((tags ->> 'memory_mib')::float8, 0),
        rank_group = coalesce(tags ->> 'group', ''),
        ranks = coalesce(tags -> 'ranks', '{}'::jsonb),
        asked = coalesce((tags ->> 'asked')::bool, false),
        reason = coalesce(tags ->> 'reason', ''),
        queued_at = created_at,
        ran_s = greatest(0, coalesce(extract(epoch FROM ended_at - started_at), 0))::float8,
        spec = jsonb_build_object('argv', to_jsonb(argv), 'gpus', to_jsonb(gpus), 'count', cardinality(gpus))
            || (tags - '{source,group,ranks,asked,reason}'::text[])
    """
# As smore/domain/job.py: outcome_of.
OUTCOMES = """
    UPDATE jobs SET outcome = CASE
        WHEN reason <> '' THEN CASE WHEN exit_code = 126 THEN 'refused' ELSE 'detached' END
        WHEN state = 'lost' THEN 'unknown'
        WHEN asked THEN 'stopped'
        WHEN exit_code IS NULL THEN 'unknown'
        WHEN exit_code < 0 THEN 'killed'
        WHEN exit_code > 0 THEN 'failed'
        ELSE 'succeeded' END
    WHERE state IN ('ended', 'lost')
    """
ATTEMPTS = """
    INSERT INTO job_attempts (job, attempt, gpus, nodes, started_at, up_at)
    SELECT id, 0, gpus, '{}', coalesce(started_at, created_at), started_at FROM jobs
    WHERE source = 'started' AND state NOT IN ('ended', 'lost')
    """
# Back: what nobody started yet cannot be started by the version before, so it ends as stopped; what runs runs on.
GIVE_UP = """
    UPDATE jobs SET state = 'ended', asked = true, ended_at = now() WHERE state IN ('queued', 'held')
    """
PACK = """
    UPDATE jobs SET tags = jsonb_strip_nulls(jsonb_build_object(
        'budget', budget, 'workload', nullif(workload, ''), 'memory_mib', nullif(memory_mib, 0),
        'source', nullif(source, 'started'), 'group', nullif(rank_group, ''),
        'ranks', CASE WHEN source <> 'started' THEN ranks END,
        'asked', nullif(asked, false), 'reason', nullif(reason, '')))
    """


def upgrade() -> None:
    for name, kind, default in PLAIN:
        op.add_column("jobs", sa.Column(name, kind, server_default=default, nullable=False))
    for name, kind in EMPTY:
        op.add_column("jobs", sa.Column(name, kind, nullable=True))
    op.execute(UNPACK)
    op.execute(OUTCOMES)
    op.drop_column("jobs", "tags")
    unfinished = sa.text("state <> 'ended' AND state <> 'lost'")
    op.create_index("ix_jobs_unfinished", "jobs", ["id"], postgresql_where=unfinished)
    op.create_table(
        "job_attempts",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("gpus", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("nodes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("up_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        *(sa.Column(name, sa.Text(), server_default="", nullable=False) for name in ("why", "message")),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        *(
            sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)
            for name in ("iterations_from", "iterations")
        ),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_job_attempts_jobs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "attempt", name="pk_job_attempts"),
    )
    op.execute(ATTEMPTS)
    op.create_table(
        "job_decisions",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("gpus", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("reasons", postgresql.JSONB(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_job_decisions_jobs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_job_decisions"),
    )
    op.create_index("ix_job_decisions_job_id", "job_decisions", ["job", "id"])
    op.create_table(
        "job_leader",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_job_leader"),
    )
    op.execute("INSERT INTO job_leader (id, token) VALUES (1, 0)")


def downgrade() -> None:
    op.drop_table("job_leader")
    op.drop_table("job_decisions")
    op.drop_table("job_attempts")
    op.add_column("jobs", sa.Column("tags", postgresql.JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb")))
    op.execute(GIVE_UP)
    op.execute(PACK)
    op.alter_column("jobs", "tags", server_default=None, nullable=False)
    op.drop_index("ix_jobs_unfinished", "jobs")
    for name, *_ in (*PLAIN, *EMPTY):
        op.drop_column("jobs", name)
