"""Dead letters for operators: find them, look at them, replay or remove them."""

from __future__ import annotations

import heapq
import re
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypedDict, TypeVar

from ..errors import ConfigurationError, require_one_of
from ..message.queue_names import queue_of
from ..routing.partitions import names_of
from ..store.limits import MOVED_AT_ONCE, chunks
from ..store.protocol import status_of
from ..transfer.numbered import pages, to_queue
from .dead_letter_groups import fingerprint
from .names import REASONS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from ..store.inspection import DeadLetter
    from ..store.protocol import Store

T = TypeVar("T")
Found: TypeAlias = "tuple[str, DeadLetter]"
"""A dead letter, and the name of the partition of its queue that has it."""


class Filters(TypedDict, total=False):
    """What dead letters are chosen by; see :class:`Choice`."""

    task: str | None
    reason: str | None
    older_than_s: float | None
    newer_than_s: float | None
    match: str | None
    fingerprint: str | None


class Part(Filters, total=False):
    """Those that fit, as many as are wanted, as fast as is wanted; see :class:`DeadLetters`."""

    limit: int | None
    rate: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are meant: those that fit everything that is given.

    task: the name of a Celery task, exactly.
    reason: one of REASONS.
    older_than_s, newer_than_s: seconds since it died, by the broker's clock.
    tags: these delivery tags and no others.
    match: a regular expression, found somewhere in its task, id, error or arguments as
        Celery wrote them; case counts.
    fingerprint: of one group of :func:`reliq.admin.Inspector.dead_letter_groups`.
    """

    task: str | None = None
    reason: str | None = None
    older_than_s: float | None = None
    newer_than_s: float | None = None
    tags: Collection[str] | None = None
    match: str | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        """Refuse what could never fit; raises ConfigurationError."""
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
        """Whether *dead_letter* is meant, at the broker's time *now_ms*."""
        age_s = (now_ms - dead_letter.died_ms) / 1000
        return (
            (self.tags is None or dead_letter.tag in self.tags)
            and (self.reason is None or dead_letter.reason == self.reason)
            and (self.older_than_s is None or age_s >= self.older_than_s)
            and (self.newer_than_s is None or age_s <= self.newer_than_s)
            and (self.task is None or dead_letter.task == self.task)
            and (self.match is None or self._matches(dead_letter))
            and (self.fingerprint is None or self.fingerprint == _fingerprint(dead_letter))
        )

    def _matches(self, dead_letter: DeadLetter) -> bool:
        message = dead_letter.message
        headers = {} if message is None else message.headers
        texts = (dead_letter.task, dead_letter.id, dead_letter.error)
        written = (headers.get("argsrepr"), headers.get("kwargsrepr"))
        found = (text for text in (*texts, *written) if isinstance(text, str))
        return any(re.search(self.match or "", text) for text in found)


def _fingerprint(dead_letter: DeadLetter) -> str:
    return fingerprint(dead_letter.task, dead_letter.reason, dead_letter.error)


def choose(
    store: Store, queue: str, choice: Choice, names: Sequence[str] | None = None
) -> Iterator[list[Found]]:
    """Yield the dead letters of *queue* that *choice* means, oldest first, some at a time.

    Of a queue that is divided, those of all its partitions, or of those in *names*. What dies after
    the first look is left out: who replays all must come to an end. Raises NotFound for a queue
    that does not exist.
    """
    names = names or names_of(store, queue)
    status_of(store, names[0])
    now_ms = store.now_ms()
    if len(names) == 1:
        for page in _choose(store, names[0], choice, now_ms):
            yield [(names[0], dead_letter) for dead_letter in page]
        return
    found = heapq.merge(
        *(_each(store, name, choice, now_ms) for name in names), key=lambda item: item[1].died_ms
    )
    while page_of_all := list(islice(found, MOVED_AT_ONCE)):
        yield page_of_all


def _each(store: Store, queue: str, choice: Choice, now_ms: int) -> Iterator[Found]:
    for page in _choose(store, queue, choice, now_ms):
        for dead_letter in page:
            yield queue, dead_letter


def _choose(store: Store, queue: str, choice: Choice, now_ms: int) -> Iterator[list[DeadLetter]]:
    for page in pages(store, queue, envelopes=True):
        found = [
            dead_letter
            for dead_letter in page
            if dead_letter.died_ms <= now_ms and choice.fits(dead_letter, now_ms)
        ]
        if found:
            yield found
        if page[-1].died_ms > now_ms:
            return


def by_partition(found: Iterable[Found]) -> dict[str, list[str]]:
    """Return the tags of dead letters, by the partition of the queue that they are in."""
    tags: dict[str, list[str]] = {}
    for name, dead_letter in found:
        tags.setdefault(name, []).append(dead_letter.tag)
    return tags


def limited(found: Iterator[list[T]], limit: int | None) -> Iterator[list[T]]:
    """Yield pages until *limit* dead letters were seen; None: all."""
    left = limit
    for page in found:
        if left is None:
            yield page
            continue
        if left <= 0:
            return
        yield page[:left]
        left -= len(page)


def paced(found: Iterator[Sequence[T]], rate: float | None) -> Iterator[Sequence[T]]:
    """Yield the dead letters of *found*, no more than *rate* a second on average; None: at once."""
    if rate is None:
        return found
    if not rate > 0:
        raise ConfigurationError(
            f"expected rate to be above 0 dead letters a second, got: {rate!r}"
        )
    return _paced(found, rate)


def _paced(found: Iterator[Sequence[T]], rate: float) -> Iterator[Sequence[T]]:
    at_once = max(int(rate / 5), 1)
    due = time.monotonic()
    for page in found:
        for part in chunks(page, at_once):
            time.sleep(max(due - time.monotonic(), 0.0))
            due = max(due, time.monotonic() - 1.0) + len(part) / rate
            yield part


def replay(store: Store, queue: str, tags: Sequence[str], to: str | None) -> int:
    """Put dead letters back into *queue*, or into the queue *to*; return how many.

    Their count of failed deliveries begins anew. Into their own queue it is one atomic
    step for each 200; into another one each is stored there before it is taken out here.
    """
    if to is None or to == queue_of(queue):
        return len(store.replay(queue, tags))
    return to_queue(store, queue, to, tags)
