"""``reliq-cluster://``: a Redis Cluster. Nothing but choosing the engine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.utils.url import as_url

from ..engines.redis.cluster.address import SCHEME, ClusterAddress, cluster_address
from ..engines.redis.cluster.store import ClusterStore
from ..options import parse
from .base import Transport as BaseTransport
from .broker_urls import reset_inherited_url
from .redis import login

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..consumer.sessions import StoreFactory


class Transport(BaseTransport):
    """Redis Cluster: each queue is at the node that has its slot.

    Kombu takes a list of URLs for failover alternatives and hands one at a time; all of
    them name the same broker here, so each connection knows every node that is named.
    """

    default_port = 6379

    def __init__(self, client: Any, **kwargs: Any) -> None:
        reset_inherited_url(client)
        self.address = self._address(client)
        super().__init__(client, **kwargs)

    def _address(self, client: Any) -> ClusterAddress:
        urls = [url for url in client.alt or () if str(url).startswith(f"{SCHEME}://")]
        if not urls:
            host, port = client.hostname or "localhost", client.port or self.default_port
            urls = [as_url(SCHEME, host, port, path=str(client.virtual_host or "").strip("/"))]
        return cluster_address(urls, parse(client.transport_options), *login(client), client.ssl)

    def session_key(self) -> Hashable:
        """Return what makes two connections the same consumer of the same broker."""
        return (self.address.identity, self.options)

    def store_factory(self) -> StoreFactory:
        """Return what opens a store over connections of its own."""
        return partial(ClusterStore, self.address, self.options)
