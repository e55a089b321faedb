"""what was learned: measured rows and predictors"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "profile_rows",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("sharing_mode", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("document", JSONB(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_profile_rows"),
    )
    op.create_table(
        "predictors",
        sa.Column("version", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("manifest", JSONB(), nullable=False),
        sa.Column("table", sa.LargeBinary()),
        sa.Column("artifact", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("version", name="pk_predictors"),
    )
    op.create_index(
        "ix_predictors_champion", "predictors", ["state"], unique=True, postgresql_where=sa.text("state = 'champion'")
    )


def downgrade() -> None:
    raise SystemExit("downgrades are not offered: restore a backup (migrations/__init__.py)")
