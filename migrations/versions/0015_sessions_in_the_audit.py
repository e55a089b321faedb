"""by which session of a key a change was made"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("audit", sa.Column("session", sa.Text()))


def downgrade() -> None:
    op.drop_column("audit", "session")
