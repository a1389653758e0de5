"""The embedded engine under the model: the process's clock is set, and each row is read."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from reliq.engines.sqlite import restoring, surveying, transaction
from tests.contract.engines import SqliteEngine
from tests.model.brokers import Broker
from tests.model.clocks import BEGINNING_MS, Clock
from tests.model.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

_COUNTERS = (
    "published",
    "acked",
    "expired",
    "purged",
    "dropped",
    "moved",
    "dead_lettered",
    "replayed",
    "restored",
    "undelivered",
    "released",
    "nacked",
    "redelivered",
    "lapsed",
    "waiting_bytes",
    "token",
    "job_events",
)


class ModuleClock(Clock):
    """In place of the module `time` in the engine."""

    def time_ns(self) -> int:
        """Return the time; in the middle of a ms, so that no rounding changes which."""
        return self.now * 1_000_000 + 500_000

    def monotonic_ns(self) -> int:
        """Return the same without its beginning: the machine never sleeps."""
        return self.time_ns() - BEGINNING_MS * 1_000_000

    def __getattr__(self, name: str) -> Any:
        """Return everything else from the real one."""
        return getattr(time, name)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Be the clock of every store of this process."""
        modules: tuple[Any, ...] = (restoring, surveying, transaction)
        for module in modules:
            module.time = self
        try:
            yield
        finally:
            for module in modules:
                module.time = time


class SqliteBroker(Broker):
    """A file under the model."""

    engine: SqliteEngine

    def __init__(self, engine: SqliteEngine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock
        self._stores = {}

    def hold_mutex(self, queue: str, remaining_ms: int) -> None:
        """Do nothing: it lapses by the clock of the model."""

    def snapshot(self, queue: str) -> Snapshot:
        """Return all that is stored of a queue, read at one instant."""
        with self.engine.rows() as connection:
            return self._read(connection, queue)

    def _read(self, connection: Any, queue: str) -> Snapshot:
        columns = ", ".join(_COUNTERS)
        row = connection.execute(
            f"SELECT id, notification, paused, {columns} FROM queues WHERE name = ?", (queue,)
        ).fetchone()
        number, notification, paused, *counts = row or (0, 0, 0, *(0 for _ in _COUNTERS))
        rows = connection.execute(
            "SELECT m.*, e.envelope AS bytes FROM messages m JOIN envelopes e ON e.id = m.envelope "
            "WHERE m.queue = ? ORDER BY m.position, m.tag",
            (number,),
        )
        names = [column[0] for column in rows.description]
        messages = [dict(zip(names, values, strict=True)) for values in rows]
        by_state: list[list[dict[str, Any]]] = [[], [], [], []]
        for message in messages:
            by_state[message["state"]].append(message)
        ready, delayed, unacked, dead = by_state
        stored = connection.execute("SELECT count(*) FROM envelopes").fetchone()[0]
        every = connection.execute("SELECT count(*) FROM messages").fetchone()[0]
        assert stored == every, "an envelope without message, or the reverse"
        deaths = {
            f"dead:{reason}": n
            for reason, n in connection.execute(
                "SELECT reason, count FROM deaths WHERE queue = ?", (number,)
            )
        }
        mutex = connection.execute(
            "SELECT owner FROM passes WHERE queue = ? AND until > ?", (queue, self.clock.now)
        ).fetchone()
        return Snapshot(
            envelopes={m["tag"]: m["bytes"].decode() for m in messages},
            ready=[m["tag"] for m in ready],
            delayed={m["tag"]: m["position"] for m in delayed},
            leases={m["tag"]: (m["token"], m["owner"]) for m in unacked},
            deadlines={m["tag"]: m["position"] for m in unacked},
            failed={m["tag"]: m["failed"] for m in messages if m["failed"] is not None},
            expires={
                m["tag"]: m["expires"]
                for m in (*ready, *delayed, *unacked)
                if m["expires"] is not None
            },
            dead={m["tag"]: m["position"] for m in dead},
            dead_info={
                m["tag"]: f"{m['reason']}|{m['failed'] or 0}|{m['owner']}|{m['error']}"
                for m in dead
            },
            ledger={name: n for name, n in zip(_COUNTERS, counts, strict=True) if n} | deaths,
            marks=dict(
                connection.execute(
                    "SELECT consumer, tag FROM candidates WHERE queue = ? AND consumer != ''",
                    (number,),
                )
            ),
            isolated=sorted(m["tag"] for m in unacked if m["reason"] == "isolated"),
            exists=row is not None,
            paused=bool(paused),
            notification=notification,
            mutex=mutex[0] if mutex else "",
            events=sorted(
                connection.execute(
                    "SELECT what, tag, reason, error FROM job_events WHERE queue = ?", (number,)
                ).fetchall()
            ),
        )

    def take_notification(self, queue: str) -> bool:
        """Take the ring that nobody has heard yet; False when there was none."""
        with self.engine.rows() as connection:
            taken = connection.execute(
                "UPDATE queues SET notification = 0 WHERE name = ? AND notification = 1", (queue,)
            )
            return taken.rowcount == 1


@contextlib.contextmanager
def running_sqlite() -> Iterator[Broker]:
    """Run the model's broker on a file."""
    clock = ModuleClock()
    with clock.installed():
        broker = SqliteBroker(SqliteEngine(), clock)
        try:
            yield broker
        finally:
            broker.close()
