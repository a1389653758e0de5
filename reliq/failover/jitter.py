"""Pacing: clients that lost their broker in one instant do not come back in one instant.

Kombu and Celery try again after the same pauses everywhere, counted from the loss that
all of them had together: a broker that returns would meet all its clients at once.
Here each of them waits a random moment before it tries. Knows nothing of connections.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

# Seconds: the longest wait after a loss; it doubles with each try that failed.
_FIRST_S = 0.1
_LONGEST_S = 1.0
# Who has not tried for so long comes by itself, not with all the others.
_FORGOTTEN_AFTER_S = 60.0

JITTER = random.SystemRandom()
"""Chance for pauses: its own, so that a program's seeded `random` stays as it is."""


class Pace:
    """How long one consumer, or publisher, waits before it connects again."""

    def __init__(self) -> None:
        self._troubles = 0
        self._since = 0.0

    @property
    def calm(self) -> bool:
        """Whether all is well, or nobody has tried for long."""
        return not self._troubles or time.monotonic() - self._since > _FORGOTTEN_AFTER_S

    @property
    def longest_s(self) -> float:
        """The most that the next wait can take; 0 when all is well."""
        if not self._troubles:
            return 0.0
        return min(_FIRST_S * 2.0 ** (self._troubles - 1), _LONGEST_S)

    def trouble(self) -> None:
        """Note that a connection was lost, or could not be made."""
        self._troubles = min(self._troubles + 1, 16)
        self._since = time.monotonic()

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


class Paces:
    """The paces of one process. Each outlives who has it while there is trouble.

    Kombu makes a transport anew for each URL of a list that it tries. Not thread-safe.
    """

    def __init__(self) -> None:
        self._paces: dict[Hashable, Pace] = {}

    def of(self, key: Hashable) -> Pace:
        """Return the pace of *key*, and forget those that are calm."""
        self._paces = {of: pace for of, pace in self._paces.items() if of == key or not pace.calm}
        return self._paces.setdefault(key, Pace())
