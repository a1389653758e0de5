"""Each error reply of a server, to each command: reports are kept, and no message is lost."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter

import pytest
from kombu import Connection, Queue

from reliq.client.error_replies import CODES, class_of
from reliq.errors import BrokerRefused, ReliqError
from tests.integration.kombu_client import FAST
from tests.support.audits import assert_balanced, wait_settled
from tests.support.injector import Injector, name_of
from tests.support.waiting import wait_until

REPLIES = {
    "LOADING": "LOADING Redis is loading the dataset in memory",
    "BUSY": "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN.",
    "MISCONF": "MISCONF Errors writing to the AOF file: No space left on device",
    "NOREPLICAS": "NOREPLICAS Not enough good replicas to write.",
    "OOM": "OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY": "READONLY You can't write against a read only replica.",
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is 'no'.",
    "UNBLOCKED": "UNBLOCKED force unblock from blocking operation, instance state changed",
    "CLUSTERDOWN": "CLUSTERDOWN Hash slot not served",
    "TRYAGAIN": "TRYAGAIN Multiple keys request during rehashing of slot",
    "NOAUTH": "NOAUTH Authentication required.",
    "WRONGPASS": "WRONGPASS invalid username-password pair or user is disabled.",
    "MOVED": "MOVED 1234 127.0.0.1:1",
    "ASK": "ASK 1234 127.0.0.1:1",
    "CROSSSLOT": "CROSSSLOT Keys in request don't hash to the same slot",
    "NOPERM": "NOPERM this user has no permissions to access one of the keys",
    "NOSCRIPT": "NOSCRIPT No matching script. Please use EVAL.",
    "WRONGTYPE": "WRONGTYPE Operation against a key holding the wrong kind of value",
    "clients": "ERR max number of clients reached",
    "command": "ERR unknown command",
    "script": "ERR user_script:1: boom",
    "other": "EXECABORT Transaction discarded because of previous errors.",
}
PASSING = sorted(name for name, text in REPLIES.items() if class_of(text).passes)
OPTIONS = {**FAST, "visibility_timeout": 6.0, "orphan_grace": 3.0, "socket_timeout": 2.0}


@pytest.fixture
def injector(redis_server):
    """Return an injector in front of an empty server."""
    with contextlib.closing(redis_server.client()) as client:
        client.flushall()
    injector = Injector(redis_server)
    with contextlib.closing(injector):
        yield injector


def test_every_known_reply_is_here():
    """Each code of the table has a reply in these tests."""
    assert set() == CODES.keys() - REPLIES.keys()


class Some:
    """Answers some commands, chosen by a seed, with one of several errors."""

    def __init__(self, injector, names, part, *, but=()):
        self.random = random.Random(7)
        self.errors = [REPLIES[name] for name in names]
        self.part, self.but = part, but
        self.answered = Counter()
        injector.decide = self

    def __call__(self, parts):
        """Return an error for some commands."""
        name = name_of(parts)
        if name in self.but or self.random.random() >= self.part:
            return None
        error = self.random.choice(self.errors)
        self.answered[name] += 1
        return error


def _publish(url, name, number, stored):
    key = iter(f"{name}{i}" for i in range(number))
    body = next(key)
    while body:
        with (
            contextlib.suppress(ReliqError, OSError),
            Connection(url, transport_options=OPTIONS) as connection,
        ):
            producer = connection.Producer()
            while body:
                with contextlib.suppress(ReliqError):  # it may raise, but must not lie
                    producer.publish(body, routing_key="q", retry=True, retry_policy=POLICY)
                    stored.append(body)
                body = next(key, None)


POLICY = {"max_retries": 10, "interval_start": 0, "interval_step": 0.01, "interval_max": 0.1}


def _consume(url, ran, is_over):
    def take(body, message):
        ran[body] += 1
        message.ack()

    while not is_over.is_set():
        with (
            contextlib.suppress(ReliqError, OSError),
            Connection(url, transport_options=OPTIONS) as connection,
            connection.Consumer([Queue("q")], callbacks=[take], prefetch_count=20),
        ):
            while not is_over.is_set():
                with contextlib.suppress(socket.timeout):
                    connection.drain_events(timeout=0.2)


def mixed(injector, redis_server, names, part, number):
    """Publish and consume while some commands are answered with errors; return the outcome."""
    stored, ran, is_over = [], Counter(), threading.Event()
    some = Some(injector, names, part)
    makers = [
        threading.Thread(target=_publish, args=(injector.url(), name, number, stored))
        for name in "ab"
    ]
    takers = [threading.Thread(target=_consume, args=(injector.url(), ran, is_over)) for _ in "cd"]
    try:
        for thread in (*makers, *takers):
            thread.start()
        for thread in makers:
            thread.join()
        some.part = 0
        wait_until(lambda: not set(stored) - ran.keys(), what="every stored message to run")
        wait_settled(redis_server.url(), "q")
    finally:
        is_over.set()
        for thread in takers:
            thread.join()
    assert_balanced(redis_server.url())
    return len(stored), {body for body, times in ran.items() if times > 1}, some.answered


def test_replies_that_pass_lose_and_repeat_nothing(injector, redis_server):
    """Replies that pass, to any command, lose no message and repeat none."""
    stored, repeated, answered = mixed(injector, redis_server, PASSING, 0.03, 150)
    assert (set(), True) == (repeated, stored > 250), (stored, answered)


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_to_any_command(injector, redis_server, name):
    """A reply, to any command, loses no message; one that passes repeats none."""
    _, repeated, answered = mixed(injector, redis_server, [name], 0.05, 400)
    assert not repeated or name not in PASSING, (len(repeated), answered)


@pytest.mark.parametrize("name", PASSING)
def test_an_ack_is_kept(injector, redis_server, name):
    """An ack that the server does not run now is sent until it does: its message runs once."""
    ran, is_over = Counter(), threading.Event()
    with Connection(redis_server.url()) as connection:
        producer = connection.Producer()
        for body in "xyz":
            producer.publish(body, routing_key="q", declare=[Queue("q")])
    refused = 0

    def decide(parts):
        nonlocal refused
        if name_of(parts) != "ack" or refused == 4:
            return None
        refused += 1
        return REPLIES[name]

    injector.decide = decide
    taker = threading.Thread(target=_consume, args=(injector.url(), ran, is_over))
    taker.start()
    try:
        wait_settled(redis_server.url(), "q")
    finally:
        is_over.set()
        taker.join()
    assert (dict.fromkeys("xyz", 1), 4) == (ran, refused)


@pytest.fixture
def owing(injector):
    """Return a session that has taken a message of each of two queues, and its store."""
    with Connection(injector.url(), transport_options=OPTIONS) as connection:
        channel = connection.default_channel
        for queue in "pq":
            connection.Producer().publish("x", routing_key=queue, declare=[Queue(queue)])
        yield channel.connection.link.session, channel.connection.link.store


def taken(store, no_ack):
    """Take the message of each queue."""
    return [store.reserve(queue, 1, 60_000, no_ack).deliveries[0] for queue in "pq"]


@pytest.mark.parametrize(("no_ack", "script"), [(False, "release"), (True, "hand_back")])
def test_a_refused_return_delays_no_other(owing, injector, redis_server, no_ack, script):
    """A return that the broker refuses is kept, and the returns of other queues are not lost."""
    session, store = owing
    session.outbox.return_later(taken(store, no_ack), no_ack=no_ack)
    injector.decide = lambda parts: (
        REPLIES["OOM"] if name_of(parts) == script and b"reliq:{p}:" in b" ".join(parts) else None
    )
    with pytest.raises(BrokerRefused, match="OOM"):
        session.send_owed(store)
    if not no_ack:
        wait_settled(redis_server.url(), "q", ready=1)
    injector.decide = lambda _: None
    session.send_owed(store)
    for queue in "pq":
        wait_settled(redis_server.url(), queue, ready=1)


def test_a_refused_return_does_not_end_a_reconnect(owing, injector, redis_server):
    """A new connection is usable although the broker refuses a return."""
    session, store = owing
    session.outbox.return_later(taken(store, no_ack=False))
    injector.decide = lambda parts: REPLIES["OOM"] if name_of(parts) == "release" else None
    session.catch_up(store)
    assert session.owes
    injector.decide = lambda _: None
    session.catch_up(store)
    wait_settled(redis_server.url(), "p", ready=1)


def test_a_process_that_ends_reports_unconfirmed_acks(owing, injector, redis_server, caplog):
    """A process that ends while the broker refuses its acks logs how many it has not confirmed."""
    session, store = owing
    injector.decide = lambda parts: REPLIES["MISCONF"] if name_of(parts) == "ack" else None
    for delivery in taken(store, no_ack=False):
        session.outbox.ack(store, delivery.queue, [delivery.tag])
    session.finish()
    assert "has not confirmed the acks of 2 finished messages" in caplog.text
    injector.decide = lambda _: None
    session.finish()
    for queue in "pq":
        wait_settled(redis_server.url(), queue)


def test_a_reserve_larger_than_the_output_buffer(injector, redis_server):
    """Messages arrive although a full prefetch of them exceeds client-output-buffer-limit."""
    ran, is_over = Counter(), threading.Event()
    with contextlib.closing(redis_server.client()) as client, Connection(injector.url()) as sender:
        for number in range(12):
            body = f"{number:02}".ljust(150_000)
            sender.Producer().publish(body, routing_key="q", declare=[Queue("q")])
        client.config_set("client-output-buffer-limit", "normal 200000 0 0")
        taker = threading.Thread(target=_consume, args=(injector.url(), ran, is_over))
        taker.start()
        try:
            wait_settled(redis_server.url(), "q", timeout_s=20)
        finally:
            client.config_set("client-output-buffer-limit", "normal 0 0 0")
            is_over.set()
            taker.join()
    assert {1} == set(ran.values())
