"""Messages that another broker may have: a publish was tried there, and its reply was lost.

A consumer that got one here might run what runs there as well. So they are held as if
they were on their way already, and only a move takes them out: to the broker that knows,
by the number under which they were published, whether it has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .transaction import DELAYED, HELD_BY_MOVE, UNACKED

if TYPE_CHECKING:
    from .transaction import Transaction

ANY_TARGET = ""
"""Where they go is not known yet: to wherever they are moved first."""


def next_number(transaction: Transaction, last: int) -> int:
    """Return the number of the next move of a queue, after *last*.

    Numbers keep up with the time: a file that has lost its last writes repeats none.
    """
    return max(transaction.now * 1000, last) + 1


def hold(transaction: Transaction, queue: int, tag: str, publisher: str, number: int) -> None:
    """Hold a message that was stored just now; *number* is what *publisher* gave it."""
    transaction.execute(
        "UPDATE messages SET due = CASE state WHEN ? THEN position END, state = ?, position = ?, "
        "owner = 'move/' WHERE queue = ? AND tag = ?",
        (DELAYED, UNACKED, HELD_BY_MOVE, queue, tag),
    )
    (last,) = transaction.execute("SELECT move FROM queues WHERE id = ?", (queue,)).fetchone()
    move = next_number(transaction, last)
    transaction.execute("UPDATE queues SET move = ? WHERE id = ?", (move, queue))
    transaction.execute(
        "INSERT INTO moves (queue, tag, number, target, publisher, publish) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (queue, tag, move, ANY_TARGET, publisher, number),
    )
