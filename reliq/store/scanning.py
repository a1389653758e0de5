"""Looks into places that may hold very much: in steps, each of which goes on where one ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .inspection import AnyPlace, Stored

SCANNED_AT_ONCE = 250
"""So many messages one step looks at, at most: two ms of a server's processor."""
SCANNED_BYTES = 1 << 20
"""And so many bytes of envelopes; one that is larger is not read at all."""


class Position(NamedTuple):
    """Where in a place a step begins."""

    score: str = ""
    """In the engine's words; "": at the first of the place."""
    skip: int = 0
    """So many messages from there on are passed over."""


class Looked(NamedTuple):
    """What one step has found."""

    items: list[Stored]
    """In the order of the place; without those that were not asked for."""
    numbers: list[int]
    """The how many-th of those that were looked at each of them is, from 1 on."""
    looked: int
    """How many it has looked at."""
    after: Position | None
    """Where the next step begins; None: there is no more. What leaves the place meanwhile is in
    no way of it; what comes before it is not seen."""


class Failure(NamedTuple):
    """A delivery that failed."""

    tag: str
    at_ms: int
    """When it was found to have failed."""
    how: str
    """lapsed: its lease ended without its holder; requeued; else why the message died of it."""
    failed: int
    """Failed deliveries by then."""
    consumer: str
    """Who held it."""


class Located(NamedTuple):
    """One message, wherever it is in its queue, at one instant."""

    place: AnyPlace
    before: int
    """How many are before it in its place."""
    stored: Stored
    expires_ms: int | None
    """When it expires, where it waits and has a TTL."""
