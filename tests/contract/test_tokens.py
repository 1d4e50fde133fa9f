"""Tokens: the database knows one when it sees it, and could not name it."""

from __future__ import annotations

import sqlalchemy as sa

from farm.store import (
    tokens,
)
from farm.store.engine import writing


def test_the_database_holds_no_usable_token(engine: sa.Engine) -> None:
    with writing(engine) as db:
        token = tokens.create(db, name="t", user="anna", role="user")
        assert tokens.owner(db, token) == tokens.TokenOwner(name="t", user="anna", role="user")
        assert tokens.owner(db, tokens.digest(token)) is None
        assert token not in str(db.execute(sa.text("SELECT * FROM token")).all())
        tokens.revoke(db, "t")
        assert tokens.owner(db, token) is None
