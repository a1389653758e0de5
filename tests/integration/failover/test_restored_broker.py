"""A Redis that was restored from an older copy repeats no number that a process still holds.

Each test stops the server in the middle, puts an earlier dump back, and starts it. What the copy
lacks is lost with it; what happens afterwards must not be mistaken for what happened before.
"""

from __future__ import annotations

import pytest
from kombu import Connection, Exchange, Queue

from reliq import transports
from reliq.batches.jobs import Change
from reliq.message.delivery_tag import BATCH, new_tag
from reliq.message.envelope import pack
from reliq.options import parse
from reliq.routing.publish_ids import PUBLISHER
from reliq.spool.journal import JOURNALS
from reliq.store.store import RedisStore
from reliq.store.urls import address
from reliq.transfer.numbered import move_queue, to_queue
from reliq.values.values import DUPLICATE, STORED
from tests.contract.steps import Steps, message
from tests.integration.spool.test_spool import Away, drain
from tests.support.audits import assert_balanced


class Restorable:
    """A Redis without AOF, and a dump of it."""

    def __init__(self, server):
        self.server = server
        self.dump = server.directory / "dump.rdb"

    def save(self):
        """Keep a copy of the data."""
        self.server.client().save()
        self.copy = self.dump.read_bytes()

    def restore(self):
        """Start the server with the kept copy."""
        self.server.kill()
        self.dump.write_bytes(self.copy)
        self.server.start()


@pytest.fixture
def redis(redis_factory):
    """Return a Redis that can be restored; its ledgers balance at the end."""
    restorable = Restorable(redis_factory())
    yield restorable
    assert_balanced(restorable.server.url("reliq"))


@pytest.fixture
def open_store():
    """Return a function that opens a store at a server, as a given consumer."""
    opened = []

    def connect(server, consumer="s/1"):
        store = RedisStore(address(server.url()), parse({}), consumer)
        store.connect()
        opened.append(store)
        return Steps(store, {"q"})

    yield connect
    for store in opened:
        store.close()


def taken(store):
    """Return the delivery of the one message."""
    (delivery,) = store.take()
    return delivery


def test_a_lease_of_before_is_refused(redis, open_store):
    """A consumer that held a lease before the restore cannot use it on the lease of another."""
    store = open_store(redis.server)
    store.publish(message())
    taken(store)
    store.restore(force=True)
    store.purge()
    store.publish(message())
    redis.save()
    old = taken(store)
    redis.restore()
    store, other = open_store(redis.server), open_store(redis.server, "s/2")
    new = taken(other)
    assert old.tag == new.tag
    assert old.token != new.token
    assert [old.tag] == store.renew(old)
    assert [old.tag] == store.release("nacked", old)
    assert [old.tag] == store.dead_letter(old)
    assert [old.tag] == store.end(old)
    assert [] == other.renew(new)
    assert 1 == other.ack(new.tag)


def test_leases_are_counted(redis, open_store):
    """The numbers of leases skip some, but their count does not."""
    store = open_store(redis.server)
    store.publish(message(), message(), message())
    first, second = taken(store), taken(store)
    assert int(second.token) > int(first.token)
    redis.save()
    redis.restore()
    store = open_store(redis.server)
    assert int(taken(store).token) > int(second.token)
    assert 3 == store.ledger("token") - store.ledger("job_events")


def test_a_job_of_a_restored_queue_counts(redis, redis_factory, open_store):
    """A job's delivery and its event count at a batch elsewhere, which knows later ones.

    As on a cluster, of which one node was restored.
    """
    batches = open_store(redis_factory(), "s/b").store.batches
    batches.open_batch("b", "enrol", {})

    def change(what, state="", **values):
        (outcome,) = batches.change("b", [Change(what, "j", state, queue="q", **values)]).outcomes
        return outcome

    store = open_store(redis.server)
    tag = new_tag(5, {BATCH: "b"})
    store.publish(message(tag=tag))
    assert change("enter", "waiting", tag=tag)
    redis.save()
    for _ in range(3):
        old = taken(store)
        assert change("begin", token=int(old.token), tag=tag)
        store.release("nacked", old)
        assert change("return", token=int(old.token), tag=tag)
    redis.restore()
    store = open_store(redis.server)
    new = taken(store)
    assert 1 == change("begin", token=int(new.token), tag=tag)
    assert [] == store.dead_letter(new)
    (event,) = store.store.job_events("q", 10)
    assert 1 == change("end", "lost", token=event.number, tag=tag)


def test_publishes_afterwards_are_stored(redis):
    """Publishes of a running process after the restore are stored, and so is an unsettled one."""
    url = redis.server.url("reliq")
    with Connection(url) as connection:
        producer = connection.Producer()
        for n in range(5):
            producer.publish(n, routing_key="q")
        redis.save()
        for n in range(5, 40):
            producer.publish(n, routing_key="q")
        redis.restore()
        for n in range(40, 80):
            producer.publish(n, routing_key="q", retry=True)
        bodies = [got.payload for got in drain(url, "q")]
    assert [*range(5), *range(40, 80)] == bodies


def test_a_retry_after_the_restore(redis, open_store):
    """A publish that is retried after the restore is stored if the copy lacks it, else known."""
    store = open_store(redis.server)
    tags = [PUBLISHER.tag(5, {}) for _ in range(3)]
    copies = []
    for tag in tags:
        number = PUBLISHER.number(tag, "q", "b")
        named = {"publisher": number.publisher, "low_water": number.low_water}
        copies.append(message(tag=number.tag, number=number.number, **named))
    assert [2, STORED] == store.publish(*copies[:2])
    redis.save()
    assert [STORED] == store.publish(copies[2])
    redis.restore()
    store = open_store(redis.server)
    assert [DUPLICATE, DUPLICATE, STORED] == store.publish(*copies)
    PUBLISHER.settle(*tags)


def test_routes_of_before_are_not_used(redis):
    """A publisher with routes of before the restore finds bindings made afterwards."""
    url = redis.server.url("reliq")
    topics = Exchange("topics", "topic")

    def bind(name):
        with Connection(url) as other:
            Queue(name, topics, "a")(other.default_channel).declare()

    bind("first")
    redis.save()
    bind("before")
    with Connection(url) as connection:
        producer = connection.Producer()
        producer.publish(1, exchange="topics", routing_key="a")
        redis.restore()
        bind("after")
        producer.publish(2, exchange="topics", routing_key="a", retry=True)
    assert [2] == [got.payload for got in drain(url, "after")]
    assert [2] == [got.payload for got in drain(url, "first")]


@pytest.mark.parametrize("which", ["source", "target"])
@pytest.mark.parametrize("when", ["before", "in the middle", "after"])
def test_moves_to_another_broker(redis, redis_factory, open_store, which, when):
    """A move after a restore of one side moves everything that is published afterwards.

    It also moves again what the copy of the source holds, unless the target knows it.
    """
    other = Restorable(redis_factory())
    restored = redis if which == "source" else other
    source, target = open_store(redis.server), open_store(other.server, "s/2")
    target.declare()
    source.publish(*[message(envelope=pack(n)) for n in range(250)])
    if when == "before":
        restored.save()
    steps = move_queue(source.store, target.store, "q")
    next(steps)
    if when == "in the middle":
        restored.save()
    assert 250 == 100 + sum(steps)
    source.publish(*[message(envelope=pack(n)) for n in range(250, 300)])
    if when == "after":
        restored.save()
    sum(move_queue(source.store, target.store, "q"))
    restored.restore()
    source, target = open_store(redis.server), open_store(other.server, "s/2")
    source.publish(*[message(envelope=pack(n)) for n in range(300, 600)])
    sum(move_queue(source.store, target.store, "q"))
    there = {one.envelope for one in target.take(target.places()["ready"])}
    assert {pack(n) for n in range(300, 600)} <= there
    if which == "source":
        assert {pack(n) for n in range(300)} <= there
    assert_balanced(other.server.url("reliq"))


def test_dead_letters_to_another_queue(redis, open_store):
    """Dead letters that died after the restore are moved, and are not taken for moved ones."""
    store = open_store(redis.server)
    store.declare("target")

    def die(first, last):
        store.publish(*[message(envelope=pack(n)) for n in range(first, last)])
        died = store.take(last - first)
        assert [] == store.dead_letter(*died)
        return [one.tag for one in died]

    assert 5 == to_queue(store.store, "q", "target", die(0, 5))
    redis.save()
    assert 20 == to_queue(store.store, "q", "target", die(5, 25))
    redis.restore()
    store = open_store(redis.server)
    assert 20 == to_queue(store.store, "q", "target", die(25, 45))
    found = [one.envelope for one in store.take(25, queue="target")]
    assert [pack(n) for n in (*range(5), *range(25, 45))] == found


def test_a_spool_beside_a_restored_broker(redis, tmp_path):
    """Publishes that were forwarded after the copy are lost with it; later ones are stored."""
    away = Away(redis.server, tmp_path)
    journal = JOURNALS.at(str(away.path))

    def outage(*bodies):
        redis.save()
        redis.server.kill()
        with away.connect(probe_interval=60) as connection:
            for body in bodies:
                away.publish(connection, body)
        redis.server.start()

    def forward():
        with Connection(away.home) as connection:
            connection.connect()
            return transports.forward(journal, connection.transport)

    with away.connect() as connection:
        away.publish(connection, 0)
    outage(1, 2)
    assert 2 == forward()
    redis.restore()
    outage(3, 4, 5)
    assert 3 == forward()
    assert [0, 3, 4, 5] == away.bodies()
