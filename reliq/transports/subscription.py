"""Subscription: one consumer of one queue, and what was reserved for it."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING

from ..message.queue_names import queue_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..consumer.sessions import Session
    from ..store.values import Delivery, Promoted, Reservation
    from .qos import QoS

# A reply that is read later than this is known to be old when it is read.
_PROMPT_S = 0.05
# One that cannot take what is due promotes it for others no more often than this.
_PROMOTE_EVERY_S = 0.05


@dataclass(eq=False)
class Subscription:
    """The state of one ``basic_consume``."""

    qos: QoS
    deliver: Callable[[Delivery], None]
    """Hands a delivery to the application; what that raises is the caller's."""
    queue: str
    """Where it takes from: one of the partitions, where the queue is divided."""
    tag: str
    no_ack: bool
    session: Session
    partitions: dict[str, Subscription] = field(default_factory=dict, init=False)
    """By name, the subscriptions of the other partitions of its queue for the same consumer."""
    buffer: deque[Delivery] = field(default_factory=deque, init=False)
    began_at: float = field(default_factory=monotonic, init=False)
    asked_at: float = field(default=0.0, init=False)
    due_at: float | None = field(default=None, init=False)
    asked_for: int = field(default=0, init=False)
    """How many messages the reserve that is under way may bring."""
    heard: bool = field(default=False, init=False)
    """Whether the broker has ever answered what was asked for it."""
    refused: bool = field(default=False, init=False)
    """Whether the broker refuses it now."""

    def __post_init__(self) -> None:
        """Have the session told where it is collected and was never cancelled."""
        self.of_queue = queue_of(self.queue)
        self._wanted = True
        self._batch = 0
        dropped = self.session.registration.subscription_dropped
        self._dropped = weakref.finalize(self, dropped, self.queue, self.no_ack, self.buffer)
        self._dropped.atexit = False

    def for_partition(self, name: str) -> Subscription:
        """Return the subscription of the partition *name* of its queue for the same consumer."""
        return replace(self, queue=name)

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

    def unanswered(self) -> None:
        """Note that the reserve is over, and said nothing: the broker is asked again."""
        self.asked_for = 0
        self._wanted = True

    def put_off(self, seconds: float) -> None:
        """Note that the broker refuses it: it is asked again after so long."""
        self.refused = True
        self.due_at = monotonic() + seconds
        self.asked_for = 0

    def reserved(self, reservation: Reservation) -> None:
        """Take what a reserve brought."""
        self.heard, self.refused = True, False
        self._wanted = self._wanted or reservation.left
        # The answer may have waited here while the application was busy.
        self._note_due(reservation.next_due_ms, min(monotonic(), self.asked_at + _PROMPT_S))
        self.buffer.extend(reservation.deliveries)
        self._batch = len(reservation.deliveries)
        self.asked_for = 0  # last: whoever adds up meanwhile counts them twice, not never

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
