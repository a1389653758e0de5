"""Queues of reliq brokers for Flower's Broker tab and API.

Flower selects a class for each kind of broker by the scheme of the URL, and has no way to add
another. This module extends that selection, in a process that has imported Flower and connects to
a reliq broker: Flower connects before it selects. Other processes and schemes are not affected.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu import Connection

from .connections import client_name, current_connection, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SCHEME = "reliq"


def show_queues() -> None:
    """Make Flower show the queues of reliq brokers, if this process runs Flower; once."""
    theirs = sys.modules.get("flower.utils.broker")
    factory = getattr(theirs, "Broker", None)
    if factory is None or hasattr(factory, "reliq_extends"):
        return
    factory.reliq_extends = factory.__new__
    factory.__new__ = staticmethod(partial(_choose, factory.__new__))


def _choose(otherwise: Callable[..., Any], cls: type, url: str, *args: Any, **given: Any) -> Any:
    """Return the queue reader for *url*: this module's, or Flower's (*otherwise*)."""
    scheme = url.partition("://")[0]
    if scheme != f"{_SCHEME}s" and scheme.partition("-")[0] != _SCHEME:
        return otherwise(cls, url, *args, **given)
    connection = current_connection()
    # Its settings are more complete than Flower's copy of the URL: several brokers, TLS.
    if connection is None or connection.as_uri(include_password=True) != url:
        options, tls = given.get("broker_options"), given.get("broker_use_ssl")
        connection = Connection(url, transport_options=options, ssl=tls)
    return Queues(connection)


class Queues:
    """The queues of a reliq broker, with the interface that Flower uses."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return the counts of these queues, without those that do not exist.

        Raises ReliqError: Flower then shows no queues, or responds with 500, and logs it.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._read, list(names))

    def _read(self, names: list[str]) -> list[dict[str, Any]]:
        store = open_store(self._connection, client_name("flower"))
        try:
            # Flower's page uses RabbitMQ's names; the others are reliq's own.
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
