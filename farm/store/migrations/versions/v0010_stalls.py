"""Keep with each attempt what its processes were seen to do, what that was taken for, and what was done.

Revision ID: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("origin", sa.String(), nullable=False, server_default="match"))
    for name, kind in (
        ("evidence", sa.JSON()),
        ("evidence_at", sa.Float()),
        ("stall", sa.String()),
        ("stall_text", sa.String()),
        ("stall_since", sa.Float()),
        ("stall_action", sa.String()),
        ("ends_as", sa.String()),
        ("ends_because", sa.String()),
        ("left_until", sa.Float()),
    ):
        op.add_column("attempt", sa.Column(name, kind, nullable=True))
