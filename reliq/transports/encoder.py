"""Encoder: checks what is to be published, and makes the bytes that are stored of it."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import MessageRefused
from ..integrations.outcomes import join_batch
from ..message.envelope import NOT_STORED, Envelope, encode, is_reply
from ..message.queue_names import number_of, queue_of
from ..routing.confirming import by_default, wanted
from ..routing.outgoing import Outgoing
from ..spool.journal import is_spool
from ..store.limits import HIGHEST_RANK
from .delay import take_delay, ttl_ms

if TYPE_CHECKING:
    from ..options import Options
    from .declarations import Declarations
    from .failback import Failback


PARTITION_KEY = "x-partition-key"


def _partition_key(headers: dict[str, Any]) -> str | None:
    """Return the key by which messages of a divided queue stay in order; raises MessageRefused."""
    key = headers.get(PARTITION_KEY)
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise MessageRefused(
        f"expected the header {PARTITION_KEY} to be text or a whole number, got: {key!r}; nothing "
        "was stored"
    )


class Encoder:
    """From Kombu's messages to outgoing ones, by the options of one transport. Sends nothing."""

    def __init__(self, options: Options, declarations: Declarations, failback: Failback) -> None:
        self._options = options
        self._declarations = declarations
        self._failback = failback
        self._confirm = by_default(options)

    def encode(
        self,
        message: dict[str, Any],
        exchange: str = "",
        routing_key: str = "",
        confirm_timeout: float | None = None,
    ) -> Outgoing:
        """Check and encode *message*; raises MessageRefused."""
        properties = message["properties"]
        confirm = wanted(self._confirm, properties, confirm_timeout)
        rank = self._rank(properties)
        exchange, routing_key = exchange or "", routing_key or ""
        if number_of(routing_key) and not exchange:
            raise MessageRefused(
                f"{routing_key!r} is a partition: publish to {queue_of(routing_key)!r}, with the "
                f"header {PARTITION_KEY} for order; nothing was stored"
            )
        if "delivery_info" in properties:
            properties["delivery_info"].update(exchange=exchange, routing_key=routing_key)
        given = message.get("headers") or {}
        join_batch(given)
        headers, delay_ms = take_delay(given, self._options.native_delay)
        envelope = self._envelope(message, headers, exchange, routing_key)
        return Outgoing(
            exchange=exchange,
            routing_key=routing_key,
            envelope=envelope,
            rank=rank,
            delay_ms=delay_ms,
            ttl_ms=ttl_ms(properties),
            confirm=confirm,
            headers=headers,
            create=bool(exchange) or self._creates(routing_key, properties, headers),
            key=_partition_key(headers),
            since=monotonic() if delay_ms else None,
        )

    def as_here(self, item: Outgoing) -> None:
        """Change *item*, encoded for another broker of the list, to what it is for this one."""
        item.create = item.create or self._away

    @property
    def _away(self) -> bool:
        """Whether this broker is not the first of its list; a spool is none."""
        urls, url = self._failback.urls, self._failback.url
        return bool(urls) and url != urls[0] and not is_spool(url)

    def _creates(self, queue: str, properties: dict[str, Any], headers: dict[str, Any]) -> bool:
        """Whether a message for *queue*, by its name, makes it where it is not there.

        A message may come before its consumer. But a reply comes after who waited for it,
        and so does what goes to a queue that was to go by itself: made anew, it would stay.
        Away from the primary broker all is stored: the primary decides.
        """
        if self._away:
            return True
        if not self._declarations.may_stay(queue):
            return False
        return not (queue.startswith("amq.") or is_reply(properties, headers))

    def _envelope(
        self, message: dict[str, Any], headers: dict[str, Any], exchange: str, routing_key: str
    ) -> bytes:
        properties = {
            name: value
            for name, value in message["properties"].items()
            if value is not None and name not in NOT_STORED
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
        if len(data) > self._options.max_message_bytes:
            raise MessageRefused(
                f"the message for {exchange or routing_key!r} has {len(data)} bytes, more than "
                f"max_message_bytes ({self._options.max_message_bytes}); nothing was stored"
            )
        return data

    def _rank(self, properties: dict[str, Any]) -> int:
        priority = properties.get("priority") or 0
        if (
            isinstance(priority, bool)
            or not isinstance(priority, int)
            or not 0 <= priority <= HIGHEST_RANK
        ):
            raise MessageRefused(
                f"expected priority to be a whole number from 0 to {HIGHEST_RANK}, "
                f"got: {priority!r}; nothing was stored"
            )
        ascending = self._options.priority_order == "ascending"
        return priority if ascending else HIGHEST_RANK - priority
