"""closed windows are read from the index of their key"""

from alembic import op

revision = "0018"
down_revision = "0017"

_KEY = "ALTER TABLE loss_windows DROP CONSTRAINT pk_loss_windows, ADD CONSTRAINT pk_loss_windows PRIMARY KEY (job, gpu, start_at)"


def upgrade() -> None:
    op.execute(f"{_KEY} INCLUDE (before_s, closed_s, after_s)")


def downgrade() -> None:
    op.execute(_KEY)
