"""The declarations of lost connections, kept for the connections that replace them.

A connection redeclares objects that the broker has lost (a restart without persistence, an
eviction). An application declares once and publishes for months, over many connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..forks import OwnLock
from ..message.envelope import pack, unpack
from ..message.queue_arguments import is_durable
from .partitions import declare

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..values.protocol import Store
    from .routes import Routes

Declaration: TypeAlias = tuple[bytes, dict[str, str]]
Declared: TypeAlias = dict[str, Declaration]

_MOST_REMEMBERED = 1024


class Topology:
    """Queues, exchanges and bindings that survive their connection. Thread-safe."""

    _lock = OwnLock()
    """Guards the declarations. Iterations use copies, which a nested call does not change."""

    def __init__(self) -> None:
        self._queues: Declared = {}
        self._exchanges: dict[str, bytes] = {}
        self._bindings: dict[str, set[bytes]] = {}
        # Temporary queues consumed from when the connection was lost: declaration, bindings.
        self._temporary: dict[str, tuple[Declaration, dict[str, tuple[bytes | None, set[bytes]]]]]
        self._temporary = {}

    @property
    def is_empty(self) -> bool:
        """Whether there are no declarations for later connections."""
        return not (self._queues or self._exchanges or self._bindings or self._temporary)

    def keep(self, routes: Routes, declared: Declared, consumed: Collection[str] = ()) -> None:
        """Keep the declarations of a lost connection.

        Temporary queues are kept only if they were *consumed* (:meth:`revive`): others would be
        created again after their end.
        """
        with self._lock:
            given_now = declared.copy().items()
            durable = {queue: given for queue, given in given_now if is_durable(given[1])}
            for queue in consumed:
                given = declared.get(queue)
                if given is not None and queue not in durable:
                    if len(self._temporary) >= _MOST_REMEMBERED:
                        self._temporary.clear()
                    self._temporary[queue] = given, routes.bindings_of(queue)
            self._queues.update(durable)
            known = {**routes.inherited, **routes.declared}
            for exchange, bindings in routes.bound.copy().items():
                kept = {binding for binding in bindings.copy() if unpack(binding)[1] in durable}
                if kept:
                    self._bindings.setdefault(exchange, set()).update(kept)
                    if exchange in known:
                        self._exchanges[exchange] = known[exchange]

    def give(self, routes: Routes, declared: Declared) -> None:
        """Pass the declarations to a new connection, which redeclares missing objects on use."""
        with self._lock:
            declared.update(self._queues)
            routes.inherited.update(self._exchanges)
            for exchange, bindings in self._bindings.copy().items():
                routes.bound.setdefault(exchange, set()).update(bindings)

    def revive(self, queue: str, routes: Routes, store: Store) -> Declaration | None:
        """Redeclare a temporary queue that was deleted while its consumer was disconnected.

        Only once, and only a queue that this process consumed from when it lost its connection.
        """
        with self._lock:
            known = self._temporary.pop(queue, None)
        if known is None:
            return None
        declaration, exchanges = known
        declare(store, queue, *declaration)
        for exchange, (declared, bindings) in exchanges.items():
            if declared is not None:
                routes.inherited.setdefault(exchange, declared)
            routes.bound.setdefault(exchange, set()).update(bindings)
        routes.bind_again(queue, store)
        return declaration

    def forget_queue(self, queue: str) -> None:
        """Record that *queue* was deleted."""
        with self._lock:
            self._temporary.pop(queue, None)
            self._queues.pop(queue, None)
            for bindings in self._bindings.copy().values():
                bindings -= {item for item in bindings.copy() if unpack(item)[1] == queue}

    def forget_exchange(self, exchange: str) -> None:
        """Record that *exchange* and its bindings were deleted."""
        with self._lock:
            self._exchanges.pop(exchange, None)
            self._bindings.pop(exchange, None)

    def forget_binding(self, queue: str, exchange: str, routing_key: str) -> None:
        """Record that a binding was removed."""
        with self._lock:
            self._bindings.get(exchange, set()).discard(pack([routing_key, queue]))
