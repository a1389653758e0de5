"""Half-open connections, which lose packets, and clients that lose their broker together."""

from __future__ import annotations

import threading
import time

import pytest
from kombu import Connection

from reliq import BrokerTimeout
from reliq.store.urls import connect
from tests.support.blackhole import Blackhole
from tests.support.waiting import wait_until

from ..kombu_client import Taker, declare, publish
from .test_kombu_faults import RETRY, settled_or_drained, take_anyhow

TIMEOUT_S, POLL_S = 1.0, 0.5
OPTIONS = {"socket_timeout": TIMEOUT_S, "poll_interval": POLL_S, "visibility_timeout": 6}
# The time to notice the loss, and to reconnect on a busy machine: less than the defaults.
NOTICED_S = TIMEOUT_S + POLL_S + 5.0


@pytest.fixture
def blackhole(client):
    """Return a path to the server that can lose all packets."""
    proxy = Blackhole(client.server)
    yield proxy
    client.close()
    proxy.close()


def test_a_publisher_that_waits(client, blackhole):
    """A publisher notices within socket_timeout and stores its message over a new connection."""
    connection = client.connect(blackhole.url(), **OPTIONS)
    declare(connection, "q")
    publish(connection, "q", 1)
    assert blackhole.swallow()
    began = time.monotonic()
    connection.Producer().publish(2, exchange="", routing_key="q", **RETRY)
    assert time.monotonic() - began < NOTICED_S
    assert 2 == client.status("q").ready
    assert 2 == client.status("q").ledger["published"]


def test_nobody_else_waits_for_who_waits_for_a_reply(client, blackhole):
    """A hanging connection does not block the background loop, which serves all connections."""
    connection = client.connect(blackhole.url(), **OPTIONS)
    declare(connection, "q")
    transport = connection.transport
    assert blackhole.swallow()

    def ask():
        with pytest.raises(BrokerTimeout):
            transport.link.store.reserve("q", 1, 60_000, False)

    waiting = threading.Thread(target=ask)
    waiting.start()
    wait_until(lambda: transport.link.store.waiting, interval_s=0.001, what="a command under way")
    began = time.monotonic()
    transport.read_replies()
    assert time.monotonic() - began < TIMEOUT_S / 2
    waiting.join()


def test_what_was_acked_is_not_looked_for_as_unseen(client, blackhole):
    """A message with a pending ack is not returned as undelivered by another connection.

    It still has a lease, and this process does not hold it, but its ack may yet arrive.
    """
    connection = client.connect(visibility_timeout=60)
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "done", "next")
    (message,) = taker.take()
    session, store = taker.channel.transport.link.session, connection.transport.link.store
    hanging = connect(blackhole.url(), {}, "hanging/1")
    hanging.connect()
    assert blackhole.swallow()
    session.outbox.ack(hanging, "q", [message.delivery_tag])
    session.outbox.reserve_lost("q", store.consumer)
    session.catch_up(store)
    assert (1, 1) == (client.status("q").ready, client.status("q").unacked)
    hanging.close()  # only now the ack is known to be lost
    session.catch_up(store)
    assert (1, 0) == (client.status("q").ready, client.status("q").unacked)
    assert 1 == client.status("q").ledger["acked"]


def test_what_is_under_way_is_not_looked_for_as_unseen(client):
    """A message that a pending reserve took is not undelivered, despite an earlier lost reserve."""
    connection = client.connect(visibility_timeout=60)
    taker = Taker(connection, "q", prefetch_count=1)
    assert taker.gets_nothing()  # also loads the script, so that the later reply brings a message
    transport, session = connection.transport, taker.channel.transport.link.session
    session.background.stop()  # it would read the reply, and then search
    publish(connection, "q", "x")
    (subscription,) = transport.schedule.subscriptions
    transport.reserver.post_request(subscription, 1)
    wait_until(lambda: 1 == client.status("q").unacked, what="a reply that nobody has read")
    session.outbox.reserve_lost("q", transport.link.store.consumer)
    loops = session.open_store()
    session.send_owed(loops)
    assert session.owes  # the search waits until the result of the reserve is known
    (message,) = taker.take()
    session.send_owed(loops)
    assert not session.owes
    loops.close()
    session.background.start()
    assert 1 == client.status("q").unacked
    message.ack()
    wait_until(lambda: client.settled("q"))


def test_a_publisher_that_only_posts(client, blackhole):
    """With confirm="none", a later publish raises within socket_timeout; a new connection works."""
    connection = client.connect(blackhole.url(), **OPTIONS, confirm="none")
    declare(connection, "q")
    publish(connection, "q", "before")
    wait_until(lambda: client.status("q").ready == 1)
    blackhole.swallow()
    deadline = time.monotonic() + NOTICED_S

    def post_again_and_again():
        while time.monotonic() < deadline:
            publish(connection, "q", "vanishes")

    with pytest.raises(BrokerTimeout):
        post_again_and_again()
    connection.collect()
    publish(connection, "q", "after")
    wait_until(lambda: client.status("q").ready == 2)


def test_a_consumer_that_waits(client, blackhole):
    """A waiting consumer notices the missing reply, reconnects and receives the next message."""
    connection = client.connect(blackhole.url(), **OPTIONS)
    taker = Taker(connection, "q")
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.1)
    blackhole.swallow()
    publish(client.connect(), "q", "x")
    began = time.monotonic()
    (message,) = take_anyhow(connection, taker)
    assert time.monotonic() - began < NOTICED_S
    message.ack()
    wait_until(lambda: settled_or_drained(client, connection))


@pytest.mark.slow
def test_a_background_loop_of_a_busy_consumer(client, blackhole):
    """The background loop of a busy consumer notices the loss and renews over a new connection."""
    connection = client.connect(blackhole.url(), **OPTIONS)
    taker = Taker(connection, "q", prefetch_count=1)
    publish(client.connect(), "q", "x")
    (message,) = taker.take()
    background = f"reliq:{connection.transport.link.session.id}/"
    main = f"reliq:{connection.transport.link.store.consumer}"

    def loops():
        # Only connections with a completed command: a hanging login takes 5 s.
        done = [item for item in client.raw.client_list() if item["cmd"].startswith("evalsha")]
        names = {entry["name"]: entry["id"] for entry in done}
        return {
            number
            for name, number in names.items()
            if name.startswith(background) and name.split(":notification")[0] != main
        }

    before = wait_until(loops, what="the background loop's connection")
    blackhole.swallow()
    # The next renewal is due after a third of the lease; then socket_timeout passes.
    wait_until(lambda: loops() - before, timeout_s=2 + NOTICED_S, what="another connection")
    # Without a renewal, the lease would have ended by now.
    deadline = time.monotonic() + OPTIONS["visibility_timeout"]
    other = Taker(client.connect(), "q")
    assert other.gets_nothing(for_s=deadline - time.monotonic())
    message.ack()
    wait_until(lambda: settled_or_drained(client, connection))


def test_clients_of_a_returning_broker_come_one_by_one(fresh_redis):
    """Clients that lose a broker together, with equal pauses, reconnect over most of a second."""
    count, pause_s = 20, 1.0
    came: list[float] = []
    ready, lost = threading.Barrier(count + 1), threading.Event()

    def live(number: int) -> None:
        with Connection(
            fresh_redis.url(), transport_options={"client_name": f"client{number}"}
        ) as connection:
            connection.connect()
            ready.wait()
            lost.wait()
            connection.collect()  # as Celery does after a loss
            connection.ensure_connection(
                interval_start=pause_s, interval_step=0, interval_max=pause_s
            )
            came.append(time.monotonic())

    threads = [threading.Thread(target=live, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    fresh_redis.kill()
    lost.set()
    time.sleep(2.5 * pause_s)  # the outage, in which several attempts of every client fail
    fresh_redis.start()
    for thread in threads:
        thread.join(30)
    assert count == len(came)
    came.sort()
    spread_s = came[-1] - came[0]
    crowd = max(sum(1 for at in came if start <= at < start + 0.1) for start in came)
    print(f"{count} clients came within {spread_s:.2f} s, at most {crowd} of them in 0.1 s")
    assert spread_s > 0.4
    assert crowd < count * 0.75
