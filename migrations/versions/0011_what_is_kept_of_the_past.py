"""what is kept of the past: minutes and totals beside rows, indices for ten million of them"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

#: As in smore/postgres/rows.py.
BIG = ("invocations", "executions", "decisions")

# What ended, as the recorder counts it (smore/postgres/history/recorder.py), of the rows that are there.
ENDED = """
    SELECT i.*, e.cold AS was_cold, e.run_s AS batch_s, coalesce(e.rows, 0) AS batch_rows, e.jobs AS beside,
        1.0::float8 / greatest(coalesce(e.batch, 1), 1) AS part, i.state = 'succeeded' AS good,
        extract(epoch FROM i.finished_at - i.arrival_at)::float8 AS whole_s,
        coalesce(extract(epoch FROM i.started_at - i.arrival_at), 0)::float8 AS waited_s,
        coalesce((SELECT sum(value::text::float8) FROM jsonb_each(e.load_s)), 0) AS loading_s
    FROM invocations AS i LEFT JOIN executions AS e ON e.invocation = i.id AND e.attempt = i.attempt
    WHERE i.finished_at IS NOT NULL
"""

MINUTES = f"""
    INSERT INTO function_minutes (minute, project, function, revision, gpu, succeeded, failed, met, ran, cold, rows, total_s, failed_s,
        wait_s, run_s, load_s, worst_s)
    SELECT date_trunc('minute', finished_at), project, function, revision, gpu, count(*) FILTER (WHERE good),
        count(*) FILTER (WHERE NOT good), count(*) FILTER (WHERE good AND finished_at <= deadline_at), count(was_cold),
        count(*) FILTER (WHERE was_cold), coalesce(sum(rows) FILTER (WHERE good), 0), coalesce(sum(whole_s) FILTER (WHERE good), 0),
        coalesce(sum(whole_s) FILTER (WHERE NOT good), 0), coalesce(sum(waited_s) FILTER (WHERE good), 0),
        coalesce(sum(batch_s * part), 0), sum(loading_s), coalesce(max(whole_s) FILTER (WHERE good), 0)
    FROM ({ENDED}) AS ended GROUP BY 1, 2, 3, 4, 5
    """  # noqa: S608 - texts of this file

TOTALS = f"""
    INSERT INTO function_totals (project, function, revision, batch_rows, succeeded, failed, rows, total_s, failed_s, wait_s, run_s,
        batches, batch_s, last_at)
    SELECT project, function, revision, CASE WHEN batch_s IS NULL THEN 0 ELSE batch_rows END, count(*) FILTER (WHERE good),
        count(*) FILTER (WHERE NOT good), coalesce(sum(rows) FILTER (WHERE good), 0), coalesce(sum(whole_s) FILTER (WHERE good), 0),
        coalesce(sum(whole_s) FILTER (WHERE NOT good), 0), coalesce(sum(waited_s) FILTER (WHERE good), 0),
        coalesce(sum(batch_s) FILTER (WHERE good), 0), coalesce(sum(part) FILTER (WHERE batch_s IS NOT NULL), 0),
        coalesce(sum(batch_s * part), 0), max(finished_at)
    FROM ({ENDED}) AS ended GROUP BY 1, 2, 3, 4
    """  # noqa: S608 - texts of this file

HARVEST = f"""
    INSERT INTO job_harvest (job, gpu, seconds, invocations)
    SELECT job, gpu, sum(batch_s * part), count(*)
    FROM ({ENDED}) AS ended CROSS JOIN LATERAL jsonb_array_elements_text(ended.beside) AS job
    WHERE batch_s IS NOT NULL GROUP BY 1, 2
    """  # noqa: S608 - texts of this file

# In the order of time, in which it is read.
STARTS = """
    WITH minutes AS (
        SELECT date_trunc('minute', finished_at) AS at, project, function,
            CASE WHEN cold THEN coalesce(unforeseen, 'unknown') ELSE 'warm' END AS kind, count(*) AS n
        FROM executions WHERE cold IS NOT NULL AND finished_at IS NOT NULL GROUP BY 1, 2, 3, 4
    )
    INSERT INTO run_starts (span, at, project, function, kind, n)
    SELECT 60, at, project, function, kind, n FROM minutes
    UNION ALL SELECT 3600, date_trunc('hour', at, 'UTC'), project, function, kind, sum(n) FROM minutes GROUP BY 1, 2, 3, 4, 5
    ORDER BY 1, 2
    """


def upgrade() -> None:
    op.create_table(
        "function_minutes",
        sa.Column("minute", sa.DateTime(timezone=True), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("succeeded", "failed", "met", "ran", "cold")),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        *(
            sa.Column(name, sa.Double(), nullable=False)
            for name in ("total_s", "failed_s", "wait_s", "run_s", "load_s", "worst_s")
        ),
        sa.PrimaryKeyConstraint("minute", "project", "function", "revision", "gpu", name="pk_function_minutes"),
    )
    op.create_table(
        "function_totals",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("batch_rows", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("succeeded", "failed", "rows")),
        *(
            sa.Column(name, sa.Double(), nullable=False)
            for name in ("total_s", "failed_s", "wait_s", "run_s", "batches", "batch_s")
        ),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project", "function", "revision", "batch_rows", name="pk_function_totals"),
    )
    op.create_table(
        "job_harvest",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("invocations", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "gpu", name="pk_job_harvest"),
    )
    op.create_table(
        "run_starts",
        sa.Column("span", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("project", "function", "kind")),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("span", "at", "project", "function", "kind", name="pk_run_starts"),
    )
    op.execute(MINUTES)
    op.execute(TOTALS)
    op.execute(HARVEST)
    op.execute(STARTS)
    op.drop_column("decisions", "attempts")
    op.drop_index("ix_invocations_arrival_at", "invocations")
    op.drop_index("ix_executions_finished_at", "executions")
    op.create_index("ix_invocations_arrival_at", "invocations", ["arrival_at"])
    op.create_index("ix_invocations_project_id", "invocations", ["project", "id"])
    rare = sa.text("state <> 'succeeded'")
    op.create_index("ix_invocations_unsuccessful", "invocations", ["project", "state", "id"], postgresql_where=rare)
    op.create_index(
        "ix_invocations_unsuccessful_function",
        "invocations",
        ["project", "function", "state", "id"],
        postgresql_where=rare,
    )
    op.create_index("ix_executions_finished_at", "executions", ["finished_at"])
    for table in BIG:
        op.execute(
            f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor ="
            " 0.02)"
        )


def downgrade() -> None:
    raise SystemExit("downgrades are not offered: restore a backup (migrations/__init__.py)")
