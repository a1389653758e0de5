"""Queues, exchanges and bindings over Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...message.envelope import pack, unpack
from ...store.limits import BATCH, LONG_MS
from ...store.values import NO_QUEUE, ExchangeTable, QueueDeclared, QueueDeleted
from . import keys, scripts
from .base import LOOK_NOW, StoreBase, texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .wire import Command


# As the script takes it: remove, and make no table where there is none.
_REMOVE = -1
_DECLARED = ("missing", "existed", "created", "differs")
_DELETED = {1: "deleted", 0: "missing", -1: "not_empty", -2: "in_use", -3: "not_idle"}


class RedisTopology(StoreBase):
    """What a store knows of queues and exchanges."""

    def list_queue(self, queue: str) -> None:
        """Make *queue* visible, to operators and to whoever looks after all queues."""
        names = scripts.LIST_QUEUE.named(queues=keys.queues(self._prefix))
        self._wire.execute(scripts.LIST_QUEUE, names, (queue,))

    def declare_queue(
        self, queue: str, passive: bool, arguments: bytes, meta: dict[str, str]
    ) -> QueueDeclared:
        """Create *queue* with its arguments, or say what there is."""
        pairs = [part for pair in meta.items() for part in pair]
        if not passive:  # first, in case we die: one that is listed and not there is left out
            self.list_queue(queue)
        outcome, messages, consumers, stored = self._wire.execute(
            scripts.DECLARE,
            scripts.DECLARE.of(self._keys(queue)),
            (1 if passive else 0, arguments, *pairs),
        )
        if _DECLARED[outcome] == "created":  # again, in case somebody was unlisting it
            self.list_queue(queue)
        if not passive and "dead_letter_exchange" in meta:
            names = keys.dead_letter_routed(self._prefix)
            if self._wire.call(("ZSCORE", names, queue)) is None:
                self._wire.call(("ZADD", names, "NX", 0, queue))
        return QueueDeclared(_DECLARED[outcome], messages, consumers, stored)  # type: ignore[arg-type]

    def create_queue(self, queue: str) -> None:
        """Make *queue* unless there is one; it takes the arguments of its first declaration."""
        k = self._keys(queue)
        if self._wire.call(("HSETNX", k.meta, "exists", "1")):
            # One of the same name may have been deleted a moment ago.
            self._wire.call(("PEXPIRE", k.publishers, LONG_MS))
        self.list_queue(queue)

    def delete_queue(
        self, queue: str, *, if_empty: bool = False, if_unused: bool = False, if_idle: bool = False
    ) -> QueueDeleted:
        """Delete *queue* and everything in it, if the conditions hold.

        It stays listed until :meth:`unbind_queue`: should we die before that, somebody finds
        it there, and ends what we began.
        """
        flags = tuple(1 if flag else 0 for flag in (if_empty, if_unused, if_idle))
        names = scripts.DELETE_QUEUE.of(self._keys(queue))
        outcome, count = self._wire.execute(scripts.DELETE_QUEUE, names, flags)
        return QueueDeleted(_DELETED[outcome], count)  # type: ignore[arg-type]

    def purge(self, queue: str) -> int:
        """Remove what waits in *queue*, some hundred messages a call; return how many."""
        names = scripts.PURGE.of(self._keys(queue))
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

    def delete_exchange(self, exchange: str, *, if_unbound: bool = False) -> None:
        """Delete *exchange* and its bindings; with *if_unbound* only where it has none."""
        names, table = keys.exchanges(self._prefix), keys.bindings(self._prefix, exchange)
        if not if_unbound:
            self._wire.exchange([(("HDEL", names, exchange), None), (("DEL", table), None)])
            return
        if not self._wire.execute(scripts.UNBOUND, scripts.UNBOUND.named(bindings=table), (0,)):
            return
        declaration, _ = self._wire.exchange(
            [(("HGET", names, exchange), None), (("HDEL", names, exchange), None)]
        )
        if declaration is not None and self._wire.call(("EXISTS", table)):
            # Bound meanwhile, while it was still declared: it goes on.
            self._wire.call(("HSETNX", names, exchange, declaration))

    def exchanges(self) -> list[str]:
        """Return the names of all declared exchanges."""
        return sorted(texts(self._wire.call(("HKEYS", keys.exchanges(self._prefix)))))

    def bind(
        self,
        exchange: str,
        bound: bool,
        bindings: Sequence[bytes],
        queue: str = "",
        *,
        present: bool = False,
    ) -> int:
        """Add or remove *bindings* and change the table's version, together.

        Whoever dies half way leaves a note of a binding that is not there, never a binding
        without a note. With *present* the queue is looked for when it is bound: who deletes it
        after that finds the note. Should we die before that, it is listed, so somebody finds
        that it is not there, and what it was bound to.
        """
        noted = keys.bound(self._prefix, queue)
        notes = [pack([exchange, binding]) for binding in bindings] if queue else []
        # One after the other: in a cluster the two are at different servers.
        if notes and bound:
            listed = ("ZADD", keys.queues(self._prefix), "NX", LOOK_NOW, queue)
            before: list[Command] = [listed] if present else []
            self._wire.exchange([(part, None) for part in (*before, ("SADD", noted, *notes))])
        change = self._bind_command(exchange, 1 if bound else 0, bindings)
        (left,) = self._wire.exchange([change])
        if present and not self._wire.call(("HEXISTS", self._keys(queue).meta, "exists")):
            self.unbind_queue(queue)
            return NO_QUEUE
        if notes and not bound:
            self._wire.call(("SREM", noted, *notes))
            table = keys.bindings(self._prefix, exchange)
            again = self._wire.call(("HMGET", table, *bindings))
            kept = [note for note, there in zip(notes, again, strict=True) if there is not None]
            if kept:  # bound again meanwhile, by another
                self._wire.call(("SADD", noted, *kept))
        return int(left)

    def _bind_command(
        self, exchange: str, change: int, bindings: Iterable[bytes]
    ) -> tuple[Command, scripts.Script]:
        names = scripts.BIND.named(bindings=keys.bindings(self._prefix, exchange))
        command = ("EVALSHA", scripts.BIND.sha, len(names), *names, change, *bindings)
        return command, scripts.BIND

    def unbind_queue(self, queue: str) -> dict[str, bytes | None]:
        """Remove the bindings of a queue that is gone, in three round trips for all of them.

        Then it is listed no more.
        """
        noted = keys.bound(self._prefix, queue)
        notes = self._wire.call(("SMEMBERS", noted))
        if not notes:
            self._unlist(queue)
            return {}
        bindings: dict[str, list[bytes]] = {}
        for exchange, binding in map(unpack, notes):
            bindings.setdefault(exchange, []).append(binding)
        left = self._wire.exchange(
            [self._bind_command(name, _REMOVE, found) for name, found in bindings.items()]
        )
        _, exists, declarations = self._wire.exchange(
            [
                (("SREM", noted, *notes), None),
                (("HEXISTS", self._keys(queue).meta, "exists"), None),
                (("HMGET", keys.exchanges(self._prefix), *bindings), None),
            ]
        )
        if exists:
            # Made anew meanwhile, by one who may have bound it just before we unbound it.
            for exchange, found in bindings.items():
                self.bind(exchange, True, found, queue)
            return {}
        self._unlist(queue)
        return {
            exchange: declaration
            for exchange, declaration, count in zip(bindings, declarations, left, strict=True)
            if not count
        }

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
