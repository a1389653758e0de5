"""A released connection leaves nothing in the process, whatever happened to it.

A session has everything that outlives connections: leases, pending acks, a thread and fork hooks.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest
from kombu import Connection, Consumer, Queue
from kombu.exceptions import OperationalError
from kombu.pools import reset

from reliq.consumer.sessions import SESSIONS
from tests.support.servers import free_port
from tests.support.waiting import wait_until

from ..kombu_client import FAST, declare, get, publish

# Long enough for a broker that replies on a busy machine.
OPTIONS = {**FAST, "socket_timeout": 0.6, "failback": False}
POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
MANY = 10


def left():
    """Return this process's sessions, their transports, threads and files."""
    gc.collect()
    sessions = list(SESSIONS.by_key.values())
    return {
        "sessions": sorted(str(item.key) for item in sessions),
        "transports": sum(len(item.transports) for item in sessions),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": Counter(filter(None, map(_kind, Path("/proc/self/fd").iterdir()))),
    }


def _kind(descriptor):
    kind = ""
    with suppress(OSError):  # the descriptor of this listing, or closed by now, or without a peer
        kind = str(descriptor.readlink()).partition(":")[0]
        if kind != "socket":
            return kind
        with socket.socket(fileno=os.dup(int(descriptor.name))) as found:
            kind = f"socket to {found.getpeername()}"
    return kind


@pytest.fixture
def nothing_left():
    """Fail if the test leaves more than it found.

    Less is no fault: leftovers of an earlier test end with the next connection. But the thread of a
    session may have no connection at the moment of the count, and reconnect later to renew leases.
    Therefore all sessions are ended first.
    """
    reset()
    for session in list(SESSIONS.by_key.values()):
        session.background.stop()
        SESSIONS.by_key.pop(session.key, None)
    before = left()
    yield
    reset()
    wait_until(lambda: not more(before, left()), what=lambda: more(before, left()))


def more(before, after):
    """Return the new items in *after*."""
    found = {
        name: Counter(after[name]) - Counter(before[name])
        for name in ("sessions", "threads", "files")
    }
    found["transports"] = max(0, after["transports"] - before["transports"])
    return {name: what for name, what in found.items() if what}


@pytest.fixture
def dead():
    """Return the URLs of unreachable brokers."""
    port = free_port()
    return [f"reliq://127.0.0.1:{port}/{number}" for number in range(MANY)]


@pytest.fixture
def refusing(redis_factory):
    """Return the URLs of a broker that refuses every login."""
    server = redis_factory()
    with closing(server.client()) as client:
        client.config_set("requirepass", "secret")
    return [server.url().replace("//", f"//:wrong{number}@") for number in range(MANY)]


def connects(connection):
    """Connect, as Kombu does on its own."""
    connection.default_channel.queue_declare("q")


def publishes(connection):
    """Publish, with retries."""
    connection.Producer().publish("x", routing_key="q", retry=True, retry_policy=POLICY)
    declare(connection, "q")
    get(connection, "q").ack()


def consumes(connection):
    """Take a message as a consumer, and ack it."""
    seen = []
    queue = declare(connection, "q")
    with connection.Consumer([queue], on_message=seen.append):
        publish(connection, "q", "x")
        connection.drain_events(timeout=5)
        seen.pop().ack()


def gets(connection):
    """Hold a message while the connection is released; the next connection removes it."""
    queue = declare(connection, "q")
    queue.purge()
    publish(connection, "q", "x")
    assert get(connection, "q")


def asks(connection):
    """Read the properties that need no broker."""
    with connection.clone() as other:
        other.as_uri()
    assert connection.connection_errors
    assert connection.info()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("act", [connects, publishes, consumes, gets, asks])
def test_a_list_whose_first_url_is_dead(url, dead, act):
    """The transport of an unreachable URL, which Kombu drops silently, is left as well."""
    for lost in dead:
        with Connection([lost, url], transport_options=OPTIONS) as connection:
            act(connection)
    with Connection(url) as connection:
        declare(connection, "q").purge()


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_the_thread_that_looks_for_the_way_home(url, dead):
    """The failback thread ends with the last connection to another broker."""
    options = {**OPTIONS, "failback": True, "probe_interval": 0.2}
    for lost in dead:
        with Connection([lost, url], transport_options=options) as connection:
            connects(connection)
            assert "reliq-failback" in left()["threads"]


@pytest.mark.usefixtures("nothing_left")
def test_a_connection_that_is_not_made_again(redis_server, redis_url):
    """A lost consumer is expected back for the length of a lease; a new connection forgets it."""
    for number in range(MANY):
        connection = Connection(
            redis_url, transport_options={**OPTIONS, "poll_interval": number + 1}
        )
        connection.connect()
        lost = connection.transport.link.session
        with closing(redis_server.client()) as client:
            client.client_kill_filter(_type="normal", skipme=True)
        connection.collect()
        connection.release()
    wait_until(lambda: not lost.registration.expected_back)
    with Connection(redis_url) as connection:
        connection.connect()


# The garbage collector chooses whether a socket or its owner is finalised first; with the socket
# first, Python correctly warns that it was not closed.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("nothing_left")
def test_connections_that_nobody_releases(redis_url):
    """Unreleased connections are collected like Kombu's, and the next connection cleans up."""
    for number in range(MANY):
        options = {**OPTIONS, "poll_interval": number + 1}
        connects(Connection(redis_url, transport_options=options))
    gc.collect()
    with Connection(redis_url) as connection:
        connection.connect()


@pytest.mark.usefixtures("nothing_left")
def test_brokers_that_are_not_there(dead):
    """Unreachable brokers leave nothing, neither one alone nor in a list."""
    for number, url in enumerate(dead):
        for urls in (url, [url, dead[number - 1]]):
            connection = Connection(urls, transport_options=OPTIONS)
            with connection, pytest.raises(OperationalError):
                connection.ensure_connection(**POLICY)


@pytest.mark.usefixtures("nothing_left")
def test_brokers_that_refuse(refusing, redis_url):
    """A refused login leaves nothing, even if the application does not release the connection."""
    for url in refusing:
        with Connection(url, transport_options=OPTIONS) as connection:
            with pytest.raises(OperationalError, match="refused the login"):
                connection.ensure_connection(**POLICY)
            connection.collect()
    with Connection(redis_url) as connection:
        connection.connect()


def test_who_ends_soon_after_a_lost_connection_leaves_its_queues(redis_factory):
    """A process that ends soon after a lost connection is no longer a consumer of its queues.

    Without a connection it stays a consumer of its temporary queue for a while, but not beyond its
    end.
    """
    server = redis_factory()
    options = {**OPTIONS, "orphan_grace": 30}
    queue = Queue("mine", auto_delete=True)
    with Connection(server.url(), transport_options=options) as connection:
        consumer = Consumer(connection, [queue])
        consumer.consume()
        session = connection.transport.link.session
        with server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(connection.recoverable_connection_errors):
            connection.drain_events(timeout=10)
        connection.collect()
        connection.default_channel  # noqa: B018 - it reconnects, and consumes from another queue
        assert [session.id] == connection.transport.link.store.consumers_of("mine")
        connection.release()
        session.finish()
        with closing(session.open_store()) as store:
            assert [] == store.consumers_of("mine")
            assert store.reads.status("mine") is None
