"""Queues, exchanges and bindings over Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store import (
    ExchangeTable,
    QueueDeclared,
    QueueDeleted,
)
from . import keys, scripts
from .base import (
    BATCH,
    StoreBase,
    texts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


_DECLARED = ("missing", "existed", "created", "differs")
_DELETED = {1: "deleted", 0: "missing", -1: "not_empty", -2: "in_use", -3: "not_idle"}


class RedisTopology(StoreBase):
    """What a store knows of queues and exchanges."""

    def list_queue(self, queue: str, check_ms: int = 0) -> None:
        """Make *queue* visible; with *check_ms* its x-expires is looked at after that time.

        -1: it has none.
        """
        self._wire.execute(scripts.LIST_QUEUE, (keys.queues(self._prefix),), (queue, check_ms))

    def declare_queue(
        self, queue: str, passive: bool, arguments: bytes, meta: dict[str, str]
    ) -> QueueDeclared:
        """Create *queue* with its arguments, or say what there is."""
        k = self._keys(queue)
        pairs = [part for pair in meta.items() for part in pair]
        expires_ms = int(meta.get("expires", 0))
        if not passive:  # first, in case we die: one that is listed and not there is left out
            self.list_queue(queue, expires_ms)
        outcome, messages, consumers, stored = self._wire.execute(
            scripts.DECLARE,
            (k.meta, k.ready, k.delayed, k.consumers),
            (1 if passive else 0, arguments, *pairs),
        )
        if _DECLARED[outcome] == "created":  # again, in case somebody was unlisting it
            self.list_queue(queue, expires_ms)
        if not passive and "dead_letter_exchange" in meta:
            names = keys.rerouted(self._prefix)
            if self._wire.call(("ZSCORE", names, queue)) is None:
                self._wire.call(("ZADD", names, "NX", 0, queue))
        return QueueDeclared(_DECLARED[outcome], messages, consumers, stored)  # type: ignore[arg-type]

    def create_queue(self, queue: str) -> None:
        """Make *queue* unless there is one; it takes the arguments of its first declaration."""
        self._wire.call(("HSETNX", self._keys(queue).meta, "exists", "1"))
        self.list_queue(queue)

    def delete_queue(
        self, queue: str, *, if_empty: bool = False, if_unused: bool = False, if_idle: bool = False
    ) -> QueueDeleted:
        """Delete *queue* and everything in it, if the conditions hold."""
        flags = tuple(1 if flag else 0 for flag in (if_empty, if_unused, if_idle))
        outcome, count = self._wire.execute(scripts.DELETE_QUEUE, self._keys(queue), flags)
        if outcome in {1, 0}:
            self._unlist(queue)
        elif outcome == -3:  # noqa: PLR2004 - as in the script's header
            self.list_queue(queue, count)
        return QueueDeleted(_DELETED[outcome], count)  # type: ignore[arg-type]

    def purge(self, queue: str) -> int:
        """Remove what waits in *queue*, some hundred messages a call; return how many."""
        k = self._keys(queue)
        names = (k.messages, k.ready, k.delayed, k.deliveries, k.expiry, k.stats)
        total = 0
        while removed := self._wire.execute(scripts.PURGE, names, (BATCH,)):
            total += removed
        return total

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        listed = sorted(texts(self._wire.call(("ZRANGE", keys.queues(self._prefix), 0, -1))))
        # Whoever declared one, or deleted it, may have died half way.
        there = self._wire.exchange(
            [(("EXISTS", self._keys(queue).meta), None) for queue in listed]
        )
        return [queue for queue, exists in zip(listed, there, strict=True) if exists]

    def declare_exchange(self, exchange: str, declaration: bytes) -> bytes:
        """Store the declaration unless there is one; return what is stored."""
        key = keys.exchanges(self._prefix)
        known = self._wire.call(("HGET", key, exchange))
        if known is not None:  # so that a worker can start when memory is full
            return bytes(known)
        _, stored = self._wire.exchange(
            [(("HSETNX", key, exchange, declaration), None), (("HGET", key, exchange), None)]
        )
        return bytes(stored)

    def delete_exchange(self, exchange: str) -> None:
        """Delete *exchange* and its bindings."""
        self._wire.exchange(
            [
                (("HDEL", keys.exchanges(self._prefix), exchange), None),
                (("DEL", keys.bindings(self._prefix, exchange)), None),
            ]
        )

    def exchanges(self) -> list[str]:
        """Return the names of all declared exchanges."""
        return sorted(texts(self._wire.call(("HKEYS", keys.exchanges(self._prefix)))))

    def bind(self, exchange: str, bound: bool, bindings: Sequence[bytes]) -> None:
        """Add or remove *bindings* and change the table's version, together."""
        names = (keys.bindings(self._prefix, exchange),)
        self._wire.execute(scripts.BIND, names, (1 if bound else 0, *bindings))

    def exchange_table(self, exchange: str) -> ExchangeTable:
        """Return the declaration, the bindings and their version."""
        declaration, fields = self._wire.exchange(
            [
                (("HGET", keys.exchanges(self._prefix), exchange), None),
                (("HGETALL", keys.bindings(self._prefix, exchange)), None),
            ]
        )
        table = dict(zip(fields[::2], fields[1::2], strict=True))
        version = table.pop(b"version", None)
        return ExchangeTable(declaration, version, frozenset(table))
