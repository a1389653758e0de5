"""The numbers that more than one file goes by, and the scripts; and the groups of one step.

A script names the numbers that it uses (``-- limits: BATCH``), and the loader writes them into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .values import Publication

T = TypeVar("T")

FORMAT = 1
"""The version of what is stored in Redis: another one is refused (engines/redis/connect.py)."""

BATCH = 200
"""So many messages one step handles at most, so that it takes well under 5 ms."""
BATCH_BYTES = 1 << 20
"""And so many bytes of envelopes, where it stores or moves them."""
MOST_REMEMBERED = 4096
"""So many names a connection remembers something of."""
MOVED_AT_ONCE = 100
"""So many messages one step of a move takes."""

RANK = 2**45
"""What one rank is worth in a score: rank * RANK + sequence."""
HIGHEST_RANK = 255

DAY_US = 86_400_000_000
"""After so long a move that was begun and not ended may be taken over by another."""
MOVES_KEPT_MS = 200 * 86_400_000
"""For so long the numbers of a move are kept. Longer than dead letters are by default, so
that a move that was cut off and is taken up again finds its numbers."""
SHORT_MS = 3_600_000
"""For so long the numbers are kept of a process that has begun a moment ago. Longer than a
kernel goes on sending a request that nobody acknowledges (15 to 30 minutes), and than most
who retry go on."""
LONG_MS = 86_400_000
"""And of one that has lasted. Such ones are few: however often processes are killed, those of
a day are at most a hundred for each place in which one runs."""
OUTLIVES_MS = 60_000
"""By so long they outlive their queue: a retry may be on its way."""

REPORTS_OF_A_JOB = 20
"""So often a job reports at most; what it says more is not noted."""
REPORTS_KEPT = 10_000
"""So many reports of a batch are kept: the last ones."""
PROGRESS_LISTED = 1000
"""So many jobs of a batch are listed by how far they are: those that have said it last."""

DUE_AT_ONCE = 500
"""So many queues a heartbeat brings that somebody has to look after."""
A_QUEUE_MS = 2
"""Each of them is looked at by one consumer at a time, 500 a second in all at most."""
ROUTED_AT_ONCE = 1000
"""So many queues a heartbeat names whose dead letters are routed on."""
LOOKED_AT = 1000
"""So many consumers one look takes in."""
FORGOTTEN_MS = 10 * 86_400_000
"""For so long a consumer that stopped without a goodbye is kept, in case that nobody lives."""

MINUTE_MS = 60_000
"""Once in so long the history of a queue gets a snapshot."""
HISTORY_BLOCKS = 72
"""So many blocks of sixty snapshots it has, beside the one that is being filled: 72 hours."""

FAILURES_KEPT = 1000
"""So many failed deliveries of a queue are kept: the last ones."""

JOB_MARK = 106
"""The last character of a job's delivery tag: a "j", which ends no other."""

CANDIDATE_FAILURES = 2
"""After so many failures a message is a poison candidate, or after one less than its limit."""
ROUNDS = 4
"""So many times a reserve looks further for what it may take beside a poison candidate."""


def chunks(items: Sequence[T], at_once: int = BATCH) -> Iterator[Sequence[T]]:
    """Yield *items* in groups of *at_once*; by default of what one step takes."""
    for start in range(0, len(items), at_once):
        yield items[start : start + at_once]


def _kind(item: Publication) -> tuple[object, ...]:
    route = item.queue, item.exchange, item.version, item.create
    return (*route, item.publisher, item.moved, item.number == 0)


def alike(publications: Sequence[Publication]) -> Iterable[Sequence[Publication]]:
    """Group neighbours that one step can store: so many, and so many bytes of envelopes.

    One that is larger is a group of its own.
    """
    if len(publications) == 1:
        yield publications
        return
    group: list[Publication] = []
    size = 0
    for item in publications:
        if group and (
            len(group) == BATCH
            or size + len(item.envelope) > BATCH_BYTES
            or _kind(item) != _kind(group[0])
        ):
            yield group
            group, size = [], 0
        group.append(item)
        size += len(item.envelope)
    if group:
        yield group
