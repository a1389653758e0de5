"""Moves: transfer messages to another queue or broker, where each is stored once.

Three steps, each atomic and repeatable: number the message; store it at the target, which records
the number; remove it from the source. After a kill, the next move to the same target continues.
A move of a queue to another broker leaves messages held by consumers until they return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..batches.jobs import Change, by_batch
from ..errors import ConfigurationError, NotFound, QueueFull, logger
from ..message.delivery_tag import derived_tag, is_of_job, rank_of, tag_like
from ..message.envelope import EnvelopeError, decode, is_reply, unpack
from ..message.queue_arguments import queue_arguments
from ..message.queue_names import queue_of
from ..routing.outgoing import Outgoing
from ..routing.partitions import declare as declare_queue
from ..routing.publish_ids import GivenNumber, publish_tag
from ..routing.routes import Routes
from ..routing.sending import send
from ..values.job_headers import job_in
from ..values.limits import MOVED_AT_ONCE, chunks
from ..values.protocol import status_of
from ..values.values import FULL, NO_QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from ..values.inspection import DeadLetter
    from ..values.protocol import Store
    from ..values.values import Move, Publication


def pages(
    store: Store,
    queue: str,
    envelopes: bool = False,
    from_ms: int = 0,
    known: Collection[str] = (),
) -> Iterator[list[DeadLetter]]:
    """Yield pages of the dead letters of *queue*, oldest first, each dead letter once.

    The caller may move or remove those of a page before it takes the next. With *from_ms*,
    yield only those that died then or later, except *known*, which died exactly then. If there
    are no others, no envelope is read.
    """
    seen = set(known)
    while True:
        most = MOVED_AT_ONCE + len(seen)
        letters = store.reads.dead_letters(queue, most, from_ms, envelopes and not seen)
        page = [dead_letter for dead_letter in letters if dead_letter.tag not in seen]
        if not page:
            return
        if envelopes and seen:
            letters = store.reads.dead_letters(queue, most, from_ms, envelopes)
            page = [dead_letter for dead_letter in letters if dead_letter.tag not in seen]
            if not page:
                return
        last_ms = page[-1].died_ms
        if last_ms > from_ms:
            from_ms, seen = last_ms, set()
        seen.update(dead_letter.tag for dead_letter in page if dead_letter.died_ms == last_ms)
        yield page


def outgoing(
    source: str, move: Move, low_water: int, envelope: bytes, routing_key: str, exchange: str = ""
) -> Outgoing:
    """Return the publish of *move*, which comes from the queue *source*."""

    def own_tag(queue: str) -> str:
        if not is_of_job(move.tag):
            return tag_like(move.tag)
        # Derive the tag, so that every process that continues the move gets the same one.
        return derived_tag(move.tag, f"{source}\n{queue}\n{move.number}\n{move.tag}")

    publisher = GivenNumber(f"move:{source}", move.number, low_water, moved=True, own_tag=own_tag)
    tag = publish_tag(move.tag, publisher)
    return Outgoing(exchange, routing_key, envelope, rank_of(move.tag), tag=tag, spreads=False)


def _report_to_batches(store: Store, target: str, sent: Iterable[tuple[Move, Publication]]) -> None:
    """Record in batches that the jobs of moved dead letters wait in *target* now; waits."""
    replays: list[tuple[str, Change]] = []
    for move, stored in sent:
        membership = job_in(move.envelope) if is_of_job(move.tag) else None
        if membership is not None:
            batch, job, retries = membership
            change = Change("replay", job, "", retries, 0, stored.tag, target, move.tag)
            replays.append((batch, change))
    for batch, changes in by_batch(replays).items():
        store.batches.change(batch, changes)


def move_all(
    store: Store,
    queue: str,
    target: str,
    tags: Sequence[str],
    stored: Callable[[int, Sequence[Move]], Sequence[str]],
) -> int:
    """Move the dead letters *tags* of *queue*; return the number removed from it.

    *target* names the target. *stored* gets the low-water mark and moves, stores the messages,
    and returns the tags of those stored. Not atomic as a whole; repeat the call to continue.
    """
    count = 0
    for chunk in chunks(tags, MOVED_AT_ONCE):
        low_water, moves = store.begin_move(queue, target, chunk)
        done = stored(low_water, moves) if moves else ()
        if done:
            count += store.end_move(queue, done)
    return count


def to_queue(store: Store, queue: str, target: str, tags: Sequence[str]) -> int:
    """Move the dead letters *tags* of *queue* to *target*; return their number.

    Raises NotFound if *target* does not exist, and QueueFull if it is full; the others then stay.
    """
    if store.reads.status(target) is None:
        raise NotFound(f"no queue {target!r} for dead letters of {queue!r}; declare it first")

    def stored(low_water: int, moves: Sequence[Move]) -> Sequence[str]:
        items = [outgoing(queue, move, low_water, move.envelope, target) for move in moves]
        send(store, Routes(store), items)
        if all(item.full for item in items):
            raise QueueFull(
                f"queue {target!r} is full and rejects messages: {len(moves)} dead letters of "
                f"{queue!r} stay there"
            )
        pairs = zip(moves, items, strict=True)
        done = [(move, item.stored[target]) for move, item in pairs if item.stored]
        _report_to_batches(store, target, done)
        return [move.tag for move, _ in done]

    return move_all(store, queue, f"queue:{target}", tags, stored)


def move_queue(source: Store, target: Store, queue: str) -> Iterator[int]:
    """Move the waiting messages and dead letters of *queue*; yield the number of each step.

    Messages keep their due time, remaining TTL and failed deliveries; dead letters stay dead. A
    missing queue is declared on *target*. Exception: a queue that only a publish created is not
    created there for replies. Such replies are dropped, as the target would do, and logged.
    Raises NotFound, and ConfigurationError if both stores are the same broker.
    """
    here, other = source.broker_id(), target.broker_id()
    if here == other:
        raise ConfigurationError(f"queue {queue!r} cannot move: both URLs name the same broker")
    # Partitions are internal to a broker: messages of a partition go to its queue.
    to = queue_of(queue)
    exists = declare(source, target, to)
    name, origin = f"broker:{other}", f"{here}:{queue}"
    dead_letters: dict[str, DeadLetter] = {}

    def accepted(low_water: int, moves: Sequence[Move]) -> list[str]:
        nonlocal exists
        if not exists and all(_answers(move.envelope) for move in moves):
            logger.warning(
                "dropped %d replies for queue %r: it does not exist at %s, so no client waits",
                *(len(moves), to, target.broker),
            )
            return [move.tag for move in moves]
        if not exists:
            target.create_queue(to)
            exists = True
        arriving = [move._replace(dead_letter=dead_letters.get(move.tag)) for move in moves]
        outcomes = target.accept(to, origin, low_water, arriving)
        if NO_QUEUE in outcomes:
            raise NotFound(f"queue {to!r} was deleted on the target during the move")
        stored = [move.tag for move, got in zip(moves, outcomes, strict=True) if got != FULL]
        if not stored:
            raise QueueFull(
                f"queue {to!r} on the target is full and rejects messages: {len(moves)} messages "
                "stay at the source; add consumers at the target, or raise its limit"
            )
        return stored

    while True:
        low_water, moves = source.move_out(queue, name)
        if not moves:
            break
        yield source.end_move(queue, accepted(low_water, moves))
    for page in pages(source, queue):
        dead_letters = {dead_letter.tag: dead_letter for dead_letter in page}
        yield move_all(source, queue, name, list(dead_letters), accepted)


def _answers(data: bytes) -> bool:
    try:
        envelope = decode(data)
    except EnvelopeError:
        return False
    return is_reply(envelope.properties, envelope.headers)


def declare(source: Store, target: Store, queue: str) -> bool:
    """Declare *queue* on *target* as on *source*, unless it exists there, and bind it.

    Returns whether it exists afterwards: a queue that only a publish created is not declared.
    """
    status = status_of(source, queue)
    arguments = status.declared
    auto_delete = bool(arguments.get("auto_delete"))
    if status.arguments.get("") or arguments:
        declare_queue(target, queue, *queue_arguments(queue, auto_delete, arguments))
        there_is = True
    else:  # only a publish created it: its declaration will follow, on the target too
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
