"""Connections to the broker of a Celery application, for whoever asks it for more than messages."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..store.protocol import Store


def current_app() -> Any | None:
    """Return the current application; None where this process has not imported Celery."""
    celery = sys.modules.get("celery")
    return None if celery is None else celery.current_app


def current_connection() -> Any | None:
    """Return a Kombu connection, not opened, to the broker of the current application.

    None where the application has not imported Celery.
    """
    app = current_app()
    return None if app is None else app.connection_for_write()


def store_factory(transport: Any) -> Callable[[str], Store]:
    """Return what opens a store as *transport* does; raises ConfigurationError."""
    if not hasattr(transport, "store_factory"):
        raise ConfigurationError(
            f"expected a reliq broker, got one of {type(transport).__module__}: give its url"
        )
    factory: Callable[[str], Store] = transport.store_factory()
    return factory


def open_store(connection: Any, name: str) -> Store:
    """Return a store of the first broker of a Kombu *connection* that answers, connected.

    Raises BrokerUnavailable where none does, ConfigurationError where one is not of reliq.
    """
    for last in [False] * (len(connection.alt) - 1) + [True]:
        transport = connection.transport
        factory = store_factory(transport)
        transport.close_connection(None)
        store = factory(name)
        try:
            store.connect()
        except BrokerUnavailable:
            if last:
                raise
            connection.maybe_switch_next()
        else:
            return store
    raise AssertionError
