"""Queues as operators see and change them: a divided one is one queue, and what is lost is told."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..errors import BrokerUnavailable, ConfigurationError, NotFound, again
from ..message.queue_arguments import FIELDS, queue_arguments
from ..message.queue_arguments import WHOLE as WHOLE_FIELDS
from ..message.queue_names import number_of, partition_names, queue_of
from ..routing.partitions import configure, divide, names_of
from ..store.protocol import goes_on, status_of
from .names import CHANGEABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..store.inspection import Measure, QueueStatus, Untold
    from ..store.protocol import Store

T = TypeVar("T")
U = TypeVar("U")

# Consumers look at the layout of their queues in each restore_interval, 5 s by default; over a
# cluster one that is alone at a quiet queue does in each fourth.
_ATTACHED_WITHIN_S = 25.0
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class BatchesUntold:
    """Batches that cannot be read: a server of several does not answer, a key is another's."""

    batches: tuple[str, ...]
    error: str
    """Which node, and why, in one line."""

    def __str__(self) -> str:
        """Say it to an operator."""
        names = ", ".join(map(repr, self.batches)) or "which there are is not known"
        return f"{self.error}; batches not told: {names}"


class Partial(list[T]):
    """A list of what was found. Of a cluster, it is without what lost nodes have.

    Of any other broker it is always the whole: one that does not answer is a BrokerUnavailable,
    and so is a cluster of which no node does.
    """

    def __init__(
        self,
        found: Iterable[T] = (),
        unreachable: Iterable[Untold | BatchesUntold] = (),
        *,
        asked: Sequence[str] = (),
        complete: bool = True,
    ) -> None:
        super().__init__(found)
        self.unreachable: list[Any] = list(unreachable)
        """What is not in it, by node, and why: each as text says it."""
        self.asked = asked
        """The queues, and partitions, that were asked for it."""
        self.complete = complete
        """Whether it is known which others there are."""

    def each(self, change: Callable[[T], U]) -> Partial[U]:
        """Return *change* of each."""
        return Partial(map(change, self), self.unreachable)

    def whole(self) -> list[T]:
        """Return the list; raises BrokerUnavailable where something is missing in it."""
        if self.unreachable:
            raise BrokerUnavailable("; ".join(map(str, self.unreachable)))
        return self


class Coverage(NamedTuple):
    """How much of a queue was read."""

    partitions: int
    """As many as it has, those that are being drained too."""
    untold: int
    """As many of these could not be read."""


WHOLE = Coverage(1, 0)


def coverage(found: Partial[Measure]) -> dict[str, Coverage]:
    """Return how much of each queue was read.

    Where the list of all queues could not be read, those that were say how many they are.
    """
    known: dict[str, set[str]] = defaultdict(set)
    lost = (name for item in found.unreachable for name in getattr(item, "queues", ()))
    for name in (*found.asked, *lost):
        known[queue_of(name)].add(name)
    read = set()
    for measure in found:
        name, queue = measure.status.name, queue_of(measure.status.name)
        read.add(name)
        if not found.complete:
            known[queue].update(partition_names(queue, measure.status.partitions))
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


def for_each_queue(
    store: Store, queue: str | None, step: Callable[[Sequence[str]], Iterable[T]]
) -> Partial[T]:
    """Return what *step* finds in the partitions of *queue*, or in all queues, that can be read.

    The rest is ``unreachable``. Raises BrokerUnavailable where no partition of *queue* can be read.
    """
    failure: BrokerUnavailable | None = None
    if queue is not None:
        try:
            return Partial(step(names_of(store, queue)))
        except BrokerUnavailable as exc:
            if not goes_on(store):
                raise
            failure = again(exc)
    told = store.reads.told()
    names, lost = told.queues, told.untold
    if queue is not None:
        names = sorted((name for name in names if queue_of(name) == queue), key=number_of)
        # Of a node whose queues are not known it may have some.
        mine = [(item, [name for name in item.queues if queue_of(name) == queue]) for item in lost]
        lost = [
            replace(item, queues=tuple(its))
            for item, its in mine
            if its or not (item.queues or told.complete)
        ]
        if failure is not None and not names:
            raise again(failure)
    return Partial(step(names), lost, asked=names, complete=told.complete)


def require_nodes(store: Store, queue: str, end: int = 1) -> None:
    """Raise BrokerUnavailable where a node is away that has to be told of a change of *queue*.

    That of a partition, of the first *end* also where they are not there yet, or of the list.
    """
    layout = store.layout(queue) if store.has_nodes and not number_of(queue) else None
    if layout is None:
        return
    for name in partition_names(queue, max(layout.end, end))[1:]:
        store.layout(name)
    store.list_queue(queue)  # it is


def _divide(store: Store, queue: str, partitions: int) -> None:
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


_TEXTS = frozenset({"x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key"})


def settings(store: Store, queue: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Change settings of *queue* (None: back to what was declared); return those that hold.

    Raises NotFound, or ConfigurationError before anything is changed.
    """
    declared = status_of(store, queue).declared
    for name in changes or ():
        if name not in CHANGEABLE:
            raise ConfigurationError(
                f"queue {queue!r}: {name!r} cannot be changed: expected one of "
                f"{', '.join(CHANGEABLE)}"
            )
    _, meta = queue_arguments(queue, False, declared)
    before = store.configure(queue, {})
    if before is None:
        raise NotFound(f"no queue {queue!r}")
    wanted: dict[str, str | None] = {}
    for name, value in (changes or {}).items():
        field = FIELDS[name]
        wanted[field] = meta.get(field)
        if value is not None:
            # An overflow is checked on its own here; with the limits that hold, below.
            companion = {"x-max-length": 1} if name == "x-overflow" else {}
            wanted[field] = queue_arguments(queue, False, {name: value, **companion})[1][field]
    merged = {**before, **wanted}
    if merged.get("overflow") and not (merged.get("max_length") or merged.get("max_bytes")):
        raise ConfigurationError(
            f"queue {queue!r}: x-overflow means nothing without x-max-length or x-max-length-bytes"
        )
    count = wanted.pop("partitions", "")
    after = configure(store, queue, wanted) if wanted else before
    if count != "":
        _divide(store, queue, int(count or 1))
        after = store.configure(queue, {})
    if after is None:
        raise NotFound(f"no queue {queue!r}")
    held = {
        **after,
        **{field: after[whole] for field, whole in WHOLE_FIELDS.items() if whole in after},
    }
    return {name: _value(name, held[field]) for name, field in FIELDS.items() if field in held}


def _value(name: str, stored: str) -> Any:
    if name in _TEXTS:
        return stored
    if name == "x-dead-letter-expired":
        return stored == "1"
    return -1 if name == "x-delivery-limit" and stored == "0" else int(stored)
