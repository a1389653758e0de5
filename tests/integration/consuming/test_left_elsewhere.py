"""Leftovers of consumers at a broker without live consumers: workers at the primary clean up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from reliq.admin import Inspector
from tests.support.audits import assert_balanced
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

from ..kombu_client import FAST, Client, Taker, publish

CODE = f"""
import sys
from kombu import Connection, Consumer, Exchange, Queue
import reliq
connection = Connection(sys.argv[1], transport_options={FAST!r})
boxes = Exchange("boxes", "fanout")
queues = [Queue("q", Exchange(""), "q"), Queue("box", boxes, auto_delete=True)]
def took(message):
    print("took", flush=True)
consumer = Consumer(connection, queues, on_message=took)
consumer.consume()
while True:
    connection.drain_events()
"""


@pytest.fixture
def two(redis_factory):
    """Return the primary broker and a second one; the ledgers of both balance at the end."""
    servers = [redis_factory(), redis_factory()]
    clients = [Client(server, server.url("reliq")) for server in servers]
    yield clients
    for client in clients:
        client.close()
        client.raw.close()
    for client in clients:
        assert_balanced(client.url)


def test_the_dead_are_looked_after_from_home(two):
    """A worker at the primary fetches the messages and removes the temporary queue and records."""
    home, away = two
    command = [sys.executable, "-c", CODE, away.url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as killed:
        publish(away.connect(), "q", "held")
        assert "took\n" == killed.stdout.readline()
        os.kill(killed.pid, signal.SIGKILL)
    away.close()
    taker = Taker(home.connect(f"{home.url};{away.url}", probe_interval=0.2), "q")
    (message,) = taker.take(timeout_s=20)
    assert "held" == message.payload
    message.ack()

    def left():
        with Inspector(away.url) as inspector:
            bindings = inspector._store.exchange_table("boxes").bindings
            return inspector.consumers(), inspector.queues(), len(bindings)

    wait_until(lambda: left() == ([], ["q"], 0), what=left)
