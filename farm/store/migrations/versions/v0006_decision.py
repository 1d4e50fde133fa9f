"""Keep with each attempt why it went where it did.

Revision ID: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("decision", sa.JSON(), nullable=True))
