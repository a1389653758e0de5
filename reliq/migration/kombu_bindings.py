"""Bindings of Kombu's Redis transport, and the same ones in reliq."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kombu.transport.virtual.exchange import TopicExchange
from kombu.utils.json import loads

from ..message.envelope import pack, unpack
from .kombu_messages import UNREADABLE
from .kombu_url import KombuBinding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..values.protocol import Store

_REPLIES, _EVENTS = ".pidbox", "celeryev"


def of_durable_queue(binding: KombuBinding) -> bool:
    """Whether Kombu's *binding* belongs to a queue that outlives its consumer."""
    own = binding.exchange.endswith(_REPLIES) or binding.exchange == _EVENTS
    return not (binding.temporary or own)


def queues_of(message: bytes, bindings: Iterable[KombuBinding]) -> list[str]:
    """Return the queues to which Kombu would restore an unacked message; [] if unreadable."""
    try:
        _, exchange, routing_key = ("" if part is None else part for part in loads(message))
    except UNREADABLE:
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
