"""Link: one connection to one broker, shared by all parts of a transport.

Client: answers probes written for Kombu's Redis transport. It is no Redis client, because reliq
uses other keys. Two methods are cheap and safe; for any other, the error names an alternative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import Lazy
from ..routing.partitions import names_of
from ..routing.routes import Routes

if TYPE_CHECKING:
    from ..consumer.sessions import Session
    from ..values.protocol import Store


class Link:
    """The current session, store and routes. Failback and forks replace them.

    Belongs to one thread. Others may read one of the three; two may belong to two brokers.
    """

    session: Session
    store: Store

    @Lazy
    def routes(self) -> Routes:
        """The exchanges and bindings of the connection."""
        return Routes(self.store)

    def begin(self, session: Session, store: Store) -> None:
        """Start a new connection of *session*."""
        self.session, self.store = session, store

    def over(self, store: Store) -> Link:
        """Return a link over another connection to the same broker."""
        other = Link()
        other.session, other.store, other.routes = self.session, store, self.routes.over(store)
        return other

    def reopen(self) -> None:
        """Open another connection to the same broker in a forked child."""
        self.store = self.session.open_store()
        self.routes = self.routes.over(self.store)

    def move_to(self, session: Session, store: Store) -> None:
        """Switch to the broker of *session*, and keep the declarations."""
        self.session, self.store, self.routes = session, store, self.routes.at(store)


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
