"""Acks that wait for the end of the event loop's tick, as in a prefork worker."""

from __future__ import annotations

import time
from collections import deque

import pytest
from kombu.asynchronous import Hub

from reliq.consumer.host import HOST
from reliq.consumer.runner import Runner
from reliq.errors import BrokerTimeout

from ..kombu_client import Taker, declare, publish


def test_a_message_whose_ack_waits_does_not_go_back(client, monkeypatch):
    """A message with a waiting ack is acked, even if pending acks are sent before the tick ends."""
    connection = client.connect()
    declare(connection, "q")
    monkeypatch.setattr(HOST, "forks", lambda: True)
    publish(connection, "q", 1)
    hub = Hub()
    try:
        connection.register_with_event_loop(hub)
        taker = Taker(connection, "q", prefetch_count=1)
        loop = hub.create_loop()
        deadline = time.monotonic() + 20
        while not taker.messages and time.monotonic() < deadline:
            next(loop)
        seen = []

        def settle():
            taker.messages.pop().ack()
            link = connection.transport.link
            link.session.send_owed(link.store)
            status = client.status("q")
            seen.append((status.ready, status.unacked))

        hub.call_soon(settle)
        while not seen and time.monotonic() < deadline:
            next(loop)
        next(loop)
        assert [(0, 1)] == seen
        assert 1 == client.status("q").ledger["acked"]
    finally:
        hub.close()


def test_what_fails_in_the_background_takes_no_ack_along(client, monkeypatch):
    """An error in the background loses no waiting ack of Celery.

    When a callback raises, Kombu's loop forgets the other callbacks that are due, and Celery's acks
    are among them.
    """
    connection = client.connect()
    declare(connection, "q")
    monkeypatch.setattr(HOST, "forks", lambda: True)
    hub, done = Hub(), []
    try:
        connection.register_with_event_loop(hub)
        Taker(connection, "q")

        def takes_a_turn(_store):
            time.sleep(0.06)  # longer than the time limit of a turn
            for number in range(20):
                hub.call_soon(done.append, number)

        def fails(_store):
            raise BrokerTimeout("no answer")

        for step in (takes_a_turn, fails):
            connection.transport.link.session.duties.runner.soon(step)
        with pytest.raises(BrokerTimeout, match="no answer"):
            deque(hub.create_loop(), maxlen=0)  # until the loop raises
        assert list(range(20)) == sorted(done)
    finally:
        hub.close()


def test_a_turn_does_one_share_of_the_duties(client, monkeypatch):
    """However many replies have come: acks and results of children wait for the end of a turn."""
    connection = client.connect()
    declare(connection, "q")
    monkeypatch.setattr(HOST, "forks", lambda: True)
    hub, shares, replies = Hub(), [], 5
    transport = connection.transport
    try:
        connection.register_with_event_loop(hub)
        Taker(connection, "q")
        monkeypatch.setattr(Runner, "run", lambda *_: shares.append(1) or True)
        loop = hub.create_loop()
        for _ in range(replies):
            transport.loop._on_reply()
        for _ in range(3):
            shares.clear()
            next(loop)
            assert len(shares) <= 2  # and that of the timer, if it is due
    finally:
        hub.close()


def test_acks_beside_a_lost_connection_of_a_publisher(client, monkeypatch):
    """If only a publisher's connection is lost, the consumer's acks are confirmed as before."""
    connection, publisher = client.connect(), client.connect()
    declare(connection, "q")
    monkeypatch.setattr(HOST, "forks", lambda: True)
    publish(publisher, "q", 1)
    hub = Hub()
    deadline = time.monotonic() + 20
    try:
        connection.register_with_event_loop(hub)
        taker = Taker(connection, "q", prefetch_count=1)
        outbox, loop = connection.transport.link.session.outbox, hub.create_loop()
        while not taker.messages and time.monotonic() < deadline:
            next(loop)
        publisher.collect()
        publish(client.connect(), "elsewhere", 2)
        hub.call_soon(taker.messages.pop().ack)
        while not client.status("q").ledger.get("acked") and time.monotonic() < deadline:
            next(loop)
        while outbox.unconfirmed and time.monotonic() < deadline:
            next(loop)
        assert not outbox.unconfirmed
    finally:
        hub.close()
