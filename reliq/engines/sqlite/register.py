"""The register of consumers of a file: who still lives, and what each says of itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

from ...store.consumer_record import consumer_of
from ...store.limits import A_QUEUE_MS, DUE_AT_ONCE, FORGOTTEN_MS, LOOKED_AT, ROUTED_AT_ONCE
from ...store.unreadable import left_out, mapping, number
from ...store.values import Duties, Liveness
from . import presence
from .base import StoreBase
from .disk_reserve import essential

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...store.inspection import Consumer
    from ...store.protocol import OnResult
    from .transaction import Transaction

# In the place of a queue's name, in the table of passes: no queue can have it.
_REGISTER = "\x00register"

# Last heartbeat, ms since then, ms that one counts, and what the consumer says of itself.
_Record: TypeAlias = "tuple[int, int, int, dict[str, str]]"


class SqliteRegister(StoreBase):
    """What a store knows of consumers."""

    def post_look(self, consumer: str, hold_ms: int, on_result: OnResult[list[str]]) -> None:
        """Ask for the duty to look after all consumers."""
        self.post(lambda: self._look_after_all(consumer, hold_ms), on_result)

    @essential
    def _look_after_all(self, consumer: str, hold_ms: int) -> list[str]:
        key = (self._prefix, _REGISTER)
        with self.write() as transaction:
            found = transaction.execute(
                "SELECT owner FROM passes WHERE prefix = ? AND queue = ? AND until > ?",
                (*key, transaction.now),
            ).fetchone()
            if found is not None and found[0] != consumer:
                return []
            transaction.execute(
                "INSERT OR REPLACE INTO passes VALUES (?, ?, ?, ?, 0, 0)",
                (*key, consumer, transaction.now + hold_ms),
            )
            ids = transaction.execute(
                "SELECT id FROM consumers WHERE prefix = ? ORDER BY seen LIMIT ?",
                (self._prefix, LOOKED_AT),
            ).fetchall()
            return [name for (name,) in ids]

    def post_heartbeat(
        self,
        consumer: str,
        ttl_ms: int,
        again_ms: int,
        record: dict[str, str],
        on_result: OnResult[Duties],
    ) -> None:
        """Say that *consumer* lives; the result is what queues need of whoever lives."""
        self.post(lambda: self._heartbeat(consumer, ttl_ms, again_ms, record), on_result)

    @essential
    def _heartbeat(
        self, consumer: str, ttl_ms: int, again_ms: int, record: dict[str, str]
    ) -> Duties:
        presence.stay(self.where, record.get("client_id", ""))
        with self.write() as transaction:
            known = self._record(transaction, consumer)
            transaction.execute(
                "INSERT INTO consumers VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (prefix, id) DO UPDATE SET "
                "seen = excluded.seen, until = excluded.until, record = excluded.record",
                (
                    self._prefix,
                    consumer,
                    transaction.now,
                    transaction.now + ttl_ms,
                    json.dumps({**(known or {}), **record}),
                ),
            )
            # Whoever lives removes those who stopped without a goodbye, from their queues
            # first; here they are kept for long, in case that nobody lives.
            transaction.execute(
                "DELETE FROM consumers WHERE prefix = ? AND seen <= ?",
                (self._prefix, transaction.now - FORGOTTEN_MS),
            )
            transaction.execute(
                "DELETE FROM publishers WHERE prefix = ? AND until <= ?",
                (self._prefix, transaction.now),
            )
            due = self._due(transaction, again_ms)
            dead_letter_routed = transaction.execute(
                "SELECT name FROM queues WHERE prefix = ? AND dead_letter_exchange IS NOT NULL "
                "ORDER BY name LIMIT ?",
                (self._prefix, ROUTED_AT_ONCE),
            ).fetchall()
            names = [name for (name,) in dead_letter_routed]
            return Duties(due, len(due) == DUE_AT_ONCE, names, known is None)

    def _record(self, transaction: Transaction, consumer: str) -> dict[str, str] | None:
        """Return the record of *consumer*, what can be read of it; None where there is none."""
        row = transaction.execute(
            "SELECT record FROM consumers WHERE prefix = ? AND id = ?", (self._prefix, consumer)
        ).fetchone()
        if row is None:
            return None
        try:
            return mapping(row[0])
        except (TypeError, ValueError, RecursionError):
            return {}

    def post_running(
        self, consumer: str, number: int, running: Mapping[str, int], on_result: OnResult[bool]
    ) -> None:
        """Say which tasks a worker runs that are acknowledged; False: it is not known."""
        self.post(lambda: self._running(consumer, number, json.dumps(running)), on_result)

    @essential
    def _running(self, consumer: str, said: int, running: str) -> bool:
        with self.write() as transaction:
            record = self._record(transaction, consumer)
            if record is None:
                return False
            if said > number(record.get("said", 0)):
                record.update(said=str(said), running=running)
                transaction.execute(
                    "UPDATE consumers SET record = ? WHERE prefix = ? AND id = ?",
                    (json.dumps(record), self._prefix, consumer),
                )
            return True

    def _due(self, transaction: Transaction, again_ms: int) -> list[str]:
        """Return queues to look at now: each by one consumer at a time, in turn."""
        due = transaction.execute(
            "SELECT id, name FROM queues WHERE prefix = ? AND check_at <= ? "
            "ORDER BY check_at LIMIT ?",
            (self._prefix, transaction.now, DUE_AT_ONCE),
        ).fetchall()
        if due:
            (there,) = transaction.execute(
                "SELECT count(*) FROM queues WHERE prefix = ?", (self._prefix,)
            ).fetchone()
            again = transaction.now + max(again_ms, A_QUEUE_MS * there)
            transaction.executemany(
                "UPDATE queues SET check_at = ? WHERE id = ?", [(again, queue) for queue, _ in due]
            )
        return [name for _, name in due]

    @essential
    def forget_consumer(self, consumer: str) -> None:
        """Remove *consumer* from the register."""
        with self.write() as transaction:
            transaction.execute(
                "DELETE FROM consumers WHERE prefix = ? AND id = ?", (self._prefix, consumer)
            )

    def liveness(self, consumers: Sequence[str]) -> dict[str, Liveness | None]:
        """Return what is known of *consumers*; None for one that is not in the register.

        Whether one is connected is asked of the kernel, not of the file: a lock that its
        process holds. So a killed one is known at once, and no other process is taken for
        it because it has its pid.
        """
        records = self._records()
        found: dict[str, Liveness | None] = {}
        for name in consumers:
            if name not in records:
                found[name] = None
                continue
            found[name] = self._liveness(*records[name])
        return found

    def _records(self) -> dict[str, _Record]:
        """Return the record of every consumer, by id."""
        with self.read() as transaction:
            found = transaction.execute(
                "SELECT id, seen, until, record FROM consumers WHERE prefix = ?", (self._prefix,)
            ).fetchall()
        records: dict[str, _Record] = {}
        wrong = []
        for name, seen, until, stored in found:
            try:
                record = json.loads(stored)
            except (TypeError, ValueError, RecursionError):
                record = None
            if isinstance(record, dict) and all(isinstance(v, str) for v in record.values()):
                at, ends = number(seen), number(until)
                records[str(name)] = (at, transaction.now - at, ends - at, record)
            else:
                wrong.append(name)
        left_out(self.broker, "records of consumers", wrong)
        return records

    def _liveness(self, seen: int, silent_ms: int, ttl_ms: int, record: dict[str, str]) -> Liveness:
        del seen
        client_id, run_id = record.get("client_id", ""), record.get("run_id", "")
        # What another machine, or this one before it was started anew, says of itself means
        # nothing here: its leases decide.
        foreign = run_id != self.server()[1]
        queues = tuple(filter(None, record.get("queues", "").split("\n")))
        connected = foreign or presence.present(self.where, client_id)
        host, pid = record.get("host", ""), number(record.get("pid", 0))
        return Liveness(client_id, run_id, queues, connected, silent_ms, ttl_ms, host, pid)

    def consumers(self) -> list[Consumer]:
        """Return every consumer whose record has not lapsed, by id."""
        found = []
        for name, (seen, silent_ms, ttl_ms, record) in sorted(self._records().items()):
            if "host" not in record:
                continue
            liveness = self._liveness(seen, silent_ms, ttl_ms, record)
            if liveness.lapsed:
                continue
            try:
                found.append(consumer_of(name, seen, liveness, record))
            except (ValueError, RecursionError):
                left_out(self.broker, "records of consumers", [name])
        return found
