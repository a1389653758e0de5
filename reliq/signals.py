"""Signals: what reliq tells the application about its messages, in its own process.

Blinker signals, so that an application can keep its own table of tasks in step::

    from reliq.signals import message_dead

    @message_dead.connect
    def on_dead(broker, *, task_id, reason, **more):
        ...

Every signal is sent after the state has changed on the broker, once or not at
all: a process that dies between the two sends nothing. The sender is the name of
the broker as log messages give it, ``reliq://host:6379/0``, never with a user or a
password. Further arguments may be added in later versions: end a receiver's with
``**more``.

A receiver is called by the thread that did the work, in a Celery prefork worker
by the event loop: it must not block. What it raises is logged and goes no
further. Where nobody listens nothing is prepared. docs/signals.md has more.

This module knows envelopes and nothing of brokers or Kombu; whoever changes a
state calls :func:`emit` afterwards, with no lock held.
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

    from .store.values import Publication, Returned

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

    Once for each queue, when the publish returns; with ``confirm="none"`` when the reply is read.
    Not sent for a message that was routed nowhere, nor where publishing raised an error in the end.
    By: the process and thread that publishes.

    queue: str, the queue it was stored in.
    tag: str, its delivery tag there. task_id: str or None, its header ``id``.
    headers: dict, as stored; not to be changed.
    exchange, routing_key: str, what it was published to; "" is the anonymous exchange.
    delay_s: float, seconds it waits before it can be taken. ttl_s: float or None,
    seconds after which it expires.
    """,
)

message_restored = NamedSignal(
    "message_restored",
    """A message went back to its queue because the lease on it ended.

    Not sent where a living consumer gives a message back itself (requeue, shutdown).
    By: the background loop of whichever consumer made the pass: the event loop in a Celery prefork
    worker, else the thread ``reliq-background``.

    queue, tag, task_id, headers: as for ``message_published``; headers are empty where they
    cannot be read.
    count: int, failed deliveries of the message by now.
    consumer: str, who had it: ``host:pid:random/number``.
    """,
)

message_dead = NamedSignal(
    "message_dead",
    """A message became a dead letter, or is on its way on from there.

    Not sent for messages that expired or were dropped by a length limit: scripts do that wholesale.
    By: at the delivery limit, as ``message_restored``, or the thread that requeued it; otherwise
    the thread that rejected it.

    queue, tag, task_id, headers, count, consumer: as for ``message_restored``; headers as they
    were received, where this process had received the message.
    reason: str, ``"delivery_limit"``, ``"rejected"``, ``"undecodable"`` or ``"malformed"``.
    error: str, in words; may be empty.
    """,
)

lease_lost = NamedSignal(
    "lease_lost",
    """This process holds a message that is no longer its own: it may run, or have run, twice.

    By: the background loop of the process that held it.

    queue, tag, task_id, headers: as for ``message_published``; None and empty where the message
    was not handed to the application, or was dropped.
    reason: str, ``"returned"``: it was not renewed in time and went back; ``"gone"``: so it did,
    and is finished, or its queue was deleted; ``"consumer_timeout"``: it is held for longer than
    that, renewed no more, and goes back when its lease ends.
    held_s: float, seconds since this process took it.
    """,
)

broker_switched = NamedSignal(
    "broker_switched",
    """A connection went from one broker of its list to another, as the first of its process.

    By: the thread that connects, when it is connected. The sender is the new broker.

    old, new: str, the names of the brokers. reason: str, why, in words.
    """,
)


def emit(signal: NamedSignal, broker: str, **arguments: Any) -> None:
    """Call every receiver of *signal* that listens to *broker*, with *arguments*.

    Never raises what a receiver raises: it is logged, and the next one is called.
    Not blinker's ``send``, which ends at the first receiver that raises.
    """
    if not signal.receivers or signal.is_muted:
        return
    if "queue" in arguments:  # a partition of it is nobody's business
        arguments["queue"] = queue_of(arguments["queue"])
    for receiver in list(signal.receivers_for(broker)):
        if iscoroutinefunction(receiver):
            logger.error(
                "expected a receiver of the signal %s to be a plain function, got the coroutine "
                "function %r: nobody would await it",
                signal.name,
                receiver,
            )
            continue
        try:
            receiver(broker, **arguments)
        except Exception:
            # Not around a message: its state has changed on the broker already, and an
            # application's mistake must end neither a delivery nor the background loop.
            logger.exception("a receiver of the signal %s failed: %r", signal.name, receiver)


def emit_published(
    broker: str, items: Sequence[Publication], headers: dict[str, Any], routing_key: str
) -> None:
    """Send ``message_published`` for each of *items*: they were stored, and that is known."""
    if not message_published.receivers:
        return
    who = identity(headers)
    for item in items:
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
    """Send *signal* for each of *items*, whose deliveries have failed.

    *headers* has those that are known, by tag; else they are those in the envelopes.
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
    """Send ``message_dead`` for each of *items*, whose deliveries failed too often."""
    why = {"reason": "delivery_limit", "error": error}
    emit_returned(message_dead, broker, queue, items, headers, **why)


def identity(headers: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by which an application finds its own row: headers, task_id."""
    task_id = headers.get("id")
    return {"headers": headers, "task_id": task_id if isinstance(task_id, str) else None}


def identity_in(envelope: bytes | None) -> dict[str, Any]:
    """Return :func:`identity` of a stored message; of nothing where it cannot be read."""
    try:
        return identity(decode(envelope).headers if envelope else {})
    except EnvelopeError:
        return identity({})
