"""Credit: how much a transport may ask its broker for, and what else it may take.

The prefetch limit of a channel bounds what is delivered, what is here, and what is asked for. While
a message is delivered alone, or waits to be (``ISOLATION``), some consumers have no credit. Of the
thread that asks; it keeps no state of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..consumer.isolation import ISOLATION
from ..consumer.sessions import SESSIONS
from ..integrations.celery import WATCH
from ..store.values import ALONE, BUSY, HOLDING, IDLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..store.values import Reservation
    from .link import Link
    from .message import QoS
    from .subscription import Subscription

# What one reserve brings at most where the prefetch is unlimited.
_UNLIMITED = 100
# What a consumer that acks nothing has here at most: a kill loses it.
_NO_ACK_AHEAD = 10


@dataclass(eq=False)
class Credit:
    """The rules for one transport."""

    _link: Link
    of_worker: Callable[[], bool]
    """Whether a worker itself takes over it."""
    _began_at: float
    _split: bool
    """Whether the queues share the credit of their channel."""

    def of(self, item: Subscription, known: dict[QoS, int] | None = None) -> int:
        """Return how many messages may be reserved for *item*; *known*: sums of its channel."""
        if item.no_ack:
            return _NO_ACK_AHEAD - len(item.buffer)
        if ISOLATION.active and self.shuts_out(item):
            return 0
        if known is None:
            return self.of_channel(item.qos)
        if item.qos not in known:
            known[item.qos] = self.of_channel(item.qos)
        return known[item.qos]

    def of_channel(self, qos: QoS) -> int:
        """Return how many messages may be reserved for a channel now."""
        if not qos.can_consume():
            return 0
        if qos.one_by_one:
            return 0 if self._reserved(qos) else 1
        if not qos.prefetch_count:
            return _UNLIMITED
        return min(qos.prefetch_count - len(qos.delivered) - self._reserved(qos), _UNLIMITED)

    def shares(self, wanting: Sequence[Subscription]) -> Iterator[tuple[Subscription, int]]:
        """Yield how much of its channel's credit each may use now."""
        known: dict[QoS, int] = {}
        rivals = Counter(item.qos for item in wanting if not item.no_ack)
        for item in wanting:
            n = self.of(item, known)
            if not item.no_ack:
                if self._split and n > 1:
                    n = max(1, n // rivals[item.qos])
                rivals[item.qos] -= 1
                if n > 0 and (item.qos.prefetch_count or item.qos.one_by_one):
                    known[item.qos] -= n
            yield item, n

    def surplus(self, qos: QoS) -> int:
        """Return how many messages there are for which the limit leaves no room."""
        here = sum(len(item.buffer) for item in _taking(qos))
        return max(len(qos.delivered) + here - qos.prefetch_count, 0) if qos.prefetch_count else 0

    def is_well_stocked(self, qos: QoS) -> bool:
        """Whether at least half of what may be reserved is here or asked for."""
        return self._reserved(qos) * 2 >= min(qos.prefetch_count or _UNLIMITED, _UNLIMITED)

    def _reserved(self, qos: QoS) -> int:
        """Return how many messages are asked for, or here and not delivered yet.

        Added up from what each consumer knows: another thread may read a reply meanwhile,
        and a count that two threads keep goes wrong for good.
        """
        return sum(len(item.buffer) + item.asked_for for item in _taking(qos))

    @property
    def occupancy(self) -> int:
        """What an ordinary reserve says of what this process holds."""
        if ISOLATION.in_back_off and self.alone != ALONE:
            return BUSY
        return HOLDING if self._link.session.leases.held else IDLE

    @property
    def alone(self) -> int:
        """What a reserve says while no other is made: whether the process holds nothing."""
        return ALONE if SESSIONS.nothing_in_hand() and not WATCH.busy else HOLDING

    @property
    def awaited_from(self) -> str | None:
        """The queue whose message waits for this process to be alone; None where none does."""
        if ISOLATION.holds or ISOLATION.session is not self._link.session:
            return None
        return ISOLATION.queue

    def note(
        self, queue: str, result: Reservation, asked_at: float, began_at: float | None = None
    ) -> None:
        """Note what a reserve of *queue* has said of it; *began_at*: of whoever asked."""
        session = self._link.session
        if result.isolated and result.deliveries:
            ISOLATION.given(session, result.deliveries[0])
        elif result.claimed:
            ISOLATION.wait_for(session, queue, asked_at, began_at or self._began_at)
        else:
            ISOLATION.over(session, queue)

    def shuts_out(self, item: Subscription) -> bool:
        """Whether a consumer is to take nothing now.

        While a message waits the tasks of a worker go on, and so does what they consume;
        what began after an isolated delivery is its own doing.
        """
        if not ISOLATION.holds and WATCH.worker and not self.of_worker():
            return False
        return item.began_at <= ISOLATION.since

    def may_get(self, queue: str) -> bool:
        """Whether ``basic_get`` may take a message of *queue* now."""
        if ISOLATION.holds:
            return self._began_at > ISOLATION.since
        if WATCH.worker and not self.of_worker():
            return True
        return queue == self.awaited_from


def _taking(qos: QoS) -> Iterator[Subscription]:
    """Yield the subscriptions of a channel that take with acks, from each partition."""
    for item in qos.consumers.values():
        if not item.no_ack:
            yield item
            yield from item.partitions.values()
