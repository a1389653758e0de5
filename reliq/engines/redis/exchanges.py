"""Exchanges and bindings over Redis, with the version of each table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...message.envelope import pack, unpack
from ...store.values import NO_QUEUE, ExchangeTable
from . import keys, scripts
from .base import StoreBase, gathered, texts, then

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...store.values import OnResult
    from .stream import Command

# As the script takes it: remove, and make no table where there is none.
_REMOVE = -1


class RedisExchanges(StoreBase):
    """What a store knows of exchanges."""

    def declare_exchange(self, exchange: str, declaration: bytes) -> bytes:
        """Store the declaration unless there is one; return what is stored."""
        args = (exchange, declaration)
        return bytes(self._wire.run(scripts.DECLARE_EXCHANGE, self._shared, args))

    def delete_exchange(self, exchange: str, *, if_unbound: bool = False) -> None:
        """Delete *exchange* and its bindings; with *if_unbound* only where it has none."""
        names, table = self._shared.exchanges, keys.bindings(self._prefix, exchange)
        if not if_unbound:
            self._wire.call_all(("HDEL", names, exchange), ("DEL", table))
            return
        guard = keys.guard(self._prefix, exchange)
        if not self._wire.run(scripts.UNBOUND, None, (), bindings=table, guard=guard):
            return
        declaration, _ = self._wire.call_all(("HGET", names, exchange), ("HDEL", names, exchange))
        if declaration is not None and self._wire.call(("EXISTS", table)):
            # Bound meanwhile, while it was still declared: it goes on.
            self._wire.call(("HSETNX", names, exchange, declaration))

    def exchanges(self) -> list[str]:
        """Return the names of all declared exchanges."""
        return sorted(texts(self._wire.call(("HKEYS", self._shared.exchanges))))

    def bind(
        self,
        exchange: str,
        bound: bool,
        bindings: Sequence[bytes],
        queue: str = "",
        *,
        present: bool = False,
    ) -> int:
        """Add (*bound*) or remove bindings, and change the version of the table.

        Returns how many the exchange has now. They are those of *queue*, where it is
        given: :meth:`unbind_queue` will find them. With *present* nothing is bound where
        there is no such queue, NO_QUEUE is returned, and one that is deleted meanwhile
        leaves nothing.

        Whoever dies half way leaves a note of a binding that is not there, never a binding
        without a note. A queue that is to be present is looked for when it is bound: who deletes
        it after that finds the note. It is listed before, so that somebody finds both.
        """
        k = self._keys(queue)
        notes = [pack([exchange, binding]) for binding in bindings] if queue else []
        # One after the other: in a cluster the two are at different servers.
        if notes and bound:
            if present:
                self.list_queue(queue)
            self._run(scripts.NOTE_BOUND, queue, notes)
        left = self._wire.call(*self._bind_command(exchange, 1 if bound else 0, bindings))
        if present and not self._wire.call(("HEXISTS", k.meta, "exists")):
            self.unbind_queue(queue)
            return NO_QUEUE
        if notes and not bound:
            self._wire.call(("SREM", k.bound, *notes))
            table = keys.bindings(self._prefix, exchange)
            again = self._wire.call(("HMGET", table, *bindings))
            kept = [note for note, there in zip(notes, again, strict=True) if there is not None]
            if kept:  # bound again meanwhile, by another
                self._run(scripts.NOTE_BOUND, queue, kept)
        return int(left)

    def _bind_command(
        self, exchange: str, change: int, bindings: Iterable[bytes]
    ) -> tuple[Command, scripts.Script]:
        table, guard = keys.bindings(self._prefix, exchange), keys.guard(self._prefix, exchange)
        return scripts.BIND.over(None, (change, *bindings), bindings=table, guard=guard)

    def unbind_queue(self, queue: str) -> dict[str, bytes | None]:
        """Remove the bindings of a queue that is gone, however many exchanges there are.

        Returns the exchanges that have none left, with their declarations. Not atomic with
        the deletion of the queue: one that was made anew meanwhile keeps its bindings. Then it is
        listed no more.
        """
        k = self._keys(queue)
        notes = self._wire.call(("SMEMBERS", k.bound))
        if not notes:
            self._unlist(queue)
            return {}
        bindings: dict[str, list[bytes]] = {}
        for exchange, binding in map(unpack, notes):
            bindings.setdefault(exchange, []).append(binding)
        left = self._wire.exchange(
            [self._bind_command(name, _REMOVE, found) for name, found in bindings.items()]
        )
        _, exists, declarations = self._wire.call_all(
            ("SREM", k.bound, *notes),
            ("HEXISTS", k.meta, "exists"),
            ("HMGET", self._shared.exchanges, *bindings),
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

    def _unlist(self, queue: str) -> None:
        listed, dead_letter_routed = self._shared.queues, self._shared.dead_letter_routed
        self._wire.call_all(("ZREM", listed, queue), ("ZREM", dead_letter_routed, queue))
        # After that: in a cluster the two are at different servers.
        asked = ("HMGET", self._keys(queue).meta, "exists", "dead_letter_exchange")
        exists, dead_letter_exchange = self._wire.call(asked)
        if exists is not None:  # declared again meanwhile
            self.list_queue(queue)
        if dead_letter_exchange is not None:
            self.list_queue(queue, dead_letter_routed)

    def exchange_table(self, exchange: str) -> ExchangeTable:
        """Return declaration, bindings and version of *exchange*."""
        return _table(*self._wire.call_all(*self._asks(exchange)))

    def post_exchange_table(self, exchange: str, on_result: OnResult[ExchangeTable]) -> None:
        """Post what :meth:`exchange_table` asks."""
        asks = self._asks(exchange)
        on_reply = gathered(len(asks), then(lambda replies: _table(*replies), on_result))
        for place, ask in enumerate(asks):
            self._wire.post(ask, partial(on_reply, place))

    def _asks(self, exchange: str) -> tuple[Command, ...]:
        return (
            ("HGET", self._shared.exchanges, exchange),
            ("HGETALL", keys.bindings(self._prefix, exchange)),
        )

    def bindings_version(self, exchange: str) -> bytes | None:
        """Return the version of the bindings of *exchange*; None where it has none."""
        version: bytes | None = self._wire.call(
            ("HGET", keys.bindings(self._prefix, exchange), "version")
        )
        return version

    def post_bindings_version(self, exchange: str, on_result: OnResult[bytes | None]) -> None:
        """Post what :meth:`bindings_version` asks."""
        self._wire.post(("HGET", keys.bindings(self._prefix, exchange), "version"), on_result)


def _table(declaration: bytes | None, fields: Sequence[bytes]) -> ExchangeTable:
    table = dict(zip(fields[::2], fields[1::2], strict=True))
    version = table.pop(b"version", None)
    return ExchangeTable(declaration, version, frozenset(table))
