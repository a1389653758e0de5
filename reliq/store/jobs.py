"""Jobs and their batches: what an engine keeps of them, and the one step that changes it.

A job is a task of a batch, by the task's id. What is known of it comes from several processes,
late, twice and out of order. So each change says which delivery of which try it is about, and the
engine decides in one atomic step whether it is news; the counters of the batch change with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from ..errors import ConfigurationError, MessageRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

State: TypeAlias = Literal[
    "waiting", "delayed", "working", "retrying", "succeeded", "failed", "error", "cancelled"
]
"""What a job does. *failed* is a business failure; *error* any other end, but for cancelled."""

OPEN: tuple[State, ...] = ("waiting", "delayed", "working", "retrying")
ENDED: tuple[State, ...] = ("succeeded", "failed", "error", "cancelled")
STATES: tuple[State, ...] = OPEN + ENDED

# An engine stores one letter of each. An error is the worker's (e) or the broker's (x).
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
"""open: jobs may be added; sealed: its jobs go on; ended: all have ended."""

STAGES: tuple[Stage, ...] = ("open", "sealed", "ended")

Callback: TypeAlias = Literal["success", "complete", "failure"]

CALLBACKS: tuple[Callback, ...] = ("success", "complete", "failure")

CALLBACK_FIELD = "on_"
"""Before a callback's name: the field of a batch with its message."""

What: TypeAlias = Literal[
    "enter", "withdraw", "begin", "return", "end", "lose", "replay", "seal", "settle", "cancel"
]

# What became of a change.
DONE = 1
NEVER_STORED = 2
"""It was never stored, since its publisher died or was interrupted. It is taken out."""
UNCHANGED = 0
"""It was so, or what was said is older than what is known."""
CANCELLED = -1
"""The batch is cancelled: there is nothing to be begun, and nothing new to be published."""
SEALED = -2
"""No job may be added to the batch any more but by its own."""
NO_JOB = -3

LOST = "lost with the broker's data"
"""Why a job ended that was found nowhere."""
MOST_ID = 255
"""So many characters the id of a job, and who works on it, have at most."""
MOST_TEXT = 500
"""So many characters are kept of why a job failed."""
MOST_NUMBER = 2**53 - 1
"""The largest number that scripts count with."""

NESTED = "batch"
"""The tag of a job that is a batch: its id is the batch's, and it has no message."""
PARENT = "parent"
"""The field of a batch that names the batch whose job it is."""


class Change(NamedTuple):
    """One change of one job; see the class methods of what they mean."""

    what: What
    job: str = ""
    state: State | Literal["lost", ""] = ""
    """In which it is then: of enter *waiting* or *delayed*. Of end *lost* is the broker's own
    error: what a worker says of the job later, or has said, is better. *cancelled*, of a batch
    that is not, is an error: somebody has revoked it."""
    retries: int = 0
    token: int = 0
    """Of the lease: of two deliveries of a try the later one's is higher. Where the broker has
    ended or replayed it the number of the :class:`JobEvent`; 0 where there is none."""
    tag: str = ""
    queue: str = ""
    text: str = ""
    """Who begins; why it ends; of lose the since of the :class:`Job` that was seen. Of replay,
    where the message was moved, the tag that it had: a job that has another stays as it is."""


_WHAT = frozenset(get_args(What))
_OF_BATCH = frozenset({"seal", "settle", "cancel"})
_STATES_OF: dict[What, frozenset[str]] = {
    "enter": frozenset({"waiting", "delayed"}),
    "end": frozenset({*ENDED, "lost"}),
}


def checked(changes: Iterable[Change]) -> list[Change]:
    """Return *changes* as an engine may store them: texts are cut, numbers and tags put right.

    Raises MessageRefused for an id that cannot be kept, and ConfigurationError for what is no
    change: nothing of a step may be stored then.
    """
    return [_checked(change) for change in changes]


def _checked(change: Change) -> Change:
    what, job, state, retries, token, tag, queue, text = change
    if what not in _WHAT or state not in _STATES_OF.get(what, {state}):
        raise ConfigurationError(f"no change of a job: {what!r} {state!r}; nothing was stored")
    if what in _OF_BATCH:
        job = ""
    else:
        require_job_id(job)
    if len(tag) > MOST_ID or "|" in tag:
        tag = ""  # reliq gives none like that: where the message is is not known
    if what == "begin":
        text = text[:MOST_ID].replace("|", "/")
    return Change(what, job, state, _bounded(retries), _bounded(token), tag, queue, _cut(text))


def _bounded(number: int) -> int:
    return max(0, min(number, MOST_NUMBER))


def is_text(name: str) -> bool:
    """Whether *name* can be encoded."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_id(value: object) -> bool:
    """Whether it can be the id of a job, or of a batch, which may be a job of another."""
    return isinstance(value, str) and 0 < len(value) <= MOST_ID and is_text(value)


def require_job_id(value: object) -> None:
    """Raise MessageRefused unless *value* can be the id of a job."""
    if not is_id(value):
        raise MessageRefused(
            f"the task id {value!r:.100} cannot be that of a job: expected a text of 1 to "
            f"{MOST_ID} characters that can be encoded; nothing was stored"
        )


class Changed(NamedTuple):
    """What became of changes."""

    cancelled: bool
    """Whether the batch is cancelled now."""
    outcomes: list[int]
    due: bool = False
    """Whether something of the batch is to be said now."""


class Job(NamedTuple):
    """What is known of one job."""

    id: str
    state: State
    retries: int
    token: int
    since_ms: int
    """Since when it has this state, by the broker's clock."""
    tag: str
    queue: str
    worker: str = ""
    """Who works on it, where it is *working*."""
    before: str = ""
    """Where it is *retrying*, the tag of the try before: its message is acknowledged when that of
    the next is stored."""


class Note(NamedTuple):
    """What a job says while it runs: which try and delivery of it says how far it is, or reports.

    A report is of up to 500 characters, and a job makes 20 of them at most.
    """

    job: str
    retries: int = 0
    token: int = 0
    queue: str = ""
    """Whose token that is."""
    progress: tuple[float, float, str] | None = None
    """How much of how much is done, and a text."""
    report: str = ""


class JobFailure(NamedTuple):
    """A job that failed, or ended in error."""

    job: str
    at_ms: int
    reason: str


class Progress(NamedTuple):
    """How far a job has said last that it is."""

    job: str
    state: State
    """In which it is now; it says no more when it has ended."""
    at_ms: int
    done: float
    total: float
    """0: the job has not said of how much."""
    text: str


class Report(NamedTuple):
    """What a job has reported."""

    job: str
    at_ms: int
    text: str


def checked_note(note: Note) -> Note:
    """Return *note* as an engine may store it: numbers are put right, texts are cut."""
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
    """What an engine has done with the message of a job, of which the batch is to be told."""

    number: int
    """Of the events and the lease tokens of a queue later ones are higher."""
    what: Literal["dead", "gone", "waits"]
    """It is a dead letter; it was removed; it was, and waits again."""
    tag: str
    reason: str
    error: str
    envelope: bytes
    """Without its body; b"" where it cannot be read."""


class BatchRecord(NamedTuple):
    """What is known of a batch at one instant. Times are ms since the epoch; 0: not yet."""

    id: str
    name: str
    counts: dict[State, int]
    created_ms: int
    sealed_ms: int
    cancelled_ms: int
    ended_ms: int
    due: tuple[Callback, ...]
    """What is to be said now, and was not said."""
    said: tuple[Callback, ...]
    fields: dict[str, str]
    """What its producer has noted with it."""
    due_since_ms: int = 0
    """Since when the first of what is due is; 0: nothing is."""
    added_ms: int = 0
    """When a job was added last; 0: none was."""
    heard_ms: int = 0
    """When jobs were entered last that their publisher may not have stored; 0: there are none."""

    def is_left(self, seal_timeout_ms: int, now_ms: int) -> bool:
        """Whether nobody has sealed it, or added a job to it, for longer than that."""
        last_ms = max(self.created_ms, self.added_ms)
        return not self.sealed_ms and now_ms - last_ms > seal_timeout_ms

    @property
    def stage(self) -> Stage:
        """Where it is in its life."""
        if self.ended_ms:
            return "ended"
        return "sealed" if self.sealed_ms else "open"

    @property
    def total(self) -> int:
        """How many jobs there are: the sum of the states."""
        return sum(self.counts.values())
