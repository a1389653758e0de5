"""A message that was checked and encoded, and what is sent of it to each queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import QueueFull
from ..message.delivery_tag import new_tag
from ..routing.publish_ids import PUBLISHER
from ..store.values import CREATED, DUPLICATE, FULL, Publication

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..routing.publish_ids import PublishTag
    from ..store.protocol import Store
    from .confirming import Wanted


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


def publications(
    item: Outgoing,
    queues: Iterable[str],
    tag: PublishTag | None,
    broker: str,
    version: bytes = b"",
) -> list[Publication]:
    """Return what is to be sent to *broker* for *item*, one for each queue.

    By *tag* they are the same on every try; None: there will be no other.
    """
    exchange, _, envelope, rank, delay_ms, ttl_ms, _, _, create = item
    made = []
    for queue in queues:
        if tag is None:
            own, number, low_water, publisher, unconfirmed = (
                new_tag(rank),
                0,
                0,
                PUBLISHER.id,
                False,
            )
        else:
            own, number, low_water, publisher, _, unconfirmed = PUBLISHER.number(
                tag, queue, rank, broker
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
                unconfirmed,
                create,
            )
        )
    return made


def list_created(store: Store, items: Sequence[Publication], outcomes: Sequence[int]) -> None:
    """Make the queues that a publish created visible to operators."""
    if CREATED in outcomes:
        for item, outcome in zip(items, outcomes, strict=True):
            if outcome == CREATED:
                store.list_queue(item.queue)


def stored_of(items: Sequence[Publication], outcomes: Sequence[int]) -> list[Publication]:
    """Return what is stored now, be it by an earlier try whose reply was lost."""
    return [item for item, got in zip(items, outcomes, strict=True) if got >= DUPLICATE]


def refuse_full(items: Sequence[Publication], outcomes: Sequence[int]) -> None:
    """Raise QueueFull where a queue has refused the message."""
    if FULL not in outcomes:
        return
    full = [item.queue for item, got in zip(items, outcomes, strict=True) if got == FULL]
    stored = [item.queue for item, got in zip(items, outcomes, strict=True) if got >= DUPLICATE]
    also = f"; it was stored in {', '.join(map(repr, stored))}" if stored else ""
    raise QueueFull(
        f"queue {', '.join(map(repr, full))} has reached its x-max-length or "
        "x-max-length-bytes and was declared with x-overflow 'reject-publish': the "
        f"message was not stored in it{also}. Add consumers, raise the limit, or publish "
        "later"
    )
