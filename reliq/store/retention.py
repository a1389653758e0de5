"""For how long a broker keeps the numbers of a publisher that it hears no more of.

A retry has to find them, and so has a first try that the network held back. Whoever
publishes says again and again how long; whoever is killed leaves them for that time.
"""

from __future__ import annotations

from time import monotonic

SHORT_MS = 3_600_000
"""Of a process that has begun a moment ago. Longer than a kernel goes on sending a request
that nobody acknowledges (15 to 30 minutes), and than most who retry go on."""
LONG_MS = 86_400_000
"""Of one that has lasted. Such ones are few: however often processes are killed, those of a
day are at most a hundred for each place in which one runs."""
SAID_EVERY_S = 900.0
"""So often a publisher that publishes says it; and so long it is a young one."""


def kept_ms(began: float, long: bool) -> int:
    """Return for how many ms from now numbers are kept by who *began* (monotonic) to publish.

    *long*: for the long time from the first number on.
    """
    return LONG_MS if long or monotonic() - began >= SAID_EVERY_S else SHORT_MS
