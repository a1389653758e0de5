"""Selection, pace and groups of dead letters for operators."""

from __future__ import annotations

import hashlib
import heapq
import json
import re
import time
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ..errors import ConfigurationError, require_one_of
from ..transfer.numbered import pages
from ..values.limits import MOVED_AT_ONCE, chunks
from .names import REASONS
from .partitions import parts_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from ..values.inspection import DeadLetter
    from ..values.protocol import Store
    from .views import Message
    from .walking import Cursor

T = TypeVar("T")
QueueLetter: TypeAlias = "tuple[str, DeadLetter]"
"""The partition of a dead letter, and the dead letter."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A selection of dead letters: those that match all given filters.

    See :class:`reliq.admin.dead_letters.DeadLetters`. Ages are measured by the broker's clock.
    *match* is case-sensitive.
    """

    task: str | None = None
    reason: str | None = None
    older_than_s: float | None = None
    newer_than_s: float | None = None
    tags: Collection[str] | None = None
    match: str | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for an invalid filter."""
        if self.tags is not None:
            object.__setattr__(self, "tags", frozenset(self.tags))
        if self.reason is not None:
            require_one_of("reason", self.reason, REASONS)
        for name in ("older_than_s", "newer_than_s"):
            age = getattr(self, name)
            if age is not None and not age >= 0:
                raise ConfigurationError(f"expected {name} to be at least 0 seconds, got: {age!r}")
        try:
            re.compile(self.match or "")
        except re.error as exc:
            raise ConfigurationError(
                f"expected match to be a regular expression, got: {self.match!r} ({exc})"
            ) from exc

    def fits(self, dead_letter: DeadLetter, now_ms: int) -> bool:
        """Whether *dead_letter* matches, at the broker's time *now_ms*."""
        age_s = (now_ms - dead_letter.died_ms) / 1000
        return (
            (self.tags is None or dead_letter.tag in self.tags)
            and (self.reason is None or dead_letter.reason == self.reason)
            and (self.older_than_s is None or age_s >= self.older_than_s)
            and (self.newer_than_s is None or age_s <= self.newer_than_s)
            and (self.task is None or dead_letter.task == self.task)
            and (self.match is None or self._matches(dead_letter))
            and (
                self.fingerprint is None
                or self.fingerprint
                == fingerprint(dead_letter.task, dead_letter.reason, dead_letter.error)
            )
        )

    def _matches(self, dead_letter: DeadLetter) -> bool:
        message = dead_letter.message
        headers = {} if message is None else message.headers
        texts = (dead_letter.task, dead_letter.id, dead_letter.error)
        written = (headers.get("argsrepr"), headers.get("kwargsrepr"))
        values = (text for text in (*texts, *written) if isinstance(text, str))
        return any(re.search(self.match or "", text) for text in values)


def choose(
    store: Store, queue: str, choice: Choice, names: Sequence[str] | None, limit: int | None
) -> Iterator[list[QueueLetter]]:
    """Yield pages of up to *limit* dead letters of *queue* that match *choice*, oldest first.

    For a partitioned queue, they come from all its partitions, or from those in *names*. Later
    dead letters are omitted, so that a replay of all of them ends. Raises NotFound.
    """
    names = names or parts_of(store, queue)
    now_ms = store.now_ms()
    parts = (_each(store, name, choice, now_ms) for name in names)
    letters = islice(heapq.merge(*parts, key=lambda item: item[1].died_ms), limit)
    while page := list(islice(letters, MOVED_AT_ONCE)):
        yield page


def _each(store: Store, queue: str, choice: Choice, now_ms: int) -> Iterator[QueueLetter]:
    for page in pages(store, queue, envelopes=True):
        for dead_letter in page:
            if dead_letter.died_ms > now_ms:
                return
            if choice.fits(dead_letter, now_ms):
                yield queue, dead_letter


def paced(pages: Iterator[Sequence[T]], rate: float | None) -> Iterator[Sequence[T]]:
    """Yield the dead letters of *found*, at most *rate* per second on average; None: no limit."""
    if rate is None:
        return pages
    if not rate > 0:
        raise ConfigurationError(
            f"expected rate to be above 0 dead letters a second, got: {rate!r}"
        )
    return _paced(pages, rate)


def _paced(pages: Iterator[Sequence[T]], rate: float) -> Iterator[Sequence[T]]:
    at_once = max(int(rate / 5), 1)
    due = time.monotonic()
    for page in pages:
        for part in chunks(page, at_once):
            time.sleep(max(due - time.monotonic(), 0.0))
            due = max(due, time.monotonic() - 1.0) + len(part) / rate
            yield part


# The exception is the name at the start, as in "ValueError: ..." and "shop.OutOfStock('x')".
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?=[:(])")
_DIGITS = re.compile(r"\d+")
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one task, reason and exception."""

    fingerprint: str
    """The value for the filter ``fingerprint``: sixteen hexadecimal digits."""
    task: str | None
    reason: str
    exception: str
    """The name of the exception, if the error begins with one; else the error without numbers."""
    count: int
    first_ms: int
    """The death times of the first and the last counted dead letter."""
    last_ms: int
    tag: str
    """The delivery tag of the last one."""
    error: str
    """The error of the last one."""


@dataclass(frozen=True, slots=True)
class DeadLetterGroups:
    """The groups of a queue's dead letters counted so far."""

    queue: str
    groups: list[DeadLetterGroup]
    """The largest first."""
    counted: int
    """The number of dead letters counted so far."""
    total: int
    """The current number of dead letters."""
    cursor: Cursor | None = field(default=None, repr=False)
    """The position for the next call; None: all were counted."""


def exception_of(error: str) -> str:
    """Return the exception name of *error*, or its first line without numbers."""
    line = error.strip().partition("\n")[0]
    matched = _EXCEPTION.match(line)
    return matched[1] if matched else _DIGITS.sub("#", line)[:_LONGEST]


def fingerprint(task: str | None, reason: str, error: str) -> str:
    """Return the fingerprint of a task, reason and exception."""
    cause = json.dumps([task, reason, exception_of(error)])
    return hashlib.blake2b(cause.encode(), digest_size=8).hexdigest()


def added(groups: Iterable[DeadLetterGroup], messages: Iterable[Message]) -> list[DeadLetterGroup]:
    """Return *groups* with *messages* added, the largest first."""
    by_name = {group.fingerprint: group for group in groups}
    for message in messages:
        task, tag, died_ms = message.task, message.tag, message.died_ms or 0
        reason, error = message.reason or "", message.error or ""
        name, exception = fingerprint(task, reason, error), exception_of(error)
        group = DeadLetterGroup(name, task, reason, exception, 1, died_ms, died_ms, tag, error)
        known = by_name.get(name)
        if known is not None:
            newer = group if died_ms >= known.last_ms else known
            group = replace(newer, count=known.count + 1, first_ms=min(known.first_ms, died_ms))
        by_name[name] = group
    return sorted(by_name.values(), key=lambda group: (-group.count, group.fingerprint))
