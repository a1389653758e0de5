"""The register of consumers over SQLite: who consumes, and who still lives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ...store import Consumer, Duties, Liveness, OnResult
from . import presence
from .base import StoreBase
from .reserve import essential
from .topology import remove, users

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .base import Step

_LOOKED_AT = 20
_REROUTED = 1000
# A record is forgotten after so many times the time it counts.
_FORGOTTEN = 10


class SqliteRegister(StoreBase):
    """What a store knows of consumers."""

    @essential
    def attach(self, queue: str, consumer: str, subscriptions: int) -> bool:
        """Note who consumes; False when the queue was deleted with the last one."""
        key = (self._prefix, queue, consumer)
        with self.step() as step:
            if subscriptions:
                step.execute(
                    "INSERT INTO attached VALUES (?, ?, ?, ?) "
                    "ON CONFLICT (prefix, queue, consumer) "
                    "DO UPDATE SET subscriptions = excluded.subscriptions",
                    (*key, subscriptions),
                )
                return True
            row = step.queue(queue)
            if row is not None:
                self._forget_suspects(step, row.id, consumer)
            left = step.execute(
                "DELETE FROM attached WHERE prefix = ? AND queue = ? AND consumer = ?", key
            )
            if not left.rowcount or users(step, queue) or row is None:
                return True
            if row.auto_delete:
                remove(step, queue, row)
                return False
            if row.expires is not None:
                step.execute("UPDATE queues SET used_at = ? WHERE id = ?", (step.now, row.id))
            return True

    @staticmethod
    def _forget_suspects(step: Step, queue: int, consumer: str) -> None:
        """Forget the marks of a consumer, but for one that its ended leases are judged by."""
        beginning = f"{consumer}/"
        step.execute(
            "DELETE FROM suspects WHERE queue = ? AND substr(consumer, 1, ?) = ? AND NOT EXISTS "
            "(SELECT 1 FROM messages m WHERE m.queue = suspects.queue AND m.tag = suspects.tag "
            "AND m.state = 2 AND m.owner = suspects.consumer)",
            (queue, len(beginning), beginning),
        )

    def post_heartbeat(
        self, consumer: str, ttl_ms: int, record: dict[str, str], on_result: OnResult[Duties]
    ) -> None:
        """Say that *consumer* lives; the result is what queues need of whoever lives."""
        self.post(lambda: self._heartbeat(consumer, ttl_ms, record), on_result)

    @essential
    def _heartbeat(self, consumer: str, ttl_ms: int, record: dict[str, str]) -> Duties:
        presence.stay(self.where, record.get("client_id", ""))
        with self.step() as step:
            step.execute(
                "INSERT INTO consumers VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (prefix, id) DO UPDATE SET "
                "seen = excluded.seen, until = excluded.until, record = excluded.record",
                (self._prefix, consumer, step.now, step.now + ttl_ms, json.dumps(record)),
            )
            # Those who stopped long ago and did not say goodbye.
            step.execute(
                "DELETE FROM consumers WHERE prefix = ? AND seen <= ?",
                (self._prefix, step.now - _FORGOTTEN * ttl_ms),
            )
            expiring = step.execute(
                "SELECT id, name FROM queues WHERE prefix = ? AND check_at BETWEEN 1 AND ? "
                "ORDER BY check_at LIMIT ?",
                (self._prefix, step.now, _LOOKED_AT),
            ).fetchall()
            for queue, _ in expiring:
                # Whoever looks says when to look again; until then others have their turn.
                step.execute(
                    "UPDATE queues SET check_at = ? WHERE id = ?", (step.now + ttl_ms, queue)
                )
            rerouted = step.execute(
                "SELECT name FROM queues WHERE prefix = ? AND dead_letter_exchange IS NOT NULL "
                "ORDER BY name LIMIT ?",
                (self._prefix, _REROUTED),
            ).fetchall()
            return Duties([name for _, name in expiring], [name for (name,) in rerouted])

    def consumers_of(self, queue: str) -> list[str]:
        """Return the ids of the consumers of *queue*, dead ones that nobody removed included."""
        with self.look() as step:
            found = step.execute(
                "SELECT consumer FROM attached WHERE prefix = ? AND queue = ?",
                (self._prefix, queue),
            )
            return sorted(name for (name,) in found)

    @essential
    def forget_consumer(self, consumer: str) -> None:
        """Remove *consumer* from the register."""
        with self.step() as step:
            step.execute(
                "DELETE FROM consumers WHERE prefix = ? AND id = ?", (self._prefix, consumer)
            )

    def liveness(self, consumers: Sequence[str]) -> dict[str, Liveness | None]:
        """Return what is known of *consumers*; None for one whose record has lapsed.

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
            _, record = records[name]
            found[name] = self._liveness(record)
        return found

    def _records(self) -> dict[str, tuple[int, dict[str, str]]]:
        """Return (last heartbeat, record) of every consumer whose record has not lapsed."""
        with self.look() as step:
            found = step.execute(
                "SELECT id, seen, record FROM consumers WHERE prefix = ? AND until > ?",
                (self._prefix, step.now),
            ).fetchall()
        return {name: (seen, json.loads(record)) for name, seen, record in found}

    def _liveness(self, record: dict[str, str]) -> Liveness:
        client_id, run_id = record.get("client_id", ""), record.get("run_id", "")
        # What another machine, or this one before it was started anew, says of itself means
        # nothing here: its leases decide.
        foreign = run_id != self.server()[1]
        queues = tuple(filter(None, record.get("queues", "").split("\n")))
        connected = foreign or presence.present(self.where, client_id)
        return Liveness(client_id, run_id, queues, connected)

    def consumers(self) -> list[Consumer]:
        """Return every consumer whose record has not lapsed, by id."""
        found = []
        for name, (seen, record) in sorted(self._records().items()):
            if "host" not in record:
                continue
            liveness = self._liveness(record)
            found.append(
                Consumer(
                    name,
                    record["host"],
                    int(record.get("pid", 0)),
                    record.get("version", "0"),
                    liveness.queues,
                    int(record.get("started_ms", 0)),
                    seen,
                    int(record.get("held", 0)),
                    liveness.connected,
                    record.get("pool", ""),
                    json.loads(record.get("options") or "{}"),
                )
            )
        return found
