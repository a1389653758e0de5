"""Partitions: one queue over several, each with its own messages, leases and ledger.

Partition 0 is the queue itself: it is there first, goes last, and its layout is what holds. The
others are made, opened and closed in steps of their own, at other nodes perhaps. Whoever dies in
between leaves something that is harmless: a partition that holds nothing, or one that takes
messages and is consumed from, because it is before the end of the layout; consumers see to the rest
(:func:`settle`). A partition that is to go is closed first, then drained by the consumers, then
removed. How many there are to publish to is said by the queue's own partition alone. Two never
change one layout at the same time (:func:`_alone`).
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
    again,
)
from ..message.queue_arguments import WHOLE
from ..message.queue_names import (
    MOST_PARTITIONS,
    number_of,
    partition_name,
    partition_names,
    queue_of,
)
from ..store.protocol import goes_on
from ..store.values import CLAIMED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ..store.protocol import Store
    from ..store.values import Layout, QueueDeclared, QueueDeleted

T = TypeVar("T")

# A change that was interrupted is in nobody's way for longer than this.
_CLAIM_MS = 30_000
_RENEW_AFTER_S = 5.0
_LOOK_EVERY_S = 0.05
# So long a node that is known to be away is tried all the same: it may just be back.
_AWAY_PATIENCE_S = 0.2
# A node may have to be connected to first. It is found to be away but once, and then left out.
_NODE_PATIENCE_S = 1.0


def declare(store: Store, queue: str, arguments: bytes, meta: Mapping[str, str]) -> QueueDeclared:
    """Declare *queue* and, where that is said there, its partitions.

    The layout of a queue that is there holds, whatever *meta* says. A spool notes it as it is.
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
    """Make those partitions that are not there: whoever was to make them may have died.

    As far as can be told: a node that is away holds up nobody who declares the queue.
    """
    layout = store.layout(queue)
    if layout is None:
        return
    store.partitions[queue] = layout.partitions
    names = partition_names(queue, layout.partitions)[1:]
    found = list(_told(store, names, store.layout))
    if None not in found:
        return
    patience_s = inf if len(found) == len(names) else _NODE_PATIENCE_S
    try:
        with store.patience(patience_s), _alone(store, queue) as still_mine:
            _settle(store, queue, arguments, still_mine)
    except BrokerUnavailable:
        if not goes_on(store):
            raise
        # Who declares it makes it when its node answers, or a consumer does.


def _told(store: Store, partitions: Sequence[str], ask: Callable[[str], T]) -> Iterator[T]:
    """Yield what *ask* says of each of *partitions*, but for those whose node is away.

    Raises BrokerUnavailable where the broker is one server, or all of its nodes are lost.
    """
    for name in partitions:
        if store.is_away(name):
            continue
        try:
            with store.patience(_NODE_PATIENCE_S):
                found = ask(name)
        except BrokerUnavailable:
            if not goes_on(store):
                raise
            continue
        yield found


def _make(
    store: Store,
    queue: str,
    arguments: bytes,
    partitions: int,
    layout: Layout,
    still_mine: Callable[[], None],
) -> None:
    """Make the partitions that are not there, as the queue is now: paused, where it is.

    They say that there are as many to publish to as *layout* does, until the queue's own partition
    says more. Raises NotFound where the queue is deleted meanwhile: nobody would consume from them.
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
            if after.paused != paused:  # an operator may have passed by it
                paused = after.paused
                store.pause(name, paused)


def _deleted_meanwhile(store: Store, queue: str, made: Sequence[str]) -> NoReturn:
    for name in made:
        if store.delete_queue(name, if_empty=True).outcome == "deleted":
            store.unbind_queue(name)
    raise NotFound(f"queue {queue!r} was deleted while it was being divided")


def _settle(
    store: Store,
    queue: str,
    arguments: bytes,
    still_mine: Callable[[], None],
) -> None:
    """Have every partition as the layout says: there and open, or closed; paused as the queue."""
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
    """Pause partitions of *queue*, which is paused; not where an operator resumes it meanwhile."""
    for name in partitions:
        store.pause(name, True)
    layout = store.layout(queue)
    if layout is not None and not layout.paused:
        for name in partitions:
            store.pause(name, False)


def _shares(meta: Mapping[str, str], partitions: int) -> dict[str, str]:
    """Return *meta* with each limit of the whole queue, and the share of one partition."""
    shares = dict(meta)
    for field, whole in WHOLE.items():
        limit = meta.get(whole) or meta.get(field)
        if limit:
            shares[whole], shares[field] = limit, str(ceil(int(limit) / partitions))
    return shares


def divide(
    store: Store, queue: str, partitions: int, attached: Callable[[str], object] | None = None
) -> Layout:
    """Divide *queue* into so many partitions, while it is in use; return its layout.

    *attached* is called with each new partition before anything is published to it, and waits for
    its consumers. Partitions beyond take nothing new; they go when they are drained. Not atomic:
    the next call goes on. Raises NotFound, ConfigurationError, PreconditionFailed while another
    changes it.
    """
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise ConfigurationError(
            f"queue {queue!r}: expected a whole number of partitions from 1 to {MOST_PARTITIONS}, "
            f"got: {partitions!r}"
        )
    if number_of(queue):
        raise ConfigurationError(f"{queue!r} is a partition: divide {queue_of(queue)!r}")
    with _alone(store, queue) as still_mine:
        if store.attached(queue).temporary:
            raise ConfigurationError(
                f"queue {queue!r} goes by itself (auto_delete, x-expires): it is never divided"
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
    """Change settings of *queue* and of its partitions; None: there is no such queue.

    Limits are those of the whole queue, of which each partition has its share. Atomic for each
    partition, not across them. Raises as :func:`in_each` does.
    """
    layout = store.layout(queue)
    if layout is None:
        return None
    whole = {WHOLE[name]: value for name, value in changes.items() if name in WHOLE}
    if whole:
        # One that was divided once still has the limits of the whole.
        known = store.configure(queue, {}) or {}
        if layout.partitions > 1 or not known.keys().isdisjoint(whole):
            limits = {name: value for name, value in changes.items() if value is not None}
            limits.update({name: value for name, value in whole.items() if value is not None})
            changes = {**changes, **whole, **_shares(limits, layout.partitions)}
    return in_each(store, queue, lambda name: store.configure(name, changes))[-1]


def settle(store: Store, queue: str) -> bool:
    """Finish what somebody began to change in the layout of *queue*; remove what is drained.

    Whoever began may have died. False where another is at it now.
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
    """Remove the last partitions of *queue* that take nothing new, as far as they are drained."""
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
    """Return how *queue* is divided; asks its partitions where it says that it is not.

    Its own may have been lost (evicted, its node came back empty): what is in the others is
    consumed again. None: there is no such queue.
    """
    layout = store.layout(queue)
    if layout is None or layout.end > 1:
        return layout
    names = partition_names(queue, MOST_PARTITIONS)
    end = next((n for n in range(1, MOST_PARTITIONS) if store.layout(names[n]) is None), len(names))
    return layout if end == 1 else store.lay_out(queue, 0, end)


def told_by_others(store: Store, queue: str) -> Layout | None:
    """Return how *queue* is divided, by one of its partitions whose node answers.

    For when the queue's own does not. None: they know of no division, or the broker is one server.
    """
    if not (store.has_partitions and goes_on(store)):
        return None
    others = partition_names(queue, MOST_PARTITIONS)[1:]
    try:
        layout = next(_told(store, others, store.layout), None)
    except BrokerUnavailable:
        return None
    return layout if layout is not None and layout.partitions > 1 else None


def adopt(store: Store, partition: str) -> None:
    """Have a partition consumed from that a publish has made: it is before the end from now on."""
    queue, end = queue_of(partition), number_of(partition) + 1
    store.list_queue(partition)
    layout = store.lay_out(queue, 0, end)
    if layout is None:
        store.create_queue(queue)
        store.lay_out(queue, 0, end)
    elif layout.paused:
        _pause(store, queue, (partition,))


def names_of(store: Store, queue: str) -> Sequence[str]:
    """Return the names of the partitions that *queue* may have, itself first; asks the broker."""
    layout = None if number_of(queue) else store.layout(queue)
    return (queue,) if layout is None else partition_names(queue, layout.end)


def waiting(store: Store, partitions: Sequence[str]) -> int:
    """Return how many messages wait in *partitions*, ready or delayed.

    Those at a node that is away are left out.
    """
    found = _told(store, partitions, lambda name: store.declare_queue(name, True, b"", {}))
    return sum(declared.messages for declared in found)


def in_each(store: Store, queue: str, step: Callable[[str], T]) -> list[T]:
    """Do *step* to each partition of *queue*, its own last; return what they said, so ordered.

    A partition whose node is away keeps it from no other one. Raises BrokerUnavailable in the
    end, which names those that were not reached.
    """
    first, *others = names_of(store, queue)
    done: list[T] = []
    away: dict[str, BrokerUnavailable] = {}
    for name in (*reversed(others), first):
        # Each node has its time; but for one that is known to be away nobody waits again.
        known = bool(away) and store.is_away(name)
        try:
            with store.patience(_AWAY_PATIENCE_S if known else inf):
                done.append(step(name))
        except BrokerUnavailable as exc:
            if not (others and goes_on(store)):
                raise
            away[name] = again(exc)
    if away:
        raise BrokerUnavailable(
            f"queue {queue!r}: {len(away)} of its {1 + len(others)} partitions were not reached, "
            f"{', '.join(map(repr, away))}; all others were. Do it again when their nodes answer: "
            f"{next(iter(away.values()))}"
        )
    return done


def delete(
    store: Store, queue: str, *, if_empty: bool = False, if_unused: bool = False
) -> QueueDeleted:
    """Delete *queue* and everything in it, if the conditions hold for each of its partitions.

    Each by itself, the queue's own last: where a condition fails half way, the partitions that
    went were empty, and unused. They are made again when the queue is declared.
    """
    count, divided = 0, len(names_of(store, queue)) > 1
    # Else one that divides it meanwhile goes on making more.
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
    """Raise ConfigurationError where *queue* has a name that only a partition may have."""
    if number_of(queue):
        raise ConfigurationError(
            f"{queue!r} is the name of a partition of {queue_of(queue)!r}: names that end in "
            "%p<number>.<number> are reserved"
        )


@contextmanager
def _alone(store: Store, queue: str, waits_s: float | None = None) -> Iterator[Callable[[], None]]:
    """Be the only one that changes the layout of *queue*, also where it is killed half way.

    Yields what raises PreconditionFailed where another is that by now; after *waits_s* this does.
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
        sleep(_LOOK_EVERY_S)
    try:
        yield still_mine
    finally:
        with suppress(BrokerUnavailable):  # it lapses
            store.claim(name, token, 0)


def _busy(queue: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"the partitions of queue {queue!r} are being changed by somebody else; try again"
    )
