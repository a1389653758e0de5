"""URL schemes and failover strategies, and their registration with Kombu."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import refuse_sqlite
from ..failover.brokers import STRATEGIES
from ..lazy import names_of

if TYPE_CHECKING:
    from .consumers import Consumers as Consumers
    from .credit import Credit as Credit
    from .eventloop import EventLoop as EventLoop
    from .failback_rounds import FAILBACK as FAILBACK
    from .forwarding import forward as forward
    from .jobs import enter as enter
    from .jobs import entry_of as entry_of
    from .jobs import withdraw as withdraw
    from .publish_buffer import PublishBuffer as PublishBuffer
    from .pull import PullLoop as PullLoop
    from .receiver import Receiver as Receiver
    from .reserver import Reserver as Reserver
    from .settlement import Settlement as Settlement

# Imported on first use: only connections that consume, publish batches or use a spool need them.
__getattr__ = names_of(
    __name__,
    {
        ".consumers": "Consumers",
        ".credit": "Credit",
        ".eventloop": "EventLoop",
        ".failback_rounds": "FAILBACK",
        ".forwarding": "forward",
        ".jobs": "enter entry_of withdraw",
        ".publish_buffer": "PublishBuffer",
        ".pull": "PullLoop",
        ".receiver": "Receiver",
        ".reserver": "Reserver",
        ".settlement": "Settlement",
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
