"""``reliq://``, ``reliqs://`` and ``reliq-unix://``: nothing but choosing the engine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..engines.redis.store import RedisStore
from ..engines.redis.urls import Said, address_of
from .base import Transport as BaseTransport
from .broker_urls import reset_inherited_url

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..consumer.session import StoreFactory
    from ..engines.redis.connect import Broker


class Transport(BaseTransport):
    """Redis over TCP."""

    default_port = 6379
    scheme = "reliq"

    def __init__(self, client: Any, **kwargs: Any) -> None:
        reset_inherited_url(client)
        self.address: Broker = self._address(client)
        super().__init__(client, **kwargs)

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """What Kombu fills in where the URL says nothing."""
        return {"hostname": "localhost", "port": self.default_port}

    def _address(self, client: Any) -> Broker:
        username, password = login(client)
        path = "/" + str(client.virtual_host or "").lstrip("/")
        said = Said(
            self.scheme,
            client.hostname,
            int(client.port or 0),
            path,
            username,
            password,
            client.ssl,
        )
        return address_of(said, default_port=self.default_port)

    def session_key(self) -> Hashable:
        """Return what makes two connections the same consumer of the same broker."""
        return (self.address.identity, self.options)

    def store_factory(self) -> StoreFactory:
        """Return what opens a store over two new connections."""
        return partial(RedisStore, self.address, self.options)


class TLSTransport(Transport):
    """Redis over TLS."""

    scheme = "reliqs"


class UnixTransport(Transport):
    """Redis over a Unix socket."""

    scheme = "reliq-unix"


def login(client: Any) -> tuple[str | None, str | None]:
    """Return user and password, from the URL or the options; a callable one is called."""
    given = client.transport_options or {}
    password = client.password or given.get("password")
    if callable(password):
        password = password()
    return client.userid or given.get("username"), password
