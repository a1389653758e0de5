"""Subscription: one consumer of one queue, and what was reserved for it."""

from __future__ import annotations

import weakref
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from ..consumer.isolation import ISOLATION
from ..message.queue_names import queue_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..consumer.sessions import Session
    from ..store.values import Delivery, Promoted, Reservation
    from .isolated import IsolatedDelivery
    from .qos import QoS

# What one reserve brings at most where the prefetch is unlimited.
UNLIMITED = 100
# What a consumer that acks nothing has here at most: a kill loses it.
NO_ACK_AHEAD = 10
# A reply that is read later than this is known to be old when it is read.
_PROMPT_S = 0.05
# One that cannot take what is due promotes it for others no more often than this.
_PROMOTE_EVERY_S = 0.05


class Subscription:
    """The state of one ``basic_consume``."""

    def __init__(
        self,
        qos: QoS,
        deliver: Callable[[Delivery], None],
        queue: str,
        tag: str,
        no_ack: bool,
        session: Session,
        isolated: IsolatedDelivery,
    ) -> None:
        self.qos = qos
        self.deliver = deliver
        """Hands a delivery to the application; what that raises is the caller's."""
        self._session = session
        self.queue = queue
        """Which it takes from: one of the partitions, where the queue is divided."""
        self.of_queue = queue_of(queue)
        self.partitions: dict[str, Subscription] = {}
        """By name, what takes from the other partitions of its queue for the same consumer."""
        self.tag = tag
        self.no_ack = no_ack
        self.buffer: deque[Delivery] = deque()
        self._isolated = isolated
        self._dropped = weakref.finalize(
            self, session.registration.subscription_dropped, queue, no_ack, self.buffer
        )
        self._dropped.atexit = False
        self.began_at = monotonic()
        self.asked_at = 0.0
        self.due_at: float | None = None
        self.asked_for = 0
        """How many messages the reserve that is under way may bring."""
        self.heard = False
        """Whether the broker has ever answered what was asked for it."""
        self.refused = False
        """Whether the broker refuses it now."""
        self._wanted = True
        self._batch = 0

    def for_partition(self, name: str) -> Subscription:
        """Return what takes from the partition *name* of its queue for the same consumer."""
        return Subscription(
            *(self.qos, self.deliver, name, self.tag, self.no_ack, self._session, self._isolated)
        )

    @property
    def is_divided(self) -> bool:
        """Whether it takes from one of several partitions."""
        return bool(self.partitions) or self.queue != self.of_queue

    @property
    def in_flight(self) -> bool:
        """Whether a reserve is under way."""
        return self.asked_for > 0

    @property
    def wanted(self) -> bool:
        """Whether the broker may have something for it."""
        return self._wanted or self.due

    @property
    def due(self) -> bool:
        """Whether a delayed message has become due since the broker was asked."""
        return self.due_at is not None and monotonic() >= self.due_at

    def want(self) -> None:
        """Ask the broker at the next opportunity."""
        self._wanted = True

    def credit(self) -> int:
        """Return how many messages may be reserved for it now."""
        if self.no_ack:
            return NO_ACK_AHEAD - len(self.buffer)
        if ISOLATION.active and self._isolated.shuts_out(self.began_at):
            return 0
        return self.qos.credit(UNLIMITED)

    def can_deliver(self) -> bool:
        """Whether a buffered message may be delivered now."""
        return bool(self.buffer) and (self.no_ack or self.qos.can_consume())

    @property
    def running_low(self) -> bool:
        """Whether it is time to ask for more, so that the next messages are here in time."""
        return self._wanted and self.asked_for <= 0 and len(self.buffer) <= self._batch // 2

    def asked(self, n: int) -> None:
        """Note that a reserve of up to *n* messages is under way."""
        self.asked_for = n
        self._wanted = False
        self.asked_at = monotonic()

    def answered(self) -> None:
        """Note that the reserve is over."""
        self.asked_for = 0

    def put_off(self, seconds: float) -> None:
        """Note that the broker refuses it: it is asked again after so long."""
        self.refused = True
        self.due_at = monotonic() + seconds
        self.answered()

    def reserved(self, reservation: Reservation) -> None:
        """Take what a reserve brought."""
        self.heard, self.refused = True, False
        self._wanted = self._wanted or reservation.left
        # The answer may have waited here while the application was busy.
        self._note_due(reservation.next_due_ms, min(monotonic(), self.asked_at + _PROMPT_S))
        self.buffer.extend(reservation.deliveries)
        self._batch = len(reservation.deliveries)
        self.answered()  # last: whoever adds up meanwhile counts them twice, not never

    def promoted(self, promoted: Promoted) -> None:
        """Note what was left when due messages were made ready for others."""
        self._wanted = self._wanted or promoted.left
        self._note_due(promoted.next_due_ms, monotonic())
        if self.due_at is not None:
            self.due_at = max(self.due_at, monotonic() + _PROMOTE_EVERY_S)

    def _note_due(self, next_due_ms: int, when: float) -> None:
        self.due_at = when + next_due_ms / 1000 if next_due_ms >= 0 else None

    def ended(self) -> None:
        """Note that it was cancelled in order."""
        self._dropped.detach()
        for item in self.partitions.values():
            item.ended()

    def take_back(self, most: int | None = None) -> list[Delivery]:
        """Take out what was not delivered, the last reserved first; *most* of it."""
        taken: list[Delivery] = []
        while self.buffer and (most is None or len(taken) < most):
            taken.append(self.buffer.pop())
        return taken
