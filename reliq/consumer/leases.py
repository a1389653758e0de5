"""Leases: the messages that this process holds at one broker, and their deadlines.

Only this module changes the set of held leases. It sends nothing to a broker. The renewal
requests due leases (:meth:`Leases.due`) and reports the results. The outbox, which returns and
finishes messages, reports the leases to drop.

Each lease has an owner: the :class:`Delivery` until it reaches the application, then the message
object. The end of the owner, for example by an interrupt, returns the message.

A message that moves to the outbox is recorded there before its lease is dropped here. Code that
checks the leases first and the outbox second therefore finds it in one of them.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import logger
from ..forks import OwnLock
from ..printable import word
from ..values.values import Delivery, How, Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..options import Options
    from ..values.values import Returned


class _Watch(weakref.ref[Any]):
    """Detects the end of a lease's owner. Its callback is not Python code: see publish_ids."""

    tag: str


@dataclass(slots=True)
class Held:
    """A lease as known to this process."""

    queue: str
    token: str
    since: float
    """Time of the reservation (this process's monotonic clock)."""
    granted: float
    """Time at which the grant or last renewal was requested. ``lease_s`` counts from here."""
    lease_s: float
    """Length of the lease in seconds, which may be specific to the queue."""
    until: float
    """Earliest possible end of the lease, by the broker's replies."""
    owner: weakref.ref[object]
    """The delivery, then the message. The lease is kept while this object exists."""
    message: weakref.ref[object] | None = None
    """Set at the delivery."""
    failed: bool = False
    """Whether the application raised at the delivery. The return of the message then counts."""
    unbegun: bool = False
    """Whether a worker has it from a queue with limits, and has not begun its task."""
    begun: bool = False
    """Whether the message was acked as its task began; its lease lasts until the task ends."""

    @property
    def how(self) -> How:
        """How the message goes back if the application has not settled it."""
        if self.begun:
            return "begun"
        if self.message is None or self.unbegun:
            return "undelivered"
        return "nacked" if self.failed else "released"


class Leases:
    """The leases that one session holds. Thread-safe."""

    lock = OwnLock()
    """Guards the held leases. Taken last: no code under it takes another lock."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def begin(self) -> None:
        """Start without leases, also in a child: inherited leases belong to the parent."""
        options = self._options
        self._held: dict[str, Held] = {}
        self.held = MappingProxyType(self._held)
        """Held leases by tag; a read-only view."""
        self.adrift: dict[str, weakref.ref[Any]] = {}
        """Messages in progress whose lease was lost; read-only for other modules."""
        self._overstayed: set[str] = set()
        self.limited: set[str] = set()
        """Queues with limits, as their last reserve reported; the reserver changes it."""
        # Filled when an owner is collected: at any point of any thread.
        self._abandoned: deque[Any] = deque()
        self.period_s = min(1.0, options.visibility_timeout / 6, options.restore_interval)
        """Seconds between checks for due leases, short enough for the shortest lease."""
        self.on_shorter: Callable[[], object] = bool
        """Called when ``period_s`` has become shorter."""

    @property
    def in_hand(self) -> bool:
        """Whether a message may run here: a lease is held, or was lost during the work."""
        return bool(self._held or self.adrift)

    def count(self, queue: str) -> int:
        """Return the number of held leases of *queue*."""
        return sum(1 for held in self._held.copy().values() if held.queue == queue)

    def take(self, deliveries: Iterable[Delivery], requested_at: float, lease_ms: int) -> None:
        """Record granted leases, each kept while its delivery exists.

        Their time counts from *asked_at*, when they were requested.
        """
        lease_s = lease_ms / 1000
        now = monotonic()
        self._heed(lease_s)
        with self.lock:
            for delivery in deliveries:
                if delivery.tag in self._held:  # its loss was not reported yet
                    self._set_adrift(delivery.tag)
                owner = _Watch(delivery, self._abandoned.append)
                owner.tag = delivery.tag
                self._held[owner.tag] = Held(
                    queue=delivery.queue,
                    token=delivery.token,
                    since=now,
                    granted=requested_at,
                    lease_s=lease_s,
                    until=requested_at + lease_s,
                    owner=owner,
                )

    def _heed(self, lease_s: float) -> None:
        if lease_s / 6 < self.period_s:
            self.period_s = lease_s / 6
            self.on_shorter()

    def overstayed(self) -> dict[str, Held]:
        """Drop the leases held for longer than ``consumer_timeout``; return them."""
        limit, now = self._options.consumer_timeout, monotonic()
        if limit is None:
            return {}
        late = {
            tag: held
            for tag, held in self._held.copy().items()
            if now - held.since > limit and not held.begun
        }
        lost = {tag: held for tag, held in late.items() if self.lost(tag, held.token)}
        self._overstayed.update(tag for tag in lost if tag in self.adrift)
        return lost

    def due(self, all_of_them: bool = False) -> dict[str, list[Lease]]:
        """Return, by queue, the leases to renew now: a third of their time has passed."""
        now = monotonic()
        due: dict[str, list[Lease]] = {}
        with self.lock:
            for tag, held in self._held.copy().items():
                if all_of_them or now - held.granted > held.lease_s / 3 - self.period_s:
                    held.granted = now
                    due.setdefault(held.queue, []).append(Lease(tag, held.token))
        return due

    def note_begun(self, tag: str, token: str, *, begun: bool) -> None:
        """Record whether the worker has begun the task of a message from a queue with limits."""
        if (held := self.own(tag, token)) is not None:
            held.unbegun = not begun

    def begin_task(self, tag: str, token: str) -> bool:
        """Keep a lease, now due for renewal, until the task of its acked message ends.

        Returns False if the lease was lost.
        """
        held = self.own(tag, token)
        if held is not None:
            held.begun, held.granted = True, 0.0
        return held is not None

    def renewed(self, leases: Iterable[Lease], lease_s: float) -> None:
        """Record renewed leases and their length, which an operator may have changed."""
        self._heed(lease_s)
        for lease in leases:
            if (held := self.own(*lease)) is not None:
                held.lease_s = lease_s
                held.until = max(held.until, held.granted + lease_s)

    def begun(self, leases: Iterable[Lease]) -> set[str]:
        """Return the tags of those whose message was acked as its task began."""
        return {tag for tag, _ in leases if (held := self._held.get(tag)) and held.begun}

    def not_renewed(self, leases: Iterable[Lease]) -> None:
        """Record a failed renewal: *leases* are due again."""
        for lease in leases:
            if (held := self.own(*lease)) is not None:
                held.granted = 0.0

    def lost(self, tag: str, token: str) -> Held | None:
        """Drop a lost lease and return it; None if it is not held. Its message may run on."""
        with self.lock:
            held = self.own(tag, token)
            if held is not None:
                self._set_adrift(tag)
                self._held.pop(tag, None)
            return held

    def _set_adrift(self, tag: str) -> None:
        message = self._held[tag].message
        if message is not None and message() is not None:
            self.adrift[tag] = message

    def adopt(self, tag: str, token: str) -> bool:
        """Let a message in progress here continue with the lease of its redelivery.

        Returns False if the message must be delivered, for example after ``consumer_timeout``.
        """
        with self.lock:
            known, held = self.adrift.get(tag), self._held.get(tag)
            message = known() if known is not None else None
            if message is None or held is None or tag in self._overstayed:
                return False
            del self.adrift[tag]
            message.token = token
            return self.keep_while_alive(tag, token, message)

    def settle(self, tags: Iterable[str], now: float = 0.0) -> list[str]:
        """Drop the leases of finished messages, whatever their tokens.

        Returns the tags whose lease ended before *now* without being reported as lost.
        """
        late = []
        # No lock: each operation on the dict is atomic.
        for tag in tags:
            held = self._held.pop(tag, None)
            if held is not None and held.until < now:
                late.append(tag)
            if self.adrift:
                self.adrift.pop(tag, None)
                self._overstayed.discard(tag)
        return late

    def let_go(self, leases: Iterable[Lease]) -> None:
        """Drop the leases of returned messages, unless they were delivered here again."""
        with self.lock:
            for tag, token in leases:
                held = self._held.get(tag)
                if held is None or held.token == token:
                    self.settle((tag,))

    def own(self, tag: str, token: str) -> Held | None:
        """Return the lease with this token; None if it is not held."""
        held = self._held.get(tag)
        return held if held is not None and held.token == token else None

    def keep_while_alive(self, tag: str, token: str, message: object) -> bool:
        """Hold a lease only while *message*, which is delivered with it, exists.

        Returns False if the lease was lost or may have ended. An open channel and a running
        handler keep an unacked message alive. A message collected unacked goes back to its queue.
        """
        try:
            held = self._held[tag]
        except KeyError:  # lost since the reservation
            return False
        if held.token != token or held.until < monotonic():
            return False
        owner = _Watch(message, self._abandoned.append)
        owner.tag = tag
        held.owner = held.message = owner
        return True

    @property
    def has_abandoned(self) -> bool:
        """Whether messages without an owner are still to be returned."""
        return bool(self._abandoned)

    def abandoned(self) -> Iterator[tuple[str, How, Lease]]:
        """Yield queue, way of return and lease of each message whose owner was collected.

        The lease remains held until it is dropped (:meth:`let_go`).
        """
        while True:
            try:
                owner = self._abandoned.popleft()
            except IndexError:
                return
            tag = owner.tag
            adrift = self.adrift.get(tag)
            if adrift is not None and adrift() is None:
                self.adrift.pop(tag, None)
                self._overstayed.discard(tag)
            held = self._held.get(tag)
            if held is not None and held.owner is owner:  # otherwise it has another owner now
                yield held.queue, held.how, Lease(tag, held.token)

    def all(self) -> Iterator[tuple[str, How, Lease]]:
        """Yield queue, way of return and lease of each held message."""
        for tag, held in self._held.copy().items():
            yield held.queue, held.how, Lease(tag, held.token)

    def delivery_failed(self, tag: str, token: str) -> None:
        """Record that the application raised when it received a message."""
        if (held := self.own(tag, token)) is not None:
            held.failed = True


def log_at_the_limit(queue: str, died: Sequence[Returned]) -> None:
    """Log messages that were dead-lettered because their deliveries failed."""
    for item in died:
        logger.error(
            "message %s of %r was dead-lettered: it reached its delivery limit with %d failed "
            "deliveries, the last by consumer %s; look at it with reliq dead show %s %s, and "
            "replay it when the cause is fixed",
            item.tag,
            queue,
            item.failed,
            item.consumer,
            word(queue),
            word(item.tag),
        )
