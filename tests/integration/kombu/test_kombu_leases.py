"""Leases of messages that are held for long, or whose consumer is slow or lost."""

from __future__ import annotations

import gc
import logging
import threading
import time
from contextlib import suppress

import pytest
from kombu import Consumer, Exchange, Queue
from kombu.mixins import ConsumerMixin

from reliq import BrokerUnavailable
from tests.support.proxy import Proxy
from tests.support.waiting import stays_true, wait_until

from ..kombu_client import Client, Taker, declare, get, idle_for_long, payloads, publish

# A message is no longer renewed after consumer_timeout, so its lease really ends.
LAPSING = {"visibility_timeout": 0.4, "consumer_timeout": 0.4}


def test_a_held_message_is_not_redelivered(client):
    """A message held much longer than visibility_timeout stays with its holder."""
    holder, idle = client.connect(visibility_timeout=0.5), client.connect(visibility_timeout=0.5)
    mine = Taker(holder, "q", prefetch_count=1)
    publish(holder, "q", "long")
    (message,) = mine.take()
    assert Taker(idle, "q", prefetch_count=1).gets_nothing(for_s=2.2)
    message.ack()
    wait_until(lambda: client.settled("q"))


def test_a_short_lease_of_the_queue_is_renewed_in_time(client):
    """A lease shortened by x-visibility-timeout is renewed in time by a process with a long one."""
    holder, idle = client.connect(visibility_timeout=60), client.connect(visibility_timeout=61)
    declare(holder, "q", queue_arguments={"x-visibility-timeout": 600})
    mine = Taker(holder, "q", prefetch_count=1, auto_declare=False)
    publish(holder, "q", "long")
    (message,) = mine.take()
    other = Taker(idle, "q", prefetch_count=1, auto_declare=False)
    assert other.gets_nothing(for_s=2.5)
    message.ack()
    wait_until(lambda: client.settled("q"))


@pytest.mark.slow
def test_a_lease_that_an_operator_shortens_is_renewed_in_time(client):
    """A timeout shortened by an operator applies at the next renewal; later ones come sooner."""
    holder, idle = client.connect(visibility_timeout=3), client.connect(visibility_timeout=61)
    mine = Taker(holder, "q", prefetch_count=1)
    publish(holder, "q", "long")
    (message,) = mine.take()
    with client.inspector() as inspector:
        inspector.configure("q", {"x-visibility-timeout": 600})
    other = Taker(idle, "q", prefetch_count=1)
    assert other.gets_nothing(for_s=4)
    message.ack()
    wait_until(lambda: client.settled("q"))


def test_a_message_fetched_by_basic_get_is_renewed(client):
    """Leases of ``basic_get`` are renewed without a call of drain_events."""
    holder, idle = client.connect(visibility_timeout=0.5), client.connect(visibility_timeout=0.5)
    declare(holder, "q")
    publish(holder, "q", "long")
    message = get(holder, "q")
    assert Taker(idle, "q").gets_nothing(for_s=2)
    message.ack()


def test_a_lapsed_lease_brings_the_message_back(client):
    """After consumer_timeout a message is redelivered to another consumer, and counted."""
    holder, idle = client.connect(**LAPSING), client.connect(**LAPSING)
    declare(holder, "q")
    publish(holder, "q", "x")
    held = get(holder, "q")
    (again,) = Taker(idle, "q", prefetch_count=1).take()
    assert again.delivery_tag == held.delivery_tag
    assert again.delivery_info["redelivered"] is True
    assert again.headers["x-delivery-count"] == 1
    again.ack()


def test_a_message_whose_lease_is_lost_while_it_waits_here_is_not_delivered(client):
    """A reserved message whose lease ended before its delivery is not delivered here."""
    holder, other = client.connect(**LAPSING), client.connect()
    declare(holder, "q")
    for body in ("first", "second"):
        publish(holder, "q", body)
    taker = Taker(holder, "q", prefetch_count=2)
    (first,) = taker.take()
    elsewhere = Taker(other, "q", prefetch_count=2).take(2)
    wait_until(lambda: not holder.transport.link.session.leases.held)
    holder.drain_events(timeout=1)  # drops the message
    assert taker.gets_nothing()
    assert [first] == taker.messages
    for message in (first, *elsewhere):
        message.ack()
    wait_until(lambda: client.settled("q"))


@pytest.fixture
def lapsed(client):
    """Return a ready message whose lease has ended, and another, busy consumer."""
    holder, other = client.connect(**LAPSING), client.connect()
    declare(holder, "q")
    publish(holder, "q", "late")
    held = get(holder, "q")
    # The consumer makes passes over the queue, but its prefetch limit is reached.
    busy = Taker(other, "q", prefetch_count=1)
    publish(other, "q", "busy")
    busy.take()
    wait_until(lambda: client.status("q").ready == 1)
    return held, busy


def test_a_late_ack_cancels_the_redelivery(client, lapsed):
    """An ack after the end of the lease is accepted and prevents the redelivery."""
    held, busy = lapsed
    held.ack()
    wait_until(lambda: client.status("q").ready == 0)
    busy.messages[0].ack()
    assert busy.gets_nothing()
    assert client.settled("q")


def test_a_late_ack_while_another_works_on_it(client):
    """A late ack is accepted while another consumer holds the message; its ack is harmless."""
    holder, idle = client.connect(**LAPSING), client.connect()
    declare(holder, "q")
    publish(holder, "q", "x")
    held = get(holder, "q")
    (again,) = Taker(idle, "q", prefetch_count=1).take()
    held.ack()
    wait_until(lambda: client.settled("q"))
    again.ack()
    stays_true(lambda: client.settled("q"), for_s=0.5)
    assert client.status("q").ledger["acked"] == 1


@pytest.mark.parametrize("settle", ["requeue", "reject"])
def test_a_late_requeue_is_refused_and_logged(client, caplog, settle):
    """A requeue or reject after the loss of the lease is refused, with a warning in the log."""
    holder, idle = client.connect(**LAPSING), client.connect()
    declare(holder, "q")
    publish(holder, "q", "x")
    held = get(holder, "q")
    taker = Taker(idle, "q", prefetch_count=1)
    (again,) = taker.take()
    with caplog.at_level(logging.WARNING, logger="reliq"):
        getattr(held, settle)()
        wait_until(lambda: held.delivery_tag in caplog.text)
    status = client.status("q")
    assert (status.ready, status.unacked, status.dead) == (0, 1, 0)
    again.ack()
    wait_until(lambda: client.settled("q"))


class Fragile(ConsumerMixin):
    """Loses its connection inside its first callback."""

    def __init__(self, connection, queue, cut):
        self.connection, self.queue, self.cut = connection, queue, cut
        self.seen = []

    def get_consumers(self, Consumer, channel):  # noqa: N803 - Kombu's name
        """Consume from the one queue."""
        return [Consumer([self.queue], on_message=self.on_task, prefetch_count=1)]

    def on_task(self, message):
        """Use the lost connection in the first call; then ack."""
        self.seen.append(message.payload)
        if len(self.seen) == 1:
            self.cut()
            message.channel.queue_declare("seen-nowhere-else")
        message.ack()
        self.should_stop = True


def test_connection_lost_while_a_callback_raises(client):
    """A ConsumerMixin whose callback raised gets the message again over its new connection."""
    proxy = Proxy(client.server)
    connection = client.connect(proxy.url(), visibility_timeout=60)
    queue = declare(connection, "q")
    publish(connection, "q", "x")
    # Cut by the command itself, because a connection found lost is replaced before the next
    # command.
    worker = Fragile(connection, queue, lambda: proxy.cut_at(b"seen-nowhere-else"))
    worker.run()
    assert worker.seen == ["x", "x"]
    wait_until(lambda: client.settled("q"))
    connection.release()
    proxy.close()


def cut_all(client):
    """End all connections to the server except this one."""
    client.raw.client_kill_filter(_type="normal", skipme=True)


def test_an_abandoned_message_comes_back(client):
    """After a lost connection, a message without references is released."""
    connection = client.connect(visibility_timeout=60)
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "x")
    taker.take()
    cut_all(client)
    connection.collect()
    taker.messages.clear()
    taker.channel = taker.consumer = None
    gc.collect()
    again = Taker(client.connect(), "q", prefetch_count=1)
    (message,) = again.take(timeout_s=8)
    assert message.payload == "x"
    message.ack()


def test_a_message_still_held_does_not_come_back(client):
    """After a lost connection, a message in progress keeps its lease."""
    connection, other = client.connect(), client.connect()
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "x")
    (held,) = taker.take()
    cut_all(client)
    connection.collect()
    revived = Taker(connection, "q", prefetch_count=1)
    assert revived.gets_nothing(for_s=2.5)
    held.ack()
    wait_until(lambda: client.settled("q"))
    publish(other, "q", "y")
    assert payloads(revived.take()) == ["y"]


@pytest.mark.slow
def test_a_cut_consumer_is_not_taken_for_dead(client):
    """A busy consumer with all its connections cut keeps its message, as its loop reconnects.

    Other consumers see that its registered connection is gone. That alone must not end its
    leases, although the consumer checks its own connection only after its work.
    """
    options = {"visibility_timeout": 4.5, "orphan_grace": 0.3}
    # No lease ends before the server's uptime exceeds the length of a lease.
    wait_until(lambda: client.raw.info("server")["uptime_in_seconds"] > 5)
    connection = client.connect(**options, client_name="busy")
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "long")
    (message,) = taker.take()
    idle = Taker(client.connect(**options, client_name="idle"), "q", prefetch_count=1)
    time.sleep(0.5)  # both have registered over their final connections
    for entry in client.raw.client_list():
        if entry["name"].startswith("busy:"):
            client.raw.client_kill_filter(_id=entry["id"])
    assert idle.gets_nothing(for_s=2.5)
    message.ack()


@pytest.mark.parametrize("lose", ["cut", "collect", "cut and collect"])
def test_an_ack_after_the_connection_was_lost(client, lose):
    """The ack of a message from a lost connection is sent over the next one."""
    connection = client.connect(visibility_timeout=60)
    taker = Taker(connection, "q")
    publish(connection, "q", "x")
    (held,) = taker.take()
    if "cut" in lose:
        cut_all(client)
    if "collect" in lose:
        connection.collect()
    held.ack()
    if "collect" not in lose:
        with pytest.raises(connection.connection_errors):
            connection.drain_events(timeout=2)
        connection.collect()
    connection.connect()
    wait_until(lambda: client.settled("q"))


def see_in_a_thread(store):
    """Read pending replies in another thread, as the background loop does."""

    def look():
        with suppress(BrokerUnavailable):
            store.receive()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert not store.alive


def see_by_an_ack(store):
    """Pause until the next command checks the connection first."""
    idle_for_long()


@pytest.mark.parametrize("see", [see_in_a_thread, see_by_an_ack])
def test_a_loss_that_was_seen_elsewhere(client, see):
    """drain_events raises once for a loss noticed elsewhere; the ack is sent; consuming resumes."""
    connection, other = client.connect(), client.connect()
    taker = Taker(connection, "q")
    publish(connection, "q", "x")
    (held,) = taker.take()
    cut_all(client)
    see(connection.transport.link.store)
    held.ack()
    with pytest.raises(connection.connection_errors):
        connection.drain_events(timeout=5)
    publish(other, "q", "y")
    assert ["y"] == taker.take_bodies(1)
    wait_until(lambda: client.settled("q"))


def test_bindings_that_went_with_the_loss(own):
    """After an ack has met a broker that lost its data, an application still declares again."""
    connection = own.connect()
    queue = Queue("q", Exchange("shop"), "sold")
    got = []

    def consume():
        Consumer(connection.default_channel, [queue], on_message=got.append).consume()

    consume()
    connection.Producer().publish("x", exchange="shop", routing_key="sold")
    connection.drain_events(timeout=5)
    own.raw.flushall()
    cut_all(own)
    see_by_an_ack(connection.transport.link.store)
    got.pop().ack()
    with pytest.raises(connection.connection_errors):
        connection.drain_events(timeout=5)
    connection.collect()
    consume()
    publisher = own.connect()
    publisher.Producer().publish("y", exchange="shop", routing_key="sold")
    connection.drain_events(timeout=5)
    assert ["y"] == payloads(got)
    got.pop().ack()


@pytest.mark.parametrize("lose", ["cut", "cut and collect"])
@pytest.mark.parametrize("settle", ["requeue", "reject"])
def test_settling_after_the_connection_was_lost(client, lose, settle):
    """A requeue or reject after a lost connection takes effect, so that the lease ends."""
    connection = client.connect(visibility_timeout=60)
    taker = Taker(connection, "q")
    publish(connection, "q", "x")
    (held,) = taker.take()
    cut_all(client)
    if "collect" in lose:
        connection.collect()
    with suppress(*connection.connection_errors):  # it may raise at once
        getattr(held, settle)()
    connection.collect()
    connection.connect()
    taker.messages.clear()
    del held
    gc.collect()

    def settled():
        status = client.status("q")
        return status.unacked == 0 and status.ready + status.dead == 1

    wait_until(settled)


@pytest.fixture
def own(fresh_redis):
    """Return a Client of its own server, which the test may freeze."""
    client = Client(fresh_redis, fresh_redis.url("reliq"))
    yield client
    client.server.thaw()
    client.close()
    client.raw.close()


@pytest.mark.slow
def test_a_server_that_stood_still_gives_time_to_renew(own, caplog):
    """A server that was frozen for longer than a lease ends no held lease when it resumes.

    The server reads a pass that was sent meanwhile before it reads the renewal.
    """
    options = {"visibility_timeout": 1.5, "restore_interval": 0.05, "socket_timeout": 20}
    holder, idle = own.connect(**options), own.connect(**options, socket_connect_timeout=4)
    mine = Taker(holder, "q", prefetch_count=1)
    publish(holder, "q", "long")
    mine.take()
    other = Taker(idle, "q", prefetch_count=1)
    (key,) = own.raw.keys("*{q}:unacked_index")

    def deadline() -> float:
        return own.raw.zrange(key, 0, 0, withscores=True)[0][1]

    for _ in range(3):
        before = deadline()
        wait_until(lambda before=before: deadline() > before, interval_s=0.005)
        own.server.freeze()
        time.sleep(2.5)  # frozen for longer than a lease plus the next renewal
        own.server.thaw()
        assert other.gets_nothing(for_s=0.5)
    assert [] == [record for record in caplog.records if "lease" in record.message]
    mine.messages[0].ack()
    wait_until(lambda: own.settled("q"))


def test_another_server_in_the_place_of_the_first_gives_time_to_renew(client):
    """A promoted replica, despite a long uptime, leaves consumers time for a first renewal."""
    connection = client.connect(visibility_timeout=1.5)
    declare(connection, "q")
    publish(connection, "q", "x")
    taker = Taker(connection, "q")
    taker.take()
    # Simulates earlier passes at another server.
    wait_until(lambda: client.raw.hget("reliq:{q}:meta", "run"))
    client.raw.zadd(
        "reliq:{q}:unacked_index", dict.fromkeys(client.raw.hkeys("reliq:{q}:unacked"), 1)
    )
    client.raw.hset("reliq:{q}:meta", "run", "0" * 40)
    wait_until(lambda: client.raw.hget("reliq:{q}:meta", "run") != b"0" * 40)
    assert (0, 1) == (client.status("q").ready, client.status("q").unacked)
    taker.messages[0].ack()
    wait_until(lambda: client.settled("q"))
