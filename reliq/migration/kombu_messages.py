"""Kombu's stored format of messages: JSON with the body in base64.

Reading never unpickles: the body stays bytes. The JSON functions are Kombu's, because they
support its extra types (datetime, UUID, Decimal, bytes).
"""

from __future__ import annotations

import base64
from typing import Any

from kombu.utils.json import dumps, loads

from ..message.envelope import NOT_STORED, Envelope, EnvelopeError

_UNACKED_PARTS = 3  # message, exchange, routing key
_MOST_PRIORITY = 9
UNREADABLE = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, RecursionError)


def read(data: bytes) -> tuple[Envelope, int, bool]:
    """Return the message in *data*, its priority (0 to 9), and whether it is redelivered.

    *data* is an element of a list or a value of the unacked hash. Raises EnvelopeError.
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
            raise TypeError(f"the body is a {type(body).__name__}")
        redelivered = bool(headers.pop("redelivered", False) or info.get("redelivered"))
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
    except UNREADABLE as exc:
        raise EnvelopeError(f"not a Kombu message: {type(exc).__name__}: {exc}") from exc
    return envelope, priority, unacked or redelivered


def is_task(data: bytes) -> bool:
    """Whether *data* is a message of Kombu, but neither a result nor a reply."""
    try:
        envelope, *_ = read(data)
    except EnvelopeError:
        return False
    return "task" in envelope.headers or envelope.properties.get("delivery_mode") != 1


def write(envelope: Envelope, tag: str, redelivered: bool) -> tuple[int, bytes]:
    """Return the priority and Kombu's stored bytes for *envelope*.

    *tag* must be unique. Raises EnvelopeError if JSON cannot represent the message.
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


def _priority(properties: dict[str, Any]) -> int:
    try:
        return min(max(int(properties["priority"]), 0), _MOST_PRIORITY)
    except (KeyError, TypeError, ValueError):
        return 0
