"""Exchanges and bindings of a file, with the version of each table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...store.values import NO_QUEUE, ExchangeTable
from .base import StoreBase
from .disk_reserve import essential

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.protocol import OnResult
    from .transaction import Transaction


def bindings_of(transaction: Transaction, exchange: str) -> int:
    """Return how many bindings an exchange has."""
    (count,) = transaction.execute(
        "SELECT count(*) FROM bindings WHERE prefix = ? AND exchange = ?",
        (transaction.prefix, exchange),
    ).fetchone()
    return int(count)


def _version(transaction: Transaction, exchange: str) -> bytes | None:
    row = transaction.execute(
        "SELECT version FROM exchanges WHERE prefix = ? AND name = ?",
        (transaction.prefix, exchange),
    ).fetchone()
    return row[0] if row else None


def change_bindings(
    transaction: Transaction, exchange: str, bound: bool, bindings: Sequence[bytes], queue: str
) -> int:
    """Add or remove bindings, and give their table another version; return how many it has."""
    key = (transaction.prefix, exchange)
    changed = 0
    for binding in bindings:
        if bound:
            changed += transaction.execute(
                "INSERT INTO bindings VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (*key, bytes(binding), queue or None),
            ).rowcount
        else:
            changed += transaction.execute(
                "DELETE FROM bindings WHERE prefix = ? AND exchange = ? AND binding = ?",
                (*key, bytes(binding)),
            ).rowcount
    known = _version(transaction, exchange)
    if changed or known is None:
        # By the clock: one that is deleted and made again has no version of before.
        version = max(time.time_ns(), int(known or 0) + 1)
        transaction.execute(
            "INSERT INTO exchanges (prefix, name, version) VALUES (?, ?, ?) "
            "ON CONFLICT (prefix, name) DO UPDATE SET version = excluded.version",
            (*key, b"%d" % version),
        )
    return bindings_of(transaction, exchange)


def unbind(transaction: Transaction, queue: str) -> dict[str, bytes | None]:
    """Remove all bindings of a queue; return the exchanges without any now, and what they are."""
    found = transaction.execute(
        "SELECT exchange, binding FROM bindings WHERE prefix = ? AND queue = ?",
        (transaction.prefix, queue),
    ).fetchall()
    bindings: dict[str, list[bytes]] = {}
    for exchange, binding in found:
        bindings.setdefault(exchange, []).append(binding)
    emptied: dict[str, bytes | None] = {}
    for exchange, gone in bindings.items():
        if not change_bindings(transaction, exchange, False, gone, queue):
            (declaration,) = transaction.execute(
                "SELECT declaration FROM exchanges WHERE prefix = ? AND name = ?",
                (transaction.prefix, exchange),
            ).fetchone()
            emptied[exchange] = declaration
    return emptied


class SqliteExchanges(StoreBase):
    """What a store knows of exchanges."""

    @essential
    def declare_exchange(self, exchange: str, declaration: bytes) -> bytes:
        """Store the declaration unless there is one; return what is stored."""
        known = self.exchange_table(exchange).declaration
        if known is not None:  # so that a worker can start when the disk is full
            return known
        with self.write() as transaction:
            transaction.execute(
                "INSERT INTO exchanges (prefix, name, declaration) VALUES (?, ?, ?) "
                "ON CONFLICT (prefix, name) DO UPDATE SET declaration = coalesce(declaration, ?)",
                (self._prefix, exchange, declaration, declaration),
            )
            (stored,) = transaction.execute(
                "SELECT declaration FROM exchanges WHERE prefix = ? AND name = ?",
                (self._prefix, exchange),
            ).fetchone()
            return bytes(stored)

    @essential
    def delete_exchange(self, exchange: str, *, if_unbound: bool = False) -> None:
        """Delete *exchange* and its bindings; with *if_unbound* only where it has none. Atomic."""
        with self.write() as transaction:
            key = (self._prefix, exchange)
            if if_unbound and bindings_of(transaction, exchange):
                return
            transaction.execute("DELETE FROM exchanges WHERE prefix = ? AND name = ?", key)
            transaction.execute("DELETE FROM bindings WHERE prefix = ? AND exchange = ?", key)

    def exchanges(self) -> list[str]:
        """Return the names of all declared exchanges."""
        with self.read() as transaction:
            found = transaction.execute(
                "SELECT name FROM exchanges WHERE prefix = ? AND declaration IS NOT NULL",
                (self._prefix,),
            )
            return sorted(name for (name,) in found)

    @essential
    def bind(
        self,
        exchange: str,
        bound: bool,
        bindings: Sequence[bytes],
        queue: str = "",
        *,
        present: bool = False,
    ) -> int:
        """Add or remove *bindings* and change the table's version, together."""
        with self.write() as transaction:
            if present and transaction.queue(queue) is None:
                return NO_QUEUE
            return change_bindings(transaction, exchange, bound, bindings, queue)

    @essential
    def unbind_queue(self, queue: str) -> dict[str, bytes | None]:
        """Remove the bindings of a queue that is gone, unless it was made anew. Atomic.

        What deletes a queue does that itself: these are of one that was bound without it.
        """
        with self.write() as transaction:
            return {} if transaction.queue(queue) is not None else unbind(transaction, queue)

    def exchange_table(self, exchange: str) -> ExchangeTable:
        """Return the declaration, the bindings and their version, at one instant."""
        key = (self._prefix, exchange)
        with self.read() as transaction:
            row = transaction.execute(
                "SELECT declaration, version FROM exchanges WHERE prefix = ? AND name = ?", key
            ).fetchone()
            bindings = transaction.execute(
                "SELECT binding FROM bindings WHERE prefix = ? AND exchange = ?", key
            )
            declaration, version = row or (None, None)
            return ExchangeTable(declaration, version, frozenset(item for (item,) in bindings))

    def bindings_version(self, exchange: str) -> bytes | None:
        """Return the version of the bindings of *exchange*; None where it has none."""
        with self.read() as transaction:
            return _version(transaction, exchange)

    def post_exchange_table(self, exchange: str, on_result: OnResult[ExchangeTable]) -> None:
        """Ask now; the answer comes when it is asked for."""
        self.post(lambda: self.exchange_table(exchange), on_result)

    def post_bindings_version(self, exchange: str, on_result: OnResult[bytes | None]) -> None:
        """Ask now; the answer comes when it is asked for."""
        self.post(lambda: self.bindings_version(exchange), on_result)
