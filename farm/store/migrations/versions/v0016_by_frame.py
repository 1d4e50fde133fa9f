"""Let tasks wait for single other tasks: frame by frame.

Revision ID: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("step", sa.Column("by_frame", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column(
        "job_dependency", sa.Column("by_frame", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.create_table(
        "task_need",
        sa.Column("task_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("needs_task_id", sa.BigInteger(), primary_key=True, autoincrement=False),
    )
