"""Which hooks are called, with what, and which addresses a webhook may reach."""

from __future__ import annotations

import pytest

from farm.errors import UserError
from farm.flow.hooks import (
    MAX_TRIES,
    called,
    check_hook,
    check_hooks,
    is_public,
    payload,
    retry_delay_s,
    subject,
)
from farm.model.hooks import Hook, HookEvent
from farm.settings import load_settings
from tests.edges.cli_farm import a_job

HOOKS = {
    "chat": Hook(url="https://chat.example/x", on=(HookEvent.FAILED, HookEvent.STALLED)),
    "log": Hook(command=("/bin/log",), on=(HookEvent.DONE,), every_job=True),
}


@pytest.mark.parametrize(
    ("event", "asked_for", "expected"),
    [
        (HookEvent.FAILED, ("chat",), ["chat"]),
        (HookEvent.DONE, ("chat",), ["log"]),
        (HookEvent.FAILED, (), []),
        (HookEvent.STALLED, ("chat", "gone"), ["chat"]),
    ],
)
def test_hooks_that_were_asked_for_and_those_of_every_job(
    event: HookEvent, asked_for: tuple[str, ...], expected: list[str]
) -> None:
    assert called(event, asked_for, HOOKS) == expected


def test_an_unknown_hook_names_the_nearest() -> None:
    check_hooks(("chat", "log"), HOOKS)
    with pytest.raises(UserError, match="did you mean chat"):
        check_hooks(("caht",), HOOKS)
    with pytest.raises(UserError, match="this farm has none"):
        check_hooks(("chat",), {})


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "224.0.0.1",
        "100.64.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "2002:7f00:0001::", "64:ff9b::7f00:1", "64:ff9b::a00:1",
    ],
)  # fmt: skip
def test_addresses_that_a_webhook_must_not_reach(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700::1111", "64:ff9b::5db8:d822"])
def test_addresses_that_it_may(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        (Hook(), "one of url, command and mail_to"),
        (Hook(url="https://a.b/", command=("/x",)), "one of url, command and mail_to"),
        (Hook(url="http://a.b/"), "https://"),
        (Hook(url="ftp://a.b/"), "https://"),
        (Hook(url="https://user:pw@a.b/"), "without user"),
        (Hook(url="https:///x"), "https://host"),
        (Hook(command=("publish",)), "whole path"),
        (Hook(mail_to=("a@b, c@d",)), "no mail address"),
        (Hook(mail_to=("a@b\nBcc: c@d",)), "no mail address"),
        (Hook(url="https://a.b/", on=()), "empty"),
    ],
)
def test_hooks_that_cannot_work_are_refused_with_the_settings(hook: Hook, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_hook("x", hook, hosts=())


def test_settings_take_hooks_from_a_file_or_the_environment() -> None:
    text = '{"chat": {"url": "https://chat.example/x", "on": ["failed"]}}'
    assert load_settings(environment={"FARM_HOOKS": text}).hooks["chat"].on == (HookEvent.FAILED,)
    for wrong in ('{"chat": {"ulr": "https://x.y"}}', '{"chat": {"mail_to": ["a@b"]}}', '{"c": {}}'):
        with pytest.raises(UserError, match="settings are wrong"):
            load_settings(environment={"FARM_HOOKS": wrong})


def test_a_call_is_tried_for_about_an_hour() -> None:
    delays = [retry_delay_s(tries) for tries in range(1, MAX_TRIES + 1)]
    assert delays[-1] is None
    assert delays[:3] == [10.0, 20.0, 40.0]
    assert 1200 < sum(filter(None, delays)) < 3600


def test_what_people_typed_is_told_on_one_line() -> None:
    job = a_job(name="shot\r\nBcc: x@y\x1b[2J", reason="a\nb")
    told = payload(HookEvent.FAILED, job, number=7, at=1.0, text="x\ny")
    assert told["job"]["name"].isprintable()
    assert told["job"]["reason"] == "a\\x0ab"
    assert "\n" not in subject(told)
    assert (told["id"], told["event"], told["job"]["id"]) == (7, "failed", 12)
