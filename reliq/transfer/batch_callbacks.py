"""Callbacks of batches: messages that were made when the batch was opened, published when due.

Each is stored once in every queue it is routed to, whoever is killed meanwhile: its number is that
of the batch's callback, whoever publishes it. Then it is noted as said, and is not due again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, NamedTuple

from ..errors import logger
from ..message.envelope import EnvelopeError, pack, unpack
from ..routing.outgoing import Outgoing
from ..routing.publish_ids import GivenNumber, publish_tag
from ..routing.routes import Routes
from ..routing.sending import send
from ..store.jobs import CALLBACK_FIELD, CALLBACKS, NESTED, OPEN, PARENT, Change

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..store.jobs import BatchRecord, Callback, Changed, State
    from ..store.protocol import Store


class CallbackMessage(NamedTuple):
    """What is published when a callback is due."""

    exchange: str
    routing_key: str
    envelope: bytes
    rank: int
    tag: str


def packed(message: CallbackMessage) -> str:
    """Return *message* as it is noted with the batch."""
    return b64encode(pack(list(message))).decode()


def publish_due(store: Store, record: BatchRecord) -> None:
    """Publish what is due of a batch, once each, and tell its parent; waits. Raises ReliqError.

    What finds no queue, or a full one, stays due: the next look tries it again.
    """
    for callback in record.due:
        stored = record.fields.get(CALLBACK_FIELD + callback)
        if stored is None or _published(store, record, callback, stored):
            if callback != "failure":
                tell_parent(store, record)
            store.batches.said(record.id, callback)


def change(store: Store, batch: str, *changes: Change) -> Changed | None:
    """Change jobs of *batch*, and publish what is due of it then; waits. Raises ReliqError."""
    changed = store.batches.change(batch, changes)
    record = store.batches.batch(batch) if changed is not None and changed.due else None
    if record is not None:
        publish_due(store, record)
    return changed


def tell_parent(store: Store, record: BatchRecord) -> None:
    """Have a batch that is a job of another one end there, where it has; waits. Repeatable."""
    parent, counts = record.fields.get(PARENT), record.counts
    if not parent or not record.ended_ms:
        return
    text = f"{counts['error']} of its {record.total} jobs ended in error, {counts['failed']} failed"
    state: State = "error" if counts["error"] else "failed" if counts["failed"] else "succeeded"
    if record.cancelled_ms or counts["cancelled"]:
        state, text = "cancelled", f"cancelled, with {counts['cancelled']} of its jobs"
    changes = [Change("end", record.id, state, tag=NESTED, text=text)]
    if state == "succeeded":  # perhaps after all: what had failed in it was replayed
        changes.insert(0, Change("replay", record.id, tag=NESTED))
    change(store, parent, *changes)


def cancel_nested(
    store: Store, batch: str, at_work: Callable[[list[str]], None] | None = None
) -> None:
    """Cancel the batches that are open jobs of *batch*, at all levels, and publish what is due.

    A process that is killed before that leaves it to consumers. *at_work* is given the ids of the
    jobs that run in each of them, some hundred at a time. Waits. Raises ReliqError; repeatable.
    """
    left, seen = [batch], {batch}
    while left:
        for part in store.batches.jobs(left.pop()):
            running = [job.id for job in part if job.state == "working"]
            if at_work is not None and running:
                at_work(running)
            nested = {job.id for job in part if job.tag == NESTED and job.state in OPEN} - seen
            for child in sorted(nested):
                change(store, child, Change("cancel"))
            left += nested
            seen |= nested


def _published(store: Store, record: BatchRecord, callback: Callback, stored: str) -> bool:
    try:
        message = CallbackMessage(*unpack(b64decode(stored)))
    except (EnvelopeError, TypeError, ValueError):
        logger.error(  # noqa: TRY400 - it says all
            "batch %r: the message of its callback on_%s cannot be read: it is not published",
            record.id,
            callback,
        )
        return True
    number = 1 + CALLBACKS.index(callback)
    publisher = GivenNumber(f"batch:{record.id}", number, own_tag=lambda _: message.tag)
    tag = publish_tag(message.tag, publisher)
    exchange, routing_key, envelope, rank, _ = message
    item = Outgoing(exchange, routing_key, envelope, rank, tag=tag, spreads=False)
    send(store, Routes(store), (item,))
    if item.stored and not item.refused:
        return True
    logger.warning(
        "batch %r: its callback on_%s has no queue to go to, or a full one (exchange %r, routing "
        "key %r); it is tried again",
        record.id,
        callback,
        exchange,
        routing_key,
    )
    return False
