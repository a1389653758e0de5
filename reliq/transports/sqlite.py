"""``reliq-sqlite://``: a file as the broker. Nothing but choosing the engine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..engines.sqlite.location import location
from ..engines.sqlite.store import SqliteStore
from ..errors import ConfigurationError
from ..integrations.eventlet import has_patched
from .base import Transport as BaseTransport
from .broker_urls import reset_inherited_url

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..consumer.session import StoreFactory


class Transport(BaseTransport):
    """One SQLite file: ``reliq-sqlite:////absolute/path.db``, ``reliq-sqlite:///relative.db``."""

    default_port = None

    def __init__(self, client: Any, **kwargs: Any) -> None:
        reset_inherited_url(client)
        self.location = location(client.virtual_host)
        if has_patched():
            raise ConfigurationError(
                f"{self.location} cannot be used with eventlet, whose green threads "
                "would all be blocked while one waits for the file; use the pool prefork, "
                "threads, solo or gevent, or a Redis (reliq://)"
            )
        super().__init__(client, **kwargs)

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """What Kombu fills in where the URL says nothing: there is no host."""
        return {}

    def session_key(self) -> Hashable:
        """Return what makes two connections the same consumer of the same broker."""
        return (self.location, self.options)

    def store_factory(self) -> StoreFactory:
        """Return what opens a store of the file."""
        return partial(SqliteStore, self.location, self.options)
