"""Hooks from the event to the call: nothing lost, nothing twice, and nobody reached who must not be."""

from __future__ import annotations

import json
import smtplib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from farm.control.hooks import HookCaller, HookError, post, run_command
from farm.model.events import EventKind
from farm.model.hooks import Hook, HookEvent
from farm.model.ids import JobId
from farm.settings import Settings
from farm.store import events, hooks, steering
from farm.store.engine import db_now, open_engine, reading, writing
from farm.store.tables import EventRow, HookCallRow
from tests.contract.stored_farm import submit

_CALL = HookCallRow.__table__  # type: ignore[attr-defined]
_EVENT = EventRow.__table__  # type: ignore[attr-defined]
TOLD = {"id": 1, "event": "done", "job": {"name": "shot $(touch x)"}}


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[sa.Engine]:
    opened = open_engine(sqlite_url)
    yield opened
    opened.dispose()


class Site:
    """A web site on this machine that says `status` to everything."""

    def __init__(self) -> None:
        self.status, self.headers = 200, dict[str, str]()
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                site.seen.append((self.path, dict(self.headers), body))
                self.send_response(site.status)
                for name, value in site.headers.items():
                    self.send_header(name, value)
                self.end_headers()

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    opened = Site()
    yield opened
    opened.close()


def caller(engine: sa.Engine, tmp_path: Path, **given: Any) -> HookCaller:
    return HookCaller(engine, Settings(state_dir=tmp_path, **given))


def end(engine: sa.Engine, job_id: JobId) -> None:
    """Every task cancelled, then said to be done: what counts here is the event."""
    with writing(engine) as db:
        events.happened(db, EventKind.JOB_DONE, "shot", job_id=job_id)


def make_due(engine: sa.Engine) -> None:
    with writing(engine) as db:
        db.execute(sa.update(_CALL).values(due_at=0.0))


def test_an_event_calls_the_hook_once_whatever_is_looked_at_again(
    engine: sa.Engine, tmp_path: Path, site: Site
) -> None:
    chat = Hook(url=f"http://127.0.0.1:{site.port}/x", on=(HookEvent.DONE,))
    asked, other = submit(engine, hooks=("chat",)), submit(engine)
    call = caller(engine, tmp_path, hooks={"chat": chat}, hook_hosts=("127.0.0.1",))
    call.round()
    end(engine, asked)
    end(engine, other)
    assert [call.round() for _ in range(3)] == [1, 0, 0]
    ((path, headers, body),) = site.seen
    assert (path, headers["Content-Type"], headers["Host"]) == (
        "/x", "application/json", f"127.0.0.1:{site.port}"
    )  # fmt: skip
    assert (body["event"], body["job"]["id"]) == ("done", asked)


def test_a_call_that_fails_is_tried_again_with_the_same_number_and_then_given_up(
    engine: sa.Engine, tmp_path: Path, site: Site
) -> None:
    site.status = 500
    chat = Hook(url=f"http://127.0.0.1:{site.port}/x")
    job_id = submit(engine, hooks=("chat",))
    call = caller(engine, tmp_path, hooks={"chat": chat}, hook_hosts=("127.0.0.1",))
    end(engine, job_id)
    assert call.round() == 1
    assert call.round() == 0  # not due yet
    for _ in range(10):
        make_due(engine)
        call.round()
    assert len(site.seen) == 8
    assert len({body["id"] for _, _, body in site.seen}) == 1
    with reading(engine) as db:
        found = [e for e in events.read(db, job_id=job_id) if e.kind is EventKind.HOOK_FAILED]
    assert len(found) == 1
    assert "127.0.0.1 answered HTTP 500" in found[0].text


EVERY = {"all": Hook(command=("/bin/true",), every_job=True)}


def test_a_new_hook_of_every_job_is_called_for_what_happens_from_now_on(
    engine: sa.Engine, tmp_path: Path
) -> None:
    end(engine, submit(engine))
    end(engine, submit(engine, hooks=("all",)))  # asked for: it was there already, elsewhere
    call = caller(engine, tmp_path, hooks=EVERY)
    call.begin()
    assert [call.round(), call.round()] == [1, 0]
    end(engine, submit(engine))
    assert [call.round(), call.round()] == [1, 0]


@pytest.mark.parametrize("away_s", [5.0, 5 * 3600.0])
def test_what_happens_while_no_scheduler_runs_is_called_for_afterwards(
    engine: sa.Engine, tmp_path: Path, away_s: float
) -> None:
    before = caller(engine, tmp_path, hooks=EVERY)
    before.begin()
    assert before.round() == 0
    end(engine, submit(engine))
    with writing(engine) as db:
        db.execute(sa.update(_EVENT).values(at=_EVENT.c.at - away_s))
    after = caller(engine, tmp_path, hooks=EVERY)
    after.begin()
    assert [after.round(), after.round()] == [1, 0]


def test_a_hook_that_comes_back_is_told_nothing_of_the_time_between(
    engine: sa.Engine, tmp_path: Path
) -> None:
    caller(engine, tmp_path, hooks=EVERY).round()
    caller(engine, tmp_path).run(threading.Event())  # ends by itself: there is nothing to call
    end(engine, submit(engine))
    again = caller(engine, tmp_path, hooks=EVERY)
    again.begin()
    assert again.round() == 0
    end(engine, submit(engine))
    assert again.round() == 1


def test_another_scheduler_without_the_hook_takes_nothing_away(engine: sa.Engine, tmp_path: Path) -> None:
    ours = caller(engine, tmp_path, hooks=EVERY)
    ours.round()
    other = caller(engine, tmp_path, hooks={"other": EVERY["all"]})
    other.begin()
    ours.round()
    end(engine, submit(engine))
    assert ours.round() == 1


def test_a_call_whose_process_died_is_taken_again(engine: sa.Engine) -> None:
    job_id = submit(engine, hooks=("chat",))
    known = {"chat": Hook(url="https://x.y/")}
    end(engine, job_id)
    with writing(engine) as db:
        assert hooks.gather(db, known) == 1
        (first,) = hooks.take(db)
    with writing(engine) as db:
        assert hooks.take(db) == []
        db.execute(sa.update(_CALL).values(due_at=db_now() - 1))
    with writing(engine) as db:
        (again,) = hooks.take(db)
    assert (again.id, again.tries) == (first.id, 2)


def test_a_job_that_stalls_again_and_again_calls_once(engine: sa.Engine) -> None:
    job_id = submit(engine, hooks=("chat",))
    known = {"chat": Hook(url="https://x.y/", on=(HookEvent.STALLED,))}
    with writing(engine) as db:
        for _ in range(5):
            events.happened(db, EventKind.ATTEMPT_STALLED, "no output", job_id=job_id)
        assert hooks.gather(db, known) == 1
        events.happened(db, EventKind.ATTEMPT_STALLED, "no output", job_id=job_id)
        assert hooks.gather(db, known) == 0


def test_a_private_address_is_not_reached(site: Site) -> None:
    url = f"https://evil.example:{site.port}/latest/meta-data"
    for addresses in (["127.0.0.1"], ["93.184.216.34", "169.254.169.254"], ["::ffff:127.0.0.1"]):
        with pytest.raises(HookError, match="private address"):
            post(url, TOLD, hosts=(), resolve=lambda *_, found=addresses: found)
    assert site.seen == []


def test_the_address_that_was_checked_is_the_one_that_is_reached(site: Site) -> None:
    calls: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        calls.append(host)
        return ["127.0.0.1"]

    post(f"http://inside.example:{site.port}/x", TOLD, hosts=("inside.example",), resolve=resolve)
    assert calls == ["inside.example"]
    assert site.seen[0][1]["Host"] == f"inside.example:{site.port}"


def test_a_redirect_is_not_followed(site: Site) -> None:
    site.status, site.headers = 302, {"Location": f"http://127.0.0.1:{site.port}/other"}
    with pytest.raises(HookError, match="HTTP 302"):
        post(f"http://localhost:{site.port}/x", TOLD, hosts=("localhost",))
    assert [path for path, _, _ in site.seen] == ["/x"]


def test_a_command_gets_json_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_API_TOKEN", "secret")
    out = tmp_path / "out"
    script = tmp_path / "hook"
    script.write_text(f'#!/bin/sh\n{{ cat; env; echo "$#"; }} > "{out}"\n')
    script.chmod(0o755)
    run_command((str(script), "one two"), TOLD)
    told = out.read_text()
    assert json.loads(told.partition("}}")[0] + "}}") == TOLD
    assert "secret" not in told
    assert told.endswith("\n1\n")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("/bin/sh", "-c", "echo no >&2; exit 3"), "ended with status 3: no"),
        (("/nowhere/hook",), "cannot be run"),
        (("/bin/sleep", "60"), "ran longer"),
    ],
)
def test_a_command_that_fails_says_why(command: tuple[str, ...], told: str) -> None:
    with pytest.raises(HookError, match=told):
        run_command(command, TOLD, limit_s=0.5)


def test_a_mail_is_sent_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, engine: sa.Engine, tmp_path: Path
) -> None:
    sent: list[Any] = []

    class Server:
        def __init__(self, host: str, port: int, timeout: float) -> None:
            assert (host, port) == ("mail.example", 2525)

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def has_extn(self, name: str) -> bool:
            return False

        def send_message(self, message: Any) -> None:
            sent.append(message)

    monkeypatch.setattr(smtplib, "SMTP", Server)
    mail = Hook(mail_to=("anna@site.example",), on=(HookEvent.DONE,))
    given = {"hooks": {"mail": mail}, "mail_server": "mail.example:2525", "mail_from": "farm@site.example"}
    job_id = submit(engine, hooks=("mail",))
    with writing(engine) as db:
        steering.change(db, job_id, {"name": "shot\r\nBcc: x@y"}, actor="anna", text="renamed")
    end(engine, job_id)
    assert caller(engine, tmp_path, **given).round() == 1
    (message,) = sent
    assert message["To"] == "anna@site.example"
    assert message["Bcc"] is None
    assert f"job {job_id} shot" in message["Subject"]
