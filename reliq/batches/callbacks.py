"""Callbacks of batches: messages made when the batch is opened, and published when due.

A callback has a fixed publish number. It is therefore stored once in every queue to which it is
routed, even if several processes publish it or are killed. It is then recorded as published.
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
from .jobs import CALLBACK_FIELD, NESTED, OPEN, PARENT, Change

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..values.protocol import Store
    from .jobs import BatchRecord, Callback, Changed, State


class CallbackMessage(NamedTuple):
    """The message to publish when a callback is due."""

    exchange: str
    routing_key: str
    envelope: bytes
    rank: int
    tag: str


def packed(message: CallbackMessage) -> str:
    """Return *message* in the stored format of the batch's record."""
    return b64encode(pack(list(message))).decode()


def publish_due(store: Store, record: BatchRecord) -> None:
    """Publish the due callbacks of a batch, each once, and inform its parent. Raises ReliqError.

    Waits for the broker. A callback without a queue, or with a full one, stays due for a retry.
    """
    for callback in record.due:
        stored = record.fields.get(CALLBACK_FIELD + callback)
        if stored is None or _published(store, record, callback, stored):
            if callback != "failure":
                report_to_parent(store, record)
            store.batches.note_published(record.id, callback)


def change(store: Store, batch: str, *changes: Change) -> Changed | None:
    """Change jobs of *batch*, and publish its due callbacks; waits. Raises ReliqError."""
    changed = store.batches.change(batch, changes)
    record = store.batches.batch(batch) if changed is not None and changed.due else None
    if record is not None:
        publish_due(store, record)
    return changed


def report_to_parent(store: Store, record: BatchRecord) -> None:
    """End the job that this batch is in its parent batch, if it has ended; waits. Repeatable."""
    parent, counts = record.fields.get(PARENT), record.counts
    if not parent or not record.ended_ms:
        return
    text = f"{counts['error']} of its {record.total} jobs ended in error, {counts['failed']} failed"
    state: State = "error" if counts["error"] else "failed" if counts["failed"] else "succeeded"
    if record.cancelled_ms or counts["cancelled"]:
        state, text = "cancelled", f"cancelled, with {counts['cancelled']} of its jobs"
    changes = [Change("end", record.id, state, tag=NESTED, text=text)]
    if state == "succeeded":  # its job may have failed before, until a failed job was replayed
        changes.insert(0, Change("replay", record.id, tag=NESTED))
    change(store, parent, *changes)


def cancel_nested(
    store: Store, batch: str, at_work: Callable[[list[str]], None] | None = None
) -> None:
    """Cancel the nested batches of *batch* at all levels, and publish their due callbacks.

    If the process is killed, consumers finish this. *at_work* gets the ids of the running jobs,
    some hundred at a time. Waits. Raises ReliqError. Repeatable.
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
        message = CallbackMessage._make(unpack(b64decode(stored)))
    except (EnvelopeError, TypeError, ValueError):
        logger.error(  # noqa: TRY400 - the text is sufficient
            "batch %r: the message of its callback on_%s is unreadable, and is not published",
            record.id,
            callback,
        )
        return True
    # Not by the id alone: if the batch's data is lost, another batch may get the id.
    name = f"batch:{record.id}:{message.tag}"
    publisher = GivenNumber(name, 1, own_tag=lambda _: message.tag)
    tag = publish_tag(message.tag, publisher)
    exchange, routing_key, envelope, rank, _ = message
    item = Outgoing(exchange, routing_key, envelope, rank, tag=tag, spreads=False)
    send(store, Routes(store), (item,))
    if item.stored and not item.refused:
        return True
    logger.warning(
        "batch %r: its callback on_%s has no queue, or its queue is full (exchange %r, routing key "
        "%r); reliq retries it",
        record.id,
        callback,
        exchange,
        routing_key,
    )
    return False
