"""What becomes of changes of jobs, within one transaction of a file.

The rules are those of ``change_jobs.lua``, in its order and with its names; a test tells both the
same and compares. Here stands how, there and in the contract stands why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...store.jobs import (
    CANCELLED,
    DONE,
    LETTER_OF,
    LETTERS,
    LOST,
    NO_JOB,
    SEALED,
    UNCHANGED,
    Change,
)
from ...store.unreadable import number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .transaction import Transaction

COUNTERS = (
    *("waiting", "delayed", "working", "retrying"),
    *("succeeded", "failed", "error", "dropped"),
)
FLAGS = (
    *("sealed", "cancelled", "ended"),
    *("due_failure", "due_complete", "due_success"),
    *("said_failure", "said_complete", "said_success"),
    "added",
)
_COUNTER_OF = {
    letter: "dropped" if state == "cancelled" else state for letter, state in LETTERS.items()
}
_OPEN = frozenset("wdkr")
_ERROR = frozenset("ex")
_BAD = frozenset("fex")


def readable(state: object, retries: object, token: object, since: object, tag: object) -> bool:
    """Whether a row of a job has what reliq writes there."""
    numbers = all(isinstance(item, int) for item in (retries, token, since))
    return numbers and state in LETTERS and isinstance(tag, str)


class _Known(NamedTuple):
    """What is known of a job, or what it is to be."""

    state: str
    """One letter; "": what is stored cannot be read."""
    retries: int = 0
    token: int = 0
    since: int = 0
    tag: str = ""
    queue: str = ""
    text: str = ""
    before: str = ""
    """Of one that is retrying the tag of the try before."""


_UNREADABLE = _Known("")


def _comparable(job: _Known, new: _Known) -> bool:
    return "" in {new.queue, job.queue} or new.queue == job.queue


def _older(job: _Known, new: _Known) -> bool:
    if new.retries != job.retries:
        return new.retries < job.retries
    return _comparable(job, new) and new.token < job.token


def _same(job: _Known, new: _Known) -> bool:
    return (new.retries, new.token) == (job.retries, job.token) and _comparable(job, new)


def _before(job: _Known, new: _Known) -> bool:
    return new.token > 0 and _comparable(job, new) and new.token < job.token


class Changing:
    """One batch while its jobs are changed; :meth:`save` writes what became of it."""

    def __init__(self, transaction: Transaction, batch: int, by: str) -> None:
        self._execute = transaction.execute
        self._now = transaction.now
        self._number, self._by = batch, by
        row = self._execute(
            f"SELECT {', '.join((*FLAGS, *COUNTERS))} FROM batches "  # noqa: S608 - ours
            "WHERE number = ?",
            (batch,),
        ).fetchone()
        self._flags: dict[str, int | None] = dict(zip(FLAGS, row[: len(FLAGS)], strict=True))
        counts = [max(number(count), 0) for count in row[len(FLAGS) :]]
        self._counts: dict[str, int] = dict(zip(COUNTERS, counts, strict=True))
        self._before = {**self._flags, **self._counts}
        self._does: dict[str, Callable[[str, _Known | None, _Known], int]] = {
            "enter": self._enter,
            "withdraw": self._withdraw,
            "begin": self._begin,
            "return": self._return,
            "end": self._end,
            "lose": self._lose,
            "replay": self._replay,
            "seal": self._seal,
            "settle": lambda *_: 1,
            "cancel": self._cancel,
        }

    @property
    def due(self) -> bool:
        """Whether something of the batch is to be said now."""
        return any(self._flags[name] is not None for name in FLAGS if name.startswith("due_"))

    @property
    def cancelled(self) -> bool:
        """Whether the batch is cancelled now."""
        return self._flags["cancelled"] is not None

    def change(self, changes: Sequence[Change]) -> list[int]:
        """Do *changes*, in order, and return what became of each."""
        outcomes = []
        for what, job, state, retries, token, tag, queue, text in changes:
            known = self._find(job) if job else None
            new = _Known(LETTER_OF[state], retries, token, 0, tag, queue, text)
            unreadable = known is not None and not known.state
            outcomes.append(UNCHANGED if unreadable else self._does[what](job, known, new))
            self._conclude()
        return outcomes

    def save(self) -> None:
        """Write what has changed of the batch."""
        now = {**self._flags, **self._counts}
        if self._before["ended"] is not None and (self.due or self._flags["ended"] is None):
            self._check_now()  # it may have been postponed
        changed = [name for name in now if now[name] != self._before[name]]
        if changed:
            self._execute(
                f"UPDATE batches SET {', '.join(f'{name} = ?' for name in changed)} "  # noqa: S608
                "WHERE number = ?",
                (*(now[name] for name in changed), self._number),
            )

    def _check_now(self) -> None:
        self._execute(
            "UPDATE batches SET check_at = ? WHERE number = ? AND check_at > ?",
            (self._now, self._number, self._now),
        )

    # -- jobs

    def _find(self, job: str) -> _Known | None:
        row = self._execute(
            "SELECT state, retries, token, since, tag, queue, worker FROM jobs "
            "WHERE batch = ? AND id = ?",
            (self._number, job),
        ).fetchone()
        if row is None:
            return None
        state, retries, token, since, tag, queue, worker = row
        if not readable(state, retries, token, since, tag):
            return _UNREADABLE
        before = str(worker or "") if state == "r" else ""
        return _Known(state, retries, token, since, tag, str(queue), before=before)

    def _put(self, id_: str, before: _Known | None, job: _Known) -> None:
        if before is not None:
            self._drop(before)
        self._counts[_COUNTER_OF[job.state]] += 1
        done, bad = job.state == "s", job.state in _BAD
        self._execute(
            "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (batch, id) DO UPDATE SET state = excluded.state, "
            "retries = excluded.retries, token = excluded.token, since = excluded.since, "
            "tag = excluded.tag, queue = excluded.queue, worker = excluded.worker, "
            "failed_at = excluded.failed_at, error = excluded.error",
            (
                self._number,
                id_,
                job.state,
                job.retries,
                job.token,
                self._now if before is None else max(self._now, before.since + 1),
                "" if done else job.tag,
                "" if done else job.queue,
                job.text if job.state == "k" else job.before or None,
                self._now if bad else None,
                job.text if bad else None,
            ),
        )

    def _drop(self, job: _Known) -> None:
        counter = _COUNTER_OF[job.state]
        self._counts[counter] = max(self._counts[counter] - 1, 0)

    # -- the changes

    def _enter(self, id_: str, job: _Known | None, new: _Known) -> int:
        if self.cancelled and (job is None or job.state not in _OPEN):
            return CANCELLED
        state, before = new.state, ""
        if job is None:
            adder = self._find(self._by) if self._by else None
            if self._flags["sealed"] is not None and (adder is None or adder.state != "k"):
                return SEALED
            self._flags["added"] = self._now
        elif new.retries < job.retries:
            return UNCHANGED
        elif new.retries > job.retries:
            if job.state not in _OPEN | _ERROR:
                return UNCHANGED
            state, before = "r", job.tag
        elif new.tag == job.tag or job.state == "k" or job.state not in _OPEN:
            return UNCHANGED
        elif job.state == "r":
            state, before = "r", job.before
        self._put(id_, job, new._replace(state=state, token=0, before=before))
        return DONE

    def _withdraw(self, id_: str, job: _Known | None, new: _Known) -> int:
        if (
            job is None
            or job.tag != new.tag
            or job.token > 0
            or job.state == "k"
            or job.state not in _OPEN
        ):
            return UNCHANGED
        if job.state == "r":
            retries = max(job.retries - 1, 0)
            self._put(id_, job, _Known("k", retries, tag=job.before, queue=job.queue))
        else:
            self._execute("DELETE FROM jobs WHERE batch = ? AND id = ?", (self._number, id_))
            self._drop(job)
        return DONE

    def _begin(self, id_: str, job: _Known | None, new: _Known) -> int:
        if job is None:
            if self._flags["ended"] is not None:
                return CANCELLED if self.cancelled else NO_JOB
        else:
            again = job.state in _ERROR
            if job.state not in _OPEN and not again:
                return CANCELLED if self.cancelled else UNCHANGED
            if _older(job, new):
                return UNCHANGED
            if _same(job, new) and (job.state == "k" or again or new.token > 0):
                return UNCHANGED
        self._put(id_, job, new._replace(state="c" if self.cancelled else "k"))
        return CANCELLED if self.cancelled else DONE

    def _return(self, id_: str, job: _Known | None, new: _Known) -> int:
        if job is None or job.state != "k" or not _same(job, new):
            return UNCHANGED
        self._put(id_, job, new._replace(state="w", tag=job.tag, queue=job.queue))
        return DONE

    def _end(self, id_: str, job: _Known | None, new: _Known) -> int:
        if job is None:
            return NO_JOB
        if new.state == "c" and not self.cancelled:
            new = new._replace(state="e")
        if new.state == "x":
            if job.state not in _OPEN or job.tag not in {"", new.tag} or _before(job, new):
                return UNCHANGED
            new = new._replace(retries=job.retries)
        else:
            ended = job.state not in _OPEN and job.state != "x"
            given_up = job.state == "x" and job.tag == new.tag
            if ended or (new.state in {"e", "c"} and _older(job, new) and not given_up):
                return UNCHANGED
        new = new._replace(
            tag=new.tag or job.tag,
            queue=new.queue or job.queue,
            retries=max(new.retries, job.retries),
            token=max(new.token, job.token),
        )
        self._put(id_, job, new)
        return DONE

    def _lose(self, id_: str, job: _Known | None, new: _Known) -> int:
        if (
            job is None
            or job.state not in _OPEN
            or job.tag != new.tag
            or str(job.since) != new.text
        ):
            return UNCHANGED
        self._put(id_, job, job._replace(state="x", text=LOST, before=""))
        return DONE

    def _replay(self, id_: str, job: _Known | None, new: _Known) -> int:
        if job is None or job.state in {"s", "c"} or _before(job, new):
            return UNCHANGED
        known = _comparable(job, new)
        if known and 0 < new.token == job.token:
            return UNCHANGED
        if new.text:
            if job.tag != new.text:
                return UNCHANGED
        elif job.state in _OPEN and (new.token == 0 or job.tag != new.tag):
            return UNCHANGED
        state = "r" if job.state == "r" else "w"
        token = max(new.token, job.token) if known else new.token
        self._put(id_, job, new._replace(state=state, retries=job.retries, token=token, text=""))
        return DONE

    # -- the batch

    def _seal(self, *_: object) -> int:
        if self._flags["sealed"] is not None:
            return UNCHANGED
        self._flags["sealed"] = self._now
        return DONE

    def _cancel(self, *_: object) -> int:
        if self.cancelled or self._flags["ended"] is not None:
            return UNCHANGED
        self._flags["cancelled"] = self._now
        self._seal()
        return DONE

    def _conclude(self) -> None:
        if self._flags["sealed"] is None:
            return
        counts = self._counts
        bad = counts["failed"] + counts["error"]
        if bad:
            self._due("failure")
        if counts["waiting"] + counts["delayed"] + counts["working"] + counts["retrying"]:
            self._flags["ended"] = None
            return
        if self._flags["ended"] is None:
            self._flags["ended"] = self._now
        self._due("complete")
        if not bad and not counts["dropped"] and not self.cancelled:
            self._due("success")

    def _due(self, callback: str) -> None:
        if self._flags[f"said_{callback}"] is None and self._flags[f"due_{callback}"] is None:
            self._flags[f"due_{callback}"] = self._now
