"""A divided queue as operators see it: one, whose counts are those of its partitions together.

Each partition is read at one instant, and balances by itself: an audit looks at each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from ..message.queue_names import number_of, queue_of
from ..routing.partitions import divide

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..store.inspection import Measure, QueueStatus
    from ..store.protocol import Store

# Consumers look at the layout of their queues in each restore_interval, 5 s by default; over a
# cluster one that is alone at a quiet queue does in each third.
_ATTACHED_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.1


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
    return replace(own, name=queue, ledger=dict(ledger), **counts)


def merged_measures(measures: Iterable[Measure]) -> list[Measure]:
    """Return what metrics need of each queue, its partitions together."""
    found: dict[str, list[Measure]] = {}
    for measure in measures:
        found.setdefault(queue_of(measure.status.name), []).append(measure)
    return [
        parts[0]
        if len(parts) == 1
        else replace(
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


def change(store: Store, queue: str, partitions: int) -> None:
    """Divide *queue* into so many partitions; messages come to a new one when it has consumers.

    Waits for them for some seconds. Raises as :func:`reliq.routing.partitions.divide` does.
    """
    until = monotonic() + _ATTACHED_WITHIN_S

    def attached(partition: str) -> None:
        wanted = set(store.consumers_of(queue))
        while not wanted <= set(store.consumers_of(partition)) and monotonic() < until:
            sleep(_LOOK_EVERY_S)

    divide(store, queue, partitions, attached)
