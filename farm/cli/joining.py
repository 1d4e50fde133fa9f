"""`farm invite`, `farm join`, `farm enrol` and `farm remove-node`: machines come to a farm, and go."""

from __future__ import annotations

import json
import re
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from farm.cli import show
from farm.cli.answers import read
from farm.cli.client import DEFAULT_PORT, Client
from farm.cli.lan import lan_address
from farm.cli.naming import find_node
from farm.cli.show import shown
from farm.cli.submit import seconds
from farm.control.access_views import AccountView, InviteView, JoinView
from farm.control.requests import InviteRequest, JoinRequest
from farm.errors import Forbidden, UserError
from farm.flow.joining import check_node_name, read_code
from farm.settings import (
    Settings,
    config_to_write,
    given_in_environment,
    load_settings,
    write_private,
)
from farm.text import duration

NODE_FILE: Final = "node.json"
"""In `state_dir`, mode 0600: {"url", "node", "token"} of the farm that this machine has joined."""
_LOOK_S: Final = 2.0
_NOBODY: Final = "is it started there (`farm serve --lan`), and does no firewall stand between?"
_CLOCKS_APART_S: Final = 60.0


def invite(
    client: Client, *, name: str | None, life: str, needs_approval: bool, is_quiet: bool, is_json: bool
) -> None:
    node_id = None if name is None else check_node_name(name)
    request = InviteRequest(node_id=node_id, life_s=seconds(life), needs_approval=needs_approval)
    answer = client.post("/invites", request)
    if is_json:
        show.data(answer)
        return
    made = read(InviteView, answer)
    if is_quiet:
        print(made.code)
        return
    url = client.url
    if urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1"):
        url = _for_others(url)
    for line in how_to_join(url, made, life_s=request.life_s):
        show.line(line)


def _for_others(url: str) -> str:
    """With the address that this machine has in its network, where there is one."""
    parts = urlsplit(url)
    try:
        return f"{parts.scheme}://{lan_address()}:{parts.port or DEFAULT_PORT}"
    except UserError:
        return url


def how_to_join(url: str, made: InviteView, *, life_s: float) -> Sequence[str]:
    name = f" --name {made.node_id}" if made.node_id else ""
    lines = [
        f"within {duration(life_s)}, on the machine that is to render:",
        f"  farm join {url} --code {made.code}{name}",
        "  farm worker",
    ]
    return [*lines, "then, here: farm enrol NODE"] if made.needs_approval else lines


# --- on the machine that joins --------------------------------------------------------------------------


def join(url: str, *, code: str | None, name: str | None, is_waiting: bool, is_json: bool) -> int:
    """The exit status: 1 when it is still pending. Raises UserError, Forbidden, Rejected, Unavailable."""
    settings = load_settings()
    url = full_url(url)
    known = _joined(settings)
    earlier = known.get("node") if code is None and known.get("url") == url else None
    node_id = check_node_name(name or earlier or settings.node_name)
    config = config_to_write()
    updated_config(_read(config), {})  # what cannot be changed is told before the code is spent
    is_known = (known.get("url"), known.get("node")) == (url, node_id)
    token = known["token"] if is_known and code is None else ""
    if not token:
        token = _join_by_code(settings, url, node_id, _code(code))
    with closing(Client(url, token, advice=_NOBODY)) as client:
        try:
            account = _account(client, is_waiting=is_waiting)
        except Forbidden as error:
            raise Forbidden(f"{url} does not know {node_id} (any more): join with a new code") from error
    if account.broker_url is None:
        if is_json:
            show.data(_came(url, node_id, config=None))
        else:
            print(f"{node_id} is pending; once it was let in (`farm enrol {node_id}`): farm join {url}")
        return 1
    values = {"broker_url": account.broker_url, "node_name": node_id}
    write_private(config, updated_config(_read(config), values))
    if is_json:
        show.data(_came(url, node_id, config=config))
    else:
        print(f"{node_id} is in the farm at {url}; its settings are in {config}")
    for variable in given_in_environment(list(values)):
        show.note(f"{variable} is set and wins over that file: unset it")
    if account.to_type:
        show.note(f"the farm cannot make the account at its broker ({account.missing}).")
        show.note("Have this typed on the broker's machine:")
        for line in account.to_type:
            show.note(f"  {line}")
    else:
        _try_broker(account.broker_url, url)
    if not is_json:
        print("start it: farm worker")
    return 0


def _came(url: str, node_id: str, *, config: Path | None) -> dict[str, Any]:
    """`config`: where its settings were written; None: it is still pending."""
    return {
        "url": url,
        "node": node_id,
        "is_pending": config is None,
        "config": None if config is None else str(config),
    }


def full_url(text: str) -> str:
    """http:// and the port may be left out. Raises UserError."""
    text = text.strip().rstrip("/")
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UserError(f"'{shown(text, 80)}' is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
        raise UserError(
            f"'{shown(text, 80)}' is no address of a farm, such as http://192.168.1.7:{DEFAULT_PORT}"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or DEFAULT_PORT}"


def _code(given: str | None) -> str:
    if given is None:
        if not sys.stdin.isatty():
            raise UserError("give the code that `farm invite` printed on the farm: --code")
        given = input("code: ")
    read_code(given)
    return given


def _join_by_code(settings: Settings, url: str, node_id: str, code: str) -> str:
    """The node's token, written down already."""
    with closing(Client(url, "", advice=_NOBODY)) as client:
        joined = read(JoinView, client.post("/join", JoinRequest(code=code, node_id=node_id)))
    told = {"url": url, "node": node_id, "token": joined.token}
    write_private(settings.state_dir / NODE_FILE, json.dumps(told))
    apart_s = time.time() - joined.at
    if abs(apart_s) > _CLOCKS_APART_S:
        where = "ahead of" if apart_s > 0 else "behind"
        show.note(
            f"this machine's clock is {duration(abs(apart_s))} {where} the farm's: the farm minds no clocks, "
            "but files and logs will carry wrong times"
        )
    return joined.token


def _joined(settings: Settings) -> Mapping[str, str]:
    try:
        told = json.loads((settings.state_dir / NODE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) and all(isinstance(v, str) for v in told.values()) else {}


def _account(client: Client, *, is_waiting: bool, pause: Callable[[float], None] = time.sleep) -> AccountView:
    is_told = False
    while True:
        account = read(AccountView, client.post("/join/account"))
        if not account.is_pending or not is_waiting:
            return account
        if not is_told:
            is_told = True
            name = account.node_id
            show.note(f"{name} is pending: an administrator lets it in with `farm enrol {name}`")
        pause(_LOOK_S)


def _try_broker(url: str, farm_url: str) -> None:
    from kombu import Connection

    from farm.broker.publisher import BROKER_ERRORS

    try:
        with Connection(url, connect_timeout=5) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=5)
    except BROKER_ERRORS as error:
        where = f"{urlsplit(url).hostname}:{urlsplit(url).port or 5672}"
        show.note(
            f"but the broker at {where} does not take it ({shown(str(error), 200)}): can this machine reach "
            "it, and does it listen there? If nodes must call it otherwise, set broker_host_for_nodes on the "
            f"farm, and say here again: farm join {farm_url}"
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def updated_config(text: str, values: Mapping[str, str]) -> str:
    """The text of a `farm.toml` with these settings, the rest as it was. Raises UserError."""
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{config_to_write()} cannot be read: {error}") from error
    lines = text.splitlines()
    first_table = next((at for at, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    key = re.compile(r"\s*(?:" + "|".join(map(re.escape, values)) + r")\s*=") if values else None
    kept = [line for at, line in enumerate(lines) if key is None or at >= first_table or not key.match(line)]
    told = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    made = "\n".join([*told, *kept]).rstrip() + "\n"
    try:
        is_good = tomllib.loads(made) == before | dict(values)
    except tomllib.TOMLDecodeError:
        is_good = False
    if not is_good:
        raise UserError(
            f"{config_to_write()} is too unusual to be changed: set {', '.join(values)} in it by hand"
        )
    return made


# --- on the farm ----------------------------------------------------------------------------------------


def enrol(client: Client, names: Sequence[str], *, is_quiet: bool, is_json: bool) -> None:
    """All are looked up before the first is changed."""
    found = [str(find_node(client, name)["id"]) for name in dict.fromkeys(names)]
    answers = [client.post(f"/nodes/{quote(node_id, safe='')}/enrol") for node_id in found]
    if is_json:
        show.data(answers[0] if len(answers) == 1 else answers)
    elif not is_quiet:
        for node_id in found:
            show.line(f"{node_id} is let in")


def remove(client: Client, names: Sequence[str], *, force: bool, is_quiet: bool, is_json: bool) -> None:
    """All are looked up before the first is removed."""
    found = [str(find_node(client, name)["id"]) for name in dict.fromkeys(names)]
    query: dict[str, Any] = {"force": "true"} if force else {}
    for node_id in found:
        client.request("DELETE", f"/nodes/{quote(node_id, safe='')}", query=query)
        if not is_quiet and not is_json:
            show.line(f"{node_id} is removed")
    if is_json:
        show.data({"removed": found})
