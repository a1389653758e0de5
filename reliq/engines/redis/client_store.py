"""The store of a connection that, as most do, only declares and publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import redis as engine
from .exchanges import RedisExchanges
from .publishing import RedisPublishing
from .queues import RedisQueues

if TYPE_CHECKING:
    from .store import RedisStore as ClientStore
else:

    class ClientStore(RedisPublishing, RedisQueues, RedisExchanges):
        """Becomes a RedisStore when it is asked for a step of consumers, or of operators.

        In place: link, routes and threads that wait for replies have this very object by then.
        """

        def __getattr__(self, name: str) -> Any:
            """Become a RedisStore; called for what this one has not."""
            self.__class__ = engine.RedisStore
            return getattr(self, name)


__all__ = ["ClientStore"]
