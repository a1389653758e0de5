"""Messages as Kombu's Redis transport stores them: JSON with the body in base64.

Reading never unpickles: the body stays the bytes it is. The JSON is Kombu's own, so
that what it can say (datetime, UUID, Decimal, bytes) is understood.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

from kombu.transport.virtual.exchange import TopicExchange
from kombu.utils.json import dumps, loads

from ..message.envelope import NOT_STORED, Envelope, EnvelopeError

_UNACKED_PARTS = 3  # message, exchange, routing key
_MOST_PRIORITY = 9


class KombuMessage(NamedTuple):
    """A message, and what Kombu's storage says beside it."""

    envelope: Envelope
    priority: int
    """0 to 9."""
    redelivered: bool


def read(data: bytes) -> KombuMessage:
    """Return the message in *data*, an element of a list or of the unacked hash.

    Raises EnvelopeError and says what is wrong with it.
    """
    try:
        raw = loads(data)
        unacked = isinstance(raw, list) and len(raw) == _UNACKED_PARTS
        if unacked:
            raw = raw[0]
        properties, headers = dict(raw["properties"]), dict(raw.get("headers") or {})
        info = properties.get("delivery_info") or {}
        body = raw.get("body") or b""
        if properties.get("body_encoding") == "base64":
            body = base64.b64decode(body)
        if not isinstance(body, (bytes, str)):
            raise TypeError(f"the body is a {type(body).__name__}")  # noqa: TRY301 - as the rest
        said = bool(headers.pop("redelivered", False) or info.get("redelivered"))
        priority = _priority(properties)
        envelope = Envelope(
            body,
            raw.get("content-type"),
            raw.get("content-encoding"),
            headers,
            {k: v for k, v in properties.items() if v is not None and k not in NOT_STORED},
            info.get("exchange") or "",
            info.get("routing_key") or "",
        )
    except (
        ArithmeticError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ) as exc:
        raise EnvelopeError(f"not a message of Kombu's: {type(exc).__name__}: {exc}") from exc
    return KombuMessage(envelope, priority, unacked or said)


def routes_of(data: bytes) -> tuple[str, str]:
    """Return exchange and routing key of an element of the unacked hash; raises EnvelopeError."""
    try:
        _, exchange, routing_key = loads(data)
    except (ArithmeticError, AttributeError, TypeError, ValueError, RecursionError) as exc:
        raise EnvelopeError(f"not an unacked message of Kombu's: {exc}") from exc
    for name in (exchange, routing_key):
        if name is not None and not isinstance(name, str):
            raise EnvelopeError(f"not an unacked message of Kombu's: routed by {name!r}")
    return exchange or "", routing_key or ""


def write(envelope: Envelope, tag: str, redelivered: bool) -> tuple[int, bytes]:
    """Return (priority, what Kombu's Redis transport stores for *envelope*).

    *tag* has to be unique. Raises EnvelopeError where JSON cannot say it.
    """
    properties: dict[str, Any] = dict(envelope.properties)
    headers = dict(envelope.headers)
    info: dict[str, Any] = {"exchange": envelope.exchange, "routing_key": envelope.routing_key}
    if redelivered:
        info["redelivered"] = headers["redelivered"] = True
    body = envelope.body.encode() if isinstance(envelope.body, str) else envelope.body
    properties.setdefault("delivery_mode", 2)
    properties.setdefault("priority", 0)
    properties |= {"delivery_info": info, "body_encoding": "base64", "delivery_tag": tag}
    raw = {
        "body": base64.b64encode(body).decode(),
        "content-encoding": envelope.content_encoding,
        "content-type": envelope.content_type,
        "headers": headers,
        "properties": properties,
    }
    try:
        return _priority(properties), dumps(raw).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise EnvelopeError(f"Kombu's JSON cannot hold the message: {exc}") from exc


def topic_pattern(binding_key: str) -> str:
    """Return the regular expression that Kombu stores with a binding of a topic exchange."""
    pattern: str = TopicExchange(None).key_to_pattern(binding_key)
    return pattern


def _priority(properties: dict[str, Any]) -> int:
    """Return the priority as Kombu reads it."""
    try:
        return min(max(int(properties["priority"]), 0), _MOST_PRIORITY)
    except (KeyError, TypeError, ValueError):
        return 0
