"""Connections to the broker of a Celery application, for uses other than messages."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any

from ..errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from ..values.protocol import Store


def client_name(kind: str) -> str:
    """Return the name of a connection of this process, for the broker's list of its clients."""
    return f"{kind}:{socket.gethostname().split('.')[0]}:{os.getpid()}"


def current_app() -> Any | None:
    """Return the current application; None if this process has not imported Celery."""
    celery = sys.modules.get("celery")
    return None if celery is None else celery.current_app


def current_connection() -> Any | None:
    """Return an unopened connection to the current application's broker; None without Celery."""
    app = current_app()
    return None if app is None else app.connection_for_write()


def require_reliq(transport: Any) -> None:
    """Raise ConfigurationError unless *transport*, or its class, is one of reliq."""
    if not hasattr(transport, "endpoint_of"):
        raise ConfigurationError(
            f"expected a reliq broker, got one of {transport.__module__}: give its url"
        )


def _store_of(connection: Any, name: str) -> Store:
    transport_cls = connection.get_transport_cls()
    require_reliq(transport_cls)
    store: Store = transport_cls.endpoint_of(connection).open_store(name)
    return store


def open_store(connection: Any, name: str, broker: str = "") -> Store:
    """Return a connected store of the first broker of a Kombu *connection* that responds.

    Uses the *broker* of that name if the connection lists it. Raises BrokerUnavailable if no
    broker, or not that one, responds; ConfigurationError if a broker is not of reliq.
    """
    for url in connection.alt if broker and len(connection.alt) > 1 else ():
        connection.switch(url)
        store = _store_of(connection, name)
        if store.broker == broker:
            store.connect()
            return store
    for last in [False] * (len(connection.alt) - 1) + [True]:
        store = _store_of(connection, name)
        try:
            store.connect()
        except BrokerUnavailable:
            if last:
                raise
            connection.maybe_switch_next()
        else:
            return store
    raise AssertionError
