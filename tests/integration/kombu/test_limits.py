import pytest
from kombu import Exchange, Queue

from reliq import ConfigurationError, PreconditionFailed, QueueFull
from tests.integration.kombu_client import Taker, declare, payloads, publish
from tests.support.waiting import wait_until

RETRY = {"retry": True, "retry_policy": {"max_retries": 3, "interval_start": 0, "interval_max": 0}}


def test_a_full_queue_that_drops_keeps_the_youngest(client):
    """With Kombu's max_length, the oldest message becomes a dead letter with the reason maxlen."""
    connection = client.connect()
    declare(connection, "q", max_length=2)
    publish(connection, "q", "a", "b", "c")
    assert ["maxlen"] == [dead_letter.reason for dead_letter in client.dead_letters("q")]
    taker = Taker(connection, "q", auto_declare=False)
    assert ["b", "c"] == taker.take_bodies(2)


def test_a_full_queue_that_rejects_says_so_at_once(client):
    """A full queue raises at once, with queue and remedy, and Kombu's retry does not repeat it."""
    connection = client.connect()
    declare(connection, "q", max_length=1, queue_arguments={"x-overflow": "reject-publish"})
    publish(connection, "q", "a")
    tries = []
    policy = {**RETRY["retry_policy"], "errback": lambda *args: tries.append(args)}
    with pytest.raises(QueueFull, match=r"'q'.*x-max-length.*publish later"):
        publish(connection, "q", "b", retry=True, retry_policy=policy)
    assert [] == tries
    assert (1, 0) == (client.status("q").ready, client.status("q").dead)
    (message,) = Taker(connection, "q", auto_declare=False).take()
    message.ack()
    publish(connection, "q", "b", **RETRY)


def test_the_connection_goes_on_after_a_rejected_publish(client):
    """A refused publish is an error of the channel; the connection remains usable."""
    connection = client.connect()
    declare(connection, "full", max_length=1, queue_arguments={"x-overflow": "reject-publish"})
    declare(connection, "other")
    publish(connection, "full", "a")
    with pytest.raises(connection.channel_errors):
        publish(connection, "full", "b")
    publish(connection, "other", "c")
    assert ["c"] == Taker(connection, "other").take_bodies(1)


def test_a_broadcast_reaches_the_queues_that_are_not_full(client):
    """A broadcast is stored in all queues with room; the error names both kinds of queues."""
    connection = client.connect()
    exchange = Exchange("news", "fanout")
    full = Queue("full", exchange, max_length=1, queue_arguments={"x-overflow": "reject-publish"})
    for queue in (full, Queue("open", exchange)):
        queue(connection.default_channel).declare()
    producer = connection.Producer(exchange=exchange)
    producer.publish("a")
    with pytest.raises(QueueFull, match=r"'full' has reached.*stored in 'open'"):
        producer.publish("b")
    assert (1, 2) == (client.status("full").ready, client.status("open").ready)


def test_the_length_in_bytes(client):
    """Kombu's max_length_bytes limits the stored bytes."""
    connection = client.connect()
    declare(connection, "q", max_length_bytes=4000)
    publish(connection, "q", "x" * 1500, "y" * 1500, "z" * 1500)
    assert (2, 1) == (client.status("q").ready, client.status("q").dead)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-max-length", 0),
        ("x-max-length", -1),
        ("x-max-length", "10"),
        ("x-max-length-bytes", 1.5),
        ("x-delivery-limit", 0),
        ("x-delivery-limit", -2),
        ("x-delivery-limit", True),
        ("x-overflow", "reject-publish-dlx"),
        ("x-dead-letter-exchange", 5),
        ("x-dead-letter-routing-key", b"k"),
        ("x-dead-letter-expired", "yes"),
        ("x-message-ttl", -1),
        ("x-expires", 0),
    ],
)
def test_a_bad_argument_is_refused_before_anything_is_declared(client, name, value):
    """The error for an invalid argument names queue, argument and value; no queue is declared."""
    connection = client.connect()
    with pytest.raises(ConfigurationError, match=rf"'q': expected {name} .*got: {value!r}"):
        declare(connection, "q", queue_arguments={name: value, "x-max-length": 5} | {name: value})
    assert client.status("q") is None


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        ({"x-overflow": "drop-head"}, "x-max-length"),
        ({"x-dead-letter-routing-key": "k"}, "x-dead-letter-exchange"),
    ],
)
def test_an_argument_that_needs_another(client, arguments, missing):
    """An argument without effect is refused; the error names the missing one."""
    with pytest.raises(ConfigurationError, match=rf"'q': .* has no effect without {missing}"):
        declare(client.connect(), "q", queue_arguments=arguments)


def test_other_limits_than_declared_show_both(client):
    """A redeclaration with other limits is refused; the error shows stored and given arguments."""
    connection = client.connect()
    declare(connection, "q", max_length=5)
    with pytest.raises(PreconditionFailed, match=r"'q'.*'x-max-length': 5.*'x-max-length': 6"):
        declare(connection, "q", max_length=6)


# -- the delivery limit


def test_requeued_to_its_limit(client):
    """A message requeued to its limit becomes a dead letter with its count; others continue."""
    connection = client.connect()
    declare(connection, "q", queue_arguments={"x-delivery-limit": 3})
    publish(connection, "q", "bad", "good")
    taker = Taker(connection, "q", auto_declare=False, prefetch_count=1)
    counts, good = [], []
    for _ in range(4):
        (message,) = taker.take()
        if message.payload == "good":  # before the last delivery, which waits for isolation
            good.append(len(counts))
            message.ack()
            continue
        counts.append(
            (message.headers.get("x-delivery-count"), message.delivery_info.get("redelivered"))
        )
        message.requeue()
    assert [(None, None), (1, True), (2, True)] == counts
    assert [2] == good
    assert taker.gets_nothing()
    (dead_letter,) = client.dead_letters("q")
    assert ("delivery_limit", 3) == (dead_letter.reason, dead_letter.count)


def test_redelivery_backoff(client):
    """A requeued message is delayed at the broker, and others are served meanwhile."""
    connection = client.connect(redelivery_backoff=(0.4, 1.0))
    declare(connection, "q")
    publish(connection, "q", "first", "second")
    taker = Taker(connection, "q", prefetch_count=1)
    (message,) = taker.take()
    message.requeue()
    assert {"delayed": 1, "ready": 1} == {
        "delayed": client.status("q").delayed,
        "ready": client.status("q").ready,
    }
    messages = taker.take(1)
    assert ["second"] == payloads(messages)
    messages[0].ack()
    (again,) = taker.take()
    assert ("first", 1) == (again.payload, again.headers["x-delivery-count"])
    again.ack()
    wait_until(lambda: client.settled("q"))


@pytest.mark.parametrize(
    "value", [5, (1,), (2, 1), (-1, 5), (0, 5), ("1", "2"), (1, float("nan")), (True, 2)]
)
def test_a_backoff_that_makes_no_sense(client, value):
    """A back-off is a pair of seconds with the smaller one first; other values are refused."""
    with pytest.raises(ConfigurationError, match="redelivery_backoff to be a pair"):
        client.connect(redelivery_backoff=value).connect()
