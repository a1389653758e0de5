"""Connections whose packets vanish, and clients that lost their broker all at once."""

from __future__ import annotations

import threading
import time

import pytest
from kombu import Connection

from reliq import BrokerTimeout
from reliq.engines.urls import connect
from tests.support.blackhole import Blackhole
from tests.support.waiting import wait_until

from .kombu_client import Taker, declare, publish
from .test_kombu_faults import RETRY, settled_or_drained, take_anyhow

TIMEOUT_S, POLL_S = 1.0, 0.5
OPTIONS = {"socket_timeout": TIMEOUT_S, "poll_interval": POLL_S, "visibility_timeout": 6}
# Until it is noticed, and what a busy machine takes to connect anew: less than by default.
NOTICED_S = TIMEOUT_S + POLL_S + 5.0


@pytest.fixture
def blackhole(client):
    """Return a way to the server that loses packets when it is told to."""
    proxy = Blackhole(client.server)
    yield proxy
    client.close()
    proxy.close()


def test_a_publisher_that_waits(client, blackhole):
    """It notices within socket_timeout and stores its message over another connection, once."""
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
    """The background loop looks after all connections: one that hangs must not stop it."""
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
    """Its ack hangs on one connection while another looks for what a lost reserve took.

    It has a lease still, and this process does not hold it: it is not for anybody else yet.
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
    hanging.close()  # only now the ack is known to have gone astray
    session.catch_up(store)
    assert (1, 0) == (client.status("q").ready, client.status("q").unacked)
    assert 1 == client.status("q").ledger["acked"]


def test_what_is_under_way_is_not_looked_for_as_unseen(client):
    """The connection that lost a reserve has asked again: what that takes is not unseen."""
    connection = client.connect(visibility_timeout=60)
    taker = Taker(connection, "q", prefetch_count=1)
    assert taker.gets_nothing()  # nor is a reply needed that says to load a script first.
    transport, session = connection.transport, taker.channel.transport.link.session
    session.background.stop()  # it would read the reply, and then look by itself.
    publish(connection, "q", "x")
    (subscription,) = transport.schedule.subscriptions
    transport.reserver.post_request(subscription, 1)
    wait_until(lambda: 1 == client.status("q").unacked, what="a reply that nobody has read")
    session.outbox.reserve_lost("q", transport.link.store.consumer)
    loops = session.open_store()
    session.send_owed(loops)
    assert session.owes  # to be looked for when it is known what the reserve took
    (message,) = taker.take()
    session.send_owed(loops)
    assert not session.owes
    loops.close()
    session.background.start()
    assert 1 == client.status("q").unacked
    message.ack()
    wait_until(lambda: client.settled("q"))


def test_a_publisher_that_only_posts(client, blackhole):
    """It is told by a later publish, within socket_timeout, and goes on over another one."""
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
    """It notices that its wait is answered no more, connects anew, and gets the next message."""
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
    """Its thread notices and renews over another connection, while the application works."""
    connection = client.connect(blackhole.url(), **OPTIONS)
    taker = Taker(connection, "q", prefetch_count=1)
    publish(client.connect(), "q", "x")
    (message,) = taker.take()
    background = f"reliq:{connection.transport.link.session.id}/"
    main = f"reliq:{connection.transport.link.store.consumer}"

    def loops():
        # One that is logged in, and has done something: a login that hangs takes its 5 s.
        done = [item for item in client.raw.client_list() if item["cmd"].startswith("evalsha")]
        names = {entry["name"]: entry["id"] for entry in done}
        return {
            number
            for name, number in names.items()
            if name.startswith(background) and name.split(":notification")[0] != main
        }

    before = wait_until(loops, what="the background loop's connection")
    blackhole.swallow()
    # A third of the lease until it has something to say; then socket_timeout.
    wait_until(lambda: loops() - before, timeout_s=2 + NOTICED_S, what="another connection")
    # The lease would have run out by now, had it not been renewed.
    deadline = time.monotonic() + OPTIONS["visibility_timeout"]
    other = Taker(client.connect(), "q")
    assert other.gets_nothing(for_s=deadline - time.monotonic())
    message.ack()
    wait_until(lambda: settled_or_drained(client, connection))


def test_clients_of_a_returning_broker_come_one_by_one(fresh_redis):
    """Those that lost it in one instant, and pause alike, are spread over most of a second."""
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
            connection.collect()  # as Celery does when it learns of a loss.
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
    time.sleep(2.5 * pause_s)  # how long it is away: some tries fail, alike in all of them.
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
