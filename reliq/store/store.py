"""The store: one connection to one broker, the engine's interface for the layers above.

A ``post_*`` method starts a step and returns. Its callback gets the result or a ReliqError, in
whichever thread reads the reply. All other methods wait, and raise ReliqError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import store as engine
from ..lazy import Lazy
from ..lua import keys, scripts
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
    """One connection to one broker. Each part has its own file."""

    @Lazy
    def batches(self) -> RedisBatches:
        """The batches of jobs at this broker."""
        return engine.RedisBatches(self._wire, self._prefix)

    @Lazy
    def reads(self) -> RedisReads:
        """Queues, messages and consumers, as shown to operators."""
        return engine.RedisReads(self._wire, self._prefix)

    def claim(self, name: str, token: str, keep_ms: int, *, finished: bool = False) -> int:
        """Take the claim on *name*, or extend, finish or (0 ms) release the caller's own.

        Atomic. Returns CLAIMED if it is, or was, the claim of *token*, and FINISHED if another
        token has finished it. Otherwise, returns the ms left of another token's claim.
        """
        once, guard = keys.once(self._prefix, name), keys.guard(self._prefix, name)
        args = (token, keep_ms, int(finished))
        return int(self._wire.run(scripts.ONCE, None, args, once=once, guard=guard))
