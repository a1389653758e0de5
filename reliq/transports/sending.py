"""Sending: the messages of a batch, each once to every queue it is routed to."""

from __future__ import annotations

from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from ..errors import BrokerUnavailable, ReliqError, again
from ..integrations.outcomes import BATCH
from ..message.queue_names import queue_of
from ..routing.publish_ids import PUBLISHER
from ..routing.routes import ROUTE_TRIES
from ..routing.spread import SPREAD, turned_away
from ..signals import message_published
from ..store.values import DUPLICATE, FULL, STALE
from .confirming import together
from .outgoing import publications, see_to_created

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..routing.publish_ids import PublishTag
    from ..routing.routes import Routes
    from ..store.protocol import Store
    from ..store.values import Publication
    from .link import Link
    from .outgoing import Outgoing

_SENT_AT_ONCE = 100


class Entry:
    """A message in the batch."""

    __slots__ = ("added", "full", "item", "reached", "stored", "tag")

    def __init__(self, item: Outgoing) -> None:
        self.item = item
        self.added = monotonic() if item.delay_ms else 0.0
        self.tag: PublishTag | None = None
        """Made when it is first sent; its numbers make it the same on every try."""
        self.reached = False
        """Whether some queue has it, or was too full to have it."""
        self.full = False
        """Whether some queue was too full to have it."""
        self.stored: dict[str, Publication] = {}
        """By queue, where somebody wants to be told."""

    @property
    def outgoing(self) -> Outgoing:
        """The message as it is sent now: what waits for a time has waited since it was added."""
        item = self.item
        if not item.delay_ms:
            return item
        waited_ms = int((monotonic() - self.added) * 1000)
        return item._replace(delay_ms=max(item.delay_ms - waited_ms, 0))

    def note(self, sent: Publication) -> None:
        """Note that a queue has it."""
        self.reached = True
        if message_published.receivers:
            self.stored[sent.queue] = sent


NotStored: TypeAlias = "tuple[list[Outgoing], list[Publication]]"
"""Messages with no queue, and copies whose queue is full."""


class _Sending:
    """Publications on their way: some are stored while the next are made.

    Not over several nodes. There all are sent at the end, to all nodes at once: who has sent them
    learns what of it reached nobody, and over which connections it was stored.
    """

    def __init__(self, store: Store) -> None:
        self.items: list[Publication] = []
        self._store = store
        self._posted = 0
        self._results: list[list[int] | ReliqError] = []
        # Each message, and where it was tried before.
        self._tried: list[tuple[PublishTag, tuple[str, ...]]] = []

    def begin(self, tag: PublishTag) -> None:
        """Note a message that is to be sent, before it has more numbers."""
        self._tried.append((tag, tuple(tag.numbers)))

    def add(self, publications: list[Publication]) -> None:
        """Send them with those that follow, or now if they are enough for a call."""
        self.items += publications
        if self._store.has_nodes:
            return
        if len(self.items) - self._posted >= _SENT_AT_ONCE:
            self._store.post_publish(self.items[self._posted :], self._results.append)
            self._posted = len(self.items)

    def finish(self) -> list[int]:
        """Send the rest; return the outcome of each, or raise the first error."""
        rest = self.items[self._posted :]
        try:
            last = self._store.publish(rest) if rest else []
        except BrokerUnavailable as exc:
            divided = SPREAD.divided(self._store, {queue_of(item.queue) for item in rest})
            for tag, before in self._tried:
                SPREAD.refused(tag, exc.untouched.difference(before), divided)
            raise
        self._store.wait_for_replies()
        outcomes: list[int] = []
        for result in self._results:
            if isinstance(result, ReliqError):
                raise again(result)
            outcomes += result
        return outcomes + last


def send(
    link: Link, entries: Sequence[Entry], redeclare: Callable[[str, Store], bool]
) -> NotStored:
    """Store every message and wait for its confirmation; return what found no place.

    *redeclare* declares again over a store a queue that the broker has lost; False: it is not
    to. Raises ReliqError; trying again, over any link to the same broker, stores each once.
    """
    store = link.store
    wishes = together({entry.item.confirm for entry in entries})
    for wish in wishes:
        wish.require(store)
    stored: list[Publication] = []
    full: list[Publication] = []
    left: Iterable[Entry] = entries
    for _ in range(ROUTE_TRIES):
        left = _send_once(link, left, stored, full, redeclare)
        if not left:
            break
    for wish in wishes:
        wish.wait(store, stored)
    return [entry.item for entry in entries if not entry.reached], full


def _send_once(
    link: Link,
    entries: Iterable[Entry],
    stored: list[Publication],
    full: list[Publication],
    redeclare: Callable[[str, Store], bool],
) -> Iterable[Entry]:
    """Send by the routes as they are known; return what has to be routed once more."""
    _, store, routes = link
    sending = _Sending(store)
    items = sending.items
    owners: list[Entry] = []
    nowhere: list[Entry] = []
    for entry in entries:
        item, tag = entry.outgoing, entry.tag
        if tag is None:
            tag = entry.tag = PUBLISHER.tag(item.rank, job=BATCH in item.headers)
        sending.begin(tag)
        queues, version = routed(routes, item)
        if not queues:
            nowhere.append(entry)
            continue
        stays = len(owners) % _SENT_AT_ONCE != 0  # one step stores those that go together
        sending.add(publications(item, queues, tag, store, version, stays=stays))
        owners += [entry] * len(queues)
    outcomes = sending.finish()
    see_to_created(store, items, outcomes, redeclare)
    # Once each, in their order, however many of their copies went astray.
    again = dict.fromkeys(_newly_bound(link, nowhere))
    comes_back = cache(lambda queue: redeclare(queue, store))  # each is asked once
    for sent, entry, outcome in zip(items, owners, outcomes, strict=True):
        if outcome >= DUPLICATE:
            entry.note(sent)
            stored.append(sent)
        elif outcome == FULL:
            entry.reached = entry.full = True
            full.append(sent)
        elif turned_away(sent.queue, outcome):
            SPREAD.turn_away(store, entry.tag, sent.queue)
            again[entry] = None
        elif outcome == STALE or comes_back(queue_of(sent.queue)):
            again[entry] = None
    for exchange in dict.fromkeys(entry.item.exchange for entry in again if entry.item.exchange):
        routes.refresh(exchange)
    return again


def routed(routes: Routes, item: Outgoing) -> tuple[Sequence[str], bytes]:
    """Return where *item* goes to, as far as is known, and by which bindings."""
    if not item.exchange:
        return (item.routing_key,), b""
    route = routes.cached(item.exchange)
    return route.lookup(item.routing_key), route.version or b""


def _newly_bound(link: Link, nowhere: list[Entry]) -> list[Entry]:
    """Return those whose exchange has other bindings by now than those they failed by."""
    changed = set()
    for exchange in {entry.item.exchange for entry in nowhere}:
        known = link.routes.cached(exchange).version
        if known == link.store.bindings_version(exchange) is not None:
            continue
        if link.routes.refresh(exchange).version is not None:
            changed.add(exchange)
    return [entry for entry in nowhere if entry.item.exchange in changed]
