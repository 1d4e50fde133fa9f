from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import UserError
from farm.flow.template_text import MAX_DEPTH, load_template_text
from tests.flow.templates import template


def test_yaml_and_json_give_the_same_template() -> None:
    source = template()
    assert load_template_text(json.dumps(source)) == source
    assert load_template_text("\ufeff" + json.dumps(source, indent=2)) == source
    assert load_template_text("a: [1, 2.5, null, true]\nb: |\n  x\n  y\n") == {
        "a": [1, 2.5, None, True],
        "b": "x\ny\n",
    }
    assert load_template_text("{a: 1}") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be a mapping"),
        ("- 1\n- 2\n", "must be a mapping"),
        ("a: [1,\nb: 2", "line 3, column 1 is neither YAML nor JSON"),
        ("a: &x 1\nb: 2", "line 1: anchors (&) and aliases (*) are refused"),
        ("a: &x [1]\nb: *x", "anchors"),
        ("a: !!python/object/apply:os.system ['true']", "tags (!) are refused"),
        ("a: 1\nb: {c: 1, c: 2}", "line 2: the key 'c' is given twice"),
        ('{"a": 1, "a": 2}', "gives the key 'a' twice"),
        ("date: 2024-01-01", "as a date: put it in quotes"),
        ("date: 2024-13-45", "neither YAML nor JSON"),
        ("a: .nan", "no finite number"),
        ('{"a": NaN}', "no finite number"),
        ("1: a", "the key 1"),
        ("on: a", "the key True"),
        ("a: " + "9" * 30, "64 bits"),
        ("a: " + "9" * 5000, "neither YAML nor JSON"),
        ('{"a": ' + "9" * 5000 + "}", "neither YAML nor JSON"),
        ("a: " + "[" * 40 + "]" * 40, f"more than {MAX_DEPTH} levels"),
        ("[" * 100_000, "nesting depth"),
        ('{"a":' * 100_000, f"more than {MAX_DEPTH} levels"),
        ("a: \x1b", "neither YAML nor JSON"),
        ("x" * 5_000_001, "5,000,001 bytes"),
        ("a: 1\n---\nb: 2\n", "neither YAML nor JSON"),
    ],
)
def test_text_that_is_no_template_is_refused_with_the_reason(text: str, words: str) -> None:
    began = time.process_time()
    with pytest.raises(UserError) as caught:
        load_template_text(text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400
    assert time.process_time() - began < 5


@given(st.text(max_size=60) | st.text(alphabet="{}[]:,-&*!?|>'\"%@#\n ab1.\t", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_mapping_or_a_user_error(text: str) -> None:
    try:
        assert isinstance(load_template_text(text), dict)
    except UserError:
        pass
