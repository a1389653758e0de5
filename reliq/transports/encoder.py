"""Encoder: checks what is to be published, and makes the bytes that are stored of it."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import MessageRefused
from ..integrations.outcomes import join_batch
from ..message.envelope import NOT_STORED, VERSION, is_reply, pack
from ..message.queue_names import number_of, queue_of
from ..routing.confirming import by_default, wanted
from ..routing.outgoing import Outgoing
from ..spool import is_spool
from ..store.limits import HIGHEST_RANK
from .delay import DELAY, ETA, NATIVE_ETA, take_delay, ttl_ms

if TYPE_CHECKING:
    from ..options import Options
    from .declarations import Declarations
    from .failback import Failback


PARTITION_KEY = "x-partition-key"
_BODIES = frozenset({bytes, str})


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


def _plain_body(body: Any) -> bytes | str:
    """Return *body* as it is stored; raises MessageRefused."""
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    if not isinstance(body, (bytes, str)):
        raise MessageRefused(f"the body must be bytes or text, got: {type(body).__name__}")
    return body


def _checked_priority(priority: Any) -> int:
    """Return *priority*, an odd one; raises MessageRefused."""
    if (
        isinstance(priority, bool)
        or not isinstance(priority, int)
        or not 0 <= priority <= HIGHEST_RANK
    ):
        raise MessageRefused(
            f"expected priority to be a whole number from 0 to {HIGHEST_RANK}, "
            f"got: {priority!r}; nothing was stored"
        )
    return int(priority)


class Encoder:
    """From Kombu's messages to outgoing ones, by the options of one transport. Sends nothing."""

    def __init__(self, options: Options, declarations: Declarations, failback: Failback) -> None:
        self._options = options
        self._declarations = declarations
        self._failback = failback
        self._confirm = by_default(options)
        self._ascending = options.priority_order == "ascending"

    def encode(
        self,
        message: dict[str, Any],
        exchange: str = "",
        routing_key: str = "",
        confirm_timeout: float | None = None,
    ) -> Outgoing:
        """Check and encode *message*; raises MessageRefused."""
        properties, headers = message["properties"], message["headers"] or {}
        # Most messages have none of these: each is looked into only where it is there.
        confirm = self._confirm
        if confirm_timeout is not None or "confirm" in properties:
            confirm = wanted(confirm, properties, confirm_timeout)
        rank = properties.get("priority") or 0
        if type(rank) is not int or not 0 <= rank <= HIGHEST_RANK:
            rank = _checked_priority(rank)
        if not self._ascending:
            rank = HIGHEST_RANK - rank
        exchange, routing_key = exchange or "", routing_key or ""
        if "%p" in routing_key and number_of(routing_key) and not exchange:
            raise MessageRefused(
                f"{routing_key!r} is a partition: publish to {queue_of(routing_key)!r}, with the "
                f"header {PARTITION_KEY} for order; nothing was stored"
            )
        if "delivery_info" in properties:
            info = properties["delivery_info"]
            info["exchange"], info["routing_key"] = exchange, routing_key
        delay_ms = 0
        if headers:
            join_batch(headers)
            if headers.get(ETA) or DELAY in headers or NATIVE_ETA in headers:
                headers, delay_ms = take_delay(headers, self._options.native_delay)
        return Outgoing(
            exchange=exchange,
            routing_key=routing_key,
            envelope=self._envelope(message, headers, exchange, routing_key),
            rank=rank,
            delay_ms=delay_ms,
            ttl_ms=ttl_ms(properties) if "expiration" in properties else -1,
            confirm=confirm,
            headers=headers,
            create=bool(exchange) or self._creates(routing_key, properties, headers),
            key=_partition_key(headers) if PARTITION_KEY in headers else None,
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
        if self._failback.urls and self._away:
            return True
        declared = self._declarations.queues
        if queue in declared and declared[queue][1] and not self._declarations.may_stay(queue):
            return False  # it has settings, and may be temporary
        answers = "correlation_id" in properties and is_reply(properties, headers)
        return not (queue[:4] == "amq." or answers)

    def _envelope(
        self, message: dict[str, Any], headers: dict[str, Any], exchange: str, routing_key: str
    ) -> bytes:
        given, properties = message["properties"], {}
        for name in given:
            value = given[name]
            if value is not None and name not in NOT_STORED:
                properties[name] = value
        body = message["body"]
        if type(body) not in _BODIES:
            body = _plain_body(body)
        content = body, message["content-type"], message["content-encoding"]
        data = pack((VERSION, *content, headers, properties, exchange, routing_key))
        if len(data) > self._options.max_message_bytes:
            raise MessageRefused(
                f"the message for {exchange or routing_key!r} has {len(data)} bytes, more than "
                f"max_message_bytes ({self._options.max_message_bytes}); nothing was stored"
            )
        return data
