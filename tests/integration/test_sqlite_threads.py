"""Threads of one process that publish to one file: one at a time writes, for all who wait."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from kombu import Connection

import reliq.engines.sqlite.connection as module
from reliq.engines.sqlite.joint import Group
from reliq.engines.sqlite.location import location
from reliq.engines.sqlite.store import SqliteStore
from reliq.errors import BrokerUnavailable, ReliqError
from reliq.options import parse
from tests.contract.steps import audit, message
from tests.support.audits import assert_balanced
from tests.support.waiting import wait_until

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


class Crowd:
    """Threads that publish one message each, over stores of their own, while one keeps the file."""

    def __init__(self, path, **options):
        self.path = f"{path}/broker.db"
        self.url = f"reliq-sqlite:///{self.path}"
        self.options = parse(options)
        self.stores = []
        self.first = self.store()
        self.first.publish([message("q", b"first")])
        self.joint = self.first._joint
        self.turns = module.Turns.at(self.first.where.path)
        self.outcomes = {}
        self.threads = []

    def store(self):
        """Return a store of a thread."""
        store = SqliteStore(location(self.path), self.options, f"s/{len(self.stores)}")
        store.connect()
        self.stores.append(store)
        return store

    def publish(self, name, item):
        """Publish in a thread of its own, and let all before it wait by then."""
        store, waiting = self.store(), len(self.threads)

        def run():
            try:
                self.outcomes[name] = store.publish([item])
            except ReliqError as exc:
                self.outcomes[name] = exc

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()
        wait_until(lambda: self.joint._led and len(self.joint._waiting) == waiting)

    def join(self):
        """Wait for all of them."""
        for thread in self.threads:
            thread.join(timeout=20)
            assert not thread.is_alive()
        assert (False, 0) == (self.joint._led, len(self.joint._waiting))
        audit(self.first, ["q"])

    def close(self):
        """Close all stores."""
        for store in self.stores:
            store.close()


@pytest.fixture
def crowd(tmp_path):
    """Return a crowd."""
    made = Crowd(tmp_path)
    yield made
    made.close()


@pytest.fixture
def joined(monkeypatch):
    """Return how many others each transaction took in, in a list that grows."""
    counts = []
    join = Group.join

    def count(group, transaction):
        join(group, transaction)
        counts.append(len(group._others))

    monkeypatch.setattr(Group, "join", count)
    return counts


def test_what_waits_is_stored_together(crowd, joined):
    """One transaction for all who wait meanwhile; each is told what became of its own."""
    turn = crowd.turns.take(1)
    for n in range(THREADS):
        crowd.publish(n, message("q", b"x", number=1 if n % 2 else n + 10, publisher="p"))
    turn.release()
    crowd.join()
    assert [THREADS - 1] == joined
    stored = [n for n in range(THREADS) if crowd.outcomes[n] == [1]]
    assert sorted([n for n in range(THREADS) if not n % 2] + [1]) == stored
    assert {(0,)} == {tuple(crowd.outcomes[n]) for n in range(THREADS) if n not in stored}


def test_one_that_fails_fails_alone(crowd, joined):
    """Then nothing of all is stored together, but each by itself; only one is refused."""
    turn = crowd.turns.take(1)
    same = message("q", b"x")
    crowd.publish("leads", same)
    crowd.publish("before", message("q", b"x"))
    crowd.publish("refused", same)
    crowd.publish("behind", message("q", b"x"))
    turn.release()
    crowd.join()
    assert [] == joined
    assert isinstance(crowd.outcomes.pop("refused"), ReliqError)
    assert {"leads": [1], "before": [1], "behind": [1]} == crowd.outcomes
    assert 4 == crowd.first.status("q").ready


def test_a_commit_that_nobody_knows_of(crowd, monkeypatch):
    """Who waited is told that it is not known, and what it tries again is stored once."""
    join = Group.join

    def interrupted(group, transaction):
        join(group, transaction)
        raise KeyboardInterrupt

    item = message("q", b"x", number=7)
    turn = crowd.turns.take(1)
    with monkeypatch.context() as patched:
        patched.setattr(Group, "join", interrupted)
        patched.setattr(threading, "excepthook", lambda _: None)
        crowd.publish("leads", message("q", b"x"))
        crowd.publish("waits", item)
        turn.release()
        crowd.join()
    assert isinstance(crowd.outcomes["waits"], BrokerUnavailable)
    assert [1] == crowd.first.publish([item])
    assert [0] == crowd.first.publish([item])


def test_a_lead_that_is_not_given_back_is_passed_over(tmp_path):
    """Whoever waits for socket_timeout leads, and nobody waits after that."""
    crowd = Crowd(tmp_path, socket_timeout=0.5)
    crowd.joint._led = True
    assert [1] == crowd.first.publish([message("q", b"x")])
    assert not crowd.joint._led
    crowd.close()


def test_a_child_has_no_leader_of_its_parent(crowd):
    """It publishes at once, whoever led as it was forked."""
    crowd.joint._led = True
    pid = os.fork()
    if not pid:
        began = time.monotonic()
        with Connection(crowd.url) as connection:
            connection.Producer(serializer="json").publish("child", routing_key="q")
        os._exit(0 if time.monotonic() - began < 5 else 1)
    crowd.joint._led = False
    _, status = os.waitpid(pid, 0)
    assert 0 == os.waitstatus_to_exitcode(status)
    assert 2 == crowd.first.status("q").ready


def test_who_is_interrupted_waits_no_more(crowd):
    """What it waited with is not stored, and nobody is kept waiting by it."""
    turn = crowd.turns.take(1)
    crowd.publish("leads", message("q", b"x"))

    def stop(*_):
        raise TimeoutError("a soft time limit")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(TimeoutError, match="soft"):
            crowd.store().publish([message("q", b"never")])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert 0 == len(crowd.joint._waiting)
    turn.release()
    crowd.join()
    assert 2 == crowd.first.status("q").ready
