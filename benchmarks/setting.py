"""What one measurement is given: whom to measure, on which server, and how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.peers import Peer
    from benchmarks.servers import Server


@dataclass(frozen=True)
class Setting:
    """One sample's surroundings. The server is empty when a measurement begins."""

    peer: Peer
    server: Server
    scale: float

    @property
    def url(self) -> str:
        """The broker URL of the peer on this server."""
        return self.peer.url(self.server.port)

    def size(self, full: int, least: int = 10) -> int:
        """Return a count scaled down from its full size, but not below `least`."""
        return max(least, round(full * self.scale))
