"""Kombu's process mailbox, on which Celery's remote control is built."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from kombu.pidbox import Mailbox

from tests.support.waiting import wait_until

from ..kombu_client import exists


@pytest.fixture
def nodes(client):
    """Return a function that starts a node, which serves its mailbox in a thread."""
    ended = threading.Event()
    threads = []

    def start(hostname, kind="fanout", seen=None):
        connection = client.connect()
        node = Mailbox("test", type=kind, accept=["json"])(connection).Node(
            hostname, state={"seen": [] if seen is None else seen}, channel=connection.channel()
        )

        @node.handler
        def double(state, number):
            return number * 2

        @node.handler
        def note(state, what):
            state["seen"].append((hostname, what))

        @node.handler
        def fail(state):
            raise ValueError("no")

        consumer = node.listen()

        def serve():
            while not ended.is_set():
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.1)
            consumer.cancel()

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return node

    yield start
    ended.set()
    for thread in threads:
        thread.join()


def test_call(client, nodes):
    """A call reaches the named node and returns its answer."""
    nodes("one")
    nodes("two")
    mailbox = Mailbox("test", type="fanout")(client.connect())
    assert mailbox.call(["two"], "double", {"number": 21}, timeout=5) == [{"two": 42}]


def test_multi_call(client, nodes):
    """A broadcast call collects the answer of every node."""
    for name in ("one", "two", "three"):
        nodes(name)
    mailbox = Mailbox("test", type="fanout")(client.connect())
    answers = mailbox.multi_call("double", {"number": 4}, timeout=5, limit=3)
    assert {name: value for answer in answers for name, value in answer.items()} == {
        "one": 8,
        "two": 8,
        "three": 8,
    }


def test_calls_in_a_row(client, nodes):
    """The mailbox declares its reply queue for each call and leaves none behind."""
    nodes("one")
    mailbox = Mailbox("test", type="fanout")(client.connect())
    for number in range(5):
        answer = mailbox.call(["one"], "double", {"number": number}, timeout=5)
        assert answer == [{"one": number * 2}]
    assert not exists(client.connect(), mailbox.reply_queue.name)


def test_an_error_in_a_handler(client, nodes):
    """The answer of a failed handler is its exception."""
    nodes("one")
    mailbox = Mailbox("test", type="fanout")(client.connect())
    assert mailbox.call(["one"], "fail", timeout=5) == [{"one": {"error": "ValueError('no')"}}]


def test_cast(client, nodes):
    """A cast is handled by the named nodes, or by all, without a reply."""
    seen = []
    nodes("one", seen=seen)
    nodes("two", seen=seen)
    mailbox = Mailbox("test", type="fanout")(client.connect())
    mailbox.cast(["one"], "note", {"what": "to one"})
    mailbox.abcast("note", {"what": "to all"})
    wait_until(lambda: len(seen) == 3)
    assert sorted(seen) == [("one", "to all"), ("one", "to one"), ("two", "to all")]


def test_no_answer(client):
    """A call to a missing node returns after its timeout, without an answer."""
    mailbox = Mailbox("test", type="fanout")(client.connect())
    assert mailbox.call(["nobody"], "double", {"number": 1}, timeout=0.3) == []


def test_direct_mailbox(client, nodes):
    """A mailbox of type direct answers calls."""
    nodes("one", kind="direct")
    mailbox = Mailbox("test", type="direct")(client.connect())
    assert mailbox.call(["one"], "double", {"number": 3}, timeout=5) == [{"one": 6}]


def test_two_nodes_of_one_name(client, nodes, caplog):
    """Two nodes of one name, in one process, both get each command; the second one is warned."""
    seen = []
    nodes("one", seen=seen)
    assert "node name" not in caplog.text
    nodes("one", seen=seen)
    assert "another running worker has the node name 'one'" in caplog.text
    mailbox = Mailbox("test", type="fanout")(client.connect())
    for command in ("a", "b"):
        mailbox.cast(["one"], "note", {"what": command})
    wait_until(lambda: len(seen) == 4)
    assert [("one", "a"), ("one", "a"), ("one", "b"), ("one", "b")] == sorted(seen)
    answers = mailbox.multi_call("double", {"number": 4}, timeout=5, limit=2)
    assert [{"one": 8}, {"one": 8}] == answers
