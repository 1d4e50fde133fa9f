"""When a node speaks to the farm, and what the farm's answers prove about the age of a lease.

Two clocks never meet here: the node's (CLOCK_BOOTTIME) says when a heartbeat was sent, the farm's when it was
taken in. Only times of one clock are compared, so that neither has to be right.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from farm.wire.messages import HeartbeatAnswer

MOST_UNANSWERED = 64
NEWS_S = 1.0
"""Least time between heartbeats that are sent because of news of a device."""


@dataclass(slots=True, kw_only=True)
class Heartbeats:
    """Those of one session of an agent."""

    first_sequence: int
    """Random for each session: an answer to an earlier session's heartbeat must match none of ours."""
    next_at: float = 0.0
    """When the next one is due, by the node's clock."""
    _sequence: int = 0
    _sent_last: float = float("-inf")
    _sent_at: OrderedDict[int, float] = field(default_factory=OrderedDict)
    _heard: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_UNANSWERED))
    """(When the farm took one of ours in, by its clock; when that was sent, by ours), as answered."""

    def send(self, now: float, *, every_s: float) -> int:
        """One goes out: returns its sequence. The next is due in `every_s`."""
        self._sequence += 1
        sequence = self.first_sequence + self._sequence
        self._sent_at[sequence] = now
        if len(self._sent_at) > MOST_UNANSWERED:
            self._sent_at.popitem(last=False)
        self.next_at = now + every_s
        self._sent_last = now
        return sequence

    def soon(self, now: float) -> None:
        """The next at once, but not twice within NEWS_S: a load that trembles must not flood the farm."""
        self.next_at = min(self.next_at, max(now, self._sent_last + NEWS_S))

    def answered(self, answer: HeartbeatAnswer) -> float | None:
        """When that was sent which is answered; None: by nobody in this session, or so long ago that it is
        forgotten."""
        sent_at = self._sent_at.get(answer.sequence)
        if sent_at is not None and answer.heard_at is not None:
            self._heard.append((answer.heard_at, sent_at))
        return sent_at

    def assigned_since(self, assigned_at: float | None, now: float, *, within_s: float) -> float | None:
        """A time of the node's clock before which the farm cannot have assigned something; None: none is
        known that is no longer ago than `within_s`.

        assigned_at: when it was assigned, by the farm's clock; None: the farm does not say. The farm has
        assigned it after it had taken in a heartbeat, and that after the node had sent it.
        """
        if assigned_at is None:
            return None
        since = max((sent for heard, sent in self._heard if heard <= assigned_at), default=float("-inf"))
        return since if now - since <= within_s else None
