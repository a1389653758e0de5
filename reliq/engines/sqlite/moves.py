"""Messages on their way to other queues and brokers, over SQLite.

Each gets a number, once and for all, by which the other place knows it; it stays here
until it is stored there. Whoever is killed in between is continued by the next who moves
to the same target, and nothing is stored twice. After a day without an end another target
may have it (a number is the time, in us).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ...message.delivery_tag import is_of_job, new_tag, rank_of
from ...store.batches import batches
from ...store.limits import DAY_US, MOVED_AT_ONCE, MOVES_KEPT_MS
from ...store.values import DUPLICATE, NO_QUEUE, STORED, Move
from .base import StoreBase
from .disk_reserve import essential
from .insert import Known, put
from .transaction import DEAD, DELAYED, HELD_BY_MOVE, READY, UNACKED, rank_score
from .unconfirmed import ANY_TARGET, next_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .transaction import QueueRow, Transaction


class _Begun(NamedTuple):
    """A move that was begun: where its message is."""

    number: int
    target: str
    state: int


class _Moves:
    """The moves out of one queue to one target, within a transaction."""

    def __init__(
        self, transaction: Transaction, row: QueueRow, target: str, *, dead_letters: bool
    ) -> None:
        self._transaction, self._row, self.target = transaction, row, target
        self._last = next_number(transaction, row.move) - 1
        self.begun = self._begun(dead_letters)
        """Those that go on, to whatever target, by tag."""
        self.low_water = min([self._last + 1, *(move.number for move in self.begun.values())])

    def _begun(self, dead_letters: bool) -> dict[str, _Begun]:
        """Return the moves that go on; those whose message has left are forgotten.

        One that has not ended after a day, or that may go anywhere, is from now on to the
        target: of a dead letter where *dead_letters* are moved, else of what is held by its move.
        """
        transaction, queue = self._transaction, self._row.id
        found: dict[str, _Begun] = {}
        moves = transaction.execute(
            "SELECT o.tag, o.number, o.target, m.state, m.position FROM moves o "
            "LEFT JOIN messages m ON m.queue = o.queue AND m.tag = o.tag "
            "WHERE o.queue = ? ORDER BY o.number",
            (queue,),
        ).fetchall()
        for tag, number, begun_to, state, position in moves:
            held = state == UNACKED and position == HELD_BY_MOVE
            if not held and state != DEAD:  # a late ack, or the cap, was faster
                transaction.execute("DELETE FROM moves WHERE queue = ? AND tag = ?", (queue, tag))
                continue
            free = (begun_to == ANY_TARGET or self._last - number > DAY_US) and dead_letters == (
                state == DEAD
            )
            if free and begun_to != self.target:
                transaction.execute(
                    "UPDATE moves SET target = ? WHERE queue = ? AND tag = ?",
                    (self.target, queue, tag),
                )
            found[tag] = _Begun(number, self.target if free else begun_to, state)
        return found

    def begin(self, tag: str) -> int:
        """Give a message its number, and return it."""
        self._last += 1
        self._transaction.execute(
            "INSERT OR REPLACE INTO moves (queue, tag, number, target) VALUES (?, ?, ?, ?)",
            (self._row.id, tag, self._last, self.target),
        )
        return self._last

    def keep(self, size: int = 0) -> None:
        """Remember the last number; *size* bytes wait no more."""
        self._transaction.execute(
            "UPDATE queues SET move = ?, waiting_bytes = max(waiting_bytes - ?, 0) WHERE id = ?",
            (self._last, size, self._row.id),
        )


class SqliteMoves(StoreBase):
    """What a store does with messages that go elsewhere."""

    @essential
    def begin_move(self, queue: str, target: str, tags: Sequence[str]) -> tuple[int, list[Move]]:
        """Give numbers to dead letters that are to be stored elsewhere, or find them again."""
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return 1, []
            numbered = _Moves(transaction, row, target, dead_letters=True)
            moves = []
            for tag in tags[:MOVED_AT_ONCE]:
                known = numbered.begun.get(tag)
                if known is not None and (known.target != target or known.state != DEAD):
                    continue
                envelope = transaction.execute(
                    "SELECT e.envelope FROM messages m JOIN envelopes e ON e.id = m.envelope "
                    "WHERE m.queue = ? AND m.tag = ? AND m.state = ?",
                    (row.id, tag, DEAD),
                ).fetchone()
                if envelope is not None:
                    number = numbered.begin(tag) if known is None else known.number
                    moves.append(Move(tag, number, envelope[0]))
            numbered.keep()
            return numbered.low_water, moves

    @essential
    def move_out(self, queue: str, target: str) -> tuple[int, list[Move]]:
        """Take waiting messages out of *queue*, or go on with those taken out before."""
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return 1, []
            moves = _Moves(transaction, row, target, dead_letters=False)
            going = [
                tag
                for tag, move in moves.begun.items()
                if move.state == UNACKED and move.target == target
            ][:MOVED_AT_ONCE]
            taken = self._take_out(transaction, row, MOVED_AT_ONCE - len(going))
            for tag in taken:
                moves.begin(tag)
                transaction.execute(
                    "UPDATE messages SET owner = ? WHERE queue = ? AND tag = ?",
                    (f"move/{target}", row.id, tag),
                )
            moves.keep(transaction.sizes(row.id, taken) if row.max_bytes is not None else 0)
            found = [self._move(transaction, row.id, tag) for tag in (*going, *taken)]
            return moves.low_water, found

    @staticmethod
    def _take_out(transaction: Transaction, row: QueueRow, most: int) -> list[str]:
        """Let up to *most* that wait be held by a move: the ready first, in their order."""
        for state, due in ((READY, "NULL"), (DELAYED, "position")):
            waiting = transaction.execute(
                "SELECT tag FROM messages WHERE queue = ? AND state = ? "
                "ORDER BY position, tag LIMIT ?",
                (row.id, state, most),
            ).fetchall()
            for (tag,) in waiting:
                transaction.execute(
                    f"UPDATE messages SET due = {due}, state = ?, position = ?, "  # noqa: S608
                    "token = 0 WHERE queue = ? AND tag = ?",
                    (UNACKED, HELD_BY_MOVE, row.id, tag),
                )
            if waiting:
                return [tag for (tag,) in waiting]
        return []

    @staticmethod
    def _move(transaction: Transaction, queue: int, tag: str) -> Move:
        number, publisher, publish, envelope, due, expires, failed = transaction.execute(
            "SELECT o.number, o.publisher, o.publish, e.envelope, m.due, m.expires, m.failed "
            "FROM moves o JOIN messages m ON m.queue = o.queue AND m.tag = o.tag "
            "JOIN envelopes e ON e.id = m.envelope WHERE o.queue = ? AND o.tag = ?",
            (queue, tag),
        ).fetchone()
        delay_ms = 0 if due is None else max(due - transaction.now, 0)
        ttl_ms = -1 if expires is None else max(expires - transaction.now, 0)
        origin = None if publisher is None else (publisher, publish)
        return Move(
            tag,
            number,
            envelope,
            delay_ms,
            ttl_ms,
            -1 if failed is None else failed,
            origin=origin,
        )

    def accept(self, queue: str, source: str, low_water: int, moves: Sequence[Move]) -> list[int]:
        """Store messages that come from *source*, each once; return what became of each.

        Limits of the queue do not apply: they were accepted once, and lose nothing now.
        """
        self.require_room()
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return [NO_QUEUE] * len(moves)
            known = Known(transaction, queue, f"move:{source}")
            sequence = row.published + row.promoted
            outcomes, size = [], 0
            for move in moves:
                if move.number in known:
                    outcomes.append(DUPLICATE)
                    continue
                known.numbers.add(move.number)
                outcomes.append(STORED)
                sequence += 1
                self._arrive(transaction, row, move, sequence)
                if move.dead_letter is not None:
                    transaction.count_deaths(row.id, move.dead_letter.reason, 1)
                size += len(move.envelope) if move.dead_letter is None else 0
            transaction.execute(
                "UPDATE queues SET published = published + ?, waiting_bytes = waiting_bytes + ? "
                "WHERE id = ?",
                (
                    outcomes.count(STORED),
                    size if row.max_bytes is not None else 0,
                    row.id,
                ),
            )
            known.keep(low_water, MOVES_KEPT_MS)
            transaction.notify(queue)
            return outcomes

    @staticmethod
    def _arrive(transaction: Transaction, row: QueueRow, move: Move, sequence: int) -> None:
        tag = new_tag(rank_of(move.tag), job=is_of_job(move.tag))
        put(
            transaction,
            row.id,
            tag,
            move.envelope,
            rank_score(tag, sequence),
            transaction.now + move.delay_ms if move.delay_ms > 0 else 0,
            transaction.now + move.ttl_ms if move.ttl_ms >= 0 else None,
            move.failed if move.failed >= 0 else None,
        )
        dead_letter = move.dead_letter
        if dead_letter is not None:
            transaction.execute(
                "UPDATE messages SET state = ?, position = ?, failed = ?, owner = ?, reason = ?, "
                "error = ?, expires = NULL WHERE queue = ? AND tag = ?",
                (
                    DEAD,
                    # By another broker's clock; what dies in the future is not found.
                    min(dead_letter.died_ms, transaction.now),
                    dead_letter.count,
                    dead_letter.consumer,
                    dead_letter.reason,
                    dead_letter.error,
                    row.id,
                    tag,
                ),
            )

    @essential
    def broker_id(self) -> str:
        """Return the name by which other brokers know this one."""
        with self.read() as transaction:
            row = transaction.execute(
                "SELECT id FROM brokers WHERE prefix = ?", (self._prefix,)
            ).fetchone()
        if row is None:
            with self.write() as transaction:
                transaction.execute(
                    "INSERT INTO brokers VALUES (?, ?) ON CONFLICT DO NOTHING",
                    (self._prefix, os.urandom(8).hex()),
                )
                row = transaction.execute(
                    "SELECT id FROM brokers WHERE prefix = ?", (self._prefix,)
                ).fetchone()
        return str(row[0])

    def end_move(self, queue: str, tags: Sequence[str]) -> int:
        """Take out what is stored elsewhere now; return how many."""
        return sum(self._end_move_some(queue, batch) for batch in batches(tags))

    @essential
    def _end_move_some(self, queue: str, tags: Sequence[str]) -> int:
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return 0
            gone = []
            for tag in tags:
                moving = transaction.execute(
                    "DELETE FROM moves WHERE queue = ? AND tag = ?", (row.id, tag)
                ).rowcount
                here = transaction.execute(
                    "SELECT 1 FROM messages WHERE queue = ? AND tag = ? AND "
                    "(state = ? OR state = ? AND position = ?)",
                    (row.id, tag, DEAD, UNACKED, HELD_BY_MOVE),
                ).fetchone()
                if moving and here:
                    gone.append(tag)
            if gone:
                transaction.drop(row.id, gone)
                transaction.execute(
                    "UPDATE queues SET moved = moved + ? WHERE id = ?", (len(gone), row.id)
                )
            return len(gone)
