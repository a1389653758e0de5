"""The setting of one measurement: the peer, its server, and the amount of work."""

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
    """One sample's setting. The server is empty when a measurement begins.

    `largest` limits the numbers in figures' names, which are not scaled: backlogs and restores.
    """

    peer: Peer
    server: Place
    scale: float
    largest: int = LARGEST

    @property
    def broker(self) -> Broker:
        """The data with which a program connects to the peer on this server."""
        return {
            "url": self.server.url(self.peer.scheme),
            "options": {**self.server.options(), **self.peer.options},
            "queue_arguments": dict(self.peer.queue_arguments),
        }

    @property
    def redis(self) -> RedisServer:
        """The server, for figures that inspect Redis."""
        if not isinstance(self.server, RedisServer):
            raise TypeError(f"this figure needs Redis, {self.peer.name} has none")
        return self.server

    @property
    def cluster(self) -> Cluster:
        """The nodes, for figures about their shares of the work."""
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
        """Return the server of the queue."""
        return self.cluster.owner(slot_of(queue)) if self._clustered else self.redis

    def size(self, full: int, least: int = 10) -> int:
        """Return a count scaled down from its full size, at least `least`."""
        return max(least, round(full * self.scale))

    def paced(self, full: int, least: int = 10) -> int:
        """Return a count scaled down, and further down for a slow peer."""
        return max(least, round(full * self.scale * self.peer.pace))

    def seconds(self, full: float) -> float:
        """Return a duration scaled down, in seconds."""
        return max(0.05, full * self.scale)
