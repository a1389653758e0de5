"""Queues over Redis: declared, listed, divided, paused, purged and deleted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...message.queue_arguments import FIELDS, WHOLE
from ...store.limits import LONG_MS
from ...store.values import Layout, QueueDeclared, QueueDeleted
from . import scripts
from .base import StoreBase, queues_of, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        return queues_of(self._wire, self._prefix)

    def declare_queue(
        self, queue: str, passive: bool, arguments: bytes, meta: dict[str, str]
    ) -> QueueDeclared:
        """Create *queue* with its arguments, or say what there is."""
        pairs = [part for pair in meta.items() for part in pair]
        if not passive:  # first, in case we die: one that is listed and not there is left out
            self.list_queue(queue)
        args = (int(passive), arguments, *pairs)
        outcome, messages, consumers, stored = self._run(scripts.DECLARE, queue, args)
        if _DECLARED[outcome] == "created":  # again, in case somebody was unlisting it
            self.list_queue(queue)
        if not passive and "dead_letter_exchange" in meta:
            self.list_queue(queue, self._shared.dead_letter_routed)
        return QueueDeclared(_DECLARED[outcome], messages, consumers, stored)  # type: ignore[arg-type]

    def create_queue(self, queue: str) -> None:
        """Make *queue* unless there is one, as a publish does: it has no arguments yet.

        It takes those of its first declaration, whatever they are.
        """
        k = self._keys(queue)
        if self._wire.call(("HSETNX", k.meta, "exists", "1")):
            # One of the same name may have been deleted a moment ago.
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

        *if_drained*: it is closed, holds nothing, and has no numbers of publishers, by which a
        retry would find its message. It stays listed until :meth:`unbind_queue`: should we die
        before that, somebody finds it there, and ends what we began.
        """
        flags = tuple(map(int, (if_empty, if_unused, if_idle, if_drained)))
        outcome, count = self._run_in_order(scripts.DELETE_QUEUE, queue, flags)
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

    def lay_out(
        self,
        queue: str,
        partitions: int = 0,
        end: int = 0,
        *,
        end_was: int = 0,
        closed: bool | None = None,
    ) -> Layout | None:
        """Divide *queue* into so many *partitions* to publish to (0: as before).

        The end of its layout becomes *end* where that is more; where *end_was* is still the end,
        also where it is less. Of a partition *closed* says whether it takes nothing new, but from
        a publisher with ``create``. Atomic. None: there is no such queue.
        """
        args = (partitions, end, end_was, -1 if closed is None else int(closed))
        exists, *found = self._run(scripts.LAYOUT, queue, args)
        return Layout(found[0], max(found[:2]), found[2] == 1) if exists else None

    def purge(self, queue: str) -> int:
        """Remove what waits in *queue*; return how many messages. Not atomic as a whole."""
        total = 0
        while removed := self._run(scripts.PURGE, queue):
            total += removed
        return total

    # -- settings

    def pause(self, queue: str, paused: bool) -> bool:
        """Keep *queue* from giving anything out, or let it go on; False: no such queue.

        Atomic. Whoever waits for a queue that goes on is woken.
        """
        return bool(self._run(scripts.PAUSE, queue, (1 if paused else 0,)))

    def configure(self, queue: str, changes: Mapping[str, str | None]) -> dict[str, str] | None:
        """Change what scripts know of the arguments of *queue*; None removes a field.

        Atomic; the declaration that is compared stays as it is. Returns all fields as they
        are now (without *changes*: only looks), None where there is no such queue.
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
            for field in (*FIELDS.values(), *WHOLE.values())
            if field.encode() in fields
        }
