"""``reliq-embedded://``: a server in a folder, started by its first user. Nothing but choosing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..embedded.folder import folder_of
from ..engines.redis.embedded import EmbeddedAddress, EmbeddedStore
from .redis import Transport as RedisTransport

if TYPE_CHECKING:
    from ..consumer.session import StoreFactory


class Transport(RedisTransport):
    """One folder: ``reliq-embedded:////absolute/folder``, ``reliq-embedded:///relative``."""

    default_port = None  # type: ignore[assignment]
    address: EmbeddedAddress

    def _address(self, client: Any) -> EmbeddedAddress:
        return EmbeddedAddress(folder_of(client.virtual_host))

    def store_factory(self) -> StoreFactory:
        """Return what opens a store over two new connections."""
        return partial(EmbeddedStore, self.address, self.options)
