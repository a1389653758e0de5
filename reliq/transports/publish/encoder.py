"""Encoder: checks messages to publish, and encodes them into the stored bytes.

Owns the rule that turns the ``eta`` of a Celery task into a delay at the broker. Knows the
documented part of Celery's message format, and does not need Celery to read it.
"""

from __future__ import annotations

import math
import time
from datetime import datetime, timezone
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...errors import MessageRefused
from ...message.envelope import NOT_STORED, VERSION, is_reply, pack
from ...message.queue_arguments import INSTANT_MS
from ...message.queue_names import number_of, queue_of
from ...routing.outgoing import Outgoing, by_default, wanted
from ...spool import is_spool
from ...values.job_headers import join_batch
from ...values.limits import HIGHEST_RANK

if TYPE_CHECKING:
    from ...options import Options
    from ..declarations import Declarations
    from ..failback import Failback

# Sorted sets hold integers up to 2**53 exactly. The current time, a delay and a TTL of ten
# thousand years each are far below that. Celery's own limit is the year 9999.
_LONGEST_MS = 10_000 * 366 * 86_400_000

DELAY, DELAYED = "x-delay", "x-delayed"
ETA, NATIVE_ETA = "eta", "x-eta"


def take_delay(headers: dict[str, Any], native: bool) -> tuple[dict[str, Any], int]:
    """Return *headers* as stored, and the requested delay in ms; never changes *headers*.

    ``x-delay`` (ms) is stored as ``x-delayed``. A message that is forwarded or retried with its
    received headers is therefore not delayed again. With *native*, the ``eta`` of a Celery task
    also becomes a delay, unless ``x-delay`` is set. It is stored as ``x-eta``, so that the worker
    runs the task when it arrives. An unreadable eta is left to Celery. An ``x-eta`` in *headers*
    belongs to an earlier message and is not stored. Raises MessageRefused.
    """
    delay, eta = headers.get(DELAY), headers.get(ETA)
    if delay is None and not eta and NATIVE_ETA not in headers:
        return headers, 0
    delay_ms = None if delay is None else _ms(DELAY, delay)
    stored = dict(headers)
    stored.pop(NATIVE_ETA, None)
    if delay_ms is not None:
        stored[DELAYED] = stored.pop(DELAY)
    if native and eta and "task" in headers:
        until_eta_ms = _until_ms(eta)
        if until_eta_ms is not None:
            stored[ETA], stored[NATIVE_ETA] = None, eta
            delay_ms = until_eta_ms if delay_ms is None else delay_ms
    return stored, delay_ms or 0


def ttl_ms(properties: dict[str, Any]) -> int:
    """Return the message's time to live in ms, or -1 for none; raises MessageRefused."""
    expiration = properties.get("expiration")
    return -1 if expiration is None else _ms("expiration", expiration) or INSTANT_MS


def _until_ms(eta: Any) -> int | None:
    """Return the ms until *eta* on this clock; None for an unreadable eta.

    The delay is relative, because most etas came from this clock. It never ends before the eta.
    """
    if not isinstance(eta, str):
        return None
    text = f"{eta[:-1]}+00:00" if eta.endswith("Z") else eta
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:  # Celery's worker reads it as UTC, whatever its timezone
            moment = moment.replace(tzinfo=timezone.utc)
        # Not timestamp(): a float of seconds is not exact to the ms far from now.
        since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        return None
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return max(-(-microseconds // 1000) - time.time_ns() // 1_000_000, 0)


def _ms(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise TypeError  # noqa: TRY301 - one message for all kinds of invalid values
        number = math.ceil(value) if isinstance(value, float) else int(value)
        if number > _LONGEST_MS or float(value) < 0:
            raise ValueError  # noqa: TRY301 - as above
    except (TypeError, ValueError, OverflowError) as exc:
        raise MessageRefused(
            f"expected {name} to be a number of ms from 0 to {_LONGEST_MS}, got: {value!r}; "
            "nothing was stored"
        ) from exc
    return number


PARTITION_KEY = "x-partition-key"
_BODIES = frozenset({bytes, str})


def _partition_key(headers: dict[str, Any]) -> str | None:
    """Return the key that keeps messages of a divided queue in order; raises MessageRefused."""
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
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    if not isinstance(body, (bytes, str)):
        raise MessageRefused(f"the body must be bytes or text, got: {type(body).__name__}")
    return body


def _checked_priority(priority: Any) -> int:
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
    """Encodes Kombu's messages by the options of one transport. Sends nothing."""

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
        # Most messages have none of these headers and properties: check for presence first.
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

    @property
    def failed_over(self) -> bool:
        """Whether this broker is neither the primary one nor a spool."""
        urls, url = self._failback.urls, self._failback.url
        return bool(urls) and url != urls[0] and not is_spool(url)

    def _creates(self, queue: str, properties: dict[str, Any], headers: dict[str, Any]) -> bool:
        """Whether a message sent to *queue* by name creates a missing queue.

        A message may be published before its consumer declares the queue. A reply, or a message
        for a temporary queue, may come after the queue was deleted: a new queue would remain
        forever. Brokers other than the primary one store all messages, and the primary decides.
        """
        if self._failback.urls and self.failed_over:
            return True
        declared = self._declarations.queues
        if queue in declared and declared[queue][1] and not self._declarations.may_stay(queue):
            return False  # it has settings, and is temporary
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
