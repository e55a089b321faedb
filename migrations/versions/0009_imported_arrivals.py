"""arrivals that were recorded elsewhere, for forecasters"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "traces",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("from_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_traces_projects"),
        sa.PrimaryKeyConstraint("id", name="pk_traces"),
    )
    op.create_index("ix_traces_project", "traces", ["project"])
    op.create_table(
        "trace_counts",
        sa.Column("trace", sa.BigInteger(), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("counts", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.ForeignKeyConstraint(["trace"], ["traces.id"], name="fk_trace_counts_traces", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("trace", "function", name="pk_trace_counts"),
    )


def downgrade() -> None:
    raise SystemExit("downgrades are not offered: restore a backup (migrations/__init__.py)")
