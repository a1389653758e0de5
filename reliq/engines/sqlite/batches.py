"""Batches in a file: see :class:`reliq.store.jobs.Batches`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ...store.batches import batches as parted
from ...store.jobs import (
    CALLBACKS,
    LETTERS,
    STATES,
    BatchRecord,
    Callback,
    Change,
    Changed,
    Job,
    Note,
    Progress,
    Report,
    checked,
    checked_note,
    one_step,
)
from ...store.limits import BATCH, PROGRESS_LISTED
from ...store.unreadable import left_out, mapping, number
from .disk_reserve import essential
from .job_notes import noted
from .jobs import COUNTERS, FLAGS, Changing, readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ...errors import ReliqError
    from ...store.protocol import OnResult
    from .base import StoreBase
    from .transaction import Row, Transaction

_JOB = "id, state, retries, token, since, tag, queue, worker"
_FORGOTTEN_AT_ONCE = 1000


class SqliteBatches:
    """The batches in one file."""

    def __init__(self, store: StoreBase) -> None:
        self._store = store

    def make_room(self) -> None:
        """Have room to write where the disk is full: at the cost of the reserve."""
        self._store.make_room()

    @staticmethod
    def _number(transaction: Transaction, batch: str) -> int | None:
        """Return the number of *batch*, by which its jobs know it; None where there is none."""
        row = transaction.execute(
            "SELECT number FROM batches WHERE prefix = ? AND id = ? AND forgotten = 0",
            (transaction.prefix, batch),
        ).fetchone()
        return None if row is None else int(row[0])

    def open_batch(self, batch: str, name: str, fields: Mapping[str, str]) -> bool:
        """Make *batch* unless there is one; whether there was none."""
        self._store.require_room()
        with self._store.write() as transaction:
            if self._number(transaction, batch) is not None:
                return False
            transaction.execute(
                "INSERT INTO batches (prefix, id, name, fields, created, check_at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (
                    transaction.prefix,
                    batch,
                    name,
                    json.dumps(dict(fields)),
                    transaction.now,
                    transaction.now,
                ),
            )
            return True

    # -- changes

    def change(self, batch: str, changes: Sequence[Change], *, by: str = "") -> Changed | None:
        """Change jobs, in order."""
        cancelled, due, outcomes = False, False, []
        for part in parted(checked(changes), BATCH):
            found = self._change(batch, part, by)
            if found is None:
                return None
            cancelled, due = found.cancelled, found.due
            outcomes += found.outcomes
        return Changed(cancelled, outcomes, due)

    def post_change(
        self, batch: str, changes: Sequence[Change], on_result: OnResult[Changed | None]
    ) -> None:
        """Do what :meth:`change` does; the outcomes come when they are asked for."""
        part = one_step(changes)
        self._store.post(lambda: self._change(batch, part, ""), on_result)

    def _change(self, batch: str, changes: Sequence[Change], by: str) -> Changed | None:
        if all(change.what == "enter" for change in changes):
            # Their messages would be refused, too.
            self._store.require_room()
        return self._change_surely(batch, changes, by)

    @essential
    def _change_surely(self, batch: str, changes: Sequence[Change], by: str) -> Changed | None:
        with self._store.write() as transaction:
            known = self._number(transaction, batch)
            if known is None:
                return None
            changing = Changing(transaction, known, by)
            outcomes = changing.change(changes)
            changing.save()
            return Changed(changing.cancelled, outcomes, changing.due)

    @essential
    def said(self, batch: str, callback: Callback) -> None:
        """Note that a callback is published."""
        due, said = (next(n for n in FLAGS if n == f"{w}_{callback}") for w in ("due", "said"))
        with self._store.write() as transaction:
            transaction.execute(
                f"UPDATE batches SET {said} = {due}, {due} = NULL "  # noqa: S608 - known names
                f"WHERE prefix = ? AND id = ? AND forgotten = 0 AND {due} IS NOT NULL",
                (transaction.prefix, batch),
            )

    def note(self, batch: str, note: Note) -> bool:
        """Note what an open job says; whether it is noted."""
        self._store.require_room()
        with self._store.write() as transaction:
            known = self._number(transaction, batch)
            return known is not None and noted(transaction, known, checked_note(note))

    @essential
    def forget_batch(self, batch: str) -> None:
        """Remove *batch* in one step, and its jobs in as many as it takes.

        Whoever forgets a batch goes on with what another one has left, who died meanwhile.
        """
        with self._store.write() as transaction:
            transaction.execute(
                "UPDATE batches SET forgotten = 1 WHERE prefix = ? AND id = ? AND forgotten = 0",
                (transaction.prefix, batch),
            )
        self.unlist_batch(batch)

    @essential
    def unlist_batch(self, batch: str) -> None:
        """Go on with what was forgotten half way: a batch is listed as long as it is there."""
        del batch
        while self._forget_some():
            pass

    def _forget_some(self) -> bool:
        """Remove some jobs of a batch that is forgotten; whether there was one."""
        with self._store.write() as transaction:
            found = transaction.execute(
                "SELECT number FROM batches WHERE prefix = ? AND forgotten = 1 LIMIT 1",
                (transaction.prefix,),
            ).fetchone()
            if found is None:
                return False
            removed = transaction.execute(
                "DELETE FROM jobs WHERE batch = ? AND id IN "
                "(SELECT id FROM jobs WHERE batch = ? LIMIT ?)",
                (*found, *found, _FORGOTTEN_AT_ONCE),
            ).rowcount
            for table in ("job_notes", "job_reports"):
                if removed < _FORGOTTEN_AT_ONCE:
                    key = "id" if table == "job_notes" else "number"
                    removed = transaction.execute(
                        f"DELETE FROM {table} WHERE batch = ? AND {key} IN "  # noqa: S608 - ours
                        f"(SELECT {key} FROM {table} WHERE batch = ? LIMIT ?)",
                        (*found, *found, _FORGOTTEN_AT_ONCE),
                    ).rowcount
            if removed < _FORGOTTEN_AT_ONCE:
                transaction.execute("DELETE FROM batches WHERE number = ?", found)
            return True

    # -- looking

    @essential
    def next_batches(self, limit: int, again_ms: int) -> list[str]:
        """Return the ids of up to *limit* batches that are due to be looked after."""
        with self._store.write() as transaction:
            due = transaction.execute(
                "SELECT number, id FROM batches WHERE prefix = ? AND check_at <= ? "
                "AND forgotten = 0 ORDER BY check_at LIMIT ?",
                (transaction.prefix, transaction.now, max(limit, 0)),
            ).fetchall()
            transaction.executemany(
                "UPDATE batches SET check_at = ? WHERE number = ?",
                [(transaction.now + again_ms, number) for number, _ in due],
            )
            return [str(name) for _, name in due]

    @essential
    def postpone(self, batch: str, until_ms: int) -> bool:
        """Have *batch* looked after no sooner than that, where it has ended; whether so."""
        with self._store.write() as transaction:
            done = transaction.execute(
                "UPDATE batches SET check_at = ? WHERE prefix = ? AND id = ? AND forgotten = 0 "
                "AND ended IS NOT NULL AND due_failure IS NULL AND due_complete IS NULL "
                "AND due_success IS NULL",
                (until_ms, transaction.prefix, batch),
            )
            return done.rowcount > 0

    def batch(self, batch: str) -> BatchRecord | None:
        """Return what is known of *batch*, at one instant."""
        with self._store.read() as transaction:
            return self._record(transaction, batch)

    def records(
        self, batches: Sequence[str], fields: Sequence[str] = ()
    ) -> list[BatchRecord | ReliqError | None]:
        """Return what is known of each of *batches*; some hundred at one instant."""
        found: list[BatchRecord | ReliqError | None] = []
        for part in parted(batches):
            with self._store.read() as transaction:
                for record in (self._record(transaction, batch) for batch in part):
                    if record is not None:
                        noted = {n: v for n, v in record.fields.items() if n in fields}
                        found.append(record._replace(fields=noted))
                    else:
                        found.append(None)
        return found

    @staticmethod
    def _record(transaction: Transaction, batch: str) -> BatchRecord | None:
        columns = ", ".join((*FLAGS, *COUNTERS))
        row = transaction.execute(
            f"SELECT name, fields, created, {columns} FROM batches "  # noqa: S608 - ours
            "WHERE prefix = ? AND id = ? AND forgotten = 0",
            (transaction.prefix, batch),
        ).fetchone()
        if row is None:
            return None
        name, fields, created, *rest = row
        flags = dict(zip(FLAGS, rest, strict=False))
        counts = map(number, rest[len(FLAGS) :])
        due = tuple(one for one in CALLBACKS if flags[f"due_{one}"] is not None)
        return BatchRecord(
            batch,
            str(name),
            dict(zip(STATES, counts, strict=True)),
            number(created),
            number(flags["sealed"]),
            number(flags["cancelled"]),
            number(flags["ended"]),
            due,
            tuple(one for one in CALLBACKS if flags[f"said_{one}"] is not None),
            _fields(fields),
            min((number(flags[f"due_{one}"]) for one in due), default=0),
            number(flags["added"]),
        )

    def batches(self, limit: int, before_ms: int = 0) -> list[str]:
        """Return the ids of up to *limit* batches, those opened last first."""
        with self._store.read() as transaction:
            found = transaction.execute(
                "SELECT id FROM batches WHERE prefix = ? AND forgotten = 0 AND created < ? "
                "ORDER BY created DESC, number DESC LIMIT ?",
                (transaction.prefix, before_ms or 2**62, max(limit, 0)),
            ).fetchall()
        return [str(name) for (name,) in found]

    def job(self, batch: str, job: str) -> Job | None:
        """Return what is known of a job."""
        with self._store.read() as transaction:
            row = transaction.execute(
                f"SELECT {_JOB} FROM jobs WHERE batch = ? AND id = ?",  # noqa: S608 - ours
                (self._number(transaction, batch), job),
            ).fetchone()
        found = [] if row is None else self._read(batch, [row])
        return found[0] if found else None

    def jobs(self, batch: str, at_once: int = 500) -> Iterator[list[Job]]:
        """Yield all jobs, some hundred at a time, in the order of their ids."""
        after = ""
        while True:
            found, after = self.some_jobs(batch, after, at_once)
            yield found
            if not after:
                return

    def some_jobs(self, batch: str, after: str = "", at_once: int = 500) -> tuple[list[Job], str]:
        """Return some hundred of all jobs, and after what the next are; "": these are the last."""
        with self._store.read() as transaction:
            rows = transaction.execute(
                f"SELECT {_JOB} FROM jobs "  # noqa: S608 - ours
                "WHERE batch = ? AND id > ? ORDER BY id LIMIT ?",
                (self._number(transaction, batch), after, at_once),
            ).fetchall()
        return self._read(batch, rows), str(rows[-1][0]) if len(rows) == at_once else ""

    def _read(self, batch: str, rows: Iterable[Row]) -> list[Job]:
        """Return jobs; those that cannot be read are left out, and named."""
        jobs, wrong = [], []
        for name, state, retries, token, since, tag, queue, worker in rows:
            if readable(state, retries, token, since, tag):
                numbers = retries, token, since
                known, who = Job(name, LETTERS[state], *numbers, tag, str(queue)), str(worker or "")
                is_next = known.state == "retrying"
                jobs.append(known._replace(before=who) if is_next else known._replace(worker=who))
            else:
                wrong.append(name)
        left_out(self._store.broker, f"jobs of batch {batch!r}", wrong)
        return jobs

    def failures(self, batch: str, limit: int, skip: int = 0) -> list[tuple[str, int, str]]:
        """Return (job, when in ms, why) of up to *limit* that failed, those of last first."""
        with self._store.read() as transaction:
            found = transaction.execute(
                "SELECT id, failed_at, error FROM jobs WHERE batch = ? AND failed_at IS NOT NULL "
                "ORDER BY failed_at DESC, id DESC LIMIT ? OFFSET ?",
                (self._number(transaction, batch), max(limit, 0), skip),
            ).fetchall()
        return [(str(job), number(at_ms), str(why or "")) for job, at_ms, why in found]

    def progress(self, batch: str, limit: int, skip: int = 0) -> list[Progress]:
        """Return how far up to *limit* jobs are, those first that have said so last."""
        with self._store.read() as transaction:
            found = transaction.execute(
                "SELECT job_notes.id, state, at, done, total, text FROM job_notes "
                "JOIN jobs ON jobs.batch = job_notes.batch AND jobs.id = job_notes.id "
                "WHERE job_notes.batch = ? AND at IS NOT NULL "
                "ORDER BY at DESC, job_notes.id DESC LIMIT ? OFFSET ?",
                (self._number(transaction, batch), _of(limit, skip), skip),
            ).fetchall()
        return [
            Progress(str(job), LETTERS[state], number(at), float(done), float(total), str(text))
            for job, state, at, done, total, text in found
            if state in LETTERS
        ]

    def reports(self, batch: str, limit: int, skip: int = 0) -> list[Report]:
        """Return up to *limit* reports, the last first."""
        with self._store.read() as transaction:
            found = transaction.execute(
                "SELECT job, at, text FROM job_reports WHERE batch = ? "
                "ORDER BY number DESC LIMIT ? OFFSET ?",
                (self._number(transaction, batch), max(limit, 0), skip),
            ).fetchall()
        return [Report(str(job), number(at), str(text)) for job, at, text in found]


def _of(limit: int, skip: int) -> int:
    """Return how many of *limit* are listed after *skip*."""
    return max(min(limit, PROGRESS_LISTED - skip), 0)


def _fields(stored: object) -> dict[str, str]:
    try:
        return {name: str(value) for name, value in mapping(str(stored)).items()}
    except (ValueError, RecursionError):
        return {}
