"""Find the few ready tasks that must wait or avoid a node without reading all ready ones.

Revision ID: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    few = sa.text("state = 'ready' AND not_before > 0")
    columns = ["step_id", "avoid_node", "not_before"]
    op.create_index("task_held_back", "task", columns, sqlite_where=few, postgresql_where=few)
