"""Consumers without acks: the messages reserved ahead, and their return."""

from __future__ import annotations

import subprocess
import sys

from ..kombu_client import Taker, publish

AHEAD = 10
"""Maximum number of messages that such a consumer holds beside the current one."""

HANGS = """
import sys, time
from kombu import Connection, Queue
connection = Connection(sys.argv[1])
def work(body, message):
    print("began", flush=True)
    time.sleep(60)
with connection.Consumer(Queue("q"), callbacks=[work], no_ack=True):
    connection.drain_events(timeout=20)
"""


def test_what_was_not_handed_out_is_there_after_an_orderly_close(client):
    """An orderly close returns undelivered messages in order, each once."""
    publish(client.connect(), "q", *range(30))
    seen = []
    for _ in range(3):
        connection = client.connect()
        taker = Taker(connection, "q", no_ack=True)
        seen += [message.payload for message in taker.take(4)]
        connection.release()
    assert list(range(12)) == seen
    status = client.status("q")
    assert (18, 12) == (status.ready, status.ledger["acked"])


def test_a_cancelled_consumer_gives_the_rest_to_another(client):
    """Cancelling a consumer returns its undelivered messages and wakes another consumer."""
    connection, other = client.connect(), client.connect()
    publish(connection, "q", *range(8))
    taker, waiting = Taker(connection, "q", no_ack=True), Taker(other, "q", no_ack=True)
    first = [message.payload for message in taker.take(1)]
    taker.consumer.cancel()
    assert list(range(8)) == first + [message.payload for message in waiting.take(7)]


def test_a_lost_connection_costs_what_was_handed_out_only(client):
    """After a lost connection, undelivered messages are returned over the next connection."""
    publish(client.connect(), "q", *range(30))
    connection = client.connect()
    taker = Taker(connection, "q", no_ack=True)
    assert [0, 1] == [message.payload for message in taker.take(2)]
    connection.collect()
    again = Taker(connection, "q", no_ack=True)
    rest = [message.payload for message in again.take(28)]
    assert list(range(2, 30)) == sorted(rest)


def test_a_kill_costs_a_few(client):
    """A killed consumer loses the current message and at most a few more."""
    publish(client.connect(), "q", *range(50))
    process = subprocess.Popen(
        [sys.executable, "-c", "import reliq\n" + HANGS, client.url],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert "began\n" == process.stdout.readline()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    status = client.status("q")
    assert 50 == status.ready + status.ledger["acked"]
    assert 1 <= status.ledger["acked"] <= 1 + AHEAD


def test_large_messages_do_not_pile_up_in_a_consumer(client):
    """Without a prefetch limit, a consumer reserves only a few large messages ahead."""
    connection = client.connect()
    publish(connection, "q", *("x" * (1 << 20) for _ in range(30)))
    taker = Taker(connection, "q")
    assert 1 == len(taker.take(1))
    assert client.status("q").unacked <= 8
    assert 29 == len(taker.take(29))
