"""A message that was checked and encoded, and what is sent of it to each queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import BrokerUnavailable, QueueFull
from ..integrations.outcomes import BATCH
from ..message.delivery_tag import new_tag
from ..message.queue_names import number_of, partition_names, queue_of
from ..routing import partitions
from ..routing.publish_ids import PUBLISHER
from ..routing.spread import SPREAD, turned_away
from ..store.values import CREATED, DUPLICATE, FULL, Publication

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..routing.publish_ids import PublishTag
    from ..store.protocol import Store
    from .confirming import Wanted


# By the layout of now, and then into the queue's own partition.
_TURNED_AWAY = 2


class Outgoing(NamedTuple):
    """One message on its way; nothing of it was sent yet."""

    exchange: str
    routing_key: str
    envelope: bytes
    rank: int
    delay_ms: int
    ttl_ms: int
    confirm: Wanted
    headers: dict[str, Any]
    create: bool = True
    """Whether it makes the queue that it names, where there is none."""
    key: str | None = None
    """Which messages of a divided queue it stays in order with (``x-partition-key``)."""


def publications(
    item: Outgoing,
    queues: Iterable[str],
    tag: PublishTag | None,
    store: Store,
    version: bytes = b"",
    *,
    stays: bool = False,
) -> list[Publication]:
    """Return what is to be sent to *store* for *item*, one for each queue.

    By *tag* they are the same on every try; None: there will be no other. *stays*: in a queue
    that is divided it goes where the message before went.
    """
    exchange, _, envelope, rank, delay_ms, ttl_ms, _, _, create, key = item
    made = []
    for name in queues:
        queue = SPREAD.place(store, name, tag, key, stays=stays)
        if tag is None:
            own, number, low_water, publisher, unconfirmed = (
                new_tag(rank, job=BATCH in item.headers),
                0,
                0,
                PUBLISHER.id,
                False,
            )
        else:
            own, number, low_water, publisher, _, unconfirmed = tag.publisher.number(
                tag, queue, rank, store.broker
            )
        made.append(
            Publication(
                queue,
                own,
                envelope,
                rank,
                publisher,
                number,
                low_water,
                delay_ms,
                ttl_ms,
                exchange,
                version,
                False,
                # Where it may be stored already elsewhere, it must be found in the same one.
                create if queue == name else unconfirmed,
            )
        )
    return made


def publish(
    store: Store,
    item: Outgoing,
    queues: Sequence[str],
    tag: PublishTag | None,
    version: bytes = b"",
) -> tuple[list[Publication], list[int]]:
    """Publish *item* into each of *queues*; return what was sent to each, and what became of it.

    A partition that takes nothing new is no outcome: it goes to another one of the queue then.
    So does a retry, where the partition was never reached by this try nor by one before.
    """
    before = () if tag is None else tuple(tag.numbers)
    try:
        return _publish(store, item, queues, tag, version)
    except BrokerUnavailable as exc:
        divided = SPREAD.divided(store, queues)
        if tag is not None:
            SPREAD.refused(tag, exc.untouched.difference(before), divided)
        raise


def _publish(
    store: Store,
    item: Outgoing,
    queues: Sequence[str],
    tag: PublishTag | None,
    version: bytes,
) -> tuple[list[Publication], list[int]]:
    items = publications(item, queues, tag, store, version)
    outcomes = store.publish(items)
    for _ in range(_TURNED_AWAY):
        places = [i for i, got in enumerate(outcomes) if turned_away(items[i].queue, got)]
        if not places:
            break
        for i in places:
            SPREAD.turn_away(store, tag, items[i].queue)
        again = publications(item, [queues[i] for i in places], tag, store, version)
        for i, sent, outcome in zip(places, again, store.publish(again), strict=True):
            items[i], outcomes[i] = sent, outcome
    return items, outcomes


def goes_elsewhere(store: Store, item: Outgoing, error: BrokerUnavailable) -> bool:
    """Whether *item*, tried again at the same broker, goes to a partition whose node answers."""
    queue = item.routing_key
    count = store.partitions.get(queue, 1)
    if item.exchange or item.key is not None or count == 1 or not error.untouched:
        return False
    return any(not store.is_away(name) for name in partition_names(queue, count))


def see_to_created(
    store: Store,
    items: Sequence[Publication],
    outcomes: Sequence[int],
    redeclare: Callable[[str, Store], bool],
) -> None:
    """Declare the queues that a publish created as they were before, or make them visible.

    *redeclare* declares again what this process has declared, and the broker has lost.
    """
    if CREATED in outcomes:
        for item, outcome in zip(items, outcomes, strict=True):
            if outcome == CREATED and number_of(item.queue):
                partitions.adopt(store, item.queue)
            elif outcome == CREATED and not redeclare(item.queue, store):
                store.list_queue(item.queue)


def stored_of(items: Sequence[Publication], outcomes: Sequence[int]) -> list[Publication]:
    """Return what is stored now, be it by an earlier try whose reply was lost."""
    return [item for item, got in zip(items, outcomes, strict=True) if got >= DUPLICATE]


def refuse_full(items: Sequence[Publication], outcomes: Sequence[int]) -> None:
    """Raise QueueFull where a queue has refused the message."""
    if FULL not in outcomes:
        return
    full = [queue_of(item.queue) for item, got in zip(items, outcomes, strict=True) if got == FULL]
    stored = [queue_of(item.queue) for item in stored_of(items, outcomes)]
    also = f"; it was stored in {', '.join(map(repr, stored))}" if stored else ""
    raise QueueFull(
        f"queue {', '.join(map(repr, full))} has reached its x-max-length or "
        "x-max-length-bytes and was declared with x-overflow 'reject-publish': the "
        f"message was not stored in it{also}. Add consumers, raise the limit, or publish "
        "later"
    )
