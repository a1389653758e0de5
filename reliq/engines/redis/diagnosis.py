"""What a Redis says of itself, and what can be wrong with it: for ``reliq doctor``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from .base import StoreBase
from .sentinel import SentinelAddress
from .server import Server

if TYPE_CHECKING:
    from ...store.inspection import BrokerInfo, Finding, Node


class RedisDiagnosis(StoreBase):
    """What a store tells of its server."""

    @cached_property
    def _server(self) -> Server:
        return Server(self._wire, self._prefix)

    def about(self) -> BrokerInfo:
        """Return what the server says of itself."""
        return self._server.about(self.broker)

    def diagnose(self) -> list[Finding]:
        """Look at what can be wrong with the server and with this user's rights."""
        behind = isinstance(self._wire.address, SentinelAddress)
        return self._server.diagnose(behind_sentinels=behind)

    def nodes(self) -> list[Node]:
        """Return nothing: the broker is one server."""
        return []
