"""prewarming: minutes that were counted, lives of instances, forecasters, and why a cold start was not foreseen"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "counted_minutes",
        sa.Column("minute", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seconds", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("minute", name="pk_counted_minutes"),
    )
    op.create_table(
        "instances",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("boot", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("prewarmed", sa.Boolean(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), server_default="", nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ready_at", sa.DateTime(timezone=True)),
        sa.Column("used_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("told_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("load_s", sa.Double(), nullable=False),
        sa.Column("busy_s", sa.Double(), nullable=False),
        sa.Column("idle_s", sa.Double(), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("saved", sa.Integer(), nullable=False),
        sa.Column("memory_mib", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_instances"),
    )
    op.create_index("ix_instances_project_function_asked_at", "instances", ["project", "function", "asked_at"])
    op.create_index("ix_instances_asked_at", "instances", ["asked_at"], postgresql_using="brin")
    op.create_table(
        "forecasters",
        sa.Column("version", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("manifest", JSONB(), nullable=False),
        sa.Column("model", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_forecasters"),
    )
    op.add_column("executions", sa.Column("unforeseen", sa.Text()))


def downgrade() -> None:
    raise SystemExit("downgrades are not offered: restore a backup (migrations/__init__.py)")
