"""Flower's Broker tab, and what its API says of queues.

Flower asks a class of its own for each kind of broker, chosen by the scheme of the URL, and
has no way to name another one. So its choice is extended, in a process that has imported
Flower and makes a connection to one of our brokers: Flower makes one before it chooses. In
any other process, and for any other scheme, nothing is changed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu import Connection

from .connections import current_connection, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SCHEME = "reliq"


def show_queues() -> None:
    """Have Flower show the queues of our brokers, where this process runs Flower; once."""
    theirs = sys.modules.get("flower.utils.broker")
    factory = getattr(theirs, "Broker", None)
    if factory is None or hasattr(factory, "reliq_extends"):
        return
    factory.reliq_extends = factory.__new__
    factory.__new__ = staticmethod(partial(_choose, factory.__new__))


def _choose(otherwise: Callable[..., Any], cls: type, url: str, *args: Any, **given: Any) -> Any:
    """Return what tells of the queues at *url*: ours, or what Flower has *otherwise*."""
    scheme = url.partition("://")[0]
    if scheme != f"{_SCHEME}s" and scheme.partition("-")[0] != _SCHEME:
        return otherwise(cls, url, *args, **given)
    connection = current_connection()
    # Its own settings say more than the URL that Flower has of it: several brokers, TLS.
    if connection is None or connection.as_uri(include_password=True) != url:
        options, tls = given.get("broker_options"), given.get("broker_use_ssl")
        connection = Connection(url, transport_options=options, ssl=tls)
    return Queues(connection)


class Queues:
    """The queues of one of our brokers, as Flower asks for them."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return what there is in each of these queues, without those that are not there.

        Raises ReliqError: Flower then shows none, or answers 500, and logs it.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._look, list(names))

    def _look(self, names: list[str]) -> list[dict[str, Any]]:
        store = open_store(self._connection, f"flower:{socket.gethostname()}:{os.getpid()}")
        try:
            # Under the names that Flower's page has from RabbitMQ, and our own.
            return [
                {
                    "name": status.name,
                    "messages": status.ready + status.delayed + status.unacked,
                    "messages_ready": status.ready,
                    "messages_unacknowledged": status.unacked,
                    "messages_delayed": status.delayed,
                    "dead_letters": status.dead,
                    "consumers": status.consumers,
                }
                for status in (measure.status for measure in store.reads.measure(names))
            ]
        finally:
            store.close()
