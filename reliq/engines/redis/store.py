"""The store: one connection to one broker, all that the parts above know of Redis.

``post_*`` methods start a step and return; their callback gets the result, or the ReliqError it
ended with, from whichever thread reads the reply. All other methods wait, and raise ReliqError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import Lazy
from .. import redis as engine
from . import keys, scripts
from .consuming import RedisConsuming
from .dead_letters import RedisDeadLetters
from .publishing import RedisPublishing
from .register import RedisRegister
from .topology import RedisTopology

if TYPE_CHECKING:
    from .batches import RedisBatches
    from .reads import RedisReads


class RedisStore(
    RedisPublishing,
    RedisConsuming,
    RedisRegister,
    RedisTopology,
    RedisDeadLetters,
):
    """One connection to one broker. Each part is in a file of its own."""

    @Lazy
    def batches(self) -> RedisBatches:
        """The batches of jobs at this broker."""
        return engine.RedisBatches(self._wire, self._prefix)

    @Lazy
    def reads(self) -> RedisReads:
        """Queues, messages and consumers as operators see them."""
        return engine.RedisReads(self._wire, self._prefix)

    def claim(self, name: str, token: str, keep_ms: int, *, finished: bool = False) -> int:
        """Take the claim on *name*, or extend, finish or (0 ms) give up one's own.

        Atomic. Returns CLAIMED when it is, or was, that of *token*; FINISHED when another
        has finished it; else the ms that the claim of another still counts.
        """
        once, guard = keys.once(self._prefix, name), keys.guard(self._prefix, name)
        args = (token, keep_ms, int(finished))
        return int(self._wire.run(scripts.ONCE, None, args, once=once, guard=guard))
