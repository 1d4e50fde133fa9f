"""Keep the calls of hooks that are owed, and how far events have been looked at for them.

Revision ID: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "hook_cursor",
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "hook_call",
        sa.Column("id", _BIG, primary_key=True, autoincrement=True),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("hook", sa.String(), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("job_id", sa.Integer(), sa.ForeignKey("job.id", ondelete="CASCADE"), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.Float(), nullable=False),
        sa.Column("over_at", sa.Float(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.UniqueConstraint("event_id", "hook"),
    )
    op.execute("INSERT INTO hook_cursor SELECT 'hooks', coalesce(max(id), 0) FROM event")
    op.create_index("hook_call_due", "hook_call", ["over_at", "due_at"])
    op.create_index("ix_hook_call_job_id", "hook_call", ["job_id"])
