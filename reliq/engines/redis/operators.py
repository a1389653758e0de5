"""What operators ask of Redis, and change of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...message.queue_arguments import FIELDS, WHOLE
from ...store.inspection import Place, Stored, Told
from ...store.limits import BROWSED_AT_ONCE
from ...store.unreadable import left_out, number
from . import keys, scripts
from .base import StoreBase, text_of, texts

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEASE_FIELDS = 4


class RedisOperators(StoreBase):
    """What a store tells and does beside the life of a message."""

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        listed = sorted(texts(self._wire.call(("ZRANGE", keys.queues(self._prefix), 0, -1))))
        # Whoever declared one, or deleted it, may have died half way.
        there = self._wire.exchange(
            [(("EXISTS", self._keys(queue).meta), None) for queue in listed]
        )
        return [queue for queue, exists in zip(listed, there, strict=True) if exists]

    def told(self) -> Told:
        """Return the names of all queues: one server has them all."""
        return Told(self.queues())

    def now_ms(self) -> int:
        """Return the server's time, in ms since the epoch."""
        seconds, micros = self._wire.call(("TIME",))
        return int(seconds) * 1000 + int(micros) // 1000

    def pause(self, queue: str, paused: bool) -> bool:
        """Keep *queue* from giving anything out, or let it go on; False: no such queue."""
        names = scripts.PAUSE.of(self._keys(queue))
        return bool(self._wire.execute(scripts.PAUSE, names, (1 if paused else 0,)))

    def browse(self, queue: str, place: Place, limit: int, skip: int = 0) -> list[Stored]:
        """Return up to *limit* messages of *place* after *skip*, without touching them."""
        if limit <= 0:
            return []
        names = scripts.BROWSE.of(self._keys(queue))
        args = (place, skip, min(limit, BROWSED_AT_ONCE))
        flat = self._wire.execute(scripts.BROWSE, names, args)
        found = []
        for i in range(0, len(flat), 5):
            tag, score, envelope, record, failed = flat[i : i + 5]
            held_by = ""
            if place == "unacked":
                fields = text_of(record or b"").split("|", 3)
                held_by = fields[3] if len(fields) == _LEASE_FIELDS else ""
                if len(fields) != _LEASE_FIELDS:
                    left_out(self.broker, f"lease records of {queue!r}", [text_of(tag)])
            # What is on its way to another broker has a lease without an end.
            at_ms = 0 if place == "ready" else number(score)
            count = -1 if failed is None else number(failed)
            found.append(Stored(text_of(tag), envelope, count, at_ms, held_by))
        return found

    def configure(self, queue: str, changes: Mapping[str, str | None]) -> dict[str, str] | None:
        """Change what scripts know of the arguments of *queue*; None removes a field."""
        of_queue = self._keys(queue)
        if changes:
            pairs = [part for field, value in changes.items() for part in (field, value or "")]
            names = scripts.CONFIGURE.of(of_queue)
            flat = self._wire.execute(scripts.CONFIGURE, names, pairs)
        else:
            flat = self._wire.call(("HGETALL", of_queue.meta))
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        if b"exists" not in fields:
            return None
        return {
            field: text_of(fields[field.encode()])
            for field in (*FIELDS.values(), *WHOLE.values())
            if field.encode() in fields
        }
