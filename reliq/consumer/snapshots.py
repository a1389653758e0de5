"""Snapshots: the history of queues, which whoever consumes from them notes once a minute."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable, ReliqError
from ..failover.jitter import JITTER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..store.protocol import Store

# All consumers ask as a minute begins, and only the first has something to do: not all at once.
_SPREAD_S = 5.0
# After a refusal, or where nobody has said how long the minute lasts.
_AGAIN_S = 60.0


class Snapshots:
    """The snapshots that one session asks for, and when."""

    def __init__(self) -> None:
        self._next = 0.0

    def tick(self, store: Store, queues: Iterable[str]) -> None:
        """Have *queues* noted, where the minute has none yet."""
        now, names = monotonic(), sorted(queues)
        if names and now >= self._next:
            self._next = now + _AGAIN_S
            store.post_snapshots(names, self._noted)

    def of_others(self, store: Store, queues: Iterable[str]) -> None:
        """Have queues noted from which nobody consumes, whenever somebody looks after them."""
        with suppress(BrokerUnavailable):  # somebody looks again
            store.post_snapshots(sorted(queues), lambda _: None)

    def _noted(self, result: int | ReliqError) -> None:
        if not isinstance(result, ReliqError):  # else: a chart has a gap, no message is concerned
            self._next = monotonic() + result / 1000 + JITTER.uniform(0.0, _SPREAD_S)
