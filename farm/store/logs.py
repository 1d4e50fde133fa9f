"""Renderer output, kept compressed in the database: no shared file system is needed to read it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import sqlalchemy as sa

from farm.model.ids import AttemptId, NodeId
from farm.store.tables import AttemptRow, LogRow
from farm.wire.messages import LogChunk

_T = LogRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]


def append(db: sa.Connection, node_id: NodeId, chunks: Sequence[LogChunk]) -> None:
    """Keep chunks of this node's own attempts; a doubled one is ignored."""
    own: set[str] = set(
        db.scalars(
            sa.select(_ATTEMPT.c.id).where(
                _ATTEMPT.c.id.in_({c.attempt_id for c in chunks}), _ATTEMPT.c.node_id == node_id
            )
        )
    )
    values = [
        {
            "attempt_id": chunk.attempt_id,
            "sequence": chunk.sequence,
            "data": zlib.compress(chunk.text.encode("utf-8", "replace"), 1),
        }
        for chunk in chunks
        if chunk.attempt_id in own
    ]
    if not values:
        return
    if db.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
    db.execute(insert(_T).on_conflict_do_nothing(), values)


def read(db: sa.Connection, attempt_id: AttemptId, *, after: int = -1, limit: int = 200) -> list[LogChunk]:
    """Chunks with a sequence above `after`, in order, at most `limit`."""
    query = (
        sa.select(_T.c.sequence, _T.c.data)
        .where(_T.c.attempt_id == attempt_id, _T.c.sequence > after)
        .order_by(_T.c.sequence)
        .limit(limit)
    )
    return [
        LogChunk(
            attempt_id=attempt_id,
            sequence=row.sequence,
            text=zlib.decompress(row.data).decode("utf-8", "replace"),
        )
        for row in db.execute(query)
    ]


def whole(db: sa.Connection, attempt_id: AttemptId, *, most_chars: int) -> str:
    """All of an attempt's output in one text, as far as `most_chars`."""
    query = sa.select(_T.c.data).where(_T.c.attempt_id == attempt_id).order_by(_T.c.sequence)
    parts: list[str] = []
    left = most_chars
    for row in db.execute(query):
        part = zlib.decompress(row.data).decode("utf-8", "replace")[:left]
        parts.append(part)
        left -= len(part)
        if left <= 0:
            break
    return "".join(parts)
