"""Pacing: clients that lost their broker in one instant do not come back in one instant.

Kombu and Celery try again after the same pauses everywhere, counted from the loss that
all of them had together: a broker that returns would meet all its clients at once.
Here each of them waits a random moment before it tries. Knows nothing of connections.
"""

from __future__ import annotations

import random
import time

# Seconds: the longest wait after a loss; it doubles with each try that failed.
_FIRST_S = 0.1
_LONGEST_S = 1.0

JITTER = random.SystemRandom()
"""Chance for pauses: its own, so that a program's seeded `random` stays as it is."""


class Pace:
    """How long one consumer, or publisher, waits before it connects again."""

    def __init__(self) -> None:
        self._troubles = 0

    @property
    def longest_s(self) -> float:
        """The most that the next wait can take; 0 when all is well."""
        if not self._troubles:
            return 0.0
        return min(_FIRST_S * 2.0 ** (self._troubles - 1), _LONGEST_S)

    def trouble(self) -> None:
        """Note that a connection was lost, or could not be made."""
        self._troubles = min(self._troubles + 1, 16)

    def well(self) -> None:
        """Note that a connection was made."""
        self._troubles = 0

    def wait(self, *, once: bool = False) -> None:
        """Wait a random part of :attr:`longest_s`; not at all when all is well.

        *once*: only before the first try after it was well. So does a publisher with a retry
        policy, whose callers come at times of their own, and whose policy has the pauses.
        """
        longest_s = self.longest_s
        if longest_s and not (once and self._troubles > 1):
            time.sleep(JITTER.uniform(0.0, longest_s))
