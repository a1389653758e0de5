"""Pages of what is in a queue: any page of a million messages, in steps of a few ms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import NotFound
from ..message.delivery_tag import published_ms, rank_of
from ..store.protocol import status_of
from ..store.scanning import SCANNED_AT_ONCE, Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store.inspection import AnyPlace, Stored
    from ..store.protocol import Store

WHOLE_BYTES = 65_536
"""The body of a message that is larger is not read to list it."""
# So far the partitions of a queue are merged in their order; beyond, each gives its share.
_MERGED = 1000


def require_queue(store: Store, queue: str) -> None:
    """Raise NotFound where there is no such queue; nothing in it is counted."""
    if store.layout(queue) is None:
        raise NotFound(f"no queue {queue!r}")


def page(store: Store, queue: str, place: AnyPlace, limit: int, skip: int) -> list[Stored]:
    """Return up to *limit* messages of one queue, or partition, after *skip*."""
    found: list[Stored] = []
    passed = skip
    while len(found) < limit:
        left = min(limit - len(found), SCANNED_AT_ONCE)
        looked = store.scan(queue, place, Position("", passed), left, whole_bytes=WHOLE_BYTES)
        found += looked.items
        passed += looked.looked
        if looked.after is None or not looked.looked:
            break
    return found


def page_of_parts(
    store: Store, names: Sequence[str], place: AnyPlace, limit: int, skip: int
) -> list[Stored]:
    """Return up to *limit* messages of the partitions *names* after *skip*.

    In the order in which they will leave, as far as that can be said: the first thousand. Further
    back each partition gives the share that it has of all, so that each message is on one page
    and no page takes longer than another; there may be some more or less than *limit*.
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
    found = [item for part in parts for item in part]
    found.sort(key=lambda item: (item.at_ms, rank_of(item.tag), published_ms(item.tag)))
    return found
