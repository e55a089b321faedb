"""every step of the closed loop of a budget"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "budget_steps",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("duty", sa.Double(), nullable=False),
        sa.Column("factor", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_budget_steps"),
    )
    op.create_index("ix_budget_steps_job_id", "budget_steps", ["job", "id"])


def downgrade() -> None:
    raise SystemExit("downgrades are not offered: restore a backup (migrations/__init__.py)")
