"""The state machine: any order of steps, by several consumers, each compared with the oracle.

Each rule draws a step, lets the oracle say what must come of it, takes it on the broker,
and compares the answer and all that is stored. A failing run is shrunk by Hypothesis and
printed as a trace of steps with their answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from reliq.errors import ReliqError
from reliq.store import Lease, Publication
from tests.model.oracle import QueueOracle, Settings
from tests.model.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from reliq.store import How, Store
    from tests.model.brokers import Broker

QUEUES = ("made", "declared")
"""One that a publish creates, and one that is declared, with arguments."""
CONSUMERS = (1, 2, 3)
EXCHANGE = "x"
RESTORE_LEASE_MS = 1000
PUBLISHERS = ("p", "r")

LIMITS = (None, 1, 2, 3, 4)
SETTINGS = tuple(
    Settings(limit, dead_letter_max=4, dead_letter_ttl_ms=5000, restore_interval_ms=777)
    for limit in LIMITS
)

queues = st.sampled_from(QUEUES)
consumers = st.sampled_from(CONSUMERS)
leases_ms = st.sampled_from((200, 500, 60_000))
# Which of what is known, the newest first.
picks = st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True)
messages = st.lists(
    st.tuples(
        st.sampled_from((0, 5, 255)),  # rank
        st.sampled_from((0, 0, 0, 150, 400)),  # delay, ms
        st.sampled_from((-1, -1, -1, 0, 200, 700)),  # ttl, ms
    ),
    min_size=1,
    max_size=4,
)


class Model(RuleBasedStateMachine):
    """Drives one broker; make a subclass with `broker` set (see `machine_for`)."""

    broker: ClassVar[Broker]

    def __init__(self) -> None:
        super().__init__()
        self.broker.clear()
        self.clock = self.broker.clock
        self.oracles: dict[str, QueueOracle] = {}
        self.names: dict[int, str] = {}
        self.leases: dict[str, list[Lease]] = {queue: [] for queue in QUEUES}
        """Every lease that was ever given out, oldest first."""
        self.tags: dict[str, list[str]] = {queue: [] for queue in QUEUES}
        self.retriable: dict[tuple[str, str], list[Publication]] = {}
        self.made = 0
        self.generation = 0

    # -- the beginning

    @initialize(
        settings=st.sampled_from(SETTINGS),
        message_ttl=st.sampled_from((None, None, 300)),
        lease=st.sampled_from((None, None, 250)),
    )
    def begin(self, settings: Settings, message_ttl: int | None, lease: int | None) -> None:
        """Declare what there is."""
        self.settings = settings
        for number in CONSUMERS:
            self._name(number)
        self.oracles = {queue: QueueOracle(settings) for queue in QUEUES}
        declared = self.oracles["declared"]
        declared.exists, declared.message_ttl, declared.lease = True, message_ttl, lease
        meta = {"message_ttl": message_ttl, "lease": lease}
        given = {name: str(value) for name, value in meta.items() if value is not None}
        self._store(1).declare_queue("declared", False, b"", given)
        self._store(1).bind(EXCHANGE, True, [b"a binding"])
        version = self._store(1).bindings_version(EXCHANGE)
        assert version
        self.version = version
        note(f"{settings}, declared with {given}")

    # -- publishing

    @rule(
        queue=queues,
        new=messages,
        publisher=st.sampled_from((*PUBLISHERS, "")),
        exchange=st.sampled_from(("", EXCHANGE)),
        stale=st.sampled_from((False, False, False, True)),
        settled=st.integers(0, 2),
    )
    def publish(
        self,
        queue: str,
        new: list[tuple[int, int, int]],
        publisher: str,
        exchange: str,
        stale: bool,
        settled: int,
    ) -> None:
        """Publish some messages; the oldest `settled` numbers will not be retried any more."""
        retriable = self.retriable.setdefault((queue, publisher), [])
        del retriable[:settled]
        items = []
        for rank, delay_ms, ttl_ms in new:
            self.made += 1
            # Tags of one ms sort in any order.
            tag = f"{rank:02x}.{self.made * 37 % 100:02d}.{self.made}"
            version = b"" if not exchange else b"stale" if stale else self.version
            number = self.made if publisher else 0
            low = (retriable[0].number if retriable else number) if publisher else 0
            items.append(
                Publication(
                    queue,
                    tag,
                    f"message {self.made}".encode(),
                    rank,
                    publisher,
                    number,
                    low,
                    delay_ms,
                    ttl_ms,
                    exchange,
                    version,
                )
            )
            if publisher:
                retriable.append(items[-1])
            self.tags[queue].append(tag)
        self._publish(queue, items)

    @rule(queue=queues, publisher=st.sampled_from(PUBLISHERS), picked=picks)
    def retry_publish(self, queue: str, publisher: str, picked: list[int]) -> None:
        """Publish again what may have been stored."""
        items = _picked(self.retriable.get((queue, publisher), []), picked)
        if items:
            self._publish(queue, items)

    def _publish(self, queue: str, items: list[Publication]) -> None:
        oracle = self.oracles[queue]
        self._step(
            f"publish to {queue}: {[(i.tag, i.number, i.delay_ms, i.ttl_ms) for i in items]}",
            queue,
            lambda: self._store(1).publish(items),
            lambda now: [oracle.publish(item, self.version, now) for item in items],
        )

    # -- taking

    @rule(
        queue=queues,
        number=consumers,
        n=st.integers(0, 5),
        lease_ms=leases_ms,
        no_ack=st.sampled_from((False, False, False, False, True)),
    )
    def reserve(self, queue: str, number: int, n: int, lease_ms: int, no_ack: bool) -> None:
        """Take up to n; the tokens are above all that were given before."""
        store, oracle = self._store(number), self.oracles[queue]
        slack = self.clock.margin_ms

        def expect(now: int) -> Any:
            self.expected = oracle.reserve(store.consumer, n, lease_ms, no_ack, now)
            counts = [-1 if m.failed is None else m.failed for m in self.expected.messages]
            taken = [
                (queue, m.tag, str(self.expected.first_token + i), failed, m.envelope)
                for i, (m, failed) in enumerate(zip(self.expected.messages, counts, strict=True))
            ]
            return taken, self.expected.lease_ms, self.expected.left

        def take() -> Any:
            got = store.reserve(queue, n, lease_ms, no_ack)
            self.next_due_ms = got.next_due_ms
            if not no_ack:
                self.leases[queue] += [Lease(d.tag, d.token) for d in got.deliveries]
            return [tuple(d) for d in got.deliveries], got.lease_ms, got.left

        kind = f"{n} for {lease_ms} ms{', no_ack' if no_ack else ''}"
        self._step(f"{store.consumer} reserves {kind} of {queue}", queue, take, expect)
        early = self.expected.next_due_ms - self.next_due_ms
        assert 0 <= early <= slack, (self.expected, self.next_due_ms)

    # -- what becomes of it

    @rule(queue=queues, number=consumers, picked=picks)
    def ack(self, queue: str, number: int, picked: list[int]) -> None:
        """Ack messages in whatever state they are: held, returned, dead, gone."""
        tags = _picked(self.tags[queue], picked)
        if tags:
            self._step(
                f"ack {tags}",
                queue,
                lambda: sum(self._posted(lambda on: self._store(number).post_ack(queue, tags, on))),
                lambda _: self.oracles[queue].ack(tags),
            )

    @rule(
        queue=queues,
        number=consumers,
        how=st.sampled_from(("buffered", "returned", "requeued", "requeued")),
        picked=picks,
    )
    def release(self, queue: str, number: int, how: How, picked: list[int]) -> None:
        """Give back what is held, with leases of any age."""
        leases = _picked(self.leases[queue], picked)
        if leases:
            self._step(
                f"release as {how} {leases}",
                queue,
                lambda: self._store(number).release(queue, how, leases),
                lambda now: self.oracles[queue].release(how, leases, now),
            )

    @rule(queue=queues, number=consumers, picked=picks)
    def dead_letter(self, queue: str, number: int, picked: list[int]) -> None:
        """Give up on what is held, with leases of any age."""
        leases = _picked(self.leases[queue], picked)
        if leases:
            self._step(
                f"dead-letter {leases}",
                queue,
                lambda: self._store(number).dead_letter(queue, "rejected", "why", leases),
                lambda now: self.oracles[queue].dead_letter("rejected", "why", leases, now),
            )

    @rule(queue=queues, number=consumers, lease_ms=st.one_of(leases_ms, st.just(0)), picked=picks)
    def renew(self, queue: str, number: int, lease_ms: int, picked: list[int]) -> None:
        """Extend leases of any age, or end them."""
        leases = _picked(self.leases[queue], picked)
        if leases:
            self._step(
                f"renew for {lease_ms} ms {leases}",
                queue,
                lambda: self._renew(self._store(number), queue, lease_ms, leases),
                lambda now: self.oracles[queue].renew(lease_ms, leases, now),
            )

    @rule(queue=queues, number=consumers, hurry=st.booleans())
    def restore(self, queue: str, number: int, hurry: bool) -> None:
        """Make a step of the pass that returns what has lost its lease."""
        store = self._store(number)

        def make() -> Any:
            (got,) = self._posted(
                lambda on: store.post_restore(queue, RESTORE_LEASE_MS, on, hurry)
            )
            self.retry_ms = got.retry_ms
            assert not got.more
            return got.granted, got.unacked, got.dead, got.by_consumer

        def expect(now: int) -> Any:
            self.expected_pass = oracle_pass = self.oracles[queue].restore(
                store.consumer, hurry, now
            )
            return oracle_pass.granted, oracle_pass.unacked, oracle_pass.dead, (
                oracle_pass.by_consumer
            )

        how = "hurries to restore" if hurry else "restores"
        self._step(f"{store.consumer} {how} {queue}", queue, make, expect)
        early = self.expected_pass.retry_ms - self.retry_ms
        assert abs(early) <= self.clock.margin_ms + 1, (self.expected_pass, self.retry_ms)

    @rule(number=consumers, other=consumers)
    def kill(self, number: int, other: int) -> None:
        """A consumer is gone: its leases are ended and its messages returned; a new one comes."""
        victim, keeper = self.names[number], self._store(other)
        for queue in QUEUES:
            held = [
                Lease(m.tag, str(m.token))
                for m in self.oracles[queue].at("unacked")
                if m.consumer == victim
            ]
            assert sorted(held) == keeper.leases_of(queue, victim)
            if held:
                self._step(
                    f"{victim} is gone: {held}",
                    queue,
                    lambda: self._renew(keeper, queue, 0, held),  # noqa: B023 - called now.
                    lambda now: self.oracles[queue].renew(0, held, now),  # noqa: B023
                )
            self.restore(queue, other, True)
        self._name(number)

    # -- operators

    @rule(queue=queues)
    def purge(self, queue: str) -> None:
        """Remove what waits."""
        purge = self._store(1).purge
        self._step(f"purge {queue}", queue, lambda: purge(queue), self._of(queue, "purge"))

    @rule(queue=queues, paused=st.booleans())
    def pause(self, queue: str, paused: bool) -> None:
        """Keep a queue from giving anything out, or let it."""
        if self.oracles[queue].exists:
            self.oracles[queue].paused = paused
            verb = "pause" if paused else "resume"
            self._step(
                f"{verb} {queue}",
                queue,
                lambda: self.broker.engine.pause(queue, paused),
                lambda _: None,
            )

    @precondition(lambda self: self.made > 8)
    @rule(queue=st.just("made"))
    def delete(self, queue: str) -> None:
        """Delete a queue with all that is in it."""
        delete = self._store(1).delete_queue
        self._step(f"delete {queue}", queue, lambda: delete(queue), self._of(queue, "delete"))
        self.tags[queue].clear()

    @rule(queue=queues)
    def hear(self, queue: str) -> None:
        """A waiting consumer takes the token of the bell."""

        def expect(_: int) -> bool:
            rang, self.oracles[queue].bell = self.oracles[queue].bell, False
            return rang

        self._step(f"bell of {queue}", queue, lambda: self.broker.take_bell(queue), expect)

    # -- time

    @rule(ms=st.sampled_from((1, 40, 300, 1000)))
    def wait(self, ms: int) -> None:
        """Let time pass."""
        self._advance(ms)

    @rule(beyond=st.sampled_from((-1, 0, 1)))
    def wait_for_something(self, beyond: int) -> None:
        """Let time pass until something is due, expires, or has lost its lease, to the ms."""
        now = self.clock.now()
        moments = {m for oracle in self.oracles.values() for m in oracle.boundaries() if m > now}
        if moments and min(moments) + beyond > now and min(moments) - now < 6000:
            self._advance(min(moments) + beyond - now)

    def _advance(self, ms: int) -> None:
        self.clock.advance(ms)
        note(f"+ {ms} ms")

    def _steady(self) -> None:
        """See that nothing changes by itself while a step is on its way."""
        margin = self.clock.margin_ms
        while True:
            now = self.clock.now()
            moments = {until for o in self.oracles.values() for _, until in [o.mutex or ("", 0)]}
            # A key's own expiry is not to the ms, a script's deadline is.
            near = [m for m in moments if now - 2 <= m <= now + margin + 2]
            if margin:
                every = {m for o in self.oracles.values() for m in o.boundaries()}
                near += [m for m in every if now <= m <= now + margin]
            if not near:
                return
            self.clock.advance(max(near) + 3 - now)

    # -- one step

    def _step(
        self,
        what: str,
        queue: str,
        act: Callable[[], Any],
        expect: Callable[[int], Any],
    ) -> None:
        self._steady()
        before = self.clock.now()
        answer = act()
        note(f"{what} -> {answer}")
        slack = self.clock.now() - before
        assert slack <= self.clock.margin_ms, "the machine was too slow for its margin"
        expected = expect(before)
        assert expected == answer, f"{what}: expected {expected}, got {answer}"
        self._compare(queue, before, slack, what)

    def _compare(self, queue: str, now: int, slack: int, what: str) -> None:
        oracle = self.oracles[queue]
        found = self.broker.snapshot(queue)
        found.check()
        differences = found.differences(Snapshot.expected(oracle, now), slack)
        assert not differences, f"after {what}: " + "; ".join(differences)
        if slack:
            found.adopt(oracle)
        status = self._store(1).status(queue)
        assert (status is not None) == oracle.exists
        if status is not None:
            places = ("ready", "delayed", "unacked", "dead")
            assert [len(oracle.at(place)) for place in places] == [
                getattr(status, place) for place in places
            ]
            assert len(oracle.messages) == status.stored

    # -- consumers

    def _name(self, number: int) -> None:
        self.generation += 1
        self.names[number] = f"c{self.generation}/{number}"

    def _store(self, number: int) -> Store:
        return self.broker.store(self.settings, number, self.names[number])

    def _of(self, queue: str, method: str) -> Callable[[int], Any]:
        return lambda _: getattr(self.oracles[queue], method)()

    def _posted(self, post: Callable[[Callable[[Any], None]], None]) -> list[Any]:
        """Return the results of a posted step."""
        results: list[Any] = []
        post(results.append)
        self._store(1).settle()
        for number in CONSUMERS:
            self._store(number).settle()
        for result in results:
            if isinstance(result, ReliqError):
                raise result
        return results

    def _renew(self, store: Store, queue: str, lease_ms: int, leases: list[Lease]) -> list[str]:
        post = store.post_renew
        (lost,) = self._posted(lambda on: post(queue, lease_ms, leases, on))
        return lost


def _picked(known: list[Any], picked: list[int]) -> list[Any]:
    """Return those of what is known, by how new they are."""
    return [known[-1 - pick] for pick in picked if pick < len(known)]


def machine_for(running: Broker) -> type[Model]:
    """Return the state machine that drives this broker."""
    return type("Model", (Model,), {"broker": running})
