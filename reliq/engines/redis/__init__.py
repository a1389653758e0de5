"""The engine of Redis and Valkey: one server, one behind Sentinels, in a folder, or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import names_of

if TYPE_CHECKING:
    from ...embedded.folder import folder_of
    from .batches import RedisBatches
    from .cluster.address import cluster_address
    from .cluster.reads import ClusterBatches, ClusterReads
    from .cluster.store import ClusterStore
    from .confirm import Confirmer
    from .embedded import EmbeddedAddress, EmbeddedStore
    from .reads import EmbeddedReads, RedisReads
    from .sentinel import sentinel_address
    from .store import RedisStore
    from .tls import tls_options

__all__ = [
    "ClusterBatches",
    "ClusterReads",
    "ClusterStore",
    "Confirmer",
    "EmbeddedAddress",
    "EmbeddedReads",
    "EmbeddedStore",
    "RedisBatches",
    "RedisReads",
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
        ".batches": "RedisBatches",
        ".cluster.address": "cluster_address",
        ".cluster.reads": "ClusterBatches ClusterReads",
        ".cluster.store": "ClusterStore",
        ".confirm": "Confirmer",
        ".embedded": "EmbeddedAddress EmbeddedStore",
        ".reads": "EmbeddedReads RedisReads",
        ".sentinel": "sentinel_address",
        ".store": "RedisStore",
        ".tls": "tls_options",
    },
)
