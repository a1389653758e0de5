"""A report of a broker: its queues with their counts, ages and rates."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from .partitions import WHOLE, coverage, merged_measures

if TYPE_CHECKING:
    from ..values.inspection import BrokerInfo, Measure, Untold
    from ..values.protocol import Store
    from .partitions import Coverage


@dataclass(frozen=True, slots=True)
class QueueReport:
    """The state of one queue. Counts, age and ledger are from one instant."""

    queue: str
    ready: int
    delayed: int
    unacked: int
    dead: int
    consumers: int
    oldest_age_s: float | None
    """Time since the publication of the oldest ready message; None without ready messages."""
    rate_in: float | None
    """Messages published per second since the previous report; None without one, or if a
    partition is unreadable."""
    rate_out: float | None
    """Messages acknowledged per second, as ``rate_in``."""
    paused: bool
    ledger: dict[str, int] = field(default_factory=dict)
    arguments: dict[str, object] = field(default_factory=dict)
    """The declared arguments; ``Inspector.settings`` has the changes by operators."""
    partitions: int = 1
    """The number of its partitions."""
    partitions_untold: int = 0
    """The number of unreadable partitions, which counts and ledger do not include."""


@dataclass(frozen=True, slots=True)
class Report:
    """A broker and its queues."""

    broker: BrokerInfo
    queues: list[QueueReport]
    at: float = field(repr=False)
    """The time of the report (this process's monotonic clock)."""
    untold: list[Untold] = field(default_factory=list)
    """Missing queues and partitions, whose cluster node does not answer."""


def report(store: Store, since: Report | None = None) -> Report:
    """Return a report of the broker and its queues, with the rates since *since*."""
    about, at = store.reads.about(), monotonic()
    before = {} if since is None else {item.queue: item for item in since.queues}
    passed_s = 0.0 if since is None else at - since.at
    there = store.reads.measure_all()
    parts = coverage(there)
    queues = [
        _queue(measure, before.get(name), passed_s, parts.get(name, WHOLE))
        for measure in merged_measures(there)
        for name in [measure.status.name]
    ]
    return Report(about, queues, at, there.unreachable)


def _queue(
    measure: Measure, before: QueueReport | None, passed_s: float, parts: Coverage
) -> QueueReport:
    status = measure.status

    def rate(counter: str) -> float | None:
        if before is None or passed_s <= 0:
            return None
        # Counts of partitions appear and disappear with their nodes, which distorts a rate.
        if parts.untold or before.partitions_untold:
            return None
        # The counters of a deleted and recreated queue restart at 0.
        grown = status.ledger.get(counter, 0) - before.ledger.get(counter, 0)
        return max(grown, 0) / passed_s

    same = ("ready", "delayed", "unacked", "dead", "consumers", "paused", "ledger")
    return QueueReport(
        queue=status.name,
        oldest_age_s=measure.oldest_age_s,
        rate_in=rate("published"),
        rate_out=rate("acked"),
        arguments=status.declared,
        partitions=parts.partitions,
        partitions_untold=parts.untold,
        **{name: getattr(status, name) for name in same},
    )
