"""Moving: dead letters to another queue of the same broker, each stored there once.

Three steps, each atomic and each safe to repeat: the dead letter gets a number, once; it
is stored in the other queue under that number, which knows it by then; it is taken
out here. Whoever is killed in between is continued by the next who moves the same
dead letters to the same target.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from ..errors import NotFound, QueueFull
from ..integrations.outcomes import job_of
from ..message.delivery_tag import is_of_job, new_tag, rank_of
from ..message.envelope import EnvelopeError, decode
from ..routing.outgoing import Outgoing
from ..routing.publish_ids import GivenNumber, publish_tag
from ..routing.routes import Routes
from ..routing.sending import send
from ..store.jobs import Change
from ..store.limits import MOVED_AT_ONCE, chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from ..store.inspection import DeadLetter
    from ..store.protocol import Store
    from ..store.values import Move, Publication

# Of a tag those that tell it from others: a process's and its counter's.
_DIGITS = 16


def pages(
    store: Store,
    queue: str,
    envelopes: bool = False,
    from_ms: int = 0,
    known: Collection[str] = (),
) -> Iterator[list[DeadLetter]]:
    """Yield the dead letters of *queue*, oldest first, some at a time, each once.

    Those of a page may be moved or removed before the next one is asked for. With
    *from_ms* only those that died then or later, but for those *known*, which died just
    then; where there are no others, no envelope is read.
    """
    seen = set(known)
    while True:
        most = MOVED_AT_ONCE + len(seen)
        found = store.reads.dead_letters(queue, most, from_ms, envelopes and not seen)
        page = [dead_letter for dead_letter in found if dead_letter.tag not in seen]
        if not page:
            return
        if envelopes and seen:
            found = store.reads.dead_letters(queue, most, from_ms, envelopes)
            page = [dead_letter for dead_letter in found if dead_letter.tag not in seen]
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
    """Return *move*, from the queue *source*, as it is sent on."""
    rank, of_job = rank_of(move.tag), is_of_job(move.tag)

    def own_tag(queue: str) -> str:
        return _tag_of_job(queue, source, move) if of_job else new_tag(rank)

    publisher = GivenNumber(f"move:{source}", move.number, low_water, moved=True, own_tag=own_tag)
    tag = publish_tag(move.tag, publisher)
    return Outgoing(exchange, routing_key, envelope, rank, tag=tag, spreads=False)


def _tag_of_job(queue: str, source: str, move: Move) -> str:
    """Return the tag of a job in another queue: whoever goes on with the move knows it, too."""
    begins = len(move.tag) - _DIGITS - 1
    named = f"{source}\n{queue}\n{move.number}\n{move.tag}".encode("utf-8", "surrogateescape")
    return move.tag[:begins] + blake2b(named, digest_size=_DIGITS // 2).hexdigest() + move.tag[-1]


def _tell_batches(store: Store, target: str, sent: Iterable[tuple[Move, Publication]]) -> None:
    """Tell batches that jobs whose messages were dead letters wait in *target* now; waits."""
    by_batch: dict[str, list[Change]] = {}
    for move, stored in sent:
        if not is_of_job(move.tag):
            continue
        try:
            found = job_of(decode(move.envelope).headers)
        except EnvelopeError:
            continue
        if found is not None:
            batch, job, retries = found
            change = Change("replay", job, "", retries, 0, stored.tag, target, move.tag)
            by_batch.setdefault(batch, []).append(change)
    for batch, changes in by_batch.items():
        store.batches.change(batch, changes)


def move_all(
    store: Store,
    queue: str,
    target: str,
    tags: Sequence[str],
    stored: Callable[[int, Sequence[Move]], Sequence[str]],
) -> int:
    """Move the dead letters *tags* of *queue*; return how many were taken out.

    *target* names where to; *stored* is given (low, moves), stores them, and returns
    the tags of those that are stored. Not atomic as a whole; repeat it to go on.
    """
    count = 0
    for chunk in chunks(tags, MOVED_AT_ONCE):
        low_water, moves = store.begin_move(queue, target, chunk)
        done = stored(low_water, moves) if moves else ()
        if done:
            count += store.end_move(queue, done)
    return count


def to_queue(store: Store, queue: str, target: str, tags: Sequence[str]) -> int:
    """Move the dead letters *tags* of *queue* into *target*; return how many.

    Raises NotFound for a *target* that does not exist, QueueFull when it takes no more;
    what was not moved stays where it is.
    """
    if store.reads.status(target) is None:
        raise NotFound(f"no queue {target!r} to move dead letters of {queue!r} to; declare it")

    def stored(low_water: int, moves: Sequence[Move]) -> Sequence[str]:
        items = [outgoing(queue, move, low_water, move.envelope, target) for move in moves]
        send(store, Routes(store), items)
        if all(item.full for item in items):
            raise QueueFull(
                f"queue {target!r} is full and rejects: {len(moves)} dead letters of "
                f"{queue!r} stay where they are"
            )
        pairs = zip(moves, items, strict=True)
        done = [(move, item.stored[target]) for move, item in pairs if item.stored]
        _tell_batches(store, target, done)
        return [move.tag for move, _ in done]

    return move_all(store, queue, f"queue:{target}", tags, stored)
