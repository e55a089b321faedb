"""which budgets a job had until when, so that what it lost is judged by the budget of that time"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    budgets = sa.Column("past_budgets", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False)
    op.add_column("jobs", budgets)


def downgrade() -> None:
    op.drop_column("jobs", "past_budgets")
