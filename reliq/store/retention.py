"""For how long a broker keeps the numbers of a publisher that it hears no more of.

A retry has to find them, and so has a first try that the network held back. Whoever
publishes says again and again how long; whoever is killed leaves them for that time.
"""

from __future__ import annotations

from time import monotonic

from .limits import LONG_MS, SHORT_MS

SAID_EVERY_S = 900.0
"""So often a publisher that publishes says it; and so long it is a young one."""


def kept_ms(began: float, long: bool) -> int:
    """Return for how many ms from now numbers are kept by who *began* (monotonic) to publish.

    *long*: for the long time from the first number on.
    """
    return LONG_MS if long or monotonic() - began >= SAID_EVERY_S else SHORT_MS
