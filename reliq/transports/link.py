"""Link: one connection to one broker, which every part of a transport keeps.

Client: what probes that were written for Kombu's Redis transport ask of one. There is no Redis
client here: keys are reliq's. Two questions have an answer that is cheap and safe; the others,
one that says who knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..routing.partitions import names_of
from ..routing.routes import Routes

if TYPE_CHECKING:
    from ..consumer.sessions import Session
    from ..store.protocol import Store


class Link:
    """The session, the store and the routes of now. Fail-back and a fork change its inside.

    Of the thread that uses the transport. Others read one of the three, and may find them of two
    brokers.
    """

    session: Session
    store: Store
    routes: Routes

    def begin(self, session: Session, store: Store) -> None:
        """Be a new connection of *session*."""
        self.session, self.store, self.routes = session, store, Routes(store)

    def over(self, store: Store) -> Link:
        """Return a link over another connection to the same broker."""
        other = Link()
        other.session, other.store, other.routes = self.session, store, self.routes.over(store)
        return other

    def reopen(self) -> None:
        """Go on over another connection to the same broker, in a forked child."""
        self.store = self.session.open_store()
        self.routes = self.routes.over(self.store)

    def move_to(self, other: Link) -> None:
        """Go on at the broker of *other*, with what was declared at this one."""
        self.session, self.store = other.session, other.store
        self.routes = self.routes.at(other.store)


class Client:
    """Answers ``ping()`` and ``llen(queue)`` over a channel's connection."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def ping(self) -> bool:
        """Return True; raises BrokerUnavailable where the broker does not answer."""
        self._store.bindings_version("amq.direct")  # what every publisher may ask
        return True

    def llen(self, name: str) -> int:
        """Return how many messages of queue *name* are ready, of all priorities; 0 without it.

        Kombu counts those of each priority apart, under other names, of which there is none
        here: a sum over them is right too.
        """
        statuses = map(self._store.reads.status, names_of(self._store, name))
        return sum(status.ready for status in statuses if status is not None)

    def __getattr__(self, name: str) -> object:
        """Raise AttributeError: what else there is to ask, others answer."""
        raise AttributeError(
            f"reliq has no Redis client in its channels, so no {name}(): messages are not kept in "
            "lists as Kombu's Redis transport keeps them. channel.client has ping() and "
            "llen(queue); reliq.admin.Inspector and the command `reliq` look into queues and "
            "change them; for data of your own connect with redis.Redis"
        )
