"""Who counts as dead: one connection that stays away, not two moments without any."""

from __future__ import annotations

import time
from collections import deque
from types import SimpleNamespace

import pytest

from reliq.consumer.dead_consumers import Orphans
from reliq.engines.redis.store import RedisStore
from reliq.engines.urls import address
from reliq.options import parse
from tests.contract.steps import Steps, message

GRACE_S = 0.3


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


@pytest.fixture
def looker(open_store):
    """Return a function that lets a second consumer look; it tells what was left unacked."""
    steps = open_store("looker/1")
    orphans = Orphans(
        "looker",
        SimpleNamespace(orphan_grace=GRACE_S, restore_interval=5),
        consumes=lambda queue: queue == "q",
        restore=lambda store, queue: steps.restore(force=True),
        is_of_this_process=lambda name: False,
    )

    def look():
        orphans.first_look("q", steps.store)
        later = deque()
        orphans.tick(later)
        while later:
            later.popleft()(steps.store)
        return steps.places().get("unacked", 0)

    return look


def live(steps):
    """Let the consumer say that it lives, over the connection that it has now."""
    client_id, run_id = steps.store.server()
    steps.heartbeat("s", client_id=client_id, run_id=run_id, queues="q", host="h", pid="1")


def gone(steps, look):
    """Close the connection, and let the other look as soon as the server knows."""
    client_id = steps.store.server()[0]
    steps.store.close()
    look()
    return client_id


def test_two_moments_are_no_absence(open_store, looker):
    """Seen without a connection, back, and seen without the next one: its leases stay."""
    holder = open_store("s/1")
    holder.publish(message())
    holder.store.attach("q", "s", 1)
    live(holder)
    holder.take()
    gone(holder, looker)
    again = open_store("s/2")
    live(again)
    time.sleep(GRACE_S + 0.1)
    again.store.close()
    for _ in range(5):
        assert 1 == looker()


def test_an_absence_is_one(open_store, looker):
    """The same, and it does not come back: after the grace its message returns."""
    holder = open_store("s/1")
    holder.publish(message())
    holder.store.attach("q", "s", 1)
    live(holder)
    holder.take()
    gone(holder, looker)
    assert 1 == looker()
    time.sleep(GRACE_S + 0.1)
    assert 0 == looker()
