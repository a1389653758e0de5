"""Credit and settlement: prefetch, ack, multiple, reject, requeue, recover, cancel, close."""

from __future__ import annotations

import pytest
from kombu.exceptions import MessageStateError

from tests.support.waiting import wait_until

from ..kombu_client import Taker, declare, get, payloads, publish


@pytest.mark.parametrize("prefetch_count", [1, 3, 10])
def test_prefetch_is_a_limit(client, prefetch_count):
    """At most prefetch_count messages are unacked; each ack allows one more delivery."""
    connection = client.connect()
    taker = Taker(connection, "q", prefetch_count=prefetch_count)
    publish(connection, "q", *range(prefetch_count + 3))
    taker.take(prefetch_count)
    assert taker.gets_nothing()
    assert client.status("q").unacked == prefetch_count
    taker.messages[0].ack()
    assert taker.take()[0].payload == prefetch_count
    assert taker.gets_nothing()
    assert client.status("q").unacked == prefetch_count


def test_prefetch_zero_is_no_limit(client):
    """Without a prefetch count, every message is delivered before any ack."""
    connection = client.connect()
    taker = Taker(connection, "q")
    publish(connection, "q", *range(300))
    assert payloads(taker.take(300)) == list(range(300))


def test_raising_the_prefetch(client):
    """A raised prefetch count takes effect on the running consumer."""
    connection = client.connect()
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", *range(5))
    taker.take()
    assert taker.gets_nothing()
    taker.consumer.qos(prefetch_count=4)
    taker.take(3)
    assert taker.gets_nothing()


def test_lowering_the_prefetch(client):
    """After a reduction, deliveries wait until fewer messages than the new limit are unacked."""
    connection = client.connect()
    taker = Taker(connection, "q", prefetch_count=4)
    publish(connection, "q", *range(10))
    messages = taker.take(4)
    taker.consumer.qos(prefetch_count=2)
    for message in messages[:2]:
        message.ack()
    assert taker.gets_nothing()
    messages[2].ack()
    assert taker.take()[0].payload == 4
    assert taker.gets_nothing()


def test_lowering_the_prefetch_gives_back_what_was_fetched_ahead(client):
    """Lowering the prefetch count releases the undelivered messages to other consumers."""
    connection, other = client.connect(), client.connect()
    declare(connection, "q")
    publish(connection, "q", *range(10))
    taker = Taker(connection, "q", prefetch_count=10)
    taker.take()
    taker.consumer.qos(prefetch_count=1)
    assert payloads(Taker(other, "q").take(9, timeout_s=2)) == list(range(1, 10))


def test_ack(client):
    """An acked message is gone from the queue, and cannot be settled again."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", 1)
    message = get(connection, "q")
    message.ack()
    for settle in (message.ack, message.reject, message.requeue):
        with pytest.raises(MessageStateError):
            settle()
    connection.release()
    status = client.status("q")
    assert (status.ready, status.unacked, status.ledger["acked"]) == (0, 0, 1)


def test_ack_multiple(client):
    """ack(multiple=True) acks this and all earlier messages of the channel, and no later ones."""
    connection = client.connect()
    taker = Taker(connection, "q")
    other = Taker(connection, "other")
    publish(connection, "other", "older, on another channel")
    other.take()
    publish(connection, "q", *range(5))
    messages = taker.take(5)
    messages[2].ack(multiple=True)
    wait_until(lambda: client.status("q").unacked == 2)
    assert client.status("other").unacked == 1
    connection.release()
    assert payloads(Taker(client.connect(), "q").take(2)) == [3, 4]


def test_ack_multiple_across_queues(client):
    """ack(multiple=True) includes the earlier messages of every queue of the channel."""
    connection = client.connect()
    taker = Taker(connection, "a", "b")
    for n in range(4):
        publish(connection, "ab"[n % 2], n)
        taker.take()
    taker.messages[3].ack(multiple=True)
    wait_until(lambda: client.settled("a") and client.settled("b"))


def test_reject_goes_to_the_dead_letters(client):
    """A rejected message becomes a dead letter and is not redelivered."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "bad", "good")
    bad = get(connection, "q")
    bad.reject()
    assert get(connection, "q").payload == "good"
    wait_until(lambda: client.status("q").dead == 1)
    (dead_letter,) = client.dead_letters("q")
    assert dead_letter.tag == bad.delivery_tag
    assert dead_letter.reason == "rejected"


def test_requeue_is_seen_as_redelivered(client):
    """A requeued message is delivered again, marked as redelivered."""
    connection = client.connect()
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "x")
    (first,) = taker.take()
    assert not first.delivery_info.get("redelivered")
    first.requeue()
    (second,) = taker.take()
    assert second.payload == "x"
    assert second.delivery_info["redelivered"] is True
    assert second.delivery_tag == first.delivery_tag
    second.ack()


def test_requeue_counts_failed_deliveries(client):
    """A message carries its delivery count from the first failure on."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "x")
    counts = []
    for _ in range(3):
        message = get(connection, "q")
        counts.append(message.headers.get("x-delivery-count"))
        message.requeue()
    assert counts == [None, 1, 2]


def test_recover(client):
    """recover(requeue=True) returns all unacked messages of the channel, in order."""
    connection = client.connect()
    taker = Taker(connection, "q")
    publish(connection, "q", *range(4))
    taker.take(4)[1].ack()
    taker.consumer.recover(requeue=True)
    again = taker.take(3)
    assert payloads(again) == [0, 2, 3]
    assert [message.delivery_info["redelivered"] for message in again] == [True] * 3


def test_channels_have_their_own_credit(client):
    """Each channel of a connection has its own prefetch and its own consumers."""
    connection = client.connect()
    one = Taker(connection, "one", prefetch_count=1)
    two = Taker(connection, "two", prefetch_count=3)
    publish(connection, "one", *range(4))
    publish(connection, "two", *range(4))
    for _ in range(4):
        connection.drain_events(timeout=5)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.3)
    assert (len(one.messages), len(two.messages)) == (1, 3)


def test_two_consumers_of_one_queue_on_two_channels(client):
    """Two channels of one connection may consume from one queue, each with its own limit."""
    connection = client.connect()
    one = Taker(connection, "q", prefetch_count=1)
    two = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "a", "b", "c")
    connection.drain_events(timeout=5)
    connection.drain_events(timeout=5)
    assert one.messages[0].channel is one.channel
    assert two.messages[0].channel is two.channel
    one.consumer.cancel()
    two.messages[0].ack()
    assert two.take()[0].payload == "c"


def test_closing_one_channel_leaves_the_other(client):
    """A closed channel returns its unacked messages; another channel keeps its own."""
    connection = client.connect()
    one = Taker(connection, "q", prefetch_count=1)
    two = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "a", "b")
    connection.drain_events(timeout=5)
    connection.drain_events(timeout=5)
    returned, kept = one.messages[0].payload, two.messages[0]
    one.channel.close()
    status = client.status("q")
    assert (status.ready, status.unacked) == (1, 1)
    kept.ack()
    assert two.take()[0].payload == returned


def test_cancel_gives_back_what_was_fetched_ahead(client):
    """A cancelled consumer returns undelivered messages at once and keeps the delivered ones."""
    connection, other = client.connect(), client.connect()
    taker = Taker(connection, "q", prefetch_count=10)
    publish(connection, "q", *range(10))
    (held,) = taker.take()
    taker.consumer.cancel()
    status = client.status("q")
    assert (status.ready, status.unacked) == (9, 1)
    again = Taker(other, "q").take(9, timeout_s=2)
    assert payloads(again) == list(range(1, 10))
    assert not again[0].delivery_info.get("redelivered")
    held.ack()
    wait_until(lambda: client.status("q").ledger["acked"] == 1)


def test_cancel_by_queue(client):
    """Cancelling one queue of a consumer keeps its other queues."""
    connection = client.connect()
    taker = Taker(connection, "a", "b")
    taker.consumer.cancel_by_queue("a")
    publish(connection, "a", "a")
    publish(connection, "b", "b")
    assert payloads(taker.take()) == ["b"]
    assert taker.gets_nothing()


def test_close_returns_everything_at_once(client):
    """Closing the connection makes its unacked messages available to others immediately."""
    connection, other = client.connect(visibility_timeout=60), client.connect()
    taker = Taker(connection, "q", prefetch_count=5)
    publish(connection, "q", *range(5))
    taker.take(2)
    connection.release()
    assert client.status("q").ready == 5
    again = Taker(other, "q").take(5, timeout_s=2)
    assert payloads(again) == list(range(5))
    assert [bool(message.delivery_info.get("redelivered")) for message in again] == (
        [True, True, False, False, False]
    )


def test_a_consumer_started_again(client):
    """A cancelled consumer may consume again."""
    connection = client.connect()
    taker = Taker(connection, "q")
    taker.consumer.cancel()
    publish(connection, "q", "x")
    assert taker.gets_nothing()
    taker.consumer.consume()
    assert payloads(taker.take()) == ["x"]


def test_ten_thousand_acks_at_once(client):
    """ack(multiple=True) acks more messages than one script call can."""
    connection = client.connect(visibility_timeout=60)  # taking them all may take long
    declare(connection, "q")
    with connection.Producer().batch() as batch:
        for number in range(9000):
            batch.producer.publish(number, routing_key="q")
    taker = Taker(connection, "q")
    taker.take(9000, timeout_s=60)[-1].ack(multiple=True)
    wait_until(lambda: client.settled("q"))
