"""the first tables: versions from here on can be brought to the newest one"""

revision = "0013"
down_revision = None


def upgrade() -> None:
    raise SystemExit("`python -m migrations` makes the tables of an empty database")


def downgrade() -> None:
    raise SystemExit("downgrades are not offered: restore a backup (migrations/__init__.py)")
