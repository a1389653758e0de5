"""``reliq://``, ``reliqs://`` and ``reliq-unix://``: nothing but choosing the engine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..engines.redis.connect import Address
from ..engines.redis.store import RedisStore
from ..engines.redis.tls import tls_options
from ..errors import ConfigurationError
from .base import Transport as BaseTransport
from .homing import unstick

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..engines.redis.connect import Broker
    from ..session import StoreFactory


class Transport(BaseTransport):
    """Redis over TCP."""

    default_port = 6379
    tls = False
    unix = False

    def __init__(self, client: Any, **kwargs: Any) -> None:
        unstick(client)
        self.address: Broker = self._address(client)
        super().__init__(client, **kwargs)

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """What Kombu fills in where the URL says nothing."""
        return {"hostname": "localhost", "port": self.default_port}

    def _address(self, client: Any) -> Broker:
        username, password = login(client)
        if self.unix:
            path = "/" + str(client.virtual_host or "").lstrip("/")
            return Address(path=path, username=username, password=password)
        return Address(
            host=client.hostname or "localhost",
            port=int(client.port or self.default_port),
            db=_database(client.virtual_host),
            username=username,
            password=password,
            tls=tls_options(client.ssl) if self.tls or client.ssl else None,
        )

    def session_key(self) -> Hashable:
        """Return what makes two connections the same consumer of the same broker."""
        return (self.address.identity, self.options)

    def store_factory(self) -> StoreFactory:
        """Return what opens a store over two new connections."""
        return partial(RedisStore, self.address, self.options)


class TLSTransport(Transport):
    """Redis over TLS."""

    tls = True


class UnixTransport(Transport):
    """Redis over a Unix socket."""

    unix = True


def login(client: Any) -> tuple[str | None, str | None]:
    """Return user and password, from the URL or the options; a callable one is called."""
    given = client.transport_options or {}
    password = client.password or given.get("password")
    if callable(password):
        password = password()
    return client.userid or given.get("username"), password


def _database(virtual_host: Any) -> int:
    text = str(virtual_host or "0").strip("/") or "0"
    if not text.isdigit():
        raise ConfigurationError(f"expected the database in the URL to be a number, got: {text!r}")
    return int(text)
