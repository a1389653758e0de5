"""The transports of the Redis schemes: they only choose the engine and its address."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kombu.utils.url import as_url

from ..engines import redis as engine
from ..engines.redis.urls import Said, address_of, our_scheme, read, scheme_of
from ..errors import ConfigurationError
from ..options import parse
from .base import Transport as BaseTransport
from .broker_urls import reset_inherited_url
from .channel import Channel

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..consumer.sessions import StoreFactory
    from ..engines.redis.connect import Address, Broker


class Transport(BaseTransport):
    """Redis over TCP."""

    Channel = Channel
    default_port = 6379
    scheme = "reliq"
    store = "RedisStore"
    """The engine's class, imported at its first use."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        reset_inherited_url(client)
        self.address: Broker = self._address(client)
        super().__init__(client, **kwargs)

    def _address(self, client: Any) -> Broker:
        username, password = login(client)
        beside = our_scheme(scheme_of(client.hostname or ""))
        if beside is not None:  # reliq+socket:///run/redis.sock
            raise ConfigurationError(
                f"expected a URL of {beside}://, got {self.scheme}+{scheme_of(client.hostname)}://"
            )
        path = "/" + str(client.virtual_host or "").lstrip("/")
        said = Said(
            scheme=self.scheme,
            host=client.hostname,
            port=int(client.port or 0),
            path=path,
            username=username,
            password=password,
            tls=client.ssl,
        )
        return address_of(said, default_port=self.default_port)

    def _all_urls(self, client: Any) -> list[str]:
        """Return the URLs that name parts of one broker.

        Kombu treats a list of URLs as failover alternatives, and passes one at a time.
        """
        urls = [url for url in client.alt or () if str(url).startswith(f"{self.scheme}://")]
        if not urls:
            host, port = client.hostname or "localhost", client.port or self.default_port
            urls = [as_url(self.scheme, host, port, path=str(client.virtual_host or "").strip("/"))]
        return urls

    def session_key(self) -> Hashable:
        """Return the identity of broker and consumer; connections with equal keys share both."""
        return (self.address.identity, self.options)

    def store_factory(self) -> StoreFactory:
        """Return the factory for stores with their own connections."""
        return partial(getattr(engine, self.store), self.address, self.options)


class TLSTransport(Transport):
    """Redis over TLS."""

    scheme = "reliqs"


class UnixTransport(Transport):
    """Redis over a Unix socket. Kombu rejects query parameters of its URL, so it is kept whole.

    The credentials are moved from the URL to attributes that Kombu masks.
    """

    scheme = "reliq-unix"
    can_parse_url = True
    default_port = 0
    address: Any

    def _address(self, client: Any) -> Broker:
        url = str(client.hostname or "")
        if scheme_of(url) != self.scheme:
            return super()._address(client)
        said = address_of(read(url, (self.scheme,)))
        client.userid = said.username or client.userid
        client.password = said.password or client.password
        client.hostname = _uri(said)
        username, password = login(client)
        return replace(said, username=username, password=password)

    def as_uri(self, _: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL in Kombu's format."""
        login = {"user": self.address.username, "password": self.address.password}
        return _uri(self.address, **login, sanitize=not include_password, mask=mask)


class EmbeddedTransport(Transport):
    """A server in a folder: ``reliq-embedded:////absolute/folder`` or ``///relative``."""

    default_port = None  # type: ignore[assignment]
    store = "EmbeddedStore"

    def _address(self, client: Any) -> Broker:
        return engine.EmbeddedAddress(engine.folder_of(client.virtual_host))


class SentinelTransport(Transport):
    """``reliq-sentinel://``: each new connection goes to the current master.

    The consumer stays the same after a failover.
    """

    scheme = "reliq-sentinel"
    default_port = 26379

    def _address(self, client: Any) -> Broker:
        options, urls = parse(client.transport_options), self._all_urls(client)
        return engine.sentinel_address(urls, options, *login(client), client.ssl)


class ClusterTransport(Transport):
    """``reliq-cluster://``: each queue is at the node with its slot."""

    scheme = "reliq-cluster"
    store = "ClusterStore"
    address: Any

    def _address(self, client: Any) -> Any:
        options, urls = parse(client.transport_options), self._all_urls(client)
        return engine.cluster_address(urls, options, *login(client), client.ssl)


def _uri(address: Address, **login: Any) -> str:
    url: str = as_url("reliq-unix", path=quote(str(address.path).lstrip("/")), **login)
    return f"{url}?virtual_host={address.db}" if address.db else url


def login(client: Any) -> tuple[str | None, str | None]:
    """Return user and password, from the URL or the options; calls a callable password."""
    given = client.transport_options or {}
    password = client.password or given.get("password")
    if callable(password):
        password = password()
    return client.userid or given.get("username"), password
