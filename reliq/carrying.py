"""Carrying: what waits on one broker to another broker, each message stored there once.

The messages are taken out of the queue's order in numbered steps, stored on the other
broker under their numbers, and removed here last (see moving.py). Whoever is killed in
between is continued by the next who carries to the same broker. What consumers hold is
not touched; it can be carried when it has come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .arguments import queue_arguments
from .envelope import unpack
from .errors import ConfigurationError, NotFound
from .moving import pages
from .store import NO_QUEUE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .store import Move, Store


def carry(source: Store, target: Store, queue: str) -> Iterator[int]:
    """Carry what waits in *queue*, and its dead letters; yield how many, step by step.

    Ready messages become ready, delayed ones keep their time, those with a TTL what is
    left of it, all of them their failed deliveries; dead letters stay dead. The queue is
    declared on *target* with its arguments where it does not exist. Raises NotFound where
    it does not exist on *source*, ConfigurationError where both are one broker.
    """
    here, there = source.broker_id(), target.broker_id()
    if here == there:
        raise ConfigurationError(f"queue {queue!r} cannot be carried: both URLs are one broker")
    declare(source, target, queue)
    name, origin = f"broker:{there}", f"{here}:{queue}"

    def arrive(low: int, moves: Sequence[Move]) -> int:
        if NO_QUEUE in target.accept(queue, origin, low, moves):
            raise NotFound(f"queue {queue!r} was deleted on the target while it was carried there")
        return source.end_move(queue, [move.tag for move in moves])

    while True:
        low, moves = source.move_out(queue, name)
        if not moves:
            break
        yield arrive(low, moves)
    for page in pages(source, queue):
        letters = {letter.tag: letter for letter in page}
        low, moves = source.begin_move(queue, name, list(letters))
        if moves:
            yield arrive(low, [move._replace(letter=letters[move.tag]) for move in moves])


def declare(source: Store, target: Store, queue: str) -> None:
    """Declare *queue* on *target* as it is on *source*, unless it exists there; bind it."""
    status = source.status(queue)
    if status is None:
        raise NotFound(f"no queue {queue!r} to carry")
    stored = status.arguments.get("", b"")
    arguments = unpack(stored) if isinstance(stored, bytes) and stored else {}
    auto_delete = bool(arguments.get("auto_delete"))
    target.declare_queue(queue, False, *queue_arguments(queue, auto_delete, arguments))
    for exchange in source.exchanges():
        table = source.exchange_table(exchange)
        bindings = [binding for binding in table.bindings if unpack(binding)[1] == queue]
        if not bindings or table.declaration is None:
            continue
        target.declare_exchange(exchange, table.declaration)
        missing = set(bindings) - target.exchange_table(exchange).bindings
        if missing:
            target.bind(exchange, True, sorted(missing))


def is_lasting(store: Store, queue: str) -> bool:
    """Whether *queue* is of use without the process that declared it.

    Not the reply and event queues that go by themselves: they stay where they are.
    """
    status = store.status(queue)
    stored = status.arguments.get("", b"") if status is not None else b""
    arguments = unpack(stored) if isinstance(stored, bytes) and stored else {}
    return not ({"auto_delete", "x-expires"} & set(arguments))
