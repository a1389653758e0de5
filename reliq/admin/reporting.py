"""A report of a broker: its queues with their counts, ages and rates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..values.protocol import Attempt
from .limits import limits_of, unenforced
from .partitions import WHOLE, coverage, merged_measures

if TYPE_CHECKING:
    from ..values.inspection import BrokerInfo, Consumer, Measure, Untold
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
    concurrency: int | None = None
    """The limit of messages in hand that is in force; None: no limit."""
    rate: str | None = None
    """The limit of starts that is in force, such as ``100/m``; None: no limit."""
    limit_reached: str = ""
    """The reached limit, such as ``200 of 200 in hand``; "" if a message may start."""
    limit_not_enforced: int = 0
    """If it has a limit: the number of its consumers of an older version, which ignore limits."""


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
    measures = merged_measures(there)
    limits = _limits(store, measures)
    queues = [
        replace(
            _queue(measure, before.get(name), passed_s, parts.get(name, WHOLE)),
            **limits.get(name, {}),
        )
        for measure in measures
        for name in [measure.status.name]
    ]
    return Report(about, queues, at, there.unreachable)


def _limits(store: Store, measures: list[Measure]) -> dict[str, dict[str, Any]]:
    """Return the fields of each queue that has limits."""
    limits = [item for item in limits_of(measures) if item.limited]
    consumers: list[Consumer] = []
    with Attempt(store, refused=True):  # the node of the register may be lost
        consumers = store.reads.consumers() if limits else []
    older = unenforced([item.queue for item in limits], consumers)
    return {
        item.queue: {
            "concurrency": item.concurrency,
            "rate": item.rate,
            "limit_reached": item.reached,
            "limit_not_enforced": len(older.get(item.queue, ())),
        }
        for item in limits
    }


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
