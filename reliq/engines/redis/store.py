"""The Redis engine: one method per script builds keys and arguments and reads the reply."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from . import keys, scripts
from .batches import RedisBatches
from .consuming import RedisConsuming
from .dead_letters import RedisDeadLetters
from .exchanges import RedisExchanges
from .leases import RedisLeases
from .measuring import RedisMeasuring
from .moves import RedisMoves
from .operators import RedisOperators
from .publishing import RedisPublishing
from .queues import RedisQueues
from .register import RedisRegister
from .scanning import RedisScanning
from .sentinel import SentinelAddress
from .server import Server

if TYPE_CHECKING:
    from ...store.inspection import BrokerInfo, Finding, Node


class RedisStore(
    RedisPublishing,
    RedisConsuming,
    RedisLeases,
    RedisRegister,
    RedisQueues,
    RedisExchanges,
    RedisDeadLetters,
    RedisMoves,
    RedisOperators,
    RedisMeasuring,
    RedisScanning,
):
    """See :class:`reliq.store.protocol.Store`: each part is in a file of its own."""

    @cached_property
    def batches(self) -> RedisBatches:
        """The batches of jobs at this broker."""
        return RedisBatches(self._wire, self._prefix)

    def claim(self, name: str, token: str, keep_ms: int, *, finished: bool = False) -> int:
        """Take the claim on *name*, or extend, finish or (0 ms) give up one's own."""
        names = scripts.ONCE.named(
            once=keys.once(self._prefix, name), guard=keys.guard(self._prefix, name)
        )
        args = (token, keep_ms, 1 if finished else 0)
        return int(self._wire.execute(scripts.ONCE, names, args))

    @cached_property
    def _server(self) -> Server:
        return Server(self._wire, self._prefix)

    def about(self) -> BrokerInfo:
        """Return what the server says of itself."""
        return self._server.about(self.broker)

    def diagnose(self) -> list[Finding]:
        """Look at what can be wrong with the server and with this user's rights."""
        behind = isinstance(self._wire.address, SentinelAddress)
        return self._server.diagnose(behind_sentinels=behind)

    def nodes(self) -> list[Node]:
        """Return nothing: the broker is one server."""
        return []
