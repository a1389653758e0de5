"""Jobs and batches: their stored state, and the one step that changes it.

A job is a task of a batch, named by the task's id. Several processes report its changes, possibly
late, twice or out of order. Each change therefore names its try and its delivery. The engine
decides in one atomic step whether the change is new, and updates the counters of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeGuard, get_args

from ..errors import ConfigurationError, MessageRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

State: TypeAlias = Literal[
    "waiting", "delayed", "working", "retrying", "succeeded", "failed", "error", "cancelled"
]
"""The state of a job. *failed*: a business failure; *error*: any other end except cancelled."""

OPEN: tuple[State, ...] = ("waiting", "delayed", "working", "retrying")
ENDED: tuple[State, ...] = ("succeeded", "failed", "error", "cancelled")
STATES: tuple[State, ...] = OPEN + ENDED

# The letter that an engine stores for each. An error is the worker's (e) or the broker's (x).
LETTERS: dict[str, State] = {
    "w": "waiting",
    "d": "delayed",
    "k": "working",
    "r": "retrying",
    "s": "succeeded",
    "f": "failed",
    "e": "error",
    "x": "error",
    "c": "cancelled",
}
LETTER_OF: dict[str, str] = {state: letter for letter, state in LETTERS.items() if letter != "x"}
LETTER_OF |= {"lost": "x", "": ""}

Stage: TypeAlias = Literal["open", "sealed", "ended"]
"""open: jobs may be added; sealed: some jobs have not ended; ended: all jobs have ended."""

STAGES: tuple[Stage, ...] = ("open", "sealed", "ended")

Callback: TypeAlias = Literal["success", "complete", "failure"]

CALLBACKS: tuple[Callback, ...] = ("success", "complete", "failure")

CALLBACK_FIELD = "on_"
"""The prefix of a callback's name in the field of a batch that holds its message."""

What: TypeAlias = Literal[
    "enter", "withdraw", "begin", "return", "end", "lose", "replay", "seal", "settle", "cancel"
]

# The outcome of a change.
DONE = 1
NEVER_STORED = 2
"""The message was never stored, as its publisher died or was interrupted. The job is removed."""
UNCHANGED = 0
"""The job already had this state, or the change is older than the known state."""
CANCELLED = -1
"""The batch is cancelled: do not begin the job, and publish no new one."""
SEALED = -2
"""The batch is sealed: only its own jobs may add jobs."""
NO_JOB = -3

LOST = "lost with the broker's data"
"""The reason of a job whose message is missing."""
MOST_ID = 255
"""The maximum length of a job's id, and of its worker's name, in characters."""
MOST_TEXT = 500
"""The maximum length of the reason of a failed job, in characters."""
MOST_NUMBER = 2**53 - 1
"""The largest number that scripts can count exactly."""

NESTED = "batch"
"""The tag of a job that is a batch. Its id is the batch's, and it has no message."""
PARENT = "parent"
"""The field of a nested batch that names its parent batch."""


class Change(NamedTuple):
    """One change of one job."""

    what: What
    job: str = ""
    state: State | Literal["lost", ""] = ""
    """The new state. For enter: *waiting* or *delayed*. For end, *lost* is the broker's error, and
    a worker's report takes precedence; *cancelled* means revoked, an error, unless the batch is
    cancelled."""
    retries: int = 0
    token: int = 0
    """The token of the lease, which is higher for a later delivery of a try. If the broker ended or
    replayed the job: the number of the :class:`JobEvent`. 0: none."""
    tag: str = ""
    queue: str = ""
    text: str = ""
    """For begin: the worker. For end: the reason. For lose: the ``since_ms`` of the :class:`Job`
    that was read. For replay after a move: its former tag; a job with another one is unchanged."""


def by_batch(entries: Iterable[tuple[str, Change]]) -> dict[str, list[Change]]:
    """Group (batch, change) pairs by their batch, in their order."""
    grouped: dict[str, list[Change]] = {}
    for batch, change in entries:
        grouped.setdefault(batch, []).append(change)
    return grouped


_WHAT = frozenset(get_args(What))
_OF_BATCH = frozenset({"seal", "settle", "cancel"})
_STATES_OF: dict[What, frozenset[str]] = {
    "enter": frozenset({"waiting", "delayed"}),
    "end": frozenset({*ENDED, "lost"}),
}


def checked(change: Change) -> Change:
    """Return *change* in storable form: with truncated texts, and a corrected number and tag.

    Raises MessageRefused for an invalid id, and ConfigurationError for an invalid change. The
    caller must then store no change of the same step.
    """
    what, job, state, retries, token, tag, queue, text = change
    if what not in _WHAT or state not in _STATES_OF.get(what, {state}):
        raise ConfigurationError(f"invalid change of a job: {what!r} {state!r}; nothing was stored")
    if what in _OF_BATCH:
        job = ""
    else:
        require_job_id(job)
    if len(tag) > MOST_ID or "|" in tag:
        tag = ""  # not one of reliq's tags: the location of the message is unknown
    if what == "begin":
        text = text[:MOST_ID].replace("|", "/")
    return Change(what, job, state, _bounded(retries), _bounded(token), tag, queue, _cut(text))


def _bounded(number: int) -> int:
    return max(0, min(number, MOST_NUMBER))


def is_text(name: str) -> bool:
    """Whether *name* can be encoded as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_id(value: object) -> TypeGuard[str]:
    """Whether *value* can be the id of a job or a batch (a batch may be a job of another)."""
    return isinstance(value, str) and 0 < len(value) <= MOST_ID and is_text(value)


def require_job_id(value: object) -> None:
    """Raise MessageRefused unless *value* can be the id of a job."""
    if not is_id(value):
        raise MessageRefused(
            f"the task id {value!r:.100} is not a valid job id: expected a text of 1 to "
            f"{MOST_ID} characters that can be encoded; nothing was stored"
        )


class Changed(NamedTuple):
    """The result of a step of changes."""

    cancelled: bool
    """Whether the batch is cancelled now."""
    outcomes: list[int]
    due: bool = False
    """Whether a callback of the batch is pending."""


class Job(NamedTuple):
    """The stored state of one job."""

    id: str
    state: State
    retries: int
    token: int
    since_ms: int
    """When it entered this state, by the broker's clock."""
    tag: str
    queue: str
    worker: str = ""
    """Its worker, in the state *working*."""
    before: str = ""
    """In the state *retrying*: the tag of the previous try, which is acked when the next one is
    stored."""


class Note(NamedTuple):
    """Progress or a report of a running job, from one try and delivery of it.

    A report has at most 500 characters, and a job makes at most 20 reports.
    """

    job: str
    retries: int = 0
    token: int = 0
    queue: str = ""
    """The queue of the token."""
    progress: tuple[float, float, str] | None = None
    """Done, total, and a text."""
    report: str = ""


class JobFailure(NamedTuple):
    """A job that failed or ended in error."""

    job: str
    at_ms: int
    reason: str


class Progress(NamedTuple):
    """The latest progress of a job."""

    job: str
    state: State
    """Its present state; an ended job makes no more progress."""
    at_ms: int
    done: float
    total: float
    """0: the job has not stated a total."""
    text: str


class Report(NamedTuple):
    """A report of a job."""

    job: str
    at_ms: int
    text: str


def checked_note(note: Note) -> Note:
    """Return *note* in storable form: with corrected numbers and truncated texts."""
    progress = note.progress
    if progress is not None:
        done, total, text = progress
        progress = _measured(done), _measured(total), _cut(text)
    retries, token = _bounded(note.retries), _bounded(note.token)
    return Note(note.job, retries, token, note.queue, progress, _cut(note.report))


def _measured(number: float) -> float:
    return float(max(0, min(number, MOST_NUMBER)))


def _cut(text: str) -> str:
    return text[:MOST_TEXT].encode("utf-8", "backslashreplace").decode()[:MOST_TEXT]


class JobEvent(NamedTuple):
    """A change of a job's message by the engine, which its batch does not know yet."""

    number: int
    """A number in the sequence of the lease tokens of the queue; later events are higher."""
    what: Literal["dead", "gone", "waits"]
    """dead: it became a dead letter; gone: it was removed; waits: it was replayed."""
    tag: str
    reason: str
    error: str
    envelope: bytes
    """Without its body; b"" if it cannot be read."""


class BatchRecord(NamedTuple):
    """The stored state of a batch at one instant. Times are ms since the epoch; 0: not yet."""

    id: str
    name: str
    counts: dict[State, int]
    created_ms: int
    sealed_ms: int
    cancelled_ms: int
    ended_ms: int
    due: tuple[Callback, ...]
    """The pending callbacks."""
    published: tuple[Callback, ...]
    fields: dict[str, str]
    """The fields that its producer stored with it."""
    due_since_ms: int = 0
    """When the oldest pending callback became due; 0: none is pending."""
    added_ms: int = 0
    """When the last job was added; 0: none was."""
    heard_ms: int = 0
    """When the last jobs were entered that may never have been stored; 0: there are none."""

    def is_left(self, seal_timeout_ms: int, now_ms: int) -> bool:
        """Whether it is not sealed, and got no job for longer than *seal_timeout_ms*."""
        last_ms = max(self.created_ms, self.added_ms)
        return not self.sealed_ms and now_ms - last_ms > seal_timeout_ms

    @property
    def stage(self) -> Stage:
        """Its stage."""
        if self.ended_ms:
            return "ended"
        return "sealed" if self.sealed_ms else "open"

    @property
    def total(self) -> int:
        """The number of jobs: the sum of the states."""
        return sum(self.counts.values())
