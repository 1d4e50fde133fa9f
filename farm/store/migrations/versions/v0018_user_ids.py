"""Keep which users a node's agents ran as.

Revision ID: 0018
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("node", sa.Column("user_ids", sa.JSON(), nullable=True))
