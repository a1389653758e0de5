"""Late messages for a temporary queue do not recreate the queue."""

from __future__ import annotations

import pytest
from celery import Celery

from reliq import Unroutable

from ..kombu_client import Taker, declare, exists, publish


def reply(connection, queue, **properties):
    """Reply to a request, as RPC servers do."""
    connection.Producer().publish(
        "answer", exchange="", routing_key=queue, correlation_id="one", **properties
    )


def test_a_reply_makes_no_queue(client, caplog):
    """A reply to a missing queue is dropped, as in AMQP, with one warning; others arrive."""
    connection = client.connect()
    for _ in range(2):
        reply(connection, "gone")
    assert not exists(connection, "gone")
    said = [record.getMessage() for record in caplog.records if "no queue 'gone'" in record.message]
    assert 1 == len(said)
    declare(connection, "waited for")
    reply(connection, "waited for")
    assert ["answer"] == Taker(connection, "waited for").take_bodies(1)


def test_a_reply_that_is_missed_can_be_an_error(client):
    """With unroutable="error", a reply to a missing queue raises, alone or in a batch."""
    connection = client.connect(unroutable="error")
    with pytest.raises(Unroutable, match="no queue 'gone'"):
        reply(connection, "gone")
    producer = connection.Producer()
    with pytest.raises(Unroutable, match="no queue 'gone'"), producer.batch():
        producer.publish("answer", exchange="", routing_key="gone", correlation_id="one")
    assert not exists(connection, "gone")


def test_a_request_makes_its_queue(client):
    """A request, which names a queue for the reply, creates its queue; so does a plain message."""
    connection = client.connect()
    reply(connection, "requests", reply_to="me")
    publish(connection, "plain", "x")
    assert exists(connection, "requests")
    assert exists(connection, "plain")


def test_a_queue_that_was_to_go_is_not_made_by_who_declared_it(client):
    """A deleted temporary queue is not recreated by a publish of the process that declared it."""
    connection = client.connect()
    declare(connection, "brief", expires=60)
    client.connect().default_channel.queue_delete("brief")
    publish(connection, "brief", "late")
    publish(connection, "amq.gen-of-somebody", "late")
    assert not exists(connection, "brief")
    assert not exists(connection, "amq.gen-of-somebody")


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("reply_to", [None, "me"])
def test_a_task_makes_its_queue(client, protocol, reply_to):
    """A task creates its queue in both of Celery's protocols, with or without a reply queue."""
    app = Celery("app", broker=client.url, set_as_current=False)
    write = app.amqp.task_protocols[protocol]
    headers, properties, body, _ = write("id", "t", args=(1,), reply_to=reply_to)
    assert properties["correlation_id"]
    connection = client.connect()
    publish(connection, "new", body, headers=headers, **properties)
    assert exists(connection, "new")
    app.send_task("t", queue="newer", connection=connection)
    assert exists(connection, "newer")
