"""A trouble that lasts, such as a database that is away: when a line about it is worth a place in the log."""

from __future__ import annotations

from dataclasses import dataclass, field

AGAIN_S = 30.0
"""Until the same is told a second time; each further wait is twice as long."""
SELDOM_S = 600.0
"""The longest wait."""
MOST_TEXTS = 8
"""Other words for the same trouble are told at once, but no more of them: some hold a number that changes."""


@dataclass(slots=True)
class Trouble:
    """Of one loop. Times are a monotonic clock's, in seconds."""

    _since: float | None = None
    _last: float = 0.0
    _again_at: float = 0.0
    _wait_s: float = AGAIN_S
    _told: set[str] = field(default_factory=set)

    def is_news(self, text: str, now: float) -> bool:
        """It went wrong, in these words; whether to say so."""
        if self._since is None:
            self._since = now
        self._last = now
        is_new = text not in self._told and len(self._told) < MOST_TEXTS
        if not is_new and now < self._again_at:
            return False
        if not is_new:
            self._wait_s = min(2 * self._wait_s, SELDOM_S)
        self._told.add(text)
        self._again_at = now + self._wait_s
        return True

    def lasted_s(self, now: float, *, settled_s: float = 0.0) -> float | None:
        """It went well; how long the trouble was, told once. None when there was none.

        settled_s: None also while that is less than so long ago: what is well for moments is not over.
        """
        if self._since is None or now - self._last < settled_s:
            return None
        lasted_s = self._last - self._since
        self._since, self._wait_s = None, AGAIN_S
        self._told.clear()
        return lasted_s
