"""the past by minute and hour, for series; `scheduler.retain` fills it from the rows that there are"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "gpu_minutes",
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("minute", moment, nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("utilisation", sa.Float(), nullable=False),
        sa.Column("function_utilisation", sa.Float(), nullable=False),
        sa.Column("memory_used_mib", sa.Float(), nullable=False),
        sa.Column("memory_total_mib", sa.Float(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("sharing_mode", sa.Text(), nullable=False),
        sa.Column("last_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("gpu", "minute", name="pk_gpu_minutes"),
    )
    op.create_index("ix_gpu_minutes_minute", "gpu_minutes", ["minute"])
    op.create_table(
        "function_hours",
        sa.Column("hour", moment, nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("succeeded", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("met", sa.BigInteger(), nullable=False),
        sa.Column("cold", sa.BigInteger(), nullable=False),
        sa.Column("run_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "project", "function", "gpu", name="pk_function_hours"),
    )
    op.create_table(
        "job_minutes",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("minute", moment, nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("invocations", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "minute", name="pk_job_minutes"),
    )
    op.create_index("ix_job_minutes_minute", "job_minutes", ["minute"])
    sums = ("open_s", "closed_s", "open_squared", "open_closed", "closed_squared")
    op.create_table(
        "loss_hours",
        sa.Column("hour", moment, nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("windows", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Float(), nullable=False) for name in sums),
        sa.PrimaryKeyConstraint("hour", "job", "gpu", name="pk_loss_hours"),
    )
    op.create_index("ix_loss_windows_start_at", "loss_windows", ["start_at"], postgresql_using="brin")
    op.add_column("function_minutes", sa.Column("wholes", postgresql.ARRAY(sa.Integer()), nullable=True))
    columns = ["project", "function", "minute"]
    op.create_index("ix_function_minutes_project_function_minute", "function_minutes", columns)


def downgrade() -> None:
    op.drop_index("ix_function_minutes_project_function_minute", table_name="function_minutes")
    op.drop_column("function_minutes", "wholes")
    op.drop_index("ix_loss_windows_start_at", table_name="loss_windows")
    for table in ("loss_hours", "job_minutes", "function_hours", "gpu_minutes"):
        op.drop_table(table)
