"""The Redis engine: one method per script builds keys and arguments and reads the reply."""

from __future__ import annotations

from functools import cached_property

from .batches import RedisBatches
from .claims import RedisClaims
from .consuming import RedisConsuming
from .dead_letters import RedisDeadLetters
from .diagnosis import RedisDiagnosis
from .exchanges import RedisExchanges
from .history import RedisHistory
from .job_events import RedisJobEvents
from .leases import RedisLeases
from .measuring import RedisMeasuring
from .moves import RedisMoves
from .operators import RedisOperators
from .publishing import RedisPublishing
from .queues import RedisQueues
from .register import RedisRegister
from .restoring import RedisRestoring
from .scanning import RedisScanning
from .subscriptions import RedisSubscriptions
from .surveying import RedisSurveying


class RedisStore(
    RedisPublishing,
    RedisConsuming,
    RedisLeases,
    RedisRestoring,
    RedisSurveying,
    RedisRegister,
    RedisSubscriptions,
    RedisQueues,
    RedisExchanges,
    RedisDeadLetters,
    RedisJobEvents,
    RedisMoves,
    RedisOperators,
    RedisMeasuring,
    RedisHistory,
    RedisScanning,
    RedisDiagnosis,
    RedisClaims,
):
    """See :class:`reliq.store.protocol.Store`: each part is in a file of its own."""

    @cached_property
    def batches(self) -> RedisBatches:
        """The batches of jobs at this broker."""
        return RedisBatches(self._wire, self._prefix)
