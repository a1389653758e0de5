"""Feed: how a consumer reads transient messages in the log of a fanout exchange.

Celery's events are for the consumers of the moment, and each goes to every worker. A copy in each
queue would take the server three commands for each pair of workers. The publisher appends a
transient message to the log of the exchange instead, and each consumer reads the log once a second.

This is for queues that a message never outlives: temporary ones, consumed with no_ack, whose
messages expire before the log drops them. A binding marks them, so that publishers of older
versions, messages of other kinds and other queues keep to copies.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import BrokerRefused, ReliqError
from ...routing.routes import READS_LOG
from ...values.limits import LOG_MS
from ...values.values import Delivery, Logged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...values.protocol import Store
    from ..link import Link

EVERY_S = 1.0
"""The interval between two reads."""
_AT_ONCE = 100
# After this time, a read without a reply is repeated: an interrupt may have ended it.
_LOST_S = 10.0
_EXPIRES = {"auto_delete", "expires", "message_ttl"}


@dataclass(eq=False)
class Feed:
    """The place of one consumer in the log of its exchange."""

    _queue: str
    _exchange: str
    _ttl_ms: int
    _place: str
    due_at: float = field(default_factory=lambda: monotonic() + EVERY_S, init=False)
    """When to read next."""
    _reads: int = field(default=0, init=False)

    def read(self, store: Store, on_deliveries: Callable[[Sequence[Delivery]], None]) -> None:
        """Start a read, and pass on what it finds. A failed read is repeated."""
        self.due_at = monotonic() + _LOST_S
        self._reads += 1
        on_result = partial(self._on_entries, self._reads, on_deliveries)
        store.post_read_log(self._exchange, self._place, self._ttl_ms, _AT_ONCE, on_result)

    def _on_entries(
        self,
        read: int,
        on_deliveries: Callable[[Sequence[Delivery]], None],
        result: Logged | ReliqError,
    ) -> None:
        if read != self._reads:
            return
        if isinstance(result, ReliqError):  # if the connection is lost, its other posts raise it
            self.due_at = monotonic() + EVERY_S
            return
        self._place = result.place
        deliveries = [Delivery(self._queue, tag, "", -1, body) for tag, body in result.entries]
        on_deliveries(deliveries)
        self.due_at = monotonic() + (EVERY_S if len(deliveries) < _AT_ONCE else 0)


def begin_to_read(
    link: Link, queue: str, declared: tuple[bytes, dict[str, str]] | None
) -> Feed | None:
    """Mark *queue* as one whose no_ack consumer reads the log; None if it needs copies.

    It reads what is published from now on. Raises BrokerUnavailable.
    """
    meta = {} if declared is None else declared[1]
    if "auto_delete" not in meta or "message_ttl" not in meta or not meta.keys() <= _EXPIRES:
        return None
    exchanges = list(link.routes.bindings_of(queue))
    ttl_ms = int(meta["message_ttl"])
    if ttl_ms > LOG_MS or len(exchanges) != 1:
        return None
    (exchange,) = exchanges
    if link.routes.cached(exchange).type != "fanout":
        return None
    ends: list[Logged | ReliqError] = []
    link.store.post_read_log(exchange, "0", ttl_ms, 0, ends.append)
    link.store.wait_for_replies()
    if not ends or isinstance(ends[0], ReliqError):
        return None
    with suppress(BrokerRefused):  # a full server, for example
        if link.routes.bind(queue, exchange, READS_LOG, present=True):
            return Feed(queue, exchange, ttl_ms, ends[0].place)
    return None
