"""The language of filters: what it means, and what it says of a mistake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import UserError
from farm.flow.filters import Field, Kind, Table, chosen_fields, ordered, parse, table


@dataclass(frozen=True)
class Thing:
    name: str | None = "shot_010"
    state: str = "failed"
    tries: float | None = 3
    time: float | None = 90.0
    memory: float | None = 24 * 1024.0
    load: float | None = 0.8
    frames: tuple[int, ...] = (7,)
    pools: tuple[str, ...] = ("gpu", "night")


FIELDS: Table[Thing] = table(
    (
        Field(name="name", kind=Kind.TEXT, of=lambda t: t.name, help=""),
        Field(
            name="state", kind=Kind.CHOICE, of=lambda t: t.state, help="", choices=("done", "failed", "held")
        ),
        Field(name="tries", kind=Kind.NUMBER, of=lambda t: t.tries, help=""),
        Field(name="time", kind=Kind.DURATION, of=lambda t: t.time, help=""),
        Field(name="memory", kind=Kind.SIZE, of=lambda t: t.memory, help=""),
        Field(name="load", kind=Kind.SHARE, of=lambda t: t.load, help=""),
        Field(name="frames", kind=Kind.FRAMES, of=lambda t: t.frames, help=""),
        Field(name="pools", kind=Kind.TEXT, of=lambda t: t.pools, help=""),
    )
)
NOTHING = Thing(name=None, tries=None, time=None, memory=None, load=None, frames=(), pools=())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "state=failed",
        "STATE = FAILED",
        "state==failed",
        "state=held,failed",
        "state!=done",
        "state~ail",
        "name=SHOT_010",
        "name~010",
        "name~shot_*",
        "name~'*_0?0'",
        "name!~'*_0?'",
        "pools=gpu",
        "pools=night,day",
        "pools!=day",
        "tries=3",
        "tries>2 tries<4",
        "tries>=3 and tries<=3.0",
        "time=90s and time=1.5m and time<1h",
        "memory=24G and memory>512M and memory<1t and memory=24576",
        "load=80% and load>=80",
        "frames=7",
        "frames=1-20x2",
        "frames=5,6,7",
        "frames>6",
        "not state=done",
        "not (state=done or name~020)",
        "state=done or state=failed and tries=3",
        "(state=done or state=failed) and tries=3",
        "name=none or name~shot",
        'name="shot_010"',
    ],
)
def test_what_matches(text: str) -> None:
    assert parse(text, FIELDS, "things")(Thing())


@pytest.mark.parametrize(
    "text",
    [
        "state=done",
        "state=failed and tries>3",
        "state=failed and not tries=3",
        "name~shot_",
        "pools~'ni'",
        "time>2m",
        "frames=1-6,8-20",
        "frames=none",
        "name~*_02?",
    ],
)
def test_what_does_not(text: str) -> None:
    is_in = {"name~shot_": Thing(name="SHOP"), "pools~'ni'": Thing(pools=("day",))}
    assert not parse(text, FIELDS, "things")(is_in.get(text, Thing()))


@pytest.mark.parametrize("name", ["name", "tries", "time", "memory", "load", "frames", "pools"])
def test_none_is_what_is_not_known_and_nothing_else_compares_with_it(name: str) -> None:
    assert parse(f"{name}=none", FIELDS, "things")(NOTHING)
    assert not parse(f"{name}!=none", FIELDS, "things")(NOTHING)
    assert not parse(f"{name}=none", FIELDS, "things")(Thing())
    if FIELDS[name].is_ordered:
        assert not parse(f"{name}<1 or {name}>0", FIELDS, "things")(NOTHING)


def test_and_binds_closer_than_or() -> None:
    told = parse("state=done and tries=9 or tries=3", FIELDS, "things")
    assert told(Thing())
    assert not parse("state=done and (tries=9 or tries=3)", FIELDS, "things")(Thing())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("stat=failed", "did you mean state?"),
        ("colour=red", "there are name, state, tries"),
        ("state=faild", "did you mean failed?"),
        ("state=purple", "there are done, failed, held"),
        ("failed", "did you mean state=failed?"),
        ("state", "state must be compared with something, as in state="),
        ("shot_010", "'shot_010' is no test"),
        ("state=", "a value is missing after state="),
        ("state==", "a value is missing after state="),
        ("state=failed,", "a value is missing after state="),
        ("state=failed and", "something is missing at its end"),
        ("and state=failed", "a field must stand before 'and'"),
        ("=failed", "a field must stand before '='"),
        ("state>failed", "state is text: use = or ~"),
        ("tries~3", "tries is no text"),
        ("tries=many", "tries is a number, not 'many': 12"),
        ("time>5parsecs", "time is a duration, not '5parsecs': 90s"),
        ("tries>1,2", "tries> takes one value"),
        ("(state=failed", "a ) is missing"),
        ("state=failed)", "there is a ')' too many"),
        ("name='shot", "a ' is missing"),
        ("name=a=b", "into quotes: it holds '='"),
        ("state=failed && tries>1", "write 'and' for '&&'"),
        ("frames=1-", "the last frame is missing"),
        ("frames>1-3", "give one frame"),
        ("(" * 50 + "state=done" + ")" * 50, "nested more than 40"),
        ("not " * 50 + "state=done", "nested more than 40"),
        ("name=" + "x" * 20_000, "characters long"),
    ],
)
def test_a_mistake_is_told_with_the_nearest_right_thing(text: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        parse(text, FIELDS, "things")
    assert told in str(error.value)
    assert len(str(error.value)) < 400


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_one_clear_error(text: str) -> None:
    try:
        made = parse(text, FIELDS, "things")
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017 - both ends are right
    else:
        assert made(Thing()) in (True, False)
        assert made(NOTHING) in (True, False)


_tests = st.sampled_from(["state=done", "state=failed", "tries>2", "name~010", "frames=7", "time<1m"])
_filters = st.recursive(
    _tests,
    lambda inner: st.one_of(
        inner.map(lambda one: f"not ({one})"),
        st.tuples(inner, st.sampled_from(["and", "or", " "]), inner).map(
            lambda p: f"({p[0]}) {p[1]} ({p[2]})"
        ),
    ),
    max_leaves=6,
)


@given(_filters, st.sampled_from(["done", "failed", "held"]), st.integers(0, 5))
def test_pinned_never_leaves_out_what_matches(text: str, state: str, tries: int) -> None:
    made = parse(text, FIELDS, "things")
    pinned = made.pinned("state")
    if pinned is not None and made(Thing(state=state, tries=tries)):
        assert state in pinned


@given(_filters, st.sampled_from(["done", "failed", "held"]), st.integers(0, 5))
def test_not_turns_a_filter_round(text: str, state: str, tries: int) -> None:
    thing = Thing(state=state, tries=tries)
    assert parse(f"not ({text})", FIELDS, "things")(thing) is not parse(text, FIELDS, "things")(thing)


@pytest.mark.parametrize(
    ("text", "pinned"),
    [
        ("state=failed", {"failed"}),
        ("state=FAILED,held", {"failed", "held"}),
        ("state=failed and tries>2", {"failed"}),
        ("state=failed or state=held", {"failed", "held"}),
        ("state=failed or tries>2", None),
        ("not state=failed", None),
        ("state=failed and state=held", set()),
        ("state~fail", None),
    ],
)
def test_what_is_pinned(text: str, pinned: set[str] | None) -> None:
    assert parse(text, FIELDS, "things").pinned("state") == pinned


def test_brackets_in_a_pattern_are_no_signs() -> None:
    assert parse("name~'*[x]*'", FIELDS, "things")(Thing(name="a[x]b"))
    assert not parse("name~'*[x]*'", FIELDS, "things")(Thing(name="axb"))


def test_fields_are_told_in_their_units() -> None:
    told = {name: field.told(Thing()) for name, field in FIELDS.items()}
    assert told == {
        "name": "shot_010", "state": "failed", "tries": "3", "time": "1:30", "memory": "24.0 GiB",
        "load": "80 %", "frames": "7", "pools": "gpu, night",
    }  # fmt: skip
    assert {name for name, field in FIELDS.items() if field.told(NOTHING)} == {"state"}


def test_chosen_fields_are_each_once_in_the_order_typed() -> None:
    assert [f.name for f in chosen_fields("time, Name,time", FIELDS, "things")] == ["time", "name"]
    with pytest.raises(UserError, match="did you mean memory"):
        chosen_fields("memmory", FIELDS, "things")
    with pytest.raises(UserError, match="missing beside a comma"):
        chosen_fields("name,", FIELDS, "things")


@pytest.mark.parametrize("by", ["tries", "-tries", "name", "-frames"])
def test_what_is_not_known_is_last_in_every_order(by: str) -> None:
    things: list[Any] = [
        NOTHING,
        Thing(name="b", tries=2, frames=(2,)),
        Thing(name="a", tries=1, frames=(1,)),
    ]
    found = ordered(things, by, FIELDS, "things")
    assert found[-1] is NOTHING
    assert [thing.name for thing in found[:2]] == (["b", "a"] if by.startswith("-") else ["a", "b"])
