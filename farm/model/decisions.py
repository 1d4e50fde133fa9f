"""Why the matcher sent a task where it did: kept with the attempt, for as long as its job is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from farm.model.ids import StepId

GUESS_RATIO: Final = 2.2
"""A time that is at worst more than so many times the likely one is a guess: nothing had told of the step."""
_VISIBLE: Final = 0.01
"""A difference of advantages that is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was known and weighed when a group's tasks were given a device. About 300 bytes as JSON."""

    model: str
    """The device model."""
    predicted_s: float
    """Median, scene load included."""
    upper_s: float
    """9 times in 10 not more."""
    load_s: float
    """Of loading the scene, within `predicted_s`."""
    price: float
    """Of a second of the device, in parts of the whole farm's: all slots together cost 1."""
    advantage: float
    """The score. 1: nowhere in the farm is the group better placed; 0.5: worth half of its best place."""
    best_advantage: float
    """Of all groups that could have had the device."""
    near_equals: int
    """Groups within the window, of which the order chose."""
    runner_up: StepId | None = None
    runner_up_advantage: float | None = None
    period: str = ""
    """Which table of weights held."""
    is_trial: bool = False
    """It went there for what it teaches, too: little was known of the step on this device model."""

    @property
    def is_guess(self) -> bool:
        """No run had told yet how long the step takes: the seconds are those of any task."""
        return self.upper_s > GUESS_RATIO * self.predicted_s

    def why(self, runner_up: str = "") -> str:
        """Why this work and no other got the device, for people. `runner_up`: what that is called."""
        if self.near_equals <= 1:
            told = "no other work that waited suits this device about as well"
        else:
            told = (
                f"of {self.near_equals} jobs' steps that suit this device about as well, "
                "first by priority, share and order"
            )
            if self.best_advantage - self.advantage >= _VISIBLE:
                told += f", though one suits it better ({self.best_advantage:.0%})"
            if self.runner_up is not None:
                told += f"; the other best match: {runner_up or f'step {self.runner_up}'}"
        return f"to learn how long it takes on this model; {told}" if self.is_trial else told
