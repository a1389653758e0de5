"""Time to live of messages and queues."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from kombu import Exchange, Queue

from tests.support.waiting import stays_true, wait_until

from ..kombu_client import Taker, declare, exists, get, publish


def test_expiration_of_a_message(client):
    """A message past its expiration is not delivered, and is counted as expired."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "brief", expiration=0.2)
    publish(connection, "q", "lasting", expiration=60)
    time.sleep(0.3)
    assert get(connection, "q").payload == "lasting"
    assert get(connection, "q") is None
    assert client.status("q").ledger["expired"] == 1


def test_expiration_is_not_reached_by_a_prompt_consumer(client):
    """A message fetched before its expiration is delivered."""
    connection = client.connect()
    taker = Taker(connection, "q")
    publish(connection, "q", "x", expiration=5)
    assert taker.take_bodies(1) == ["x"]


def test_expiration_does_not_end_a_delivery(client):
    """A message that expires during its processing can be acked."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "x", expiration=0.3)
    message = get(connection, "q")
    time.sleep(0.4)
    message.ack()
    wait_until(lambda: client.settled("q"))


def test_expired_while_away_is_not_redelivered(client):
    """A message that is requeued after its expiration is not delivered again."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "x", expiration=0.3)
    message = get(connection, "q")
    time.sleep(0.4)
    message.requeue()
    assert get(connection, "q") is None
    assert client.status("q").ledger["expired"] == 1


def test_ttl_of_a_queue(client):
    """x-message-ttl expires the messages of its queue only."""
    connection = client.connect()
    declare(connection, "brief", message_ttl=0.2)
    declare(connection, "lasting")
    publish(connection, "brief", "x")
    publish(connection, "lasting", "x")
    time.sleep(0.3)
    assert get(connection, "brief") is None
    assert get(connection, "lasting").payload == "x"
    assert client.status("brief").ledger["expired"] == 1


def test_the_shorter_of_two_ttls(client):
    """The shorter time to live of message and queue applies."""
    connection = client.connect()
    declare(connection, "q", message_ttl=0.3)
    publish(connection, "q", "long", expiration=60)
    publish(connection, "q", "short", expiration=0.1)
    time.sleep(0.2)
    assert get(connection, "q").payload == "long"
    publish(connection, "q", "long", expiration=60)
    time.sleep(0.4)
    assert get(connection, "q") is None
    assert client.status("q").ledger["expired"] == 2


def test_ttl_for_publishers_that_know_only_the_name(client):
    """The TTL of a queue applies to publishers that did not declare it."""
    declare(client.connect(), "q", message_ttl=0.2)
    other = client.connect()
    publish(other, "q", "x")
    time.sleep(0.3)
    assert get(other, "q") is None


def expiring(connection, seconds):
    """Declare a queue that expires after *seconds* without use."""
    declare(connection, "brief", expires=seconds)


def test_queue_expires_when_unused(client):
    """A queue without consumers expires some time after x-expires."""
    connection, bystander = client.connect(), client.connect()
    Taker(bystander, "other")
    expiring(connection, 0.5)
    publish(connection, "brief", "x")
    assert exists(connection, "brief")
    wait_until(lambda: not exists(connection, "brief"))
    assert client.status("brief") is None


def test_queue_is_kept_alive_by_its_consumer(client):
    """A consumer keeps its queue alive without traffic; after its end the queue expires."""
    connection, other = client.connect(), client.connect()
    expiring(connection, 0.5)
    taker = Taker(connection, "brief", auto_declare=False)
    stays_true(lambda: exists(other, "brief"), for_s=2, interval_s=0.2)
    publish(other, "brief", "x")
    assert taker.take_bodies(1) == ["x"]
    taker.consumer.cancel()
    assert exists(other, "brief")
    wait_until(lambda: not exists(other, "brief"))


def test_queue_is_kept_alive_by_basic_get(client):
    """A call of basic_get counts as use, as in AMQP."""
    connection, bystander = client.connect(), client.connect()
    Taker(bystander, "other")
    expiring(connection, 0.6)
    deadline = time.monotonic() + 1.8
    while time.monotonic() < deadline:
        get(connection, "brief")
        time.sleep(0.1)
    assert exists(connection, "brief")


def test_a_queue_that_expires_before_its_declarer_consumes(client):
    """A queue that expired before its declarer consumes is redeclared with its bindings.

    This happens if a worker process is suspended in between.
    """
    connection, bystander = client.connect(), client.connect()
    Taker(bystander, "other")
    queue = Queue("brief", Exchange("x", "fanout"), expires=0.3)(connection.default_channel)
    queue.declare()
    wait_until(lambda: client.status("brief") is None)
    taker = Taker(connection, "brief", auto_declare=False, channel=connection.default_channel)
    bystander.Producer().publish("x", exchange="x")
    assert taker.take_bodies(1) == ["x"]


def test_expired_queue_can_be_declared_anew(client):
    """An expired queue may be declared again, empty, with other arguments."""
    connection, bystander = client.connect(), client.connect()
    Taker(bystander, "other")
    expiring(connection, 0.3)
    publish(connection, "brief", "old")
    wait_until(lambda: not exists(connection, "brief"))
    declare(connection, "brief", expires=60)
    assert get(connection, "brief") is None


def test_expired_queue_gets_nothing_from_its_exchange(client):
    """A publish to the exchange of an expired queue does not recreate the queue."""
    connection, bystander = client.connect(), client.connect()
    Taker(bystander, "other")
    exchange = Exchange("x", "fanout")
    Queue("brief", exchange, expires=0.3)(connection.default_channel).declare()
    wait_until(lambda: not exists(connection, "brief"))
    connection.Producer().publish("x", exchange="x")
    assert not exists(connection, "brief")
    assert client.status("brief") is None


@pytest.mark.parametrize("of_queue", [True, False])
def test_a_ttl_of_0_is_for_who_waits(client, of_queue):
    """With a TTL of 0, only a waiting consumer receives a message; others expire."""
    connection, taking = client.connect(), client.connect()
    queue_ttl = {"message_ttl": 0} if of_queue else {}
    own_ttl = {} if of_queue else {"expiration": 0}
    declare(connection, "q", **queue_ttl)
    publish(connection, "q", "nobody waits", **own_ttl)
    time.sleep(0.2)
    taker = Taker(taking, "q", auto_declare=False)
    assert taker.gets_nothing()
    assert client.status("q").ledger["expired"] == 1

    def delivered():  # unless this machine takes longer than 100 ms
        publish(connection, "q", "somebody does", **own_ttl)
        with suppress(TimeoutError):
            taking.drain_events(timeout=0.5)
        return taker.messages

    (message,) = wait_until(delivered)
    assert message.payload == "somebody does"
