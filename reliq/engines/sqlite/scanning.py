"""Looking through a queue of a file, and up one message of it: nothing is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...message.envelope import without_body
from ...store.inspection import AnyPlace, Stored
from ...store.scanning import SCANNED_AT_ONCE, SCANNED_BYTES, Failure, Located, Looked, Position
from ...store.unreadable import number
from .base import StoreBase
from .transaction import DEAD, DELAYED, HELD_BY_MOVE, READY, UNACKED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .transaction import Row

_STATES: dict[AnyPlace, int] = {
    "ready": READY,
    "delayed": DELAYED,
    "unacked": UNACKED,
    "dead": DEAD,
}
_PLACES: dict[int, AnyPlace] = {state: place for place, state in _STATES.items()}


class SqliteScanning(StoreBase):
    """What a store shows of messages, wherever they are."""

    def scan(
        self,
        queue: str,
        place: AnyPlace,
        start: Position,
        limit: int = SCANNED_AT_ONCE,
        *,
        contains: str = "",
        whole_bytes: int = 0,
    ) -> Looked:
        """Look at up to *limit* messages of *place* from *start* on, in one step."""
        limit = max(min(limit, SCANNED_AT_ONCE), 1)
        with self.read() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return Looked([], [], 0, None)
            at_least = "AND position >= :least" if start.score else ""
            # The tags first: what is passed over is read from the index alone.
            found = transaction.execute(
                "SELECT m.tag, m.position, m.failed, m.owner, m.reason, m.error, "  # noqa: S608
                "length(e.envelope), CASE WHEN length(e.envelope) <= :room THEN e.envelope END "
                "FROM (SELECT tag, position FROM messages WHERE queue = :queue AND state = :state "
                f"{at_least} ORDER BY position, tag LIMIT :limit OFFSET :skip) p "
                "JOIN messages m ON m.queue = :queue AND m.tag = p.tag "
                "LEFT JOIN envelopes e ON e.id = m.envelope ORDER BY p.position, p.tag",
                {
                    "queue": row.id,
                    "state": _STATES[place],
                    "least": number(start.score),
                    "limit": limit,
                    "skip": start.skip,
                    "room": SCANNED_BYTES,
                },
            )
            rows, whole = _with_room(found)
        after = None if whole and len(rows) < limit else _after(start, rows)
        looked = Looked([], [], len(rows), after)
        for place_of, found_row in enumerate(rows, 1):
            item = _stored(place, *found_row)
            if not contains or _has(item.envelope or b"", contains.encode()):
                looked.items.append(_cut(item, whole_bytes))
                looked.numbers.append(place_of)
        return looked

    def count_due(self, queue: str, until_ms: Sequence[int]) -> list[int]:
        """Return how many delayed messages are due at each of these times, or before."""
        with self.read() as transaction:
            row = transaction.queue(queue)
            count = "SELECT count(*) FROM messages WHERE queue = ? AND state = ? AND position <= ?"
            return [
                transaction.execute(count, (row.id if row else 0, DELAYED, until)).fetchone()[0]
                for until in until_ms
            ]

    def failures(self, queue: str) -> list[Failure]:
        """Return the last failed deliveries of *queue*, a thousand at most, oldest first."""
        with self.read() as transaction:
            row = transaction.queue(queue)
            found = transaction.execute(
                "SELECT tag, at, how, failed, consumer FROM failed_deliveries WHERE queue = ? "
                "ORDER BY number",
                (row.id if row else 0,),
            ).fetchall()
        return [_failure(*item) for item in found]

    def look_up(self, queue: str, tag: str) -> Located | None:
        """Return all that is known of one message; None where it is not in *queue*."""
        with self.read() as transaction:
            row = transaction.queue(queue)
            found = (
                row
                and transaction.execute(
                    "SELECT m.state, m.expires, m.tag, m.position, m.failed, m.owner, m.reason, "
                    "m.error, length(e.envelope), e.envelope FROM messages m "
                    "LEFT JOIN envelopes e ON e.id = m.envelope WHERE m.queue = ? AND m.tag = ?",
                    (row.id, tag),
                ).fetchone()
            )
            if row is None or found is None:
                return None
            state, expires, *more = found
            (before,) = transaction.execute(
                "SELECT count(*) FROM messages WHERE queue = ? AND state = ? "
                "AND (position, tag) < (?, ?)",
                (row.id, state, more[1], tag),
            ).fetchone()
        place = _PLACES[state]
        waits = place in {"ready", "delayed"} and expires is not None
        return Located(place, before, _stored(place, *more), number(expires) if waits else None)


def _failure(tag: str, at: int, how: str, failed: int, consumer: str) -> Failure:
    return Failure(str(tag), number(at), str(how), number(failed), str(consumer))


def _with_room(found: Iterable[Row]) -> tuple[list[Row], bool]:
    """Return those for whose envelopes there is room, and whether these are all."""
    rows: list[Row] = []
    room = SCANNED_BYTES
    for item in found:
        size = len(item[-1]) if isinstance(item[-1], bytes) else 0
        if rows and size > room:
            return rows, False
        room -= size
        rows.append(item)
    return rows, True


def _has(envelope: bytes, text: bytes) -> bool:
    # Mostly it has the text nowhere.
    return text in envelope and text in without_body(envelope)


def _after(start: Position, rows: Sequence[Row]) -> Position:
    if not rows:
        return start
    last = str(rows[-1][1])
    of_last = sum(str(item[1]) == last for item in rows)
    return Position(last, of_last + (start.skip if last == start.score else 0))


def _cut(item: Stored, whole_bytes: int) -> Stored:
    if item.envelope is None or item.size <= whole_bytes:
        return item
    return item._replace(envelope=without_body(item.envelope))


def _stored(
    place: AnyPlace,
    tag: str,
    position: int,
    failed: Any,
    owner: str | None,
    reason: str | None,
    error: str | None,
    size: int | None,
    envelope: Any,
) -> Stored:
    is_dead = place == "dead"
    count = number(failed) if is_dead or failed is not None else -1
    return Stored(
        str(tag),
        envelope if isinstance(envelope, bytes) else None,
        count,
        0 if place == "ready" or position == HELD_BY_MOVE else number(position),
        str(owner or "") if place in {"unacked", "dead"} else "",
        number(size),
        str(reason or "") if is_dead else "",
        str(error or "") if is_dead else "",
    )
