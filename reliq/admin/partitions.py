"""A divided queue as operators see it: one, whose counts are those of its partitions together.

Each partition is read at one instant, and balances by itself: an audit looks at each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..errors import BrokerUnavailable, ConfigurationError, again
from ..message.queue_names import number_of, partition_names, queue_of
from ..routing.partitions import divide, names_of
from ..store.inspection import Told
from ..store.nodes import goes_on
from .partial import Partial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..store.inspection import Measure, QueueStatus
    from ..store.protocol import Store

T = TypeVar("T")

# Consumers look at the layout of their queues in each restore_interval, 5 s by default; over a
# cluster one that is alone at a quiet queue does in each fourth.
_ATTACHED_WITHIN_S = 25.0
_LOOK_EVERY_S = 0.1


class Coverage(NamedTuple):
    """How much of a queue was read."""

    partitions: int
    """As many as it has, those that are being drained too."""
    untold: int
    """As many of these could not be read."""


WHOLE = Coverage(1, 0)


def coverage(told: Told, found: Iterable[QueueStatus]) -> dict[str, Coverage]:
    """Return how much of each queue was read: *found*, of what *told* has named.

    Where the list of all queues could not be read, those that were say how many they are.
    """
    known: dict[str, set[str]] = defaultdict(set)
    for name in (*told.queues, *(name for item in told.untold for name in item.queues)):
        known[queue_of(name)].add(name)
    read = set()
    for status in found:
        read.add(status.name)
        if not told.complete:
            queue = queue_of(status.name)
            known[queue].update(partition_names(queue, status.partitions))
    return {queue: Coverage(len(names), len(names - read)) for queue, names in known.items()}


def merged(statuses: Iterable[QueueStatus]) -> list[QueueStatus]:
    """Return the status of each queue, its partitions together, in the order of the names."""
    found: dict[str, list[QueueStatus]] = {}
    for status in statuses:
        found.setdefault(queue_of(status.name), []).append(status)
    return [_together(queue, parts) for queue, parts in found.items()]


def _together(queue: str, parts: Sequence[QueueStatus]) -> QueueStatus:
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
    """Return the counts of each queue, its partitions merged as by :func:`merged`."""
    found: dict[str, list[Measure]] = {}
    for measure in measures:
        found.setdefault(queue_of(measure.status.name), []).append(measure)
    return [
        replace(
            parts[0],
            status=_together(queue, [measure.status for measure in parts]),
            ready=dict(sum((Counter(measure.ready) for measure in parts), Counter[int]())),
            oldest_ms=min((m.oldest_ms for m in parts if m.oldest_ms is not None), default=None),
            due=sum(measure.due for measure in parts),
        )
        for queue, parts in found.items()
    ]


def names(queues: Iterable[str]) -> list[str]:
    """Return the names of the queues among *queues*, which are partitions, too."""
    return list(dict.fromkeys(map(queue_of, queues)))


def refuse_part(store: Store, queue: str) -> None:
    """Raise ConfigurationError where *queue* is one of the partitions of a queue.

    What is changed holds for the whole. But a partition that its queue has lost sight of can be
    put right under its own name alone.
    """
    number = number_of(queue)
    layout = store.layout(queue_of(queue)) if number else None
    if layout is not None and number < layout.end:
        raise ConfigurationError(
            f"{queue!r} is a partition of {queue_of(queue)!r}, and is not changed by itself: name "
            f"{queue_of(queue)!r} instead"
        )


def told_of(store: Store, queue: str) -> Told:
    """Return which partitions of *queue* can be read now, and which cannot."""
    told = store.reads.told()
    untold = []
    for item in told.untold:
        mine = tuple(name for name in item.queues if queue_of(name) == queue)
        # Of a node whose queues are not known it may have some.
        if mine or not (item.queues or told.complete):
            untold.append(replace(item, queues=mine))
    there = sorted((n for n in told.queues if queue_of(n) == queue), key=number_of)
    return Told(there, untold, told.complete)


def of_those_reachable(
    store: Store, queue: str, look: Callable[[Sequence[str]], Iterable[T]]
) -> Partial[T]:
    """Return what *look* finds in the partitions of *queue* that can be read.

    Raises BrokerUnavailable where none can.
    """
    try:
        return Partial(look(names_of(store, queue)))
    except BrokerUnavailable as exc:
        if not goes_on(store):
            raise
        failure = again(exc)
    told = told_of(store, queue)
    if not told.queues:
        raise again(failure)
    return Partial(look(told.queues), told.untold)


def require_nodes(store: Store, queue: str, end: int = 1) -> None:
    """Raise BrokerUnavailable where a node is away that has to be told of a change of *queue*.

    Before anything is changed: that of a partition, of the first *end* also where they are not
    there yet, or of the list of all queues.
    """
    layout = store.layout(queue) if store.has_nodes and not number_of(queue) else None
    if layout is None:
        return
    for name in partition_names(queue, max(layout.end, end))[1:]:
        store.layout(name)
    store.list_queue(queue)  # it is


def change(store: Store, queue: str, partitions: int) -> None:
    """Divide *queue* into so many partitions; messages come to a new one when it has consumers.

    Waits for them for some seconds. Raises as :func:`reliq.routing.partitions.divide` does.
    """
    require_nodes(store, queue, partitions)
    until = monotonic() + _ATTACHED_WITHIN_S

    def attached(partition: str) -> None:
        # Asked anew each time: one that has died never comes, until the others notice.
        while not set(store.consumers_of(queue)) <= set(store.consumers_of(partition)):
            if monotonic() > until:
                return
            sleep(_LOOK_EVERY_S)

    divide(store, queue, partitions, attached)
