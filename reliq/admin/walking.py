"""Searches and pages of queues, in bounded steps of a few ms."""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..errors import ConfigurationError
from ..message.delivery_tag import published_ms, rank_of
from ..message.queue_names import queue_of
from ..values.inspection import SCANNED_AT_ONCE, Position
from ..values.protocol import status_of
from .views import of_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..values.inspection import AnyPlace, ScanPage, Stored
    from ..values.protocol import Store
    from .views import Message

PLACES: tuple[AnyPlace, ...] = ("ready", "delayed", "unacked", "dead")


# Includes scores that no script of reliq writes, so that a walk continues past foreign entries.
_SCORE = re.compile(r"|-?[0-9]{1,20}(\.[0-9]+)?(e[+-]?[0-9]+)?|-?inf", re.ASCII)
_MOST = 2**53
WHOLE_BYTES = 65_536
"""A list omits the bodies of larger messages."""
# Up to this position, partitions are merged in order. After it, each provides its share.
_MERGED = 1000


class Cursor(NamedTuple):
    """The position at which a walk continues, in a queue or partition."""

    name: str
    place: AnyPlace
    position: Position
    looked: int
    """Messages examined before."""

    def text(self) -> str:
        """Return the cursor as text for a URL."""
        stored = json.dumps([self.name, self.place, *self.position, self.looked])
        return base64.urlsafe_b64encode(stored.encode()).decode().rstrip("=")


def cursor_of(text: str) -> Cursor:
    """Return the cursor from the result of :meth:`Cursor.text`; raises ConfigurationError."""
    with suppress(ValueError, TypeError, RecursionError):
        name, place, score, skip, looked = json.loads(
            base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        )
        if (
            isinstance(name, str)
            and place in PLACES
            and _SCORE.fullmatch(score) is not None
            and type(skip) is type(looked) is int
            and 0 <= min(skip, looked) <= max(skip, looked) <= _MOST
        ):
            return Cursor(name, place, Position(score, skip), looked)
    raise ConfigurationError(f"expected a cursor from a search, got: {text!r}")


Ground: TypeAlias = "list[tuple[str, AnyPlace]]"
"""The places of a walk, in the order of the queues' names."""


def ground(
    store: Store, names: Sequence[str], places: Sequence[AnyPlace] = PLACES
) -> tuple[Ground, int]:
    """Return the nonempty *places* of the queues or partitions *names*, and their messages."""
    statuses = sorted(
        (item.status for item in store.reads.measure(names)), key=lambda item: item.name
    )
    counts = [(item.name, place, getattr(item, place)) for item in statuses for place in places]
    there = [(name, place) for name, place, count in counts if count]
    return there, sum(count for *_, count in counts)


def walk(
    store: Store, through: Ground, start: Cursor | None, looks: int, *, contains: str = ""
) -> Iterator[tuple[Cursor, ScanPage, Cursor | None]]:
    """Yield (start, result, end) of each step, from *start* or from the beginning.

    The end is the start of the next step; None: the walk is complete. Examines at most *looks*
    messages. contains: find only messages with this text.
    """
    left = looks
    begun = _next(through, start)
    while begun is not None and left > 0:
        page = scan_page(store, begun, min(left, SCANNED_AT_ONCE), contains)
        left -= max(page.looked, 1)
        after: Cursor | None = gone_on(begun, page)
        if page.after is None:
            after = _behind(through, begun, begun.looked + page.looked)
        yield begun, page, after
        begun = after


def scan_page(store: Store, begun: Cursor, limit: int, contains: str) -> ScanPage:
    """Return the result of a step from *begun* that examines *limit* messages."""
    return store.reads.scan(begun.name, begun.place, begun.position, limit, contains=contains)


def gone_on(begun: Cursor, page: ScanPage) -> Cursor:
    """Return the cursor after a step from *begun* with this result, in the same place."""
    position = page.after or begun.position
    return Cursor(begun.name, begun.place, position, begun.looked + page.looked)


def _next(through: Ground, start: Cursor | None) -> Cursor | None:
    """Return the first cursor of a walk; the place of *start* may be empty by now."""
    if start is None:
        return _first(through[0], 0) if through else None
    if start[:2] in through:
        return start
    return _behind(through, start, start.looked)


def _first(of: tuple[str, AnyPlace], looked: int) -> Cursor:
    """Return the cursor at the first message of a place."""
    name, place = of
    return Cursor(name=name, place=place, position=Position(), looked=looked)


def _behind(through: Ground, cursor: Cursor, looked: int) -> Cursor | None:
    """Return the cursor at the first message of the next place; None after the last one."""
    order = (cursor.name, PLACES.index(cursor.place))
    following = (item for item in through if (item[0], PLACES.index(item[1])) > order)
    return next((_first(item, looked) for item in following), None)


# -- pages


def page(store: Store, queue: str, place: AnyPlace, limit: int, skip: int) -> list[Stored]:
    """Return up to *limit* messages of one queue or partition, after *skip* others."""
    items: list[Stored] = []
    passed = skip
    while len(items) < limit:
        left = min(limit - len(items), SCANNED_AT_ONCE)
        page = store.reads.scan(queue, place, Position("", passed), left, whole_bytes=WHOLE_BYTES)
        items += page.items
        passed += page.looked
        if page.after is None or not page.looked:
            break
    return items


def page_of_parts(
    store: Store, names: Sequence[str], place: AnyPlace, limit: int, skip: int
) -> list[Stored]:
    """Return up to *limit* messages of the partitions *names* after *skip* others.

    The first thousand are in delivery order. After them, each partition provides its share, so
    that each message is on one page, and all pages take equally long. Such a page may have
    slightly more or fewer messages than *limit*.
    """
    if len(names) == 1:
        return page(store, names[0], place, limit, skip)
    if skip + limit <= _MERGED:
        parts = [page(store, name, place, skip + limit, 0) for name in names]
        return _merged(parts)[skip : skip + limit]
    counts = [getattr(status_of(store, name), place) for name in names]
    total = max(sum(counts), 1)
    shares = [(skip * count // total, (skip + limit) * count // total) for count in counts]
    return _merged(
        [
            page(store, name, place, min(end, count) - begin, begin)
            for name, count, (begin, end) in zip(names, counts, shares, strict=True)
            if min(end, count) > begin
        ]
    )


def _merged(parts: Sequence[Sequence[Stored]]) -> list[Stored]:
    items = [item for part in parts for item in part]
    items.sort(key=lambda item: (item.at_ms, rank_of(item.tag), published_ms(item.tag)))
    return items


@dataclass(frozen=True, slots=True)
class Search:
    """The result and the progress of a search."""

    found: list[Message]
    """Found by this call, by queue name, then ready, delayed, unacked, dead."""
    looked: int
    """Messages examined by this call and those before."""
    total: int
    """The current number of messages to examine."""
    cursor: str | None = field(repr=False)
    """The argument for the next call; None: the search is complete."""


def by_tag(store: Store, names: Sequence[str], tag: str) -> Search:
    """Look up a tag in each of these queues, without a search."""
    messages, now_ms = [], store.now_ms()
    for name in names:
        located = store.reads.locate(name, tag)
        if located is not None:
            messages.append(of_stored(queue_of(name), located.place, located.stored, now_ms))
    _, total = ground(store, names)
    return Search(messages, total, total, None)


def search(
    store: Store,
    names: Sequence[str],
    fits: Callable[[Message], bool],
    limit: int,
    looks: int,
    cursor: str | None,
    *,
    places: Sequence[AnyPlace] = PLACES,
    contains: str = "",
) -> Search:
    """Return up to *limit* messages that match *fits*, among the next *looks* of *names*.

    contains: text in their envelopes; the broker skips all others.
    """
    through, total = ground(store, names, places)
    start = None if cursor is None else cursor_of(cursor)
    now_ms = store.now_ms()

    def fitting(begun: Cursor, page: ScanPage) -> list[tuple[int, Message]]:
        queue = queue_of(begun.name)
        messages = (of_stored(queue, begun.place, item, now_ms) for item in page.items)
        numbered = zip(page.numbers, messages, strict=True)
        return [(number, message) for number, message in numbered if fits(message)]

    matching: list[Message] = []
    after: Cursor | None = None
    for begun, there, after in walk(store, through, start, looks, contains=contains):
        messages, room = fitting(begun, there), limit - len(matching)
        if len(messages) > room:  # repeat a shorter step, so that the next call continues there
            shorter = scan_page(store, begun, messages[room - 1][0], contains)
            messages = fitting(begun, shorter)[:room]
            after = gone_on(begun, shorter)  # noqa: PLW2901 - the shorter step ends earlier
        matching += [message for _, message in messages]
        if len(matching) >= limit:
            break
    if after is None:
        return Search(matching, total, total, None)
    return Search(matching, after.looked, max(total, after.looked), after.text())
