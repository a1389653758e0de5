"""Registration: as what this process is noted at one broker.

Which queues it consumes from, which it is to leave, and of which it remains a consumer for a
while after a lost connection: a queue may go with its last consumer.
"""

from __future__ import annotations

from collections import deque
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import logger
from ..forks import OwnLock
from ..message.queue_names import partition_names
from ..routing.redeclare import Topology
from ..routing.routes import Routes
from ..store.protocol import EachNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from weakref import WeakSet

    from ..store.protocol import Store
    from ..store.values import Delivery, Layout


class AttachedTransport(Protocol):
    """A transport that uses a session."""

    declarations: Any
    """Its declarations: whether a queue ``may_stay``, and to ``declare_again`` one of its own."""
    reserver: Any
    """Its reserves: whether it is ``asking``, and ``reserving`` as a consumer."""

    @property
    def consumes(self) -> bool:
        """Whether it has ever begun to consume: before, it has no reserves."""

    def forget_parent(self) -> None:
        """Drop what belongs to the process that this one was forked from."""

    def read_replies(self) -> None:
        """Read what has come: a reserve that lies unread holds leases that nobody renews."""

    def end_publishing(self) -> None:
        """Let the broker forget the numbers of what was published, where that is safe."""


class Registration:
    """The queues of which one session is noted as a consumer. Thread-safe."""

    lock = OwnLock(reentrant=True)
    """Guards the subscriptions."""

    def __init__(self, transports: WeakSet[AttachedTransport], grace_s: float) -> None:
        self._transports = transports
        self._grace_s = grace_s

    def begin(self, name: str) -> None:
        """Begin as the consumer *name*, noted nowhere."""
        self._name = name
        self.subscriptions: dict[str, list[bool]] = {}
        """The subscriptions of each queue: whether each takes with no_ack."""
        self.consumed = False
        """Whether it ever was a consumer: otherwise it only publishes."""
        self.layouts: dict[str, int] = {}
        """Of queues that are divided: where their partitions end."""
        self.layout_changes = 0
        """How often that has changed."""
        self.topology = Topology()
        self._detached: set[str] = set()
        # Queues of lost connections that may be consumed again soon, and until when.
        self._lingering: dict[str, float] = {}
        self._dropped: deque[tuple[str, bool, deque[Delivery]]] = deque()
        self._expected_until = 0.0

    @property
    def queues(self) -> list[str]:
        """The queues of which this process is noted as a consumer."""
        return sorted({*self.subscriptions, *self._detached, *self._lingering})

    @property
    def is_for_work(self) -> bool:
        """Whether it consumes from a queue that stays: not only replies, events or broadcasts."""
        over = list(self._transports)
        queues = list(self.subscriptions)
        return any(all(one.declarations.may_stay(queue) for one in over) for queue in queues)

    def subscribe(self, queue: str, no_ack: bool) -> int:
        """Note that a channel of this process consumes from *queue*; return how many do."""
        with self.lock:
            self.consumed = True
            kinds = self.subscriptions.setdefault(queue, [])
            kinds.append(no_ack)
            return len(kinds)

    def unsubscribe(self, queue: str, no_ack: bool) -> int:
        """Note that it does so no longer; return how many subscriptions are left."""
        with self.lock:
            kinds = self.subscriptions.get(queue, [])
            if no_ack in kinds:
                kinds.remove(no_ack)
            if not kinds:
                self.subscriptions.pop(queue, None)
            return len(kinds)

    def subscription_dropped(self, queue: str, no_ack: bool, buffer: deque[Delivery]) -> None:
        """Note a collected subscription. Runs in a destructor: only a deque is touched."""
        self._dropped.append((queue, no_ack, buffer))

    def dropped(self) -> Iterator[tuple[bool, deque[Delivery]]]:
        """Unsubscribe those; yield of each whether it took with no_ack, and what it had."""
        while True:
            try:
                queue, no_ack, buffer = self._dropped.popleft()
            except IndexError:
                return
            self.unsubscribe(queue, no_ack)
            self.detach_later(queue)
            yield no_ack, buffer

    def note_layout(self, queue: str, layout: Layout) -> None:
        """Note how *queue* is divided; who consumes from it follows."""
        with self.lock:
            if self.layouts.get(queue, 1) != layout.end:
                self.layouts[queue] = layout.end
                self.layout_changes += 1

    @property
    def has_unsent(self) -> bool:
        """Whether the broker is to be told of queues that are left."""
        now = monotonic()
        return bool(
            self._detached
            or self._dropped
            or any(now >= until for until in list(self._lingering.values()))
        )

    def detach_later(self, queue: str) -> None:
        """Tell the broker over the next connection how many subscriptions *queue* has left."""
        self._detached.add(queue)

    def linger(self, queue: str) -> None:
        """Remain a consumer of *queue* for ``orphan_grace``, or as long after a reconnection.

        The connection was lost, and who comes back consumes from it again: what is sent to
        it meanwhile is not lost, though it may go with its last consumer.
        """
        self._lingering[queue] = monotonic() + self._grace_s

    def lingers(self, queue: str) -> bool:
        """Whether this process counts as a consumer of *queue* only until it comes back."""
        return queue in self._lingering and queue not in self.subscriptions

    def end_lingering(self, queue: str, store: Store) -> None:
        """Be no consumer of *queue* any more, unless it has come back to it."""
        if self.lingers(queue):
            self._detach(store, queue)
            self._lingering.pop(queue, None)

    def leave_queues(self, store: Store, patience_s: float = inf) -> None:
        """Tell the broker what is left: subscriptions that ended, queues that linger no more.

        Waits so long for each of several nodes; what could not be told is told another time.
        Raises BrokerUnavailable.
        """
        nodes = EachNode(store, patience_s)
        for queue in list(self._detached):
            with nodes.turn():
                self._detach(store, queue)
                self._detached.discard(queue)
        now = monotonic()
        for queue, until in list(self._lingering.items()):
            if now >= until:
                with nodes.turn():
                    if queue not in self.subscriptions:
                        self._detach(store, queue)
                    self._lingering.pop(queue, None)
        nodes.end()

    def leave_all(self) -> None:
        """Consume from nothing any more."""
        self._detached.update(self.queues)
        self.subscriptions.clear()
        self._lingering.clear()

    def _detach(self, store: Store, queue: str) -> None:
        if not store.attach(queue, self._name, len(self.subscriptions.get(queue, ()))):
            self.topology.forget_queue(queue)
            Routes(store).forget_queue(queue)

    def expect_back(self, seconds: float) -> None:
        """Note a lost connection: another one is likely to follow, for so long."""
        self._expected_until = monotonic() + seconds

    @property
    def expected_back(self) -> bool:
        """Whether a connection was lost so lately that another one is likely to follow."""
        return monotonic() < self._expected_until

    def reconnected(self) -> None:
        """Have what lingers do so for as long again: who consumed comes back about now."""
        self._lingering = dict.fromkeys(self._lingering, monotonic() + self._grace_s)

    def come_back(self, store: Store) -> None:
        """Note anew what this process consumes from: it was taken for dead, and lives.

        It was frozen for long, or the broker has lost the register. A queue that went with
        its last consumer, as we seemed to be, is declared and bound again.
        """
        for queue, kinds in list(self.subscriptions.items()):
            if store.attach(queue, self._name, len(kinds)):
                continue
            over = list(self._transports)
            if any(one.declarations.declare_again(queue, store) for one in over):
                logger.warning(
                    "queue %r was gone when its consumer came back, and is declared again", queue
                )
                store.attach(queue, self._name, len(kinds))


_LOOK_EVERY_S = 0.5
_MOST_NAMED = 20
# A slot that moves, or a connection that is being opened, is soon there again: no outage.
_LASTS_S = 2.0


class LostQueues:
    """Reports, once each, that the node of a consumed queue is away, and that it is back.

    Of whoever does the duties of one session.
    """

    def __init__(self, registration: Registration) -> None:
        self._registration = registration
        self._look_at = 0.0
        self._lost: set[str] = set()
        # Queues of which it is otherwise than was told last, and since when.
        self._changed: dict[str, float] = {}

    def tick(self, store: Store) -> None:
        """Look whether a queue was lost, or has come back; does not wait."""
        now = monotonic()
        if not store.has_nodes or now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        registration = self._registration
        queues = set(registration.subscriptions.copy())
        # Partitions, too, that could not be begun on.
        for queue in queues & registration.layouts.copy().keys():
            queues.update(partition_names(queue, registration.layouts.get(queue, 1)))
        self._lost &= queues
        changed = {queue for queue in queues if store.is_away(queue) != (queue in self._lost)}
        self._changed = {queue: self._changed.get(queue, now) for queue in changed}
        due = [queue for queue in sorted(changed) if now - self._changed[queue] >= _LASTS_S]
        if due:
            self._tell(store, due)

    def _tell(self, store: Store, queues: list[str]) -> None:
        back = [queue for queue in queues if queue in self._lost]
        lost: dict[str, list[str]] = {}
        for queue in queues:
            if queue not in self._lost:
                lost.setdefault(store.node_of(queue), []).append(queue)
        for node, names in lost.items():
            logger.warning(
                "nothing can be taken from %s: node %s does not serve them (it is away, or their "
                "slots are between two nodes); what else this process consumes goes on, and they "
                "are consumed from as soon as a node serves them; reliq doctor looks at the "
                "cluster",
                _named(names),
                node,
            )
        if back:
            logger.info("consuming from %s again: a node serves them", _named(back))
        self._lost.symmetric_difference_update(queues)


def _named(queues: list[str]) -> str:
    named = ", ".join(map(repr, queues[:_MOST_NAMED]))
    more = len(queues) - _MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named
