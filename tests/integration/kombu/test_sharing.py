"""One broker with many users: key prefixes, databases, threads, forks."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from kombu import Exchange, Queue

from tests.support.waiting import wait_until

from ..kombu_client import FAST, Taker, declare, exists, get, payloads, publish


def test_two_prefixes_do_not_see_each_other(client):
    """Applications with different global_keyprefix share a database, but no queues or exchanges."""
    one = client.connect(global_keyprefix="one.")
    two = client.connect(global_keyprefix="two.")
    for connection, body in ((one, "for one"), (two, "for two")):
        Queue("q", Exchange("x", "topic"), "k")(connection.default_channel).declare()
        connection.Producer().publish(body, exchange="x", routing_key="k")
    assert payloads(Taker(one, "q", auto_declare=False).take()) == ["for one"]
    assert payloads(Taker(two, "q", auto_declare=False).take()) == ["for two"]
    declare(one, "only here")
    assert not exists(two, "only here")


def test_every_key_carries_the_prefix(client):
    """With a global_keyprefix, all of reliq's keys begin with it."""
    connection = client.connect(global_keyprefix="mine:")
    Queue("q", Exchange("x", "fanout"), expires=60)(connection.default_channel).declare()
    taker = Taker(connection, "q", auto_declare=False, prefetch_count=2)
    connection.Producer().publish("x", exchange="x", expiration=60)
    publish(connection, "q", "a", "b", "c")
    taker.take(2)[0].reject()
    taker.messages[1].requeue()
    keys = [key.decode() for key in client.raw.scan_iter()]
    assert len(keys) > 5
    assert [key for key in keys if not key.startswith("mine:")] == []


def test_two_databases_do_not_see_each_other(client, redis_server, scheme):
    """The database number of the URL separates brokers."""
    zero = client.connect()
    one = client.connect(redis_server.url(scheme, db=1))
    declare(zero, "q")
    publish(zero, "q", "x")
    assert not exists(one, "q")
    assert get(zero, "q").payload == "x"


def test_ack_from_another_thread(client):
    """A message may be acked by another thread while its own thread waits in drain_events."""
    connection = client.connect()
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", *range(20))
    threads = []
    for _ in range(20):
        (message,) = taker.take()
        threads.append(threading.Timer(0.01, message.ack))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert payloads(taker.messages) == list(range(20))
    wait_until(lambda: client.settled("q"))


@pytest.mark.parametrize("settle", ["reject", "requeue"])
def test_settling_from_another_thread(client, settle):
    """Reject and requeue work from another thread."""
    connection = client.connect()
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "x", "y")
    (message,) = taker.take()
    # While this thread waits: a reserve before the return would take the next message.
    thread = threading.Timer(0.05, getattr(message, settle))
    thread.start()
    expected = {"reject": "y", "requeue": "x"}[settle]
    assert payloads(taker.take()) == [expected]
    thread.join()


def test_several_threads_publish_over_one_channel(client):
    """Threads that share a channel lose no message and mix no contents."""
    connection = client.connect()
    declare(connection, "q")
    producer = connection.Producer()
    failures = []

    def work(number):
        try:
            for n in range(50):
                producer.publish([number, n], exchange="", routing_key="q", headers={"n": n})
        except Exception as exc:  # noqa: BLE001 - reported below
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    messages = Taker(client.connect(), "q").take(200)
    assert sorted(payloads(messages)) == [[number, n] for number in range(4) for n in range(50)]
    assert all(message.headers["n"] == message.payload[1] for message in messages)


def test_publish_while_another_thread_drains(client):
    """A publish does not wait for a drain_events call on the same connection."""
    connection = client.connect()
    taker = Taker(connection, "idle")
    declare(connection, "q")
    ended = threading.Event()

    def drain():
        while not ended.is_set():
            taker.gets_nothing(for_s=0.2)

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        publish(connection, "q", *range(20))
    finally:
        ended.set()
        thread.join()
    assert client.status("q").ready == 20


FORK = """
import os, sys
import reliq
from kombu import Connection

url, how = sys.argv[1:]
with Connection(url, transport_options={options!r}) as connection:
    channel = connection.default_channel
    channel.queue_declare("q")
    producer = connection.Producer()

    def publish(who):
        for n in range(20):
            producer.publish([who, n], exchange="", routing_key="q")

    publish("before")
    held = channel.basic_get("q")
    child = os.fork()
    if child == 0:
        publish("child")
        if how == "release":
            connection.release()
        if how == "exit":
            sys.exit(0)
        os._exit(0)
    publish("parent")
    assert os.waitpid(child, 0)[1] == 0
    publish("after")
    held.ack()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["_exit", "exit", "release"])
def test_fork_after_connect(client, how):
    """A forked child publishes over its inherited connection; the parent's remains intact."""
    script = FORK.replace("{options!r}", repr(FAST))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, client.url, how],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    bodies = payloads(Taker(client.connect(), "q").take(79))
    expected = [[who, n] for who in ("before", "child", "parent", "after") for n in range(20)]
    assert sorted(bodies) == sorted(body for body in expected if body != ["before", 0])
    assert client.status("q").ledger["published"] == 80


CONSUME_AFTER_FORK = """
import os, sys
import reliq
from kombu import Connection, Consumer, Queue

url = sys.argv[1]
with Connection(url, transport_options={options!r}) as connection:
    def consume(count):
        def on_message(message):
            message.ack()
        with Consumer(connection.channel(), Queue("q"), on_message=on_message, prefetch_count=1):
            for _ in range(count):
                connection.drain_events(timeout=10)

    consume(1)
    child = os.fork()
    if child == 0:
        consume(5)
        connection.release()
        os._exit(0)
    consume(5)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_consume_on_both_sides_of_a_fork(client):
    """Parent and child consume, each as a separate consumer.

    Python 3.12 warns of the background loop's thread. It is stopped during the fork, but it runs
    again before Python checks.
    """
    declare(client.connect(), "q")
    publish(client.connect(), "q", *range(11))
    quiet = "ignore:This process:DeprecationWarning"
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            quiet,
            "-c",
            CONSUME_AFTER_FORK.replace("{options!r}", repr(FAST)),
            client.url,
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    wait_until(lambda: client.settled("q"))
