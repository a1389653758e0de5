import select

import pytest

from reliq.errors import BrokerUnavailable
from tests.contract.steps import message


def test_a_store_that_is_connected_is_alive(store):
    """A connected store is alive; another connect does nothing, and each connection is an epoch."""
    assert store.store.alive
    epoch = store.store.epoch
    store.store.connect()
    assert epoch == store.store.epoch


def test_a_closed_store_is_closed_for_good(store):
    """A closed store raises an error instead of a reconnect, and may be closed twice."""
    store.store.close()
    store.store.close()
    assert not store.store.alive
    with pytest.raises(BrokerUnavailable):
        store.store.queues()


def test_what_was_posted_is_told_of_the_end(store):
    """A callback that waits for a reply gets an error when the store is closed."""
    results = []
    store.store.post_ack("q", ["tag"], results.append)
    store.store.close()
    assert [BrokerUnavailable] == [type(result) for result in results]
    assert not store.store.waiting


def test_settle_waits_for_all_answers(store):
    """wait_for_replies returns after all callbacks have run, in the order of the steps."""
    store.publish(*(message() for _ in range(3)))
    results = []
    for number, delivery in enumerate(store.take(3)):
        store.store.post_ack("q", [delivery.tag], lambda n, at=number: results.append((at, n)))
    store.store.wait_for_replies()
    assert [(0, 1), (1, 1), (2, 1)] == results
    assert not store.store.waiting


def test_answers_can_be_read_as_they_come(store):
    """A reply makes the descriptor readable; receive runs the callback without a wait."""
    results = []
    store.store.receive()
    store.store.post_ack("q", ["tag"], results.append)
    assert store.store.waiting
    poller = select.poll()
    for descriptor in store.store.descriptors():
        poller.register(descriptor, select.POLLIN)
    while not results:
        assert poller.poll(10_000), "no answer came"
        store.store.receive()
    assert [0] == results
    store.store.check()


def test_stores_are_apart(store, other):
    """Stores have separate consumers and separate connections."""
    assert ("s/1", "s/2") == (store.store.consumer, other.store.consumer)
    store.store.close()
    other.publish(message())
    assert {"ready": 1} == other.places()


def test_server_names_connection_and_run(store, other):
    """Two connections to one server have the same run id and different client ids."""
    mine, its = store.store.server(), other.store.server()
    assert mine[0] != its[0]
    assert mine[1] == its[1] != ""
    assert mine == store.store.server()


def test_a_broker_that_takes_writes(store):
    """A writable broker passes the check, which changes nothing."""
    store.store.require_writable()
    assert [] == store.store.queues()
