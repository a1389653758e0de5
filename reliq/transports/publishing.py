"""Publishing: the half of a channel that producers use."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import MessageRefused, ReliqError, Unroutable
from ..integrations.celery import WATCH
from ..message.envelope import Envelope, encode, is_reply
from ..message.queue_arguments import is_durable
from ..routing.publish_ids import PUBLISHER, PublishTag
from ..signals import emit_published, message_published
from ..store.values import FULL, NO_QUEUE, STALE, Publication
from .batch import PublishBatch
from .confirming import Wanted, wanted
from .delay import take_delay, ttl_ms
from .outgoing import Outgoing, list_created, publications, refuse_full, stored_of
from .parts import Parts

if TYPE_CHECKING:
    from ..options import Options

logger = logging.getLogger("reliq")

_NOT_STORED = frozenset({"delivery_tag", "delivery_info", "body_encoding", "confirm"})
_MOST_PRIORITY = 255
_TRANSIENT = 1
_TRIES = 5
_MOST_REMEMBERED = 1024


class PublishingTransport(Parts, Protocol):
    """What publishing needs of a transport."""

    unroutable: set[tuple[str, str]]
    """(exchange, routing key) of which it was said that no queue is bound for it."""


class Publishing:
    """basic_publish and what it needs."""

    transport: PublishingTransport
    options: Options
    confirmation: Wanted
    closed: bool
    supports_batch_publish = True

    def basic_publish(
        self,
        message: dict[str, Any],
        exchange: str = "",
        routing_key: str = "",
        confirm_timeout: float | None = None,
        **_: Any,
    ) -> None:
        """Store *message* in every queue it is routed to, once, however often it is retried.

        One round trip. When it returns, the message is stored (unless ``confirm``
        is "none", or it is transient and for a fanout exchange: then it is written
        and an error shows later); with ``confirm`` "replicated" or "fsynced" a second
        one, after which it is that safe. The property ``confirm`` and *confirm_timeout*
        (seconds) are for this message, instead of the options.

        Raises MessageRefused, and BrokerRefused where this broker cannot confirm so,
        before anything is stored; BrokerUnavailable (NotConfirmed) when it is not
        known whether it was (is that safe): trying again with the same properties is
        safe. Atomic for each queue, not across queues.
        """
        properties = message["properties"]
        item = self.prepare(message, exchange, routing_key, confirm_timeout)
        tag = properties.get("delivery_tag")
        if type(tag) is not PublishTag or tag.settled:
            tag = properties["delivery_tag"] = PUBLISHER.tag(item.rank)
        link = self.transport.link  # after the tag: in a forked child that makes the link anew
        confirm = item.confirm
        stored: list[Publication] = []
        if not item.exchange:
            items = publications(item, (item.routing_key,), tag, link.store.broker)
            if confirm.level == "none":
                self._before_posting()
                store = self.transport.link.store  # what was deferred may have failed back
                store.post_publish(items, partial(self._posted, items, item))
            else:
                confirm.require(link.store)
                outcomes = link.store.publish(items)
                list_created(link.store, items, outcomes)
                refuse_full(items, outcomes)
                stored = stored_of(items, outcomes)
                if not stored:
                    self.report_unroutable("", item.routing_key)
                confirm.wait(link.store, stored)
        elif self._is_posted(item.exchange, properties, confirm):
            self._post(item)
        else:
            confirm.require(link.store)
            stored = self._publish_routed(item, tag)
            confirm.wait(link.store, stored)
        PUBLISHER.wait_for_replies(tag)
        if message_published.receivers:
            emit_published(link.store.broker, stored, item.headers, item.routing_key)

    def prepare(
        self,
        message: dict[str, Any],
        exchange: str = "",
        routing_key: str = "",
        confirm_timeout: float | None = None,
    ) -> Outgoing:
        """Check and encode *message*; raises MessageRefused. Nothing is sent."""
        properties = message["properties"]
        confirm = wanted(self.confirmation, properties, confirm_timeout)
        rank = self._rank(properties)
        exchange, routing_key = exchange or "", routing_key or ""
        if "delivery_info" in properties:
            properties["delivery_info"].update(exchange=exchange, routing_key=routing_key)
        headers, delay_ms = take_delay(message.get("headers") or {}, self.options.native_delay)
        envelope = self._envelope(message, headers, exchange, routing_key)
        expires_ms = ttl_ms(properties)
        create = bool(exchange) or self._creates(routing_key, properties, headers)
        return Outgoing(
            exchange, routing_key, envelope, rank, delay_ms, expires_ms, confirm, headers, create
        )

    def _creates(self, queue: str, properties: dict[str, Any], headers: dict[str, Any]) -> bool:
        """Whether a message for *queue*, by its name, makes it where it is not there.

        A message may come before its consumer. But a reply comes after who waited for it,
        and so does what goes to a queue that was to go by itself: made anew, it would stay.
        Away from the primary broker all is stored: the primary decides.
        """
        failback = self.transport.failback
        if failback.urls and failback.url != failback.urls[0]:
            return True
        declared = self.transport.declarations.queues.get(queue)
        if declared is not None and not is_durable(declared[1]):
            return False
        return not (queue.startswith("amq.") or is_reply(properties, headers))

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """Return what collects up to *max_size* messages; Kombu's ``Producer.batch()`` asks."""
        return PublishBatch(self, max_size)

    # -- routed

    def _publish_routed(self, item: Outgoing, tag: PublishTag) -> list[Publication]:
        """Publish by the cached route; the broker refuses it if the bindings have changed.

        Returns what is stored, now or by an earlier try: once for each queue.
        """
        link = self.transport.link
        exchange, routing_key = item.exchange, item.routing_key
        route = link.routes.cached(exchange)
        stored: dict[str, Publication] = {}
        for _ in range(_TRIES):
            queues = route.lookup(routing_key)
            if queues:
                items = publications(item, queues, tag, link.store.broker, route.version or b"")
                outcomes = link.store.publish(items)
                stored.update({one.queue: one for one in stored_of(items, outcomes)})
                refuse_full(items, outcomes)
                missing = [q for q, got in zip(queues, outcomes, strict=True) if got == NO_QUEUE]
                # One that this connection declared and the broker lost comes back.
                redeclare = self.transport.declarations.redeclare
                again = [queue for queue in missing if redeclare(queue, link.store)]
                if STALE not in outcomes and not again:
                    break
            elif route.version == link.store.bindings_version(exchange) is not None:
                break
            route = link.routes.refresh(exchange)
            if route.version is None:
                break
        if not stored:
            self.report_unroutable(exchange, routing_key)
        return list(stored.values())

    def report_unroutable(self, exchange: str, routing_key: str) -> None:
        """Say once that nothing is bound for such messages, or raise Unroutable if asked to."""
        if exchange:
            what = f"no queue is bound to exchange {exchange!r} for routing key {routing_key!r}"
        else:
            what = f"there is no queue {routing_key!r}, and a reply or the like makes none"
        if self.options.unroutable == "error":
            raise Unroutable(f"{what}; the message was not stored")
        if exchange and self.transport.link.routes.cached(exchange).type == "fanout":
            return  # a broadcast that nobody listens to is nothing unusual
        if (exchange, routing_key) not in self.transport.unroutable:
            if len(self.transport.unroutable) > _MOST_REMEMBERED:
                self.transport.unroutable.clear()
            self.transport.unroutable.add((exchange, routing_key))
            logger.warning(
                "%s: such messages are "
                'dropped, as AMQP does (said once; unroutable="error" raises)',
                what,
            )

    # -- posted: what must not make a worker's event loop wait

    def _is_posted(self, exchange: str, properties: dict[str, Any], confirm: Wanted) -> bool:
        """Whether nobody waits for the reply: asked for, or a worker's own event.

        A worker sends events and heartbeats from the loop that must keep running
        when the broker does not answer. They are transient and go to a fanout
        exchange; anything else, and any other process, waits for its reply, and so
        does what itself asks for more.
        """
        if confirm.level == "none":
            return True
        return (
            WATCH.worker
            and properties.get("confirm") is None
            and properties.get("delivery_mode") == _TRANSIENT
            and self.transport.link.routes.cached(exchange).type == "fanout"
        )

    def _post(self, item: Outgoing) -> None:
        self._before_posting()
        self._post_except((), item)

    def _before_posting(self) -> None:
        store = self.transport.link.store
        store.receive()
        store.check()
        self.transport.loop.do_deferred()

    def _post_except(self, done: tuple[str, ...], item: Outgoing) -> None:
        link = self.transport.link
        exchange, routing_key = item.exchange, item.routing_key
        route = link.routes.cached(exchange)
        queues = [queue for queue in route.lookup(routing_key) if queue not in done]

        def send_the_rest(reached: tuple[str, ...]) -> None:
            self.transport.link.routes.refresh(exchange)
            self._post_except(reached, item)

        def on_version(version: bytes | ReliqError | None) -> None:
            if version != route.version and not isinstance(version, ReliqError):
                self.transport.loop.deferred.append(partial(send_the_rest, done))

        if not queues:  # nobody listens, as far as we know
            link.store.post_bindings_version(exchange, on_version)
            return
        items = publications(item, queues, None, link.store.broker, route.version or b"")

        def on_result(outcomes: list[int] | ReliqError) -> None:
            self._posted(items, item, outcomes)
            if not isinstance(outcomes, ReliqError) and STALE in outcomes:
                reached = [q for q, got in zip(queues, outcomes, strict=True) if got != STALE]
                self.transport.loop.deferred.append(partial(send_the_rest, (*done, *reached)))

        link.store.post_publish(items, on_result)

    def _posted(
        self, items: list[Publication], item: Outgoing, outcomes: list[int] | ReliqError
    ) -> None:
        if isinstance(outcomes, ReliqError):
            logger.warning("a message that was not to be confirmed may be lost: %s", outcomes)
            return
        full = [item.queue for item, got in zip(items, outcomes, strict=True) if got == FULL]
        if full:
            logger.warning("a message that was not to be confirmed is lost: full: %s", full)
        deferred = self.transport.loop.deferred
        if not item.exchange and NO_QUEUE in outcomes:
            deferred.append(partial(self.report_unroutable, "", item.routing_key))
        if message_published.receivers:
            stored = stored_of(items, outcomes)
            broker = self.transport.link.store.broker
            # Not here: while a reply is read the connection is locked.
            deferred.append(partial(emit_published, broker, stored, item.headers, item.routing_key))

    # -- pieces

    def _envelope(
        self, message: dict[str, Any], headers: dict[str, Any], exchange: str, routing_key: str
    ) -> bytes:
        properties = {
            name: value
            for name, value in message["properties"].items()
            if value is not None and name not in _NOT_STORED
        }
        body = message["body"]
        if isinstance(body, (bytearray, memoryview)):
            body = bytes(body)
        elif not isinstance(body, (bytes, str)):
            raise MessageRefused(f"the body must be bytes or text, got: {type(body).__name__}")
        data = encode(
            Envelope(
                body,
                message.get("content-type"),
                message.get("content-encoding"),
                headers,
                properties,
                exchange,
                routing_key,
            )
        )
        if len(data) > self.options.max_message_bytes:
            raise MessageRefused(
                f"the message for {exchange or routing_key!r} has {len(data)} bytes, more than "
                f"max_message_bytes ({self.options.max_message_bytes}); nothing was stored"
            )
        return data

    def _rank(self, properties: dict[str, Any]) -> int:
        priority = properties.get("priority") or 0
        if (
            isinstance(priority, bool)
            or not isinstance(priority, int)
            or not 0 <= priority <= _MOST_PRIORITY
        ):
            raise MessageRefused(
                f"expected priority to be a whole number from 0 to {_MOST_PRIORITY}, "
                f"got: {priority!r}; nothing was stored"
            )
        ascending = self.options.priority_order == "ascending"
        return priority if ascending else _MOST_PRIORITY - priority
