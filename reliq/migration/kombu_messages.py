"""Kombu's stored format of messages (JSON with the body in base64), and its bindings.

Reading never unpickles: the body stays bytes. The JSON functions are Kombu's, because they
support its extra types (datetime, UUID, Decimal, bytes).
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

from kombu.transport.virtual.exchange import TopicExchange
from kombu.utils.json import dumps, loads

from ..message.envelope import NOT_STORED, Envelope, EnvelopeError, pack, unpack
from .kombu_url import KombuBinding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..values.protocol import Store

_UNACKED_PARTS = 3  # message, exchange, routing key
_MOST_PRIORITY = 9
_UNREADABLE = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, RecursionError)


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
    except _UNREADABLE as exc:
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


_REPLIES, _EVENTS = ".pidbox", "celeryev"


def of_durable_queue(binding: KombuBinding) -> bool:
    """Whether Kombu's *binding* belongs to a queue that outlives its consumer."""
    own = binding.exchange.endswith(_REPLIES) or binding.exchange == _EVENTS
    return not (binding.temporary or own)


def queues_of(message: bytes, bindings: Iterable[KombuBinding]) -> list[str]:
    """Return the queues to which Kombu would restore an unacked message; [] if unreadable."""
    try:
        _, exchange, routing_key = ("" if part is None else part for part in loads(message))
    except _UNREADABLE:
        return []
    if not (isinstance(exchange, str) and isinstance(routing_key, str)):
        return []
    if not exchange:
        return [routing_key] if routing_key else []
    return sorted(
        {
            item.queue
            for item in bindings
            if item.exchange == exchange
            and (
                re.match(item.pattern, routing_key)
                if item.pattern
                else item.routing_key == routing_key
            )
        }
    )


def bind_in_reliq(store: Store, queue: str, bindings: Iterable[KombuBinding]) -> None:
    """Bind *queue* in reliq as in Kombu. *bindings*: of all queues.

    Exchanges are not declared, because Kombu does not store their types. An exchange is direct
    until a process of the application declares it.
    """
    for item in bindings:
        if item.queue == queue and item.exchange and of_durable_queue(item):
            binding = pack([item.routing_key, queue])
            if binding not in store.exchange_table(item.exchange).bindings:
                store.bind(item.exchange, True, [binding], queue)


def kombu_bindings_of(store: Store, queue: str) -> list[KombuBinding]:
    """Return the bindings of *queue* in reliq, in Kombu's format."""
    bindings = []
    for exchange in store.exchanges():
        table = store.exchange_table(exchange)
        type_ = "direct" if table.declaration is None else unpack(table.declaration)["type"]
        for binding in table.bindings:
            routing_key, name = unpack(binding)
            if name == queue:
                pattern = ""
                if type_ == "topic":  # Kombu stores the pattern with the binding
                    pattern = TopicExchange(None).key_to_pattern(routing_key)
                bindings.append(KombuBinding(exchange, routing_key, pattern, queue))
    return bindings
