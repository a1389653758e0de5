"""From a URL to a store, for those who need no Kombu: the inspector and the CLI."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..embedded.folder import SCHEME as EMBEDDED
from ..embedded.folder import folder_of
from ..errors import refuse_sqlite
from ..options import parse
from .redis.cluster.address import SCHEME as CLUSTER
from .redis.cluster.address import cluster_address
from .redis.cluster.store import ClusterStore
from .redis.embedded import EmbeddedAddress, EmbeddedStore
from .redis.sentinel import SCHEME as SENTINEL
from .redis.sentinel import sentinel_address
from .redis.store import RedisStore
from .redis.urls import address_of, read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..store.protocol import Store
    from .redis.connect import Address, Broker

_SCHEMES = ("reliq", "reliqs", "reliq-unix", SENTINEL, CLUSTER, EMBEDDED)


def address(url: str, username: str | None = None, password: str | None = None) -> Address:
    """Return the address in *url*; raises ConfigurationError, without showing a password."""
    said = read(url, _SCHEMES)
    said = replace(said, username=said.username or username, password=said.password or password)
    return address_of(said, show="@" not in url)


def connect(
    url: str,
    transport_options: Mapping[str, Any] | None,
    name: str,
    *,
    create: bool = True,
    lost_node_s: float = inf,
) -> Store:
    """Return what :func:`store_of` does, connected; raises BrokerUnavailable too."""
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
    """Return a store for *url* that connects when it is used; raises ConfigurationError.

    *url* may be several of ``reliq-sentinel://``, or of ``reliq-cluster://``, separated by
    semicolons. Without *create*, an embedded broker that does not run is an error when it is
    used. lost_node_s: so long whoever asks waits for a node of a cluster that cannot be
    reached, and that no replica will replace; ``socket_timeout`` at most.
    """
    options = parse(transport_options)
    if url.startswith("reliq-sqlite:"):
        refuse_sqlite()
    if url.startswith(f"{EMBEDDED}:"):
        path = unquote(re.split("[?#]", url)[0].partition("://")[2].partition("/")[2])
        return EmbeddedStore(EmbeddedAddress(folder_of(path), create), options, name)
    login = (options.username, options.password)
    if url.startswith(f"{CLUSTER}://"):
        cluster = ClusterStore(cluster_address(url.split(";"), options, *login), options, name)
        cluster.give_up_lost_slots(lost_node_s)
        return cluster
    broker: Broker
    if url.startswith(f"{SENTINEL}://"):
        broker = sentinel_address(url.split(";"), options, *login)
    else:
        broker = address(url, *login)
    return RedisStore(broker, options, name)
