"""The Redis engine: one method per script builds keys and arguments and reads the reply."""

from __future__ import annotations

from .consuming import RedisConsuming
from .diagnosis import RedisDiagnosis
from .measuring import RedisMeasuring
from .moves import RedisMoves
from .operators import RedisOperators
from .publishing import RedisPublishing
from .register import RedisRegister
from .topology import RedisTopology


class RedisStore(
    RedisPublishing,
    RedisConsuming,
    RedisRegister,
    RedisTopology,
    RedisMoves,
    RedisMeasuring,
    RedisOperators,
    RedisDiagnosis,
):
    """See :class:`reliq.store.protocol.Store`: each part is in a file of its own."""
