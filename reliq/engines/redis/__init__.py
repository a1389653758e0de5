"""The engine of Redis and Valkey: one server, one behind Sentinels, in a folder, or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import names_of

if TYPE_CHECKING:
    from ...embedded.folder import folder_of
    from .cluster.address import cluster_address
    from .cluster.store import ClusterStore
    from .confirm import Confirmer
    from .embedded import EmbeddedAddress, EmbeddedStore
    from .sentinel import sentinel_address
    from .store import RedisStore
    from .tls import tls_options

__all__ = [
    "ClusterStore",
    "Confirmer",
    "EmbeddedAddress",
    "EmbeddedStore",
    "RedisStore",
    "cluster_address",
    "folder_of",
    "sentinel_address",
    "tls_options",
]

# A process has one kind of broker, as a rule.
__getattr__ = names_of(
    __name__,
    {
        "...embedded.folder": "folder_of",
        ".cluster.address": "cluster_address",
        ".cluster.store": "ClusterStore",
        ".confirm": "Confirmer",
        ".embedded": "EmbeddedAddress EmbeddedStore",
        ".sentinel": "sentinel_address",
        ".store": "RedisStore",
        ".tls": "tls_options",
    },
)
