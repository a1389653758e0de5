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

import logging
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from blinker import NamedSignal

from .message.envelope import EnvelopeError, decode
from .message.queue_names import queue_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .store.values import Publication, Returned

logger = logging.getLogger("reliq")

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

    Sent once for each queue the message was stored in, when the publish returns. A
    publish that succeeds at its second try is a publish: it is announced once, also
    where the first try had stored it and only the reply was lost. Not sent for a
    message that was routed nowhere, nor where publishing raised an error in the end,
    though the message may be stored, or be stored in other queues than a full one.
    With ``confirm="none"`` it is sent when the reply is read: with the next publish,
    or when the connection is closed. The message may have been delivered, and be
    done, before it is sent.

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

    Its consumer was killed, was frozen for longer than ``visibility_timeout``, or
    held it for longer than ``consumer_timeout``. Not sent where a living consumer
    gives a message back itself (requeue, shutdown). The message may have been taken
    again before the signal is sent.

    By: the process whose background loop made the pass, which is any consumer of the queue;
    there its background loop: the event loop in a Celery prefork worker, else the thread
    ``reliq-background``.

    queue, tag, task_id, headers: as for ``message_published``; headers as they were
    published, empty where they cannot be read.
    count: int, failed deliveries of the message by now, this one included where it
    was counted: it is not, where another message is to blame for the death.
    consumer: str, who had it: ``host:pid:random/number``.
    """,
)

message_dead = NamedSignal(
    "message_dead",
    """A message became a dead letter, or is on its way on from there.

    Sent when it reached its delivery limit, was rejected without requeue, could not be
    decoded, or made Celery's own code raise an exception. Not sent for messages that
    expired or were dropped by a length limit: scripts do that wholesale.

    By: at the delivery limit, as ``message_restored``, or the thread that requeued it;
    otherwise the process and thread that rejected it.

    queue, tag, task_id, headers, consumer: as for ``message_restored``; headers as they
    were received, where this process had received the message.
    count: int, failed deliveries.
    reason: str, ``"delivery_limit"``, ``"rejected"``, ``"undecodable"`` or ``"malformed"``.
    error: str, in words; may be empty.
    """,
)

lease_lost = NamedSignal(
    "lease_lost",
    """This process holds a message that is no longer its own: it may run, or have run, twice.

    Whoever works on it may go on (its ack is accepted) or stop.

    By: the process that held it; there its background loop, see ``message_restored``.

    queue, tag, task_id: as for ``message_published``. headers: dict, as received.
    None and empty where the message was not handed to the application, or was dropped.
    reason: str, ``"returned"``: it went back to its queue because this process did not
    renew in time, and may run elsewhere; ``"gone"``: so it did, and is finished, or its
    queue was deleted; ``"consumer_timeout"``: this process has held it for longer than
    that, renews it no more, and it will go back when its lease ends.
    held_s: float, seconds since this process took it.
    """,
)

broker_switched = NamedSignal(
    "broker_switched",
    """A connection went from one broker of its list to another.

    Sent for the first connection of a process that does so, when it is connected there.

    By: the process and thread that connects. The sender is the new broker.

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
