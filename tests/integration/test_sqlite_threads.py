"""Threads of one process that publish to one file."""

from __future__ import annotations

import threading

import pytest
from kombu import Connection

import reliq.engines.sqlite.connection as module
from tests.support.audits import assert_balanced

THREADS = 16
EACH = 40


@pytest.fixture
def url(tmp_path):
    """Return the URL of a file that there is."""
    url = f"reliq-sqlite:///{tmp_path}/broker.db"
    with Connection(url) as connection:
        connection.SimpleQueue("orders").put("first")
    return url


def publish(url, begin, count=EACH):
    """Publish over a connection of one's own, as each thread of a web server does."""
    with Connection(url) as connection, connection.Producer(serializer="json") as producer:
        connection.ensure_connection()
        begin.wait()
        for n in range(count):
            producer.publish(n, routing_key="orders")


def test_threads_wait_for_each_other_and_not_for_the_file(url, monkeypatch):
    """Sixteen threads that publish never find the file locked, and all is stored."""
    found_locked = []
    slept = module.sleep

    def sleep(seconds):
        found_locked.append(seconds)
        slept(seconds)

    begin = threading.Barrier(THREADS)
    threads = [threading.Thread(target=publish, args=(url, begin)) for _ in range(THREADS)]
    # Only from when the files are open: SQLite looks after a file that is opened by itself.
    begin._action = lambda: monkeypatch.setattr(module, "sleep", sleep)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == found_locked
    with Connection(url) as connection:
        assert THREADS * EACH + 1 == connection.SimpleQueue("orders").qsize()
    assert_balanced(url)


def test_a_turn_that_is_not_given_back_is_passed_over(url):
    """A thread that never ends its turn delays the others once, and stops nobody."""
    with Connection(url, transport_options={"socket_timeout": 0.5}) as connection:
        producer = connection.Producer(serializer="json")
        producer.publish("before", routing_key="orders")
        stuck = module.Turns.at(
            connection.default_channel.transport.link.store._connection.where.path
        )
        assert stuck.take(1) is not None

        producer.publish("after", routing_key="orders")

        assert 3 == connection.SimpleQueue("orders").qsize()
    assert_balanced(url)
