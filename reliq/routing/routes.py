"""Routes: the queues of an exchange and routing key, as in AMQP.

The broker stores the bindings. A copy is cached with the version of the table. A publish compares
the version in the round trip that stores, so an outdated copy is detected and the message is routed
again. Uses the store's contract only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import NotFound, PreconditionFailed
from ..message.envelope import pack, unpack
from ..message.queue_arguments import is_auto_delete
from ..values.values import NO_QUEUE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..values.protocol import Store
    from ..values.values import ExchangeTable

TYPES = frozenset({"direct", "topic", "fanout"})
READS_LOG = "reliq:reads-log"
"""The routing key of the binding that marks a queue whose consumer reads the exchange's log.

In a fanout exchange, it binds the queue once more, which older versions ignore.
"""
ROUTE_TRIES = 5
"""Routing tries per message, if the bindings change each time before it is stored."""
_PREDECLARED = {f"amq.{name}": name for name in TYPES}


def log_of(exchange: str) -> str:
    """Return the name of the log of *exchange*: the target of its transient messages."""
    return f"the log of exchange {exchange!r}"


@lru_cache(maxsize=4096)
def words_of(key: str) -> tuple[str, ...]:
    """Return the words between the dots of a key; an empty key has none, as in RabbitMQ."""
    return tuple(key.split(".")) if key else ()


def topic_matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Whether a topic binding matches: ``*`` is one word, ``#`` any number of words.

    Compares word by word. After a mismatch, only the last ``#`` takes one word more; earlier ones
    keep theirs. The time is therefore at most pattern times words.
    """
    at = word = 0
    hash_at, taken = -1, 0
    while word < len(words):
        if at < len(pattern) and pattern[at] == "#":
            hash_at, taken = at, word
            at += 1
        elif at < len(pattern) and pattern[at] in {"*", words[word]}:
            at += 1
            word += 1
        elif hash_at >= 0:
            taken += 1
            at, word = hash_at + 1, taken
        else:
            return False
    return all(rest == "#" for rest in pattern[at:])


def _by_queue(bindings: Iterable[bytes]) -> Iterable[tuple[str, list[bytes]]]:
    """Group the bindings of one exchange by queue."""
    by_queue: dict[str, list[bytes]] = {}
    for binding in sorted(bindings):
        by_queue.setdefault(unpack(binding)[1], []).append(binding)
    return by_queue.items()


class Route:
    """The bindings of one exchange at one version."""

    def __init__(self, table: ExchangeTable, exchange: str) -> None:
        self.version = table.version
        self.type = _PREDECLARED.get(exchange, "direct")
        if table.declaration is not None:
            self.type = unpack(table.declaration)["type"]
        self._bindings = [tuple(unpack(binding)) for binding in table.bindings]
        self._matches: dict[str, tuple[str, ...]] = {}
        self.readers = frozenset(
            queue for key, queue in self._bindings if key == READS_LOG and self.type == "fanout"
        )
        """The queues whose consumers read the log."""
        self._log = log_of(exchange)

    def lookup(self, routing_key: str) -> tuple[str, ...]:
        """Return the target queues of a message with *routing_key*, each once."""
        queues = self._matches.get(routing_key)
        if queues is None:
            if len(self._matches) > 1024:  # noqa: PLR2004 - a bound on memory, not a setting
                self._matches.clear()
            queues = tuple(sorted(set(self._match(routing_key))))
            self._matches[routing_key] = queues
        return queues

    def lookup_transient(self, routing_key: str) -> tuple[str, ...]:
        """Return the targets of a transient message: the log, and queues that do not read it."""
        return (self._log, *[q for q in self.lookup(routing_key) if q not in self.readers])

    def _match(self, routing_key: str) -> Iterable[str]:
        words = words_of(routing_key)
        for key, queue in self._bindings:
            if (
                self.type == "fanout"
                or (self.type == "direct" and key == routing_key)
                or (self.type == "topic" and topic_matches(words_of(key), words))
            ):
                yield queue


class Routes:
    """The exchanges and bindings of one connection: cached ones, and its own declarations."""

    def __init__(self, store: Store, cache: dict[str, Route] | None = None) -> None:
        self._store = store
        self._cache = {} if cache is None else cache
        self.declared: dict[str, bytes] = {}
        # Declared by lost connections; the broker may have lost these exchanges too.
        self.inherited: dict[str, bytes] = {}
        self.bound: dict[str, set[bytes]] = {}

    def over(self, store: Store) -> Routes:
        """Return routes over another connection to the same broker, with shared state."""
        return self._shared(Routes(store, self._cache))

    def at(self, store: Store) -> Routes:
        """Return routes for another broker: shared declarations, with a cache of its own."""
        return self._shared(Routes(store))

    def _shared(self, routes: Routes) -> Routes:
        routes.declared, routes.inherited = self.declared, self.inherited
        routes.bound = self.bound
        return routes

    # -- exchanges

    def declare(self, exchange: str, type_: str, declaration: dict[str, Any]) -> None:
        """Declare *exchange*; raise PreconditionFailed if it exists and differs."""
        if type_ not in TYPES:
            raise PreconditionFailed(
                f"exchange {exchange!r} cannot be of type {type_!r}: "
                f"reliq supports {', '.join(sorted(TYPES))}"
            )
        wanted = pack({"type": type_, **declaration})
        stored = self._store.declare_exchange(exchange, wanted)
        if stored != wanted:
            raise PreconditionFailed(
                f"exchange {exchange!r} exists with {unpack(stored)!r}; "
                f"the new declaration has {unpack(wanted)!r}"
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
        for queue, bindings in _by_queue(self._store.exchange_table(exchange).bindings):
            self._store.bind(exchange, bound=False, bindings=bindings, queue=queue)
        self._store.delete_exchange(exchange)

    # -- bindings

    def bind(self, queue: str, exchange: str, routing_key: str, *, present: bool = False) -> bool:
        """Bind *queue*; raise NotFound for an undeclared exchange.

        With *present*, return False and bind nothing if the queue does not exist.
        """
        known = self.inherited.get(exchange)
        if known is not None:
            self._store.declare_exchange(exchange, known)
        else:
            known = self.declared.get(exchange)
            if known is None:
                self.require(exchange)
        binding = pack([routing_key, queue])
        left = self._store.bind(
            exchange, bound=True, bindings=[binding], queue=queue, present=present
        )
        if left == NO_QUEUE:
            return False
        if known is not None and is_auto_delete(known):
            # It may have been deleted with its last binding since our declaration.
            self._store.declare_exchange(exchange, known)
        self.bound.setdefault(exchange, set()).add(binding)
        self._cache.pop(exchange, None)
        return True

    def unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Remove one binding; an auto_delete exchange is deleted with its last one."""
        binding = pack([routing_key, queue])
        self.bound.get(exchange, set()).discard(binding)
        self._cache.pop(exchange, None)
        if not self._store.bind(exchange, bound=False, bindings=[binding], queue=queue):
            declared = self.declared.get(exchange)
            if declared is None:
                declared = self._store.exchange_table(exchange).declaration
            self._left_unbound(exchange, declared)

    def forget_queue(self, queue: str) -> None:
        """Remove every binding of a deleted queue, including those of other connections."""
        for bindings in self.bound.values():
            bindings -= {binding for binding in bindings if unpack(binding)[1] == queue}
        for exchange, declaration in self._store.unbind_queue(queue).items():
            self._cache.pop(exchange, None)
            self._left_unbound(exchange, declaration)

    def bindings_of(self, queue: str) -> dict[str, tuple[bytes | None, set[bytes]]]:
        """Return this connection's bindings of *queue*: exchange -> declaration, bindings."""
        by_exchange: dict[str, tuple[bytes | None, set[bytes]]] = {}
        for exchange, bindings in list(self.bound.items()):
            own = {binding for binding in list(bindings) if unpack(binding)[1] == queue}
            if own:
                known = self.declared.get(exchange) or self.inherited.get(exchange)
                by_exchange[exchange] = known, own
        return by_exchange

    def bind_again(self, queue: str, store: Store) -> None:
        """Restore this connection's bindings of *queue*, which was recreated, over *store*."""
        for exchange, (declaration, bindings) in self.bindings_of(queue).items():
            if declaration is not None:
                store.declare_exchange(exchange, declaration)
            store.bind(exchange, bound=True, bindings=sorted(bindings), queue=queue)
            self._cache.pop(exchange, None)

    def _left_unbound(self, exchange: str, declaration: bytes | None) -> None:
        if declaration is not None and is_auto_delete(declaration):
            self._store.delete_exchange(exchange, if_unbound=True)

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        """Yield (queue, exchange, routing key) of every binding."""
        for exchange in self._store.exchanges():
            for binding in sorted(self._store.exchange_table(exchange).bindings):
                key, queue = unpack(binding)
                if key != READS_LOG:
                    yield queue, exchange, key

    # -- routes

    def cached(self, exchange: str) -> Route:
        """Return the cached route of *exchange*, or query the broker."""
        return self._cache.get(exchange) or self.refresh(exchange)

    def refresh(self, exchange: str) -> Route:
        """Query the broker for the bindings of *exchange*; restore lost ones."""
        return self.learn(exchange, self._store.exchange_table(exchange))

    def learn(self, exchange: str, table: ExchangeTable) -> Route:
        """Cache the broker's *table* of *exchange*; restore lost bindings."""
        if table.version is None and self.bound.get(exchange):
            # The table of our bindings was evicted, or the broker lost its data: redeclare.
            declaration = self.declared.get(exchange) or self.inherited.get(exchange)
            if declaration is not None:
                self._store.declare_exchange(exchange, declaration)
            for queue, bindings in _by_queue(self.bound[exchange]):
                self._store.bind(exchange, bound=True, bindings=bindings, queue=queue)
            table = self._store.exchange_table(exchange)
        route = self._cache[exchange] = Route(table, exchange)
        return route
