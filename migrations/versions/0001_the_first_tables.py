"""the first tables"""

# Every process of the version before runs on while this is applied: add first, remove a release later.

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "arrivals_minute",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("minute", sa.DateTime(timezone=True), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("project", "function", "minute", name="pk_arrivals_minute"),
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempts", JSONB(), nullable=False),
        sa.Column("decision", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
    )
    op.create_table(
        "executions",
        sa.Column("invocation", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("decision_id", sa.BigInteger()),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("cold", sa.Boolean()),
        sa.Column("load_s", JSONB()),
        sa.Column("run_s", sa.Double()),
        sa.Column("batch", sa.Integer()),
        sa.Column("rows", sa.Integer()),
        sa.Column("co_runners", JSONB()),
        sa.Column("jobs", JSONB()),
        sa.Column("predicted", JSONB()),
        sa.Column("device", sa.Text()),
        sa.Column("sharing_mode", sa.Text()),
        sa.Column("claimed_at", sa.DateTime(timezone=True)),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("invocation", "attempt", name="pk_executions"),
    )
    op.create_index("ix_executions_finished_at", "executions", ["finished_at"], postgresql_using="brin")
    op.create_table(
        "gpu_samples",
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("utilisation", sa.Double(), nullable=False),
        sa.Column("function_utilisation", sa.Double(), nullable=False),
        sa.Column("memory_used_mib", sa.Double(), nullable=False),
        sa.Column("memory_total_mib", sa.Double(), nullable=False),
        sa.Column("running", sa.Integer(), nullable=False),
        sa.Column("counter", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("sharing_mode", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("gpu", "at", name="pk_gpu_samples"),
    )
    op.create_index("ix_gpu_samples_at", "gpu_samples", ["at"], postgresql_using="brin")
    op.create_table(
        "invocations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("arrival_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True)),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("trace", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_invocations"),
    )
    op.create_index("ix_invocations_arrival_at", "invocations", ["arrival_at"], postgresql_using="brin")
    op.create_index("ix_invocations_project_function_id", "invocations", ["project", "function", "id"])
    op.create_table(
        "job_windows",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("iterations", sa.BigInteger(), nullable=False),
        sa.Column("window_s", sa.Double(), nullable=False),
        sa.Column("solo_s", sa.Double(), nullable=False),
        sa.Column("solo_count", sa.Integer(), nullable=False),
        sa.Column("shared_s", sa.Double(), nullable=False),
        sa.Column("shared_count", sa.Integer(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("sharing_mode", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "at", "gpu", name="pk_job_windows"),
    )
    op.create_index("ix_job_windows_at", "job_windows", ["at"], postgresql_using="brin")
    op.create_table(
        "projects",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_projects"),
    )
    op.create_table(
        "stream_cursor",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("last_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_stream_cursor"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_api_keys_projects"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_project", "api_keys", ["project"])
    op.create_table(
        "functions",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), server_default="0", nullable=False),
        sa.Column("deadline_s", sa.Double()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_functions_projects"),
        sa.PrimaryKeyConstraint("project", "name", name="pk_functions"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("argv", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("gpus", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("tags", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("exit_code", sa.Integer()),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_jobs_projects"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_project_id", "jobs", ["project", "id"])
    op.create_table(
        "revisions",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("declared", JSONB(), nullable=False),
        sa.Column("spec", JSONB(), nullable=False),
        sa.Column("measured", JSONB()),
        sa.Column("log", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("settled_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["project", "function"], ["functions.project", "functions.name"], name="fk_revisions_functions"
        ),
        sa.PrimaryKeyConstraint("project", "function", "number", name="pk_revisions"),
    )


def downgrade() -> None:
    raise SystemExit("downgrades are not offered: restore a backup (migrations/__init__.py)")
