"""Link: one connection to one broker, as everything in a transport reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from ..consumer.sessions import Session
    from ..routing.routes import Routes
    from ..store.protocol import Store


class Link(NamedTuple):
    """Never changed, only replaced: whoever reads it has three things of one broker."""

    session: Session
    store: Store
    routes: Routes

    def over(self, store: Store) -> Link:
        """Return a link over another connection to the same broker."""
        return Link(self.session, store, self.routes.over(store))

    def at(self, other: Link) -> Link:
        """Return the link to another broker, with what was declared at this one."""
        return Link(other.session, other.store, self.routes.at(other.store))


class Linked(Protocol):
    """Who has the link: a transport. Nobody else keeps one, for fail-back replaces it."""

    @property
    def link(self) -> Link:
        """The connection of now."""
