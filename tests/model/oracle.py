"""What a queue does, said once more in plain Python: no broker, no clock of its own.

Each rule of the broker stands in one method of QueueOracle, which is told the time
(``now``, ms) and changes the oracle as the broker should change, and returns what the
broker should answer. Nothing here is fast, and nothing knows how an engine stores it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from reliq.store import CREATED, DUPLICATE, NO_QUEUE, STALE, STORED, Lease

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reliq.store import How, Publication

PLACES = READY, DELAYED, UNACKED, DEAD = "ready", "delayed", "unacked", "dead"


@dataclass(frozen=True)
class Settings:
    """The options of every store of one run that a queue's rules depend on."""

    delivery_limit: int | None
    dead_letter_max: int
    dead_letter_ttl_ms: int
    restore_interval_ms: int

    @property
    def suspected(self) -> int:
        """Return how many failures make a message a suspect; 0: none does."""
        limit = self.delivery_limit
        return 0 if limit is None else max(1, min(2, limit - 1))


@dataclass
class Message:
    """One message that the broker holds."""

    tag: str
    envelope: bytes
    rank: int
    place: str = READY
    turn: int = 0
    """Its place in the line of its rank, once it has been ready."""
    due: int = 0
    expires: int | None = None
    failed: int | None = None
    """None: it was never delivered."""
    token: int = 0
    consumer: str = ""
    deadline: int = 0
    died: int = 0
    reason: str = ""
    error: str = ""

    @property
    def lease(self) -> Lease:
        """The lease that it is held by."""
        return Lease(self.tag, str(self.token))


class Reserved(NamedTuple):
    """What a reserve should bring."""

    taken: list[tuple[str, int, bytes]]
    """Tag, failures (-1: never delivered), envelope."""
    first_token: int
    next_due_ms: int
    lease_ms: int
    left: bool


class Pass(NamedTuple):
    """What a step of restore_visible should do."""

    granted: bool
    retry_ms: int
    unacked: int
    dead: list[str]
    by_consumer: dict[str, int]


@dataclass
class QueueOracle:
    """One queue."""

    settings: Settings
    exists: bool = False
    message_ttl: int | None = None
    lease: int | None = None
    paused: bool = False
    messages: dict[str, Message] = field(default_factory=dict)
    ledger: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    bell: bool = False
    mutex: tuple[str, int] | None = None
    marks: dict[str, str] = field(default_factory=dict)
    """The suspect that each consumer was given last, until it reserves without holding it."""
    numbers: dict[str, set[int]] = field(default_factory=dict)
    """By publisher; outlives the queue."""

    # -- looking

    def at(self, place: str) -> list[Message]:
        """Return what is in one place, in the order in which it is served there."""
        keys = {
            READY: lambda m: (m.rank, m.turn),
            DELAYED: lambda m: (m.due, m.tag),
            UNACKED: lambda m: (m.deadline, m.tag),
            DEAD: lambda m: (m.died, m.tag),
        }
        return sorted((m for m in self.messages.values() if m.place == place), key=keys[place])

    def held(self, lease: Lease) -> Message | None:
        """Return the message of a lease that is still the newest of its message."""
        message = self.messages.get(lease.tag)
        if message is None or message.place != UNACKED or str(message.token) != lease.token:
            return None
        return message

    def boundaries(self) -> set[int]:
        """Return every moment at which something begins or ends to be so."""
        moments = set()
        for message in self.messages.values():
            moments |= {
                READY: set(),
                DELAYED: {message.due},
                UNACKED: {message.deadline},
                DEAD: {message.died + self.settings.dead_letter_ttl_ms},
            }[message.place]
            if message.expires is not None and message.place != DEAD:
                moments.add(message.expires)
        return moments

    # -- publishing

    def publish(self, item: Publication, version: bytes, now: int) -> int:
        """Store one message, once."""
        if item.version not in (b"", version):
            return STALE
        if not self.exists and item.exchange:
            return NO_QUEUE
        outcome = STORED if self.exists else CREATED
        self.exists = True
        if item.number:
            known = self.numbers.setdefault(item.publisher, set())
            if item.number in known:
                return DUPLICATE
            known.add(item.number)
            if item.low:
                known -= set(range(item.low))
        message = Message(item.tag, item.envelope, item.rank)
        ttls = [ttl for ttl in (item.ttl_ms, self.message_ttl) if ttl is not None and ttl >= 0]
        if ttls:
            message.expires = now + item.delay_ms + min(ttls)
        self.messages[item.tag] = message
        self.ledger["published"] += 1
        if item.delay_ms:
            message.place, message.due = DELAYED, now + item.delay_ms
            self.bell |= self.at(DELAYED)[0] is message
        else:
            self._line_up(message)
            self.bell = True
        return outcome

    def _line_up(self, message: Message) -> None:
        """Put a message behind all that are ready at its rank."""
        self.turns += 1
        message.place, message.turn = READY, self.turns

    # -- taking

    def reserve(self, consumer: str, n: int, lease_ms: int, no_ack: bool, now: int) -> Reserved:
        """Expire, promote, and lease up to n."""
        lease_ms = self.lease or lease_ms
        self._expire(now)
        for message in self.at(DELAYED):
            if message.due <= now:
                self._line_up(message)
        delayed = self.at(DELAYED)
        next_due = delayed[0].due - now if delayed else -1
        taken, blocked = self._choose(consumer, 0 if self.paused else n)
        told = [(m.tag, -1 if m.failed is None else m.failed, m.envelope) for m in taken]
        first = 0 if no_ack or not taken else self.ledger["token"] + 1
        for number, message in enumerate(taken):
            if no_ack:
                del self.messages[message.tag]
                self.ledger["acked"] += 1
            else:
                self.ledger["token"] += 1
                message.place, message.token = UNACKED, first + number
                message.consumer, message.deadline = consumer, now + lease_ms
        left = not blocked and not self.paused and bool(self.at(READY))
        self.bell |= left
        if blocked:
            next_due = 1000 if next_due < 0 else min(next_due, 1000)
        return Reserved(told, first, next_due, lease_ms, left)

    def _expire(self, now: int) -> None:
        for message in list(self.messages.values()):
            waits = message.place in (READY, DELAYED)
            if waits and message.expires is not None and message.expires <= now:
                self._leave(message, "expired")

    def _choose(self, consumer: str, n: int) -> tuple[list[Message], bool]:
        """Return what a consumer is given: one suspect at most, beside the one that it holds."""
        mark = self.messages.get(self.marks.get(consumer, ""))
        holds = mark is not None and mark.place == UNACKED and mark.consumer == consumer
        if not holds:
            self.marks.pop(consumer, None)
        line = self.at(READY)
        taken: list[Message] = []
        passed_over: list[Message] = []
        for _ in range(4):  # it looks further so often
            count = n - len(taken)
            asked, line = line[:count], line[count:]
            for message in asked:
                if self._is_suspect(message) and holds:
                    passed_over.append(message)
                    continue
                if self._is_suspect(message):
                    holds = True
                    self.marks[consumer] = message.tag
                taken.append(message)
            if not passed_over:
                break
        return taken, bool(passed_over) and len(taken) < n

    def _is_suspect(self, message: Message) -> bool:
        return bool(self.settings.suspected) and (message.failed or 0) >= self.settings.suspected

    # -- what becomes of it

    def _leave(self, message: Message, counter: str) -> None:
        del self.messages[message.tag]
        self.ledger[counter] += 1

    def ack(self, tags: Iterable[str]) -> int:
        """Finish messages wherever they are."""
        found = [self.messages[tag] for tag in set(tags) if tag in self.messages]
        for message in found:
            self._leave(message, "acked")
        return len(found)

    def release(self, how: How, leases: Sequence[Lease], now: int) -> list[str]:
        """Give messages back to their old place."""
        refused = []
        for lease in leases:
            message = self.held(lease)
            if message is None:
                refused.append(lease.tag)
                continue
            self.ledger[how] += 1
            if how == "requeued":
                message.failed = (message.failed or 0) + 1
            elif how == "returned":
                message.failed = message.failed or 0
            message.place = READY
            self.bell = True
        return refused

    def dead_letter(self, reason: str, error: str, leases: Sequence[Lease], now: int) -> list[str]:
        """Give up on messages."""
        refused, died = [], False
        for lease in leases:
            message = self.held(lease)
            if message is None:
                refused.append(lease.tag)
            else:
                self._bury(message, reason, error, now)
                died = True
        if died:
            self._keep_to_the_cap()
        return refused

    def _bury(self, message: Message, reason: str, error: str, now: int) -> None:
        message.place, message.died, message.expires = DEAD, now, None
        message.reason, message.error = reason, error
        self.ledger["dead_lettered"] += 1

    def _keep_to_the_cap(self) -> None:
        dead = self.at(DEAD)
        for message in dead[: max(0, len(dead) - self.settings.dead_letter_max)]:
            self._leave(message, "dropped")

    def renew(self, lease_ms: int, leases: Sequence[Lease], now: int) -> list[str]:
        """Extend leases, or end them now."""
        lost = []
        for lease in leases:
            message = self.held(lease)
            if message is None:
                lost.append(lease.tag)
            else:
                message.deadline = now + (self.lease or lease_ms) if lease_ms else 0
        return lost

    def restore(self, consumer: str, hurry: bool, now: int) -> Pass:
        """Return what has lost its lease, in one step of the pass."""
        if not hurry:
            if self.mutex and self.mutex[1] > now and self.mutex[0] != consumer:
                return Pass(False, self.mutex[1] - now, 0, [], {})
            self.mutex = (consumer, now + self.settings.restore_interval_ms)
        limit = self.settings.delivery_limit or 0
        dead, by_consumer = [], Counter[str]()
        for message in [m for m in self.at(UNACKED) if m.deadline <= now]:
            mark = self.marks.get(message.consumer)
            blamed = mark in (None, message.tag)
            message.failed = (message.failed or 0) + blamed
            by_consumer[message.consumer] += 1
            if blamed and limit and message.failed >= limit:
                self._bury(message, "delivery_limit", "lease ended", now)
                dead.append(message.tag)
            else:
                message.place = READY
                self.ledger["restored"] += 1
        self.bell |= bool(self.at(READY))
        old = [m for m in self.at(DEAD) if m.died <= now - self.settings.dead_letter_ttl_ms]
        for message in old:
            self._leave(message, "dropped")
        if not old:
            self._keep_to_the_cap()
        return Pass(True, 0, len(self.at(UNACKED)), dead, dict(by_consumer))

    # -- operators

    def purge(self) -> int:
        """Remove what waits."""
        waiting = self.at(READY) + self.at(DELAYED)
        for message in waiting:
            self._leave(message, "purged")
        return len(waiting)
