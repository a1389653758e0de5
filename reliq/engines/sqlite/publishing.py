"""Publishing: messages into queues, each once, and how safe they are there."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from ...errors import BrokerRefused, BrokerUnavailable, again
from ...store.batches import alike
from ...store.limits import MOST_REMEMBERED
from ...store.retention import kept_ms
from ...store.values import CREATED, NO_QUEUE, STALE, STORED
from .base import StoreBase
from .insert import SELECT, Insert
from .joint import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...options import Confirm
    from ...store.protocol import OnResult
    from ...store.values import Publication
    from .joint import Request, Step
    from .transaction import Transaction


class SqlitePublishing(StoreBase):
    """The publishing half of a store."""

    def publish(self, publications: Sequence[Publication]) -> list[int]:
        """Store *publications*; neighbours alike in one step."""
        self.require_room()
        if len(publications) == 1:
            return self._store(publications)
        return [outcome for items in alike(publications) for outcome in self._store(items)]

    def post_publish(
        self, publications: Sequence[Publication], on_result: OnResult[list[int]]
    ) -> None:
        """Store them now; the outcomes come when they are asked for."""
        self.post(lambda: self.publish(publications), on_result)

    def _store(self, items: Sequence[Publication]) -> list[int]:
        """Store *items*, which differ in nothing but the message, in one step.

        With what other threads publish at this moment, all or nothing of it.
        """
        step = partial(self._insert, items)
        if self._results and not self._posting:
            self.receive()
        with self._connection.lock:
            # Who leads must not have to open its file: a fork may keep it from that meanwhile.
            self._connection.require()
            request = None if self._joint.lead() else self._wait(step)
            if request is None or request.leads:
                with Group(self._joint, self.where) as group:
                    with self.write() as transaction:
                        outcomes = step(transaction)
                        group.join(transaction)
                    return outcomes
            elif request.outcomes is not None:
                return request.outcomes
            # It failed together with others, so nothing is stored: each by itself.
            with self.write() as transaction:
                return step(transaction)

    def _wait(self, step: Step) -> Request:
        request = self._joint.wait(step, self.options.socket_timeout)
        if request.error is not None:
            raise again(request.error)
        return request

    def _insert(self, items: Sequence[Publication], transaction: Transaction) -> list[int]:
        """Store *items* within a transaction, perhaps of another thread's store."""
        first = items[0]
        if first.version:
            found = transaction.execute(
                "SELECT version FROM exchanges WHERE prefix = ? AND name = ?",
                (transaction.prefix, first.exchange),
            ).fetchone()
            if found is None or found[0] != first.version:
                return [STALE] * len(items)
        place = (transaction.prefix, first.queue)
        row = transaction.execute(SELECT, place).fetchone()
        created = row is None
        if created:
            if first.exchange or not first.create:
                return [NO_QUEUE] * len(items)
            transaction.execute("INSERT INTO queues (prefix, name) VALUES (?, ?)", place)
            row = transaction.execute(SELECT, place).fetchone()
        insert = Insert(transaction, row, items)
        outcomes = [insert.add(item) for item in items]
        insert.finish(items, self.options.dead_letter_max, kept_ms(self._began, self.keeps_long))
        if first.number and not first.moved and len(self._numbered) < MOST_REMEMBERED:
            self._numbered.add((first.queue, first.publisher))
        if created and STORED in outcomes:
            outcomes[outcomes.index(STORED)] = CREATED
        return outcomes

    def forget_publishers(self, finished: Callable[[str], bool]) -> None:
        """Remove the numbers of publishers that have *finished*."""
        done = [place for place in self._numbered if finished(place[1])]
        self._numbered.difference_update(done)
        if done:
            with self.write() as transaction:
                transaction.executemany(
                    "DELETE FROM publishers WHERE prefix = ? AND queue = ? AND publisher = ?",
                    [(transaction.prefix, *place) for place in done],
                )

    def require_confirm(self, level: Confirm) -> None:
        """Raise BrokerRefused for "replicated": a file has no replicas, and never will."""
        if level == "replicated":
            raise BrokerRefused(
                f"{self.where}: a file has no replicas to confirm a message (confirm="
                '"replicated"); nothing was stored. Use "fsynced", or "accepted"'
            )

    def confirm(
        self,
        level: Confirm,
        replicas: int,
        timeout_ms: int,
        publications: Sequence[Publication],
    ) -> None:
        """Write what is stored to the disk, for "fsynced"; there are no replicas to wait for."""
        del replicas, timeout_ms, publications
        if level == "fsynced" and self.options.synchronous != "full":
            try:
                # The log alone: closing the file itself would drop the locks on it.
                fd = os.open(f"{self.where.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            except OSError as exc:
                raise BrokerUnavailable(
                    f"{self.where}: the log could not be written to the disk: {exc}"
                ) from exc
