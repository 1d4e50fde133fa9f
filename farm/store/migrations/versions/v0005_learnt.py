"""Keep what the scheduler has learnt of run times, so that it survives a restart.

Revision ID: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "learnt_farm",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("state", sa.JSON(), nullable=False),
    )
    op.create_table(
        "learnt_step",
        sa.Column("step_id", sa.Integer(), sa.ForeignKey("step.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("state", sa.JSON(), nullable=False),
    )
