"""Signals: report to the application what happens to its messages, in the same process.

They are Blinker signals, with which an application can, for example, maintain a table of tasks::

    from reliq.signals import message_dead

    @message_dead.connect
    def on_dead(broker, *, task_id, reason, **more):
        ...

Every signal is sent after the state has changed at the broker, and at most once: a process that
dies in between sends no signal. The sender is the broker's name as in log messages,
``reliq://host:6379/0``, without user or password. Later versions may add arguments, so accept
``**more``.

A receiver runs in the thread that did the work, which in a Celery prefork worker may be the event
loop. It must not block. Its exceptions are logged. A signal without receivers costs nothing. See
docs/signals.md.

This module is independent of brokers and Kombu. The code that changes a state calls :func:`emit`
afterwards, without holding a lock.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from blinker import NamedSignal

from .errors import logger
from .message.envelope import EnvelopeError, decode
from .message.queue_names import queue_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .values.values import Publication, Returned

__all__ = [
    "broker_switched",
    "lease_lost",
    "message_dead",
    "message_published",
    "message_restored",
]

message_published = NamedSignal(
    "message_published",
    """A publish is confirmed: the broker has stored the message.

    Sent once for each queue when the publish returns; with ``confirm="none"``, when the reply is
    read. Not sent if no queue stored the message, or if the publish finally raised an error.
    By: the publishing thread.

    queue: str, the queue that stored it.
    tag: str, its delivery tag there. task_id: str or None, its header ``id``.
    headers: dict, as stored; do not change it.
    exchange, routing_key: str, its destination; "" is the anonymous exchange.
    delay_s: float, seconds until a consumer can take it. ttl_s: float or None, seconds until it
    expires.
    """,
)

message_restored = NamedSignal(
    "message_restored",
    """A message returned to its queue because its lease ended.

    Not sent when a live consumer returns the message itself (requeue, shutdown).
    By: the background loop of the consumer that made the pass: the event loop in a Celery prefork
    worker, else the thread ``reliq-background``.

    queue, tag, task_id, headers: as for ``message_published``; headers are empty if unreadable.
    count: int, failed deliveries of the message so far.
    consumer: str, the previous holder: ``host:pid:random/number``.
    """,
)

message_dead = NamedSignal(
    "message_dead",
    """A message became a dead letter, or moves on to a dead-letter exchange.

    Not sent for messages that expired or were dropped by a length limit: scripts remove them.
    By: at the delivery limit, as ``message_restored``, or the thread that requeued it; otherwise
    the thread that rejected it.

    queue, tag, task_id, headers, count, consumer: as for ``message_restored``; headers as
    received, if this process had received the message.
    reason: str, ``"delivery_limit"``, ``"rejected"``, ``"undecodable"`` or ``"malformed"``.
    error: str, a description; may be empty.
    """,
)

lease_lost = NamedSignal(
    "lease_lost",
    """This process has lost the lease of a message: its work may be done twice.

    By: the background loop of the process that held it.

    queue, tag, task_id, headers: as for ``message_published``; task id None and headers empty if
    the application does not hold the message.
    reason: str, ``"returned"``: it was not renewed in time, and returned; ``"gone"``: it returned
    and was finished elsewhere, or its queue was deleted; ``"consumer_timeout"``: it was held for
    longer than that, is no longer renewed, and returns when its lease ends.
    held_s: float, seconds since this process took it.
    """,
)

broker_switched = NamedSignal(
    "broker_switched",
    """A connection switched from one broker of its list to another, as the first of its process.

    By: the thread that connects, once it is connected. The sender is the new broker.

    old, new: str, the brokers' names. reason: str, a description.
    """,
)


def emit(signal: NamedSignal, broker: str, **arguments: Any) -> None:
    """Call every receiver of *signal* that is connected to *broker*, with *arguments*.

    Logs exceptions of receivers, and calls the next one. Blinker's ``send`` would stop at the
    first exception.
    """
    if not signal.receivers or signal.is_muted:
        return
    if "queue" in arguments:  # report the queue, never a partition
        arguments["queue"] = queue_of(arguments["queue"])
    for receiver in list(signal.receivers_for(broker)):
        if iscoroutinefunction(receiver):
            logger.error(
                "expected a receiver of the signal %s to be a plain function, got the coroutine "
                "function %r, which would never be awaited",
                signal.name,
                receiver,
            )
            continue
        try:
            receiver(broker, **arguments)
        except Exception:
            # Any exception: the state has already changed at the broker, and an application's
            # error must not end a delivery or the background loop.
            logger.exception("a receiver of the signal %s failed: %r", signal.name, receiver)


def emit_published(
    broker: str, items: Sequence[Publication], headers: dict[str, Any], routing_key: str
) -> None:
    """Send ``message_published`` for each of *items*, which are confirmed."""
    if not message_published.receivers:
        return
    who = identity(headers)
    for item in items:
        if item.logged:  # no queue has it
            continue
        emit(
            message_published,
            broker,
            queue=item.queue,
            tag=item.tag,
            exchange=item.exchange,
            routing_key=routing_key,
            delay_s=item.delay_ms / 1000,
            ttl_s=None if item.ttl_ms < 0 else item.ttl_ms / 1000,
            **who,
        )


def emit_returned(
    signal: NamedSignal,
    broker: str,
    queue: str,
    items: Sequence[Returned],
    headers: Mapping[str, dict[str, Any]] | None = None,
    **why: str,
) -> None:
    """Send *signal* for each of *items*, whose deliveries failed.

    *headers* has the known headers by tag; otherwise the envelopes are read.
    """
    for item in items if signal.receivers else ():
        known = None if headers is None else headers.get(item.tag)
        who = identity_in(item.envelope) if known is None else identity(known)
        own = {"tag": item.tag, "count": item.failed, "consumer": item.consumer}
        emit(signal, broker, queue=queue, **own, **why, **who)


def emit_at_the_limit(
    broker: str,
    queue: str,
    items: Sequence[Returned],
    error: str,
    headers: Mapping[str, dict[str, Any]] | None = None,
) -> None:
    """Send ``message_dead`` for each of *items*, which reached the delivery limit."""
    why = {"reason": "delivery_limit", "error": error}
    emit_returned(message_dead, broker, queue, items, headers, **why)


def identity(headers: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that identify a message to the application: headers, task_id."""
    task_id = headers.get("id")
    return {"headers": headers, "task_id": task_id if isinstance(task_id, str) else None}


def identity_in(envelope: bytes | None) -> dict[str, Any]:
    """Return :func:`identity` of a stored message; empty if it is unreadable."""
    try:
        return identity(decode(envelope).headers if envelope else {})
    except EnvelopeError:
        return identity({})
