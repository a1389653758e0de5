"""The schemes and failover strategies, and how Kombu gets to know them."""

from __future__ import annotations

from ..errors import refuse_sqlite
from ..failover.brokers import STRATEGIES

SCHEMES = {
    "reliq": "reliq.transports.redis:Transport",
    "reliqs": "reliq.transports.redis:TLSTransport",
    "reliq-unix": "reliq.transports.redis:UnixTransport",
    "reliq-sentinel": "reliq.transports.sentinel:Transport",
    "reliq-cluster": "reliq.transports.cluster:Transport",
    "reliq-spool": "reliq.transports.spool:Transport",
    "reliq-embedded": "reliq.transports.redis:EmbeddedTransport",
}


def register() -> None:
    """Enter schemes and failover strategies into Kombu's tables; twice is harmless."""
    from kombu.connection import failover_strategies  # noqa: PLC0415 - see plugin.py
    from kombu.transport import TRANSPORT_ALIASES  # noqa: PLC0415

    TRANSPORT_ALIASES.update(SCHEMES, **{"reliq-sqlite": refuse_sqlite})
    failover_strategies.update(STRATEGIES)
