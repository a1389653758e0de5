"""Publish numbers: they make a retried publish be stored exactly once.

A process is one publisher. Each message gets a number in each target queue. The broker keeps the
numbers that may still be retried, and ignores a known one. A number is settled, and forgotten by
the broker, when its publish returns or its tag is dropped. No window of time or of ids is needed.
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
from ..message.delivery_tag import new_tag, tag_like

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FORGET_BITS = 5  # one in 16, on average
# Finished names of this process. Records of older names expire.
_MOST_FINISHED = 4096
# A name that brokers may not forget leaves a record for a time, and losses may come each minute.
_LEFT_EVERY_S = 3600.0
# If a number stays unsettled (an application keeps a failed message), brokers keep all later ones.
_MOST_BEHIND = 4096


@dataclass(slots=True)
class Number:
    """A message's identity in one queue, the same on every try."""

    tag: str
    number: int
    low_water: int
    publisher: str
    """The publisher that assigned it: the name of this process at the time."""
    broker: str
    """The broker of the first try."""
    unconfirmed: bool = False
    """Whether it is tried at another broker now: the first one may have stored it."""
    moved: bool = False
    """Whether it belongs to a move: brokers then keep it as long as moves may take."""


class Numbers(Protocol):
    """Assigns publish numbers to messages."""

    def number(self, tag: PublishTag, queue: str, broker: str = "") -> Number:
        """Return the message's identity in *queue*, the same for the same *tag*."""

    def take_back(self, tag: PublishTag, queue: str) -> None:
        """Record that the message of *tag* was never sent to *queue*."""


class PublishTag(str):  # noqa: SLOT000 - holds the numbers of its message
    """The delivery tag in a message's properties while it is being published.

    Kombu passes the same properties to every try, so an unsettled tag marks a retry. Properties
    copied from a received message have a plain string and never count as a retry.
    """

    numbers: dict[str, Number]
    places: dict[str, str]
    """By partitioned queue, its partition: the same on every try."""
    redirected: set[str]
    """The queues of which a closed partition refused it."""
    publisher: Numbers
    watch: _Watch | None = None

    @property
    def settled(self) -> bool:
        """Whether its publish has returned, so that it is not retried."""
        return not self.numbers


class _Watch(ref[PublishTag]):
    """Detects a dropped tag, which can no longer be retried, to settle its numbers.

    Its callback is not Python code: a destructor in Python would lose Ctrl-C or a time limit.
    """

    first: int
    numbers: dict[str, Number]


def publish_tag(text: str, publisher: Numbers) -> PublishTag:
    """Return the tag *text* of a message that has no numbers yet."""
    tag = PublishTag(text)
    tag.numbers, tag.places, tag.redirected = {}, {}, set()
    tag.publisher = publisher
    return tag


class GivenNumber:
    """The fixed number of a move or a batch's callback, the same for every sender."""

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

    def number(self, _tag: PublishTag, queue: str, broker: str = "") -> Number:
        """Return the message's identity in *queue*, the same for every process."""
        publisher, number, low_water, moved = self._of
        own = self._own_tag(queue)
        return Number(own, number, low_water, publisher, broker, moved=moved)

    def take_back(self, *_: object) -> None:
        """Do nothing: the number does not belong to this process."""


class Publisher:
    """The publish numbers of this process. Thread-safe, also in a signal handler."""

    _lock = OwnLock()
    """Guards the names, the last number and the unsettled numbers. A number is taken and recorded
    in lines without a call, between which no other code of its thread runs."""

    def __init__(self) -> None:
        # Not reset in a forked child, where a tag of the parent may also be dropped.
        self._last = 0
        self.forget()

    def forget(self) -> None:
        """Start as a new publisher without unsettled numbers."""
        self._id = os.urandom(9).hex()
        # Unsettled numbers of the current name, by queue. In a dict, whose order makes the first
        # number the lowest, because numbers only grow.
        self._open: dict[str, dict[int, None]] = {}
        # Tags whose publish has not returned, by their first number.
        self._watched: dict[int, _Watch] = {}
        # Filled when a tag is collected: anywhere, even while the lock is held.
        self._dropped: deque[Any] = deque()
        # Whether every request of the current name is known to be answered.
        self._answered = True
        self._used = False
        # Publishes until the next one that sends the low-water mark.
        self._forgets_in = 0
        self._finished: dict[str, None] = {}
        self._leave_at = 0.0

    @property
    def id(self) -> str:
        """The publisher's name at the broker."""
        here()
        return self._id

    def tag(self, rank: int, headers: Mapping[str, Any]) -> PublishTag:
        """Return a tag for a new message."""
        return publish_tag(new_tag(rank, headers), self)

    def number(self, tag: PublishTag, queue: str, broker: str = "") -> Number:
        """Return the message's identity in *queue*: the same one for the same *tag*.

        A message that is retried at another *broker* is unconfirmed: only its number can later tell
        whether the first broker stored it. No later publish may settle that number, so this process
        continues under a new name.
        """
        known = tag.numbers.get(queue) if tag.numbers else None
        if known is not None:
            return self._of_retry(known, broker)
        own = str(tag) if not tag.numbers else tag_like(tag)
        number = 0
        unsettled: dict[int, None] = {}
        try:
            with self._lock:
                if self._dropped:
                    self._settle_dropped()
                self._used = True
                # No call from here until the number is recorded.
                number = low_water = self._last = self._last + 1
                if queue in self._open:
                    unsettled = self._open[queue]
                    for low_water in unsettled:  # noqa: B007 - the first one
                        break
                unsettled[number] = None
                self._open[queue] = unsettled
                publisher = self._id
                if number - low_water > _MOST_BEHIND:
                    self._rename()
                self._forgets_in -= 1
                if self._forgets_in >= 0:  # forgetting costs a command, so only sometimes
                    low_water = 0
                else:
                    self._forgets_in = getrandbits(_FORGET_BITS)
            known = tag.numbers[queue] = Number(own, number, low_water, publisher, broker)
            if tag.watch is None:
                watch = tag.watch = self._watched[number] = _Watch(tag, self._dropped.append)
                watch.first, watch.numbers = number, tag.numbers
        except BaseException:  # an interrupt: the number is not used
            tag.numbers.pop(queue, None)
            self._discard(queue, number)
            raise
        return known

    def _of_retry(self, known: Number, broker: str) -> Number:
        with self._lock:
            if known.publisher == self._id:
                self._answered = False  # the previous try may still be in transit
            if known.broker == broker:
                return known
            if known.publisher == self._id:
                self._rename()
        return replace(known, unconfirmed=True)

    def take_back(self, tag: PublishTag, queue: str) -> None:
        """Record that the message of *tag* was never sent to *queue*."""
        with self._lock:
            known = tag.numbers.pop(queue, None)
            if known is not None:
                self._discard(queue, known.number)

    def settle(self, *tags: PublishTag) -> None:
        """Record that the publishes of *tags* have returned."""
        with self._lock:
            for tag in tags:
                numbers, tag.numbers = tag.numbers, {}
                for queue in numbers:
                    self._discard(queue, numbers[queue].number)
                if tag.watch is not None and tag.watch.first in self._watched:
                    del self._watched[tag.watch.first]
                tag.watch = None

    def retire(self) -> None:
        """Continue under a new name if the current one has no unsettled publish.

        Brokers may then forget the old name (:meth:`finished`): nothing is retried, and nothing is
        in transit, because every request was answered. If a request was not answered, the name
        changes at most once an hour, because it leaves a record.
        """
        with self._lock:
            self._settle_dropped()
            if len(self._finished) >= _MOST_FINISHED:
                del self._finished[next(iter(self._finished))]
            name, now = os.urandom(9).hex(), monotonic()
            # No call from here on.
            if self._open or not self._used or (not self._answered and now < self._leave_at):
                return
            if self._answered:
                self._finished[self._id] = None
            else:
                self._leave_at = now + _LEFT_EVERY_S
            self._id, self._open, self._answered, self._used = name, {}, True, False

    def _rename(self) -> None:
        # Unsettled numbers stay unsettled under the old name.
        self._id, self._open = os.urandom(9).hex(), {}
        self._answered, self._used = True, False

    def finished(self, name: str) -> bool:
        """Whether nothing is published under *name* any more, and nothing is in transit."""
        return name in self._finished

    def _settle_dropped(self) -> None:
        while self._dropped:
            watch = self._dropped.popleft()
            self._watched.pop(watch.first, None)
            for queue, known in watch.numbers.items():
                if self._discard(queue, known.number):
                    self._answered = False  # abandoned: it may still arrive

    def _discard(self, queue: str, number: int) -> bool:
        """Settle a number; return False if it is not of the current name."""
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
