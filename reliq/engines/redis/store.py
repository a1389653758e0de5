"""The Redis engine: one method per script builds keys and arguments and reads the reply."""

from __future__ import annotations

from .claims import RedisClaims
from .consuming import RedisConsuming
from .dead_letters import RedisDeadLetters
from .diagnosis import RedisDiagnosis
from .measuring import RedisMeasuring
from .moves import RedisMoves
from .operators import RedisOperators
from .publishing import RedisPublishing
from .register import RedisRegister
from .returning import RedisReturning
from .surveying import RedisSurveying
from .topology import RedisTopology


class RedisStore(
    RedisPublishing,
    RedisConsuming,
    RedisReturning,
    RedisSurveying,
    RedisRegister,
    RedisTopology,
    RedisDeadLetters,
    RedisMoves,
    RedisOperators,
    RedisMeasuring,
    RedisDiagnosis,
    RedisClaims,
):
    """See :class:`reliq.store.protocol.Store`: each part is in a file of its own."""
