"""What the API lets in: tokens, hosts, origins, sizes, and JSON that later stages can hold."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from farm.control.desk.access import TOKEN_CACHE_S
from farm.http.guard import JOIN_PATH, Refused, check_json, host_names
from farm.store import tokens
from farm.store.engine import open_engine, writing
from tests.edges.api import V1, Api, open_api, submission

MOST = 200_000


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[sa.Engine]:
    opened = open_engine(sqlite_url)
    yield opened
    opened.dispose()


@pytest.fixture
def api(engine: sa.Engine, tmp_path: Path) -> Iterator[Api]:
    with open_api(engine, tmp_path, max_body_bytes=MOST, api_allowed_hosts=("farm.example",)) as opened:
        yield opened


def _every_route(api: Api) -> list[tuple[str, str]]:
    return [
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, methods in api.app.openapi()["paths"].items()
        for method in methods
    ]


def test_every_route_refuses_every_method_without_a_token(api: Api) -> None:
    routes = _every_route(api)
    assert len(routes) > 20
    for path in {path for _, path in routes} | {"/docs", f"{V1}/openapi.json", "/", "/nowhere"}:
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            if path == "/healthz":
                continue
            answer = api.nobody.request(method, path)
            if (method, path) == ("POST", JOIN_PATH):
                assert answer.status_code == 422, "it is the code in its body that lets in"
                continue
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert answer.json()["error"]["kind"] == "no-token"


def test_the_health_check_alone_is_open(api: Api) -> None:
    assert api.nobody.get("/healthz").json() == {"is_up": True}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic YTpi",
        "Bearer a b",
        "Bearer \xff",
        "Bearer " + "x" * 9_000,
    ],
)
def test_a_header_that_holds_no_known_token_is_refused(api: Api, header: str) -> None:
    answer = api.nobody.get(f"{V1}/farm", headers=[(b"authorization", header.encode("latin-1"))])
    assert answer.status_code == 401


def test_two_authorization_headers_are_refused(api: Api) -> None:
    token = f"Bearer {api.tokens['anna']}"
    answer = api.nobody.get(f"{V1}/farm", headers=[("Authorization", token), ("Authorization", token)])
    assert answer.status_code == 401


def test_a_token_in_the_address_does_not_count(api: Api) -> None:
    assert api.nobody.get(f"{V1}/farm", params={"token": api.tokens["admin"]}).status_code == 401


def test_a_token_that_was_revoked_here_is_refused_at_once(api: Api) -> None:
    assert api.anna.get(f"{V1}/farm").status_code == 200
    assert api.admin.delete(f"{V1}/tokens/anna-laptop").status_code == 204
    assert api.anna.get(f"{V1}/farm").status_code == 401


def test_a_token_that_was_revoked_elsewhere_is_believed_for_two_seconds_at_most(
    api: Api, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api.anna.get(f"{V1}/farm").status_code == 200
    with writing(engine) as db:
        tokens.revoke(db, "anna-laptop")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + TOKEN_CACHE_S)
    assert TOKEN_CACHE_S <= 2
    assert api.anna.get(f"{V1}/farm").status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:7450",
        "127.0.0.1",
        "127.0.0.1:80",
        "[::1]:7450",
        "farm.example",
        "farm.example.",
    ],
)
def test_the_farms_own_names_are_answered(api: Api, host: str) -> None:
    assert api.anna.get(f"{V1}/farm", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil.example:7450",
        "127.0.0.1.evil.example",
        "xfarm.example",
        "",
    ],
)
def test_another_host_name_is_refused_on_every_method(api: Api, method: str, host: str) -> None:
    for path in (f"{V1}/jobs", "/healthz"):
        answer = api.admin.request(method, path, headers={"Host": host})
        assert answer.status_code == 400, answer.text


def test_the_names_are_those_of_the_machine_and_of_the_settings() -> None:
    names = host_names(("render.example",), api_host="10.0.0.7", own="Server-1.studio.example")
    assert names == {
        "localhost", "127.0.0.1", "::1", "server-1", "server-1.studio.example", "render.example", "10.0.0.7"
    }  # fmt: skip
    assert "0.0.0.0" not in host_names((), api_host="0.0.0.0", own="x")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://localhost.evil.example", "http://["]
)
def test_a_page_of_another_origin_is_refused(api: Api, origin: str) -> None:
    for method, path in _every_route(api):
        answer = api.admin.request(method, path, headers={"Origin": origin})
        assert answer.status_code == 403, (method, path)
        assert not any(name.startswith("access-control") for name in answer.headers)


# --- bodies -------------------------------------------------------------------------------------------


def test_a_body_that_says_it_is_too_large_is_refused(api: Api) -> None:
    answer = api.anna.post(
        f"{V1}/jobs", content=b" " * (MOST + 1), headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()["error"]["kind"]) == (413, "too-large")


def test_a_body_in_pieces_is_cut_off_when_it_grows_too_large(api: Api) -> None:
    given = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal given
        while given < 100:
            given += 1
            yield b"[" * (MOST // 10)

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(
                f"{V1}/jobs",
                content=pieces(),
                headers={
                    "Authorization": f"Bearer {api.tokens['anna']}",
                    "Content-Type": "application/json",
                },
            )

    assert asyncio.run(post()).status_code == 413
    assert given < 20, "the body was read to its end"


def test_a_body_without_a_token_is_not_read(api: Api) -> None:
    answer = api.nobody.post(f"{V1}/jobs", content=b"x" * (MOST + 1))
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_only_json_is_taken(api: Api, kind: str) -> None:
    body = json.dumps(submission())
    answer = api.anna.post(f"{V1}/jobs", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 415


HOSTILE: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"1",
    b"{",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"[" * 100_000,
    b'{"a":' * 20_000,
    b'{"name": "x", "template": {}, "hints": {"a": NaN}}',
    b'{"name": "x", "template": {}, "settings": {"timeout_s": 1e999}}',
    b'{"name": "x", "template": {}, "settings": {"timeout_s": -Infinity}}',
    b'{"name": "\\ud800", "template": {}}',
    b'{"name": "a\\u0000b", "template": {}}',
    b'{"\\ud800": 1, "name": "x", "template": {}}',
    b'{"name": "\\u001b[2Jx", "template": {}}',
    b'{"name": "x", "template": {}, "settings": {"priority": ' + b"9" * 5_000 + b"}}",
    b'{"name": "x", "template": {}, "settings": {"priority": 99999999999999999999}}',
    b'{"name": "x", "template": {}, "settings": {"depends_on": [9223372036854775807]}}',
    b'{"name": "x", "template": {}, "settings": {"prio": 1}}',
    b'{"name": "x", "template": {}, "colour": "red"}',
    b'{"name": 7, "template": 8}',
    b'{"name": "", "template": {}}',
    b'{"name": "' + b"x" * 100_000 + b'", "template": {}}',
]


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: body[:40].decode("latin-1"))
def test_a_hostile_body_is_a_readable_refusal(api: Api, body: bytes) -> None:
    answer = api.anna.post(f"{V1}/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 404, 422), answer.text
    error = answer.json()["error"]
    assert error["kind"] in ("user-error", "not-found")
    assert error["message"]
    assert "\x1b" not in answer.text
    assert api.anna.get(f"{V1}/jobs").json()["items"] == []


ADDRESSES = """
/jobs/0 /jobs/-1 /jobs/x /jobs/1.5 /jobs/99999999999 /jobs/%00 /jobs?name=%00 /jobs?name=a%00b /jobs?name=%ff
/jobs?limit=0 /jobs?limit=1001 /jobs?limit=x /jobs?before=-1 /jobs?before=999999999999999999999
/jobs?state=nope
/tasks/9999999999999999999 /tasks/99999999999 /attempts/%00 /attempts/x /attempts/x/log?after=-2
/attempts/../../etc/passwd /attempts/x/log?after=99999999999 /nodes/%1b /nodes/x /events?after=-1
/events?after=999999999999999999999 /events?job_id=99999999999 /events/stream?after=x
/jobs/1/tasks?frames=1- /jobs/1/tasks?frames=1-999999999 /jobs/1/tasks?frames=nope
/jobs/1/tasks?step=nope /jobs/1/tasks?after=999999999999999999999
"""


@pytest.mark.parametrize("address", [*ADDRESSES.split(), "/jobs/" + "9" * 400])
def test_a_hostile_address_is_never_an_error_of_the_farms(api: Api, address: str) -> None:
    api.submit(api.anna)
    answer = api.anna.get(V1 + address)
    if answer.status_code != 200:
        assert answer.status_code in (400, 404, 422), answer.text
        assert answer.json()["error"]["message"]
    else:
        assert address in ("/jobs?name=%ff",), answer.text


_TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.text(max_size=5), child, max_size=3),
    max_leaves=10,
)


@hypothesis_settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    fields=st.dictionaries(
        st.sampled_from(
            ["name", "template", "parameters", "settings", "outputs", "kind", "hints", "software"]
        ),
        _TREES,
    )
)
def test_no_json_makes_the_server_fail(api: Api, fields: dict[str, Any]) -> None:
    body = json.dumps({"name": "x", "template": {}, **fields})
    answer = api.anna.post(f"{V1}/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 404, 413, 422), answer.text


def test_numbers_and_texts_that_cannot_be_kept_are_refused() -> None:
    texts = (b'["a\\u0000b"]', b'{"a\\u0000": 1}', b'["\\ud800"]', b'{"\\udfff": 1}')
    for body in (b"1e999", b"-1e999", b"NaN", b"[Infinity]", b'{"a": 18446744073709551616}', *texts):
        with pytest.raises(Refused):
            check_json(body)
    check_json(b'{"a": [1.5, 9223372036854775807, "\xc3\xa4 \xf0\x9f\x8e\xac", null]}')


# --- errors of the farm's own ----------------------------------------------------------------------------


def test_an_error_of_the_farms_own_tells_nothing_but_a_number_that_the_log_has(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("password=hunter2")

    api.app.add_api_route("/api/v1/broken", broken)
    answer = api.anna.get("/api/v1/broken")
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error["kind"] == "internal"
    assert "hunter2" not in answer.text
    number = error["message"].split()[-1]
    assert number in caplog.text
    assert "hunter2" in caplog.text


def test_an_absent_database_is_told_as_such_and_worth_another_try(tmp_path: Path, sqlite_url: str) -> None:
    engine = open_engine(sqlite_url)
    with open_api(engine, tmp_path) as api:
        engine.dispose()
        path = tmp_path / "farm.db"
        path.rename(tmp_path / "away.db")
        path.mkdir()
        answer = api.anna.get(f"{V1}/farm")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["kind"] == "unavailable"
        path.rmdir()
        (tmp_path / "away.db").rename(path)
        assert api.anna.get(f"{V1}/farm").status_code == 200
    engine.dispose()


def test_an_unknown_address_and_a_wrong_method_have_the_shape_of_every_error(api: Api) -> None:
    assert api.anna.get("/nowhere").json()["error"]["kind"] == "not-found"
    answer = api.anna.put(f"{V1}/jobs", json={})
    assert (answer.status_code, answer.json()["error"]["kind"]) == (405, "user-error")
