"""What one measurement is given: whom to measure, on which server, and how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.clusters import Cluster, slot_of
from benchmarks.servers import RedisServer

if TYPE_CHECKING:
    from benchmarks.peers import Broker, Peer
    from benchmarks.places import Place

LARGEST = 1_000_000


@dataclass(frozen=True)
class Setting:
    """One sample's surroundings. The server is empty when a measurement begins.

    `largest` bounds what a figure is named after and is not scaled: backlogs, what is restored.
    """

    peer: Peer
    server: Place
    scale: float
    largest: int = LARGEST

    @property
    def broker(self) -> Broker:
        """How a program reaches the peer on this server."""
        return {
            "url": self.server.url(self.peer.scheme),
            "options": {**self.server.options(), **self.peer.options},
            "queue_arguments": dict(self.peer.queue_arguments),
        }

    @property
    def redis(self) -> RedisServer:
        """The server, for the figures that look into Redis."""
        if not isinstance(self.server, RedisServer):
            raise TypeError(f"this figure needs Redis, {self.peer.name} has none")
        return self.server

    @property
    def cluster(self) -> Cluster:
        """The nodes, for the figures that look at how they share the work."""
        if not isinstance(self.server, Cluster):
            raise TypeError(f"this figure needs a cluster, {self.peer.name} has none")
        return self.server

    @property
    def redis_nodes(self) -> tuple[RedisServer, ...]:
        """The server, or all nodes of the cluster."""
        return self.cluster.nodes if self._clustered else (self.redis,)

    @property
    def _clustered(self) -> bool:
        return isinstance(self.server, Cluster)

    def node_of(self, queue: str) -> RedisServer:
        """Return the server that has the queue."""
        return self.cluster.owner(slot_of(queue)) if self._clustered else self.redis

    def size(self, full: int, least: int = 10) -> int:
        """Return a count scaled down from its full size, but not below `least`."""
        return max(least, round(full * self.scale))

    def paced(self, full: int, least: int = 10) -> int:
        """Return a count scaled down, for a slow peer further down."""
        return max(least, round(full * self.scale * self.peer.pace))

    def seconds(self, full: float) -> float:
        """Return a duration scaled down, in seconds."""
        return max(0.05, full * self.scale)
