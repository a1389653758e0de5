"""Queues and exchanges: declare, passive declare, redeclare, bind, unbind, delete, auto_delete."""

from __future__ import annotations

import pytest
from kombu import Exchange, Queue

from tests.support.waiting import wait_until

from ..kombu_client import Taker, declare, exists, get, publish


def test_declare_returns_name_messages_and_consumers(client):
    """A declaration returns the queue's name, its ready messages and its consumers."""
    connection = client.connect()
    channel = connection.default_channel
    assert tuple(channel.queue_declare("q")) == ("q", 0, 0)
    publish(connection, "q", 1, 2, 3)
    taker = Taker(connection, "q", prefetch_count=1)
    taker.take()
    name, messages, consumers = channel.queue_declare("q", passive=True)
    assert (name, messages, consumers) == ("q", 2, 1)
    taker.messages[0].ack()


def test_declare_without_a_name(client):
    """A queue declared without a name receives a generated name."""
    channel = client.connect().default_channel
    first, second = channel.queue_declare("").queue, channel.queue_declare("").queue
    assert first.startswith("amq.gen-")
    assert first != second


def test_passive_declare_of_a_missing_queue(client):
    """A passive declaration of a missing queue is a channel error that names it."""
    connection = client.connect()
    with pytest.raises(connection.channel_errors, match=r"no\.such\.queue") as caught:
        connection.default_channel.queue_declare("no.such.queue", passive=True)
    assert caught.value.code == 404
    assert not exists(connection, "no.such.queue")


def test_passive_declare_of_a_missing_exchange(client):
    """A passive declaration of a missing exchange is a channel error that names it."""
    connection = client.connect()
    with pytest.raises(connection.channel_errors, match=r"no\.such\.exchange") as caught:
        connection.default_channel.exchange_declare("no.such.exchange", "direct", passive=True)
    assert caught.value.code == 404


def test_passive_declare_sees_another_connections_work(client):
    """One connection finds the declarations of another."""
    first, second = client.connect(), client.connect()
    declare(first, "q")
    Exchange("x", "topic")(first.default_channel).declare()
    assert second.default_channel.queue_declare("q", passive=True).queue == "q"
    second.default_channel.exchange_declare("x", "topic", passive=True)


def test_redeclare_with_the_same_arguments(client):
    """A second declaration with the same arguments is allowed and keeps the messages."""
    first, second = client.connect(), client.connect()
    declare(first, "q", message_ttl=60)
    publish(first, "q", "kept")
    declare(second, "q", message_ttl=60)
    assert get(second, "q").payload == "kept"


def test_redeclare_with_other_arguments(client):
    """A declaration with other arguments is an error that shows the old and the new value."""
    first, second = client.connect(), client.connect()
    declare(first, "q", message_ttl=60)
    with pytest.raises(second.channel_errors) as caught:
        declare(second, "q", message_ttl=30)
    assert caught.value.code == 406
    for part in ("'q'", "x-message-ttl", "60000", "30000"):
        assert part in str(caught.value)


def test_redeclare_an_exchange_with_another_type(client):
    """A declaration of an exchange with another type is an error that shows both types."""
    first, second = client.connect(), client.connect()
    Exchange("x", "direct")(first.default_channel).declare()
    with pytest.raises(second.channel_errors) as caught:
        Exchange("x", "topic")(second.default_channel).declare()
    assert caught.value.code == 406
    for part in ("'x'", "direct", "topic"):
        assert part in str(caught.value)


def test_bind_and_unbind(client):
    """A bound queue receives the messages of its key; an unbound queue does not."""
    connection = client.connect()
    unbind_between_two_publishes(connection, connection)


def test_unbind_by_another_connection(client):
    """A publisher with cached routes stops routing to a queue unbound by another connection."""
    unbind_between_two_publishes(client.connect(), client.connect())


def unbind_between_two_publishes(binder, publisher):
    """Publish before and after the binder unbinds: the queue receives only the first message."""
    exchange = Exchange("x", "direct")(binder.default_channel)
    exchange.declare()
    queue = declare(binder, "q")
    queue.bind_to(exchange, "key")
    producer = publisher.Producer()
    producer.publish("bound", exchange="x", routing_key="key")
    queue.unbind_from(exchange, "key")
    producer.publish("unbound", exchange="x", routing_key="key")
    assert get(publisher, "q").payload == "bound"
    assert get(publisher, "q") is None


def test_unbind_one_of_two_keys(client):
    """Unbinding one key of a queue keeps its other binding."""
    connection = client.connect()
    exchange = Exchange("x", "direct")(connection.default_channel)
    exchange.declare()
    queue = declare(connection, "q")
    queue.bind_to(exchange, "a")
    queue.bind_to(exchange, "b")
    queue.unbind_from(exchange, "a")
    producer = connection.Producer()
    producer.publish(1, exchange="x", routing_key="a")
    producer.publish(2, exchange="x", routing_key="b")
    assert get(connection, "q").payload == 2
    assert get(connection, "q") is None


def test_bind_to_a_missing_exchange(client):
    """Binding to a missing exchange is a channel error that names it."""
    connection = client.connect()
    queue = declare(connection, "q")
    with pytest.raises(connection.channel_errors, match=r"no\.such\.exchange"):
        queue.bind_to("no.such.exchange", "key")


def test_delete_a_queue(client):
    """Deleting a queue removes its messages and bindings; a second deletion is no error."""
    connection = client.connect()
    queue = Queue("q", Exchange("x", "direct"), "key")(connection.default_channel)
    queue.declare()
    publish(connection, "q", 1, 2)
    queue.delete()
    assert not exists(connection, "q")
    assert client.status("q") is None
    connection.Producer().publish("nowhere", exchange="x", routing_key="key")
    assert not exists(connection, "q")
    queue.delete()
    left = [key for key in client.raw.scan_iter() if b"{q}" in key]
    # A publish whose reply was lost may still be retried: its number is kept for a minute.
    assert [b"reliq:{q}:publishers"] == left
    assert 0 < client.raw.ttl(left[0]) <= 60


def test_delete_if_empty(client):
    """if_empty refuses a queue that holds messages, and deletes an empty one."""
    connection = client.connect()
    queue = declare(connection, "q")
    publish(connection, "q", 1)
    with pytest.raises(connection.channel_errors, match="'q'") as caught:
        queue.delete(if_empty=True)
    assert caught.value.code == 406
    assert exists(connection, "q")
    queue.purge()
    queue.delete(if_empty=True)
    assert not exists(connection, "q")


def test_delete_if_unused(client):
    """if_unused refuses to delete a queue that has a consumer on any connection."""
    connection, other = client.connect(), client.connect()
    queue = declare(connection, "q")
    taker = Taker(other, "q")
    with pytest.raises(connection.channel_errors, match="'q'") as caught:
        queue.delete(if_unused=True)
    assert caught.value.code == 406
    assert exists(connection, "q")
    taker.consumer.cancel()
    queue.delete(if_unused=True)
    assert not exists(connection, "q")


def test_delete_an_exchange(client):
    """Deleting an exchange removes its bindings and keeps its queues."""
    connection = client.connect()
    exchange = Exchange("x", "direct")
    Queue("q", exchange, "key")(connection.default_channel).declare()
    exchange(connection.default_channel).delete()
    with pytest.raises(connection.channel_errors):
        connection.default_channel.exchange_declare("x", "direct", passive=True)
    assert exists(connection, "q")
    exchange(connection.default_channel).declare()
    connection.Producer().publish("x", exchange="x", routing_key="key")
    assert get(connection, "q") is None


def test_delete_an_exchange_if_unused(client):
    """if_unused refuses to delete an exchange with a bound queue."""
    connection = client.connect()
    exchange = Exchange("x", "direct")(connection.default_channel)
    queue = Queue("q", exchange, "key")(connection.default_channel)
    queue.declare()
    with pytest.raises(connection.channel_errors, match="'x'") as caught:
        exchange.delete(if_unused=True)
    assert caught.value.code == 406
    queue.unbind_from(exchange, "key")
    exchange.delete(if_unused=True)
    with pytest.raises(connection.channel_errors):
        connection.default_channel.exchange_declare("x", "direct", passive=True)


def test_auto_delete_with_the_last_consumer(client):
    """An auto_delete queue is deleted with its last consumer, and not before."""
    connection, other = client.connect(), client.connect()
    declare(connection, "q", auto_delete=True)
    first = Taker(connection, "q", auto_declare=False)
    second = Taker(other, "q", auto_declare=False)
    first.consumer.cancel()
    assert exists(connection, "q")
    second.consumer.cancel()
    assert not exists(connection, "q")


def test_auto_delete_waits_for_its_first_consumer(client):
    """An auto_delete queue that never had a consumer is kept."""
    connection = client.connect()
    declare(connection, "q", auto_delete=True)
    publish(connection, "q", "kept")
    connection.release()
    assert get(client.connect(), "q").payload == "kept"


def test_auto_delete_when_the_connection_closes(client):
    """Closing the last consumer's connection deletes the auto_delete queue."""
    connection, other = client.connect(), client.connect()
    declare(connection, "q", auto_delete=True)
    Taker(connection, "q", auto_declare=False)
    connection.release()
    wait_until(lambda: not exists(other, "q"))


def test_names_with_odd_characters(client):
    """A queue's name may contain braces, percent signs, spaces and any alphabet."""
    connection = client.connect()
    names = ["{a}", "%7Ba%7D", "a b", "ünï", "a:b|c"]
    for name in names:
        declare(connection, name)
        publish(connection, name, name)
    assert [get(connection, name).payload for name in names] == names
    with client.inspector() as inspector:
        assert sorted(inspector.queues()) == sorted(names)


def test_a_queue_that_expires_before_it_is_bound(client):
    """A queue that expired before its binding is redeclared first, so no binding is orphaned."""
    connection, other = client.connect(), client.connect()
    channel = connection.default_channel
    exchange = Exchange("x", "direct")(channel)
    exchange.declare()
    queue = Queue("q", exchange, "key", expires=60.0)(channel)
    queue.queue_declare()
    other.default_channel.queue_delete("q")
    queue.queue_bind()
    assert exists(connection, "q")
    connection.Producer().publish("x", exchange="x", routing_key="key")
    assert get(connection, "q").payload == "x"
    queue.delete()
    assert frozenset() == channel.transport.link.store.exchange_table("x").bindings
