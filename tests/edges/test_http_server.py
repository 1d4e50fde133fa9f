"""The API as a server: where it listens, the first token, events as they happen, its description."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from pydantic import TypeAdapter

from farm.errors import UserError
from farm.http import bodies, examples, server
from farm.http.app import make_app
from farm.http.server import Serving, check_address, ensure_first_token, is_loopback, serve
from farm.http.stream import _Reader
from farm.model.events import EventKind
from farm.model.work import Submission
from farm.settings import Settings
from farm.store import events
from farm.store.engine import open_engine, reading, writing
from tests.edges.api import V1
from tests.waiting import wait_until


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[sa.Engine]:
    opened = open_engine(sqlite_url)
    yield opened
    opened.dispose()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, api_port=0)


@pytest.fixture
def serving(engine: sa.Engine, settings: Settings) -> Iterator[Serving]:
    running = serve(engine, settings, nudge=lambda: None)
    yield running
    running.stop()


def client_of(url: str, token: str) -> httpx.Client:
    """One as patient as a busy machine asks for; httpx itself gives up after five seconds."""
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)


@pytest.fixture
def client(serving: Serving, engine: sa.Engine, settings: Settings) -> Iterator[httpx.Client]:
    token = ensure_first_token(engine, settings, url=serving.url)
    assert token is not None
    with client_of(serving.url, token) as opened:
        yield opened


# --- where it listens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "render.example", ""])
def test_an_address_on_the_network_needs_tls_or_a_persons_word(host: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="api_tls_certificate"):
        check_address(Settings(state_dir=tmp_path, api_host=host))
    check_address(Settings(state_dir=tmp_path, api_host=host, api_insecure=True))
    tls: dict[str, Any] = {"api_tls_certificate": tmp_path / "c.pem", "api_tls_key": tmp_path / "k.pem"}
    check_address(Settings(state_dir=tmp_path, api_host=host, **tls))


def test_half_of_tls_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs both"):
        check_address(Settings(state_dir=tmp_path, api_tls_key=tmp_path / "k.pem"))


def test_a_certificate_that_is_not_there_is_told(engine: sa.Engine, tmp_path: Path) -> None:
    tls: dict[str, Any] = {"api_tls_certificate": tmp_path / "c.pem", "api_tls_key": tmp_path / "k.pem"}
    with pytest.raises(UserError, match="cannot be used"):
        serve(engine, Settings(state_dir=tmp_path, api_port=0, **tls), nudge=lambda: None)


def test_loopback_is_told_apart() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "localhost.example", "128.0.0.1", ""))


def test_a_port_that_is_taken_is_told(engine: sa.Engine, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port}.*another farm"):
            serve(engine, Settings(state_dir=tmp_path, api_port=port), nudge=lambda: None)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="a certificate is made with openssl")
def test_tls_is_spoken(engine: sa.Engine, tmp_path: Path) -> None:
    key, certificate = tmp_path / "k.pem", tmp_path / "c.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-nodes",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ),
            *("-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    settings = Settings(state_dir=tmp_path, api_port=0, api_tls_certificate=certificate, api_tls_key=key)
    running = serve(engine, settings, nudge=lambda: None)
    try:
        assert running.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(certificate))
        assert httpx.get(f"{running.url}/healthz", verify=context).status_code == 200
    finally:
        running.stop()


def test_the_server_stops_and_frees_its_port(engine: sa.Engine, settings: Settings) -> None:
    running = serve(engine, settings, nudge=lambda: None)
    assert httpx.get(f"{running.url}/healthz").status_code == 200
    running.stop()
    assert not running.is_running
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{running.url}/healthz")


def test_an_upgrade_to_a_websocket_leads_nowhere(serving: Serving, client: httpx.Client) -> None:
    answer = client.get(
        f"{V1}/events/none",
        headers={
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Key": "x",
            "Sec-WebSocket-Version": "13",
        },
    )
    assert answer.status_code == 404


# --- the first token ----------------------------------------------------------------------------------


def test_the_first_start_writes_a_token_that_only_the_owner_can_read(
    engine: sa.Engine, settings: Settings
) -> None:
    old = os.umask(0)
    try:
        token = ensure_first_token(engine, settings, url="http://127.0.0.1:7450")
    finally:
        os.umask(old)
    path = settings.state_dir / "client.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {"url": "http://127.0.0.1:7450", "token": token}
    assert [p.name for p in settings.state_dir.iterdir() if "client" in p.name] == ["client.json"]
    assert token is not None
    with reading(engine) as db:
        assert token not in str(db.execute(sa.text("SELECT * FROM token")).all())


def test_the_second_start_makes_no_token_but_keeps_the_address_right(
    engine: sa.Engine, settings: Settings
) -> None:
    token = ensure_first_token(engine, settings, url="http://127.0.0.1:1")
    assert ensure_first_token(engine, settings, url="http://127.0.0.1:2") is None
    known = json.loads((settings.state_dir / "client.json").read_text())
    assert known == {"url": "http://127.0.0.1:2", "token": token}


def test_a_token_that_cannot_be_written_down_is_not_made(engine: sa.Engine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    settings = Settings(state_dir=tmp_path / "file")
    with pytest.raises(UserError, match="cannot be written"):
        ensure_first_token(engine, settings)
    with reading(engine) as db:
        assert db.scalar(sa.text("SELECT count(*) FROM token")) == 0


# --- events as they happen ----------------------------------------------------------------------------


class Listener:
    """Reads a stream in a thread."""

    def __init__(self, client: httpx.Client, **query: Any) -> None:
        self.lines: list[str] = []
        self.headers: dict[str, str] = {}
        self._arrived = threading.Condition()
        self._client = client
        self._query = query
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        self.wait_for(": listening")

    def _read(self) -> None:
        url = f"{V1}/events/stream"
        with (
            contextlib.suppress(httpx.TransportError),  # the test is over and has closed the client
            self._client.stream("GET", url, params=self._query) as answer,
        ):
            self.headers = dict(answer.headers)
            for line in answer.iter_lines():
                with self._arrived:
                    self.lines.append(line)
                    self._arrived.notify_all()

    def wait_for(self, line: str) -> None:
        with self._arrived:
            found = self._arrived.wait_for(lambda: line in self.lines, timeout=60)
        assert found, f"no {line!r} in {self.lines}"


def _happen(engine: sa.Engine, text: str, *, job_id: int | None = None) -> None:
    with writing(engine) as db:
        events.happened(db, EventKind.JOB_CHANGED, text, job_id=job_id)


def test_events_are_told_as_they_happen(client: httpx.Client, engine: sa.Engine) -> None:
    _happen(engine, "before")
    listener = Listener(client)
    _happen(engine, "after\nand a second line")
    listener.wait_for("id: 2")
    assert listener.headers["content-type"].startswith("text/event-stream")
    assert "id: 1" not in listener.lines
    data = next(line for line in listener.lines if line.startswith("data: "))
    assert json.loads(data.removeprefix("data: "))["text"] == "after\nand a second line"
    assert "event: job-changed" in listener.lines


def test_a_stream_goes_on_where_it_was_broken_off(client: httpx.Client, engine: sa.Engine) -> None:
    for n in range(3):
        _happen(engine, str(n))
    client.headers["Last-Event-ID"] = "1"
    listener = Listener(client)
    listener.wait_for("id: 3")
    assert [line for line in listener.lines if line.startswith("id: ")] == ["id: 2", "id: 3"]


def test_a_stream_may_be_of_one_job(client: httpx.Client, engine: sa.Engine) -> None:
    _happen(engine, "other", job_id=1)
    _happen(engine, "mine", job_id=2)
    listener = Listener(client, after=0, job_id=2)
    listener.wait_for("id: 2")
    assert "id: 1" not in listener.lines


def test_a_stream_ends_when_the_server_stops(
    engine: sa.Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_GRACE_S", 3_600)  # after which a stream that goes on is cut off
    running = serve(engine, settings, nudge=lambda: None)
    token = ensure_first_token(engine, settings, url=running.url)
    assert token is not None
    with client_of(running.url, token) as client:
        listener = Listener(client)
        running.stop(timeout_s=60)
        assert not running.is_running
        listener.thread.join(timeout=30)
        assert not listener.thread.is_alive()


def test_a_stream_ends_when_its_token_is_revoked(client: httpx.Client, engine: sa.Engine) -> None:
    made = client.post(f"{V1}/tokens", json={"name": "t", "user": "t"}).json()["token"]
    with client_of(str(client.base_url), made) as other:
        listener = Listener(other)
        assert client.delete(f"{V1}/tokens/t").status_code == 204
        listener.thread.join(timeout=60)
        assert not listener.thread.is_alive()


def test_a_listener_that_leaves_is_let_go(serving: Serving, client: httpx.Client) -> None:
    with client.stream("GET", f"{V1}/events/stream") as answer:
        lines = answer.iter_lines()  # kept: the client hangs up when nobody holds it
        next(lines)
        assert serving.app.state.streams == 1
    wait_until(lambda: serving.app.state.streams == 0, "it is let go")


def test_an_event_that_is_committed_late_is_told_all_the_same(engine: sa.Engine, tmp_path: Path) -> None:
    # PostgreSQL hands ids out before the commit: 2 may be seen before 1.
    app = make_app(engine, Settings(state_dir=tmp_path), nudge=lambda: None)
    reader = _Reader(app.state.desk, 0, None)
    statement = "INSERT INTO event (id, at, kind, text, actor) VALUES (%d, 0, 'job-changed', '', '')"
    told = []
    for event_id in (2, 1, 3):
        with writing(engine) as db:
            db.exec_driver_sql(statement % event_id)
        told.append([event.id for event in reader.read()])
    assert told == [[2], [1], [3]]


def test_more_events_than_fit_a_page_are_all_told(engine: sa.Engine, tmp_path: Path) -> None:
    app = make_app(engine, Settings(state_dir=tmp_path), nudge=lambda: None)
    with writing(engine) as db:
        blank = {
            "text": "",
            "actor": "",
            "job_id": None,
            "task_id": None,
            "attempt_id": None,
            "node_id": None,
        }
        events.happened_many(db, [{"kind": "job-changed", **blank}] * 2_500)
    reader = _Reader(app.state.desk, 0, None)
    told: list[int] = []
    for _ in range(4):
        told += [event.id for event in reader.read()]
    assert told == list(range(1, 2_501))


# --- the description ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    engine = sa.create_engine("sqlite://")
    app = make_app(engine, Settings(state_dir=Path("/nowhere")), nudge=lambda: None)
    engine.dispose()
    return app.openapi()


def test_every_route_is_described_with_answers_errors_and_examples(description: dict[str, Any]) -> None:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            assert operation["description"], where
            if path == "/healthz":
                continue
            answers = operation["responses"]
            assert {"401", "422", "503"} <= set(answers), where
            assert operation["security"], where
            for parameter in operation.get("parameters", []):
                assert parameter.get("description"), (where, parameter["name"])
            for status, answer in answers.items():
                if status == "204":
                    continue
                content = next(iter(answer["content"].values()))
                assert "example" in content or "examples" in content, (where, status)
                assert content["schema"], (where, status)
            if "requestBody" in operation:
                body = operation["requestBody"]["content"]["application/json"]
                assert body["examples"], where
                assert {"413", "415"} <= set(answers), where
            if "{" in path and path not in (f"{V1}/tokens/{{name}}", f"{V1}/limits/{{name}}"):
                assert "404" in answers, where


def test_the_examples_are_what_the_types_say() -> None:
    for name, value in vars(examples).items():
        if name.isupper() and name != "SUBMISSION":
            kind: Any = type(value)
            assert TypeAdapter(kind).validate_python(examples.shown(value)) == value, name
    assert isinstance(TypeAdapter(bodies.Submission).validate_python(examples.SUBMISSION), Submission)


def test_the_example_submission_is_accepted(client: httpx.Client) -> None:
    answer = client.post(f"{V1}/jobs", json=examples.SUBMISSION)
    assert answer.status_code == 201, answer.text


def test_the_description_and_its_page_load_nothing_from_elsewhere(client: httpx.Client) -> None:
    assert client.get(f"{V1}/openapi.json").json()["info"]["title"] == "Ridgeline"
    page = client.get("/docs")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script" not in page.text
    assert "POST /api/v1/jobs/{job_id}/retry" in page.text
