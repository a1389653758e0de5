"""Messages and queues expire, and messages return, without a request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

import pytest
from kombu import Connection, Exchange, Queue

from reliq import NotFound
from reliq.admin import Inspector
from tests.integration.kombu_client import FAST, Taker, declare, get, publish
from tests.support.waiting import wait_until

# Takes one message of the queue, by consuming or polling, and holds it until it is killed.
HOLDER = """
import json, sys, time
from kombu import Connection, Consumer, Exchange, Queue
import reliq

url, how, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
queue = Queue("q", Exchange(""), "q")
held = []
with Connection(url, transport_options=options) as connection:
    if how == "get":
        held.append(queue(connection.default_channel).get())
    else:
        with Consumer(connection, [queue], on_message=held.append, prefetch_count=1):
            while not held:
                connection.drain_events(timeout=5)
            print("held", flush=True)
            time.sleep(600)
    assert held[0] is not None
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def connect(url):
    """Return a function that opens a connection; all are closed after the test."""
    with ExitStack() as stack:

        def open_one(**options):
            connection = Connection(url, transport_options={**FAST, **options})
            return stack.enter_context(connection)

        yield open_one


@pytest.fixture
def status(url):
    """Return a function that returns the status of a queue, or None if there is none."""
    with Inspector(url) as inspector:

        def look(queue):
            with suppress(NotFound):
                return inspector.status(queue)

        yield look


@pytest.mark.parametrize(
    ("how", "options"),
    [
        # The holder's death is seen long before its lease ends.
        ("consume", '{"visibility_timeout": 60, "orphan_grace": 0.5, "restore_interval": 0.2}'),
        # The holder was in no register, so its lease has to end.
        ("get", '{"visibility_timeout": 1.5, "restore_interval": 0.2}'),
    ],
)
def test_who_only_polls_gets_what_a_killed_process_held(url, connect, how, options):
    """A client that only polls a queue gets the messages of a killed process.

    Polling a queue makes passes over it, even without any consumer.
    """
    lease_s = 60 if how == "consume" else 1.5
    connection = connect(visibility_timeout=lease_s)
    declare(connection, "q")
    publish(connection, "q", "precious")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url, how, options], stdout=subprocess.PIPE
    )
    try:
        assert b"held\n" == holder.stdout.readline()
        get(connection, "q")
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    message = wait_until(lambda: get(connection, "q"))
    assert ("precious", 1) == (message.payload, message.headers["x-delivery-count"])
    message.ack()


def test_polling_costs_a_pass_an_interval(redis_server, redis_url):
    """Polling makes one pass per interval and queue, however often it is done."""
    options = {**FAST, "restore_interval": 5}
    with Connection(redis_url, transport_options=options) as connection:
        for queue in ("a", "b"):
            declare(connection, queue)
        client = redis_server.client()
        client.config_resetstat()
        for _ in range(50):
            for queue in ("a", "b"):
                assert get(connection, queue) is None
        scripts = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        client.close()
    assert 100 <= scripts <= 100 + 2 + 2


def test_messages_expire_in_a_queue_that_nobody_reads(connect, status):
    """All messages of a queue without consumers expire in time, while any consumer exists."""
    connection = connect()
    declare(connection, "q")
    publish(connection, "q", *range(500), expiration=0.3)
    publish(connection, "q", "stays")
    Taker(connect(), "other")
    wait_until(lambda: status("q").ledger.get("expired") == 500)
    assert 1 == status("q").ready


def test_messages_die_in_a_queue_that_nobody_reads(connect, status):
    """Expired messages of a queue without consumers become dead letters if the queue keeps them."""
    connection = connect()
    declare(connection, "q", queue_arguments={"x-dead-letter-expired": True})
    publish(connection, "q", "late", expiration=0.3)
    Taker(connect(), "other")
    wait_until(lambda: status("q").dead == 1)


def test_messages_expire_before_a_consumer_whose_hands_are_full(connect, status):
    """Messages expire in time even if the queue's only consumer is at its prefetch limit."""
    connection = connect()
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "held")
    (held,) = taker.take()
    publish(connection, "q", *range(300), expiration=0.3)
    wait_until(lambda: status("q").ledger.get("expired") == 300)
    held.ack()


def test_hundreds_of_queues_expire_in_seconds(url, connect):
    """Hundreds of queues expire within seconds, instead of a few per heartbeat."""
    connection = connect()
    channel = connection.default_channel
    for number in range(600):
        Queue(f"brief{number}", Exchange(""), expires=1)(channel).queue_declare()
    Taker(connect(), "other")
    with Inspector(url) as inspector:  # twenty per heartbeat took ten minutes
        wait_until(lambda: ["other"] == inspector.queues(), timeout_s=60)


def test_a_full_queue_of_expired_messages_takes_more(connect, status):
    """A full queue of expired messages accepts a publish, even without any consumer."""
    connection = connect()
    declare(connection, "q", max_length=50, queue_arguments={"x-overflow": "reject-publish"})
    publish(connection, "q", *range(50), expiration=0.2)
    time.sleep(0.3)
    publish(connection, "q", "fits")
    assert (1, 50) == (status("q").ready, status("q").ledger["expired"])


@pytest.mark.slow
def test_idle_queues_cost_little(redis_server, redis_url):
    """A hundred idle queues cost about as much as one, because one command surveys many queues."""
    options = {**FAST, "restore_interval": 0.2}
    queues = [f"q{number}" for number in range(100)]
    with (
        Connection(redis_url, transport_options=options) as first,
        Connection(redis_url, transport_options={**options, "client_name": "other"}) as second,
    ):
        takers = [Taker(connection, *queues) for connection in (first, second)]
        for taker in takers:
            assert taker.gets_nothing(for_s=1)
        client = redis_server.client()
        client.config_resetstat()
        began = time.monotonic()
        assert takers[0].gets_nothing(for_s=2)
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        seconds = time.monotonic() - began
        client.close()
    # Each consumer sends a survey every 0.18 to 0.22 s, and a heartbeat every second.
    assert calls <= 2 * (seconds / 0.15 + 2 * seconds + 4)
