"""When silence is taken for a broken network."""

from __future__ import annotations

import pytest

from farm.flow.outage import Silence, is_outage


@pytest.mark.parametrize(
    ("silent", "heard", "expected"),
    [
        (0, 0, False),
        (0, 50, False),
        (1, 1, False),  # one of two has died: the other one takes its work
        (1, 0, True),  # nobody could take it
        (12, 38, False),  # a rack without power
        (26, 24, True),
        (50, 0, True),
    ],
)
def test_most_nodes_must_be_silent_at_once(silent: int, heard: int, expected: bool) -> None:
    assert is_outage(Silence(silent=silent, heard=heard)) is expected
