"""One socket, many commands: every reply finds the command that it answers."""

from __future__ import annotations

import time

import pytest

from reliq.engines.redis import scripts
from reliq.engines.redis.connect import Address
from reliq.engines.redis.keys import queue_keys
from reliq.engines.redis.wire import Wire
from reliq.engines.urls import address
from reliq.errors import BrokerTimeout
from reliq.options import Options


def test_a_script_that_is_sent_again_keeps_its_place(redis_server, redis_url):
    """The cache is lost and filled again between two calls: the first comes in last."""
    where = address(redis_url)
    assert isinstance(where, Address)
    wire = Wire(where, Options(), "test")
    client = redis_server.client()
    client.script_flush()
    names = queue_keys("", "q")
    keys = (names.unacked,)
    call = ("EVALSHA", scripts.LEASES_OF.sha, 1, *keys, "nobody", 0, "0", 10)
    client.hset(names.unacked, "tag", "7|1||me")
    mine = ("EVALSHA", scripts.LEASES_OF.sha, 1, *keys, "me", 0, "0", 10)
    try:
        replies = wire.exchange(
            [
                (call, scripts.LEASES_OF),
                (("SCRIPT", "LOAD", scripts.LEASES_OF.text), None),
                (mine, scripts.LEASES_OF),
            ]
        )
    finally:
        wire.close()
        client.flushall()
        client.close()
    assert [b"0"] == replies[0]
    assert [b"0", b"tag", b"7"] == replies[2]


@pytest.fixture
def wire(fresh_redis):
    """Return a wire to a server of the test's own, with a short timeout."""
    wire = Wire(address(fresh_redis.url()), Options(socket_timeout=3.0), "test")
    wire.connect()
    yield wire
    wire.close()


def test_what_has_waited_long_waits_only_for_the_rest(wire, fresh_redis):
    """The timeout is that of the command, not of each who waits for it in turn."""
    fresh_redis.freeze()
    posted = time.monotonic()
    wire.post(("PING",))
    time.sleep(2.5)
    with pytest.raises(BrokerTimeout):
        wire.wait_for_replies()
    fresh_redis.thaw()
    assert 3.0 <= time.monotonic() - posted < 5.5


def test_a_reply_that_came_while_nobody_looked_is_not_too_late(wire):
    """A process that was suspended finds it in its socket."""
    replies = []
    wire.post(("ECHO", "here"), replies.append)
    time.sleep(3.2)
    wire.wait_for_replies()
    assert [b"here"] == replies
