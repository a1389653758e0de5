"""auto_delete: an exchange is deleted with its last binding."""

from __future__ import annotations

import pytest
from kombu import Exchange, Queue

from tests.support.waiting import wait_until

from ..kombu_client import Taker, declare, get


def has_exchange(connection, name):
    """Return whether a passive declaration finds the exchange."""
    with connection.channel() as channel:
        try:
            channel.exchange_declare(name, "fanout", passive=True)
        except connection.channel_errors:
            return False
    return True


def bound(connection, name, exchange):
    """Declare a queue bound to *exchange*; return it."""
    queue = Queue(name, exchange, "key")(connection.default_channel)
    queue.declare()
    return queue


@pytest.mark.parametrize("end", ["unbind", "delete", "auto_delete", "by another"])
def test_an_exchange_goes_with_its_last_binding(client, end):
    """An exchange is deleted with its last binding, not with an earlier one, however it ends."""
    connection, other = client.connect(), client.connect()
    exchange = Exchange("x", "fanout", auto_delete=True)
    first, last = (bound(connection, name, exchange) for name in ("first", "last"))
    first.unbind_from(exchange, "key")
    assert has_exchange(other, "x")
    if end == "unbind":
        last.unbind_from(exchange, "key")
    elif end == "delete":
        last.delete()
    elif end == "by another":
        other.default_channel.queue_delete("last")
    else:
        last.delete()
        Queue("last", exchange, auto_delete=True)(connection.default_channel).declare()
        Taker(connection, "last", auto_declare=False).consumer.cancel()
    assert not has_exchange(other, "x")


def test_an_exchange_without_a_binding_waits_for_its_first(client):
    """An exchange is kept before its first binding, and always without auto_delete."""
    connection = client.connect()
    Exchange("x", "fanout", auto_delete=True)(connection.default_channel).declare()
    queue = bound(connection, "q", Exchange("stays", "fanout"))
    queue.delete()
    assert has_exchange(connection, "x")
    assert has_exchange(connection, "stays")


def test_an_exchange_that_has_gone_comes_back_with_who_declared_it(client):
    """An exchange deleted with its last binding is declared again by a new binding, and routes."""
    connection = client.connect()
    exchange = Exchange("x", "fanout", auto_delete=True)
    queue = bound(connection, "q", exchange)
    queue.unbind_from(exchange, "key")
    assert not has_exchange(connection, "x")
    queue.bind_to(exchange, "key")
    assert has_exchange(connection, "x")
    client.connect().Producer().publish("all", exchange="x", routing_key="other")
    assert "all" == get(connection, "q").payload


def test_deleting_a_queue_does_not_ask_every_exchange(client):
    """The cost of deleting a queue does not grow with the number of exchanges."""
    connection = client.connect()
    channel = connection.default_channel
    for number in range(200):
        channel.exchange_declare(f"x{number}", "direct")
        queue = declare(connection, f"of{number}")
        queue.bind_to(f"x{number}", "key")
    declare(connection, "q").bind_to("x7", "key")
    before = client.raw.info("stats")["total_commands_processed"]
    channel.queue_delete("q")
    after = client.raw.info("stats")["total_commands_processed"]
    assert 30 > after - before
    assert [("of7", "x7", "key")] == [row for row in channel.list_bindings() if row[1] == "x7"]


def test_who_dies_before_the_bindings_go_is_continued(client):
    """A living consumer removes the bindings of a queue whose deletion was interrupted."""
    connection = client.connect()
    exchange = Exchange("x", "fanout", auto_delete=True)
    bound(connection, "q", exchange)
    # The first step of a deletion, after which the process is killed.
    assert "deleted" == connection.default_channel.transport.link.store.delete_queue("q").outcome
    assert client.raw.exists("reliq:{q}:bound")
    Taker(client.connect(), "other")
    wait_until(lambda: not client.raw.exists("reliq:{q}:bound"))
    wait_until(lambda: not has_exchange(connection, "x"))
    assert [b"other"] == client.raw.zrange("reliq:{%}:queues", 0, -1)
