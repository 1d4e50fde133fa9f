"""Keep forecasts of when jobs end, and since when which policy holds.

Revision ID: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "forecast",
        sa.Column("job_id", sa.Integer(), sa.ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("mark", sa.Integer(), primary_key=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("likely_s", sa.Float(), nullable=False),
        sa.Column("worst_s", sa.Float(), nullable=False),
    )
    op.create_table(
        "policy_change",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("weights", sa.JSON(), nullable=False),
    )
