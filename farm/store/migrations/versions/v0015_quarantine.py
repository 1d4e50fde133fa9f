"""Keep nodes that fail too often from work for a while, and failed tasks from where they failed.

Revision ID: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("task", sa.Column("avoid_until", sa.Float(), nullable=False, server_default="0"))
    op.add_column("node", sa.Column("quarantined_until", sa.Float(), nullable=False, server_default="0"))
    op.add_column("node", sa.Column("quarantine_reason", sa.String(), nullable=False, server_default=""))
    op.add_column("node", sa.Column("quarantines", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("node", sa.Column("bad_ends", sa.JSON(), nullable=True))
