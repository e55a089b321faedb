"""ends that were promised, and requests to start a training that can be repeated"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "job_promises",
        sa.Column("job", sa.Text(), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("by", sa.DateTime(timezone=True)),
        sa.Column("told_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("latest_start_at", sa.DateTime(timezone=True)),
        sa.Column("earliest", sa.DateTime(timezone=True)),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("why", sa.Text(), server_default="", nullable=False),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
    )
    op.add_column("jobs", sa.Column("request_key", sa.Text()))
    op.add_column("jobs", sa.Column("request_digest", sa.Text()))
    op.create_index(
        "ix_jobs_request_key",
        "jobs",
        ["project", "request_key"],
        unique=True,
        postgresql_where=sa.text("request_key IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_request_key", "jobs")
    op.drop_column("jobs", "request_digest")
    op.drop_column("jobs", "request_key")
    op.drop_table("job_promises")
