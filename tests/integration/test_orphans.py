"""Who counts as dead: one connection that stays away, not two moments without any.

And nobody for a time in which the broker was away for all: who looks over a new connection may
be the first to come back.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest

from reliq.consumer.dead_consumers import DeadConsumers
from reliq.engines.redis.store import RedisStore
from reliq.engines.redis.stream import Stream
from reliq.engines.urls import address
from reliq.errors import BrokerUnavailable
from reliq.options import parse
from tests.contract.steps import Steps, message
from tests.support.waiting import wait_until

GRACE_S = 0.3
LAPSED_MS = 50


@pytest.fixture
def open_store(fresh_redis):
    """Return a function that opens a store as a given consumer, wrapped in Steps."""
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
    """A consumer that looks after the others; each look tells what is left unacked."""

    def __init__(self, steps):
        self.steps = steps
        self.later = deque()
        self.orphans = DeadConsumers(
            "looker",
            SimpleNamespace(orphan_grace=GRACE_S, restore_interval=5),
            lambda queue: queue == "q",
            lambda store, queue: steps.restore(force=True),
            lambda name: False,
            self.later,
        )

    def look(self):
        """Look at the others who consume from the queue."""
        self.orphans.first_look("q", self.steps.store)
        self.orphans.tick()
        return self.finish()

    def finish(self):
        """Do what a look has left for later."""
        while self.later:
            self.later.popleft()(self.steps.store)
        return self.unacked()

    def look_after_all(self):
        """Look at all in the register."""
        self.orphans.look_after(["s"], self.steps.store)
        return self.finish()

    def clear(self):
        """Look at the queue before it is used."""
        self.orphans.clear("q", self.steps.store)
        return self.unacked()

    def unacked(self):
        """Return how many messages are in flight."""
        return self.steps.places().get("unacked", 0) if self.steps.store.reads.status("q") else 0

    def connect_again(self, server):
        """Lose every connection, as in an outage, and make another one."""
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


def live(steps, ttl_ms=60_000):
    """Let the consumer say that it lives, over the connection that it has now."""
    client_id, run_id = steps.store.server()
    record = {"client_id": client_id, "run_id": run_id, "queues": "q", "host": "h", "pid": "1"}
    steps.heartbeat("s", ttl_ms, **record)


def test_two_moments_are_no_absence(open_store, looker, holder):
    """Seen without a connection, back, and seen without the next one: its leases stay."""
    holder.store.close()
    looker.look()
    again = open_store("s/2")
    live(again)
    time.sleep(GRACE_S + 0.1)
    again.store.close()
    for _ in range(5):
        assert 1 == looker.look()


def test_an_absence_is_one(looker, holder):
    """The same, and it does not come back: after the grace its message returns."""
    holder.store.close()
    assert 1 == looker.look()
    time.sleep(GRACE_S + 0.1)
    assert 0 == looker.look()


@pytest.mark.parametrize("look", [Looker.look, Looker.look_after_all])
def test_an_outage_is_nobodys_absence(fresh_redis, looker, holder, look):
    """Who was gone a moment before the broker was away for all has its grace after that."""
    holder.store.close()
    assert 1 == look(looker)
    time.sleep(GRACE_S + 0.1)
    looker.connect_again(fresh_redis)
    assert 1 == look(looker)
    time.sleep(GRACE_S + 0.1)
    assert 0 == look(looker)


def test_silence_through_an_outage_is_no_death(looker, holder):
    """Heartbeats that stopped end no lease by themselves: a first look gives the grace."""
    live(holder, LAPSED_MS)
    holder.store.close()
    time.sleep(LAPSED_MS / 1000 + 0.05)
    assert 1 == looker.look_after_all()
    time.sleep(GRACE_S + 0.1)
    assert 0 == looker.look_after_all()


def test_a_temporary_queue_outlives_an_outage(open_store, fresh_redis, looker):
    """Who was silent because the broker was away keeps its queue until others are back as long."""
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
    """Who is connected, or may be, has as long as a heartbeat lasts since the broker is back."""
    ttl_ms = 2000  # a look takes far less
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
    """A broker that is only visited may have been away for all until now, too."""
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
    """Return a list to which each wait for replies is added."""
    waits = []
    replies = Stream.replies

    def counted(stream, *arguments, **more):
        waits.append(stream)
        return replies(stream, *arguments, **more)

    monkeypatch.setattr(Stream, "replies", counted)
    return waits


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("look", ["first_look", "look_after"])
def test_many_dead_are_many_duties(open_store, looker, monkeypatch, look, silent):
    """An event loop turns between them: none of its steps waits for more than a few replies."""
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
        looks = [partial(looker.orphans.first_look, queue) for queue in queues]
        looker.later += (
            looks if look == "first_look" else [partial(looker.orphans.look_after, names)]
        )
        while looker.later:
            waits.clear()
            looker.later.popleft()(store)
            most = max(most, len(waits))
    assert 0 < most <= 12


@pytest.mark.parametrize("look", ["first_look", "look_after"])
def test_one_that_comes_back_before_its_end(open_store, looker, holder, look):
    """It was found dead, and its end is due: it keeps its lease and its place."""
    holder.store.close()
    argument = "q" if look == "first_look" else ["s"]
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
