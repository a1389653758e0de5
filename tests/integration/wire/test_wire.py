"""One socket, many commands: every reply is given to its command."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from reliq.client.connect import Address
from reliq.client.wire import Wire
from reliq.errors import BrokerRefused, BrokerTimeout
from reliq.lua import scripts
from reliq.lua.keys import queue_keys
from reliq.options import Options
from reliq.store.urls import address
from tests.support.waiting import wait_until


def test_a_script_that_is_sent_again_keeps_its_place(redis_server, redis_url):
    """A script that is sent again has its own reply, even if it comes last.

    The cache is lost and filled again between two calls.
    """
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
    """Return a wire to a separate server, with a short timeout."""
    wire = Wire(address(fresh_redis.url()), Options(socket_timeout=3.0), "test")
    wire.connect()
    yield wire
    wire.close()


def test_a_posted_script_runs_though_nobody_reads(wire, fresh_redis):
    """A posted script runs at a server with an empty cache, even if its reply is never read."""
    names = queue_keys("", "q")
    with closing(fresh_redis.client()) as client:
        client.script_flush()
        for number in range(3):
            tag = f"tag{number}"
            client.hset(names.messages, tag, b"any")
            command, script = scripts.ACK.over(names, (tag,))
            wire.post(command, script=script)
            wait_until(lambda tag=tag: not client.hexists(names.messages, tag))
        calls = {
            name: client.info("commandstats").get(f"cmdstat_{name}") for name in ("eval", "evalsha")
        }
    assert (1, 2) == (calls["eval"]["calls"], calls["evalsha"]["calls"])


def test_what_has_waited_long_waits_only_for_the_rest(wire, fresh_redis):
    """The timeout counts from the command, not from each wait for it."""
    fresh_redis.freeze()
    posted = time.monotonic()
    wire.post(("PING",))
    time.sleep(2.5)
    with pytest.raises(BrokerTimeout):
        wire.wait_for_replies()
    fresh_redis.thaw()
    assert 3.0 <= time.monotonic() - posted < 5.5


def test_a_reply_that_came_while_nobody_looked_is_not_too_late(wire):
    """A reply that was in the socket while the process was suspended is not too late."""
    replies = []
    wire.post(("ECHO", "here"), replies.append)
    time.sleep(3.2)
    wire.wait_for_replies()
    assert [b"here"] == replies


def test_a_login_that_may_not_do_what_it_takes(fresh_redis):
    """The error for a login without a permission names the command, even one sent by redis-py."""
    with closing(fresh_redis.client()) as client:
        client.execute_command("ACL", "SETUSER", "poor", "on", ">word", "~*", "+@all", "-select")
    url = fresh_redis.url(db=1).replace("//", "//poor:word@")
    poor = Wire(address(url), Options(), "test")
    with pytest.raises(BrokerRefused, match=r"'select' command.*lacks a permission"):
        poor.connect()
    assert not poor.alive


def test_a_large_script_call_that_is_sent_again(wire, fresh_redis):
    """A large script call is sent again if the cache is empty, as fast as the socket accepts it."""
    large = b"x" * 3_000_000
    call = ("EVALSHA", scripts.LEASES_OF.sha, 1, queue_keys("", "q").unacked, "me", 0, "0", 10)
    asked = [((*call, large), scripts.LEASES_OF)] * 4
    assert [[b"0"]] * 4 == wire.exchange(asked)
    with closing(fresh_redis.client()) as client:
        client.script_flush()
    replies = []
    wire.post((*call, large), replies.append, scripts.LEASES_OF)
    wire.wait_for_replies()
    assert [[b"0"]] == replies


def test_a_post_of_an_event_loop_waits_for_no_idle_server(fresh_redis):
    """A post of an event loop does not wait for a server that was idle and is silent.

    The post itself discovers the silence.
    """
    options = Options(socket_timeout=4.0, health_check_interval=0.2)
    with closing(Wire(address(fresh_redis.url()), options, "test")) as wire:
        wire.fileno()  # like the loop, which watches the connection
        wire.disable_reconnect()
        time.sleep(0.3)  # so that it counts as idle
        fresh_redis.freeze()
        began = time.monotonic()
        wire.post(("PING",))
        assert time.monotonic() - began < 2
        with pytest.raises(BrokerTimeout):
            wire.wait_for_replies()
        fresh_redis.thaw()
