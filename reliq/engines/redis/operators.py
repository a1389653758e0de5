"""What operators ask of Redis, and the claims of ``reliq.once``."""

from __future__ import annotations

from ...store import (
    QueueStatus,
)
from . import keys, scripts
from .base import (
    StoreBase,
    texts,
)


class RedisOperators(StoreBase):
    """What a store tells and does beside the life of a message."""

    def now_ms(self) -> int:
        """Return the server's time, in ms since the epoch."""
        seconds, micros = self._wire.call(("TIME",))
        return int(seconds) * 1000 + int(micros) // 1000

    def status(self, queue: str) -> QueueStatus | None:
        """Return the counts and the ledger of *queue*; None where there is no such queue."""
        k = self._keys(queue)
        names = (
            k.messages,
            k.ready,
            k.delayed,
            k.unacked_index,
            k.dead,
            k.stats,
            k.meta,
            k.consumers,
        )
        exists, *counts, stats, arguments, paused = self._wire.execute(scripts.STATUS, names, ())
        if not exists:
            return None
        ready, delayed, unacked, dead, stored, consumers = counts
        ledger = dict(zip(texts(stats[::2]), map(int, stats[1::2]), strict=True))
        arguments = {"": arguments}
        return QueueStatus(
            queue, ready, delayed, unacked, dead, stored, consumers, ledger, arguments, paused == 1
        )

    def pause(self, queue: str, paused: bool) -> bool:
        """Keep *queue* from giving anything out, or let it go on; False: no such queue."""
        k = self._keys(queue)
        names = (k.meta, k.ready, k.delayed, k.bell)
        return bool(self._wire.execute(scripts.PAUSE, names, (1 if paused else 0,)))

    def claim(self, name: str, token: str, keep_ms: int, *, finished: bool = False) -> int:
        """Take the claim on *name*, or extend, finish or (0 ms) give up one's own."""
        names = (keys.once(self._prefix, name),)
        args = (token, keep_ms, 1 if finished else 0)
        return int(self._wire.execute(scripts.ONCE, names, args))
