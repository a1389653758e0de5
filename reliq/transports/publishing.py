"""Publishing: the half of a channel that producers use."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.transport.base import to_rabbitmq_queue_arguments

from ..contrib.celery import WATCH
from ..envelope import Envelope, encode, unpack
from ..errors import MessageRefused, QueueFull, ReliqError, Unroutable
from ..publisher import PUBLISHER, PublishTag
from ..signals import emit_published, message_published
from ..store import CREATED, DUPLICATE, FULL, NO_QUEUE, STALE, Publication, Store
from ..tags import new_tag

if TYPE_CHECKING:
    from ..options import Options
    from ..routing import Routes
    from .base import Transport

logger = logging.getLogger("reliq")

_NOT_STORED = frozenset({"delivery_tag", "delivery_info", "body_encoding"})
_MOST_PRIORITY = 255
_TRANSIENT = 1
_LONGEST_MS = 10 * 366 * 86_400_000
_TRIES = 5
_MOST_REMEMBERED = 1024


class Publishing:
    """basic_publish and what it needs."""

    transport: Transport
    store: Store
    routes: Routes
    options: Options

    def prepare_queue_arguments(
        self, arguments: dict[str, Any] | None, **kwargs: Any
    ) -> dict[str, Any]:
        """Turn Kombu's queue options (expires, max_length, ...) into AMQP's arguments."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments or {}, **kwargs)
        return prepared

    def describe(self, declaration: bytes) -> str:
        """Return a stored declaration in words."""
        return repr(unpack(declaration)) if declaration else "no arguments"

    def basic_publish(
        self, message: dict[str, Any], exchange: str = "", routing_key: str = "", **_: Any
    ) -> None:
        """Store *message* in every queue it is routed to, once, however often it is retried.

        One round trip. When it returns, the message is stored (unless ``confirm``
        is "none", or it is transient and for a fanout exchange: then it is written
        and an error shows later). Raises MessageRefused before anything is stored;
        BrokerUnavailable when it is not known whether it was: trying again with
        the same properties is safe. Atomic for each queue, not across queues.
        """
        properties = message["properties"]
        rank = self._rank(properties)
        tag = properties.get("delivery_tag")
        if type(tag) is not PublishTag or tag.settled:
            tag = properties["delivery_tag"] = PUBLISHER.tag(rank)
        exchange, routing_key = exchange or "", routing_key or ""
        if "delivery_info" in properties:
            properties["delivery_info"].update(exchange=exchange, routing_key=routing_key)
        envelope = self._envelope(message, exchange, routing_key)
        headers = message.get("headers") or {}
        timing = (_delay_ms(headers), _ttl_ms(properties))
        stored: list[Publication] = []
        if not exchange:
            items = self._items((routing_key,), tag, envelope, rank, timing, "", b"")
            if self.options.confirm == "none":
                self._before_posting()
                self.store.post_publish(items, partial(self._posted, items, headers, routing_key))
            else:
                self._created(items, self.store.publish(items))
                stored = items
        elif self._is_posted(exchange, properties):
            self._post(exchange, routing_key, envelope, rank, timing, headers)
        else:
            stored = self._publish_routed(exchange, routing_key, tag, envelope, rank, timing)
        PUBLISHER.settle(tag)
        if message_published.receivers:
            emit_published(self.store.broker, stored, headers, routing_key)

    # -- routed

    def _publish_routed(
        self,
        exchange: str,
        routing_key: str,
        tag: PublishTag,
        envelope: bytes,
        rank: int,
        timing: tuple[int, int],
    ) -> list[Publication]:
        """Publish by the cached route; the broker refuses it if the bindings have changed.

        Returns what is stored, now or by an earlier try: once for each queue.
        """
        route = self.routes.cached(exchange)
        stored: dict[str, Publication] = {}
        for _ in range(_TRIES):
            queues = route.lookup(routing_key)
            if queues:
                items = self._items(
                    queues, tag, envelope, rank, timing, exchange, route.version or b""
                )
                outcomes = self.store.publish(items)
                stored.update({item.queue: item for item in _stored(items, outcomes)})
                if FULL in outcomes:
                    self._refuse_full(items, outcomes)
                missing = [q for q, got in zip(queues, outcomes, strict=True) if got == NO_QUEUE]
                # One that this connection declared and the broker lost comes back.
                again = [queue for queue in missing if self.transport.redeclare(queue)]
                if STALE not in outcomes and not again:
                    break
            elif route.version == self.store.bindings_version(exchange) is not None:
                break
            route = self.routes.refresh(exchange)
            if route.version is None:
                break
        if not stored:
            self._unroutable(exchange, routing_key)
        return list(stored.values())

    def _unroutable(self, exchange: str, routing_key: str) -> None:
        if self.options.unroutable == "error":
            raise Unroutable(
                f"no queue is bound to exchange {exchange!r} for routing key "
                f"{routing_key!r}; the message was not stored"
            )
        if self.routes.cached(exchange).type == "fanout":
            return  # a broadcast that nobody listens to is nothing unusual
        if (exchange, routing_key) not in self.transport.unroutable:
            if len(self.transport.unroutable) > _MOST_REMEMBERED:
                self.transport.unroutable.clear()
            self.transport.unroutable.add((exchange, routing_key))
            logger.warning(
                "no queue is bound to exchange %r for routing key %r: such messages are "
                'dropped, as AMQP does (said once; unroutable="error" raises)',
                exchange,
                routing_key,
            )

    # -- posted: what must not make a worker's event loop wait

    def _is_posted(self, exchange: str, properties: dict[str, Any]) -> bool:
        """Whether nobody waits for the reply: asked for, or a worker's own event.

        A worker sends events and heartbeats from the loop that must keep running
        when the broker does not answer. They are transient and go to a fanout
        exchange; anything else, and any other process, waits for its reply.
        """
        if self.options.confirm == "none":
            return True
        return (
            WATCH.worker
            and properties.get("delivery_mode") == _TRANSIENT
            and self.routes.cached(exchange).type == "fanout"
        )

    def _post(
        self,
        exchange: str,
        routing_key: str,
        envelope: bytes,
        rank: int,
        timing: tuple[int, int],
        headers: dict[str, Any],
    ) -> None:
        self._before_posting()
        self._post_except((), exchange, routing_key, envelope, rank, timing, headers)

    def _before_posting(self) -> None:
        self.store.receive()
        self.store.check()
        self.transport.do_deferred()

    def _post_except(
        self,
        done: tuple[str, ...],
        exchange: str,
        routing_key: str,
        envelope: bytes,
        rank: int,
        timing: tuple[int, int],
        headers: dict[str, Any],
    ) -> None:
        route = self.routes.cached(exchange)
        queues = [queue for queue in route.lookup(routing_key) if queue not in done]

        def send_the_rest(reached: tuple[str, ...]) -> None:
            self.routes.refresh(exchange)
            self._post_except(reached, exchange, routing_key, envelope, rank, timing, headers)

        def on_version(version: bytes | ReliqError | None) -> None:
            if version != route.version and not isinstance(version, ReliqError):
                self.transport.deferred.append(partial(send_the_rest, done))

        if not queues:  # nobody listens, as far as we know
            self.store.post_bindings_version(exchange, on_version)
            return
        items = self._items(queues, None, envelope, rank, timing, exchange, route.version or b"")

        def on_result(outcomes: list[int] | ReliqError) -> None:
            self._posted(items, headers, routing_key, outcomes)
            if not isinstance(outcomes, ReliqError) and STALE in outcomes:
                reached = [q for q, got in zip(queues, outcomes, strict=True) if got != STALE]
                self.transport.deferred.append(partial(send_the_rest, (*done, *reached)))

        self.store.post_publish(items, on_result)

    def _posted(
        self,
        items: list[Publication],
        headers: dict[str, Any],
        routing_key: str,
        outcomes: list[int] | ReliqError,
    ) -> None:
        if isinstance(outcomes, ReliqError):
            logger.warning("a message that was not to be confirmed may be lost: %s", outcomes)
            return
        full = [item.queue for item, got in zip(items, outcomes, strict=True) if got == FULL]
        if full:
            logger.warning("a message that was not to be confirmed is lost: full: %s", full)
        if message_published.receivers:
            stored = _stored(items, outcomes)
            # Not here: while a reply is read the connection is locked.
            self.transport.deferred.append(
                partial(emit_published, self.store.broker, stored, headers, routing_key)
            )

    # -- pieces

    def _items(
        self,
        queues: tuple[str, ...] | list[str],
        tag: PublishTag | None,
        envelope: bytes,
        rank: int,
        timing: tuple[int, int],
        exchange: str,
        version: bytes,
    ) -> list[Publication]:
        items = []
        for queue in queues:
            if tag is None:  # posted: it will not be retried, so it needs no number
                own, number, low = new_tag(rank), 0, 0
            else:
                own, number, low = PUBLISHER.number(tag, queue, rank)
            identity = (PUBLISHER.id, number, low)
            items.append(
                Publication(queue, own, envelope, rank, *identity, *timing, exchange, version)
            )
        return items

    def _created(self, items: list[Publication], outcomes: list[int]) -> None:
        if FULL in outcomes:
            self._refuse_full(items, outcomes)
        for item, outcome in zip(items, outcomes, strict=True):
            if outcome == CREATED:
                self.store.list_queue(item.queue)

    @staticmethod
    def _refuse_full(items: list[Publication], outcomes: list[int]) -> None:
        full = [item.queue for item, got in zip(items, outcomes, strict=True) if got == FULL]
        stored = [item.queue for item, got in zip(items, outcomes, strict=True) if got >= DUPLICATE]
        also = f"; it was stored in {', '.join(map(repr, stored))}" if stored else ""
        raise QueueFull(
            f"queue {', '.join(map(repr, full))} has reached its x-max-length or "
            "x-max-length-bytes and was declared with x-overflow 'reject-publish': the "
            f"message was not stored in it{also}. Add consumers, raise the limit, or publish "
            "later"
        )

    def _envelope(self, message: dict[str, Any], exchange: str, routing_key: str) -> bytes:
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
                message.get("headers") or {},
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


def _stored(items: list[Publication], outcomes: list[int]) -> list[Publication]:
    """Return what is stored now, be it by an earlier try whose reply was lost."""
    return [item for item, got in zip(items, outcomes, strict=True) if got >= DUPLICATE]


def _ms(name: str, value: Any) -> int:
    try:
        number = int(value)
        if isinstance(value, bool) or not 0 <= number <= _LONGEST_MS:
            raise ValueError  # noqa: TRY301 - one message for every way to be wrong
    except (TypeError, ValueError) as exc:
        raise MessageRefused(
            f"expected {name} to be a number of ms from 0 to {_LONGEST_MS}, got: {value!r}; "
            "nothing was stored"
        ) from exc
    return number


def _delay_ms(headers: dict[str, Any]) -> int:
    delay = headers.get("x-delay")
    return 0 if delay is None else _ms("x-delay", delay)


def _ttl_ms(properties: dict[str, Any]) -> int:
    expiration = properties.get("expiration")
    return -1 if expiration is None else _ms("expiration", expiration)
