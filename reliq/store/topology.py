"""Queues, exchanges and bindings over Redis, with the version of each table of bindings."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from ..lua import keys, scripts
from ..message.envelope import pack, unpack
from ..message.queue_arguments import DECLARED_LIMITS, FIELDS, WHOLE
from ..values.limits import LONG_MS
from ..values.values import NO_QUEUE, ExchangeTable, Layout, QueueDeclared, QueueDeleted
from .base import StoreBase, gathered, text_of, texts, then

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..client.stream import Command
    from ..values.values import OnResult

_DECLARED = ("missing", "existed", "created", "differs")
_NUMBER = re.compile(rb"[0-9]{1,15}")
_DELETED = {
    1: "deleted",
    0: "missing",
    -1: "not_empty",
    -2: "in_use",
    -3: "not_idle",
    -4: "not_drained",
}
# The script's argument: remove bindings, and create no table if there is none.
_REMOVE = -1


def _whole(text: bytes | None) -> int:
    """Return the stored number of partitions; 1 if it is missing or not one of reliq's."""
    return int(text) if text and _NUMBER.fullmatch(text) else 1


class RedisTopology(StoreBase):
    """The part of a store for queues, exchanges and bindings."""

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        listed = sorted(texts(self._wire.call(("ZRANGE", self._shared.queues, 0, -1))))
        # A listed queue may be missing: a process may have died while it declared or deleted it.
        there = self._wire.call_all(*(("EXISTS", self._keys(queue).meta) for queue in listed))
        return [queue for queue, exists in zip(listed, there, strict=True) if exists]

    def declare_queue(
        self, queue: str, passive: bool, arguments: bytes, meta: dict[str, str]
    ) -> QueueDeclared:
        """Create *queue* with its arguments, or return the existing ones."""
        pairs = [part for pair in meta.items() for part in pair]
        if not passive:  # first, in case this process dies: a missing queue is skipped
            self.list_queue(queue)
        args = (int(passive), arguments, *pairs)
        outcome, messages, consumers, stored = self._run(scripts.DECLARE, queue, args)
        if _DECLARED[outcome] == "created":  # again, in case another process was unlisting it
            self.list_queue(queue)
        if not passive and "dead_letter_exchange" in meta:
            self.list_queue(queue, self._shared.dead_letter_routed)
        return QueueDeclared(_DECLARED[outcome], messages, consumers, stored)  # type: ignore[arg-type]

    def create_queue(self, queue: str) -> None:
        """Create *queue* unless it exists, without arguments; its first declaration sets them."""
        k = self._keys(queue)
        if self._wire.call(("HSETNX", k.meta, "exists", "1")):
            # A queue of the same name may have been deleted a moment ago.
            self._wire.call(("PEXPIRE", k.publishers, LONG_MS))
        self.list_queue(queue)

    def delete_queue(
        self,
        queue: str,
        *,
        if_empty: bool = False,
        if_unused: bool = False,
        if_idle: bool = False,
        if_drained: bool = False,
    ) -> QueueDeleted:
        """Delete *queue* and everything in it, if the conditions hold. Atomic.

        *if_drained*: the queue is closed and empty, and has no publish numbers, by which a retry
        would find its message. The queue stays listed until :meth:`unbind_queue`. If this process
        dies before that, another one finds the queue in the list and finishes the deletion.
        """
        flags = tuple(map(int, (if_empty, if_unused, if_idle, if_drained)))
        outcome, count = self._run_in_order(scripts.DELETE_QUEUE, queue, flags)
        return QueueDeleted(_DELETED[outcome], count)  # type: ignore[arg-type]

    # -- partitions

    def layout(self, queue: str) -> Layout | None:
        """Return the layout of *queue*, or None if it does not exist."""
        # Without the script: this user may have no right to write.
        fields = ("exists", "partitions", "partitions_end", "paused")
        exists, *numbers, paused = self._wire.call(("HMGET", self._keys(queue).meta, *fields))
        if exists is None:
            return None
        count, end = (_whole(text) for text in numbers)
        return Layout(count, max(count, end), paused is not None)

    def lay_out(
        self,
        queue: str,
        partitions: int = 0,
        end: int = 0,
        *,
        end_was: int = 0,
        closed: bool | None = None,
    ) -> Layout | None:
        """Divide *queue* into *partitions* partitions for publishing (0: unchanged).

        The end of the layout becomes *end* if that is higher or, if the end still is *end_was*,
        even if it is lower. *closed*: whether a partition accepts no new messages, except from a
        publisher with ``create``. Atomic. Returns None if the queue does not exist.
        """
        args = (partitions, end, end_was, -1 if closed is None else int(closed))
        exists, *numbers = self._run(scripts.LAYOUT, queue, args)
        return Layout(numbers[0], max(numbers[:2]), numbers[2] == 1) if exists else None

    def purge(self, queue: str) -> int:
        """Remove the waiting messages of *queue*; return how many. Not atomic as a whole."""
        total = 0
        while removed := self._run(scripts.PURGE, queue):
            total += removed
        return total

    # -- settings

    def pause(self, queue: str, paused: bool) -> bool:
        """Pause *queue*, or resume it; return False if it does not exist.

        Atomic. Consumers that wait for a resumed queue are woken.
        """
        return bool(self._run(scripts.PAUSE, queue, (1 if paused else 0,)))

    def configure(self, queue: str, changes: Mapping[str, str | None]) -> dict[str, str] | None:
        """Change the arguments of *queue* that scripts use; None removes a field.

        Atomic; the stored declaration is unchanged. Returns all fields as they are now (without
        *changes*, it only reads), or None if the queue does not exist.
        """
        if changes:
            pairs = [part for field, value in changes.items() for part in (field, value or "")]
            flat = self._run(scripts.CONFIGURE, queue, pairs)
        else:
            flat = self._wire.call(("HGETALL", self._keys(queue).meta))
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        if b"exists" not in fields:
            return None
        return {
            field: text_of(fields[field.encode()])
            for field in (*FIELDS.values(), *WHOLE.values(), DECLARED_LIMITS)
            if field.encode() in fields
        }

    # -- exchanges

    def declare_exchange(self, exchange: str, declaration: bytes) -> bytes:
        """Store the declaration unless there is one; return the stored one."""
        args = (exchange, declaration)
        return bytes(self._wire.run(scripts.DECLARE_EXCHANGE, self._shared, args))

    def delete_exchange(self, exchange: str, *, if_unbound: bool = False) -> None:
        """Delete *exchange* and its bindings; with *if_unbound*, only if it has none."""
        names, table = self._shared.exchanges, keys.bindings(self._prefix, exchange)
        if not if_unbound:
            self._wire.call_all(("HDEL", names, exchange), ("DEL", table))
            return
        guard = keys.guard(self._prefix, exchange)
        if not self._wire.run(scripts.UNBOUND, None, (), bindings=table, guard=guard):
            return
        declaration, _ = self._wire.call_all(("HGET", names, exchange), ("HDEL", names, exchange))
        if declaration is not None and self._wire.call(("EXISTS", table)):
            # Bound meanwhile, while it was still declared: it stays declared.
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

        Returns the number of bindings of the exchange. If *queue* is given, they are noted with
        it for :meth:`unbind_queue`. With *present*, nothing is bound if the queue does not exist:
        NO_QUEUE is returned, and a queue that is deleted meanwhile leaves no binding.

        A process that dies half way leaves a note without a binding, never a binding without a
        note. With *present*, the queue is checked after it is bound: a later deletion finds the
        note. The queue is listed first, so that another process finds both.
        """
        k = self._keys(queue)
        notes = [pack([exchange, binding]) for binding in bindings] if queue else []
        # One after the other: in a cluster, they are at different nodes.
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
            if kept:  # bound again meanwhile by another process
                self._run(scripts.NOTE_BOUND, queue, kept)
        return int(left)

    def _bind_command(
        self, exchange: str, change: int, bindings: Iterable[bytes]
    ) -> tuple[Command, scripts.Script]:
        table, guard = keys.bindings(self._prefix, exchange), keys.guard(self._prefix, exchange)
        return scripts.BIND.over(None, (change, *bindings), bindings=table, guard=guard)

    def unbind_queue(self, queue: str) -> dict[str, bytes | None]:
        """Remove the bindings of a deleted queue, however many exchanges there are.

        Returns the exchanges that have none left, with their declarations. A queue that was
        created anew meanwhile keeps its bindings; otherwise, it is removed from the list.
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
            [self._bind_command(name, _REMOVE, own) for name, own in bindings.items()]
        )
        _, exists, declarations = self._wire.call_all(
            ("SREM", k.bound, *notes),
            ("HEXISTS", k.meta, "exists"),
            ("HMGET", self._shared.exchanges, *bindings),
        )
        if exists:
            # Created anew meanwhile, by a process that may have bound it just before this step.
            for exchange, own in bindings.items():
                self.bind(exchange, True, own, queue)
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
        # After that: in a cluster, they are at different nodes.
        command = ("HMGET", self._keys(queue).meta, "exists", "dead_letter_exchange")
        exists, dead_letter_exchange = self._wire.call(command)
        if exists is not None:  # declared again meanwhile
            self.list_queue(queue)
        if dead_letter_exchange is not None:
            self.list_queue(queue, dead_letter_routed)

    def exchange_table(self, exchange: str) -> ExchangeTable:
        """Return declaration, bindings and version of *exchange*."""
        return _table(*self._wire.call_all(*self._asks(exchange)))

    def post_exchange_table(self, exchange: str, on_result: OnResult[ExchangeTable]) -> None:
        """Post the commands of :meth:`exchange_table`."""
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
        """Return the version of the bindings of *exchange*, or None if it has none."""
        version: bytes | None = self._wire.call(self._asks_version(exchange))
        return version

    def post_bindings_version(self, exchange: str, on_result: OnResult[bytes | None]) -> None:
        """Post the command of :meth:`bindings_version`."""
        self._wire.post(self._asks_version(exchange), on_result)

    def _asks_version(self, exchange: str) -> Command:
        return ("HGET", keys.bindings(self._prefix, exchange), "version")


def _table(declaration: bytes | None, fields: Sequence[bytes]) -> ExchangeTable:
    table = dict(zip(fields[::2], fields[1::2], strict=True))
    version = table.pop(b"version", None)
    return ExchangeTable(declaration, version, frozenset(table))
