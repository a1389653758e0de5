"""Connections: pools, clones, pickles, heartbeats, and their representation as text."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
import traceback

import pytest
from kombu import Connection, pools

from tests.support.waiting import wait_until

from ..kombu_client import Taker, declare, get, payloads, publish

SECRET = "s3cr3t/@:word"
QUOTED = "s3cr3t%2F%40%3Aword"


@pytest.fixture
def no_pools():
    """Empty Kombu's global pools afterwards."""
    yield
    pools.reset()


def test_connection_pool(client):
    """A pool hands out working connections, up to its limit, and takes them back."""
    pool = client.connect().Pool(2)
    with pool.acquire() as first, pool.acquire() as second:
        declare(first, "q")
        publish(first, "q", "x")
        assert get(second, "q").payload == "x"
        with pytest.raises(pool.LimitExceeded):
            pool.acquire()
    with pool.acquire() as again:
        assert get(again, "q") is None
    pool.force_close_all()


def test_channel_pool(client):
    """A channel pool hands out channels of one connection."""
    connection = client.connect()
    pool = connection.ChannelPool(2)
    with pool.acquire() as channel:
        channel.queue_declare("q")
    assert len(connection.transport.channels) <= 2


def test_producer_pool(client, no_pools):
    """A producer from the global pool publishes, and the pool survives a lost connection."""
    connection = client.connect()
    declare(connection, "q")
    for n in range(5):
        with pools.producers[connection].acquire(block=True) as producer:
            if n == 2:
                client.raw.client_kill_filter(_type="normal", skipme=True)
            producer.publish(n, exchange="", routing_key="q", retry=True)
    messages = Taker(client.connect(), "q").take(5)
    assert payloads(messages) == list(range(5))


def test_global_connection_pool(client, no_pools):
    """Equal connections share a pool; different options have different pools."""
    pool = pools.connections[client.connect()]
    assert pools.connections[client.connect()] is pool
    assert pools.connections[client.connect(global_keyprefix="x")] is not pool
    with pool.acquire() as connection:
        declare(connection, "q")


@pytest.mark.parametrize(
    "copy_of",
    [
        lambda connection: connection.clone(),
        copy.copy,
        lambda connection: pickle.loads(pickle.dumps(connection)),
    ],
    ids=["clone", "copy", "pickle"],
)
def test_copies_of_a_connection(client, copy_of):
    """A clone, a copy and an unpickled pickle reach the same broker with the same options."""
    connection = client.connect(global_keyprefix="p.")
    declare(connection, "q")
    publish(connection, "q", "x")
    with copy_of(connection) as other:
        assert other is not connection
        assert other.transport_options["global_keyprefix"] == "p."
        assert get(other, "q").payload == "x"


def test_closed_and_opened_again(client):
    """A released connection reconnects when it is used."""
    connection = client.connect()
    declare(connection, "q")
    connection.release()
    assert not connection.connected
    connection.connect()
    assert connection.connected
    publish(connection, "q", "x")
    assert get(connection, "q").payload == "x"


def test_heartbeat_check_does_nothing(client):
    """heartbeat_check is a no-op, connected or not."""
    connection = client.connect()
    assert not connection.supports_heartbeats
    assert connection.heartbeat_check() is None
    connection.connect()
    assert connection.heartbeat_check(rate=2) is None


def test_connection_shows_what_it_is(client):
    """driver_type has the value that Celery expects; fanout is among the exchange types."""
    connection = client.connect()
    assert connection.transport.driver_type == "redis"
    assert connection.transport.driver_name == "reliq"
    assert connection.transport.driver_version()
    for kind in ("direct", "topic", "fanout"):
        assert connection.supports_exchange_type(kind)
    assert connection.is_evented


def test_errors_are_of_the_right_kind(client):
    """Recoverable errors are those that a reconnection can fix; KeyError and refusals are not."""
    import reliq

    connection = client.connect()
    recoverable = connection.recoverable_connection_errors
    assert issubclass(reliq.BrokerUnavailable, recoverable)
    assert issubclass(reliq.BrokerTimeout, recoverable)
    assert not issubclass(reliq.BrokerTimeout, TimeoutError)
    for error in (KeyError, reliq.BrokerRefused, reliq.ConfigurationError, reliq.MessageRefused):
        assert not issubclass(error, (*recoverable, *connection.connection_errors))
    for error in (reliq.NotFound, reliq.PreconditionFailed):
        assert issubclass(error, connection.channel_errors)


def test_leaving_nothing_behind(client):
    """After all connections are closed, no thread and no client connection is left."""
    before = set(threading.enumerate())  # an earlier test's session may still linger
    connection = client.connect()
    ours = connection.transport.link.session.id
    taker = Taker(connection, "q")
    publish(connection, "q", "x")
    taker.take()[0].ack()
    connection.release()

    def left():
        names = [entry["name"] for entry in client.raw.client_list() if ours in entry["name"]]
        threads = set(threading.enumerate()) - before
        return names + [item.name for item in threads if "reliq" in item.name]

    wait_until(lambda: left() == [], what=left)


@pytest.fixture
def guarded(redis_factory, scheme):
    """Return the URL of a server that requires a password."""
    server = redis_factory(password=SECRET)
    url = server.url(scheme)
    assert QUOTED in url
    return url


def shown(exception):
    """Return the full text of an exception as logged, causes included."""
    return "".join(traceback.format_exception(exception)) + repr(exception)


def test_the_password_is_used_and_never_shown(guarded, caplog):
    """repr, as_uri and the log of a working connection do not show the password."""
    caplog.set_level(logging.DEBUG)
    with Connection(guarded) as connection:
        publish(connection, "q", "x")
        transport = connection.transport
        texts = [repr(connection), connection.as_uri(), str(connection), caplog.text]
        texts += [repr(part) for part in (transport, transport.link.session, transport.link.store)]
        texts += [repr(transport.options), repr(connection.default_channel)]
        for text in texts:
            assert SECRET not in text
            assert QUOTED not in text
        assert connection.as_uri(include_password=True).count(QUOTED) == 1


@pytest.mark.parametrize("wrong", [SECRET + "x", "", None], ids=["wrong", "empty", "none"])
def test_a_wrong_password(guarded, wrong):
    """A wrong or missing password is an error that names the broker and not the password."""
    login = "" if wrong is None else f":{wrong.replace('/', '%2F').replace('@', '%40')}@"
    url = guarded.replace(f":{QUOTED}@", login)
    with Connection(url) as connection, pytest.raises(connection.connection_errors) as caught:
        connection.transport.establish_connection()
    assert "127.0.0.1" in str(caught.value)
    assert SECRET not in shown(caught.value)
    assert QUOTED not in shown(caught.value)


def test_an_unreachable_broker(redis_factory, scheme):
    """A refused connection is an error that names the broker and not the password."""
    from reliq import BrokerUnavailable

    server = redis_factory(password=SECRET)
    url = server.url(scheme)
    server.kill()
    with Connection(url) as connection, pytest.raises(BrokerUnavailable) as caught:
        connection.transport.establish_connection()
    assert str(server.port) in str(caught.value)
    assert SECRET not in shown(caught.value)


def test_a_broker_that_dies(guarded, redis_factory, scheme):
    """The error of a connection that breaks later does not show the password."""
    server = redis_factory(password=SECRET)
    with Connection(server.url(scheme)) as connection:
        declare(connection, "q")
        server.kill()
        with pytest.raises(connection.connection_errors) as caught:
            publish(connection, "q", "x")
    assert str(server.port) in str(caught.value)
    assert SECRET not in shown(caught.value)
