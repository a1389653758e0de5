"""The history of a queue: snapshots of its counts and its ledger, packed into a few bytes each.

The broker keeps blocks of sixty snapshots, and removes the oldest block.
``lua/snapshot.lua`` writes the blocks and documents their format.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from .limits import HISTORY_BLOCKS, MINUTE_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PER_BLOCK = 60
"""The maximum number of snapshots in a block."""
GAUGES = ("ready", "delayed", "unacked", "dead")
COUNTERS = (
    "published",
    "delivered",
    "acked",
    "redelivered",
    "failed",
    "dead_lettered",
    "expired",
)
_COUNTED = len(GAUGES) + len(COUNTERS)
_MORE = 0x80


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The counts of a queue for one minute, or for several minutes combined."""

    at_ms: int
    """The beginning of the minute in which the counts were read, by the broker's clock."""
    span_ms: int
    """The time since the previous snapshot, which the counters cover; 0: this is the first."""
    ready: int = 0
    """Messages at that time. The same applies to delayed, unacked and dead."""
    delayed: int = 0
    unacked: int = 0
    dead: int = 0
    published: int = 0
    """Messages in the whole span. The same applies to the following counters."""
    delivered: int = 0
    """Delivered under a lease. A message consumed with no_ack counts only as acked."""
    acked: int = 0
    redelivered: int = 0
    failed: int = 0
    """Failed deliveries: the lease expired, or the message was requeued."""
    dead_lettered: int = 0
    expired: int = 0


def snapshots(
    blocks: Mapping[int, bytes], since_ms: int, now_ms: int, every_ms: int = MINUTE_MS
) -> list[Snapshot]:
    """Return the snapshots from *since_ms* to *now_ms* in these blocks, oldest first.

    Omits snapshots older than the documented history. Raises ValueError for an invalid block.
    """
    newest = now_ms // every_ms
    oldest = max(-(-since_ms // every_ms), newest - HISTORY_BLOCKS * PER_BLOCK + 1)
    # keyed by interval: after a clock was set back, some intervals have two snapshots
    by_interval = {
        interval: counts
        for number in sorted(blocks)
        for interval, counts in _unpacked(number, blocks[number])
        if interval <= newest
    }
    result, before = [], None
    for interval in sorted(by_interval):
        span = 0 if before is None else interval - before
        before = interval
        if interval >= oldest:
            counts = dict(zip((*GAUGES, *COUNTERS), by_interval[interval], strict=True))
            result.append(Snapshot(interval * every_ms, span * every_ms, **counts))
    return result


def _unpacked(block: int, records: bytes) -> Iterator[tuple[int, list[int]]]:
    """Yield (interval, counts) of each snapshot in a block; raises ValueError."""
    place = 0
    try:
        while place < len(records):
            first = records[place]
            place += 1
            counts = []
            for _ in range(_COUNTED):
                number, shift = 0, 0
                while (byte := records[place]) >= _MORE:
                    number |= (byte - _MORE) << shift
                    shift, place = shift + 7, place + 1
                counts.append(number | byte << shift)
                place += 1
            for again in range(records[place] + 1):
                yield block * PER_BLOCK + first + again, counts
            place += 1
    except IndexError as exc:
        raise ValueError(f"block {block} ends within a snapshot") from exc


def thinned(parts: Sequence[Sequence[Snapshot]], every_ms: int) -> list[Snapshot]:
    """Combine the snapshots of a queue's partitions, one snapshot for each *every_ms*.

    Counts of messages are those at the end of the interval; counters cover the whole interval. A
    partition without a snapshot in an interval contributes its previous counts of messages.
    """
    by_time: list[dict[int, Snapshot]] = [{} for _ in parts]
    for part, times in zip(parts, by_time, strict=True):
        for snapshot in part:
            at = snapshot.at_ms // every_ms
            times[at] = _followed(times[at], snapshot) if at in times else snapshot
    known: dict[int, Snapshot] = {}
    points = []
    for at in sorted({at for times in by_time for at in times}):
        here = []
        for place, times in enumerate(by_time):
            if at in times:
                known[place] = times[at]
                here.append(times[at])
            elif place in known:
                before = known[place]
                here.append(Snapshot(at_ms=before.at_ms, span_ms=0, **_gauges(before)))
        points.append(reduce(_beside, here))
    return points


def _gauges(snapshot: Snapshot) -> dict[str, int]:
    return {name: getattr(snapshot, name) for name in GAUGES}


def _sums(first: Snapshot, second: Snapshot, names: Sequence[str]) -> dict[str, int]:
    return {name: getattr(first, name) + getattr(second, name) for name in names}


def _followed(before: Snapshot, snapshot: Snapshot) -> Snapshot:
    span_ms = before.span_ms + snapshot.span_ms
    sums = _sums(before, snapshot, COUNTERS)
    return Snapshot(at_ms=snapshot.at_ms, span_ms=span_ms, **_gauges(snapshot), **sums)


def _beside(first: Snapshot, second: Snapshot) -> Snapshot:
    at_ms, span_ms = max(first.at_ms, second.at_ms), max(first.span_ms, second.span_ms)
    sums = _sums(first, second, (*GAUGES, *COUNTERS))
    return Snapshot(at_ms=at_ms, span_ms=span_ms, **sums)
