"""The schemes and failover strategies, and how Kombu gets to know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import refuse_sqlite
from ..failover.brokers import STRATEGIES
from ..lazy import names_of

if TYPE_CHECKING:
    from .client import Client
    from .consumers import Consumers
    from .credit import Credit
    from .eventloop import EventLoop
    from .forwarding import forward
    from .jobs import enter, entry_of, withdraw
    from .publish_buffer import PublishBuffer
    from .pull import PullLoop
    from .receiver import Receiver
    from .reserver import Reserver
    from .settlement import Settlement
    from .subscription import Subscription

__all__ = [
    "SCHEMES",
    "Client",
    "Consumers",
    "Credit",
    "EventLoop",
    "PublishBuffer",
    "PullLoop",
    "Receiver",
    "Reserver",
    "Settlement",
    "Subscription",
    "enter",
    "entry_of",
    "forward",
    "register",
    "withdraw",
]

# What only some connections need: those that consume, that publish in batches, beside a spool.
__getattr__ = names_of(
    __name__,
    {
        ".client": "Client",
        ".consumers": "Consumers",
        ".credit": "Credit",
        ".eventloop": "EventLoop",
        ".forwarding": "forward",
        ".jobs": "enter entry_of withdraw",
        ".publish_buffer": "PublishBuffer",
        ".pull": "PullLoop",
        ".receiver": "Receiver",
        ".reserver": "Reserver",
        ".settlement": "Settlement",
        ".subscription": "Subscription",
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
    """Enter schemes and failover strategies into Kombu's tables; twice is harmless."""
    from kombu.connection import failover_strategies  # noqa: PLC0415 - see plugin.py
    from kombu.transport import TRANSPORT_ALIASES  # noqa: PLC0415

    TRANSPORT_ALIASES.update(SCHEMES, **{"reliq-sqlite": refuse_sqlite})
    failover_strategies.update(STRATEGIES)
