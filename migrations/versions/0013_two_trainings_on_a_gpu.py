"""two trainings on a GPU instance: what each costs the other, and in how many parts an attempt runs its batch"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("lost_s", sa.Double(), server_default=sa.text("0"), nullable=False))
    op.add_column("job_attempts", sa.Column("lost_s", sa.Double(), server_default=sa.text("0"), nullable=False))
    op.add_column("job_attempts", sa.Column("micro_batches", sa.Integer(), server_default=sa.text("1"), nullable=False))
    op.create_table(
        "job_pairs",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("other", sa.Text(), nullable=False),
        sa.Column("other_attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("guest", sa.Boolean(), nullable=False),
        sa.Column("gpus", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("sharing_mode", sa.Text(), nullable=False),
        sa.Column("from_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until_at", sa.DateTime(timezone=True), nullable=True),
        *(
            sa.Column(name, sa.Double(), nullable=True)
            for name in (
                "predicted",
                "predicted_90",
                "measured",
                "loss",
                "loss_low",
                "loss_high",
                "alone_s",
                "beside_s",
            )
        ),
        sa.Column("held_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        *(
            sa.ForeignKeyConstraint([name], ["jobs.id"], name=f"fk_job_pairs_{name}_jobs", ondelete="CASCADE")
            for name in ("job", "other")
        ),
        sa.PrimaryKeyConstraint("job", "attempt", "other", "other_attempt", name="pk_job_pairs"),
    )
    op.create_index("ix_job_pairs_other", "job_pairs", ["other"])


def downgrade() -> None:
    op.drop_table("job_pairs")
    op.drop_column("job_attempts", "micro_batches")
    op.drop_column("job_attempts", "lost_s")
    op.drop_column("jobs", "lost_s")
