"""The table of weights, and when which of it holds."""

from __future__ import annotations

import pytest

from farm.errors import UserError
from farm.flow.weights import Order, Period, Weights, weights_at


def test_a_table_of_settings_becomes_weights() -> None:
    made = Weights.from_table({"order": "submitted", "window": 0.9, "fair_share": False, "urgent_from": 95})
    assert (made.order, made.window, made.fair_share, made.urgent_from) == (Order.SUBMITTED, 0.9, False, 95)
    assert Weights.from_table({"slow_cap": 3}, made).window == 0.9


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"windw": 1}, "windw"),
        ({"window": "wide"}, "window"),
        ({"window": 0}, "window"),
        ({"age_s": -1}, "age_s"),
        ({"fair_share": 1}, "fair_share"),
        ({"order": "random"}, "order"),
    ],
)
def test_a_wrong_weight_is_named(table: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Weights.from_table(table)


def test_other_weights_hold_at_night_past_midnight() -> None:
    night = Period(name="night", from_hour=20, to_hour=6, weights=Weights(slow_cap=4.0))
    assert weights_at(23, Weights(), [night])[0] == "night"
    assert weights_at(3, Weights(), [night])[1].slow_cap == 4.0
    assert weights_at(12, Weights(), [night])[0] == "always"
