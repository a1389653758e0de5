"""Publish numbers: what makes a publish that is retried be stored once, exactly.

A process is one publisher. Each message gets a number in each queue it goes to;
the broker keeps the numbers that may still be retried and refuses one it has.
A number is settled, and forgotten by the broker, once its publish returned or
its tag was dropped, so nothing depends on a window of time or of ids.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, replace
from random import getrandbits
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from ..forks import OwnLock, Part, here, register
from ..message.delivery_tag import is_of_job, new_tag

if TYPE_CHECKING:
    from collections.abc import Callable

_FORGET_BITS = 5  # one in 16, on the average
# Names of this process that it uses no more: what is still known of older ones lapses.
_MOST_FINISHED = 4096
# A name that brokers may not forget leaves a record for a time; losses may come each minute.
_LEFT_EVERY_S = 3600.0
# Where a number stays unsettled (an application keeps what failed), brokers keep all after it.
_MOST_BEHIND = 4096


@dataclass(slots=True)
class Number:
    """A message's identity in one queue, the same on every try."""

    tag: str
    number: int
    low_water: int
    publisher: str
    """Who numbered it: the name of this process at the time."""
    broker: str
    """Where it was tried first."""
    unconfirmed: bool = False
    """Whether it is tried at another broker now: the first may have it."""
    moved: bool = False
    """Whether it is that of a move: it is remembered for as long as moves may take."""


class Numbers(Protocol):
    """The numbers of a publisher's messages."""

    def number(self, tag: PublishTag, queue: str, rank: int, broker: str = "") -> Number:
        """Return the message's identity in *queue*: the same one for the same *tag*."""

    def take_back(self, tag: PublishTag, queue: str) -> None:
        """Note that the message of *tag* was certainly never sent to *queue*."""


class PublishTag(str):  # noqa: SLOT000 - it has the numbers of its message
    """The delivery tag in a message's properties while it is being published.

    Kombu hands the same properties to every try, so finding one that is not
    settled means "again". Properties copied from a received message have a
    plain string and never count as a retry.
    """

    numbers: dict[str, Number]
    places: dict[str, str]
    """Of a queue that is divided: the partition that it goes to, the same one on every try."""
    turned_away: set[str]
    """The queues one of whose partitions took nothing new."""
    publisher: Numbers
    watch: _Watch | None = None

    @property
    def settled(self) -> bool:
        """Whether its publish has returned, so that it will not come again."""
        return not self.numbers


class _Watch(ref[PublishTag]):
    """Notes that a tag is gone, to settle what nobody can retry any more.

    Its callback is no Python code: in a destructor that is, Ctrl-C and a time limit would be lost.
    """

    first: int
    numbers: dict[str, Number]


def publish_tag(text: str, publisher: Numbers) -> PublishTag:
    """Return the tag *text* of a message that has no numbers yet."""
    tag = PublishTag(text)
    tag.numbers, tag.places, tag.turned_away = {}, {}, set()
    tag.publisher = publisher
    return tag


class GivenNumber:
    """A number that is known before: of a move, of a batch's callback. Whoever sends has it."""

    def __init__(
        self,
        publisher: str,
        number: int,
        low_water: int = 0,
        *,
        moved: bool = False,
        own_tag: Callable[[str], str],
    ) -> None:
        self._of = publisher, number, low_water, moved
        self._own_tag = own_tag

    def number(self, tag: PublishTag, queue: str, rank: int, broker: str = "") -> Number:
        """Return the message's identity in *queue*, the same one for every process."""
        del tag, rank
        publisher, number, low_water, moved = self._of
        own = self._own_tag(queue)
        return Number(own, number, low_water, publisher, broker, moved=moved)

    def take_back(self, *_: object) -> None:
        """Keep the number: it is not this process's own."""


class Publisher:
    """The numbers of this process. Thread-safe."""

    _lock = OwnLock()

    def __init__(self) -> None:
        # Goes on in a forked child: there too a tag of the parent's may be dropped.
        self._last = 0
        self.forget()

    def forget(self) -> None:
        """Begin as another publisher, which has nothing under way."""
        self._id = os.urandom(9).hex()
        # Under the name of now, by queue. A dict for its order: numbers only grow, so the
        # first is the lowest.
        self._open: dict[str, dict[int, None]] = {}
        # By the first number of each tag whose publish has not returned.
        self._watched: dict[int, _Watch] = {}
        # Filled as a tag is collected: anywhere, even while the lock is held.
        self._dropped: deque[Any] = deque()
        # Whether each request under the name of now has been answered, as far as is known.
        self._answered = True
        self._used = False
        # How many publishes go before the one that tells the lowest number.
        self._forgets_in = 0
        self._finished: dict[str, None] = {}
        self._leave_at = 0.0

    @property
    def id(self) -> str:
        """Its name at the broker."""
        here()
        return self._id

    def tag(self, rank: int, *, job: bool = False) -> PublishTag:
        """Return a tag for a message that is published for the first time.

        *job*: one that is a job of a batch.
        """
        return publish_tag(new_tag(rank, job=job), self)

    def number(self, tag: PublishTag, queue: str, rank: int, broker: str = "") -> Number:
        """Return the message's identity in *queue*: the same one for the same *tag*.

        Tried at another *broker* than the first time, it is unconfirmed: only its number can tell
        the first broker, later, whether it has it. So nothing that this process publishes from
        then on may settle that number: it goes on under another name.
        """
        known = tag.numbers.get(queue) if tag.numbers else None
        if known is not None:
            with self._lock:
                if known.publisher == self._id:
                    self._answered = False  # the try before may still be on its way
                if known.broker == broker:
                    return known
                if known.publisher == self._id:
                    self._rename()
            return replace(known, unconfirmed=True)
        with self._lock:
            if self._dropped:
                self._settle_dropped()
            self._used = True
            number = self._last = self._last + 1
            low_water = number
            if queue in self._open:
                unsettled = self._open[queue]
                low_water = next(iter(unsettled))
                unsettled[number] = None
            else:
                self._open[queue] = {number: None}
            publisher = self._id
            if number - low_water > _MOST_BEHIND:
                self._rename()
            self._forgets_in -= 1
            if self._forgets_in >= 0:  # forgetting costs a command: now and then will do
                low_water = 0
            else:
                self._forgets_in = getrandbits(_FORGET_BITS)
        own = str(tag) if not tag.numbers else new_tag(rank, job=is_of_job(tag))
        known = tag.numbers[queue] = Number(own, number, low_water, publisher, broker)
        if tag.watch is None:
            watch = tag.watch = self._watched[number] = _Watch(tag, self._dropped.append)
            watch.first, watch.numbers = number, tag.numbers
        return known

    def take_back(self, tag: PublishTag, queue: str) -> None:
        """Note that the message of *tag* was certainly never sent to *queue*."""
        with self._lock:
            known = tag.numbers.pop(queue, None)
            if known is not None:
                self._discard(queue, known.number)

    def wait_for_replies(self, *tags: PublishTag) -> None:
        """Note that the publishes of *tags* have returned."""
        with self._lock:
            for tag in tags:
                numbers, tag.numbers = tag.numbers, {}
                for queue in numbers:
                    self._discard(queue, numbers[queue].number)
                if tag.watch is not None and tag.watch.first in self._watched:
                    del self._watched[tag.watch.first]
                tag.watch = None

    def retire(self) -> None:
        """Go on under another name where no publish under this one is unsettled.

        Brokers may forget what they know of it then (:meth:`finished`): nothing is tried
        again, and nothing is on its way, since every request was answered. Where one was
        not, a name is left behind at most once an hour: until then it goes on.
        """
        with self._lock:
            self._settle_dropped()
            if self._open or not self._used:
                return
            if self._answered:
                if len(self._finished) >= _MOST_FINISHED:
                    del self._finished[next(iter(self._finished))]
                self._finished[self._id] = None
            elif monotonic() < self._leave_at:
                return
            else:
                self._leave_at = monotonic() + _LEFT_EVERY_S
            self._rename()

    def _rename(self) -> None:
        # What is unsettled stays so under the old name, which nothing settles any more.
        self._id, self._open = os.urandom(9).hex(), {}
        self._answered, self._used = True, False

    def finished(self, name: str) -> bool:
        """Whether nothing is published under *name* any more, and nothing is on its way."""
        return name in self._finished

    def _settle_dropped(self) -> None:
        while self._dropped:
            watch = self._dropped.popleft()
            self._watched.pop(watch.first, None)
            for queue, known in watch.numbers.items():
                if self._discard(queue, known.number):
                    self._answered = False  # given up: it may still arrive

    def _discard(self, queue: str, number: int) -> bool:
        """Settle a number; False where it is none of the name of now."""
        if queue not in self._open:
            return False
        unsettled = self._open[queue]
        if number not in unsettled:
            return False
        del unsettled[number]
        if not unsettled:
            del self._open[queue]
        return True


PUBLISHER = Publisher()
register(Part("publisher", forget=PUBLISHER.forget))
