"""The limits that several files and scripts share, and the grouping of work into steps.

A script names the limits that it uses (``-- limits: BATCH``), and the loader inserts the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..message import delivery_tag
from ..message.delivery_tag import JOB, PUBLISHER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .values import Publication

T = TypeVar("T")

FORMAT = 1
"""The version of the stored format. Other versions are refused (client/connect.py)."""

BATCH = 200
"""The maximum number of messages in one step, which then takes well under 5 ms."""
BATCH_BYTES = 1 << 20
"""The maximum bytes of envelopes in one step that stores or moves messages."""
MOST_REMEMBERED = 4096
"""The maximum number of names in one cache."""
MOVED_AT_ONCE = 100
"""The maximum number of messages in one step of a move."""

RANK = 2**45
"""The distance of two ranks in a score: rank * RANK + sequence."""
HIGHEST_RANK = 255

DAY_US = 86_400_000_000
"""The age at which an unfinished move may be continued to another target."""
MOVES_KEPT_MS = 200 * 86_400_000
"""How long the numbers of a move are kept. The default retention of dead letters is shorter, so
an interrupted move that resumes finds its numbers."""
SHORT_MS = 3_600_000
"""How long the publish numbers of a new process are kept: longer than a kernel resends an
unacknowledged request (15 to 30 minutes), and longer than most retries continue."""
LONG_MS = 86_400_000
"""How long the publish numbers of a long-lived process are kept. Such processes are few:
at most a hundred a day in each place where one runs, however often it is killed."""
OUTLIVES_MS = 60_000
"""How long publish numbers outlive their queue, as a retry may be under way."""

REPORTS_OF_A_JOB = 20
"""The maximum number of reports of a job; later reports are ignored."""
REPORTS_KEPT = 10_000
"""The number of reports kept for a batch: the latest ones."""
PROGRESS_LISTED = 1000
"""The number of jobs of a batch listed with their progress: the latest ones to report it."""

LOG_MS = 10_000
"""How long the log of an exchange keeps a transient message."""
LOG_LENGTH = 10_000
"""The maximum number of messages in the log of an exchange."""
LOG_BYTES = 16_384
"""The largest envelope in the log of an exchange; larger ones are stored in each queue."""

DUE_AT_ONCE = 500
"""The maximum number of due queues that one heartbeat returns."""
A_QUEUE_MS = 2
"""The time for each due queue: one consumer at a time checks it, at most 500 queues a second."""
ROUTED_AT_ONCE = 1000
"""The maximum number of queues with routed dead letters that one heartbeat returns."""
CHECKED_AT_ONCE = 1000
"""The maximum number of consumers in one check for dead consumers."""
FORGOTTEN_MS = 10 * 86_400_000
"""How long a consumer that ended without deregistering is kept while no other one lives."""

MINUTE_MS = 60_000
"""The interval between two snapshots in the history of a queue."""
HISTORY_BLOCKS = 72
"""The number of full blocks of sixty snapshots in a history: 72 hours."""

FAILURES_KEPT = 1000
"""The number of failed deliveries kept for a queue: the latest ones."""

RANK_DIGITS = delivery_tag.RANK.stop
"""The number of hexadecimal digits of the rank, with which a tag begins."""
JOB_MARK = ord(JOB)
"""The last character of a job's delivery tag."""
PUBLISHER_FROM, PUBLISHER_TO = PUBLISHER.start + 1, PUBLISHER.stop
"""The first and the last character of a publisher's random bits in a tag, as Lua counts."""

CANDIDATE_FAILURES = 2
"""The failures that make a message a poison candidate; with a low limit, one less than that."""
STARTS_LISTED = 16
"""The number of instants whose starts a queue's rate remembers, to take back those unused."""
ROUNDS = 4
"""How often a reserve searches further for messages to take besides a poison candidate."""


def chunks(items: Sequence[T], at_once: int = BATCH) -> Iterator[Sequence[T]]:
    """Yield *items* in groups of *at_once*; the default is the size of one step."""
    for start in range(0, len(items), at_once):
        yield items[start : start + at_once]


def _kind(item: Publication) -> tuple[object, ...]:
    route = item.queue, item.exchange, item.version, item.create
    return (*route, item.publisher, item.moved, item.number == 0)


def alike(publications: Sequence[Publication]) -> Iterable[Sequence[Publication]]:
    """Group similar neighbours within BATCH and BATCH_BYTES; a larger message is a group alone."""
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
