"""Postponed: the queues that could not be consumed from, and when each is tried again."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

_AGAIN_S = 1.0

# So long a node is asked for a queue that is to be consumed from; and at most so long after it is
# asked again, if it is away.
NODE_PATIENCE_S, MOST_AWAY_S = 0.2, 4.0


class _Again(NamedTuple):
    """When a queue is tried again, and how long that was put off."""

    at: float
    after_s: float


class Postponed:
    """By name, each time after twice as long. Of the application's thread."""

    def __init__(self) -> None:
        self._again: dict[str, _Again] = {}

    @property
    def due(self) -> bool:
        """Whether it is time to try one of them."""
        if not self._again:
            return False
        return monotonic() >= min(again.at for again in self._again.values())

    def __contains__(self, queue: str) -> bool:
        """Whether *queue* was tried, in vain."""
        return queue in self._again

    def is_early(self, queue: str) -> bool:
        """Whether it is too early to try *queue* again."""
        again = self._again.get(queue)
        return again is not None and monotonic() < again.at

    def put_off(self, queue: str, most_s: float) -> None:
        """Try *queue* later: after twice as long as the last time, at most *most_s* seconds."""
        before = self._again.get(queue)
        after_s = _AGAIN_S if before is None else min(2 * before.after_s, most_s)
        self._again[queue] = _Again(monotonic() + after_s, after_s)

    def done(self, queue: str) -> None:
        """Note that *queue* is consumed from."""
        self._again.pop(queue, None)

    def clear(self) -> None:
        """Try all of them at the next opportunity."""
        self._again.clear()

    def tried(self, then: float) -> None:
        """Note that all that was due *then* was tried: what was and still is, nobody wants."""
        self._again = {name: again for name, again in self._again.items() if again.at > then}
