"""Attached transports: what a session needs of the transports of this process that use it.

A transport may vanish without leaving, so a session knows them weakly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..store.protocol import Store


class Declares(Protocol):
    """The declarations of a transport."""

    def declare_again(self, queue: str, store: Store) -> bool:
        """Declare and bind over *store* a queue that it has declared; False: not its own."""

    def may_stay(self, queue: str) -> bool:
        """Whether a queue stays until it is deleted, or it knows nothing of it."""


class Reserves(Protocol):
    """The reserves of a transport."""

    @property
    def asking(self) -> bool:
        """Whether a consumer's reserve is under way that may bring leases."""

    def reserving(self, consumer: str) -> bool:
        """Whether a reserve is under way as this consumer: what it took is not known yet."""


class AttachedTransport(Protocol):
    """A transport that uses a session."""

    @property
    def declarations(self) -> Declares:
        """Its declarations."""

    @property
    def consumes(self) -> bool:
        """Whether it has ever begun to consume: before, it has no reserves."""

    @property
    def reserver(self) -> Reserves:
        """Its reserves."""

    def forget_parent(self) -> None:
        """Drop what belongs to the process that this one was forked from."""

    def read_replies(self) -> None:
        """Read what has come while the application was busy.

        A reserve's reply that lies unread holds leases that nobody renews.
        """

    def end_publishing(self) -> None:
        """Let the broker forget the numbers of what was published, where that is safe."""
