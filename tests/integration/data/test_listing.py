"""Every existing queue is listed, despite deaths and races at its declaration or deletion."""

from __future__ import annotations

import threading

import pytest
import redis

from reliq.options import parse
from reliq.store.store import RedisStore
from reliq.store.urls import address
from tests.support.audits import assert_balanced
from tests.support.waiting import wait_until

ROUNDS = 300


@pytest.fixture
def open_store(fresh_redis):
    """Return a function that opens a store on an empty Redis, as a separate consumer."""
    opened = []

    def connect(consumer):
        store = RedisStore(address(fresh_redis.url()), parse({}), consumer)
        store.connect()
        opened.append(store)
        return store

    yield connect
    for store in opened:
        store.close()


def heartbeat(store, queues):
    """Send a heartbeat with *queues*; return the queues that the reply names as due for a pass."""
    told = []
    store.post_heartbeat("c", 1000, 1000, {"host": "h", "queues": "\n".join(queues)}, told.append)
    store.wait_for_replies()
    return told[0].due


def test_a_queue_that_is_declared_while_it_is_deleted(open_store, fresh_redis):
    """A queue that exists after a race of declaration and deletion is listed, also as rerouted."""
    client = redis.Redis.from_url(fresh_redis.url("redis"))
    first, second = open_store("a/1"), open_store("b/1")
    meta = {"dead_letter_exchange": "dlx"}
    together = threading.Barrier(2)

    def delete():
        for number in range(ROUNDS):
            together.wait()
            second.delete_queue(f"q{number}")

    thread = threading.Thread(target=delete)
    for number in range(ROUNDS):
        first.declare_queue(f"q{number}", False, b"", meta)
    thread.start()
    for number in range(ROUNDS):
        together.wait()
        first.declare_queue(f"q{number}", False, b"", meta)
    thread.join()
    names = [f"q{number}" for number in range(ROUNDS)]
    there = {name for name in names if first.reads.status(name) is not None}
    assert there == set(first.queues())
    assert there <= {name.decode() for name in client.zrange("reliq:{%}:dead_letter_routed", 0, -1)}
    assert_balanced(fresh_redis.url())


def test_a_queue_that_is_listed_and_not_there_is_not_named(open_store):
    """A listed queue whose declarer died before it created the queue is not named."""
    store = open_store("a/1")
    store.list_queue("q")
    assert [] == store.queues()


def test_a_queue_in_use_is_listed_again(open_store, fresh_redis):
    """The heartbeat of a queue's consumer lists the queue again and schedules a pass."""
    client = redis.Redis.from_url(fresh_redis.url("redis"))
    store = open_store("a/1")
    store.declare_queue("q", False, b"", {})
    client.zrem("reliq:{%}:queues", "q")
    assert ["q"] == heartbeat(store, ["q"])
    assert ["q"] == store.queues()
    assert [] == heartbeat(store, ["q"])


def test_a_queue_that_expires_is_listed_again(open_store, fresh_redis):
    """A queue that was unlisted still expires."""
    client = redis.Redis.from_url(fresh_redis.url("redis"))
    store = open_store("a/1")
    store.declare_queue("q", False, b"", {"expires": "50"})
    client.zrem("reliq:{%}:queues", "q")
    assert ["q"] == heartbeat(store, ["q"])
    wait_until(lambda: store.delete_queue("q", if_idle=True).outcome == "deleted")
    assert [] == store.queues()
