"""The rules of a queue, implemented a second time in plain Python: no broker, no own clock.

Each rule of the broker has one method of QueueOracle. It gets the time (``now``, ms), changes the
oracle as the broker should change, and returns the expected answer of the broker. Nothing here is
fast or knows how an engine stores data. The file is longer than others so that all the rules of a
queue are in one place.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from reliq.values.values import (
    ALONE,
    BUSY,
    CREATED,
    DUPLICATE,
    FULL,
    HOLDING,
    NO_QUEUE,
    STALE,
    STORED,
)
from tests.model.rates import Starts
from tests.model.terms import (
    DEAD,
    DELAYED,
    READY,
    UNACKED,
    Arguments,
    Failure,
    Message,
    Pass,
    Reserved,
    Settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reliq.values.values import How, Lease, Publication


@dataclass
class QueueOracle:
    """One queue."""

    settings: Settings
    exists: bool = False
    arguments: Arguments = field(default_factory=Arguments)
    paused: bool = False
    messages: dict[str, Message] = field(default_factory=dict)
    ledger: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    notification: bool = False
    mutex: tuple[str, int] | None = None
    passed: int = 0
    pass_due: int = 0
    spared: tuple[int, int] = (0, 0)
    marks: dict[str, str] = field(default_factory=dict)
    """The last candidate given to each consumer, until the consumer reserves without holding it."""
    alone: set[str] = field(default_factory=set)
    """The consumers that received their candidate in an isolated delivery."""
    claim: tuple[str, str, int] | None = None
    """The message claimed for isolated delivery, the consumer, and the claim's deadline."""
    numbers: dict[str, set[int]] = field(default_factory=dict)
    """The stored numbers of each publisher; they outlive the queue."""
    settled: dict[str, int] = field(default_factory=dict)
    """The number of each publisher below which all are settled: a late one is a duplicate."""
    moving: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Dead letters that are being moved to another queue: tag -> number, target."""
    finished: dict[str, Message] = field(default_factory=dict)
    """Messages reserved with no_ack, which may be handed back while the queue lives."""
    events: list[tuple[str, str, str, str]] = field(default_factory=list)
    last_token: int = 0
    """Events of jobs: kind, tag, reason, error. Nothing reports them to their batches here."""
    last_move: int = 0
    """The last number of a move; it outlives the queue too."""
    starts: Starts = field(default_factory=Starts)
    """The starts that count towards the rate of the queue."""

    # -- views

    def at(self, place: str) -> list[Message]:
        """Return the messages in one place, in their order of service."""
        keys = {
            READY: lambda m: (m.rank, m.turn),
            DELAYED: lambda m: (m.due, m.tag),
            UNACKED: lambda m: (m.deadline, m.tag),
            DEAD: lambda m: (m.died, m.tag),
        }
        return sorted((m for m in self.messages.values() if m.place == place), key=keys[place])

    def held(self, lease: Lease) -> Message | None:
        """Return the message of a lease, if the lease is still its newest."""
        message = self.messages.get(lease.tag)
        if message is None or message.place != UNACKED or str(message.token) != lease.token:
            return None
        return message

    def boundaries(self) -> set[int]:
        """Return every time at which the state of a message, pass or claim changes."""
        moments = {self.pass_due, self.spared[1], self.claim[2] if self.claim else 0} - {0}
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

    def declare(self, arguments: Arguments) -> None:
        """Declare the queue."""
        self.exists, self.arguments = True, arguments
        self.starts.change(arguments.rate, 0)

    # -- the limits of a queue

    def free(self, now: int) -> tuple[int, int]:
        """Return the number of messages that limits permit now: at least, at most.

        The two differ after a change of the rate, and if a start was handed back late.
        """
        least = most = 1_000_000
        if self.starts.rate is not None:
            least, most = self.starts.permitted(now)
        if self.arguments.concurrency is not None:
            slots = max(0, self.arguments.concurrency - len(self.at(UNACKED)))
            least, most = min(least, slots), min(most, slots)
        return least, most

    def _rate_wait(self, told: int, next_due: int, now: int) -> int:
        """Return the ms until the next due message or start, as *told* if the rule leaves it open.

        Used when messages are ready and a limit is reached.
        """
        if self.starts.rate is None:
            return next_due
        earliest, latest = self.starts.wait_ms(now)
        if not latest or (not earliest and told == next_due):
            return next_due
        delayed = next_due if next_due >= 0 else latest
        return max(min(earliest, delayed), min(latest, delayed, told))

    def _slots_end(self, number: int) -> None:
        """Notify that leases have ended, because others may wait for their slots."""
        self.notification |= number > 0 and self.arguments.concurrency is not None and self._waits

    @property
    def _waits(self) -> bool:
        return bool(self.at(READY))

    def configure(self, concurrency: int | None, rate: str | None, now: int) -> bool:
        """Change the limits; this applies at once. Return whether the queue exists."""
        if self.exists:
            self.arguments = replace(self.arguments, concurrency=concurrency, rate=rate)
            self.starts.change(rate, now)
            self.notification |= self._waits
        return self.exists

    # -- more views

    @property
    def limit(self) -> int:
        """Return the delivery limit; 0 means none."""
        own = self.arguments.delivery_limit
        return (self.settings.delivery_limit or 0) if own is None else own

    def _is_candidate(self, message: Message) -> bool:
        """Return whether it has failed twice, or once less than its limit if that is sooner."""
        return bool(self.limit) and (message.failed or 0) >= max(1, min(2, self.limit - 1))

    def _is_last(self, message: Message) -> bool:
        """Return whether only its last delivery is left, which is always isolated."""
        return bool(self.limit) and (message.failed or 0) >= self.limit - 1

    @property
    def waiting(self) -> list[Message]:
        """Return the messages that count towards the length limits."""
        return self.at(READY) + self.at(DELAYED)

    @property
    def waiting_bytes(self) -> int:
        """Return the total size of the messages that count towards the length limits."""
        return sum(len(m.envelope) for m in self.waiting)

    # -- publishing

    def publish(self, items: Sequence[Publication], version: bytes, now: int) -> list[int]:
        """Store messages with equal exchange, version and creation flag, each once."""
        first = items[0]
        if first.version not in (b"", version):
            return [STALE] * len(items)
        if not self.exists and (first.exchange or not first.create):
            return [NO_QUEUE] * len(items)
        stored = STORED if self.exists else CREATED
        self.exists = True
        outcomes = []
        numbered = set()
        if self._too_long(len(items), sum(len(item.envelope) for item in items)):
            self._expire(now)
        for item in items:
            outcome = self._accept(item)
            if outcome == STORED:
                self._store(item, now)
                outcome, stored = stored, STORED
                if item.number:
                    numbered.add(item.publisher)
            outcomes.append(outcome)
        low_water = max(item.low_water for item in items)
        for publisher in numbered:
            self.settled[publisher] = max(low_water, self.settled.get(publisher, 0))
        if self.arguments.overflow != "reject-publish" and self._too_long(0, 0):
            while self._too_long(0, 0):
                self._bury(self._head(), "maxlen", "", "", now)
            self._keep_to_the_cap()
        return outcomes

    def _accept(self, item: Publication) -> int:
        known = self.numbers.setdefault(item.publisher, set())
        settled = self.settled.get(item.publisher, 0)
        if item.number and (item.number in known or item.number < settled):
            return DUPLICATE
        rejects = self.arguments.overflow == "reject-publish"
        if rejects and self._too_long(1, len(item.envelope)):
            return FULL
        known.add(item.number)
        return STORED

    def _too_long(self, more: int, more_bytes: int) -> bool:
        length, size = self.arguments.max_length, self.arguments.max_bytes
        return (length is not None and len(self.waiting) + more > length) or (
            size is not None and self.waiting_bytes + more_bytes > size
        )

    def _head(self) -> Message:
        """Return the message to drop: the oldest of the lowest priority, else the next due."""
        ready = self.at(READY)
        if ready:
            return next(m for m in ready if m.rank == ready[-1].rank)
        return self.at(DELAYED)[0]

    def _store(self, item: Publication, now: int) -> None:
        message = Message(item.tag, item.envelope, item.rank)
        ttls = [item.ttl_ms, self.arguments.message_ttl]
        given = [ttl for ttl in ttls if ttl is not None and ttl >= 0]
        if given:
            message.expires = now + item.delay_ms + min(given)
        self.messages[item.tag] = message
        self.ledger["published"] += 1
        if item.delay_ms:
            message.place, message.due = DELAYED, now + item.delay_ms
            self.notification |= self.at(DELAYED)[0] is message
        else:
            self._line_up(message)
            self.notification = True

    def _line_up(self, message: Message) -> None:
        """Put a message behind all ready messages of its rank."""
        self.turns += 1
        message.place, message.turn = READY, self.turns

    # -- reserving

    def reserve(
        self,
        consumer: str,
        n: int,
        lease_ms: int,
        no_ack: bool,
        occupancy: int,
        first: int,
        now: int,
        room: int,
        told_due: int,
    ) -> Reserved:
        """Expire, promote, and lease up to n, under the tokens from *first*, which are unused.

        *room* is the number of messages that the limits permit, and *told_due* the broker's time
        until the next message, which is accepted where the rule leaves it open; see `free`.
        """
        lease_ms = self.arguments.lease or lease_ms
        next_due = self._expire_and_promote(now)
        taken, blocked, isolated, claims, own = self._judge(
            consumer, min(n, room), occupancy, no_ack, now
        )
        if claims:
            self.claim = (claims.tag, consumer, now + lease_ms)
        told = [(m.tag, -1 if m.failed is None else m.failed, m.envelope) for m in taken]
        if no_ack or not taken:
            first = 0
        else:
            first = first or self.last_token + 1  # of a broker that gave nothing
            assert first > self.last_token, "a token repeats"
            self.last_token = first + len(taken) - 1
        for number, message in enumerate(taken):
            self.ledger["redelivered"] += message.failed is not None
            if no_ack:
                self.finished[message.tag] = self.messages.pop(message.tag)
                self.ledger["acked"] += 1
            else:
                self.ledger["leased"] += 1
                message.place, message.token = UNACKED, first + number
                message.consumer, message.deadline = consumer, now + lease_ms
                message.begun = False
        if not no_ack:
            self.starts.note([m.tag for m in taken], now)
        waiting = not self.paused and bool(self.at(READY))
        if waiting and room <= len(taken):
            waiting, next_due = False, self._rate_wait(told_due, next_due, now)
        left = waiting and not blocked and not claims and not isolated
        self.notification |= (
            waiting and (not blocked or (bool(claims) and not own)) and not (claims and own)
        )
        held_back = blocked and waiting and not claims
        if held_back or claims or isolated:
            next_due = 1000 if next_due < 0 else min(next_due, 1000)
        return Reserved(told, first, next_due, lease_ms, left, held_back, bool(claims), isolated)

    def promote(self, now: int) -> tuple[int, bool]:
        """Expire and promote; return the ms until the next due message, and if any is ready."""
        next_due = self._expire_and_promote(now)
        left = not self.paused and bool(self.at(READY))
        self.notification |= left
        return next_due, left

    def _expire_and_promote(self, now: int) -> int:
        self._expire(now)
        for message in self.at(DELAYED):
            if message.due <= now:
                self._line_up(message)
        delayed = self.at(DELAYED)
        return delayed[0].due - now if delayed else -1

    def expire(self, now: int) -> bool:
        """Remove expired messages without a reserve; return whether more have expired."""
        self._expire(now)
        return False

    def survey(self, consumer: str, now: int) -> tuple[int, bool, bool] | None:
        """Return the ms until a pass (-1: not needed), whether any expired, and if job events wait.

        The ms are those left to another consumer's mutex, or 0.
        """
        expired = any(m.expires is not None and m.expires <= now for m in self.waiting)
        dead, cap, owed = self.at(DEAD), self.settings.dead_letter_max, bool(self.events)
        due = any(m.due <= now for m in self.at(DELAYED))
        unheard = not self.paused and not self.notification and (bool(self.at(READY)) or due)
        old = any(m.died <= now - self.settings.dead_letter_ttl_ms for m in dead)
        if not (self.at(UNACKED) or unheard or old or len(dead) > cap):
            named = expired or owed or not self.exists
            return (-1, expired, owed) if named else None
        holder, until = self.mutex or (consumer, 0)
        pass_ms = until - now if until > now and holder != consumer else 0
        return pass_ms, expired, owed

    def _expire(self, now: int) -> None:
        for message in list(self.messages.values()):
            waits = message.place in (READY, DELAYED)
            if waits and message.expires is not None and message.expires <= now:
                if self.arguments.dead_expired:
                    self._bury(message, "expired", "", "", now)
                else:
                    self._leave(message, "expired")
        self._keep_to_the_cap(bool(self.arguments.dead_expired))

    def _judge(
        self, consumer: str, n: int, occupancy: int, no_ack: bool, now: int
    ) -> tuple[list[Message], bool, bool, Message | None, bool]:
        """Return the messages for a consumer, whether some are held back, and if they are isolated.

        Return also the message that it claims, and whether it had claimed one before.
        """
        kept = self._forget_old_mark(consumer)
        claimed = self._claimed(now)
        own = claimed is not None and self.claim is not None and self.claim[1] == consumer
        own = own and occupancy > BUSY
        if self.paused or (kept and consumer in self.alone):
            return [], not self.paused, False, None, own
        if own and occupancy < ALONE:
            return [], False, False, claimed, True
        if not n:
            return [], False, False, None, own
        if claimed and own and not kept and not no_ack:
            taken, blocked, isolated, waits = [claimed], False, True, None
        else:
            taken, blocked, isolated, waits = self._choose(consumer, n, occupancy, no_ack)
        if isolated:
            self.marks[consumer] = taken[0].tag
            self.alone.add(consumer)
        if occupancy == BUSY or (claimed and occupancy == HOLDING):
            waits = None
        return taken, blocked, isolated, waits, own

    def _forget_old_mark(self, consumer: str) -> bool:
        """Return whether a consumer still holds its candidate; otherwise it may get another."""
        mark = self.messages.get(self.marks.get(consumer, ""))
        if mark is not None and mark.place == UNACKED and mark.consumer == consumer:
            return True
        self.marks.pop(consumer, None)
        self.alone.discard(consumer)
        return False

    def _claimed(self, now: int) -> Message | None:
        """Return the claimed message, unless the claim has ended or it is no longer ready."""
        message = self.messages.get(self.claim[0]) if self.claim else None
        if message is None or message.place != READY or not self.claim or self.claim[2] <= now:
            return None
        return message

    def _choose(
        self, consumer: str, n: int, occupancy: int, no_ack: bool
    ) -> tuple[list[Message], bool, bool, Message | None]:
        """Return the messages for a consumer, whether some are held back, and if they are isolated.

        A consumer holds at most one candidate. The last delivery of a message is isolated, and
        takes place only as the consumer's first. Return also the message to claim.
        """
        holds = consumer in self.marks
        line = self.at(READY)
        taken: list[Message] = []
        passed_over: list[Message] = []
        waits: Message | None = None
        for _ in range(4):  # the limit of further looks
            count = n - len(taken)
            asked, line = line[:count], line[count:]
            for message in asked:
                if self._is_last(message) and not no_ack:
                    if occupancy == ALONE and not holds and not taken:
                        return [message], False, True, None
                    waits = waits or message
                    passed_over.append(message)
                    continue
                if self._is_candidate(message) and holds:
                    passed_over.append(message)
                    continue
                if self._is_candidate(message):
                    holds = True
                    self.marks[consumer] = message.tag
                taken.append(message)
            if not passed_over:
                break
        return taken, bool(passed_over) and len(taken) < n, False, waits

    # -- settling

    def _happened(self, message: Message, what: str, reason: str = "", error: str = "") -> None:
        """Keep an event of a job for its batch; only the tags of jobs end with "j"."""
        if message.tag.endswith("j"):
            self.events.append((what, message.tag, reason, error))

    def _leave(self, message: Message, counter: str) -> None:
        if counter in {"expired", "purged"} and message.place != DEAD:
            self._happened(message, "gone", counter)
        del self.messages[message.tag]
        self.moving.pop(message.tag, None)
        self.ledger[counter] += 1

    def ack(self, tags: Iterable[str], limited: bool = False) -> int:
        """Remove messages in any place; with *limited*, others may wait for their slots."""
        found = [self.messages[tag] for tag in set(tags) if tag in self.messages]
        for message in found:
            self._leave(message, "acked")
        self.notification |= limited and self._waits
        return len(found)

    def hand_back(self, tags: Sequence[str]) -> int:
        """Return messages reserved with no_ack to their old places, as if never reserved."""
        back = [self.finished.pop(tag) for tag in tags if tag not in self.messages]
        for message in back:
            self.messages[message.tag] = message
            message.place = READY
        self.ledger["acked"] -= len(back)
        self.notification |= bool(back) and not self.paused
        return len(back)

    def release(
        self, how: How, leases: Sequence[Lease], now: int
    ) -> tuple[list[str], list[tuple[str, int]]]:
        """Return messages to their old place; return the refused leases and the dead letters."""
        refused, dead = [], []
        held = len(self.at(UNACKED))
        for lease in leases:
            message = self.held(lease)
            if message is None:
                refused.append(lease.tag)
                continue
            if how == "begun" or message.begun:
                self._leave(message, "acked")
                continue
            if how == "undelivered":
                self.starts.give_back(message.tag)
            if how == "nacked":
                message.failed = (message.failed or 0) + 1
                if self.limit and message.failed >= self.limit:
                    self._bury(message, "delivery_limit", "nacked", message.consumer, now)
                    dead.append((message.tag, message.failed))
                    continue
            elif how == "released":
                message.failed = message.failed or 0
            self.ledger[how] += 1
            self._go_back(message, now, failed=how == "nacked")
            self.notification = True
        self._keep_to_the_cap(bool(dead))
        self._slots_end(held - len(self.at(UNACKED)))
        return refused, dead

    def _go_back(self, message: Message, now: int, *, failed: bool) -> None:
        """Make a message ready in its old place, or delayed for its back-off."""
        least, most = self.settings.backoff_ms
        pause = min(least * 2 ** ((message.failed or 1) - 1), most) if failed else 0
        message.place = DELAYED if pause else READY
        message.due = now + pause

    def dead_letter(self, reason: str, error: str, leases: Sequence[Lease], now: int) -> list[str]:
        """Dead-letter messages."""
        refused, died = [], False
        for lease in leases:
            message = self.held(lease)
            if message is None:
                refused.append(lease.tag)
            else:
                self._bury(message, reason, error, message.consumer, now)
                died = True
        self._keep_to_the_cap(died)
        self._slots_end(died)
        return refused

    def _bury(self, message: Message, reason: str, error: str, blamed: str, now: int) -> None:
        self._happened(message, "dead", reason, error)
        message.place, message.died, message.expires = DEAD, now, None
        message.reason, message.error, message.blamed = reason, error, blamed
        self.ledger["dead_lettered"] += 1
        self.ledger[f"dead:{reason}"] += 1

    def _keep_to_the_cap(self, any_died: bool = True) -> None:
        dead = self.at(DEAD) if any_died else []
        for message in dead[: max(0, len(dead) - self.settings.dead_letter_max)]:
            self._leave(message, "dropped")

    def renew(
        self, lease_ms: int, leases: Sequence[Lease], now: int, begun: bool = False
    ) -> tuple[list[str], list[str], int]:
        """Renew leases; return the lost, those whose message is gone, and the length in ms.

        With *begun*, the tasks of the messages run, and the messages are acked.
        """
        extended_ms = self.arguments.lease or lease_ms
        for message in filter(None, map(self.held, leases)):
            message.begun |= begun
        lost = self._set_deadline(leases, now + extended_ms)
        return lost, [tag for tag in lost if tag not in self.messages], extended_ms

    def end_leases(self, leases: Sequence[Lease]) -> list[str]:
        """End leases now; return the refused."""
        return self._set_deadline(leases, 0)

    def _set_deadline(self, leases: Sequence[Lease], deadline: int) -> list[str]:
        """Set the deadline of valid leases; return the tags of the others."""
        lost = []
        for lease in leases:
            message = self.held(lease)
            if message is None:
                lost.append(lease.tag)
            else:
                message.deadline = deadline
        return lost

    def restore(self, consumer: str, force: bool, lease_ms: int, now: int) -> Pass:
        """Return the messages whose lease has ended, in one step of the pass."""
        if not force:
            if self.mutex and self.mutex[1] > now and self.mutex[0] != consumer:
                return Pass(False, self.mutex[1] - now, 0, [], [])
            self.mutex = (consumer, now + self.settings.restore_interval_ms)
        restored, dead = self._return_ended(force, lease_ms, now)
        self._keep_to_the_cap(bool(dead))
        for holder, tag in list(self.marks.items()):  # marks whose message is settled
            mark = self.messages.get(tag)
            if mark is None or mark.place != UNACKED or mark.consumer != holder:
                self.marks.pop(holder, None)
                self.alone.discard(holder)
        due = [m for m in self.at(DELAYED) if m.due <= now]
        self.notification |= bool(self.at(READY) or due) and not self.paused
        old = [m for m in self.at(DEAD) if m.died <= now - self.settings.dead_letter_ttl_ms]
        for message in old:
            self._leave(message, "dropped")
        if not old:
            self._keep_to_the_cap()
        return Pass(True, 0, len(self.at(UNACKED)), restored, dead)

    def _return_ended(
        self, force: bool, lease_ms: int, now: int
    ) -> tuple[list[Failure], list[Failure]]:
        """Return each message whose lease has ended, to the queue or to the dead letters."""
        restored: list[Failure] = []
        dead: list[Failure] = []
        until = self._ended_until(force, self.arguments.lease or lease_ms, now)
        ended = [m for m in self.at(UNACKED) if m.deadline <= until]
        for message in ended:
            if message.begun:
                self._leave(message, "acked")
                continue
            self.ledger["lapsed"] += 1
            failures = message.failed or 0
            judged = self.marks.get(message.consumer) == message.tag
            judged = judged and message.consumer in self.alone
            message.failed = failures + 1
            if self.limit and message.failed >= self.limit and not judged:
                message.failed = max(failures, self.limit - 1)  # it was not isolated
            failure = (message.tag, message.failed, message.consumer, message.envelope)
            if self.limit and message.failed >= self.limit and judged:
                self._bury(message, "delivery_limit", "lease ended", message.consumer, now)
                dead.append(failure)
            else:
                self._go_back(message, now, failed=message.failed > 0)
                self.ledger["restored"] += 1
                self.notification |= message.place == DELAYED
                restored.append(failure)
        self._slots_end(len(ended))
        return restored, dead

    def _ended_until(self, force: bool, lease_ms: int, now: int) -> int:
        """Return the latest deadline of ended leases, earlier after a long time without a pass."""
        if not self.exists:
            return now
        spared = self.spared
        if self.pass_due < now:
            spared = (self.passed, now + lease_ms // 2)
        if not force:
            interval_ms = self.settings.restore_interval_ms
            due_ms = min(interval_ms * 3 / 2 + lease_ms / 6, lease_ms * 2 / 3)
            self.passed, self.pass_due, self.spared = now, now + int(due_ms), spared
        return spared[0] if now < spared[1] else now

    # -- operators

    def pause(self, paused: bool) -> bool:
        """Pause or resume deliveries."""
        if self.exists:
            self.paused = paused
            self.notification |= not paused and bool(self.waiting)
        return self.exists

    def purge(self) -> int:
        """Remove the ready and delayed messages."""
        waiting = self.at(READY) + self.at(DELAYED)
        for message in waiting:
            self._leave(message, "purged")
        return len(waiting)

    # -- dead letters

    def _idle_dead(self, tags: Iterable[str]) -> list[Message]:
        """Return the dead letters among *tags* that are not being moved."""
        found = [self.messages[tag] for tag in tags if tag in self.messages]
        return [m for m in found if m.place == DEAD and m.tag not in self.moving]

    def replay(self, tags: Sequence[str]) -> list[str]:
        """Make dead letters ready again, as if they had never been delivered."""
        replayed = self._idle_dead(tags)
        for message in replayed:
            self._line_up(message)
            message.failed = None
            self._happened(message, "waits")
            self.ledger["replayed"] += 1
            self.notification = True
        return [m.tag for m in replayed]

    def purge_dead(self, tags: Sequence[str]) -> int:
        """Delete dead letters."""
        purged = self._idle_dead(tags)
        for message in purged:
            self._leave(message, "purged")
        return len(purged)

    def begin_move(
        self, target: str, tags: Sequence[str], told: Mapping[str, int]
    ) -> list[tuple[str, int, bytes]]:
        """Assign numbers for a move; a dead letter already moving to the target keeps its number.

        The broker chooses the numbers (*told*). Each is above all earlier ones, including those of
        a deleted queue of the same name.
        """
        for message in self._idle_dead(tags):
            self.last_move = max(self.last_move + 1, told.get(message.tag, 0))
            self.moving[message.tag] = (self.last_move, target)
        return [
            (tag, self.moving[tag][0], self.messages[tag].envelope)
            for tag in tags
            if tag in self.moving and self.moving[tag][1] == target
        ]

    def end_move(self, tags: Sequence[str]) -> int:
        """Remove dead letters that are now stored in another queue."""
        moved = [tag for tag in tags if tag in self.moving]
        for tag in moved:
            self._leave(self.messages[tag], "moved")
        return len(moved)
