"""A consumer is dead after one continuous absence, not after two separate observations.

A broker outage never counts as silence of a consumer: the observer with the new connection may be
the first client to return.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest

from reliq.client.stream import Stream
from reliq.consumer.dead_consumers import DeadConsumers
from reliq.consumer.runner import Runner
from reliq.errors import BrokerUnavailable
from reliq.options import parse
from reliq.store.store import RedisStore
from reliq.store.urls import address
from tests.chaos.model import Limits
from tests.contract.steps import Steps, message
from tests.support.waiting import wait_until

GRACE_S = 0.8  # a check ends sooner, on a busy machine too
LAPSED_MS = 50


@pytest.fixture
def open_store(fresh_redis):
    """Return a function that opens a store as the given consumer, wrapped in Steps."""
    opened = []
    touched = set()

    def connect(consumer):
        store = RedisStore(address(fresh_redis.url()), parse({}), consumer)
        store.connect()
        opened.append(store)
        return Steps(store, touched)

    yield connect
    for store in opened:
        store.close()


class Looker:
    """A consumer that checks the others; each check returns the number of unacked messages."""

    def __init__(self, steps):
        self.steps = steps
        runner = Runner()
        self.later = runner.due
        self.orphans = DeadConsumers(
            _name="looker",
            _options=SimpleNamespace(orphan_grace=GRACE_S, restore_interval=5),
            _consumes=lambda queue: queue == "q",
            _restore=lambda store, queue: steps.restore(force=True),
            _is_of_this_process=lambda name: False,
            _runner=runner,
        )

    def look(self):
        """Check the other consumers of the queue."""
        self.orphans.check_first("q", self.steps.store)
        return self.finish()

    def finish(self):
        """Run the duties that a check has deferred."""
        while self.later:
            self.later.popleft()(self.steps.store)
        return self.unacked()

    def look_after_all(self):
        """Check the consumers of the register."""
        self.orphans.check_gone(["s"], self.steps.store)
        return self.finish()

    def clear(self):
        """Check the queue before its use."""
        self.orphans.clear("q", self.steps.store)
        return self.unacked()

    def unacked(self):
        """Return the number of unacked messages."""
        return self.steps.places().get("unacked", 0) if self.steps.store.reads.status("q") else 0

    def connect_again(self, server):
        """Lose every connection, as in an outage, and open a new one."""
        with server.client() as client:
            for known in client.client_list():
                if "looker" in known["name"]:
                    client.client_kill_filter(_id=known["id"])
        with suppress(BrokerUnavailable):
            self.steps.store.now_ms()
        self.steps.store.connect()


@pytest.fixture
def looker(open_store):
    """Return a second consumer, connected for longer than the grace."""
    steps = open_store("looker/1")
    time.sleep(GRACE_S)
    return Looker(steps)


@pytest.fixture
def holder(open_store):
    """Return a consumer that holds a message."""
    steps = open_store("s/1")
    steps.publish(message())
    steps.store.attach("q", "s", 1)
    live(steps)
    steps.take()
    return steps


def live(steps, ttl_ms=60_000, queues="q"):
    """Send the consumer's heartbeat over its current connection."""
    client_id, run_id = steps.store.server()
    record = {"client_id": client_id, "run_id": run_id, "queues": queues, "host": "h", "pid": "1"}
    steps.heartbeat("s", ttl_ms, **record)


def test_two_moments_are_no_absence(open_store, looker, holder):
    """A consumer keeps its leases if it returned between two checks that found no connection."""
    holder.store.close()
    looker.look()
    again = open_store("s/2")
    live(again)
    time.sleep(GRACE_S + 0.1)
    again.store.close()
    assert 1 == looker.look()  # further ones may begin after the grace


def test_an_absence_is_one(looker, holder):
    """The message of a consumer that stays disconnected for the grace returns."""
    holder.store.close()
    assert 1 == looker.look()
    time.sleep(GRACE_S + 0.1)
    assert 0 == looker.look()


def test_its_other_queues_end_too(looker, holder):
    """A consumer of one of its queues also ends a dead consumer's mailbox."""
    holder.declare("mailbox", auto_delete="1")
    holder.store.attach("mailbox", "s", 1)
    live(holder, queues="q\nmailbox")
    holder.store.close()
    looker.look()
    assert looker.steps.store.reads.status("mailbox") is not None
    time.sleep(GRACE_S + 0.1)
    looker.look()
    assert looker.steps.store.reads.status("mailbox") is None
    assert {"s": None} == looker.steps.store.liveness(["s"])


@pytest.mark.parametrize("look", [Looker.look, Looker.look_after_all])
def test_an_outage_is_nobodys_absence(fresh_redis, looker, holder, look):
    """A consumer that left just before an outage has its full grace after the outage."""
    holder.store.close()
    assert 1 == look(looker)
    time.sleep(GRACE_S + 0.1)
    looker.connect_again(fresh_redis)
    assert 1 == look(looker)
    time.sleep(GRACE_S + 0.1)
    assert 0 == look(looker)


def test_silence_through_an_outage_is_no_death(looker, holder):
    """A consumer without heartbeats keeps its leases for the grace after the first check."""
    live(holder, LAPSED_MS)
    holder.store.close()
    time.sleep(LAPSED_MS / 1000 + 0.05)
    assert 1 == looker.look_after_all()
    time.sleep(GRACE_S + 0.1)
    assert 0 == looker.look_after_all()


def test_a_temporary_queue_outlives_an_outage(open_store, fresh_redis, looker):
    """After an outage, a silent consumer keeps its temporary queue for the grace."""
    steps = open_store("s/1")
    steps.declare(auto_delete="1")
    steps.publish(message())
    steps.store.attach("q", "s", 1)
    live(steps, LAPSED_MS)
    steps.take()
    steps.store.close()
    time.sleep(LAPSED_MS / 2000 + GRACE_S + 0.1)
    looker.connect_again(fresh_redis)
    assert 1 == looker.clear()
    time.sleep(GRACE_S)
    looker.clear()
    assert None is looker.steps.store.reads.status("q")


@pytest.mark.slow
@pytest.mark.parametrize("look", [Looker.look, Looker.look_after_all])
def test_silence_through_an_outage_ends_no_queue(open_store, fresh_redis, looker, look):
    """After an outage a consumer has a heartbeat's lifetime to return before its queue ends."""
    ttl_ms = 2000  # a check takes far less
    steps = open_store("s/1")
    steps.declare(auto_delete="1")
    steps.store.attach("q", "s", 1)
    live(steps, ttl_ms)
    wait_until(lambda: steps.store.liveness(["s"])["s"].lapsed, interval_s=0.01)
    looker.connect_again(fresh_redis)
    look(looker)
    assert ["s"] == list(steps.store.attached("q").marks)
    time.sleep(ttl_ms / 1000)
    look(looker)
    assert None is steps.store.reads.status("q")


def test_a_visit_ends_who_was_gone_at_the_one_before(looker, holder):
    """A consumer that was already gone at the visit before loses its leases at the next one.

    At a broker that is only visited, an outage may have lasted until the first visit.
    """
    live(holder, LAPSED_MS)
    holder.store.close()
    time.sleep(LAPSED_MS / 1000 + 0.05)
    gone = {}
    looker.orphans.end_dead(["s"], gone, looker.steps.store)
    assert 1 == looker.unacked()
    looker.orphans.end_dead(["s"], gone, looker.steps.store)
    looker.finish()
    assert [] == looker.steps.store.leases_of("q", "s/")


def counted_waits(monkeypatch):
    """Return a list that grows with each wait for replies."""
    waits = []
    replies = Stream.replies

    def counted(stream, *arguments, **more):
        waits.append(stream)
        return replies(stream, *arguments, **more)

    monkeypatch.setattr(Stream, "replies", counted)
    return waits


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("look", ["check_first", "check_gone"])
def test_many_dead_are_many_duties(open_store, looker, monkeypatch, look, silent):
    """Many dead consumers make many duties, none of which waits for more than a few replies.

    An event loop turns between the duties.
    """
    steps = open_store("s/1")
    names = [f"dead-{number}" for number in range(20)]
    queues = ["q", "other", "third"]
    for queue in queues:
        steps.store.create_queue(queue)
    client_id, run_id = steps.store.server()
    record = {"run_id": run_id, "queues": "\n".join(queues), "host": "h", "pid": "1"}
    for name in names:
        for queue in queues:
            steps.store.attach(queue, name, 1)
        steps.heartbeat(name, 1 if silent else 60_000, client_id=client_id, **record)
    if not silent:
        steps.store.close()
    store = looker.steps.store
    store.now_ms()
    waits = counted_waits(monkeypatch)
    most = 0
    while any(store.attached(queue).marks for queue in queues):
        time.sleep(GRACE_S)
        looks = [partial(looker.orphans.check_first, queue) for queue in queues]
        looker.later += (
            looks if look == "check_first" else [partial(looker.orphans.check_gone, names)]
        )
        while looker.later:
            waits.clear()
            looker.later.popleft()(store)
            most = max(most, len(waits))
    assert 0 < most <= Limits.waits


@pytest.mark.parametrize("look", ["check_first", "check_gone"])
def test_one_that_comes_back_before_its_end(open_store, looker, holder, look):
    """A consumer that returns before its pending end keeps its lease and its place."""
    holder.store.close()
    argument = "q" if look == "check_first" else ["s"]
    getattr(looker.orphans, look)(argument, looker.steps.store)
    time.sleep(GRACE_S + 0.1)
    getattr(looker.orphans, look)(argument, looker.steps.store)
    assert looker.later
    again = open_store("s/2")
    again.store.attach("q", "s", 1)
    live(again)
    assert 1 == looker.finish()
    assert ["s"] == looker.steps.store.consumers_of("q")
    assert looker.steps.store.liveness(["s"])["s"] is not None
