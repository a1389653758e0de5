"""Acks that wait for the end of the event loop's tick, as those of a prefork worker do."""

from __future__ import annotations

import time

from kombu.asynchronous import Hub

from reliq.integrations.celery import WorkerWatch

from .kombu_client import Taker, declare, publish


def test_a_message_whose_ack_waits_does_not_go_back(client, monkeypatch):
    """What is owed may be sent before the tick ends: nobody has the message any more."""
    monkeypatch.setattr(WorkerWatch, "forks", True)
    connection = client.connect()
    declare(connection, "q")
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
