"""Credit: how many messages a transport may request, and which consumers may take any.

The prefetch limit of a channel covers delivered, buffered and requested messages. While a message
has or awaits an isolated delivery (``ISOLATION``), some consumers have no credit. Belongs to the
requesting thread, and keeps no state of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...consumer.host import HOST
from ...consumer.isolation import ISOLATION
from ...consumer.sessions import SESSIONS
from ...errors import logger
from ...values.values import ALONE, HOLDING
from ..message import QoS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...values.values import Reservation
    from ..link import Link
    from .subscription import Subscription

# The most messages per reserve with an unlimited prefetch.
_UNLIMITED = 100
# The most buffered messages of a no_ack consumer: they are lost if the process is killed.
_NO_ACK_AHEAD = 10


@dataclass(eq=False)
class Credit:
    """The credit rules of one transport."""

    _link: Link
    of_worker: Callable[[], bool]
    """Whether a worker itself, not one of its tasks, consumes over this transport."""
    _began_at: float
    _split: bool
    """Whether queues share the credit of their channel."""

    def of(self, item: Subscription, known: dict[QoS, int] | None = None) -> int:
        """Return how many messages *item* may reserve; *known* caches credits of channels."""
        if item.behind:
            return 0
        if item.no_ack:
            return _NO_ACK_AHEAD - len(item.buffer)
        if ISOLATION.on and ISOLATION.active and self.shuts_out(item):
            return 0
        if known is None:
            return self.of_channel(item.qos)
        if item.qos not in known:
            known[item.qos] = self.of_channel(item.qos)
        return known[item.qos]

    def of_channel(self, qos: QoS) -> int:
        """Return how many messages a channel may reserve now.

        A worker that consumes a queue with limits takes no more than it can start at once: others
        could start what it held in advance.
        """
        if _one_by_one(qos):
            return 0 if self._reserved(qos) or not qos.can_consume() else 1
        most = _UNLIMITED
        if self._link.session.leases.limited and self._is_bounded(qos):
            most = HOST.free() - self._reserved(qos)
        if not qos.prefetch_count:
            return most
        return min(qos.prefetch_count - len(qos.delivered) - self._reserved(qos), most)

    def _is_bounded(self, qos: QoS) -> bool:
        """Whether a worker takes from a queue with limits over this channel."""
        limited = self._link.session.leases.limited
        queue = next((item.queue for item in _taking(qos) if item.queue in limited), None)
        if queue is None or not self.of_worker():
            return False
        if not HOST.bounded:
            HOST.bounded = True
            logger.warning(
                "queue %r has limits: this worker takes at most as many messages, from all its "
                "queues, as it has free processes, whatever worker_prefetch_multiplier says",
                queue,
            )
        return True

    def shares(self, wanting: Sequence[Subscription]) -> list[tuple[Subscription, int]]:
        """Return each subscription with its share of the credit of its channel."""
        if len(wanting) == 1:
            return [(wanting[0], self.of(wanting[0]))]
        shares: list[tuple[Subscription, int]] = []
        known: dict[QoS, int] = {}
        rivals = Counter(item.qos for item in wanting if not item.no_ack)
        for item in wanting:
            n = self.of(item, known)
            if not item.no_ack:
                if self._split and n > 1:
                    n = max(1, n // rivals[item.qos])
                rivals[item.qos] -= 1
                if n > 0 and (item.qos.prefetch_count or known[item.qos] < _UNLIMITED):
                    known[item.qos] -= n
            shares.append((item, n))
        return shares

    def surplus(self, qos: QoS) -> int:
        """Return by how many messages the channel exceeds its prefetch limit."""
        here = sum(len(item.buffer) for item in _taking(qos))
        return max(len(qos.delivered) + here - qos.prefetch_count, 0) if qos.prefetch_count else 0

    def is_well_stocked(self, qos: QoS) -> bool:
        """Whether at least half of the possible messages are buffered or requested."""
        return self._reserved(qos) * 2 >= min(qos.prefetch_count or _UNLIMITED, _UNLIMITED)

    def _reserved(self, qos: QoS) -> int:
        """Return how many messages are requested, or buffered and undelivered.

        This is summed over the consumers because another thread may read a reply meanwhile. A
        counter shared by two threads would drift permanently.
        """
        return sum(len(item.buffer) + item.requested for item in _taking(qos))

    @property
    def alone(self) -> int:
        """The state that a lone reserve reports: ALONE if the process holds nothing."""
        return ALONE if SESSIONS.nothing_in_hand() and not HOST.busy() else HOLDING

    @property
    def awaited_from(self) -> str | None:
        """The queue whose message awaits an isolated delivery to this process, or None."""
        if ISOLATION.holds or ISOLATION.session is not self._link.session:
            return None
        return ISOLATION.queue

    def note(
        self, queue: str, result: Reservation, requested_at: float, began_at: float | None = None
    ) -> None:
        """Record a reserve's reply about isolation; *began_at*: when the requester started."""
        session = self._link.session
        if result.isolated and result.deliveries:
            ISOLATION.given(session, result.deliveries[0])
        elif result.claimed:
            ISOLATION.wait_for(session, queue, requested_at, began_at or self._began_at)
        else:
            ISOLATION.over(session, queue)

    def shuts_out(self, item: Subscription) -> bool:
        """Whether a consumer may take nothing now.

        While a message awaits isolation, a worker's tasks continue, and so do their consumers.
        Consumers started after an isolated delivery belong to its task and may continue.
        """
        if not ISOLATION.holds and HOST.worker() and not self.of_worker():
            return False
        return item.began_at <= ISOLATION.since

    def may_get(self, queue: str) -> bool:
        """Whether ``basic_get`` may take a message of *queue* now."""
        if ISOLATION.holds:
            return self._began_at > ISOLATION.since
        if HOST.worker() and not self.of_worker():
            return True
        return queue == self.awaited_from


def _one_by_one(qos: QoS) -> bool:
    """Whether messages are not reserved in advance: Celery's worker_disable_prefetch."""
    return getattr(qos.can_consume, "__func__", None) is not QoS.can_consume


def _taking(qos: QoS) -> Iterator[Subscription]:
    """Yield the subscriptions of a channel that take with acks, including all partitions."""
    for item in qos.consumers.values():
        if not item.no_ack:
            yield item
            yield from item.partitions.values()
