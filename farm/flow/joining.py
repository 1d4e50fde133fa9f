"""A machine joins the farm: the code that is typed once, its account at the broker, wrong codes counted."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from farm.errors import UserError
from farm.model.ids import NodeId
from farm.text import clean
from farm.wire.queues import CONTROL_PREFIX, EXCHANGE, LAUNCH_PREFIX

CODE_SIGNS: Final = "23456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Without those that are taken for each other: 0 O, 1 I L, U V."""
CODE_LENGTH: Final = 12
"""59 bits: with guesses barred as below, a code of a day is hit once in 10 million farms."""
MOST_LIFE_S: Final = 24 * 3600.0
GUESSES: Final = 10
"""Wrong codes from one address, or ten times as many from all, within `GUESSES_S`: then nothing is taken."""
GUESSES_S: Final = 600.0
NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", ""})


def written_code(signs: Iterable[str]) -> str:
    """As it is read out: "K7QD-4M2X-9TRF"."""
    text = "".join(signs)
    return "-".join(text[at : at + 4] for at in range(0, len(text), 4))


def read_code(text: str) -> str:
    """What was typed, in the form that the farm keeps a digest of: no blanks or dashes, capitals.

    Raises UserError for what cannot be a code.
    """
    signs = re.sub(r"[\s-]", "", text).upper()
    if len(signs) != CODE_LENGTH or any(sign not in CODE_SIGNS for sign in signs):
        raise UserError(
            f"'{clean(text, limit=40, one_line=True)}' is no code: it has {CODE_LENGTH} letters and digits, "
            "like K7QD-4M2X-9TRF"
        )
    return signs


def check_node_name(name: str) -> NodeId:
    """Raises UserError."""
    if not NODE_NAME.fullmatch(name):
        raise UserError(
            f"'{clean(name, limit=80, one_line=True)}' is no name for a node: letters, digits, dots, dashes "
            "and underscores, 63 at most, the first a letter or a digit"
        )
    return NodeId(name)


# --- the account at the broker ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Regular expressions over names of queues and exchanges, as RabbitMQ takes them."""

    configure: str
    write: str
    read: str


def account_name(broker_url: str, node_id: NodeId) -> str:
    """ "node-blade-4"; on another virtual host than "/" with its name in front, as "farm-node-blade-4":
    accounts are the whole broker's."""
    place = virtual_host(broker_url).strip("/")
    return f"{place}-node-{node_id}" if place else f"node-{node_id}"


def permissions(node_id: NodeId) -> Permissions:
    """A node makes and reads its own two queues, and writes to the farm's exchange: nothing else.

    It may bind nothing, and not write to queues by name: what it says can reach the farm alone.
    """
    own = f"^({re.escape(LAUNCH_PREFIX)}|{re.escape(CONTROL_PREFIX)}){re.escape(node_id)}$"
    return Permissions(configure=own, write=f"^{re.escape(EXCHANGE)}$", read=own)


def virtual_host(broker_url: str) -> str:
    """ "/" for amqp://host// and for amqp://host."""
    path = urlsplit(broker_url).path
    return unquote(path[1:]) or "/"


def is_own_broker(broker_url: str) -> bool:
    """Whether it is named by an address that every machine understands as itself."""
    return (urlsplit(broker_url).hostname or "") in _LOOPBACK


def node_broker_url(broker_url: str, *, node_id: NodeId, password: str, host: str) -> str:
    """The address for the node, with its own account. `host`: what it calls the broker's machine."""
    parts = urlsplit(broker_url)
    shown = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port else ""
    account = f"{quote(account_name(broker_url, node_id), safe='')}:{quote(password, safe='')}"
    return urlunsplit((parts.scheme, f"{account}@{shown}{port}", parts.path, parts.query, ""))


def by_hand(broker_url: str, node_id: NodeId, password: str) -> Sequence[str]:
    """What to type on the broker's machine where the farm cannot make the account itself."""
    allowed = permissions(node_id)
    account = account_name(broker_url, node_id)
    place = virtual_host(broker_url)
    return (
        shlex.join(["rabbitmqctl", "add_user", account, password]),
        shlex.join(["rabbitmqctl", "set_permissions", "-p", place, account, *astuple(allowed)]),
    )


# --- guesses ------------------------------------------------------------------------------------------------


class Guesses:
    """Wrong codes of the last minutes, by the address that they came from. `now`: seconds of any clock."""

    def __init__(self) -> None:
        self._wrong: deque[tuple[float, str]] = deque(maxlen=GUESSES * 10)

    def note(self, address: str, now: float) -> None:
        self._wrong.append((now, address))

    def barred_s(self, address: str, now: float) -> float:
        """How long no code is taken from there; 0: it may be tried."""
        while self._wrong and self._wrong[0][0] <= now - GUESSES_S:
            self._wrong.popleft()
        own = [at for at, other in self._wrong if other == address]
        if len(own) >= GUESSES:
            return own[-GUESSES] + GUESSES_S - now
        if len(self._wrong) >= GUESSES * 10:
            return self._wrong[0][0] + GUESSES_S - now
        return 0.0
