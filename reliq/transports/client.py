"""Client: answers probes written for Kombu's Redis transport.

It is no Redis client, because reliq uses other keys. Two methods are cheap and safe; for any
other, the error names an alternative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..routing.partitions import names_of

if TYPE_CHECKING:
    from ..values.protocol import Store


class Client:
    """Answers ``ping()`` and ``llen(queue)`` over a channel's connection."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def ping(self) -> bool:
        """Return True; raises BrokerUnavailable if the broker does not answer."""
        self._store.bindings_version("amq.direct")  # a command that each publisher may run
        return True

    def llen(self, name: str) -> int:
        """Return the number of ready messages in queue *name*, all priorities; 0 if missing.

        Kombu counts each priority under its own name. reliq has none, so a sum is correct too.
        """
        statuses = map(self._store.reads.status, names_of(self._store, name))
        return sum(status.ready for status in statuses if status is not None)

    def __getattr__(self, name: str) -> object:
        """Raise AttributeError, and name the alternatives."""
        raise AttributeError(
            f"channels of reliq have no Redis client, so {name}() is not available: messages are "
            "not stored in lists as with Kombu's Redis transport. channel.client has ping() and "
            "llen(queue). To read and change queues, use reliq.admin.Inspector or the command "
            "`reliq`. For your own data, connect with redis.Redis"
        )
