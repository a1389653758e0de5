"""Moving: what waits on one broker to another broker, each message stored there once.

The messages are taken out of the queue's order in numbered steps, stored on the other
broker under their numbers, and removed here last (see numbered.py). Whoever is killed in
between is continued by the next who moves to the same broker. What consumers hold is
not touched; it can be moved when it has come back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, NotFound, QueueFull
from ..message.envelope import EnvelopeError, decode, is_reply, unpack
from ..message.queue_arguments import queue_arguments
from ..message.queue_names import queue_of
from ..routing.partitions import declare as declare_queue
from ..store.values import FULL, NO_QUEUE
from .numbered import move_all, pages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..store.inspection import DeadLetter
    from ..store.protocol import Store
    from ..store.values import Move

logger = logging.getLogger("reliq")


def move_queue(source: Store, target: Store, queue: str) -> Iterator[int]:
    """Move what waits in *queue*, and its dead letters; yield how many, step by step.

    Ready messages become ready, delayed ones keep their time, those with a TTL what is
    left of it, all of them their failed deliveries; dead letters stay dead. The queue is
    declared on *target* with its arguments where it does not exist. But a queue that only a
    publish has made is not made there by replies: they are dropped as they would have been
    there, and the log says so. Raises NotFound where it does not exist on *source*,
    ConfigurationError where both are one broker.
    """
    here, other = source.broker_id(), target.broker_id()
    if here == other:
        raise ConfigurationError(f"queue {queue!r} cannot be moved: both URLs are one broker")
    # A partition is this broker's own matter: what is in it goes to the queue.
    to = queue_of(queue)
    there = _There(target, to, declare(source, target, to))
    name, origin = f"broker:{other}", f"{here}:{queue}"

    dead_letters: dict[str, DeadLetter] = {}

    def accepted(low_water: int, moves: Sequence[Move]) -> list[str]:
        if not there.takes(moves):
            return [move.tag for move in moves]
        arriving = [move._replace(dead_letter=dead_letters.get(move.tag)) for move in moves]
        return _stored(to, moves, target.accept(to, origin, low_water, arriving))

    while True:
        low_water, moves = source.move_out(queue, name)
        if not moves:
            break
        yield source.end_move(queue, accepted(low_water, moves))
    for page in pages(source, queue):
        dead_letters = {dead_letter.tag: dead_letter for dead_letter in page}
        yield move_all(source, queue, name, list(dead_letters), accepted)


def _stored(queue: str, moves: Sequence[Move], outcomes: Sequence[int]) -> list[str]:
    """Return the tags of what the target has now; raises NotFound, or QueueFull for none."""
    if NO_QUEUE in outcomes:
        raise NotFound(f"queue {queue!r} was deleted on the target while it was moved there")
    stored = [move.tag for move, got in zip(moves, outcomes, strict=True) if got != FULL]
    if not stored:
        raise QueueFull(
            f"queue {queue!r} is full on the target and rejects: {len(moves)} messages stay "
            "where they are; add consumers there, or raise its limit"
        )
    return stored


class _There:
    """The queue where it goes to: perhaps it is still to be made."""

    def __init__(self, store: Store, queue: str, exists: bool) -> None:
        self._store = store
        self._queue = queue
        self._exists = exists

    def takes(self, moves: Sequence[Move]) -> bool:
        """Whether *moves* have a queue, which they make at need; False: they are dropped."""
        if self._exists:
            return True
        if all(_answers(move.envelope) for move in moves):
            logger.warning(
                "%d replies for queue %r are dropped: it is gone at %s, as is who waited for them",
                *(len(moves), self._queue, self._store.broker),
            )
            return False
        self._store.create_queue(self._queue)
        self._exists = True
        return True


def _answers(data: bytes) -> bool:
    try:
        envelope = decode(data)
    except EnvelopeError:
        return False
    return is_reply(envelope.properties, envelope.headers)


def declare(source: Store, target: Store, queue: str) -> bool:
    """Declare *queue* on *target* as it is on *source*, unless it exists there; bind it.

    Returns whether it is there now: one that only a publish has made is not made by this.
    """
    status = source.reads.status(queue)
    if status is None:
        raise NotFound(f"no queue {queue!r} to move")
    arguments = status.declared
    auto_delete = bool(arguments.get("auto_delete"))
    if status.arguments.get("") or arguments:
        declare_queue(target, queue, *queue_arguments(queue, auto_delete, arguments))
        there_is = True
    else:  # a publish made it: its declaration is still to come, there too
        there_is = target.reads.status(queue) is not None
    for exchange in source.exchanges():
        table = source.exchange_table(exchange)
        bindings = [binding for binding in table.bindings if unpack(binding)[1] == queue]
        if not bindings or table.declaration is None:
            continue
        target.declare_exchange(exchange, table.declaration)
        missing = set(bindings) - target.exchange_table(exchange).bindings
        if missing:
            target.bind(exchange, True, sorted(missing), queue)
    return there_is
