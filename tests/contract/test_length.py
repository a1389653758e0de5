import pytest

from reliq.values.values import CREATED, DUPLICATE, FULL, STORED
from tests.contract.steps import envelopes, message, tags


def declare(store, overflow="drop-head", **limits):
    """Declare a queue with limits."""
    store.declare(arguments=b"a", overflow=overflow, **{k: str(v) for k, v in limits.items()})


def died(store):
    """Return the reasons and tags of the dead letters."""
    return [
        (dead_letter.reason, dead_letter.tag)
        for dead_letter in store.store.reads.dead_letters("q", 99)
    ]


# -- drop-head


def test_the_oldest_gives_way(store):
    """Above x-max-length, the oldest waiting message becomes a dead letter."""
    declare(store, max_length=2)
    sent = [message() for _ in range(4)]
    for item in sent:
        assert [STORED] == store.publish(item)
    assert [("maxlen", item.tag) for item in sent[:2]] == died(store)
    assert tags(sent[2:]) == tags(store.take(2))
    assert 2 == store.ledger("dead_lettered")


def test_the_lowest_priority_gives_way_first(store):
    """A message of the lowest priority is dropped first, never an urgent one for a less urgent."""
    declare(store, max_length=2)
    urgent, later, last = message(rank=0), message(rank=5), message(rank=5)
    store.publish(urgent, later, last)
    assert [("maxlen", later.tag)] == died(store)
    assert [urgent.tag, last.tag] == tags(store.take(2))


def test_what_is_held_is_not_counted_and_not_dropped(store):
    """Held messages are neither counted nor dropped: as in RabbitMQ, only waiting ones count."""
    declare(store, max_length=1)
    first, second = message(), message()
    store.publish(first)
    held = store.take()
    store.publish(second)
    assert [] == died(store)
    store.ack(held[0].tag)
    assert [second.tag] == tags(store.take())


def test_a_delayed_message_counts_and_goes_last(store):
    """A delayed message counts as waiting, and ready messages are dropped before it."""
    declare(store, max_length=1)
    delayed, ready = message(delay_ms=60_000), message()
    store.publish(delayed)
    store.publish(ready)
    assert [("maxlen", ready.tag)] == died(store)
    store.publish(message(delay_ms=90_000))
    assert ("maxlen", delayed.tag) in died(store)


def test_above_the_bytes_as_many_go_as_it_takes(store):
    """Above x-max-length-bytes, as many messages are dropped as necessary."""
    declare(store, max_bytes=100)
    store.publish(*(message(envelope=b"x" * 30) for _ in range(3)))
    assert [] == died(store)
    store.publish(message(envelope=b"y" * 60))
    assert 2 == len(died(store))
    assert [b"x" * 30, b"y" * 60] == [item.envelope for item in store.take(2)]


def test_one_that_is_too_large_for_the_queue_dies_itself(store):
    """A message larger than the queue's limit is dropped itself."""
    declare(store, max_bytes=10)
    sent = message(envelope=b"x" * 11)
    store.publish(sent)
    assert [("maxlen", sent.tag)] == died(store)


def test_the_bytes_follow_every_move(store):
    """The count of waiting bytes stays correct through all changes of messages."""
    declare(store, max_bytes=1000)

    def bytes_waiting():
        return store.ledger("waiting_bytes")

    store.publish(*(message(envelope=b"x" * 10) for _ in range(4)))
    assert 40 == bytes_waiting()
    taken = store.take(2)
    assert 20 == bytes_waiting()
    store.release("released", taken[0])
    assert 30 == bytes_waiting()
    store.return_ended(taken[1])
    assert 40 == bytes_waiting()
    store.ack(taken[1].tag)
    assert 30 == bytes_waiting()
    store.dead_letter(*store.take())
    assert 20 == bytes_waiting()
    (dead_letter,) = store.store.reads.dead_letters("q", 9)
    store.replay(dead_letter.tag)
    assert 30 == bytes_waiting()
    store.publish(message(envelope=b"y" * 5, ttl_ms=1))
    store.pass_time(2)
    store.promote()
    assert 30 == bytes_waiting()
    store.reserve(1, no_ack=True)
    assert 20 == bytes_waiting()
    store.purge()
    assert 0 == bytes_waiting()


def test_a_retry_that_stores_nothing_keeps_to_the_limit(store):
    """A publish restores the limit after a replay has exceeded it, even a duplicate publish."""
    declare(store, max_length=2)
    sent = [message(number=n) for n in range(1, 4)]
    store.publish(*sent)
    store.replay(sent[0].tag)
    assert {"ready": 3} == store.places()
    assert [DUPLICATE] == store.publish(sent[2])
    assert {"ready": 2, "dead": 1} == store.places()
    assert 2 == store.ledger("dead:maxlen")


def test_the_cap_of_the_dead_letters_holds_without_a_consumer(connect):
    """The cap of the dead letters holds without a consumer of the queue."""
    store = connect(dead_letter_max=3)
    declare(store, max_length=1)
    for _ in range(8):
        store.publish(message())
    assert {"ready": 1, "dead": 3} == store.places()
    assert 4 == store.ledger("dropped")


# -- reject-publish


def test_a_full_queue_rejects(store):
    """A full queue rejects a publish, stores and drops nothing, and informs the publisher."""
    declare(store, "reject-publish", max_length=1)
    assert [STORED, FULL] == store.publish(message(), message())
    assert [FULL] == store.publish(message(number=7))
    assert {"ready": 1} == store.places()
    assert 1 == store.ledger("published")
    store.take()
    assert [STORED] == store.publish(message(number=7))


def test_a_full_queue_still_knows_a_duplicate(store):
    """A retry of the publish that filled the queue is reported as a duplicate."""
    declare(store, "reject-publish", max_length=1)
    sent = message(number=1)
    assert [STORED] == store.publish(sent)
    assert [DUPLICATE] == store.publish(sent)


def test_full_of_bytes(store):
    """A queue that is full by bytes accepts a smaller message that still fits."""
    declare(store, "reject-publish", max_bytes=10)
    large, small = message(envelope=b"x" * 8), message(envelope=b"yy")
    assert [STORED, FULL, STORED] == store.publish(large, message(envelope=b"zzz"), small)


def test_what_goes_back_is_never_refused(store):
    """A returned message is never refused, as limits apply to publishers only."""
    declare(store, "reject-publish", max_length=1)
    store.publish(message(envelope=b"a"))
    held = store.take()
    store.publish(message(envelope=b"b"))
    store.release("nacked", *held)
    assert {"ready": 2} == store.places()
    assert [b"a", b"b"] == envelopes(store.reserve(2))


@pytest.mark.parametrize("number", [0, 1])
def test_an_undeclared_queue_has_no_limit(store, number):
    """A queue that a publish creates has no limit."""
    first, second = message(number=number), message(number=number * 2)
    assert [CREATED, STORED] == store.publish(first, second)


# -- expired messages


@pytest.mark.parametrize("overflow", ["reject-publish", "drop-head"])
@pytest.mark.parametrize("limits", [{"max_length": 2}, {"max_bytes": 20}])
def test_what_has_expired_makes_room(store, overflow, limits):
    """Expired messages make room for a publish, and no other message is dropped for them."""
    declare(store, overflow, **limits)
    store.publish(message(ttl_ms=1, envelope=b"x" * 10), message(ttl_ms=1, envelope=b"x" * 10))
    store.pass_time(3)
    sent = [message(envelope=b"y" * 10) for _ in range(2)]
    for item in sent:
        assert [STORED] == store.publish(item)
    assert [] == died(store)
    assert 2 == store.ledger("expired")
    assert tags(sent) == tags(store.take(2))


def test_what_has_expired_makes_room_as_dead_letters(store):
    """Expired messages that make room become dead letters if the queue keeps them."""
    declare(store, "reject-publish", max_length=1, dead_expired=1)
    old = message(ttl_ms=1)
    store.publish(old)
    store.pass_time(3)
    assert [STORED] == store.publish(message())
    assert [("expired", old.tag)] == died(store)


def test_hundreds_that_have_expired_make_room_for_a_batch(store):
    """Hundreds of expired messages make room for a full batch of publishes in one step."""
    declare(store, "reject-publish", max_length=300)
    store.publish(*(message(ttl_ms=1) for _ in range(300)))
    store.pass_time(3)
    assert [STORED] * 200 == store.publish(*(message() for _ in range(200)))
    assert {"ready": 300} == store.places()
