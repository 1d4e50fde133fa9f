"""Machines join by a code: through the API on both databases, and by the command line."""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from farm.control.desk.joining import JoiningDesk
from farm.errors import Unavailable
from farm.flow.joining import GUESSES
from farm.model.ids import NodeId
from farm.settings import Settings
from farm.store import nodes, tables
from farm.store.engine import writing
from tests.edges.api import V1, Api, open_api
from tests.edges.cli_farm import Cli, FakeFarm

BROKER = "amqp://farm:farm-secret@localhost:5672/farm"


class FakeAccounts:
    """Keeps accounts in a dictionary; `fault` is why it cannot."""

    def __init__(self) -> None:
        self.known: dict[NodeId, str] = {}
        self.fault = ""

    def put(self, node_id: NodeId, password: str) -> None:
        if self.fault:
            raise Unavailable(self.fault)
        self.known[node_id] = password

    def remove(self, node_id: NodeId) -> None:
        if self.fault:
            raise Unavailable(self.fault)
        self.known.pop(node_id, None)


@pytest.fixture
def accounts() -> FakeAccounts:
    return FakeAccounts()


@pytest.fixture
def api(engine: sa.Engine, tmp_path: Path, accounts: FakeAccounts) -> Iterator[Api]:
    with open_api(engine, tmp_path, broker_url=BROKER, api_allowed_hosts=("farm.site",)) as opened:
        settings = Settings(broker_url=BROKER, state_dir=tmp_path)
        opened.app.state.desk.joining = JoiningDesk(engine, settings, accounts)  # type: ignore[arg-type]
        yield opened


def invited(api: Api, **request: Any) -> str:
    answer = api.admin.post(f"{V1}/invites", json=request)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return str(answer.json()["code"])


def join(api: Api, code: str, name: str = "blade-4") -> tuple[int, Any]:
    answer = api.nobody.post(f"{V1}/join", json={"code": code, "node_id": name})
    body = answer.json()
    return answer.status_code, body if answer.is_success else body["error"]["message"]


def account(api: Api, token: str, host: str = "farm.site") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}", "Host": host}
    answer = api.nobody.post(f"{V1}/join/account", json={}, headers=headers)
    body = answer.json()
    return answer.status_code, body if answer.is_success else body["error"]["message"]


def state(api: Api, name: str = "blade-4") -> tuple[str, str]:
    node = api.admin.get(f"{V1}/nodes/{name}").json()
    return node["state"], node["reason"]


def events(api: Api) -> list[str]:
    return [event["kind"] for event in api.admin.get(f"{V1}/events").json()["items"]]


def test_a_code_lets_one_machine_in_with_a_token_and_an_account_of_its_own(
    api: Api, accounts: FakeAccounts
) -> None:
    status, joined = join(api, invited(api).lower())
    assert (status, joined["is_pending"]) == (201, False)
    assert state(api) == ("offline", "has joined, and was not heard yet: `farm worker` starts it there")
    status, made = account(api, joined["token"])
    assert status == 200
    password = accounts.known[NodeId("blade-4")]
    # The broker is at "localhost" for the server: the node reaches it where it reached the server.
    assert made["broker_url"] == f"amqp://farm-node-blade-4:{password}@farm.site:5672/farm"
    assert (made["missing"], made["to_type"]) == ("", [])
    assert "farm-secret" not in json.dumps(made)
    assert account(api, joined["token"])[1]["broker_url"] != made["broker_url"], "a new password each time"
    assert events(api) == ["node-joined"]
    assert {entry["target"] for entry in api.admin.get(f"{V1}/audit").json()["items"]} == {
        "invite",
        "node blade-4",
    }


def test_a_code_is_good_once(api: Api) -> None:
    code = invited(api)
    assert join(api, code)[0] == 201
    status, told = join(api, code, "blade-5")
    assert (status, told) == (403, "the code was used by blade-4: each lets one machine in; ask for another")
    assert [node["id"] for node in api.admin.get(f"{V1}/nodes").json()["items"]] == ["blade-4"]


def test_a_code_that_ran_out_says_so(api: Api, engine: sa.Engine) -> None:
    code = invited(api, life_s=60)
    with writing(engine) as db:
        db.execute(sa.update(tables.InviteRow.__table__).values(until=sa.text("until - 200")))  # type: ignore[attr-defined]
    status, told = join(api, code)
    assert status == 403
    assert told.startswith("the code ran out 2:2")


def test_a_code_for_one_name_takes_no_other_and_also_one_that_is_known(api: Api) -> None:
    code = invited(api, node_id="blade-4")
    assert join(api, code, "blade-5") == (
        403,
        "the code is for the node blade-4, not for blade-5: join with --name",
    )
    _, first = join(api, code)
    status, told = join(api, invited(api))
    assert status == 409
    assert told.startswith("there is a node named blade-4 already, which is offline: choose another --name")
    _, second = join(api, invited(api, node_id="blade-4"))
    assert account(api, first["token"])[0] == 401, "the old token is of no use any more"
    assert account(api, second["token"])[0] == 200


def test_a_refused_name_leaves_the_code_good(api: Api) -> None:
    code = invited(api)
    join(api, invited(api))
    assert join(api, code)[0] == 409
    assert join(api, code, "blade-5")[0] == 201


@pytest.mark.parametrize("name", ["", "a b", "x" * 64, "[/]", "\u202eblade", "a\x1b]52;c;aGk=\x07"])
def test_hostile_names_are_refused_and_cost_no_code(api: Api, name: str) -> None:
    code = invited(api)
    status, told = join(api, code, name)
    assert status == 400
    assert told.isprintable()
    assert join(api, code)[0] == 201


def test_guessing_is_barred_and_fills_no_table(api: Api) -> None:
    code = invited(api)
    before = len(api.admin.get(f"{V1}/audit").json()["items"])
    for _ in range(GUESSES):
        assert join(api, "2222-2222-2222")[0] == 403
    for _ in range(5):
        status, told = join(api, code)
        assert status == 429
        assert told.startswith("too many wrong codes: none is taken for ")
    assert join(api, "no code at all")[0] == 429
    assert len(api.admin.get(f"{V1}/audit").json()["items"]) == before + GUESSES
    api.app.state.desk.joining._guesses._wrong.clear()
    assert join(api, code)[0] == 201
    for _ in range(30):
        join(api, "no code at all")
        api.nobody.post(f"{V1}/join", json={"nonsense": 1})
    assert len(api.admin.get(f"{V1}/audit").json()["items"]) == before + GUESSES + 1


def test_a_pending_node_gets_no_account_and_no_work_until_it_is_let_in(
    api: Api, engine: sa.Engine, accounts: FakeAccounts
) -> None:
    _, joined = join(api, invited(api, needs_approval=True))
    assert joined["is_pending"]
    assert state(api) == ("pending", "waits for an administrator to let it in: `farm enrol`")
    assert account(api, joined["token"]) == (
        200,
        {"node_id": "blade-4", "is_pending": True, "broker_url": None, "missing": "", "to_type": []},
    )
    assert accounts.known == {}
    with writing(engine) as db:
        nodes.watch(db, suspect_s=0, offline_s=0)
        assert not any(view.accepts_work for view in nodes.views(db, {}))
    assert state(api)[0] == "pending"
    assert api.anna.post(f"{V1}/nodes/blade-4/enrol", json={}).status_code == 403
    answer = api.admin.post(f"{V1}/nodes/blade-4/enrol", json={})
    assert (answer.status_code, answer.json()["state"]) == (200, "offline")
    assert account(api, joined["token"])[1]["broker_url"]
    again = api.admin.post(f"{V1}/nodes/blade-4/enrol", json={})
    assert again.status_code == 409
    assert "waits for nobody" in again.json()["error"]["message"]
    assert api.admin.post(f"{V1}/nodes/nowhere/enrol", json={}).status_code == 404


def test_the_farm_s_setting_makes_all_of_them_wait(engine: sa.Engine, tmp_path: Path) -> None:
    with open_api(engine, tmp_path, broker_url=BROKER, join_needs_approval=True) as api:
        assert join(api, invited(api))[1]["is_pending"]


def test_where_the_farm_cannot_make_accounts_it_says_what_to_type(api: Api, accounts: FakeAccounts) -> None:
    accounts.fault = "there is no rabbitmqctl here"
    _, joined = join(api, invited(api))
    _, made = account(api, joined["token"])
    assert made["missing"] == accounts.fault
    password = made["broker_url"].partition(":")[2].split(":")[1].partition("@")[0]
    assert made["to_type"][0] == f"rabbitmqctl add_user farm-node-blade-4 {password}"
    assert made["to_type"][1].startswith("rabbitmqctl set_permissions -p farm farm-node-blade-4 '^(node")


def test_a_node_s_token_is_good_for_its_account_alone(api: Api) -> None:
    _, joined = join(api, invited(api))
    headers = {"Authorization": f"Bearer {joined['token']}"}
    for method, path in (
        ("GET", "/farm"),
        ("GET", "/jobs"),
        ("POST", "/jobs"),
        ("POST", "/join"),
        ("GET", "/tokens"),
    ):
        answer = api.nobody.request(method, f"{V1}{path}", headers=headers, json={})
        assert answer.status_code == 403, path
        assert "may ask for its own account only" in answer.json()["error"]["message"]
    for client in (api.anna, api.admin):
        assert client.post(f"{V1}/join/account", json={}).status_code == 403
    listed = api.admin.get(f"{V1}/tokens").json()["items"]
    assert {"name": "node blade-4", "user": "blade-4", "role": "node"} in listed
    made = api.admin.post(f"{V1}/tokens", json={"name": "x", "user": "x", "role": "node"})
    assert made.status_code == 400


def test_a_removed_node_has_neither_token_nor_account(api: Api, accounts: FakeAccounts) -> None:
    _, joined = join(api, invited(api))
    account(api, joined["token"])
    assert api.anna.delete(f"{V1}/nodes/blade-4").status_code == 403
    assert api.admin.delete(f"{V1}/nodes/blade-4").status_code == 204
    assert accounts.known == {}
    api.app.state.desk.access._owners.clear()  # as after TOKEN_CACHE_S
    assert account(api, joined["token"])[0] == 401
    assert api.admin.get(f"{V1}/nodes").json()["items"] == []
    assert api.admin.delete(f"{V1}/nodes/blade-4").status_code == 404
    assert join(api, invited(api))[0] == 201


def test_a_node_that_works_is_removed_by_force_only(
    api: Api, engine: sa.Engine, accounts: FakeAccounts
) -> None:
    _, joined = join(api, invited(api))
    account(api, joined["token"])
    with writing(engine) as db:
        db.execute(sa.update(tables.NodeRow.__table__).values(state="online"))  # type: ignore[attr-defined]
    answer = api.admin.delete(f"{V1}/nodes/blade-4")
    assert answer.status_code == 409
    assert answer.json()["error"]["message"] == "blade-4 is online: stop its agent first, or use --force"
    accounts.fault = "there is no rabbitmqctl here"
    assert api.admin.delete(f"{V1}/nodes/blade-4", params={"force": "true"}).status_code == 204


def test_an_account_that_cannot_be_removed_is_told(api: Api, accounts: FakeAccounts) -> None:
    join(api, invited(api))
    accounts.fault = "there is no rabbitmqctl here"
    answer = api.admin.delete(f"{V1}/nodes/blade-4")
    assert answer.status_code == 409
    assert "rabbitmqctl delete_user farm-node-blade-4" in answer.json()["error"]["message"]
    assert state(api)[0] == "offline"


def test_only_an_admin_invites_and_only_for_a_while(api: Api) -> None:
    assert api.anna.post(f"{V1}/invites", json={}).status_code == 403
    for life_s in (0, -1, 90_000, 1e300):
        answer = api.admin.post(f"{V1}/invites", json={"life_s": life_s})
        assert answer.status_code == 400, life_s
    assert api.admin.post(f"{V1}/invites", json={"node_id": "a b"}).status_code == 400


def test_a_farm_in_one_process_says_that_nobody_can_join(engine: sa.Engine, tmp_path: Path) -> None:
    with open_api(engine, tmp_path) as api:
        answer = api.admin.post(f"{V1}/invites", json={})
        assert answer.status_code == 409
        assert "set broker_url to RabbitMQ" in answer.json()["error"]["message"]
        assert join(api, "K7QD-4M2X-9TRF")[0] == 409


# --- the command line -------------------------------------------------------------------------------------

JOINED = {"node_id": "blade-4", "token": "rl_of-blade-4", "is_pending": False, "at": 1_796_000_000.0}
ACCOUNT = {
    "node_id": "blade-4",
    "is_pending": False,
    "broker_url": "amqp://node-blade-4:pw@127.0.0.1:9/farm",
    "missing": "",
    "to_type": [],
}
CODE = "K7QD-4M2X-9TRF"


def written(cli: Cli) -> Path:
    return cli.folder / ".config/ridgeline/farm.toml"


def test_join_writes_what_farm_worker_needs_for_its_owner_alone(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("POST", "/join", JOINED, status=201)
    farm.answer("POST", "/join/account", ACCOUNT)
    result = cli("join", farm.url, "--code", CODE, "--name", "blade-4")
    assert result.status == 0, result.err
    assert result.out.splitlines()[-1] == "start it: farm worker"
    assert "authorization" not in farm.last("POST", "/join").headers
    assert farm.last("POST", "/join").body == {"code": CODE, "node_id": "blade-4"}
    assert farm.last("POST", "/join/account").headers["authorization"] == "Bearer rl_of-blade-4"
    assert tomllib.loads(written(cli).read_text()) == {
        "broker_url": ACCOUNT["broker_url"],
        "node_name": "blade-4",
    }
    for path in (written(cli), cli.folder / "state/node.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "does not take it" in result.err, "nobody listens at port 9"
    assert "clock is" in result.err
    # Once in, it needs no code; the settings are what the farm says now.
    again = cli("join", farm.url, "--name", "blade-4", "--json")
    assert json.loads(again.out) == {
        "url": farm.url, "node": "blade-4", "is_pending": False, "config": str(written(cli)),
    }  # fmt: skip
    assert len([seen for seen in farm.seen if seen.path == "/join"]) == 1


def test_join_keeps_the_rest_of_the_file(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("POST", "/join", JOINED, status=201)
    farm.answer("POST", "/join/account", ACCOUNT)
    written(cli).parent.mkdir(parents=True)
    written(cli).write_text('# mine\nbroker_url = "memory://"\nslots = 3\n[attributes]\nnode_name = ["x"]\n')
    cli.good("join", farm.url, "--code", CODE, "--name", "blade-4")
    text = written(cli).read_text()
    assert "# mine" in text
    assert tomllib.loads(text) == {
        "broker_url": ACCOUNT["broker_url"], "node_name": "blade-4", "slots": 3,
        "attributes": {"node_name": ["x"]},
    }  # fmt: skip


def test_a_file_that_cannot_be_changed_is_told_before_the_code_is_spent(cli: Cli, farm: FakeFarm) -> None:
    written(cli).parent.mkdir(parents=True)
    written(cli).write_text("slots = \n")
    assert "cannot read" in cli.bad("join", farm.url, "--code", CODE)
    assert farm.seen == []


def test_a_pending_machine_says_what_to_do(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("POST", "/join", JOINED | {"is_pending": True}, status=201)
    farm.answer("POST", "/join/account", ACCOUNT | {"is_pending": True, "broker_url": None})
    result = cli("join", farm.url, "--code", CODE, "--name", "blade-4", "--no-wait")
    assert result.status == 1
    assert (
        f"blade-4 is pending; once it was let in (`farm enrol blade-4`): farm join {farm.url}" in result.out
    )
    assert not written(cli).exists()
    farm.answers.pop(("POST", "/join/account"))
    farm.answer("POST", "/join/account", ACCOUNT)
    assert "blade-4 is in the farm" in cli.good("join", farm.url), "as it was told to say"
    assert cli("join", farm.url, "--name", "blade-4").status == 0


def test_what_must_be_typed_by_hand_is_shown(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("POST", "/join", JOINED, status=201)
    farm.answer(
        "POST",
        "/join/account",
        ACCOUNT | {"missing": "no rabbitmqctl", "to_type": ["rabbitmqctl add_user x y"]},
    )
    result = cli("join", farm.url, "--code", CODE, "--name", "blade-4")
    assert result.status == 0
    assert "(no rabbitmqctl)" in result.err
    assert "  rabbitmqctl add_user x y" in result.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("ftp://x", "--code", CODE), "is no address of a farm"),
        (("http://x:99999", "--code", CODE), "is no address"),
        (("http://x/api/v1", "--code", CODE), "is no address of a farm"),
        (("http://127.0.0.1:9", "--code", "short"), "is no code"),
        (("http://127.0.0.1:9",), "give the code that `farm invite` printed"),
        (("http://127.0.0.1:9", "--code", CODE, "--name", "a b"), "is no name for a node"),
        (("http://127.0.0.1:9", "--code", "\x1b]52;c;aGk=\x07"), "is no code"),
    ],
)
def test_what_was_typed_wrongly_is_told(lonely_cli: Cli, arguments: tuple[str, ...], told: str) -> None:
    error = lonely_cli.bad("join", *arguments)
    assert told in error
    assert "\x1b" not in error


def test_a_farm_that_does_not_answer_is_told(lonely_cli: Cli) -> None:
    error = lonely_cli.bad("join", "http://127.0.0.1:9", "--code", CODE, status=3)
    assert "no farm answers at http://127.0.0.1:9: is it started there" in error


def test_a_refusal_is_shown_as_the_farm_says_it(cli: Cli, farm: FakeFarm) -> None:
    farm.fail("POST", "/join", 403, "forbidden", "the code was used by blade-1")
    assert "the code was used by blade-1" in cli.bad("join", farm.url, "--code", CODE)
    farm.answers.clear()
    farm.fail("POST", "/join", 429, "too-many", "too many wrong codes: none is taken for 9:41")
    assert "none is taken for 9:41" in cli.bad("join", farm.url, "--code", CODE)


def test_a_variable_that_would_win_over_the_file_is_named(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("POST", "/join", JOINED, status=201)
    farm.answer("POST", "/join/account", ACCOUNT)
    cli.patch.setenv("FARM_BROKER_URL", "amqp://other//")
    result = cli("join", farm.url, "--code", CODE, "--name", "blade-4")
    assert "FARM_BROKER_URL is set and wins over that file" in result.err


def test_invite_prints_what_to_type_or_the_code_alone(cli: Cli, farm: FakeFarm) -> None:
    made = {"code": CODE, "until": 1.0, "node_id": None, "needs_approval": False}
    farm.answer("POST", "/invites", made, status=201)
    told = cli.good("invite", "--for", "2h")
    assert "within 2:00:00" in told
    assert f"--code {CODE}" in told
    assert "farm enrol" not in told
    assert farm.last("POST", "/invites").body == {"node_id": None, "life_s": 7200.0, "needs_approval": False}
    assert cli.good("invite", "--quiet") == f"{CODE}\n"
    farm.answers.clear()
    farm.answer("POST", "/invites", made | {"needs_approval": True, "node_id": "b"}, status=201)
    told = cli.good("invite", "--approve", "--name", "b")
    assert "--name b" in told
    assert "farm enrol NODE" in told
    assert "is no name" in cli.bad("invite", "--name", "a b")


def test_enrol_and_remove_look_all_names_up_first(cli: Cli, farm: FakeFarm) -> None:
    from tests.edges.cli_farm import a_node, page

    farm.answer("GET", "/nodes", page(a_node()))
    name = a_node().id
    for words in (("enrol",), ("remove-node",)):
        assert "there is no node 'nowhere'" in cli.bad(*words, name, "nowhere")
    farm.answer("POST", f"/nodes/{name}/enrol", a_node())
    farm.answer("DELETE", f"/nodes/{name}", {}, status=204)
    assert cli.good("enrol", name) == f"{name} is let in\n"
    assert cli.good("remove-node", name, "--force") == f"{name} is removed\n"
    assert farm.last("DELETE", f"/nodes/{name}").query == {"force": ["true"]}
