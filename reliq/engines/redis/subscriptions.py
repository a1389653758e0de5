"""Subscriptions to queues over Redis: who consumes from each, living or not."""

from __future__ import annotations

from ...store.values import Attached
from . import scripts
from .base import StoreBase, texts


class RedisSubscriptions(StoreBase):
    """What a store knows of who consumes from a queue."""

    def attach(self, queue: str, consumer: str, subscriptions: int) -> bool:
        """Note who consumes; False when there is no such queue, or no more."""
        mark = f"{subscriptions} {self.consumer}" if subscriptions else ""
        return self._attach(queue, consumer, mark, "", 0)

    def drop_consumer(self, queue: str, consumer: str, mark: str, silent_ms: int) -> bool:
        """Take a dead consumer off *queue*, unless its mark is another by now."""
        return self._attach(queue, consumer, "", mark, silent_ms)

    def _attach(self, queue: str, consumer: str, mark: str, seen: str, silent_ms: int) -> bool:
        args = (consumer, mark, seen, silent_ms)
        names = scripts.ATTACH.of(self._keys(queue))
        kept: int = self._wire.execute(scripts.ATTACH, names, args)
        return kept == 1

    def attached(self, queue: str) -> Attached:
        """Return who consumes from *queue*, and whether it goes by itself."""
        k = self._keys(queue)
        flags, marks = self._wire.exchange(
            [
                (("HMGET", k.meta, "auto_delete", "expires"), None),
                (("HGETALL", k.consumers), None),
            ]
        )
        found = texts(marks)
        return Attached(any(flags), dict(zip(found[::2], found[1::2], strict=True)))

    def consumers_of(self, queue: str) -> list[str]:
        """Return the ids of the consumers of *queue*, dead ones that nobody removed included."""
        return sorted(texts(self._wire.call(("HKEYS", self._keys(queue).consumers))))
