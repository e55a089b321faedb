"""${message}"""

# Every process of the version before runs on while this is applied: add first, remove a release later.

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    raise SystemExit("downgrades are not offered: restore a backup (migrations/__init__.py)")
