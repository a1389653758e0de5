"""Losses: messages that nobody waits for, and that may be lost; told of once for each outage.

A worker sends some events each second, all alike while its broker, or one of its nodes, is away.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..store.limits import MOST_REMEMBERED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..errors import ReliqError
    from .link import Link

logger = logging.getLogger("reliq")


class Losses:
    """Where messages of one transport may have been lost, and none has arrived since.

    Of whichever thread reads the replies: two at the same time may tell of one loss twice.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._told: set[str] = set()

    def lost(self, queues: Iterable[str], error: ReliqError) -> None:
        """Note that a message may be lost that was on its way to *queues*: to those that are away.

        Where none is, it may be any; but no other than before, if that was just told of one.
        """
        names = set(queues)
        store = self._link.store
        away = {queue for queue in names if store.is_away(queue)}
        if away or self._told.isdisjoint(map(repr, names)):
            self._tell({repr(queue) for queue in away or names}, error)

    def unrouted(self, exchange: str, error: ReliqError) -> None:
        """Note that a message is lost since nobody could say where *exchange* leads to."""
        self._tell({_queues_of(exchange)}, error)

    def _tell(self, places: set[str], error: ReliqError) -> None:
        if places <= self._told:
            return
        if len(self._told) > MOST_REMEMBERED:
            self._told.clear()
        self._told |= places
        logger.warning(
            "messages that were not to be confirmed may be lost on their way to %s: %s. This is "
            "not said again until one has arrived",
            ", ".join(sorted(places)),
            error,
        )

    def arrived(self, queues: Iterable[str]) -> None:
        """Note that a message was stored in *queues*, or refused by them."""
        if self._told:
            self._end({repr(queue) for queue in queues})

    def routed(self, exchange: str) -> None:
        """Note that it is known where *exchange* leads to."""
        if self._told:
            self._end({_queues_of(exchange)})

    def _end(self, places: set[str]) -> None:
        back = self._told & places
        if back:
            self._told -= back
            logger.info(
                "messages that are not to be confirmed arrive again: %s", ", ".join(sorted(back))
            )


def _queues_of(exchange: str) -> str:
    return f"the queues of exchange {exchange!r}"
