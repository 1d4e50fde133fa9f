"""Keep the project of a job, whose share of the farm it uses.

Revision ID: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("job", sa.Column("project", sa.String(), nullable=False, server_default=""))
