"""what functions cost a job: closed windows"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "loss_windows",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("start_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("end_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("before_s", sa.Double(), nullable=False),
        sa.Column("before_n", sa.Integer(), nullable=False),
        sa.Column("closed_s", sa.Double(), nullable=False),
        sa.Column("closed_n", sa.Integer(), nullable=False),
        sa.Column("closed_sd", sa.Double(), nullable=False),
        sa.Column("after_s", sa.Double(), nullable=False),
        sa.Column("after_n", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job", "gpu", "start_at", name="pk_loss_windows"),
    )


def downgrade() -> None:
    raise SystemExit("downgrades are not offered: restore a backup (migrations/__init__.py)")
