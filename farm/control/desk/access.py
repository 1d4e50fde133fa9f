"""Who may ask: tokens and whose they are, and the audit of what was asked."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import fields
from typing import Final

import sqlalchemy as sa

from farm.control.access_views import AuditView, NewTokenView, TokenView
from farm.control.desk.callers import Caller, audit_row, check_admin, check_word
from farm.control.requests import TokenRequest
from farm.control.views import Page, next_after
from farm.errors import Rejected
from farm.store import audit, tokens
from farm.store.engine import reading, writing
from farm.store.tokens import TokenOwner
from farm.text import clean

TOKEN_CACHE_S: Final = 2.0
"""How long a revoked token may still be believed by another process than the one that revoked it."""
_TOKENS_KEPT: Final = 1_000


class AccessDesk:
    """Thread-safe."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._owners: OrderedDict[str, tuple[TokenOwner, float]] = OrderedDict()

    def owner(self, token: str) -> TokenOwner | None:
        """Whose token it is; None when unknown or revoked. Raises Unavailable."""
        key = tokens.digest(token)
        now = time.monotonic()
        with self._lock:
            known = self._owners.get(key)
        if known is not None and known[1] > now:
            return known[0]
        with reading(self._engine) as db:
            found = tokens.owner(db, token)
        with self._lock:
            self._owners.pop(key, None)
            if found is not None:
                self._owners[key] = (found, now + TOKEN_CACHE_S)
                while len(self._owners) > _TOKENS_KEPT:
                    self._owners.popitem(last=False)
        return found

    def list_tokens(self, by: Caller) -> Page[TokenView]:
        """Raises Forbidden."""
        check_admin(by, "see the tokens")
        with reading(self._engine) as db:
            found = tokens.listed(db)
        return Page(items=tuple(TokenView(name=t.name, user=t.user, role=t.role) for t in found))

    def make_token(self, request: TokenRequest, by: Caller) -> NewTokenView:
        """Raises Forbidden, UserError."""
        check_admin(by, "make tokens")
        check_word("the token's name", request.name)
        check_word("the user's name", request.user)
        shown = {"name": request.name, "user": request.user, "role": request.role}
        with writing(self._engine) as db:
            token = tokens.create(db, name=request.name, user=request.user, role=request.role)
            audit_row(db, by, f"token {request.name}", after=shown, status=201)
        return NewTokenView(token=token, **shown)

    def revoke_token(self, name: str, by: Caller) -> None:
        """Raises Forbidden, NotFound, Rejected."""
        check_admin(by, "revoke tokens")
        with writing(self._engine) as db:
            admins = [token.name for token in tokens.listed(db) if token.role == "admin"]
            if admins == [name]:
                raise Rejected(f"{name!r} is the last admin token: make another one first")
            before = next(
                ({"user": t.user, "role": t.role} for t in tokens.listed(db) if t.name == name), None
            )
            tokens.revoke(db, name)
            audit_row(db, by, f"token {name}", before=before, status=204)
        with self._lock:
            self._owners.clear()

    def read_audit(self, by: Caller, *, after: int, limit: int) -> Page[AuditView]:
        """Raises Forbidden."""
        check_admin(by, "read the audit")
        with reading(self._engine) as db:
            found = audit.read(db, after=after, limit=limit)
        items = tuple(
            AuditView(**{f.name: getattr(entry, f.name) for f in fields(AuditView)}) for entry in found
        )
        return Page(items=items, next=next_after(items, limit))

    def refused(self, by: Caller, status: int, text: str) -> None:
        """Keep that a change was asked for and refused. Raises Unavailable."""
        with writing(self._engine) as db:
            audit_row(db, by, "", after={"refused": clean(text, limit=500, one_line=True)}, status=status)
