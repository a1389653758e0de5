"""Looking through a queue over Redis, and up one message of it: nothing is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...store.inspection import AnyPlace, Stored
from ...store.scanning import SCANNED_AT_ONCE, SCANNED_BYTES, Failure, Located, Looked, Position
from ...store.unreadable import left_out, number
from . import scripts
from .base import StoreBase, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIELDS = 4
# The lease record is "token|score|expires|consumer"; of a dead letter is known
# "reason|count|consumer|error".
_CONSUMER_OF_LEASE = 3


class RedisScanning(StoreBase):
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
        names = scripts.SCAN.of(self._keys(queue))
        count = max(min(limit, SCANNED_AT_ONCE), 1)
        args = (place, *start, count, SCANNED_BYTES, whole_bytes, contains)
        looked, score, skip, flat = self._wire.execute(scripts.SCAN, names, args)
        items = [self._stored(queue, place, *flat[i + 1 : i + 7]) for i in range(0, len(flat), 7)]
        after = Position(text_of(score), int(skip)) if score else None
        return Looked(items, flat[::7], looked, after)

    def look_up(self, queue: str, tag: str) -> Located | None:
        """Return all that is known of one message; None where it is not in *queue*."""
        names = scripts.LOOK_UP.of(self._keys(queue))
        reply = self._wire.execute(scripts.LOOK_UP, names, (tag,))
        if not reply:
            return None
        kind, score, before, envelope, *more, expires = reply
        place: AnyPlace = text_of(kind)  # type: ignore[assignment]
        stored = self._stored(queue, place, tag.encode(), score, len(envelope), envelope, *more)
        return Located(place, before, stored, None if expires is None else number(expires))

    def count_due(self, queue: str, until_ms: Sequence[int]) -> list[int]:
        """Return how many delayed messages are due at each of these times, or before."""
        key = self._keys(queue).delayed
        found: list[int] = self._wire.exchange(
            [(("ZCOUNT", key, "-inf", until), None) for until in until_ms]
        )
        return found

    def failures(self, queue: str) -> list[Failure]:
        """Return the last failed deliveries of *queue*, a thousand at most, oldest first."""
        found, wrong = [], []
        for entry in reversed(
            self._wire.call(("LRANGE", self._keys(queue).failed_deliveries, 0, -1))
        ):
            tag, *fields = text_of(entry).split("|", 4)
            if len(fields) != _FIELDS:
                wrong.append(tag)
                continue
            at_ms, how, failed, consumer = fields
            found.append(Failure(tag, number(at_ms), how, number(failed), consumer))
        left_out(self.broker, f"failed deliveries of {queue!r}", wrong)
        return found

    def _stored(
        self,
        queue: str,
        place: AnyPlace,
        tag: bytes,
        score: Any,
        size: int,
        envelope: bytes | None,
        record: bytes | None,
        failed: Any,
    ) -> Stored:
        name = text_of(tag)
        at_ms = 0 if place == "ready" else number(score)
        count = -1 if failed is None else number(failed)
        if place not in {"unacked", "dead"}:
            return Stored(name, envelope, count, at_ms, "", size)
        said = (record or b"").decode("utf-8", "replace")
        fields = said.split("|", 3)
        if len(fields) != _FIELDS:
            what = "lease records" if place == "unacked" else "records of dead letters"
            left_out(self.broker, f"{what} of {queue!r}", [name])
            fields = ["unknown", "0", "", said] if place == "dead" else [""] * _FIELDS
        if place == "unacked":
            return Stored(name, envelope, count, at_ms, fields[_CONSUMER_OF_LEASE], size)
        reason, counted, consumer, error = fields
        return Stored(name, envelope, number(counted), at_ms, consumer, size, reason, error)
