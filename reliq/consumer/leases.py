"""Leases: what this process holds at one broker, and until when.

The only one who edits what is held. It asks no broker for anything: who renews asks it what
is due (:meth:`Leases.due`) and tells it what became of that; who gives back or finishes a
message (the outbox) tells it to let go.

A message that goes from here to the outbox is owed there before it is let go here. So who
asks whether a message is in hand or owed asks here first and there second, and finds it.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import logger
from ..forks import OwnLock
from ..printable import word
from ..store.values import Delivery, How, Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..options import Options
    from ..store.values import Returned


@dataclass(slots=True)
class Held:
    """A lease as this process knows it."""

    queue: str
    token: str
    since: float
    """When it was taken (this process's monotonic clock)."""
    granted: float
    """When its grant or its last renewal was asked for: it lasts a lease from then at least."""
    lease_s: float
    """How long that is: the queue may have a lease of its own."""
    until: float
    """Until when it surely lasts, by what the broker has answered."""
    message: weakref.ref[object] | None = None
    """Set once it was delivered: it is kept while this lives."""
    failed: bool = False
    """Whether the application raised as it was delivered: if it goes back, it is counted."""

    @property
    def how(self) -> How:
        """How it goes back where nobody has said so."""
        return "nacked" if self.failed else "released"


class Leases:
    """The leases that one session holds. Thread-safe."""

    lock = OwnLock(reentrant=True)
    """Guards what is held. Taken last: nothing is called under it that takes another."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def begin(self) -> None:
        """Hold nothing, as a child does: what was held is its parent's."""
        options = self._options
        self._held: dict[str, Held] = {}
        self.held = MappingProxyType(self._held)
        """What is held, by tag: to be looked at."""
        self.adrift: dict[str, weakref.ref[Any]] = {}
        """Messages whose lease was lost, while somebody works on them; not to be changed."""
        self._overstayed: set[str] = set()
        self._abandoned: deque[str] = deque()
        self.period_s = min(1.0, options.visibility_timeout / 6, options.restore_interval)
        """How often what is due is to be asked for: often enough for the shortest lease."""
        self.on_shorter: Callable[[], object] = bool
        """Called when that has become shorter."""

    @property
    def in_hand(self) -> bool:
        """Whether a message may run here: its lease is held, or was lost meanwhile."""
        return bool(self._held or self.adrift)

    def count(self, queue: str) -> int:
        """Return how many are held of *queue*."""
        return sum(1 for held in self._held.copy().values() if held.queue == queue)

    def take(self, deliveries: Iterable[Delivery], asked_at: float, lease_ms: int) -> None:
        """Note leases that were granted after they were asked for, who knows how soon."""
        lease_s = lease_ms / 1000
        times = monotonic(), asked_at, lease_s, asked_at + lease_s
        self._heed(lease_s)
        with self.lock:
            for delivery in deliveries:
                if delivery.tag in self._held:  # nobody has told us yet that it was lost
                    self._set_adrift(delivery.tag)
                self._held[delivery.tag] = Held(delivery.queue, delivery.token, *times)

    def _heed(self, lease_s: float) -> None:
        if lease_s / 6 < self.period_s:
            self.period_s = lease_s / 6
            self.on_shorter()

    def overstayed(self) -> dict[str, Held]:
        """Let go what is held for longer than ``consumer_timeout``, and return it."""
        limit, now = self._options.consumer_timeout, monotonic()
        if limit is None:
            return {}
        found = {tag: held for tag, held in self._held.copy().items() if now - held.since > limit}
        lost = {tag: held for tag, held in found.items() if self.lost(tag, held.token)}
        self._overstayed.update(tag for tag in lost if tag in self.adrift)
        return lost

    def due(self, all_of_them: bool = False) -> dict[str, list[Lease]]:
        """Return, by queue, the leases that are a third gone: they are about to be renewed."""
        now = monotonic()
        due: dict[str, list[Lease]] = {}
        with self.lock:
            for tag, held in self._held.copy().items():
                if all_of_them or now - held.granted > held.lease_s / 3 - self.period_s:
                    held.granted = now
                    due.setdefault(held.queue, []).append(Lease(tag, held.token))
        return due

    def renewed(self, leases: Iterable[Lease], lease_s: float) -> None:
        """Note how long what was renewed lasts now: an operator may have changed that."""
        self._heed(lease_s)
        for lease in leases:
            if (held := self.own(*lease)) is not None:
                held.lease_s = lease_s
                held.until = max(held.until, held.granted + lease_s)

    def not_renewed(self, leases: Iterable[Lease]) -> None:
        """Note that the renewal of *leases* failed: they are due again."""
        for lease in leases:
            if (held := self.own(*lease)) is not None:
                held.granted = 0.0

    def lost(self, tag: str, token: str) -> Held | None:
        """Note that a lease is not ours any more; None where it was not. Its message may run on."""
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
        """Have a message that is worked on here go on with the lease of its redelivery.

        False: it is to be delivered, as what was held for longer than ``consumer_timeout`` is.
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
        """Let go what is finished, whoever holds it now.

        Returns those whose lease had ended before *now*, unless that was told as lost.
        """
        late = []
        # Without the lock: each is one step of a dict.
        for tag in tags:
            held = self._held.pop(tag, None)
            if held is not None and held.until < now:
                late.append(tag)
            if self.adrift:
                self.adrift.pop(tag, None)
                self._overstayed.discard(tag)
        return late

    def let_go(self, leases: Iterable[Lease]) -> None:
        """Let go what is given back, unless it was delivered here again meanwhile."""
        with self.lock:
            for tag, token in leases:
                held = self._held.get(tag)
                if held is None or held.token == token:
                    self.settle((tag,))

    def own(self, tag: str, token: str) -> Held | None:
        """Return this very lease; None where it is not held."""
        held = self._held.get(tag)
        return held if held is not None and held.token == token else None

    def keep_while_alive(self, tag: str, token: str, message: object) -> bool:
        """Keep a lease only while *message*, which is delivered with it, lives.

        False: it was lost, or may be by now. An open channel holds its unacked messages, and
        whoever works on one does. Once it is collected unacked, with its channel or after it,
        it goes back.
        """
        try:
            held = self._held[tag]
        except KeyError:  # lost since it was taken
            return False
        if held.token != token or held.until < monotonic():
            return False
        held.message = weakref.ref(message, partial(self._collected, tag, token))
        return True

    def _collected(self, tag: str, token: str, _ref: weakref.ref[object]) -> None:
        # May run at any point of any thread: only the deque is touched.
        self._abandoned.append(f"{token} {tag}")

    @property
    def has_abandoned(self) -> bool:
        """Whether a message was collected that nobody has looked at."""
        return bool(self._abandoned)

    def abandoned(self) -> Iterator[tuple[str, How, Lease]]:
        """Yield, of what was collected unacked, the queue, how it goes back, and the lease.

        It is held until it is let go.
        """
        while True:
            try:
                token, _, tag = self._abandoned.popleft().partition(" ")
            except IndexError:
                return
            adrift = self.adrift.get(tag)
            if adrift is not None and adrift() is None:
                self.adrift.pop(tag, None)
                self._overstayed.discard(tag)
            if (held := self.own(tag, token)) is not None:
                yield held.queue, held.how, Lease(tag, token)

    def all(self) -> Iterator[tuple[str, How, Lease]]:
        """Yield, of everything that is held, the queue, how it goes back, and the lease."""
        for tag, held in self._held.copy().items():
            yield held.queue, held.how, Lease(tag, held.token)

    def delivery_failed(self, tag: str, token: str) -> None:
        """Note that the application raised when it was given a message."""
        if (held := self.own(tag, token)) is not None:
            held.failed = True

    def failed(self, tag: str) -> bool:
        """Whether the application raised when it was given the message that it holds."""
        held = self._held.get(tag)
        return held is not None and held.failed


def log_at_the_limit(queue: str, died: Sequence[Returned]) -> None:
    """Tell of messages that were dead-lettered because their deliveries failed."""
    for item in died:
        logger.error(
            "message %s of %r was dead-lettered: it reached its delivery limit with %d failed "
            "deliveries, the last by consumer %s; look at it with reliq dead show %s %s, and "
            "replay it when its cause is mended",
            item.tag,
            queue,
            item.failed,
            item.consumer,
            word(queue),
            word(item.tag),
        )
