"""Machines that join the farm by a code, and leave it.

A code is made by an administrator, lives for minutes, and lets one machine in. The machine gets a token
of its own, and with that an account at the broker that reaches its own queues and the farm. Where an
administrator has to let it in, it waits as a pending node, without an account.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from urllib.parse import urlsplit

import sqlalchemy as sa

from farm.broker.accounts import Accounts
from farm.control.access_views import AccountView, InviteView, JoinView
from farm.control.desk.callers import Caller, audit_row, check_admin
from farm.control.requests import InviteRequest, JoinRequest
from farm.errors import Forbidden, Rejected, TooMany, Unavailable, UserError
from farm.flow.joining import (
    MOST_LIFE_S,
    Guesses,
    account_name,
    by_hand,
    check_node_name,
    is_own_broker,
    node_broker_url,
)
from farm.model.ids import NodeId
from farm.model.states import NodeState
from farm.settings import Settings
from farm.store import invites, nodes, tokens
from farm.store.engine import read_clock, reading, writing
from farm.text import duration, plural

_LOG = logging.getLogger(__name__)


class JoiningDesk:
    """Thread-safe."""

    def __init__(self, engine: sa.Engine, settings: Settings, accounts: Accounts | None = None) -> None:
        self._engine = engine
        self._settings = settings
        self._accounts = accounts or Accounts(settings.broker_url, settings.broker_admin_url)
        self._guesses = Guesses()
        self._lock = threading.Lock()

    def invite(self, request: InviteRequest, by: Caller) -> InviteView:
        """Raises Forbidden, UserError, Rejected."""
        check_admin(by, "invite machines")
        self._check_shared_broker()
        node_id = None if request.node_id is None else check_node_name(request.node_id)
        if not (math.isfinite(request.life_s) and 1 <= request.life_s <= MOST_LIFE_S):
            raise UserError(f"a code lives for 1 s to {duration(MOST_LIFE_S)}, not {request.life_s:g} s")
        needs_approval = request.needs_approval or self._settings.join_needs_approval
        with writing(self._engine) as db:
            code, until = invites.create(
                db, life_s=request.life_s, node_id=node_id, needs_approval=needs_approval, actor=by.user
            )
            shown = {"node": node_id, "until": until, "needs_approval": needs_approval}
            audit_row(db, by, "invite", after=shown, status=201)
        return InviteView(code=code, until=until, node_id=node_id, needs_approval=needs_approval)

    def join(self, request: JoinRequest, by: Caller) -> JoinView:
        """Let a machine in. `by` is a stranger. Raises UserError, Forbidden, Rejected, TooMany."""
        self._check_shared_broker()
        node_id = check_node_name(request.node_id)
        now = time.monotonic()
        with self._lock:
            barred_s = self._guesses.barred_s(by.ip, now)
        if barred_s > 0:
            raise TooMany(f"too many wrong codes: none is taken for {duration(barred_s)}")
        try:
            with writing(self._engine) as db:
                invite = invites.use(db, request.code, node_id=node_id)
                before = nodes.state_of(db, node_id)
                if before is not None and invite.node_id is None:
                    raise Rejected(
                        f"there is a node named {node_id} already, which is {before}: choose another --name; "
                        f"or, for that very machine, ask for a code of its own: farm invite --name {node_id}"
                    )
                nodes.join(
                    db,
                    node_id,
                    is_pending=invite.needs_approval,
                    text=f"joined from {by.ip or 'here'} by a code of {invite.made_by}",
                )
                token = tokens.create_for_node(db, node_id)
                shown = {"is_pending": invite.needs_approval, "invited_by": invite.made_by}
                audit_row(db, by, f"node {node_id}", after=shown, status=201)
                at = read_clock(db)
        except invites.UnknownCode:
            with self._lock:
                self._guesses.note(by.ip, now)
            raise
        return JoinView(node_id=node_id, token=token, is_pending=invite.needs_approval, at=at)

    def account(self, by: Caller, *, reached_as: str) -> AccountView:
        """An account at the broker for the node that asks, with a new password.

        reached_as: the name by which it reached the API. Raises Forbidden, Rejected, Unavailable.
        """
        if by.owner.role != tokens.NODE_ROLE:
            raise Forbidden("only a node has an account: join with a code (`farm join`)")
        node_id = NodeId(by.user)
        with reading(self._engine) as db:
            state = nodes.state_of(db, node_id)
        if state is None:
            raise Rejected(f"{node_id} was removed from the farm: join with a new code")
        if state is NodeState.PENDING:
            return AccountView(node_id=node_id, is_pending=True, broker_url=None)
        url = self._settings.broker_url
        password = secrets.token_urlsafe(24)
        missing = ""
        try:
            self._accounts.put(node_id, password)
        except Unavailable as error:
            missing = str(error)
            _LOG.warning("the account of %s must be made by hand: %s", node_id, missing)
        with writing(self._engine) as db:
            audit_row(db, by, f"node {node_id}", after={"account": "by hand" if missing else "made"})
        host = self._settings.broker_host_for_nodes
        return AccountView(
            node_id=node_id,
            is_pending=False,
            broker_url=node_broker_url(
                url, node_id=node_id, password=password, host=host or _host(url, reached_as)
            ),
            missing=missing,
            to_type=tuple(by_hand(url, node_id, password)) if missing else (),
        )

    def enrol(self, node_id: NodeId, by: Caller) -> None:
        """Let a pending node in. Raises Forbidden, NotFound, Rejected."""
        check_admin(by, "let nodes in")
        with writing(self._engine) as db:
            nodes.enrol(db, node_id, actor=by.user)
            before, after = {"state": NodeState.PENDING}, {"state": NodeState.OFFLINE}
            audit_row(db, by, f"node {node_id}", before=before, after=after)

    def remove(self, node_id: NodeId, by: Caller, *, force: bool) -> None:
        """Forget a node: its token and its account are of no use any more.

        With `force` also one that works, or whose account is left to be removed by hand. What it runs is
        taken for lost when its leases end. Raises Forbidden, NotFound, Rejected.
        """
        check_admin(by, "remove nodes")
        with reading(self._engine) as db:
            node = nodes.read_node(db, node_id)
            has_joined = tokens.is_of_node(db, node_id)
        if not force and node.state not in (NodeState.OFFLINE, NodeState.PENDING):
            rest = f", with {plural(len(node.attempts), 'task')} running" if node.attempts else ""
            raise Rejected(f"{node_id} is {node.state}{rest}: stop its agent first, or use --force")
        if has_joined:
            self._remove_account(node_id, force=force)
        with writing(self._engine) as db:
            nodes.remove(db, node_id, actor=by.user)
            tokens.revoke_of_node(db, node_id)
            audit_row(db, by, f"node {node_id}", before={"state": node.state}, status=204)

    def _remove_account(self, node_id: NodeId, *, force: bool) -> None:
        try:
            self._accounts.remove(node_id)
        except Unavailable as error:
            account = account_name(self._settings.broker_url, node_id)
            told = f"its account at the broker is left ({error}): rabbitmqctl delete_user {account}"
            if not force:
                raise Rejected(f"{told}; then remove the node with --force") from error
            _LOG.warning("%s was removed, but %s", node_id, told)

    def _check_shared_broker(self) -> None:
        if self._settings.is_embedded:
            raise Rejected(
                "this farm's broker lives inside its process, where no other machine can reach it: set "
                "broker_url to RabbitMQ, and start `farm serve` and `farm scheduler` instead of `farm up`"
            )


def _host(broker_url: str, reached_as: str) -> str:
    return reached_as if is_own_broker(broker_url) else urlsplit(broker_url).hostname or reached_as
