"""Queues for operators: merge partitions into one queue, and report unreadable parts."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..errors import ConfigurationError
from ..message.queue_names import number_of, partition_names, queue_of
from ..values.inspection import Partial
from ..values.protocol import Attempt, no_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..values.inspection import Measure, QueueStatus
    from ..values.protocol import Store

T = TypeVar("T")


class Coverage(NamedTuple):
    """The readable and unreadable partitions of a queue."""

    partitions: int
    """The number of its partitions, including those that are being drained."""
    untold: int
    """The number of unreadable partitions."""


WHOLE = Coverage(1, 0)


def coverage(measures: Partial[Measure]) -> dict[str, Coverage]:
    """Return the coverage of each queue.

    If the list of all queues is unreadable, the readable partitions provide the number.
    """
    known: dict[str, set[str]] = defaultdict(set)
    lost = (name for item in measures.unreachable for name in getattr(item, "queues", ()))
    for name in (*measures.asked, *lost):
        known[queue_of(name)].add(name)
    read = set()
    for measure in measures:
        name, queue = measure.status.name, queue_of(measure.status.name)
        read.add(name)
        if not measures.complete:
            known[queue].update(partition_names(queue, measure.status.partitions))
    return {queue: Coverage(len(names), len(names - read)) for queue, names in known.items()}


def merged(queue: str, parts: Sequence[QueueStatus]) -> QueueStatus:
    """Return the status of *queue*, with its partitions merged."""
    if len(parts) == 1 and parts[0].name == queue:
        return parts[0]
    own = min(parts, key=lambda status: number_of(status.name))
    ledger = Counter[str]()
    for status in parts:
        ledger.update(status.ledger)
    counts = {
        name: sum(getattr(status, name) for status in parts)
        for name in ("ready", "delayed", "unacked", "dead", "stored")
    }
    partitions = max(status.partitions for status in parts)
    return replace(own, name=queue, ledger=dict(ledger), partitions=partitions, **counts)


def merged_measures(measures: Iterable[Measure]) -> list[Measure]:
    """Return the counts of each queue, its partitions merged, in the order of *measures*."""
    by_queue: dict[str, list[Measure]] = {}
    for measure in measures:
        by_queue.setdefault(queue_of(measure.status.name), []).append(measure)
    return [
        replace(
            parts[0],
            status=merged(queue, [measure.status for measure in parts]),
            ready=dict(sum((Counter(measure.ready) for measure in parts), Counter[int]())),
            oldest_ms=min((m.oldest_ms for m in parts if m.oldest_ms is not None), default=None),
            due=sum(measure.due for measure in parts),
        )
        for queue, parts in by_queue.items()
    ]


def names(queues: Iterable[str]) -> list[str]:
    """Return the names of the queues of *queues*, which include partitions."""
    return list(dict.fromkeys(map(queue_of, queues)))


def refuse_part(store: Store, queue: str) -> None:
    """Raise ConfigurationError if *queue* is a partition of a queue.

    A change must apply to the whole queue. Exception: a partition that is no longer in the layout
    of its queue can be repaired only under its own name.
    """
    number = number_of(queue)
    layout = store.layout(queue_of(queue)) if number else None
    if layout is not None and number < layout.end:
        raise ConfigurationError(
            f"{queue!r} is a partition of {queue_of(queue)!r}, and cannot be changed alone: use "
            f"{queue_of(queue)!r} instead"
        )


def parts_of(store: Store, queue: str) -> Sequence[str]:
    """Return the names of the partitions of *queue*, itself first; raises NotFound."""
    layout = store.layout(queue)
    if layout is None:
        raise no_queue(store, queue)
    return (queue,) if number_of(queue) else partition_names(queue, layout.end)


def for_each_part(
    store: Store, queue: str, step: Callable[[Sequence[str]], Iterable[T]]
) -> Partial[T]:
    """Return the results of *step* for the readable partitions of *queue*.

    The others are in ``unreachable``. Raises NotFound, and BrokerUnavailable if all are.
    """
    attempt = Attempt(store)
    with attempt:
        return Partial(step(parts_of(store, queue)))
    measures = store.reads.measure_all()
    names = sorted((name for name in measures.asked if queue_of(name) == queue), key=number_of)
    if not names:
        attempt.raise_lost()
    lost = []
    for item in measures.unreachable:
        its = tuple(name for name in item.queues if queue_of(name) == queue)
        # A node whose queues are unknown may have partitions of this queue.
        if its or not (item.queues or measures.complete):
            lost.append(replace(item, queues=its))
    return Partial(step(names), lost)


def require_nodes(store: Store, queue: str, end: int = 1) -> None:
    """Raise BrokerUnavailable if a node that a change of *queue* needs is unreachable.

    These are the nodes of all partitions, of new partitions up to *end*, and of the list of queues.
    """
    layout = store.layout(queue) if store.has_nodes and not number_of(queue) else None
    if layout is None:
        return
    for name in partition_names(queue, max(layout.end, end))[1:]:
        store.layout(name)
    store.list_queue(queue)  # it is listed already; this checks the node
