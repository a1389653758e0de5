"""What a process declared over connections that are lost, for those that come after them.

A connection declares again what the broker has forgotten (a restart without persistence,
an eviction): queues it publishes to, exchanges and bindings it routes by. An application
declares once and publishes for months, over many connections.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeAlias

from .envelope import pack, unpack

if TYPE_CHECKING:
    from .routing import Routes

Declared: TypeAlias = dict[str, tuple[bytes, dict[str, str]]]

_PASSING = frozenset({"expires", "auto_delete"})


class Topology:
    """Queues, exchanges and bindings that outlive their connection. Thread-safe."""

    def __init__(self) -> None:
        self._queues: Declared = {}
        self._exchanges: dict[str, bytes] = {}
        self._bindings: dict[str, set[bytes]] = {}
        self._lock = threading.Lock()

    def keep(self, routes: Routes, declared: Declared) -> None:
        """Keep what a lost connection knew.

        Not queues that are meant to go by themselves: they would be made again after
        their end, and there may be any number of them.
        """
        with self._lock:
            lasting = {q: given for q, given in declared.items() if not _PASSING & given[1].keys()}
            self._queues.update(lasting)
            known = {**routes.inherited, **routes.declared}
            for exchange, bindings in routes.bound.items():
                kept = {binding for binding in bindings if unpack(binding)[1] in lasting}
                if kept:
                    self._bindings.setdefault(exchange, set()).update(kept)
                    if exchange in known:
                        self._exchanges[exchange] = known[exchange]

    def give(self, routes: Routes, declared: Declared) -> None:
        """Tell a new connection, which will repair what is missing when it meets it."""
        with self._lock:
            declared.update(self._queues)
            routes.inherited.update(self._exchanges)
            for exchange, bindings in self._bindings.items():
                routes.bound.setdefault(exchange, set()).update(bindings)

    def forget_queue(self, queue: str) -> None:
        """Note that *queue* was deleted."""
        with self._lock:
            self._queues.pop(queue, None)
            for bindings in self._bindings.values():
                bindings -= {item for item in bindings if unpack(item)[1] == queue}

    def forget_exchange(self, exchange: str) -> None:
        """Note that *exchange* was deleted, with its bindings."""
        with self._lock:
            self._exchanges.pop(exchange, None)
            self._bindings.pop(exchange, None)

    def forget_binding(self, queue: str, exchange: str, routing_key: str) -> None:
        """Note that a binding was removed."""
        with self._lock:
            self._bindings.get(exchange, set()).discard(pack([routing_key, queue]))
