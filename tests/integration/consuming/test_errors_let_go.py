"""A failed operation releases its callers without the garbage collector.

A result of Celery, for example, cancels its subscription when it is collected. A late collection
may cancel a subscription that another result has made meanwhile.
"""

from __future__ import annotations

import gc
import logging
import time
import weakref
from contextlib import suppress

import pytest
from kombu import Exchange, Queue
from kombu.exceptions import ContentDisallowed

from reliq import BatchUncertain

from ..kombu_client import declare, get, publish

POLICY = {"max_retries": 3, "interval_start": 0, "interval_step": 0, "interval_max": 0}


class Held:
    """An object that a caller holds."""


def outlives(act, *errors):
    """Call *act* from a function that holds an object; return whether the object outlives it."""

    def caller(held):
        with suppress(*errors):
            act()

    held = Held()
    seen = weakref.ref(held)
    caller(held)
    del held
    return seen() is not None


@pytest.fixture(autouse=True)
def no_collector(caplog):
    """Run without the garbage collector, and without the log that keeps each error."""
    caplog.set_level(logging.CRITICAL)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def ready_message(connection):
    """Return a message that has been taken now, to be settled later."""
    publish(connection, "q", "x")
    return get(connection, "q")


def publishes(connection):
    """Return a publish."""
    return lambda: publish(connection, "q", "x")


def publishes_with_retry(connection):
    """Return a publish that Kombu retries."""
    producer = connection.Producer()
    return lambda: producer.publish("x", routing_key="q", retry=True, retry_policy=POLICY)


def publishes_through_an_exchange(connection):
    """Return a publish through an exchange."""
    Queue("r", Exchange("e", "topic"), "a.#")(connection.default_channel).declare()
    producer = connection.Producer()
    producer.publish("x", exchange="e", routing_key="a.b")
    return lambda: producer.publish("x", exchange="e", routing_key="a.b")


def publishes_a_batch(connection):
    """Return a batch with more messages than fit into one call."""
    producer = connection.Producer()

    def act():
        with producer.batch(max_size=250):
            for number in range(250):
                producer.publish(number, routing_key="q")

    return act


def gets(connection):
    """Return a basic_get."""
    return lambda: get(connection, "q")


def acks(connection):
    """Return an ack that waits for its reply."""
    message = ready_message(connection)

    def act():
        message.ack()
        connection.transport.link.store.wait_for_replies()

    return act


def requeues(connection):
    """Return a requeue."""
    return ready_message(connection).requeue


def rejects(connection):
    """Return a reject."""
    return ready_message(connection).reject


def declares(connection):
    """Return a declaration."""
    return lambda: connection.default_channel.queue_declare("other")


def waits(connection):
    """Return a consumer's wait for messages."""
    connection.default_channel.basic_consume("other", False, print, "tag")
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.05)
    return lambda: connection.drain_events(timeout=0.05)


ACTS = [
    publishes,
    publishes_with_retry,
    publishes_through_an_exchange,
    publishes_a_batch,
    gets,
    acks,
    requeues,
    rejects,
    declares,
    waits,
]
ERRORS = (BatchUncertain, TimeoutError)


@pytest.mark.parametrize("silence_s", [0.0, 0.05])
@pytest.mark.parametrize("act", ACTS)
def test_a_connection_that_was_killed(client, act, silence_s):
    """A killed connection fails in the command or, after some silence, in the check before it."""
    connection = client.connect()
    declare(connection, "q")
    declare(connection, "other")
    do = act(connection)
    for entry in client.raw.client_list():
        if entry["name"].startswith("reliq"):
            client.raw.client_kill_filter(_id=entry["id"])
    time.sleep(silence_s)  # the case itself: the connection is idle for this time
    errors = (*connection.connection_errors, *ERRORS)
    assert not outlives(do, *errors)


def test_a_message_that_may_not_be_decoded(client):
    """A message does not keep its decoding error alive, because the error refers to the message."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "x", serializer="pickle")
    message = get(connection, "q")
    assert not outlives(message.decode, ContentDisallowed)
    assert "ContentDisallowed: Refusing" in message.decode_error
    message.reject()
    seen = weakref.ref(message)
    del message
    assert seen() is None
