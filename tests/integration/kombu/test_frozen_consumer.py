"""A consumer process that is suspended for longer than its lease, and then resumes."""

from __future__ import annotations

import sys

import pytest

from tests.support.processes import Process
from tests.support.waiting import stays_true, wait_until

from ..kombu_client import FAST, Taker, declare, payloads, publish

CONSUMER = f"""
import logging, sys, time
from contextlib import suppress
import redis, reliq
from kombu import Connection, Consumer, Queue

logging.basicConfig()
url, port, verb = sys.argv[1:]
raw = redis.Redis(port=int(port))
messages = []
with Connection(url, transport_options={FAST!r}) as connection:
    with Consumer(connection, Queue("q"), on_message=messages.append, prefetch_count=2):
        connection.drain_events(timeout=10)
        print("took", messages[0].payload, flush=True)
        while not raw.exists("go"):
            time.sleep(0.01)
        if verb in ("drain", "again"):
            if verb == "again":  # until it has come again, and nothing more does
                while raw.zscore("reliq:{{q}}:ready", messages[0].delivery_tag) is not None:
                    connection.drain_events(timeout=1)
                messages[0].ack()
            with suppress(TimeoutError):
                connection.drain_events(timeout=1)
            print("has", len(messages), flush=True)
        else:
            getattr(messages[0], verb)()
        print("did", verb, flush=True)
raw.close()
"""


@pytest.fixture
def frozen(client, tmp_path):
    """Return a function that starts a consumer, freezes it with its message, and returns it."""
    processes = []

    def start(verb):
        for body in ("x", "y")[: 1 + (verb == "drain")]:
            publish(client.connect(), "q", body)
        process = Process(
            [sys.executable, "-c", CONSUMER, client.url, str(client.server.port), verb],
            log_path=tmp_path / f"{verb}.log",
        )
        processes.append(process)
        wait_until(lambda: "took x" in process.log(), what=process.tail)
        process.freeze()
        return process

    yield start
    for process in processes:
        process.kill_group()


def go_on(client, process):
    """Thaw the process and wait for its end."""
    client.raw.set("go", 1)
    process.thaw()
    assert process.wait() == 0, process.tail()


def test_a_frozen_consumers_message_goes_to_another(client, frozen):
    """A frozen consumer keeps its message for visibility_timeout and no longer."""
    declare(client.connect(), "q")
    process = frozen("ack")
    other = Taker(client.connect(), "q", prefetch_count=1)
    assert other.gets_nothing(for_s=0.4)
    (message,) = other.take(timeout_s=30)
    assert message.delivery_info["redelivered"] is True
    message.ack()
    wait_until(lambda: client.settled("q"))
    go_on(client, process)
    assert client.status("q").ledger["acked"] == 1


def test_what_a_frozen_consumer_had_not_been_given_yet(client, frozen):
    """A reserved message whose lease ended during the freeze is not delivered here."""
    process = frozen("drain")
    for message in Taker(client.connect(), "q", prefetch_count=2).take(2, timeout_s=30):
        message.ack()
    go_on(client, process)
    assert "has 1" in process.log()
    wait_until(lambda: client.settled("q"))


def test_a_frozen_consumer_is_given_its_own_message_again(client, frozen):
    """A thawed consumer continues its message under the new lease, without a second run."""
    connection = client.connect()
    process = frozen("again")
    busy = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "busy", priority=0)
    busy.take()
    wait_until(lambda: client.status("q").ready == 1)
    go_on(client, process)
    assert "has 1" in process.log()
    busy.messages[0].ack()
    wait_until(lambda: client.settled("q"))


def test_a_late_ack_of_a_thawed_consumer(client, frozen):
    """A late ack of a thawed consumer cancels the pending redelivery."""
    connection = client.connect()
    process = frozen("ack")
    busy = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "busy", priority=0)
    busy.take()
    wait_until(lambda: client.status("q").ready == 1)
    go_on(client, process)
    wait_until(lambda: client.status("q").ready == 0)
    busy.messages[0].ack()
    assert busy.gets_nothing()
    assert client.settled("q")


def test_a_late_requeue_of_a_thawed_consumer(client, frozen):
    """A thawed consumer's late requeue is refused and logged; the other consumer is unaffected."""
    connection = client.connect()
    process = frozen("requeue")
    other = Taker(connection, "q", prefetch_count=1)
    (message,) = other.take(timeout_s=30)
    go_on(client, process)
    assert message.delivery_tag in process.log()
    assert "lease" in process.log()
    stays_true(lambda: client.status("q").ready == 0, for_s=0.3)
    assert payloads(other.messages) == ["x"]
    message.ack()
    wait_until(lambda: client.settled("q"))
