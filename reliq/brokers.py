"""From a URL to a store, for those who need no Kombu: the inspector and the CLI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from .engines.redis.connect import Address, database, split_url
from .engines.redis.sentinel import SCHEME as SENTINEL
from .engines.redis.sentinel import sentinel_address
from .engines.redis.store import RedisStore
from .engines.redis.tls import tls_options
from .engines.sqlite.location import SCHEME as SQLITE
from .engines.sqlite.location import location
from .engines.sqlite.store import SqliteStore
from .errors import ConfigurationError
from .options import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .engines.redis.connect import Broker
    from .store import Store

_SCHEMES = ("reliq", "reliqs", "reliq-unix", SENTINEL, SQLITE)


def address(url: str, username: str | None = None, password: str | None = None) -> Address:
    """Return the address in *url*; raises ConfigurationError, without showing a password."""
    parts = split_url(url)
    if parts.scheme not in _SCHEMES:
        raise ConfigurationError(
            f"expected a URL of {', '.join(f'{name}://' for name in _SCHEMES)}, "
            f"got: {parts.scheme or 'no scheme'}"
        )
    username = unquote(parts.username or "") or username
    password = unquote(parts.password or "") or password
    if parts.scheme == "reliq-unix":
        return Address(path=unquote(parts.path), username=username, password=password)
    db = database(parts.path.strip("/") or "0")
    tls = tls_options(dict(parse_qsl(parts.query))) if parts.scheme == "reliqs" else None
    try:
        port = parts.port or 6379
    except ValueError as exc:
        raise ConfigurationError(
            "expected one host and a numeric port in the URL; several brokers are separated by ';'"
        ) from exc
    return Address(
        host=unquote(parts.hostname or "localhost"),
        port=port,
        db=db,
        username=username,
        password=password,
        tls=tls,
    )


def connect(
    url: str, transport_options: Mapping[str, Any] | None, name: str, *, create: bool = True
) -> Store:
    """Return what :func:`store_of` does, connected; raises BrokerUnavailable too."""
    store = store_of(url, transport_options, name, create=create)
    store.connect()
    return store


def store_of(
    url: str, transport_options: Mapping[str, Any] | None, name: str, *, create: bool = True
) -> Store:
    """Return a store for *url* that connects when it is used; raises ConfigurationError.

    *url* may be several of ``reliq-sentinel://``, separated by semicolons. Without
    *create*, a file that is not there is an error when it is used: who only looks at a
    broker makes none by a misspelt path.
    """
    options = parse(transport_options)
    if url.startswith(f"{SQLITE}:"):
        return SqliteStore(location(unquote(split_url(url).path[1:])), options, name, create)
    login = (options.username, options.password)
    broker: Broker
    if url.startswith(f"{SENTINEL}://"):
        broker = sentinel_address(url.split(";"), options, *login)
    else:
        broker = address(url, *login)
    return RedisStore(broker, options, name)
