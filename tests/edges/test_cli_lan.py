"""`farm serve --lan`: what is printed for other machines."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from farm.cli import lan
from farm.errors import UserError
from farm.model.ids import NodeId
from farm.settings import Settings
from farm.store import invites
from farm.store.engine import open_engine, writing


def told(code: str | None = "K7QD-4M2X-9TRF", **given: object) -> str:
    return "\n".join(lan.what_to_type(Settings(**given), "192.168.1.7", code))  # type: ignore[arg-type]


def test_what_to_type_on_other_machines_is_told_without_the_broker_s_password() -> None:
    text = told(broker_url="amqp://farm:secret@broker.site:5673/ridgeline")
    assert "FARM_API_URL=http://192.168.1.7:7450" in text
    assert "farm join http://192.168.1.7:7450 --code K7QD-4M2X-9TRF" in text
    assert "within 1:00:00" in text
    assert "secret" not in text
    assert "without TLS" in text
    assert "farm enrol" not in text
    assert "farm enrol NODE" in told(join_needs_approval=True)


def test_without_a_database_that_is_ready_the_code_is_asked_for(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    assert lan.own_code(settings) is None
    assert "with a code from `farm invite`" in told(code=None)


def test_the_code_that_is_told_lets_a_machine_in(sqlite_url: str) -> None:
    code = lan.own_code(Settings(database_url=sqlite_url))
    assert code is not None
    engine = open_engine(sqlite_url)
    with writing(engine) as db:
        assert invites.use(db, code, node_id=NodeId("blade")).made_by == "serve --lan"
    engine.dispose()


def test_the_address_is_one_of_this_machine_s_or_the_lack_is_told() -> None:
    try:
        address = lan.lan_address()
    except UserError as error:
        assert "--lan is of no use" in str(error)  # noqa: PT017 - a machine without a network is right too
    else:
        assert not ipaddress.ip_address(address).is_loopback


def test_every_interface_is_asked_for_and_the_address_is_a_host_to_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FARM_API_ALLOWED_HOSTS", "farm.site")
    settings = lan.lan_settings("192.168.1.7")
    assert (settings.api_host, settings.api_insecure) == ("0.0.0.0", True)
    assert {"farm.site", "192.168.1.7"} <= set(settings.api_allowed_hosts)
