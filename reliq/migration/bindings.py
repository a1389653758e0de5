"""Bindings on both sides of a migration: which queues a message leads to, and bound alike."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..message.envelope import EnvelopeError, pack, unpack
from .kombu_messages import routes_of, topic_pattern
from .kombu_url import KombuBinding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..store.protocol import Store

_REPLIES, _EVENTS = ".pidbox", "celeryev"


def of_durable_queue(binding: KombuBinding) -> bool:
    """Whether a binding of Kombu's is not of a queue that goes with its consumer."""
    own = binding.exchange.endswith(_REPLIES) or binding.exchange == _EVENTS
    return not (binding.temporary or own)


def queues_of(message: bytes, bindings: Iterable[KombuBinding]) -> list[str]:
    """Return where Kombu would restore an unacked message to; nothing for an unreadable one."""
    try:
        exchange, routing_key = routes_of(message)
    except EnvelopeError:
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
    """Bind *queue* as it is bound at Kombu's side, by *bindings* among others.

    Exchanges are not declared, because Kombu does not store their types: one is direct
    until the application declares it, which each of its processes does.
    """
    for item in bindings:
        if item.queue == queue and item.exchange and of_durable_queue(item):
            binding = pack([item.routing_key, queue])
            if binding not in store.exchange_table(item.exchange).bindings:
                store.bind(item.exchange, True, [binding], queue)


def kombu_bindings_of(store: Store, queue: str) -> list[KombuBinding]:
    """Return what *queue* is bound to in reliq, as Kombu has it."""
    found = []
    for exchange in store.exchanges():
        table = store.exchange_table(exchange)
        type_ = "direct" if table.declaration is None else unpack(table.declaration)["type"]
        for binding in table.bindings:
            routing_key, name = unpack(binding)
            if name == queue:
                pattern = topic_pattern(routing_key) if type_ == "topic" else ""
                found.append(KombuBinding(exchange, routing_key, pattern, queue))
    return found
