"""Registration: this process in the broker's lists of consumers.

Owns the subscriptions, the queues to leave, and the queues that keep this process as a consumer
for a while after a lost connection. A temporary queue is deleted with its last consumer.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import logger
from ..forks import OwnLock
from ..routing.redeclare import Topology
from ..routing.routes import Routes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from weakref import WeakSet

    from ..values.protocol import Attempt, Store
    from ..values.values import Delivery, Layout


class AttachedTransport(Protocol):
    """A transport that uses a session."""

    declarations: Any
    """Its declarations: ``may_stay``, ``declare_again`` and ``restore_limits``, for one queue."""
    reserver: Any
    """Its reserves: ``asking``, and ``reserving`` for a consumer."""

    @property
    def consumes(self) -> bool:
        """Whether it has ever consumed. If not, it has no reserves."""

    def follow_layout(self, queue: str) -> None:
        """Let its consumers of *queue* adapt to a new layout soon."""

    def forget_parent(self) -> None:
        """Drop the state inherited from the parent process."""

    def read_replies(self) -> None:
        """Read pending replies: the leases in an unread reserve are not renewed."""

    def end_publishing(self) -> None:
        """Let the broker forget the publish numbers of this process, if that is safe."""


class Registration:
    """The registration of one session as a consumer of queues. Thread-safe."""

    lock = OwnLock()
    """Guards the subscriptions."""

    def __init__(self, transports: WeakSet[AttachedTransport], grace_s: float) -> None:
        self._transports = transports
        self._grace_s = grace_s

    def begin(self, name: str) -> None:
        """Start as the consumer *name*, without any registration."""
        self._name = name
        self.subscriptions: dict[str, list[bool]] = {}
        """The subscriptions of each queue: whether each uses no_ack."""
        self.consumed = False
        """Whether it ever was a consumer. If not, the process only publishes."""
        self.layouts: dict[str, int] = {}
        """The end of the partitions of each divided queue."""
        self.topology = Topology()
        self._detached: set[str] = set()
        # Queues of lost connections that may be consumed again soon, each with a deadline.
        self._lingering: dict[str, float] = {}
        self._dropped: deque[tuple[str, bool, deque[Delivery]]] = deque()
        self._expected_until = 0.0

    @property
    def queues(self) -> list[str]:
        """The queues that list this process as a consumer."""
        return sorted({*self.subscriptions, *self._detached, *self._lingering})

    @property
    def is_for_work(self) -> bool:
        """Whether it consumes from a permanent queue: not only replies, events or broadcasts."""
        over = list(self._transports)
        queues = list(self.subscriptions)
        return any(all(item.declarations.may_stay(queue) for item in over) for queue in queues)

    def subscribe(self, queue: str, no_ack: bool) -> int:
        """Record a subscription of *queue*; return the number of its subscriptions."""
        with self.lock:
            self.consumed = True
            kinds = self.subscriptions.setdefault(queue, [])
            kinds.append(no_ack)
            return len(kinds)

    def unsubscribe(self, queue: str, no_ack: bool) -> int:
        """Remove a subscription of *queue*; return the number of its subscriptions."""
        with self.lock:
            kinds = self.subscriptions.get(queue, [])
            if no_ack in kinds:
                kinds.remove(no_ack)
            if not kinds:
                self.subscriptions.pop(queue, None)
            return len(kinds)

    def subscription_dropped(self, queue: str, no_ack: bool, buffer: deque[Delivery]) -> None:
        """Record a collected subscription. Runs in a destructor: only a deque is touched."""
        self._dropped.append((queue, no_ack, buffer))

    def dropped(self) -> Iterator[tuple[bool, deque[Delivery]]]:
        """Remove collected subscriptions; yield the no_ack flag and the buffer of each."""
        while True:
            try:
                queue, no_ack, buffer = self._dropped.popleft()
            except IndexError:
                return
            self.unsubscribe(queue, no_ack)
            self.detach_later(queue)
            yield no_ack, buffer

    def note_layout(self, queue: str, layout: Layout) -> None:
        """Record how *queue* is divided. Its consumers then adapt."""
        with self.lock:
            changed = self.layouts.get(queue, 1) != layout.end
            self.layouts[queue] = layout.end
        for transport in list(self._transports) if changed else ():
            transport.follow_layout(queue)

    @property
    def has_unsent(self) -> bool:
        """Whether the broker must be informed of queues that this process has left."""
        now = monotonic()
        return bool(
            self._detached
            or self._dropped
            or any(now >= until for until in list(self._lingering.values()))
        )

    def detach_later(self, queue: str) -> None:
        """Send the number of subscriptions of *queue* over the next connection."""
        self._detached.add(queue)

    def linger(self, queue: str) -> None:
        """Remain a consumer of *queue* for ``orphan_grace``, restarted by a reconnection.

        The connection was lost, and the process consumes again when it reconnects. A temporary
        queue then keeps the messages that it receives in the meantime.
        """
        self._lingering[queue] = monotonic() + self._grace_s

    def lingers(self, queue: str) -> bool:
        """Whether this process only lingers as a consumer of *queue*, without a subscription."""
        return queue in self._lingering and queue not in self.subscriptions

    def end_lingering(self, queue: str, store: Store) -> None:
        """Stop lingering as a consumer of *queue*, unless it is consumed again."""
        if self.lingers(queue):
            self._detach(store, queue)
            self._lingering.pop(queue, None)

    def leave_queues(self, store: Store, attempt: Attempt) -> None:
        """Inform the broker of ended subscriptions and of queues that no longer linger.

        Makes one *attempt* for each queue. Raises BrokerUnavailable; the rest stays pending.
        """
        for queue in list(self._detached):
            with attempt:
                self._detach(store, queue)
                self._detached.discard(queue)
        now = monotonic()
        for queue, until in list(self._lingering.items()):
            if now >= until:
                with attempt:
                    if queue not in self.subscriptions:
                        self._detach(store, queue)
                    self._lingering.pop(queue, None)

    def leave_all(self) -> None:
        """End all subscriptions."""
        self._detached.update(self.queues)
        self.subscriptions.clear()
        self._lingering.clear()

    def _detach(self, store: Store, queue: str) -> None:
        if not store.attach(queue, self._name, len(self.subscriptions.get(queue, ()))):
            self.topology.forget_queue(queue)
            Routes(store).forget_queue(queue)

    def expect_back(self, seconds: float) -> None:
        """Record a lost connection: a new one is expected within *seconds*."""
        self._expected_until = monotonic() + seconds

    @property
    def expected_back(self) -> bool:
        """Whether a new connection is expected after a recent loss."""
        return monotonic() < self._expected_until

    def reconnected(self) -> None:
        """Restart the time of lingering queues: their consumers return about now."""
        self._lingering = dict.fromkeys(self._lingering, monotonic() + self._grace_s)

    def come_back(self, store: Store) -> None:
        """Register the subscriptions again, after the broker took this process for dead.

        The process was frozen for long, or the broker has lost the register. If a queue was
        deleted with its supposedly last consumer, declare and bind it again. If another process
        made it anew, declare its limits again.
        """
        for queue, kinds in list(self.subscriptions.items()):
            over = list(self._transports)
            if store.attach(queue, self._name, len(kinds)):
                for transport in over:
                    transport.declarations.restore_limits(queue, store)
                continue
            if any(transport.declarations.declare_again(queue, store) for transport in over):
                logger.warning(
                    "queue %r was deleted in its consumer's absence and is declared again", queue
                )
                store.attach(queue, self._name, len(kinds))
