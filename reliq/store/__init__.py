"""The store at Redis and Valkey: a server, a Sentinel deployment, embedded, or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from ..client.cluster.slots import cluster_address as cluster_address
    from ..client.sentinel import sentinel_address as sentinel_address
    from ..embedded.folder import folder_of as folder_of
    from .batches import RedisBatches as RedisBatches
    from .cluster.reads import ClusterBatches as ClusterBatches
    from .cluster.reads import ClusterReads as ClusterReads
    from .cluster.store import ClusterStore as ClusterStore
    from .confirm import Confirmer as Confirmer
    from .embedded import EmbeddedAddress as EmbeddedAddress
    from .embedded import EmbeddedStore as EmbeddedStore
    from .reads import EmbeddedReads as EmbeddedReads
    from .reads import RedisReads as RedisReads
    from .store import RedisStore as RedisStore

# Imported when used: a process usually has one kind of broker.
__getattr__ = names_of(
    __name__,
    {
        "..embedded.folder": "folder_of",
        ".batches": "RedisBatches",
        "..client.cluster.slots": "cluster_address",
        ".cluster.reads": "ClusterBatches ClusterReads",
        ".cluster.store": "ClusterStore",
        ".confirm": "Confirmer",
        ".embedded": "EmbeddedAddress EmbeddedStore",
        ".reads": "EmbeddedReads RedisReads",
        "..client.sentinel": "sentinel_address",
        ".store": "RedisStore",
    },
)
