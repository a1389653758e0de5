"""Batches of jobs over Redis."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..batches.jobs import (
    CALLBACKS,
    LETTER_OF,
    LETTERS,
    STATES,
    BatchRecord,
    Callback,
    Change,
    Changed,
    Job,
    JobFailure,
    Note,
    Progress,
    Report,
    State,
    checked,
    checked_note,
)
from ..errors import BrokerRefused, ReliqError, again
from ..lua import keys, scripts
from ..values.inspection import BatchesUntold, Partial
from ..values.limits import BATCH, chunks
from ..values.unreadable import left_out, number
from .base import text_of, texts, then

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ..client.commands import Commands
    from ..client.stream import Command, Reply
    from ..lua.scripts import Script
    from ..values.values import OnResult

# The hash field "cancelled" is the time at which the whole batch was cancelled.
_COUNTERS: dict[State, str] = {state: state for state in STATES} | {"cancelled": "dropped"}
_OWN_FIELD = "field:"
_TIMES = ("created", "sealed", "cancelled", "ended")
_ADDED = "added"
_FROM = "from:"
# The fields read for many batches: not the producers' own fields, which may be long.
_READ = (
    "name",
    *_TIMES,
    _ADDED,
    *_COUNTERS.values(),
    *(f"{what}_{callback}" for what in ("due", "said") for callback in CALLBACKS),
)
_DUE = 2
# The format that change_jobs.lua writes and reads.
_NUMBER = r"(\d{1,19})"
_RECORD = re.compile(
    rf"([a-z])\|{_NUMBER}\|{_NUMBER}\|{_NUMBER}\|([^|]*)\|([^|]*)\|(.*)", re.ASCII | re.DOTALL
)
# The format that note_job.lua writes.
_PROGRESS = re.compile(
    rf"\d+\|{_NUMBER}\|([^|]{{1,40}})\|([^|]{{1,40}})\|(.*)", re.ASCII | re.DOTALL
)
_REPORT = re.compile(rb"(\d{1,19})\|(\d{1,9})\|(.*)", re.DOTALL)


class RedisBatches:
    """The batches of one broker, each in its own slot. Each change is one atomic step."""

    def __init__(self, wire: Commands, prefix: str) -> None:
        self._wire = wire
        self._prefix = prefix
        self._shared = keys.broker_keys(prefix)

    def open_batch(self, batch: str, name: str, fields: Mapping[str, str]) -> bool:
        """Create *batch* unless it exists; return whether it was created. Listing is separate."""
        # Listed first, in case this process dies: readers skip a listed batch that does not exist.
        # Listed again, because another process may have removed the missing batch from the list.
        created = self._list(batch)
        noted = [part for key, value in fields.items() for part in (_OWN_FIELD + key, value)]
        made = bool(self._run(scripts.OPEN_BATCH, batch, (name, created, *noted)))
        if made:
            self._list(batch)
        return made

    def _list(self, batch: str) -> int:
        """Enter *batch* in the lists unless it is there; return its time of entry, in ms."""
        return int(self._wire.run(scripts.LIST_BATCH, self._shared, (batch,)))

    def _keys(self, batch: str) -> keys.BatchKeys:
        return keys.batch_keys(self._prefix, batch)

    def _run(self, script: Script, batch: str, args: Sequence[Any]) -> Reply:
        return self._wire.run(script, self._keys(batch), args)

    # -- changes

    def change(self, batch: str, changes: Sequence[Change], *, by: str = "") -> Changed | None:
        """Change jobs in order, in steps of at most 200; return None if the batch does not exist.

        *by* is the job that adds others. While it runs, it may add jobs to a sealed batch.
        """
        parts = [self._change(batch, part, by) for part in chunks([*map(checked, changes)], BATCH)]
        results = list(filter(None, map(_changed, self._wire.exchange(parts))))
        if not results or len(results) < len(parts):
            return None
        last = results[-1]
        return last._replace(outcomes=[outcome for done in results for outcome in done.outcomes])

    def post_change(self, batch: str, change: Change, on_result: OnResult[Changed | None]) -> None:
        """Post a :meth:`change` of one job."""
        command, script = self._change(batch, (checked(change),), "")
        self._wire.post(command, then(_changed, on_result), script)

    def _change(self, batch: str, changes: Sequence[Change], by: str) -> tuple[Command, Script]:
        rows = [
            part
            for what, job, state, *rest in changes
            for part in (what, job, LETTER_OF[state], *rest)
        ]
        return scripts.CHANGE_JOBS.over(self._keys(batch), (by, *rows))

    def note_published(self, batch: str, callback: Callback) -> None:
        """Record that a pending callback is published. It is then no longer pending."""
        self._run(scripts.NOTE_CALLBACK, batch, (callback,))

    def note(self, batch: str, note: Note) -> bool:
        """Store the progress or report of an open job; return whether it was stored.

        Refused if the job has ended, if the note is from an earlier delivery, or if a job without
        new progress has reached its limit of reports.
        """
        job, retries, token, queue, progress, report = checked_note(note)
        done, total, text = ("", "", "") if progress is None else map(str, progress)
        rows = (job, retries, token, queue, done, total, text, report)
        return bool(self._run(scripts.NOTE_JOB, batch, rows))

    def forget_batch(self, batch: str) -> None:
        """Remove *batch* and all its jobs in one atomic step, then remove it from the lists."""
        self._wire.call(("UNLINK", *self._keys(batch)))
        self.unlist_batch(batch)

    def unlist_batch(self, batch: str) -> None:
        """Remove a missing batch from the lists. A batch created meanwhile stays listed."""
        for listed in (self._shared.batches, self._shared.batches_opened):
            self._wire.call(("ZREM", listed, batch))
        # A batch of that id may have been created since.
        if self._wire.call(("EXISTS", self._keys(batch).batch)):
            self._list(batch)

    # -- looking

    def next_batches(self, limit: int, again_ms: int) -> list[str]:
        """Return the ids of up to *limit* batches that are due for a check.

        Each is returned to one caller and is due again *again_ms* later; a new batch is due at
        once. If :meth:`batch` returns None, the batch is not created yet or was partly forgotten:
        the caller removes it from the list (:meth:`unlist_batch`).
        """
        args = (max(limit, 0), again_ms)
        return texts(self._wire.run(scripts.NEXT_BATCHES, self._shared, args))

    def postpone(self, at_ms: Mapping[str, int]) -> None:
        """Postpone batches of :meth:`next_batches` to the time in *at_ms* (the broker's clock).

        A batch that is forgotten meanwhile is not listed again.
        """
        pairs = [part for batch, at in at_ms.items() for part in (at, batch)]
        self._wire.run(scripts.NEXT_BATCHES, self._shared, (0, 0, *pairs))

    def batch(self, batch: str) -> BatchRecord | None:
        """Return the record of *batch* at one instant."""
        reply = self._wire.call(("HGETALL", self._keys(batch).batch))
        flat = texts(reply)
        return _record(batch, dict(zip(flat[::2], flat[1::2], strict=True)))

    def records(self, batches: Sequence[str], fields: Sequence[str] = ()) -> Partial[BatchRecord]:
        """Return the records of those of *batches* that exist, in their order.

        Each record is of one instant. Of the producer's own fields it has only *fields*, and it
        has no ``heard_ms``. Unreadable ones are in ``unreachable``: a node may be unreachable.
        Raises BrokerRefused if this user may read none of them.
        """
        names = (*_READ, *(_OWN_FIELD + name for name in fields))
        replies = [reply for part in chunks(batches) for reply in self._records(part, names)]
        refused = [reply for reply in replies if isinstance(reply, BrokerRefused)]
        if refused and len(refused) == len(replies):  # a matter of this user's rights
            raise again(refused[0])
        records: list[BatchRecord] = []
        lost: dict[str, list[str]] = {}
        for batch, reply in zip(batches, replies, strict=True):
            if isinstance(reply, ReliqError):
                lost.setdefault(str(reply), []).append(batch)
                continue
            stored = zip(names, reply, strict=True)
            there = {name: text_of(value) for name, value in stored if value is not None}
            record = _record(batch, there)
            records += [] if record is None else [record]
        return Partial(records, BatchesUntold.by_error(lost))

    def _records(self, batches: Sequence[str], names: Sequence[str]) -> list[Reply]:
        return self._wire.replies(
            [(("HMGET", self._keys(batch).batch, *names), None) for batch in batches]
        )

    def batches(self, limit: int, before_ms: int = 0) -> list[str]:
        """Return the ids of up to *limit* batches, the most recently opened first."""
        last = f"({before_ms}" if before_ms else "+inf"
        key, most = self._shared.batches_opened, max(limit, 0)
        ids = self._wire.call(("ZRANGE", key, last, "-inf", "BYSCORE", "REV", "LIMIT", 0, most))
        return texts(ids)

    def jobs(self, batch: str, at_once: int = 500) -> Iterator[list[Job]]:
        """Yield all jobs in groups of about *at_once*, in no order and not at one instant.

        A job that exists throughout is returned at least once.
        """
        after = ""
        while True:
            jobs, after = self.some_jobs(batch, after, at_once)
            yield jobs
            if not after:
                return

    def some_jobs(self, batch: str, after: str = "", at_once: int = 500) -> tuple[list[Job], str]:
        """Return about *at_once* jobs, and the cursor *after* which to continue; "" at the end."""
        key = self._keys(batch).jobs
        cursor, flat = self._wire.call(("HSCAN", key, after or "0", "COUNT", at_once))
        stored = zip(map(text_of, flat[::2]), flat[1::2], strict=True)
        return [*self._read(batch, stored).values()], "" if cursor == b"0" else text_of(cursor)

    def _read(self, batch: str, stored: Iterable[tuple[str, bytes]]) -> dict[str, Job]:
        """Return jobs by id. Unreadable jobs are left out and logged."""
        jobs = {name: _job(name, record) for name, record in stored}
        wrong = [name for name, job in jobs.items() if job is None]
        left_out(str(self._wire.address), f"jobs of batch {batch!r}", wrong)
        return {name: job for name, job in jobs.items() if job is not None}

    def failures(self, batch: str, limit: int, skip: int = 0) -> list[JobFailure]:
        """Return up to *limit* failed jobs, the last failure first."""
        if limit < 1:
            return []
        names = self._keys(batch)
        last = skip + limit - 1
        flat = self._wire.call(("ZRANGE", names.failures, skip, last, "REV", "WITHSCORES"))
        jobs = flat[::2]
        if not jobs:
            return []
        why = self._wire.call(("HMGET", names.errors, *jobs))
        return [
            JobFailure(text_of(job), number(when), text_of(text or b""))
            for job, when, text in zip(jobs, flat[1::2], why, strict=True)
        ]

    def progress(self, batch: str, limit: int, skip: int = 0) -> list[Progress]:
        """Return the progress of up to *limit* jobs, latest first; a batch lists its last 1,000."""
        if limit < 1:
            return []
        names = self._keys(batch)
        ids = self._wire.call(("ZRANGE", names.progressed, skip, skip + limit - 1, "REV"))
        if not ids:
            return []
        texts_of = self._wire.call(("HMGET", names.progress, *ids))
        jobs = self._wire.call(("HMGET", names.jobs, *ids))
        stored = ((text_of(name), job) for name, job in zip(ids, jobs, strict=True) if job)
        states = {job.id: job.state for job in self._read(batch, stored).values()}
        progress = [
            _progress(text_of(name), states[text_of(name)], text_of(text or b""))
            for name, text in zip(ids, texts_of, strict=True)
            if text_of(name) in states
        ]
        return [item for item in progress if item is not None]

    def reports(self, batch: str, limit: int, skip: int = 0) -> list[Report]:
        """Return up to *limit* reports, the last first; a batch keeps its last 10,000 reports."""
        if limit < 1:
            return []
        key = self._keys(batch).reports
        reports = map(_report, self._wire.call(("LRANGE", key, skip, skip + limit - 1)))
        return [report for report in reports if report is not None]


def _progress(job: str, state: State, stored: str) -> Progress | None:
    matched = _PROGRESS.fullmatch(stored)
    if matched is None:
        return None
    at, done, total, text = matched.groups()
    try:
        return Progress(job, state, int(at), float(done), float(total), text)
    except ValueError:
        return None


def _report(stored: bytes) -> Report | None:
    matched = _REPORT.fullmatch(stored)
    if matched is None:
        return None
    at, length, rest = matched.groups()
    return Report(text_of(rest[: int(length)]), int(at), text_of(rest[int(length) :]))


def _record(batch: str, fields: Mapping[str, str]) -> BatchRecord | None:
    if "created" not in fields:
        return None
    created, sealed, cancelled, ended = (number(fields.get(name), 0) for name in _TIMES)
    due = tuple(callback for callback in CALLBACKS if f"due_{callback}" in fields)
    return BatchRecord(
        batch,
        fields.get("name", ""),
        {state: number(fields.get(name), 0) for state, name in _COUNTERS.items()},
        created,
        sealed,
        cancelled,
        ended,
        due,
        tuple(callback for callback in CALLBACKS if f"said_{callback}" in fields),
        {
            name.removeprefix(_OWN_FIELD): value
            for name, value in fields.items()
            if name.startswith(_OWN_FIELD)
        },
        min((number(fields[f"due_{callback}"], 0) for callback in due), default=0),
        number(fields.get(_ADDED), 0),
        max((number(at, 0) for name, at in fields.items() if name.startswith(_FROM)), default=0),
    )


def _changed(reply: Reply) -> Changed | None:
    if reply[0] == 0:
        return None
    return Changed(reply[1] & 1 != 0, reply[2:], reply[1] & _DUE != 0)


def _job(name: str, stored: bytes) -> Job | None:
    matched = _RECORD.fullmatch(text_of(stored))
    if matched is None or matched[1] not in LETTERS:
        return None
    state, retries, token, since, tag, worker, queue = matched.groups()
    again = state == LETTER_OF["retrying"]
    return Job(
        id=name,
        state=LETTERS[state],
        retries=int(retries),
        token=int(token),
        since_ms=int(since),
        tag=tag,
        queue=queue,
        worker="" if again else worker,
        before=worker if again else "",
    )
