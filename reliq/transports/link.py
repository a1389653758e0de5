"""Link: one connection to one broker, shared by all parts of a transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import Lazy
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
