"""Unroutable messages: nothing is bound for them, and AMQP drops them. Here it is said."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..errors import Unroutable

if TYPE_CHECKING:
    from ..options import Options
    from .link import Link

logger = logging.getLogger("reliq")

_MOST_REMEMBERED = 1024
# Broker, exchange and routing key: over whichever connection of this process.
_said: set[tuple[str, str, str]] = set()


class UnroutableMessages:
    """Says it, of one transport. Of the application's threads: one step each."""

    def __init__(self, link: Link, options: Options) -> None:
        self._link = link
        self._options = options

    def report(self, exchange: str, routing_key: str) -> None:
        """Say once that nothing is bound for such messages, or raise Unroutable if asked to."""
        if exchange:
            what = f"no queue is bound to exchange {exchange!r} for routing key {routing_key!r}"
        else:
            what = f"there is no queue {routing_key!r}, and a reply or the like makes none"
        if self._options.unroutable == "error":
            raise Unroutable(f"{what}; the message was not stored")
        store, routes = self._link.store, self._link.routes
        late_reply = exchange.startswith("reply.") and exchange.endswith(".pidbox")
        if late_reply or (exchange and routes.cached(exchange).type == "fanout"):
            return  # nothing unusual: nobody waits for that reply any more, or listens
        if (place := (store.broker, exchange, routing_key)) not in _said:
            if len(_said) > _MOST_REMEMBERED:
                _said.clear()
            _said.add(place)
            logger.warning(
                "%s: such messages are "
                'dropped, as AMQP does (said once; unroutable="error" raises)',
                what,
            )
