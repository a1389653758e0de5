"""URL schemes and failover strategies, and their registration with Kombu."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import refuse_sqlite
from ..failover.brokers import STRATEGIES
from ..lazy import names_of

if TYPE_CHECKING:
    from ..batches.entries import enter as enter
    from ..batches.entries import entry_of as entry_of
    from ..batches.entries import withdraw as withdraw
    from .consume.consumers import Consumers as Consumers
    from .consume.credit import Credit as Credit
    from .consume.eventloop import EventLoop as EventLoop
    from .consume.pull import PullLoop as PullLoop
    from .consume.receiver import Receiver as Receiver
    from .consume.reserver import Reserver as Reserver
    from .consume.settlement import Settlement as Settlement
    from .failback_rounds import FAILBACK as FAILBACK
    from .publish.forwarding import forward as forward
    from .publish.publish_buffer import PublishBuffer as PublishBuffer

# Imported on first use: only connections that consume, publish batches or use a spool need them.
__getattr__ = names_of(
    __name__,
    {
        ".consume.consumers": "Consumers",
        ".consume.credit": "Credit",
        ".consume.eventloop": "EventLoop",
        ".failback_rounds": "FAILBACK",
        ".publish.forwarding": "forward",
        "..batches.entries": "enter entry_of withdraw",
        ".publish.publish_buffer": "PublishBuffer",
        ".consume.pull": "PullLoop",
        ".consume.receiver": "Receiver",
        ".consume.reserver": "Reserver",
        ".consume.settlement": "Settlement",
    },
)

SCHEMES = {
    "reliq": "reliq.transports.redis:Transport",
    "reliqs": "reliq.transports.redis:TLSTransport",
    "reliq-unix": "reliq.transports.redis:UnixTransport",
    "reliq-sentinel": "reliq.transports.redis:SentinelTransport",
    "reliq-cluster": "reliq.transports.redis:ClusterTransport",
    "reliq-spool": "reliq.transports.spool:Transport",
    "reliq-embedded": "reliq.transports.redis:EmbeddedTransport",
}


def register() -> None:
    """Register the schemes and failover strategies with Kombu. Idempotent."""
    from kombu.connection import failover_strategies  # noqa: PLC0415 - see plugin.py
    from kombu.transport import TRANSPORT_ALIASES  # noqa: PLC0415

    TRANSPORT_ALIASES.update(SCHEMES, **{"reliq-sqlite": refuse_sqlite})
    failover_strategies.update(STRATEGIES)
