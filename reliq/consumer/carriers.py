"""Carriers: the transports of this process that use one session.

A transport may vanish without leaving, so they are known weakly. Knows what a session needs
of a transport; nothing of Kombu.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..store.protocol import Store


class Declares(Protocol):
    """What a transport has declared."""

    def declare_again(self, queue: str, store: Store) -> bool:
        """Declare and bind over *store* a queue that it has declared; False: not its own."""

    def may_stay(self, queue: str) -> bool:
        """Whether a queue stays until it is deleted, or it knows nothing of it."""


class Reserves(Protocol):
    """How a transport takes messages."""

    @property
    def asking(self) -> bool:
        """Whether a consumer's reserve is under way that may bring leases."""

    def reserving(self, consumer: str) -> bool:
        """Whether a reserve is under way as this consumer: what it took is not known yet."""


class Carrier(Protocol):
    """What a session needs of a transport."""

    @property
    def declarations(self) -> Declares:
        """What it has declared."""

    @property
    def reserver(self) -> Reserves:
        """How it takes messages."""

    def forget_parent(self) -> None:
        """Drop what belongs to the process that this one was forked from."""

    def read_replies(self) -> None:
        """Read what has come while the application was busy."""

    def end_publishing(self) -> None:
        """Let the broker forget the numbers of what was published, where that is safe."""


class Carriers:
    """Who uses one session, asked together."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Carrier] = weakref.WeakSet()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._known)

    def add(self, carrier: Carrier) -> None:
        """Note one that uses the session."""
        self._known.add(carrier)

    def discard(self, carrier: Carrier) -> None:
        """Note that it does so no longer."""
        self._known.discard(carrier)

    def forget_parent(self) -> None:
        """Have each drop what belongs to the process that this one was forked from."""
        for carrier in list(self._known):
            carrier.forget_parent()

    def read_replies(self) -> None:
        """Read, for transports whose application is busy, what has come meanwhile.

        A reserve's reply that lies unread holds leases that nobody renews.
        """
        for carrier in list(self._known):
            carrier.read_replies()

    def end_publishing(self) -> None:
        """Have the broker forget the numbers of what this process has published."""
        for carrier in list(self._known):
            carrier.end_publishing()

    def declare_again(self, queue: str, store: Store) -> bool:
        """Have the one that declared *queue* declare it again; False where none did."""
        known = list(self._known)
        return any(carrier.declarations.declare_again(queue, store) for carrier in known)

    def may_stay(self, queue: str) -> bool:
        """Whether none has declared *queue* as one that goes by itself, as for replies."""
        return all(carrier.declarations.may_stay(queue) for carrier in list(self._known))

    @property
    def asking(self) -> bool:
        """Whether a reserve is under way that may bring leases."""
        return any(carrier.reserver.asking for carrier in list(self._known))

    def reserving(self, consumer: str) -> bool:
        """Whether a reserve is under way as this consumer."""
        return any(carrier.reserver.reserving(consumer) for carrier in list(self._known))
