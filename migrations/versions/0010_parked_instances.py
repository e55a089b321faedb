"""instances that were loaded out of host memory"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("instances", sa.Column("host", sa.Boolean(), server_default=sa.text("false"), nullable=False))


def downgrade() -> None:
    raise SystemExit("downgrades are not offered: restore a backup (migrations/__init__.py)")
