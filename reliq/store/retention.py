"""For how long a broker keeps the numbers of a publisher that it hears no more of.

A retry has to find them, and so has a first try that the network held back. Whoever
publishes says again and again how long; whoever is killed leaves them for that time.
"""

from __future__ import annotations

from .limits import LONG_MS, SHORT_MS

SAID_EVERY_S = 900.0
"""So often a publisher that publishes says it; and so long it is a young one."""


def kept_ms(age_s: float, long: bool) -> int:
    """Return for how many ms from now numbers are kept by who has published for *age_s*.

    *long*: for the long time from the first number on.
    """
    return LONG_MS if long or age_s >= SAID_EVERY_S else SHORT_MS
