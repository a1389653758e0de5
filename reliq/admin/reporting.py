"""A report of a broker: its queues with their counts, ages and rates."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerRefused, again
from ..message.queue_names import queue_of
from ..store.unreadable import left_out
from .partitions import WHOLE, coverage, merged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..store.inspection import BrokerInfo, QueueStatus, Untold
    from ..store.protocol import Store
    from .partitions import Coverage


@dataclass(frozen=True, slots=True)
class QueueReport:
    """What an operator wants to know of one queue. Counts and ledger are of one instant."""

    queue: str
    ready: int
    delayed: int
    unacked: int
    dead: int
    consumers: int
    oldest_age_s: float | None
    """Since the publication of the oldest ready message; None where nothing is ready."""
    rate_in: float | None
    """Messages published a second since the report before; None without one, or where a partition
    could not be read."""
    rate_out: float | None
    """Messages acknowledged a second, as ``rate_in``."""
    paused: bool
    ledger: dict[str, int] = field(default_factory=dict)
    arguments: dict[str, object] = field(default_factory=dict)
    """As declared; what an operator has changed is in ``Inspector.settings``."""
    partitions: int = 1
    """Into how many it is divided."""
    partitions_untold: int = 0
    """How many of these could not be read: counts and ledger are without what they have."""


@dataclass(frozen=True, slots=True)
class Report:
    """A broker and its queues."""

    broker: BrokerInfo
    queues: list[QueueReport]
    at: float = field(repr=False)
    """When it was made (this process's monotonic clock)."""
    untold: list[Untold] = field(default_factory=list)
    """Of a cluster: the queues, and partitions of queues, that are not here, because their node
    does not answer."""


def all_statuses(store: Store) -> list[QueueStatus]:
    """Return the status of each queue; raises BrokerUnavailable where one cannot be told."""
    return statuses(store, store.queues())


def statuses(store: Store, queues: Iterable[str], *, checked: bool = True) -> list[QueueStatus]:
    """Return the status of each of *queues*, without those that nobody can read: these are said.

    *checked*: as the store's own status has it. Raises BrokerRefused where none can: then it is
    not the queues, but what this user may do.
    """
    found, refused = [], {}
    for name in queues:
        try:
            status = store.status(name, checked=checked)
        except BrokerRefused as exc:
            refused[name] = again(exc)
            continue
        if status is not None:  # else it was deleted meanwhile
            found.append(status)
    if refused and not found:
        raise again(next(iter(refused.values())))
    left_out(store.broker, "queues", list(refused))
    return found


def report(store: Store, since: Report | None = None) -> Report:
    """Look at the broker and at each of its queues; rates are those since *since*."""
    about, now_ms, at = store.about(), store.now_ms(), monotonic()
    told = store.told()
    before = {} if since is None else {item.queue: item for item in since.queues}
    passed_s = 0.0 if since is None else at - since.at
    found = []
    there = statuses(store, told.queues, checked=False)
    parts = coverage(told, there)
    partitions: dict[str, list[str]] = {}
    for status in there:
        partitions.setdefault(queue_of(status.name), []).append(status.name)
    for status in merged(there):
        name = status.name
        try:
            ages = [store.oldest_ms(part) for part in partitions[name] if status.ready]
            oldest = min((age for age in ages if age is not None), default=None)
        except BrokerRefused:
            left_out(store.broker, "ready messages of queues", [name])
            oldest = None
        age_s = None if oldest is None else max(now_ms - oldest, 0) / 1000
        found.append(_queue(status, age_s, before.get(name), passed_s, parts.get(name, WHOLE)))
    return Report(about, found, at, told.untold)


def _queue(
    status: QueueStatus,
    age_s: float | None,
    before: QueueReport | None,
    passed_s: float,
    parts: Coverage,
) -> QueueReport:
    def rate(counter: str) -> float | None:
        if before is None or passed_s <= 0:
            return None
        # What others have published and acknowledged came, or went, with their node.
        if parts.untold or before.partitions_untold:
            return None
        # A queue that was deleted and came back counts from 0.
        grown = status.ledger.get(counter, 0) - before.ledger.get(counter, 0)
        return max(grown, 0) / passed_s

    return QueueReport(
        status.name,
        status.ready,
        status.delayed,
        status.unacked,
        status.dead,
        status.consumers,
        age_s,
        rate("published"),
        rate("acked"),
        status.paused,
        status.ledger,
        status.declared,
        parts.partitions,
        parts.untold,
    )
