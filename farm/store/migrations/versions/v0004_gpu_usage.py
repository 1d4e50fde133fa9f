"""Keep what attempts used of GPUs, what their first seconds showed, and the most VRAM a step was seen to use.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    for name, kind in (
        ("gpu_model", sa.String()),
        ("gpu_count", sa.Integer()),
        ("gpu_s", sa.Float()),
        ("gpu_busy", sa.Float()),
        ("gpu_memory_busy", sa.Float()),
        ("vram_peak_mib", sa.Integer()),
        ("energy_j", sa.Float()),
        ("throttled_s", sa.Float()),
        ("probe", sa.JSON()),
    ):
        op.add_column("attempt", sa.Column(name, kind, nullable=True))
    op.add_column("step", sa.Column("vram_peak_mib", sa.Integer(), nullable=True))
