"""Queues over Redis: declared, listed, purged and deleted."""

from __future__ import annotations

import re

from ...store.limits import BATCH, LONG_MS
from ...store.values import Layout, QueueDeclared, QueueDeleted
from . import keys, scripts
from .base import StoreBase

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


def _whole(text: bytes | None) -> int:
    """Return the number of partitions that is stored; 1 where none is, or another wrote it."""
    return int(text) if text and _NUMBER.fullmatch(text) else 1


class RedisQueues(StoreBase):
    """What a store knows of queues."""

    def list_queue(self, queue: str) -> None:
        """Make *queue* visible, to operators and to whoever looks after all queues."""
        self._enlist(keys.queues(self._prefix), queue)

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
            self._enlist(keys.dead_letter_routed(self._prefix), queue)
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
        flags = (if_empty, if_unused, if_idle, False)
        return self._delete(queue, flags)

    def _delete(self, queue: str, conditions: tuple[bool, ...]) -> QueueDeleted:
        names = scripts.DELETE_QUEUE.of(self._keys(queue))
        flags = tuple(1 if condition else 0 for condition in conditions)
        outcome, count = self._wire.execute_in_order(scripts.DELETE_QUEUE, names, flags)
        return QueueDeleted(_DELETED[outcome], count)  # type: ignore[arg-type]

    # -- partitions

    def layout(self, queue: str) -> Layout | None:
        """Return how *queue* is divided; None where there is no such queue."""
        # Without the script: who looks may have no right to write.
        fields = ("exists", "partitions", "partitions_end", "paused")
        exists, *numbers, paused = self._wire.call(("HMGET", self._keys(queue).meta, *fields))
        if exists is None:
            return None
        count, end = (_whole(text) for text in numbers)
        return Layout(count, max(count, end), paused is not None)

    def lay_out(self, queue: str, partitions: int, end: int = 0) -> Layout | None:
        """Divide *queue* into so many partitions to publish to; *end* only grows by this."""
        return self._lay_out(queue, partitions, end, 0, -1)

    def lower_end(self, queue: str, end: int, to: int) -> Layout | None:
        """Note that the partitions from *to* on are gone, where *end* is still the end."""
        return self._lay_out(queue, 0, to, end, -1)

    def open_partition(self, partition: str, partitions: int, *, closed: bool = False) -> bool:
        """Let a partition take messages, as one of so many; *closed*: let it take none."""
        return self._lay_out(partition, partitions, 0, 0, 1 if closed else 0) is not None

    def _lay_out(self, queue: str, *args: int) -> Layout | None:
        names = scripts.LAYOUT.of(self._keys(queue))
        exists, *found = self._wire.execute(scripts.LAYOUT, names, args)
        return Layout(found[0], max(found[:2]), found[3] == 1) if exists else None

    def remove_drained(self, partition: str) -> bool:
        """Delete a partition that takes nothing new and holds nothing; whether it is gone."""
        deleted = self._delete(partition, (False, False, False, True))
        return deleted.outcome in {"deleted", "missing"}

    def purge(self, queue: str) -> int:
        """Remove what waits in *queue*, some hundred messages a call; return how many."""
        names = scripts.PURGE.of(self._keys(queue))
        total = 0
        while removed := self._wire.execute(scripts.PURGE, names, (BATCH,)):
            total += removed
        return total
