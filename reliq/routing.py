"""Routing: from exchange and routing key to queues, as AMQP has it.

Bindings live on the broker. A copy is cached with the version of the table; a
publish reads the version in the same round trip as it stores, so a stale copy is
found out and the message is routed again. Knows no engine but the contract.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .envelope import pack, unpack
from .errors import NotFound, PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .store import ExchangeTable, Store

TYPES = frozenset({"direct", "topic", "fanout"})
_PREDECLARED = {f"amq.{name}": name for name in TYPES}


@lru_cache(maxsize=4096)
def topic_pattern(binding_key: str) -> re.Pattern[str]:
    """Return what a topic binding matches: ``*`` is one word, ``#`` any number of words."""
    pattern = ""
    for word in binding_key.split("."):
        if word == "#":
            pattern += r"(?:\.[^.]*)*"
        elif word == "*":
            pattern += r"\.[^.]*"
        else:
            pattern += r"\." + re.escape(word)
    return re.compile(pattern + r"\Z")


class Route:
    """The bindings of one exchange at one version."""

    def __init__(self, table: ExchangeTable, exchange: str) -> None:
        self.version = table.version
        self.type = _PREDECLARED.get(exchange, "direct")
        if table.declaration is not None:
            self.type = unpack(table.declaration)["type"]
        self._bindings = [tuple(unpack(binding)) for binding in table.bindings]
        self._found: dict[str, tuple[str, ...]] = {}

    def lookup(self, routing_key: str) -> tuple[str, ...]:
        """Return the queues a message with *routing_key* goes to, each once."""
        found = self._found.get(routing_key)
        if found is None:
            if len(self._found) > 1024:  # noqa: PLR2004 - a bound on memory, not a setting
                self._found.clear()
            found = tuple(sorted(set(self._match(routing_key))))
            self._found[routing_key] = found
        return found

    def _match(self, routing_key: str) -> Iterable[str]:
        for key, queue in self._bindings:
            if (
                self.type == "fanout"
                or (self.type == "direct" and key == routing_key)
                or (self.type == "topic" and topic_pattern(key).match("." + routing_key))
            ):
                yield queue


class Routes:
    """The exchanges and bindings of one connection: cached, and what it declared itself."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache: dict[str, Route] = {}
        self.declared: dict[str, bytes] = {}
        # By connections that were lost; the broker may have lost it with them.
        self.inherited: dict[str, bytes] = {}
        self.bound: dict[str, set[bytes]] = {}

    def reconnect(self, store: Store) -> None:
        """Go on over another connection to the same broker."""
        self._store = store

    def move(self, store: Store) -> None:
        """Go on at another broker: what it knows has to be asked for."""
        self._store = store
        self._cache.clear()

    # -- exchanges

    def declare(self, exchange: str, type_: str, declaration: dict[str, Any]) -> None:
        """Declare *exchange*; raises PreconditionFailed when it exists and differs."""
        if type_ not in TYPES:
            raise PreconditionFailed(
                f"exchange {exchange!r} cannot be of type {type_!r}: "
                f"reliq has {', '.join(sorted(TYPES))}"
            )
        wanted = pack({"type": type_, **declaration})
        stored = self._store.declare_exchange(exchange, wanted)
        if stored != wanted:
            raise PreconditionFailed(
                f"exchange {exchange!r} exists with {unpack(stored)!r}; "
                f"it was declared now with {unpack(wanted)!r}"
            )
        self.declared[exchange] = wanted

    def require(self, exchange: str) -> None:
        """Raise NotFound unless *exchange* exists."""
        if exchange not in _PREDECLARED and (
            self._store.exchange_table(exchange).declaration is None
        ):
            raise NotFound(f"no exchange {exchange!r}; declare it first")

    def delete(self, exchange: str) -> None:
        """Delete *exchange* and its bindings; the queues stay."""
        for known in (self.declared, self.inherited, self.bound, self._cache):
            known.pop(exchange, None)
        self._store.delete_exchange(exchange)

    # -- bindings

    def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Bind *queue*; raises NotFound for an exchange that was never declared."""
        if exchange in self.inherited:
            self._store.declare_exchange(exchange, self.inherited[exchange])
        elif exchange not in self.declared:
            self.require(exchange)
        binding = pack([routing_key, queue])
        self._store.bind(exchange, bound=True, bindings=[binding])
        self.bound.setdefault(exchange, set()).add(binding)
        self._cache.pop(exchange, None)

    def unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Remove one binding."""
        binding = pack([routing_key, queue])
        self.bound.get(exchange, set()).discard(binding)
        self._cache.pop(exchange, None)
        self._store.bind(exchange, bound=False, bindings=[binding])

    def forget_queue(self, queue: str) -> None:
        """Remove every binding of a queue that is gone, whoever made it."""
        for exchange in {*self._store.exchanges(), *self.bound}:
            table = self._store.exchange_table(exchange)
            gone = [binding for binding in table.bindings if unpack(binding)[1] == queue]
            if gone:
                self.bound.get(exchange, set()).difference_update(gone)
                self._cache.pop(exchange, None)
                self._store.bind(exchange, bound=False, bindings=gone)

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        """Yield (queue, exchange, routing key) of every binding there is."""
        for exchange in self._store.exchanges():
            for binding in sorted(self._store.exchange_table(exchange).bindings):
                key, queue = unpack(binding)
                yield queue, exchange, key

    # -- routes

    def cached(self, exchange: str) -> Route:
        """Return what is known of *exchange*, asking the broker if nothing is."""
        return self._cache.get(exchange) or self.refresh(exchange)

    def refresh(self, exchange: str) -> Route:
        """Ask the broker for the bindings of *exchange*; repair what it has lost."""
        table = self._store.exchange_table(exchange)
        if table.version is None and self.bound.get(exchange):
            # The table is gone though this connection bound to it: evicted, or the
            # broker lost its data. What we declared ourselves we declare again.
            declaration = self.declared.get(exchange) or self.inherited.get(exchange)
            if declaration is not None:
                self._store.declare_exchange(exchange, declaration)
            self._store.bind(exchange, bound=True, bindings=sorted(self.bound[exchange]))
            table = self._store.exchange_table(exchange)
        route = self._cache[exchange] = Route(table, exchange)
        return route
