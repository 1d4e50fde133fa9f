"""Keep the farm's limits, what each task of a step takes of them, and until when a step waits for licences.

Revision ID: 0008
"""

from __future__ import annotations

import json
import math
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "farm_limit",
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("amount", sa.Integer(), nullable=False),
        sa.Column("per", sa.String(), nullable=False),
        sa.Column("is_from_settings", sa.Boolean(), nullable=False),
    )
    needs = op.create_table(
        "step_limit",
        sa.Column("step_id", sa.Integer(), sa.ForeignKey("step.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("amount", sa.Integer(), nullable=False),
    )
    op.add_column("step", sa.Column("licence_until", sa.Float(), nullable=False, server_default="0"))
    # Steps of before asked for limits too; nobody counted them.
    query = sa.text("SELECT id, demand FROM step WHERE CAST(demand AS TEXT) LIKE '%\"amount.limit.%'")
    rows = []
    for step_id, kept in op.get_bind().execute(query):
        demand: Any = json.loads(kept) if isinstance(kept, str) else kept
        for name, amount in demand["amounts"]:
            if name.startswith("amount.limit."):
                taken = max(1, math.ceil(amount))
                rows.append({"step_id": step_id, "name": name[len("amount.limit.") :], "amount": taken})
    if rows:
        op.bulk_insert(needs, rows)
