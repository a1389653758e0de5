"""Posting: what is published without waiting for the reply, for which a loop must not stop.

Its errors show later, and nobody is to be told but the log.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import BrokerUnavailable, ReliqError
from ..integrations.celery import WATCH
from ..message.queue_names import queue_of
from ..routing.spread import turned_away
from ..signals import emit_published, message_published
from ..store.nodes import goes_on
from ..store.values import FULL, NO_QUEUE, STALE
from .losses import Losses
from .outgoing import publications, stored_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..routing.routes import Route
    from ..store.values import ExchangeTable, Publication
    from .eventloop import EventLoop
    from .link import Linked
    from .outgoing import Outgoing
    from .unroutable import UnroutableMessages

logger = logging.getLogger("reliq")

_NODE_PATIENCE_S = 0.1

_TRANSIENT = 1


class Posting:
    """Writes messages to the socket of one transport; replies are read when they come.

    What a reply asks for is done after it was read, as the event loop's deferred work.
    """

    def __init__(self, transport: Linked, loop: EventLoop, unroutable: UnroutableMessages) -> None:
        self._transport = transport
        self._loop = loop
        self._unroutable = unroutable
        self._losses = Losses(transport)

    def is_for(self, item: Outgoing, properties: dict[str, Any]) -> bool:
        """Whether nobody waits for the reply to *item*: asked for, or a worker's own event.

        A worker sends events and heartbeats from the loop that must keep running
        when the broker does not answer. They are transient and go to a fanout
        exchange; anything else, and any other process, waits for its reply, and so
        does what itself asks for more.
        """
        if item.confirm.level == "none":
            return True
        return (
            WATCH.worker
            and properties.get("confirm") is None
            and properties.get("delivery_mode") == _TRANSIENT
            and self._transport.link.routes.cached(item.exchange).type == "fanout"
        )

    def post(self, item: Outgoing, items: list[Publication] | None = None) -> None:
        """Post *items*, which *item* comes to; None: it goes wherever its exchange leads to.

        Raises BrokerUnavailable where the connection is lost.
        """
        store = self._transport.link.store
        store.receive()
        store.check()
        self._loop.do_deferred()
        if items is None:
            self._post_except((), item)
        else:
            store = self._transport.link.store  # what was deferred may have failed back
            store.post_publish(items, partial(self._posted, items, item))

    def _post_except(self, done: tuple[str, ...], item: Outgoing) -> None:
        link = self._transport.link
        exchange, routing_key = item.exchange, item.routing_key
        route = self._route(link.routes.cached, exchange)
        if route is None:
            return
        queues = [queue for queue in route.lookup(routing_key) if queue not in done]

        def on_version(version: bytes | ReliqError | None) -> None:
            if version != route.version and not isinstance(version, ReliqError):
                self._loop.deferred.append(partial(self._post_rest, done, item))

        if not queues:  # nobody listens, as far as we know
            link.store.post_bindings_version(exchange, on_version)
            return
        items = publications(item, queues, None, link.store, route.version or b"")

        def on_result(outcomes: list[int] | ReliqError) -> None:
            self._posted(items, item, outcomes)
            if not isinstance(outcomes, ReliqError) and STALE in outcomes:
                reached = [q for q, got in zip(queues, outcomes, strict=True) if got != STALE]
                self._loop.deferred.append(partial(self._post_rest, (*done, *reached), item))

        link.store.post_publish(items, on_result)

    def _post_rest(self, done: tuple[str, ...], item: Outgoing) -> None:
        """Post *item* to those queues that it goes to by the bindings of now, but for *done*.

        They are asked for without waiting: the broker may have ceased to answer meanwhile.
        """
        exchange = item.exchange

        def on_table(table: ExchangeTable | ReliqError) -> None:
            if isinstance(table, ReliqError):
                self._losses.unrouted(exchange, table)
            else:
                self._loop.deferred.append(partial(go_on, table))

        def go_on(table: ExchangeTable) -> None:
            self._transport.link.routes.learn(exchange, table)
            self._post_except(done, item)

        self._transport.link.store.post_exchange_table(exchange, on_table)

    def _route(self, read: Callable[[str], Route], exchange: str) -> Route | None:
        """Return what *read* says of *exchange*; None where one of several nodes does not answer.

        An event loop waits no longer for that than for anything else.
        """
        link = self._transport.link
        try:
            with link.store.patience(_NODE_PATIENCE_S):
                route = read(exchange)
        except BrokerUnavailable as exc:
            if not goes_on(link.store):
                raise
            self._losses.unrouted(exchange, exc)
            return None
        self._losses.routed(exchange)
        return route

    def _post_elsewhere(self, item: Outgoing, sent: Publication) -> None:
        store = self._transport.link.store
        store.partitions.pop(sent.queue, None)  # what was known of it is out of date
        store.post_publish((sent,), partial(self._posted, [sent], item))

    def _posted(
        self, items: list[Publication], item: Outgoing, outcomes: list[int] | ReliqError
    ) -> None:
        if isinstance(outcomes, ReliqError):
            self._losses.lost((sent.queue for sent in items), outcomes)
            return
        self._losses.arrived(sent.queue for sent in items)
        deferred = self._loop.deferred
        for sent, got in zip(items, outcomes, strict=True):
            if turned_away(sent.queue, got):
                # It takes nothing new: the queue's own partition always does.
                own = sent._replace(queue=queue_of(sent.queue), create=item.create)
                deferred.append(partial(self._post_elsewhere, item, own))
            elif got == NO_QUEUE and not item.exchange:
                deferred.append(partial(self._unroutable.report, "", item.routing_key))
        full = [item.queue for item, got in zip(items, outcomes, strict=True) if got == FULL]
        if full:
            logger.warning("a message that was not to be confirmed is lost: full: %s", full)
        if message_published.receivers:
            stored = stored_of(items, outcomes)
            broker = self._transport.link.store.broker
            # Not here: while a reply is read the connection is locked.
            deferred.append(partial(emit_published, broker, stored, item.headers, item.routing_key))
