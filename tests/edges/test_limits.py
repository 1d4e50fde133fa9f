"""Limits through the API and on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from farm.http import examples
from farm.store.engine import open_engine
from tests.edges.api import V1, Api, open_api
from tests.edges.cli_farm import Cli, FakeFarm


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[sa.Engine]:
    opened = open_engine(sqlite_url)
    yield opened
    opened.dispose()


@pytest.fixture
def api(engine: sa.Engine, tmp_path: Path) -> Iterator[Api]:
    with open_api(engine, tmp_path, limits={"nuke": 2}, max_running_of={"bert": 0}) as opened:
        yield opened


def test_an_admin_sets_limits_and_everybody_sees_them(api: Api) -> None:
    made = api.admin.put(f"{V1}/limits/Arnold", json={"amount": 2, "per": "node"})
    assert made.status_code == 200, made.text
    listed = api.anna.get(f"{V1}/limits").json()["items"]
    assert [(limit["name"], limit["amount"], limit["per"], limit["free"]) for limit in listed] == [
        ("arnold", 2, "node", 2)
    ]
    assert api.admin.put(f"{V1}/limits/arnold", json={"amount": 3}).json()["per"] == "task"
    assert api.admin.delete(f"{V1}/limits/arnold").status_code == 204
    assert api.admin.delete(f"{V1}/limits/arnold").status_code == 404
    told = [entry["target"] for entry in api.admin.get(f"{V1}/audit").json()["items"]]
    assert told.count("limit arnold") == 3


@pytest.mark.parametrize(
    ("name", "body", "status", "says"),
    [
        ("arnold", {"amount": -1}, 400, "0 to 1,000,000"),
        ("arnold", {"amount": 1, "per": "frame"}, 422, "per"),
        ("arnold", {"amount": 1, "pre": "node"}, 422, "pre"),
        ("arnold", {}, 422, "amount"),
        ("two words", {"amount": 1}, 400, "cannot be named"),
    ],
)
def test_a_wrong_limit_is_refused_by_name(
    api: Api, name: str, body: dict[str, object], status: int, says: str
) -> None:
    answer = api.admin.put(f"{V1}/limits/{name}", json=body)
    assert answer.status_code == status, answer.text
    assert says in answer.text


def test_only_an_admin_changes_limits(api: Api) -> None:
    assert api.anna.put(f"{V1}/limits/arnold", json={"amount": 1}).status_code == 403
    assert api.anna.delete(f"{V1}/limits/arnold").status_code == 403


def test_a_job_that_names_a_limit_that_is_not_there_is_refused(api: Api) -> None:
    wrong = api.anna.post(f"{V1}/jobs", json=submission(limits={"arnlod": 1}))
    assert wrong.status_code == 400
    assert "there is no limit 'arnlod'; limits are: nuke" in wrong.text
    dry = api.anna.post(f"{V1}/jobs", params={"dry_run": "true"}, json=submission(limits={"arnlod": 1}))
    assert dry.status_code == 400
    assert api.anna.post(f"{V1}/jobs", json=submission(limits={"nuke": 0})).status_code == 400


def submission(**settings: object) -> dict[str, object]:
    from tests.edges.api import submission as plain

    return plain(settings=settings)


def test_why_names_limits_and_the_user_s_own(api: Api) -> None:
    api.admin.put(f"{V1}/limits/arnold", json={"amount": 0})
    job_id = api.submit(api.anna, settings={"limits": {"arnold": 1}})
    told = [line["text"] for line in api.anna.get(f"{V1}/jobs/{job_id}/why").json()["lines"]]
    assert "limit arnold: 1 needed, the farm has 0: needs `farm limits set arnold 1` at least" in told
    [limit] = api.anna.get(f"{V1}/limits").json()["items"]
    assert limit["waiting"] == 10
    his = api.submit(api.bert)
    told = [line["text"] for line in api.bert.get(f"{V1}/jobs/{his}/why").json()["lines"]]
    assert any("bert has as many tasks running as one user may" in text for text in told)


def test_a_job_takes_of_other_limits_from_now_on(api: Api, engine: sa.Engine) -> None:
    api.admin.put(f"{V1}/limits/arnold", json={"amount": 0})
    job_id = api.submit(api.anna, settings={"limits": {"arnold": 1}})

    def change(limits: dict[str, int], *, by: httpx.Client = api.anna) -> httpx.Response:
        return by.patch(f"{V1}/jobs/{job_id}", json={"limits": limits})

    def waits() -> list[str]:
        told = [line["text"] for line in api.anna.get(f"{V1}/jobs/{job_id}/why").json()["lines"]]
        return [text.split(":")[0] for text in told if text.startswith("limit")]

    def needs() -> list[tuple[str, int]]:
        with engine.connect() as db:
            return [
                (row.name, row.amount) for row in db.execute(sa.text("SELECT name, amount FROM step_limit"))
            ]

    assert (waits(), needs()) == (["limit arnold"], [("arnold", 1)])
    assert change({"arnlod": 2}).status_code == 400
    assert change({"arnold": 0}).status_code == 400
    assert change({"arnold": 2}, by=api.bert).status_code == 403
    assert (waits(), needs()) == (["limit arnold"], [("arnold", 1)])
    told = change({"arnold": 2}).json()["job"]
    assert told["settings"]["limits"] == {"arnold": 2}
    assert needs() == [("arnold", 2)]
    assert change({}).status_code == 200
    assert (waits(), needs()) == ([], [])
    events = api.anna.get(f"{V1}/events", params={"job_id": job_id}).json()["items"]
    told = [event["text"] for event in events if event["kind"] == "job-changed"]
    assert told == ["limits arnold=2", "no limits"]


def test_limits_on_the_command_line(cli: Cli, farm: FakeFarm) -> None:
    limit = examples.shown(examples.LIMIT)
    farm.answer("GET", "/limits", {"items": [limit], "next": None})
    out = cli.good("limits")
    assert "arnold" in out
    assert "job 12 (10)" in out
    farm.answer("PUT", "/limits/arnold", limit | {"amount": 4})
    assert "nothing more starts" in cli.good("limits", "set", "arnold", "4")
    assert farm.seen[-1].body == {"amount": 4, "per": "task"}
    farm.answer("DELETE", "/limits/arnold", None, status=204)
    assert cli.good("limits", "remove", "arnold") == "limit arnold is removed\n"
    assert "cannot be named" in cli("limits", "set", "two words", "4").err
