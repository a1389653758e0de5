"""Link: one connection to one broker, which every part of a transport keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
