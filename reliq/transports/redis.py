"""The transports of the Redis schemes: they only choose the engine and its address."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kombu.utils.url import as_url

from .. import store as engine
from ..client.urls import Parsed, address_of, our_scheme, read, scheme_of
from ..consumer.sessions import Endpoint
from ..errors import ConfigurationError
from .base import Transport as BaseTransport
from .base import options_of
from .broker_urls import reset_inherited_url
from .channel import Channel

if TYPE_CHECKING:
    from ..client.connect import Address, Broker
    from ..options import Options


class Transport(BaseTransport):
    """Redis over TCP."""

    Channel = Channel
    default_port = 6379
    scheme = "reliq"
    store = "RedisStore"
    """The engine's class, imported at its first use."""

    @classmethod
    def endpoint_of(cls, client: Any) -> Endpoint:
        """Return the broker that a Kombu connection uses now; creates no transport."""
        reset_inherited_url(client)
        options = options_of(client)
        address = cls._address(client, options)
        return Endpoint(
            key=(address.identity, options),
            options=options,
            open_store=partial(getattr(engine, cls.store), address, options),
            address=address,
        )

    @classmethod
    def _address(cls, client: Any, options: Options) -> Broker:
        username, password = login(client, options)
        beside = our_scheme(scheme_of(client.hostname or ""))
        if beside is not None:  # reliq+socket:///run/redis.sock
            raise ConfigurationError(
                f"expected a URL of {beside}://, got {cls.scheme}+{scheme_of(client.hostname)}://"
            )
        path = "/" + str(client.virtual_host or "").lstrip("/")
        parsed = Parsed(
            scheme=cls.scheme,
            host=client.hostname,
            port=int(client.port or 0),
            path=path,
            username=username,
            password=password,
            tls=client.ssl,
        )
        return address_of(parsed, default_port=cls.default_port)

    @classmethod
    def _all_urls(cls, client: Any) -> list[str]:
        """Return the URLs that name parts of one broker.

        Kombu treats a list of URLs as failover alternatives, and passes one at a time.
        """
        urls = [url for url in client.alt or () if str(url).startswith(f"{cls.scheme}://")]
        if not urls:
            host, port = client.hostname or "localhost", client.port or cls.default_port
            urls = [as_url(cls.scheme, host, port, path=str(client.virtual_host or "").strip("/"))]
        return urls


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

    @classmethod
    def _address(cls, client: Any, options: Options) -> Broker:
        url = str(client.hostname or "")
        if scheme_of(url) != cls.scheme:
            return super()._address(client, options)
        address = address_of(read(url, (cls.scheme,)))
        client.userid = address.username or client.userid
        client.password = address.password or client.password
        client.hostname = _uri(address)
        username, password = login(client, options)
        return replace(address, username=username, password=password)

    def as_uri(self, _: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL in Kombu's format."""
        login = {"user": self.address.username, "password": str(self.address.password or "")}
        return _uri(self.address, **login, sanitize=not include_password, mask=mask)


class EmbeddedTransport(Transport):
    """A server in a folder: ``reliq-embedded:////absolute/folder`` or ``///relative``."""

    default_port = None  # type: ignore[assignment]
    store = "EmbeddedStore"

    @classmethod
    def _address(cls, client: Any, _: Options) -> Broker:
        return engine.EmbeddedAddress(engine.folder_of(client.virtual_host))


class SentinelTransport(Transport):
    """``reliq-sentinel://``: each new connection goes to the current master.

    The consumer stays the same after a failover.
    """

    scheme = "reliq-sentinel"
    default_port = 26379

    @classmethod
    def _address(cls, client: Any, options: Options) -> Broker:
        urls = cls._all_urls(client)
        return engine.sentinel_address(urls, options, *login(client, options), client.ssl)


class ClusterTransport(Transport):
    """``reliq-cluster://``: each queue is at the node with its slot."""

    scheme = "reliq-cluster"
    store = "ClusterStore"

    @classmethod
    def _address(cls, client: Any, options: Options) -> Any:
        urls = cls._all_urls(client)
        return engine.cluster_address(urls, options, *login(client, options), client.ssl)


def _uri(address: Address, **login: Any) -> str:
    url: str = as_url("reliq-unix", path=quote(str(address.path).lstrip("/")), **login)
    return f"{url}?virtual_host={address.db}" if address.db else url


def login(client: Any, options: Options) -> tuple[str | None, Any]:
    """Return user and password, from the URL or the options; calls a callable password."""
    given = client.transport_options or {}
    password = options.credential_provider or client.password or given.get("password")
    if callable(password):
        password = password()
    return client.userid or given.get("username"), password
