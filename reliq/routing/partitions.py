"""Partitions: one queue stored as several, each with its own messages, leases and ledger.

Partition 0 is the queue itself. It is created first and deleted last, and its layout is
authoritative, including the number of partitions to publish to. The others are created, opened and
closed in separate steps, maybe on other nodes. An interrupted change is harmless: a new partition
is either empty, or before the end of the layout and so consumed from. Consumers complete the change
(:func:`settle`). A surplus partition is closed, then drained by consumers, then removed. A claim
prevents concurrent changes of one layout (:func:`_alone`).
"""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext, suppress
from math import ceil, inf
from time import monotonic, sleep
from typing import TYPE_CHECKING, NoReturn, TypeVar

from ..errors import (
    BrokerUnavailable,
    ConfigurationError,
    NotFound,
    PreconditionFailed,
    ReliqError,
)
from ..message.queue_arguments import WHOLE
from ..message.queue_names import (
    MOST_PARTITIONS,
    number_of,
    partition_name,
    partition_names,
    queue_of,
)
from ..values.protocol import Attempt, partly_reachable
from ..values.values import CLAIMED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ..values.protocol import Store
    from ..values.values import Layout, QueueDeclared, QueueDeleted

T = TypeVar("T")

# An interrupted change blocks other changes for at most this time.
_CLAIM_MS = 30_000
_RENEW_AFTER_S = 5.0
_POLL_EVERY_S = 0.05
# How long to try a node known to be unreachable: it may be back.
_UNREACHABLE_PATIENCE_S = 0.2
# How long to try another node, including the connection. It is skipped after one failure.
_NODE_PATIENCE_S = 1.0


def declare(store: Store, queue: str, arguments: bytes, meta: Mapping[str, str]) -> QueueDeclared:
    """Declare *queue*, and its partitions if *meta* has their number.

    An existing queue keeps its layout, whatever *meta* says. A spool only records the declaration.
    """
    count = int(meta.get("partitions", 1))
    if count == 1 or not store.has_partitions:
        return store.declare_queue(queue, False, arguments, dict(meta))
    given = {**_shares(meta, count), "partitions_end": str(count)}
    declared = store.declare_queue(queue, False, arguments, given)
    if declared.outcome != "differs":
        _complete(store, queue, declared.arguments)
    return declared


def _complete(store: Store, queue: str, arguments: bytes) -> None:
    """Create missing partitions, which an interrupted change may have left out.

    Skips unreachable nodes, so that they do not delay a declaration.
    """
    layout = store.layout(queue)
    if layout is None:
        return
    store.partitions[queue] = layout.partitions
    names = partition_names(queue, layout.partitions)[1:]
    answers = list(_answers(store, names, store.layout))
    if None not in answers:
        return
    patience_s = inf if len(answers) == len(names) else _NODE_PATIENCE_S
    # If a node is lost, a later declaration or a consumer creates it when the node answers.
    with Attempt(store, patience_s), _alone(store, queue) as still_mine:
        _settle(store, queue, arguments, still_mine)


def _answers(store: Store, partitions: Sequence[str], ask: Callable[[str], T]) -> Iterator[T]:
    """Yield the result of *ask* for each of *partitions*; skip those of unreachable nodes.

    Raises BrokerUnavailable on a single server, or if all nodes are unreachable.
    """
    for name in partitions:
        if store.is_unreachable(name):
            continue
        with Attempt(store, _NODE_PATIENCE_S) as attempt:
            answer = ask(name)
        if not attempt.lost:
            yield answer


def _make(
    store: Store,
    queue: str,
    arguments: bytes,
    partitions: int,
    layout: Layout,
    still_mine: Callable[[], None],
) -> None:
    """Create missing partitions with the settings of the queue, paused if it is paused.

    Until partition 0 has a higher number to publish to, they have the one from *layout*.
    Raises NotFound if the queue is deleted meanwhile: the partitions would have no consumer.
    """
    settings = store.configure(queue, {}) or {}
    meta = {**settings, "partitions": str(layout.partitions)}
    made = []
    paused = layout.paused
    for name in partition_names(queue, partitions)[1:]:
        if store.layout(name) is None:
            still_mine()
            store.declare_queue(name, False, arguments, {**meta, "paused": "1"} if paused else meta)
            made.append(name)
            after = store.layout(queue)
            if after is None or after.end < partitions:
                _deleted_meanwhile(store, queue, made)
            if after.paused != paused:  # an operator may have missed it
                paused = after.paused
                store.pause(name, paused)


def _deleted_meanwhile(store: Store, queue: str, made: Sequence[str]) -> NoReturn:
    for name in made:
        if store.delete_queue(name, if_empty=True).outcome == "deleted":
            store.unbind_queue(name)
    raise NotFound(f"queue {queue!r} was deleted while it was being partitioned")


def _settle(
    store: Store,
    queue: str,
    arguments: bytes,
    still_mine: Callable[[], None],
) -> None:
    """Make every partition match the layout: existing, open or closed, and paused or not."""
    layout = store.layout(queue)
    if layout is None:
        return
    _make(store, queue, arguments, layout.partitions, layout, still_mine)
    for number in range(1, layout.end):
        still_mine()
        name = partition_name(queue, number)
        store.lay_out(name, layout.partitions, closed=number >= layout.partitions)
    if layout.paused:
        _pause(store, queue, partition_names(queue, layout.end)[1:])


def _pause(store: Store, queue: str, partitions: Sequence[str]) -> None:
    """Pause partitions of a paused *queue*; resume them if an operator resumed it meanwhile."""
    for name in partitions:
        store.pause(name, True)
    layout = store.layout(queue)
    if layout is not None and not layout.paused:
        for name in partitions:
            store.pause(name, False)


def _shares(meta: Mapping[str, str], partitions: int) -> dict[str, str]:
    """Return *meta* with each limit of the whole queue, and one partition's share of it."""
    shares = dict(meta)
    for field, whole in WHOLE.items():
        limit = meta.get(whole) or meta.get(field)
        if limit:
            shares[whole], shares[field] = limit, str(ceil(int(limit) / partitions))
    return shares


def divide(
    store: Store, queue: str, partitions: int, attached: Callable[[str], object] | None = None
) -> Layout:
    """Set the number of partitions of *queue*, which may be in use; return its layout.

    *attached* is called with each new partition before any publish to it, and waits for its
    consumers. Surplus partitions accept no new messages, and are removed when drained. Not atomic:
    the next call completes an interrupted change. Raises NotFound, ConfigurationError, and
    PreconditionFailed during another change.
    """
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise ConfigurationError(
            f"queue {queue!r}: expected a whole number of partitions from 1 to {MOST_PARTITIONS}, "
            f"got: {partitions!r}"
        )
    if number_of(queue):
        raise ConfigurationError(f"{queue!r} is a partition: change its queue {queue_of(queue)!r}")
    with _alone(store, queue) as still_mine:
        if store.attached(queue).temporary:
            raise ConfigurationError(
                f"queue {queue!r} is temporary (auto_delete, x-expires): it cannot be partitioned"
            )
        layout = store.lay_out(queue, 0, partitions)
        if layout is None:
            raise NotFound(f"no queue {queue!r}")
        arguments = _arguments_of(store, queue)
        _make(store, queue, arguments, partitions, layout, still_mine)
        new = partition_names(queue, partitions)[layout.partitions :]
        if attached is not None:
            for name in new:
                attached(name)
        still_mine()
        after = store.lay_out(queue, partitions)
        if after is None or after.end < partitions:
            _deleted_meanwhile(store, queue, new)
        store.partitions[queue] = partitions
        _settle(store, queue, arguments, still_mine)
        _share(store, queue, still_mine)
        return store.layout(queue) or after


def _arguments_of(store: Store, queue: str) -> bytes:
    status = store.reads.status(queue)
    given = None if status is None else status.arguments.get("")
    return given if isinstance(given, bytes) else b""


def _share(store: Store, queue: str, still_mine: Callable[[], None]) -> None:
    """Give each partition its share of the limits of the whole queue."""
    settings, layout = store.configure(queue, {}) or {}, store.layout(queue)
    partitions = 1 if layout is None else layout.partitions
    shares = _shares(settings, partitions)
    changes = {name: shares[name] for pair in WHOLE.items() for name in pair if name in shares}
    if changes:
        for name in partition_names(queue, partitions):
            still_mine()
            store.configure(name, changes)


def configure(store: Store, queue: str, changes: Mapping[str, str | None]) -> dict[str, str] | None:
    """Change settings of *queue* and its partitions; return None if it does not exist.

    Limits are for the whole queue; each partition gets its share. Atomic for each partition, not
    across them. Raises the errors of :func:`in_each`.
    """
    layout = store.layout(queue)
    if layout is None:
        return None
    whole = {WHOLE[name]: value for name, value in changes.items() if name in WHOLE}
    if whole:
        # A queue that was partitioned before still has limits of the whole queue.
        known = store.configure(queue, {}) or {}
        if layout.partitions > 1 or not known.keys().isdisjoint(whole):
            limits = {name: value for name, value in changes.items() if value is not None}
            limits.update({name: value for name, value in whole.items() if value is not None})
            changes = {**changes, **whole, **_shares(limits, layout.partitions)}
    return in_each(store, queue, lambda name: store.configure(name, changes))[-1]


def settle(store: Store, queue: str) -> bool:
    """Complete an interrupted change of the layout of *queue*; remove drained partitions.

    Returns False during another change.
    """
    layout = store.layout(queue)
    if layout is None or layout.end == 1:
        return True
    try:
        with _alone(store, queue, waits_s=0.0) as still_mine:
            _settle(store, queue, _arguments_of(store, queue), still_mine)
            _remove_drained(store, queue, still_mine)
    except PreconditionFailed:
        return False
    return True


def _remove_drained(store: Store, queue: str, still_mine: Callable[[], None]) -> None:
    """Remove the closed partitions of *queue*, from the last down to the first not drained."""
    layout = store.layout(queue)
    if layout is None:
        return
    for number in reversed(range(layout.partitions, layout.end)):
        still_mine()
        name = partition_name(queue, number)
        if store.delete_queue(name, if_drained=True).outcome not in {"deleted", "missing"}:
            return
        store.unbind_queue(name)
        store.lay_out(queue, end=number, end_was=number + 1)


def recovered(store: Store, queue: str) -> Layout | None:
    """Return the layout of *queue*; if it has one partition, look for others.

    Partition 0 may have been lost (evicted, or its node came back empty). The messages of the
    others are then consumed again. None: the queue does not exist.
    """
    layout = store.layout(queue)
    if layout is None or layout.end > 1:
        return layout
    names = partition_names(queue, MOST_PARTITIONS)
    end = next((n for n in range(1, MOST_PARTITIONS) if store.layout(names[n]) is None), len(names))
    return layout if end == 1 else store.lay_out(queue, 0, end)


def layout_of_others(store: Store, queue: str) -> Layout | None:
    """Return the layout of *queue* from a reachable partition, if partition 0 is unreachable.

    None: no reachable partition knows of several, or the broker is a single server.
    """
    if not (store.has_partitions and partly_reachable(store)):
        return None
    others = partition_names(queue, MOST_PARTITIONS)[1:]
    try:
        layout = next(_answers(store, others, store.layout), None)
    except BrokerUnavailable:
        return None
    return layout if layout is not None and layout.partitions > 1 else None


def adopt(store: Store, partition: str) -> None:
    """Add a partition that a publish created to the layout, so that it is consumed from."""
    queue, end = queue_of(partition), number_of(partition) + 1
    store.list_queue(partition)
    layout = store.lay_out(queue, 0, end)
    if layout is None:
        store.create_queue(queue)
        store.lay_out(queue, 0, end)
    elif layout.paused:
        _pause(store, queue, (partition,))


def names_of(store: Store, queue: str) -> Sequence[str]:
    """Return the names of the partitions of *queue*, itself first; queries the broker."""
    layout = None if number_of(queue) else store.layout(queue)
    return (queue,) if layout is None else partition_names(queue, layout.end)


def waiting(store: Store, partitions: Sequence[str]) -> int:
    """Return the number of ready and delayed messages in the reachable ones of *partitions*."""
    answers = _answers(store, partitions, lambda name: store.declare_queue(name, True, b"", {}))
    return sum(declared.messages for declared in answers)


def in_each(store: Store, queue: str, step: Callable[[str], T]) -> list[T]:
    """Call *step* for each partition of *queue*, itself last; return the results in that order.

    Skips unreachable partitions, and at the end raises BrokerUnavailable with their names.
    """
    first, *others = names_of(store, queue)
    done: list[T] = []
    skipped: dict[str, ReliqError] = {}
    for name in (*reversed(others), first):
        # Each node gets the full timeout once; one known to be unreachable gets a short one.
        known = bool(skipped) and store.is_unreachable(name)
        with Attempt(store, _UNREACHABLE_PATIENCE_S if known else inf) as attempt:
            done.append(step(name))
        if attempt.lost:
            if not others:
                attempt.raise_lost()
            skipped[name] = attempt.lost
    if skipped:
        raise BrokerUnavailable(
            f"queue {queue!r}: {len(skipped)} of its {1 + len(others)} partitions are unreachable, "
            f"{', '.join(map(repr, skipped))}; all others are done. Retry when their nodes answer: "
            f"{next(iter(skipped.values()))}"
        )
    return done


def delete(
    store: Store, queue: str, *, if_empty: bool = False, if_unused: bool = False
) -> QueueDeleted:
    """Delete *queue* and its messages, if the conditions hold for each of its partitions.

    Deletes one partition at a time, partition 0 last. If a condition fails midway, the deleted
    partitions met it; the next declaration of the queue creates them again.
    """
    count, divided = 0, len(names_of(store, queue)) > 1
    # Prevents a concurrent change, which would create more partitions.
    with _alone(store, queue) if divided else nullcontext():
        first, *others = names_of(store, queue) if divided else (queue,)
        for name in (*reversed(others), first):
            deleted = store.delete_queue(name, if_empty=if_empty, if_unused=if_unused)
            if deleted.outcome == "deleted":
                count += deleted.number
                if name != first:
                    store.unbind_queue(name)
            elif deleted.outcome != "missing":
                return deleted
    store.partitions.pop(queue, None)
    return deleted if deleted.outcome == "missing" else deleted._replace(number=count)


def refuse_partition(queue: str) -> None:
    """Raise ConfigurationError if *queue* has the name of a partition, which is reserved."""
    if number_of(queue):
        raise ConfigurationError(
            f"{queue!r} is the name of a partition of {queue_of(queue)!r}: names that end in "
            "%p<number>.<number> are reserved"
        )


@contextmanager
def _alone(store: Store, queue: str, waits_s: float | None = None) -> Iterator[Callable[[], None]]:
    """Hold the claim to change the layout of *queue*; it expires if the process is killed.

    Waits for *waits_s*, then raises PreconditionFailed. Yields a check that renews the claim, and
    raises the same error if another process has taken it.
    """
    name, token = f"reliq:partitions:{queue}", os.urandom(8).hex()
    claimed_at = monotonic()
    until = claimed_at + (_CLAIM_MS / 1000 if waits_s is None else waits_s)

    def claim() -> bool:
        nonlocal claimed_at
        now = monotonic()
        mine = store.claim(name, token, _CLAIM_MS) == CLAIMED
        if mine:
            claimed_at = now
        return mine

    def still_mine() -> None:
        if monotonic() - claimed_at > _RENEW_AFTER_S and not claim():
            raise _busy(queue)

    while not claim():
        if monotonic() > until:
            raise _busy(queue)
        sleep(_POLL_EVERY_S)
    try:
        yield still_mine
    finally:
        with suppress(BrokerUnavailable):  # it expires
            store.claim(name, token, 0)


def _busy(queue: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"the partitions of queue {queue!r} are being changed by another process; try again"
    )
