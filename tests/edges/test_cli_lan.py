"""`farm serve --lan`: what is printed for other machines."""

from __future__ import annotations

import ipaddress

import pytest

from farm.cli import lan
from farm.errors import UserError
from farm.settings import Settings


def told(**given: object) -> str:
    return "\n".join(lan.what_to_type(Settings(**given), "192.168.1.7"))  # type: ignore[arg-type]


def test_a_broker_that_others_can_reach_is_named_without_its_password() -> None:
    text = told(broker_url="amqp://farm:secret@broker.site:5673/ridgeline")
    assert "FARM_BROKER_URL=amqp://NODE:PASSWORD@broker.site:5673/ridgeline" in text
    assert "secret" not in text
    assert "FARM_API_URL=http://192.168.1.7:7450" in text
    assert "without TLS" in text


@pytest.mark.parametrize("url", ["amqp://farm:secret@localhost//", "amqp://farm:secret@127.0.0.1/x"])
def test_a_broker_for_this_machine_alone_says_what_to_do(url: str) -> None:
    text = told(broker_url=url)
    assert "other machines cannot reach" in text
    assert "rabbitmqctl add_user" in text
    assert "secret" not in text


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
