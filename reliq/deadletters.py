"""Dead letters for operators: find them, look at them, replay or remove them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import ConfigurationError, NotFound
from .moving import pages, to_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .store import DeadLetter, Store

REASONS = ("rejected", "undecodable", "delivery_limit", "expired", "maxlen")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are meant: those that fit everything that is given.

    task: the name of a Celery task, exactly.
    reason: one of REASONS.
    older_than_s, newer_than_s: seconds since it died, by the broker's clock.
    tags: these delivery tags and no others.
    """

    task: str | None = None
    reason: str | None = None
    older_than_s: float | None = None
    newer_than_s: float | None = None
    tags: frozenset[str] | None = None

    def __post_init__(self) -> None:
        """Refuse what could never fit; raises ConfigurationError."""
        if self.reason is not None and self.reason not in REASONS:
            raise ConfigurationError(
                f"expected reason to be one of {', '.join(REASONS)}, got: {self.reason!r}"
            )
        for name in ("older_than_s", "newer_than_s"):
            age = getattr(self, name)
            if age is not None and not age >= 0:
                raise ConfigurationError(f"expected {name} to be at least 0 seconds, got: {age!r}")

    def fits(self, letter: DeadLetter, now_ms: int) -> bool:
        """Whether *letter* is meant, at the broker's time *now_ms*."""
        age_s = (now_ms - letter.died_ms) / 1000
        return (
            (self.tags is None or letter.tag in self.tags)
            and (self.reason is None or letter.reason == self.reason)
            and (self.older_than_s is None or age_s >= self.older_than_s)
            and (self.newer_than_s is None or age_s <= self.newer_than_s)
            and (self.task is None or letter.task == self.task)
        )


def choose(store: Store, queue: str, choice: Choice) -> Iterator[list[DeadLetter]]:
    """Yield the dead letters of *queue* that *choice* means, oldest first, some at a time.

    What dies after the first look is left out: who replays all must come to an end.
    Raises NotFound for a queue that does not exist.
    """
    if store.status(queue) is None:
        raise NotFound(f"no queue {queue!r}")
    now_ms = store.now_ms()
    for page in pages(store, queue, envelopes=True):
        found = [
            letter for letter in page if letter.died_ms <= now_ms and choice.fits(letter, now_ms)
        ]
        if found:
            yield found
        if page[-1].died_ms > now_ms:
            return


def limited(found: Iterator[list[DeadLetter]], limit: int | None) -> Iterator[list[DeadLetter]]:
    """Yield pages until *limit* letters were seen; None: all."""
    left = limit
    for page in found:
        if left is None:
            yield page
            continue
        if left <= 0:
            return
        yield page[:left]
        left -= len(page)


def replay(store: Store, queue: str, tags: Sequence[str], to: str | None) -> int:
    """Put dead letters back into *queue*, or into the queue *to*; return how many.

    Their count of failed deliveries begins anew. Into their own queue it is one atomic
    step for each 200; into another one each is stored there before it is taken out here.
    """
    if to is None or to == queue:
        return len(store.replay(queue, tags))
    return to_queue(store, queue, to, tags)
