"""Keep the sequence of each node's newest heartbeat, so that an older one is told.

Revision ID: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("node", sa.Column("sequence", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("node") as table:
        table.alter_column("sequence", server_default=None)
