"""Create a store from a URL without Kombu, for the inspector and the CLI."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from .. import store as engine
from ..client.urls import address_of, read
from ..errors import refuse_sqlite
from ..options import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..client.connect import Address, Broker
    from ..values.protocol import Store

SENTINEL, CLUSTER, EMBEDDED = "reliq-sentinel", "reliq-cluster", "reliq-embedded"
_SCHEMES = ("reliq", "reliqs", "reliq-unix", SENTINEL, CLUSTER, EMBEDDED)


def address(url: str, username: str | None = None, password: Any = None) -> Address:
    """Return the address in *url*. Raises ConfigurationError, without showing a password."""
    own = read(url, _SCHEMES)
    own = replace(own, username=own.username or username, password=own.password or password)
    return address_of(own, show="@" not in url)


def require_url(url: str) -> None:
    """Raise ConfigurationError unless :func:`store_of` can read *url*."""
    if url.startswith("reliq-sqlite:"):
        refuse_sqlite()
    if url.startswith((f"{SENTINEL}://", f"{CLUSTER}://")):
        for part in url.split(";"):
            read(part, _SCHEMES)
    elif not url.startswith(f"{EMBEDDED}:"):
        address(url)


def connect(
    url: str,
    transport_options: Mapping[str, Any] | None,
    name: str,
    *,
    create: bool = True,
    lost_node_s: float = inf,
) -> Store:
    """Return a connected store (:func:`store_of`). Also raises BrokerUnavailable."""
    store = store_of(url, transport_options, name, create=create, lost_node_s=lost_node_s)
    store.connect()
    return store


def store_of(
    url: str,
    transport_options: Mapping[str, Any] | None,
    name: str,
    *,
    create: bool = True,
    lost_node_s: float = inf,
) -> Store:
    """Return a store for *url* that connects at its first use. Raises ConfigurationError.

    *url* may be a list of ``reliq-sentinel://`` or ``reliq-cluster://`` URLs, separated by
    semicolons. Without *create*, using an embedded broker that does not run is an error.
    *lost_node_s* limits the wait for an unreachable cluster node that no replica replaces;
    ``socket_timeout`` is the maximum.
    """
    options = parse(transport_options)
    if url.startswith("reliq-sqlite:"):
        refuse_sqlite()
    if url.startswith(f"{EMBEDDED}:"):
        path = re.split("[?#]", url)[0].partition("://")[2].partition("/")[2]
        folder = engine.folder_of(unquote(path, errors="surrogateescape"))
        return engine.EmbeddedStore(engine.EmbeddedAddress(folder, create), options, name)
    login = (options.username, options.credential_provider or options.password)
    if url.startswith(f"{CLUSTER}://"):
        cluster = engine.ClusterStore(
            engine.cluster_address(url.split(";"), options, *login), options, name
        )
        cluster.give_up_lost_slots(lost_node_s)
        return cluster
    broker: Broker
    if url.startswith(f"{SENTINEL}://"):
        broker = engine.sentinel_address(url.split(";"), options, *login)
    else:
        broker = address(url, *login)
    return engine.RedisStore(broker, options, name)
