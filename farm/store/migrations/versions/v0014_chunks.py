"""Tell which steps have chunks of a target run time.

Revision ID: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("step", sa.Column("chunk_target_s", sa.Float(), nullable=True))
