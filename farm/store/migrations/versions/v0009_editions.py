"""Tell which edition of its submission a job has: frames may be appended to it.

Revision ID: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("job", sa.Column("edition", sa.Integer(), nullable=False, server_default="1"))
