"""Codes, names and guesses of machines that join; what a node's account may do at the broker."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import UserError
from farm.flow.joining import (
    CODE_LENGTH,
    CODE_SIGNS,
    GUESSES,
    GUESSES_S,
    Guesses,
    by_hand,
    check_node_name,
    is_own_broker,
    node_broker_url,
    permissions,
    read_code,
    virtual_host,
    written_code,
)
from farm.model.ids import NodeId
from farm.wire import queues

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True).map(NodeId)


@given(st.text(CODE_SIGNS, min_size=CODE_LENGTH, max_size=CODE_LENGTH), st.booleans())
def test_a_code_is_read_as_it_was_written(signs: str, is_lower: bool) -> None:
    text = written_code(signs)
    assert read_code(text.lower() if is_lower else text) == signs
    assert read_code(f"  {text.replace('-', ' ')} ") == signs


@pytest.mark.parametrize(
    "text", ["", "K7QD", "K7QD-4M2X-9TRF-AAAA", "K7QD-4M2X-9TRO", "\x1b]52;c;aGk=\x07", "é" * 12]
)
def test_what_cannot_be_a_code_is_told_and_shown_harmless(text: str) -> None:
    with pytest.raises(UserError, match="is no code: it has 12 letters") as error:
        read_code(text)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "ü", "x" * 64, "a\x1b", "a\n"])
def test_a_wrong_name_for_a_node_is_told(name: str) -> None:
    with pytest.raises(UserError, match="is no name for a node"):
        check_node_name(name)


@given(NAMES, NAMES)
def test_an_account_reaches_its_own_queues_and_the_farm_s_exchange_alone(node: NodeId, other: NodeId) -> None:
    allowed = permissions(node)
    own = {queues.launch_queue(node), queues.control_queue(node)}
    foreign = {queues.REPORTS, queues.HEARTBEATS, queues.PARKED, queues.EXCHANGE, "amq.default", ""}
    foreign |= {queues.launch_queue(other), queues.control_queue(other), f"x{queues.launch_queue(node)}"}
    for name in foreign - own:
        assert not re.search(allowed.configure, name)
        assert not re.search(allowed.read, name)
    for name in own:
        assert re.search(allowed.configure, name)
        assert re.search(allowed.read, name)
        assert not re.search(allowed.write, name)
    assert re.search(allowed.write, queues.EXCHANGE)
    assert not re.search(allowed.write, "amq.default")


@given(NAMES, st.text(min_size=1))
def test_the_address_for_a_node_has_its_account_and_nobody_else_s(node: NodeId, password: str) -> None:
    url = node_broker_url(
        "amqps://farm:se%2Fcret@10.0.0.1:5673/%2Ffarm", node_id=node, password=password, host="fe80::1"
    )
    parts = urlsplit(url)
    assert (parts.scheme, parts.hostname, parts.port, parts.path) == ("amqps", "fe80::1", 5673, "/%2Ffarm")
    assert unquote(parts.username or "") == f"farm-node-{node}"
    assert unquote(parts.password or "") == password
    assert "cret" not in url.replace(parts.password or "", "")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("amqp://a:b@h//", "/"),
        ("amqp://a:b@h", "/"),
        ("amqp://h/farm", "farm"),
        ("amqp://h/%2Ffarm", "/farm"),
    ],
)
def test_the_virtual_host_is_read_out_of_the_address(url: str, place: str) -> None:
    assert virtual_host(url) == place
    assert f" -p {place} " in by_hand(url, NodeId("blade"), "pw")[1]


def test_a_broker_of_this_machine_is_known_by_its_address() -> None:
    assert is_own_broker("amqp://a:b@localhost//")
    assert is_own_broker("amqp://a:b@[::1]:5672//")
    assert not is_own_broker("amqp://a:b@10.0.0.1//")


def test_wrong_codes_bar_their_address_for_a_while_and_in_the_end_all() -> None:
    guesses = Guesses()
    for at in range(GUESSES):
        assert guesses.barred_s("10.0.0.9", at) == 0
        guesses.note("10.0.0.9", at)
    assert guesses.barred_s("10.0.0.9", GUESSES) == GUESSES_S - GUESSES
    assert guesses.barred_s("10.0.0.8", GUESSES) == 0
    assert guesses.barred_s("10.0.0.9", GUESSES_S) == 0, "the oldest is forgotten"
    for other in range(GUESSES * 10):
        guesses.note(f"10.1.0.{other}", GUESSES_S)
    assert guesses.barred_s("10.0.0.8", GUESSES_S) > 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 100)), max_size=400))
def test_no_address_gets_more_guesses_than_it_may(tries: list[tuple[str, float]]) -> None:
    guesses, now = Guesses(), 0.0
    taken: dict[str, list[float]] = {address: [] for address in "abc"}
    for address, step in tries:
        now += step
        if guesses.barred_s(address, now) == 0:
            guesses.note(address, now)
            taken[address].append(now)
    for times in taken.values():
        for first, beyond in zip(times, times[GUESSES:], strict=False):
            assert beyond - first >= GUESSES_S
