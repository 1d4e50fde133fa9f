"""What the command line does when the farm is slow, away, or says no."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from farm.cli.client import CLIENT_FILE, Client, endpoint
from farm.errors import FarmError, Unavailable, UserError
from farm.settings import Settings
from tests.edges.cli_farm import TOKEN, Cli, FakeFarm, a_view, an_event, page


def test_no_farm_is_exit_3_and_says_how_to_start_one(lonely_cli: Cli) -> None:
    error = lonely_cli.bad("jobs", status=3)
    assert "http://127.0.0.1:9" in error
    assert "farm up" in error


def test_every_request_carries_the_token(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/nodes", page())
    cli.good("nodes")
    assert farm.last("GET", "/nodes").headers["authorization"] == f"Bearer {TOKEN}"


def test_an_unknown_token_says_what_to_do(cli: Cli, farm: FakeFarm) -> None:
    farm.fail("GET", "/nodes", 401, "no-token", "no such token")
    error = cli.bad("nodes")
    assert "FARM_API_TOKEN" in error
    assert TOKEN not in error


def test_a_busy_farm_is_asked_again(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/nodes", {"error": {"kind": "unavailable", "message": "busy"}}, status=503)
    farm.answer("GET", "/nodes", page())
    cli.good("nodes")
    assert len(farm.seen) == 2


def test_a_farm_that_stays_busy_is_exit_3_within_patience(farm: FakeFarm) -> None:
    farm.fail("GET", "/nodes", 503, "unavailable", "the database cannot be reached")
    client = Client(farm.url, TOKEN, patience_s=0.5)
    with pytest.raises(Unavailable, match="the database cannot be reached"):
        client.get("/nodes")
    client.close()
    assert 2 <= len(farm.seen) <= 4


def test_a_fault_of_the_farm_is_exit_3(cli: Cli, farm: FakeFarm) -> None:
    farm.fail("GET", "/nodes", 500, "internal", "see the server's log")
    assert "see the server's log" in cli.bad("nodes", status=3)


def test_another_server_on_the_port_is_told(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/nodes", {"detail": "Not Found"}, status=404)
    assert "api_url" in cli.bad("nodes")
    farm.answers.clear()
    farm.answer("GET", "/nodes", "<html>a printer</html>")
    assert "no Ridgeline farm" in cli.bad("nodes")


def test_an_answer_of_another_shape_is_one_line(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs/12", {"job": {"id": "x"}})
    error = cli.bad("job", "12")
    assert "farm version" in error
    assert len(error.splitlines()) == 1


def test_fields_of_a_newer_farm_are_ignored(cli: Cli, farm: FakeFarm) -> None:
    view = json.loads(json.dumps(page(a_view())["items"][0])) | {"novelty": 1}
    farm.answer("GET", "/jobs/12", view)
    farm.answer("GET", "/jobs/12/tasks", page())
    assert "shot_010" in cli.good("job", "12")


def test_a_list_is_read_to_its_end(farm: FakeFarm) -> None:
    farm.answer("GET", "/events", page(an_event(id=1), an_event(id=2), following=2))
    farm.answer("GET", "/events", page(an_event(id=3)))
    client = Client(farm.url, TOKEN)
    assert [item["id"] for item in client.items("/events")] == [1, 2, 3]
    client.close()
    assert farm.seen[1].query["after"] == ["2"]


def test_the_servers_own_file_gives_url_and_token(lonely_cli: Cli, farm: FakeFarm) -> None:
    lonely_cli.patch.delenv("FARM_API_URL")
    state = lonely_cli.folder / "state"
    state.mkdir()
    (state / CLIENT_FILE).write_text(json.dumps({"url": farm.url, "token": "rl_local"}))
    farm.answer("GET", "/nodes", page())
    lonely_cli.good("nodes")
    assert farm.last("GET", "/nodes").headers["authorization"] == "Bearer rl_local"


def test_the_local_token_is_never_sent_to_another_farm(lonely_cli: Cli) -> None:
    state = lonely_cli.folder / "state"
    state.mkdir()
    (state / CLIENT_FILE).write_text(json.dumps({"url": "http://127.0.0.1:7450", "token": "rl_local"}))
    elsewhere = Settings(state_dir=state, api_url="https://farm.example:7450")
    assert endpoint(elsewhere) == ("https://farm.example:7450", "")
    assert endpoint(Settings(state_dir=state))[1] == "rl_local"


@pytest.mark.parametrize("url", ["ftp://farm", "http://[", "nonsense", "http://\x00"])
def test_a_url_that_is_none_is_a_readable_error(url: str) -> None:
    with pytest.raises(FarmError), closing(Client(url, TOKEN)) as client:
        client.get("/farm")


def test_a_token_that_is_no_token_is_told() -> None:
    with pytest.raises(UserError, match="api_token"):
        Client("http://127.0.0.1:9", "tökén")


def test_a_damaged_file_of_the_server_is_named(lonely_cli: Cli) -> None:
    state = lonely_cli.folder / "state"
    state.mkdir()
    (state / CLIENT_FILE).write_text("{")
    assert CLIENT_FILE in lonely_cli.bad("jobs")
