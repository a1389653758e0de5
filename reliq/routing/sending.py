"""Sending: messages are routed, numbered and stored once in each target queue.

Every publish that waits for its reply uses this module: messages of a channel or a spool, callbacks
of batches, and dead letters. Posted publishes follow the same rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import BrokerUnavailable, ReliqError
from ..errors import again as fresh
from ..message.queue_names import number_of, queue_of
from ..values.limits import chunks
from ..values.values import BY_STORING, CREATED, NO_QUEUE, STALE, STORED
from . import partitions
from .outgoing import require, together
from .routes import ROUTE_TRIES
from .spread import SPREAD, redirected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..values.protocol import Store
    from ..values.values import Publication
    from .outgoing import Outgoing
    from .routes import Routes

    Redeclare = Callable[[str, Store], bool]

_SENT_AT_ONCE = 100


def send(
    store: Store,
    routes: Routes,
    messages: Sequence[Outgoing],
    redeclare: Redeclare = lambda _queue, _store: False,
) -> None:
    """Store every message and wait for its confirmation; record the outcome in each message.

    *redeclare* redeclares a lost queue over a store; it returns False if it may not. Raises
    ReliqError. Sending again, over any connection to the same broker, stores each message once.
    Atomic for each queue, not across queues.
    """
    wishes = []
    for item in messages:
        item.stored, item.refused = {}, {}
        if item.confirm.level not in BY_STORING:
            wishes.append(item.confirm)
    wishes = together(wishes) if wishes else wishes
    for wish in wishes:
        require(wish, store)
    sending, left = _Sending(store, routes, redeclare), messages
    for _ in range(ROUTE_TRIES):
        left = sending.send(left)
        if not left:
            break
    for wish in wishes:
        stored = [sent for item in messages for sent in item.stored.values()]
        if stored:
            store.confirmer.confirm(wish, stored)


class _Sending:
    """Sends messages by the cached routes."""

    def __init__(self, store: Store, routes: Routes, redeclare: Redeclare) -> None:
        self._store = store
        self._routes = routes
        self._redeclare = redeclare

    def send(self, messages: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Send each message once; return the messages to send again."""
        store = self._store
        tried = _tried(messages) if store.has_nodes else []
        self._owners: list[tuple[Outgoing, str]] = []  # message and queue of each copy
        self._nowhere: list[Outgoing] = []
        try:
            if messages[_SENT_AT_ONCE:] and not store.has_nodes:
                copies, outcomes = self._publish_in_parts(messages)
            else:
                copies = self._copies(messages)
                outcomes = store.publish(copies) if copies else []
        except BrokerUnavailable as exc:
            divided = SPREAD.divided(store, {queue for _, queue in self._owners})
            for tag, before in tried:
                SPREAD.refused(tag, exc.untouched - before, divided)
            raise
        astray: list[tuple[Outgoing, Publication, int]] = []
        for (item, queue), sent, outcome in zip(self._owners, copies, outcomes, strict=True):
            if outcome == STORED:
                item.stored[queue] = sent
                continue
            if outcome == CREATED:
                self._see_to_created(sent.queue)
            if not item.note(sent, outcome):
                astray.append((item, sent, outcome))
        if not (astray or self._nowhere):
            return ()
        again = self._goes_again(astray)
        for exchange in {item.exchange: None for item in again if item.exchange}:
            self._routes.refresh(exchange)
        return list(dict.fromkeys([*again, *self._newly_bound()]))

    def _publish_in_parts(
        self, messages: Sequence[Outgoing]
    ) -> tuple[list[Publication], list[int]]:
        """Publish *messages* in parts: the server stores one part while the next is made.

        Not on a cluster. There, all copies are sent at the end, to all nodes at once, and an error
        names the partitions that received nothing.
        """
        results: list[list[int] | ReliqError] = []
        made: list[Publication] = []
        for some in chunks(messages, _SENT_AT_ONCE):
            if copies := self._copies(some):
                self._store.post_publish(copies, results.append)
                made += copies
        self._store.wait_for_replies()
        outcomes: list[int] = []
        for result in results:
            if isinstance(result, ReliqError):
                raise fresh(result)
            outcomes += result
        return made, outcomes

    def _copies(self, messages: Sequence[Outgoing]) -> list[Publication]:
        """Return the copies of *messages* for queues that have not stored them yet."""
        made: list[Publication] = []
        for item in messages:
            queues, version = item.route(self._routes)
            if not queues:
                self._nowhere.append(item)
            for queue in queues:
                if queue not in item.stored:
                    # One script stores this many copies; the next go to another partition.
                    stays = bool(made and len(made) % _SENT_AT_ONCE)
                    made += (item.publication(queue, self._store, version, stays=stays),)
                    self._owners += ((item, queue),)
        return made

    def _goes_again(self, astray: Iterable[tuple[Outgoing, Publication, int]]) -> list[Outgoing]:
        """Return the messages to send again; record NO_QUEUE for the others."""
        again = []
        answers: dict[str, bool] = {}
        for item, sent, outcome in astray:
            queue = queue_of(sent.queue)
            if redirected(sent.queue, outcome):
                SPREAD.redirect(self._store, item.tag, sent.queue)
            elif outcome != STALE:
                if queue not in answers:
                    answers[queue] = self._redeclare(queue, self._store)
                if not answers[queue]:
                    item.refused[queue] = NO_QUEUE
                    continue
            again.append(item)
        return again

    def _see_to_created(self, queue: str) -> None:
        """Redeclare a queue that a publish created, or add it to the list of queues."""
        if number_of(queue):
            partitions.adopt(self._store, queue)
        elif not self._redeclare(queue, self._store):
            self._store.list_queue(queue)

    def _newly_bound(self) -> list[Outgoing]:
        """Return the unroutable messages whose exchange has changed its bindings."""
        changed = set()
        for exchange in {item.exchange for item in self._nowhere}:
            known = self._routes.cached(exchange).version
            if known == self._store.bindings_version(exchange) is not None:
                continue
            if self._routes.refresh(exchange).version is not None:
                changed.add(exchange)
        return [item for item in self._nowhere if item.exchange in changed]


def _tried(messages: Iterable[Outgoing]) -> list[tuple[Any, frozenset[str]]]:
    """Return the tag of each message, and the partitions where it was tried before."""
    tags = [item.tag for item in messages if item.tag is not None]
    return [(tag, frozenset(tag.numbers)) for tag in tags]
