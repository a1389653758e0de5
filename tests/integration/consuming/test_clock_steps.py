"""Messages return although the server's clock is set back, as by NTP after a boot."""

from __future__ import annotations

import pytest

from reliq.lua import scripts
from reliq.lua.keys import broker_keys, queue_keys
from reliq.options import parse
from reliq.store.store import RedisStore
from reliq.store.urls import address
from tests.contract.steps import Steps, message
from tests.support.lua import with_text

HOUR_MS = 3_600_000


@pytest.fixture
def open_store(fresh_redis):
    """Return a function that opens a store as a given consumer."""
    opened = []

    def connect(consumer):
        store = RedisStore(address(fresh_redis.url()), parse({}), consumer)
        store.connect()
        opened.append(store)
        return Steps(store, {"q"})

    yield connect
    for store in opened:
        store.close()


def test_below_its_start(open_store, monkeypatch):
    """Ended and expired leases return their messages while INFO reports a negative uptime."""
    asked, text = "redis.pcall('INFO', 'server')", scripts.RESTORE_VISIBLE.text
    assert asked in text
    said = f"string.gsub({asked}, '(uptime_in_seconds:)', '%1-1')"
    changed = with_text(scripts.RESTORE_VISIBLE, text.replace(asked, f"({said})"))
    monkeypatch.setattr(scripts, "RESTORE_VISIBLE", changed)
    store = open_store("s/1")
    store.publish(message(), message())
    ended, _ = store.take(2, lease_ms=1)
    store.pass_time(2)
    assert [] == store.end(ended)
    assert {"s/1": 2} == store.restore(lease_ms=1).by_consumer


def test_a_duty_of_before_is_another_s(open_store, fresh_redis):
    """A duty's lock and due time that were set before the clock step do not delay the next duty."""
    dead, store = open_store("dead/1"), open_store("s/1")
    dead.publish(message())
    dead.store.list_queue("q")
    dead.restore()
    dead.heartbeat("dead")
    dead.store.post_elect("dead", 1000, lambda _: None)
    dead.store.wait_for_replies()
    assert not store.restore().granted
    with fresh_redis.client() as client:
        for key in (queue_keys("", "q").unacked_mutex, broker_keys("").looking):
            assert client.pexpire(key, HOUR_MS)
        (score,) = [
            score for _, score in client.zrange(broker_keys("").queues, 0, -1, withscores=True)
        ]
        client.zadd(broker_keys("").queues, {"q": score + HOUR_MS})
        assert client.zcard(broker_keys("").consumers) == 1
    assert store.restore().granted
    assert ["q"] == store.heartbeat("s", again_ms=20_000)
    found = []
    store.store.post_elect("s", 1000, found.append)
    store.store.wait_for_replies()
    assert ["dead", "s"] == sorted(found[0])
