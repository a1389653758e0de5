"""Outbox: what this process owes one broker, until the broker has it.

Acks that are not confirmed, messages that go back, what was taken with no_ack and never
handed out, and reserves whose reply was lost. Owed over any connection: what one could not
deliver the next one does (:meth:`Outbox.flush`). All debts have one lock, so that none is
overlooked while it turns into another.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerTimeout, BrokerUnavailable, ReliqError, logger
from ..forks import OwnLock
from ..integrations.celery import WATCH
from ..signals import emit_at_the_limit
from ..store.limits import BATCH, chunks
from ..store.protocol import EachNode
from ..store.values import Delivery, How, Lease, Released
from .leases import log_at_the_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from weakref import WeakSet

    from ..store.protocol import Store
    from .heartbeat import RunningTasks
    from .leases import Leases
    from .registration import AttachedTransport


@dataclass(eq=False)
class Outbox:
    """What one session owes its broker. Thread-safe."""

    _leases: Leases
    _transports: WeakSet[AttachedTransport]
    _running: RunningTasks

    lock = OwnLock(reentrant=True)
    """Guards what is owed. Taken before that of the leases: what goes from there to here does
    so in one step, and is owed here before it is let go there."""

    def begin(self) -> None:
        """Owe nothing, as a child does: what was owed is its parent's."""
        self.unconfirmed: dict[str, tuple[str, float]] = {}
        """Acks without an answer: the queue and the time of each tag; not to be changed."""
        self._unsent: set[str] = set()
        self._returns: deque[tuple[str, How, Lease]] = deque()
        # Taken with no_ack, never handed out.
        self._unhanded: deque[Delivery] = deque()
        self._lost_reserves: set[tuple[str, str]] = set()
        # What is being given back: how many calls. It is owed until it is answered.
        self._returning = 0
        self.replaced_at = 0.0
        """Since when there may be another server in the place of the one before."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is owed."""
        with self.lock:
            return not (
                self.unconfirmed
                or self._returns
                or self._returning
                or self._unhanded
                or self._lost_reserves
            )

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent or self._returns or self._unhanded or self._lost_reserves)

    def trusts(self, store: Store) -> bool:
        """Whether *store* surely speaks to the server that is the broker now.

        Over a cluster it looks after that by itself, node by node.
        """
        return store.has_nodes or store.connected_at >= self.replaced_at

    def flush(self, store: Store, patience_s: float = inf) -> None:
        """Send what earlier connections could not: acks, returns, lost reserves.

        Posts the acks, and waits for the rest, so long for each of several nodes. Raises
        ReliqError; what was not sent is owed on.
        """
        nodes = EachNode(store, patience_s)
        with self.lock:
            unsent, self._unsent = self._unsent, set()
            owed: dict[str, list[str]] = {}
            for tag in unsent:
                known = self.unconfirmed.get(tag)
                if known is not None:
                    owed.setdefault(known[0], []).append(tag)
        for queue, tags in owed.items():
            with suppress(BrokerTimeout):  # they are unsent again
                self.send_acks(store, queue, tags)
        with self._being_returned():
            self._send_returns(store, nodes)
        self.hand_back(store, nodes)
        for lost in list(self._lost_reserves):
            with nodes.turn():
                if self._reclaim(store, *lost):
                    self._lost_reserves.discard(lost)
        nodes.end()

    def ack(self, store: Store, queue: str, tags: Sequence[str]) -> None:
        """Finish messages: written to the socket at once, confirmed later.

        Where the connection is gone the ack is kept and goes out over the next
        one. Never waits; raises BrokerTimeout when earlier acks have had no
        answer for ``socket_timeout``.
        """
        self.owe_acks(queue, tags)
        self.send_acks(store, queue, tags)

    def owe_acks(self, queue: str, tags: Sequence[str]) -> None:
        """Owe acks that :meth:`send_acks` sends in a moment.

        From here on nobody holds the messages: that they are let go does not return them.
        """
        now = monotonic()
        with self.lock:
            for tag in tags:
                self.unconfirmed[tag] = (queue, now)
            late = self._leases.settle(tags, now)
        for tag in late:
            logger.warning(
                "lease lost: message %s of %r was finished after its lease had ended, and may have "
                "run elsewhere too; this process did not renew it in time: raise "
                "visibility_timeout where processes are frozen for longer, and keep from a second "
                "run with reliq.once",
                tag,
                queue,
            )

    def send_acks(self, store: Store, queue: str, tags: Sequence[str]) -> None:
        """Write acks that are owed to the socket; raises what :meth:`ack` does."""
        # A server that was taken for dead and replaced may still answer on an older
        # connection: what it confirms is sent again.
        trusted = not self.replaced_at or self.trusts(store)
        for chunk in chunks(tags) if tags[BATCH:] else (tags,):
            try:
                if store.has_nodes:  # a post looks only at what its own node is late with
                    store.check()
                if WATCH.consumers:
                    self._running.before_ack(store, queue)
                store.post_ack(queue, chunk, partial(self._acked, chunk, trusted))
            except BrokerTimeout:  # noqa: PERF203 - one of few chunks
                self._unsent.update(tags)
                raise
            except BrokerUnavailable as exc:
                self._unsent.update(chunk)
                logger.warning("%s; %d acks go out over the next connection", exc, len(chunk))

    def ack_later(self, queue: str, tags: Sequence[str]) -> None:
        """Finish messages over the next connection: this one is gone."""
        with self.lock:
            self.owe_acks(queue, tags)
            self._unsent.update(tags)

    def resend(self, older_than_s: float) -> None:
        """Send again the acks that have had no answer for so long.

        An application may ack and then work for hours without a look at its
        connection, on which the ack met a dead socket or an empty script cache.
        """
        now = monotonic()
        with self.lock:
            for tag, (queue, since) in self.unconfirmed.copy().items():
                if since < now - older_than_s and tag in self.unconfirmed:
                    self.unconfirmed[tag] = (queue, now)
                    self._unsent.add(tag)

    def resend_all(self) -> None:
        """Send again all the acks that have had no answer: nobody will read it."""
        self._unsent.update(self.unconfirmed)

    def _acked(self, tags: Sequence[str], trusted: bool, result: int | ReliqError) -> None:
        if type(result) is not int or not trusted:
            if isinstance(result, BrokerUnavailable) or not isinstance(result, ReliqError):
                self._unsent.update(tags)
                return
            logger.error("an ack failed and the message will be delivered again: %s", result)
        # Without the lock: each is one step of a dict, and who looks at all of them has a copy.
        for tag in tags:
            self.unconfirmed.pop(tag, None)

    def release(self, store: Store, queue: str, how: How, leases: Sequence[Lease]) -> Released:
        """Give messages back, over the next connection if need be; return what became of them."""
        with self._being_returned():
            self._leases.let_go(leases)
            try:
                return store.release(queue, how, leases)
            except BrokerUnavailable:
                self.release_later(queue, how, leases)
                raise

    def release_later(self, queue: str, how: How, leases: Sequence[Lease]) -> None:
        """Give messages back over the next connection."""
        with self.lock:
            self._returns.extend((queue, how, lease) for lease in leases)
            self._leases.let_go(leases)

    def return_later(self, deliveries: Iterable[Delivery], *, no_ack: bool = False) -> None:
        """Give back messages that were reserved but never handed out, when it is possible."""
        with self.lock:
            if no_ack:
                self._unhanded.extend(deliveries)
                return
            for delivery in deliveries:
                lease = Lease(delivery.tag, delivery.token)
                self.release_later(delivery.queue, "undelivered", (lease,))

    def return_abandoned(self) -> None:
        """Owe what was collected unacked."""
        for queue, how, lease in self._leases.abandoned():
            self.release_later(queue, how, (lease,))

    def return_all(self) -> int:
        """Owe everything that is held; return how much that is."""
        left = list(self._leases.all())
        for queue, how, lease in left:
            self.release_later(queue, how, (lease,))
        return len(left)

    def dead_letter(
        self, store: Store, queue: str, reason: str, error: str, leases: Sequence[Lease]
    ) -> list[str]:
        """Give up on messages; return the tags whose lease was lost before."""
        refused = store.dead_letter(queue, reason, error, leases)
        self._leases.let_go(leases)
        return refused

    @contextmanager
    def _being_returned(self) -> Iterator[None]:
        """Owe what is taken out to be returned until that is done, or is owed again."""
        with self.lock:
            self._returning += 1
        try:
            yield
        finally:
            with self.lock:
                self._returning -= 1

    def _send_returns(self, store: Store, nodes: EachNode) -> None:
        with self.lock:
            returns, self._returns = self._returns, deque()
        grouped: dict[tuple[str, How], list[Lease]] = {}
        for queue, how, lease in returns:
            grouped.setdefault((queue, how), []).append(lease)
        try:
            for (queue, how), leases in list(grouped.items()):
                with nodes.turn():
                    released = store.release(queue, how, leases)
                    del grouped[queue, how]
                    log_at_the_limit(queue, released.dead)
                    emit_at_the_limit(store.broker, queue, released.dead, "nacked")
        finally:
            with self.lock:
                for (queue, how), leases in grouped.items():
                    self._returns.extend((queue, how, lease) for lease in leases)

    def hand_back(self, store: Store, nodes: EachNode) -> None:
        """Give back what was taken with no_ack and never handed out; once, so it says if it fails.

        Raises ReliqError; what it could not tell the broker of then may be lost.
        """
        with self.lock:
            unhanded, self._unhanded = self._unhanded, deque()
        grouped: dict[str, list[Delivery]] = {}
        for delivery in unhanded:
            grouped.setdefault(delivery.queue, []).append(delivery)
        for queue, deliveries in grouped.items():
            with nodes.turn():
                try:
                    store.hand_back(queue, deliveries)
                except ReliqError:
                    logger.error(  # noqa: TRY400 - the error itself is raised
                        "%d messages of %r may be lost: their consumer needs no ack, had not "
                        "handed them out, and could not give them back",
                        len(deliveries),
                        queue,
                    )
                    raise

    def reserve_lost(self, queue: str, consumer: str) -> None:
        """Note a reserve whose reply was lost: it may have taken messages."""
        self._lost_reserves.add((queue, consumer))

    def _reclaim(self, store: Store, queue: str, consumer: str) -> bool:
        """Return what a lost connection reserved and nobody here ever saw.

        What is acked was seen: it may have its lease still, its ack being under way on
        another connection. What a reserve that is under way took will be seen: False, to
        be called again.
        """
        leases = store.leases_of(queue, consumer)
        if any(one.consumes and one.reserver.reserving(consumer) for one in list(self._transports)):
            return False
        with self.lock:
            unseen = [
                lease
                for lease in leases
                if lease.tag not in self.unconfirmed and self._leases.own(*lease) is None
            ]
        if unseen:
            store.release(queue, "undelivered", unseen)
            logger.info(
                "returned %d messages to %r: their delivery was cut off", len(unseen), queue
            )
        return True
