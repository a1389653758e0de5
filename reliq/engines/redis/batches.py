"""Batches of jobs over Redis."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ...errors import BrokerRefused, ConfigurationError, ReliqError, again
from ...store.jobs import (
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
from ...store.limits import BATCH, chunks
from ...store.unreadable import left_out, number
from . import keys, scripts
from .base import text_of, texts, then

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ...store.values import OnResult
    from .commands import Commands
    from .scripts import Script
    from .stream import Command, Reply

# A hash's field of that name says when the whole batch was cancelled.
_COUNTERS: dict[State, str] = {state: state for state in STATES} | {"cancelled": "dropped"}
_OWN_FIELD = "field:"
_TIMES = ("created", "sealed", "cancelled", "ended")
_ADDED = "added"
_FROM = "from:"
# What is read of many: not what their producers have noted, which may be long.
_READ = (
    "name",
    *_TIMES,
    _ADDED,
    *_COUNTERS.values(),
    *(f"{what}_{one}" for what in ("due", "said") for one in CALLBACKS),
)
_DUE = 2
# What change_jobs.lua writes and reads.
_NUMBER = r"(\d{1,19})"
_RECORD = re.compile(
    rf"([a-z])\|{_NUMBER}\|{_NUMBER}\|{_NUMBER}\|([^|]*)\|([^|]*)\|(.*)", re.ASCII | re.DOTALL
)
# What note_job.lua writes.
_PROGRESS = re.compile(
    rf"\d+\|{_NUMBER}\|([^|]{{1,40}})\|([^|]{{1,40}})\|(.*)", re.ASCII | re.DOTALL
)
_REPORT = re.compile(rb"(\d{1,19})\|(\d{1,9})\|(.*)", re.DOTALL)


class RedisBatches:
    """The batches of one broker, each in a slot of its own. A change is one atomic step."""

    def __init__(self, wire: Commands, prefix: str) -> None:
        self._wire = wire
        self._prefix = prefix
        self._shared = keys.broker_keys(prefix)

    def open_batch(self, batch: str, name: str, fields: Mapping[str, str]) -> bool:
        """Make *batch* unless there is one; whether there was none. It is listed beside that."""
        # First, in case we die: one that is listed and not there is passed over. And again, in
        # case that somebody has found none meanwhile, and forgotten it.
        created = self._list(batch)
        noted = [part for key, value in fields.items() for part in (_OWN_FIELD + key, value)]
        made = bool(self._run(scripts.OPEN_BATCH, batch, (name, created, *noted)))
        if made:
            self._list(batch)
        return made

    def _list(self, batch: str) -> int:
        """Enter *batch* in the list of all, unless it is there; return when it was."""
        return int(self._wire.run(scripts.LIST_BATCH, self._shared, (batch,)))

    def _keys(self, batch: str) -> keys.BatchKeys:
        return keys.batch_keys(self._prefix, batch)

    def _run(self, script: Script, batch: str, args: Sequence[Any]) -> Reply:
        return self._wire.run(script, self._keys(batch), args)

    # -- changes

    def change(self, batch: str, changes: Sequence[Change], *, by: str = "") -> Changed | None:
        """Change jobs, in order, some hundred a step; None where there is no such batch.

        *by* is the job that adds others: while it runs it may add to a batch that is sealed.
        """
        parts = [self._change(batch, part, by) for part in chunks(checked(changes), BATCH)]
        found = [done for one in self._wire.exchange(parts) if (done := _changed(one)) is not None]
        if not found or len(found) < len(parts):
            return None
        last = found[-1]
        return last._replace(outcomes=[one for done in found for one in done.outcomes])

    def post_change(
        self, batch: str, changes: Sequence[Change], on_result: OnResult[Changed | None]
    ) -> None:
        """Post what :meth:`change` sends: one step, of up to 200 changes."""
        if len(changes) > BATCH:
            raise ConfigurationError(
                f"expected up to {BATCH} changes of jobs in one step, got {len(changes)}; "
                "nothing was stored"
            )
        command, script = self._change(batch, checked(changes), "")
        self._wire.post(command, then(_changed, on_result), script)

    def _change(self, batch: str, changes: Sequence[Change], by: str) -> tuple[Command, Script]:
        rows = [
            part
            for what, job, state, *rest in changes
            for part in (what, job, LETTER_OF[state], *rest)
        ]
        return scripts.CHANGE_JOBS.over(self._keys(batch), (by, *rows))

    def said(self, batch: str, callback: Callback) -> None:
        """Note that a callback that was due is published. It is not due again."""
        self._run(scripts.SAID, batch, (callback,))

    def note(self, batch: str, note: Note) -> bool:
        """Note what an open job says; whether it is noted.

        It is not where the job has ended, an earlier delivery says it, or the job has reported
        as often as it may and says nothing else.
        """
        job, retries, token, queue, progress, report = checked_note(note)
        done, total, text = ("", "", "") if progress is None else map(str, progress)
        rows = (job, retries, token, queue, done, total, text, report)
        return bool(self._run(scripts.NOTE_JOB, batch, rows))

    def forget_batch(self, batch: str) -> None:
        """Remove *batch* and all its jobs; atomic for who looks for it, then it is unlisted."""
        self._wire.call(("UNLINK", *self._keys(batch)))
        self.unlist_batch(batch)

    def unlist_batch(self, batch: str) -> None:
        """Take a batch that is not there off the list; one that is made meanwhile stays, listed."""
        for listed in (self._shared.batches, self._shared.batches_opened):
            self._wire.call(("ZREM", listed, batch))
        # One of that id may have been made since.
        if self._wire.call(("EXISTS", self._keys(batch).batch)):
            self._list(batch)

    # -- looking

    def next_batches(self, limit: int, again_ms: int) -> list[str]:
        """Return the ids of up to *limit* batches that are due to be looked after.

        Each is given to one who asks, and again *again_ms* later; a new one at once. One of
        which :meth:`batch` knows nothing is not made yet, or was forgotten half way: whoever
        finds it so takes it off the list.
        """
        args = (max(limit, 0), again_ms)
        return texts(self._wire.run(scripts.NEXT_BATCHES, self._shared, args))

    def look_later(self, at_ms: Mapping[str, int]) -> None:
        """Return batches from :meth:`next_batches` no sooner than *at_ms* says of each.

        By the broker's clock. A batch that is forgotten meanwhile is not listed again.
        """
        pairs = [part for batch, at in at_ms.items() for part in (at, batch)]
        self._wire.run(scripts.NEXT_BATCHES, self._shared, (0, 0, *pairs))

    def batch(self, batch: str) -> BatchRecord | None:
        """Return what is known of *batch*, at one instant."""
        reply = self._wire.call(("HGETALL", self._keys(batch).batch))
        found = texts(reply)
        return _record(batch, dict(zip(found[::2], found[1::2], strict=True)))

    def records(
        self, batches: Sequence[str], fields: Sequence[str] = ()
    ) -> list[BatchRecord | ReliqError | None]:
        """Return what is known of each of *batches*, in their order; for many at once.

        Each is of one instant, has of its producer's notes only *fields*, and no ``heard_ms``. In
        the place of one that cannot be read is the error; of several nodes, one may not answer.
        Raises BrokerRefused where none can, which is a matter of this user's rights.
        """
        names = (*_READ, *(_OWN_FIELD + name for name in fields))
        replies = [reply for part in chunks(batches) for reply in self._records(part, names)]
        refused = [reply for reply in replies if isinstance(reply, BrokerRefused)]
        if refused and len(refused) == len(replies):  # not of one, but of this user's rights
            raise again(refused[0])
        found: list[BatchRecord | ReliqError | None] = []
        for batch, reply in zip(batches, replies, strict=True):
            if isinstance(reply, ReliqError):
                found.append(reply)
            else:
                stored = zip(names, reply, strict=True)
                there = {name: text_of(value) for name, value in stored if value is not None}
                found.append(_record(batch, there))
        return found

    def _records(self, batches: Sequence[str], names: Sequence[str]) -> list[Reply]:
        return self._wire.replies(
            [(("HMGET", self._keys(batch).batch, *names), None) for batch in batches]
        )

    def batches(self, limit: int, before_ms: int = 0) -> list[str]:
        """Return the ids of up to *limit* batches, those opened last first."""
        last = f"({before_ms}" if before_ms else "+inf"
        key, most = self._shared.batches_opened, max(limit, 0)
        found = self._wire.call(("ZRANGE", key, last, "-inf", "BYSCORE", "REV", "LIMIT", 0, most))
        return texts(found)

    def jobs(self, batch: str, at_once: int = 500) -> Iterator[list[Job]]:
        """Yield all jobs, some hundred at a time, in no order. Not at one instant.

        One that is there all the time is among them at least once.
        """
        after = ""
        while True:
            found, after = self.some_jobs(batch, after, at_once)
            yield found
            if not after:
                return

    def some_jobs(self, batch: str, after: str = "", at_once: int = 500) -> tuple[list[Job], str]:
        """Return some hundred of all jobs, and *after* what the next are; "": it has no more."""
        key = self._keys(batch).jobs
        cursor, found = self._wire.call(("HSCAN", key, after or "0", "COUNT", at_once))
        stored = zip(map(text_of, found[::2]), found[1::2], strict=True)
        return [*self._read(batch, stored).values()], "" if cursor == b"0" else text_of(cursor)

    def _read(self, batch: str, stored: Iterable[tuple[str, bytes]]) -> dict[str, Job]:
        """Return jobs by their ids; those that cannot be read are left out, and named."""
        jobs = {name: _job(name, record) for name, record in stored}
        wrong = [name for name, job in jobs.items() if job is None]
        left_out(str(self._wire.address), f"jobs of batch {batch!r}", wrong)
        return {name: job for name, job in jobs.items() if job is not None}

    def failures(self, batch: str, limit: int, skip: int = 0) -> list[JobFailure]:
        """Return up to *limit* jobs that failed, the last first."""
        if limit < 1:
            return []
        names = self._keys(batch)
        last = skip + limit - 1
        found = self._wire.call(("ZRANGE", names.failures, skip, last, "REV", "WITHSCORES"))
        jobs = found[::2]
        if not jobs:
            return []
        why = self._wire.call(("HMGET", names.errors, *jobs))
        return [
            JobFailure(text_of(job), number(when), text_of(text or b""))
            for job, when, text in zip(jobs, found[1::2], why, strict=True)
        ]

    def progress(self, batch: str, limit: int, skip: int = 0) -> list[Progress]:
        """Return how far up to *limit* jobs are, those first that have said so last.

        Of a batch the last 1,000 are listed.
        """
        if limit < 1:
            return []
        names = self._keys(batch)
        ids = self._wire.call(("ZRANGE", names.progressed, skip, skip + limit - 1, "REV"))
        if not ids:
            return []
        said = self._wire.call(("HMGET", names.progress, *ids))
        jobs = self._wire.call(("HMGET", names.jobs, *ids))
        stored = ((text_of(one), job) for one, job in zip(ids, jobs, strict=True) if job)
        states = {job.id: job.state for job in self._read(batch, stored).values()}
        found = [
            _progress(text_of(one), states[text_of(one)], text_of(text or b""))
            for one, text in zip(ids, said, strict=True)
            if text_of(one) in states
        ]
        return [one for one in found if one is not None]

    def reports(self, batch: str, limit: int, skip: int = 0) -> list[Report]:
        """Return up to *limit* reports, the last first; the last 10,000 of a batch are kept."""
        if limit < 1:
            return []
        key = self._keys(batch).reports
        found = map(_report, self._wire.call(("LRANGE", key, skip, skip + limit - 1)))
        return [one for one in found if one is not None]


def _progress(job: str, state: State, stored: str) -> Progress | None:
    found = _PROGRESS.fullmatch(stored)
    if found is None:
        return None
    at, done, total, text = found.groups()
    try:
        return Progress(job, state, int(at), float(done), float(total), text)
    except ValueError:
        return None


def _report(stored: bytes) -> Report | None:
    found = _REPORT.fullmatch(stored)
    if found is None:
        return None
    at, length, rest = found.groups()
    return Report(text_of(rest[: int(length)]), int(at), text_of(rest[int(length) :]))


def _record(batch: str, found: Mapping[str, str]) -> BatchRecord | None:
    if "created" not in found:
        return None
    created, sealed, cancelled, ended = (number(found.get(name), 0) for name in _TIMES)
    due = tuple(one for one in CALLBACKS if f"due_{one}" in found)
    return BatchRecord(
        batch,
        found.get("name", ""),
        {state: number(found.get(name), 0) for state, name in _COUNTERS.items()},
        created,
        sealed,
        cancelled,
        ended,
        due,
        tuple(one for one in CALLBACKS if f"said_{one}" in found),
        {
            name.removeprefix(_OWN_FIELD): value
            for name, value in found.items()
            if name.startswith(_OWN_FIELD)
        },
        min((number(found[f"due_{one}"], 0) for one in due), default=0),
        number(found.get(_ADDED), 0),
        max((number(at, 0) for name, at in found.items() if name.startswith(_FROM)), default=0),
    )


def _changed(reply: Reply) -> Changed | None:
    if reply[0] == 0:
        return None
    return Changed(reply[1] & 1 != 0, reply[2:], reply[1] & _DUE != 0)


def _job(name: str, stored: bytes) -> Job | None:
    found = _RECORD.fullmatch(text_of(stored))
    if found is None or found[1] not in LETTERS:
        return None
    state, retries, token, since, tag, worker, queue = found.groups()
    numbers = int(retries), int(token), int(since)
    if state == LETTER_OF["retrying"]:
        return Job(name, LETTERS[state], *numbers, tag, queue, before=worker)
    return Job(name, LETTERS[state], *numbers, tag, queue, worker)
