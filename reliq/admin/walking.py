"""Walks through queues in steps of a few ms: so far, and no further, until somebody goes on."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, NamedTuple

from ..errors import ConfigurationError
from ..store.scanning import SCANNED_AT_ONCE, Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..store.inspection import AnyPlace
    from ..store.protocol import Store
    from ..store.scanning import Looked

PLACES: tuple[AnyPlace, ...] = ("ready", "delayed", "unacked", "dead")


# Also what no script of ours writes: a walk gets past it.
_SCORE = re.compile(r"|-?[0-9]{1,20}(\.[0-9]+)?(e[+-]?[0-9]+)?|-?inf", re.ASCII)
_MOST = 2**53


class Cursor(NamedTuple):
    """Where a walk goes on: in which queue, or partition, and where there."""

    name: str
    place: AnyPlace
    position: Position
    looked: int
    """How many messages it has looked at before."""

    def text(self) -> str:
        """Return it as text that can stand in a URL."""
        stored = json.dumps([self.name, self.place, *self.position, self.looked])
        return base64.urlsafe_b64encode(stored.encode()).decode().rstrip("=")


def cursor_of(text: str) -> Cursor:
    """Return the cursor that :meth:`Cursor.text` gave; raises ConfigurationError."""
    try:
        name, place, score, skip, looked = json.loads(
            base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        )
        cursor = Cursor(name, place, Position(score, skip), looked)
        is_one = (
            isinstance(name, str)
            and place in PLACES
            and _SCORE.fullmatch(score) is not None
            and type(skip) is type(looked) is int
            and 0 <= min(skip, looked) <= max(skip, looked) <= _MOST
        )
    except (ValueError, TypeError, RecursionError):
        is_one = False
    if not is_one:
        raise ConfigurationError(f"expected a cursor that a search has returned, got: {text!r}")
    return cursor


class Step(NamedTuple):
    """One step of a walk."""

    begun: Cursor
    found: Looked
    after: Cursor | None
    """Where the next one begins; None: there is no more."""


class Ground(NamedTuple):
    """What a walk leads through."""

    places: list[tuple[str, AnyPlace]]
    """The places of queues that are not empty: queues in the order of their names."""
    total: int
    """How many messages there are in them."""


def ground(store: Store, names: Sequence[str], places: Sequence[AnyPlace] = PLACES) -> Ground:
    """Return where in queues, or partitions, *names* there is something, of these *places*."""
    statuses = sorted((item.status for item in store.measure(names)), key=lambda item: item.name)
    counts = [(item.name, place, getattr(item, place)) for item in statuses for place in places]
    there = [(name, place) for name, place, count in counts if count]
    return Ground(there, sum(count for *_, count in counts))


def walk(
    store: Store, through: Ground, start: Cursor | None, looks: int, *, contains: str = ""
) -> Iterator[Step]:
    """Yield what each step finds, from *start* on, or from the beginning.

    At most *looks* messages are looked at. contains: only those with that text are found.
    """
    left = looks
    begun = _next(through, start)
    while begun is not None and left > 0:
        found = look(store, begun, min(left, SCANNED_AT_ONCE), contains)
        left -= max(found.looked, 1)
        after: Cursor | None = gone_on(begun, found)
        if found.after is None:
            following = _behind(through, begun)
            after = following and Cursor(*following, Position(), begun.looked + found.looked)
        yield Step(begun, found, after)
        begun = after


def look(store: Store, begun: Cursor, limit: int, contains: str) -> Looked:
    """Return what is found where a step begins that looks at *limit* messages."""
    return store.scan(begun.name, begun.place, begun.position, limit, contains=contains)


def gone_on(begun: Cursor, found: Looked) -> Cursor:
    """Return where to go on in the place in which a step from *begun* has found this."""
    position = found.after or begun.position
    return Cursor(begun.name, begun.place, position, begun.looked + found.looked)


def _next(through: Ground, start: Cursor | None) -> Cursor | None:
    """Return where a walk begins; what *start* names may be empty by now."""
    if start is None:
        return Cursor(*through.places[0], Position(), 0) if through.places else None
    if start[:2] in through.places:
        return start
    following = _behind(through, start)
    return following and Cursor(*following, Position(), start.looked)


def _behind(through: Ground, cursor: Cursor) -> tuple[str, AnyPlace] | None:
    order = (cursor.name, PLACES.index(cursor.place))
    return next((item for item in through.places if (item[0], PLACES.index(item[1])) > order), None)
