"""Why the matcher sent a task where it did: kept with the attempt, for as long as its job is kept."""

from __future__ import annotations

from dataclasses import dataclass

from farm.model.ids import StepId
from farm.text import duration


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

    def text(self) -> str:
        """One line for people."""
        told = (
            f"{duration(self.predicted_s)} predicted on {self.model} (9 in 10 within {duration(self.upper_s)}"
            f"{f', {duration(self.load_s)} of it loading' if self.load_s >= 0.5 else ''}), "
            f"advantage {self.advantage:.2f} of {self.best_advantage:.2f}, "
            f"{self.near_equals} near-equal{'' if self.near_equals == 1 else 's'}"
        )
        if self.runner_up is not None and self.runner_up_advantage is not None:
            told += f"; next: step {self.runner_up} with {self.runner_up_advantage:.2f}"
        return f"{told}; to learn how long it takes there" if self.is_trial else told
