"""What the API shows of tokens, invitations, machines that join, and who changed what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farm.model.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    name: str
    user: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokenView:
    token: str
    """Shown this once."""
    name: str
    user: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteView:
    """A code with which one machine may join."""

    code: str
    """Shown this once."""
    until: float
    """When it runs out, on the database's clock."""
    node_id: NodeId | None
    needs_approval: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinView:
    """What a machine that has joined is told."""

    node_id: NodeId
    token: str
    """Of the node; shown this once."""
    is_pending: bool
    at: float
    """The database's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountView:
    """A node's account at the broker."""

    node_id: NodeId
    is_pending: bool
    """It waits for an administrator: ask again."""
    broker_url: str | None
    """With the account's password, new each time; None while it is pending."""
    missing: str = ""
    """Why the farm could not make the account itself; empty: it did."""
    to_type: tuple[str, ...] = ()
    """What somebody types on the broker's machine instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """One thing that somebody asked for."""

    id: int
    at: float
    actor: str
    token: str
    """The token's name."""
    ip: str
    method: str
    path: str
    target: str
    """What it was about: "job 12", "node blade-3"."""
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    status: int
    """HTTP; 400 and above: it was refused."""
