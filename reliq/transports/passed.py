"""The connection that Kombu passes counts, not the transport it asks.

Kombu evaluates ``self.transport.verb(self.connection)`` from left to right: it looks its
transport up first, and the connection may fail over to another URL, with a transport of
its own, right after that.
"""

from __future__ import annotations

from typing import Any


def serving(own: Any, connection: Any) -> Any:
    """Return the transport of *connection*: *own* unless Kombu has gone on to another URL.

    None stands for *own* too. The connection may be of another library's transport.
    """
    if connection is own or connection is None:
        return own
    client = getattr(connection, "client", None)
    return own if client is None else client.transport
