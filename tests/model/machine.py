"""The state machine: steps in any order, by several consumers and publishers.

Each rule draws one step, and the oracle gives its expected result. Hypothesis shrinks a failing run
and prints it as a trace of steps with their answers.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import astuple, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any
from unittest import mock

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from reliq.errors import ReliqError
from reliq.values.values import ALONE, BUSY, HOLDING, IDLE, STALE, Lease, Publication
from tests.model.dead_letters import DeadLetters
from tests.model.oracle import QueueOracle
from tests.model.stepping import QUEUE, consumers, picked_of, picks
from tests.model.surroundings import Surroundings
from tests.model.terms import Arguments, Settings

if TYPE_CHECKING:
    from reliq.values.values import How
    from tests.model.brokers import Broker

EXCHANGE = "x"
RESTORE_LEASE_MS = 1000
PUBLISHERS = ("p", "r")
SETTINGS = tuple(
    Settings(
        limit,
        dead_letter_max=2,
        dead_letter_ttl_ms=5000,
        restore_interval_ms=30_000,
        backoff_ms=backoff_ms,
    )
    for limit in (2, 3, 2, None, 1, 4)
    for backoff_ms in ((0, 0), (0, 0), (100, 300))
)

leases_ms = st.sampled_from((200, 500, 60_000))
messages = st.lists(
    st.tuples(
        st.sampled_from((5, 5, 5, 0, 255)),  # rank
        st.sampled_from((0, 0, 0, 150, 400)),  # delay, ms
        st.sampled_from((-1, -1, -1, 0, 200, 700)),  # ttl, ms
    ),
    min_size=1,
    max_size=4,
)
arguments = st.builds(
    Arguments,
    message_ttl=st.sampled_from((None, None, None, 300)),
    lease=st.sampled_from((None, None, None, 250)),
    delivery_limit=st.sampled_from((None, None, None, 0, 2)),
    max_length=st.sampled_from((None, None, 3)),
    max_bytes=st.sampled_from((None, None, None, 50)),
    overflow=st.sampled_from(("drop-head", "reject-publish")),
    dead_expired=st.sampled_from((None, None, 1)),
)
concurrencies = st.sampled_from((None, None, 1, 2, 3))
rates = st.sampled_from((None, None, "10/s", "5/s burst 3", "3/s burst 2", "60/m", "100/s"))
limited = st.builds(
    Arguments,
    lease=st.sampled_from((None, None, None, 250)),
    delivery_limit=st.sampled_from((None, None, None, 0, 2)),
    concurrency=concurrencies,
    rate=rates,
)


class Model(DeadLetters, Surroundings):
    """The rules."""

    # -- the beginning

    @initialize(
        settings=st.sampled_from(SETTINGS),
        declared=st.booleans(),
        arguments=arguments,
        first=messages,
        n=st.integers(0, 4),
        lease_ms=leases_ms,
    )
    def begin(
        self,
        settings: Settings,
        declared: bool,
        arguments: Arguments,
        first: list[tuple[int, int, int]],
        n: int,
        lease_ms: int,
    ) -> None:
        """Declare a queue, or let the first publish create it; publish and reserve messages."""
        self.settings, self.oracle, self.other = (
            settings,
            QueueOracle(settings),
            QueueOracle(settings),
        )
        self.store().bind(EXCHANGE, True, [b"a binding"])
        version = self.store().bindings_version(EXCHANGE)
        assert version
        self.version = version
        note(f"{settings}")
        if declared:
            self.store().declare_queue(QUEUE, False, b"", arguments.meta())
            note(f"declared: {arguments}")
            self.oracle.declare(arguments)
        self.publish(first, "p", "", False, 0)
        self.reserve(1, n, lease_ms, False)

    # -- publishing

    @rule(
        new=messages,
        publisher=st.sampled_from((*PUBLISHERS, "")),
        exchange=st.sampled_from(("", EXCHANGE)),
        stale=st.sampled_from((False, False, False, True)),
        settled=st.integers(0, 2),
        create=st.sampled_from((True, True, False)),
    )
    def publish(
        self,
        new: list[tuple[int, int, int]],
        publisher: str,
        exchange: str,
        stale: bool,
        settled: int,
        create: bool = True,
    ) -> None:
        """Publish messages; the oldest `settled` numbers of the publisher are no longer retried."""
        retriable = self.retriable.setdefault(publisher, [])
        del retriable[:settled]
        version = b"" if not exchange else b"stale" if stale else self.version
        items = []
        for rank, delay_ms, ttl_ms in new:
            self.made += 1
            # Tags made in order do not sort in that order.
            tag = f"{rank:02x}.{self.made * 37 % 100:02d}.{self.made}"
            tag += "j" if self.made % 3 == 0 else ""  # a job of a batch
            body = f"message {self.made}".encode()
            number = self.made if publisher else 0
            low = retriable[0].number if retriable else number
            item = Publication(
                *(QUEUE, tag, body, rank, publisher, number, low, delay_ms, ttl_ms, exchange),
                *(version,),
                create=create,
            )
            items.append(item)
            self.tags.append(tag)
            if publisher:
                retriable.append(item)
        self._publish(items)

    @precondition(lambda self: any(self.retriable.values()))
    @rule(publisher=st.sampled_from(PUBLISHERS), picked=picks)
    def retry_publish(self, publisher: str, picked: list[int]) -> None:
        """Retry publishes that may have been stored."""
        items = picked_of(self.retriable.get(publisher, []), picked)
        if items:
            self._publish(items)

    def _publish(self, items: list[Publication]) -> None:
        about = [(i.tag, f"{i.publisher}{i.number}", i.delay_ms, i.ttl_ms) for i in items]
        self.step(
            f"publish {about}",
            lambda: self.store().publish(items),
            lambda now: [
                outcome
                for _, alike in groupby(items, key=lambda i: (i.exchange, i.version, i.create))
                for outcome in self._published(list(alike), now)
            ],
        )

    def _published(self, alike: list[Publication], now: int) -> list[int]:
        stale = bool(alike[0].exchange) and alike[0].version != self.version
        if not (stale and self.broker.routes_beside):
            return self.oracle.publish(alike, self.version, now)
        routed = [replace(item, version=self.version) for item in alike]
        self.oracle.publish(routed, self.version, now)
        return [STALE] * len(alike)

    # -- reserving

    @rule(
        number=consumers,
        n=st.integers(0, 5),
        lease_ms=leases_ms,
        no_ack=st.sampled_from((False,) * 6 + (True,)),
        occupancy=st.sampled_from((ALONE, ALONE, IDLE, HOLDING, HOLDING, BUSY)),
    )
    def reserve(
        self, number: int, n: int, lease_ms: int, no_ack: bool, occupancy: int = ALONE
    ) -> None:
        """Reserve up to n, with tokens above all earlier ones; n = 0 promotes."""
        if not n:
            self.promote(number)
            return
        store = self.store(number)
        if no_ack and self.oracle.arguments.limited:
            self.refuse(number, n, lease_ms)
            return
        next_due_ms: list[int] = []
        tokens = [0]
        answers: list[Any] = []

        def take() -> Any:
            got = store.reserve(QUEUE, n, lease_ms, no_ack, occupancy)
            tokens[:] = [int(d.token) for d in got.deliveries[:1]] or [0]
            next_due_ms.append(got.next_due_ms)
            if not no_ack:
                self.leases += [Lease(d.tag, d.token) for d in got.deliveries]
            else:
                self.finished |= {d.tag: d for d in got.deliveries}
            answers[:] = [[astuple(d)[:5] for d in got.deliveries], got[2:]]
            return tuple(answers)

        def expect(now: int) -> Any:
            """Return the answer, for any number of messages that the limits may permit."""
            least, most = (min(permitted, n + 1) for permitted in self.oracle.free(now))
            before = self.oracle
            for room in range(most, least - 1, -1):
                self.oracle = copy.deepcopy(before) if least < most else before
                next_due_ms[1:], want = expected(now, room)
                if list(want) == answers and next_due_ms[0] == next_due_ms[1]:
                    break
            return want

        def expected(now: int, room: int) -> tuple[list[int], Any]:
            want = self.oracle.reserve(
                store.consumer,
                *(n, lease_ms, no_ack, occupancy, tokens[0], now),
                room=room,
                told_due=next_due_ms[0],
            )
            taken = [
                (QUEUE, tag, str(want.first_token + i), failed, envelope)
                for i, (tag, failed, envelope) in enumerate(want.taken)
            ]
            return [want.next_due_ms], (taken, (*want[3:], self.oracle.arguments.limited))

        kind = f"{n} for {lease_ms} ms{', no_ack' if no_ack else ''}, occupancy {occupancy}"
        self.step(f"{store.consumer} reserves {kind}", take, expect)
        is_ms, wanted_ms = next_due_ms
        assert wanted_ms == is_ms, f"{wanted_ms=}, {is_ms=}"

    def refuse(self, number: int, n: int, lease_ms: int) -> None:
        """Reserve with no_ack from a queue with limits, which refuses and gives nothing."""

        def take() -> str:
            try:
                self.store(number).reserve(QUEUE, n, lease_ms, True, ALONE)
            except ReliqError as exc:
                return str(exc)
            return "not refused"

        said = self.step("reserve with no_ack", take, lambda _: mock.ANY)
        assert QUEUE in said, said
        assert "x-concurrency" in said, said

    def promote(self, number: int) -> None:
        """Promote due messages, for other consumers."""
        store = self.store(number)
        self.step(
            f"{store.consumer} promotes",
            lambda: tuple(self.posted(store, lambda on: store.post_promote(QUEUE, on))),
            self.oracle.promote,
        )

    @precondition(lambda self: self.oracle.finished)
    @rule(number=consumers, picked=picks)
    def hand_back(self, number: int, picked: list[int]) -> None:
        """Hand back messages reserved with no_ack, which return to their old places."""
        tags = picked_of(list(self.oracle.finished), picked)
        taken = [self.finished[tag] for tag in tags]
        self.step(
            f"hand back {tags}",
            lambda: self.store(number).hand_back(QUEUE, taken),
            lambda _: self.oracle.hand_back(tags),
        )

    @rule(number=consumers, lease_ms=leases_ms)
    def reserve_all(self, number: int, lease_ms: int) -> None:
        """Reserve all ready messages, which shows a message in a wrong place."""
        self.reserve(number, 20, lease_ms, False)

    # -- limits

    @rule(concurrency=concurrencies, rate=rates)
    def configure(self, concurrency: int | None, rate: str | None) -> None:
        """Change the limits of the queue."""
        wanted = Arguments(concurrency=concurrency, rate=rate)
        changes = {"concurrency": None, "rate": None, **wanted.meta()}

        def change() -> bool:
            return self.store().configure(QUEUE, changes) is not None

        self.step(
            f"limits: {concurrency}, {rate}",
            change,
            lambda now: self.oracle.configure(concurrency, rate, now),
        )

    # -- settling

    @rule(number=consumers, picked=picks)
    def ack(self, number: int, picked: list[int]) -> None:
        """Ack messages in any state: held, returned, dead or gone."""
        self.ack_some(number, picked_of(self.tags, picked))

    @precondition(lambda self: self.oracle.at("unacked"))
    @rule(number=consumers, picked=picks)
    def ack_held(self, number: int, picked: list[int]) -> None:
        """Ack held messages only, preferably failed ones: the script takes a shorter way."""
        held = sorted(self.oracle.at("unacked"), key=lambda message: message.failed or 0)
        self.ack_some(number, picked_of([message.tag for message in held], picked))

    def ack_some(self, number: int, tags: list[str]) -> None:
        """Ack *tags*."""
        store = self.store(number)
        limited = self.oracle.arguments.limited
        sent = [*tags, ""] if limited else tags
        self.step(
            f"ack {tags}",
            lambda: self.posted(store, lambda on: store.post_ack(QUEUE, sent, on)),
            lambda _: self.oracle.ack(tags, limited),
        )

    @precondition(lambda self: self.leases)
    @rule(
        number=consumers,
        how=st.sampled_from(("nacked", "nacked", "released", "undelivered", "begun")),
        picked=picks,
    )
    def release(self, number: int, how: How, picked: list[int]) -> None:
        """Return messages, with leases of any age."""
        leases = picked_of(self.leases, picked)

        def give() -> Any:
            released = self.store(number).release(QUEUE, how, leases)
            return released.refused, [(item.tag, item.failed) for item in released.dead]

        self.step(
            f"release as {how} {_short(leases)}",
            give,
            lambda now: self.oracle.release(how, leases, now),
        )

    @precondition(lambda self: self.leases)
    @rule(number=consumers, picked=picks)
    def dead_letter(self, number: int, picked: list[int]) -> None:
        """Dead-letter messages, with leases of any age."""
        leases = picked_of(self.leases, picked)
        self.step(
            f"dead-letter {_short(leases)}",
            lambda: self.store(number).dead_letter(QUEUE, "rejected", "why", leases),
            lambda now: self.oracle.dead_letter("rejected", "why", leases, now),
        )

    @precondition(lambda self: self.leases)
    @rule(number=consumers, lease_ms=st.sampled_from((0, 0, 200, 60_000)), picked=picks)
    def renew(self, number: int, lease_ms: int, picked: list[int]) -> None:
        """Renew leases of any age, or end them."""
        store, leases = self.store(number), picked_of(self.leases, picked)
        if not lease_ms:
            self.end_leases(number, leases)
            return
        self.step(
            f"renew for {lease_ms} ms {_short(leases)}",
            lambda: self.posted(store, lambda on: store.post_renew(QUEUE, lease_ms, leases, on)),
            lambda now: self.oracle.renew(lease_ms, leases, now),
        )

    @precondition(lambda self: self.leases and self.oracle.arguments.limited)
    @rule(number=consumers, lease_ms=leases_ms, picked=picks)
    def begin_task(self, number: int, lease_ms: int, picked: list[int]) -> None:
        """Renew leases of any age with the mark of an early ack: the tasks run."""
        store, leases = self.store(number), picked_of(self.leases, picked)
        tags = {lease.tag for lease in leases}

        def post(on: Any) -> None:
            store.post_renew(QUEUE, lease_ms, leases, on, begun=tags)

        self.step(
            f"begin {_short(leases)} for {lease_ms} ms",
            lambda: self.posted(store, post),
            lambda now: self.oracle.renew(lease_ms, leases, now, begun=True),
        )

    def end_leases(self, number: int, leases: list[Lease]) -> None:
        """End leases."""
        store = self.store(number)
        self.step(
            f"end {_short(leases)}",
            lambda: self.posted(store, lambda on: store.post_end_leases(QUEUE, leases, on)),
            lambda _: self.oracle.end_leases(leases),
        )

    @precondition(lambda self: self._overtaken())
    @rule(number=consumers, picked=picks)
    def act_late(self, number: int, picked: list[int]) -> None:
        """Settle and renew with outdated leases of messages held by others; the broker refuses."""
        late = picked_of(self._overtaken(), picked)
        places = [len(self.leases) - 1 - self.leases.index(lease) for lease in late]
        self.release(number, "nacked", places)
        self.dead_letter(number, places)
        self.renew(number, 200, places)

    def _overtaken(self) -> list[Lease]:
        """Return the leases of messages that are held under another lease."""
        held = {m.tag: m.lease for m in self.oracle.at("unacked")}
        return [lease for lease in self.leases if held.get(lease.tag, lease) != lease]

    @rule(number=consumers, force=st.booleans())
    def restore(self, number: int, force: bool) -> None:
        """Make one step of the pass, which returns messages whose lease has ended."""
        store = self.store(number)
        retry_ms: list[int] = []

        def make() -> Any:
            got = self.posted(
                store, lambda on: store.post_restore(QUEUE, RESTORE_LEASE_MS, on, force, True)
            )
            retry_ms.append(got.retry_ms)
            ended = Counter(item.consumer for item in (*got.restored, *got.dead))
            assert ended == got.by_consumer
            return got.granted, got.more, got.unacked, got.restored, got.dead

        def expect(now: int) -> Any:
            want = self.oracle.restore(store.consumer, force, RESTORE_LEASE_MS, now)
            retry_ms.append(want.retry_ms)
            return want.granted, False, want.unacked, want.restored, want.dead

        self.step(f"{store.consumer} {'hurries to restore' if force else 'restores'}", make, expect)
        is_ms, wanted_ms = retry_ms
        assert abs(wanted_ms - is_ms) <= self.clock.lapses_within_ms, f"{wanted_ms=}, {is_ms=}"
        if self.oracle.spared[1] > self.clock.now and not force:
            self.restore(number, True)  # the next step spares the same leases

    @rule(number=consumers, other=consumers, greedy=st.booleans())
    def kill(self, number: int, other: int, greedy: bool) -> None:
        """End a dead consumer's leases and return its messages; a new consumer takes its place.

        A greedy consumer reserved all messages before, so that failures add up.
        """
        if greedy:
            self.reserve_all(number, 60_000)
        victim = self.names[number]
        held = [m.lease for m in self.oracle.at("unacked") if m.consumer == victim]
        assert sorted(held) == self.store(other).leases_of(QUEUE, victim)
        note(f"{victim} is killed")
        if held:
            self.end_leases(other, held)
        self.restore(other, True)
        self.rename(number)


def _short(leases: list[Lease]) -> list[str]:
    return [f"{lease.tag}#{lease.token}" for lease in leases]


class LimitedModel(Model):
    """The rules, in a queue that has limits from its declaration on."""

    @initialize(
        settings=st.sampled_from(SETTINGS),
        arguments=limited,
        first=messages,
        n=st.integers(0, 4),
        lease_ms=leases_ms,
    )
    def begin(  # type: ignore[override]
        self,
        settings: Settings,
        arguments: Arguments,
        first: list[tuple[int, int, int]],
        n: int,
        lease_ms: int,
    ) -> None:
        """Declare the queue; publish and reserve messages."""
        super().begin(settings, True, arguments, first, n, lease_ms)


def machine_for(running: Broker) -> type[Model]:
    """Return the state machine that drives this broker."""
    return type("Model", (Model,), {"broker": running})


def limited_machine_for(running: Broker) -> type[Model]:
    """Return the state machine of queues with limits that drives this broker."""
    return type("LimitedModel", (LimitedModel,), {"broker": running})
