import random
from dataclasses import replace

import pytest

from reliq.message.delivery_tag import new_tag
from reliq.values.values import CREATED, DUPLICATE, NO_QUEUE, STALE, STORED
from tests.contract.steps import envelopes, message


@pytest.mark.slow
def test_the_first_message_creates_the_queue(store):
    """The first publish through the anonymous exchange creates the queue."""
    assert [CREATED, STORED] == store.publish(message(), message())
    assert [STORED] == store.publish(message())
    assert {"ready": 3} == store.places()


def test_what_is_not_to_create_a_queue(store):
    """A publish with create=False stores only in an existing queue.

    Another message of the same call may create the queue.
    """
    assert [NO_QUEUE] == store.publish(message(create=False))
    assert store.store.reads.status("q") is None
    assert [NO_QUEUE, CREATED, STORED] == store.publish(
        message(create=False), message(), message(create=False)
    )
    assert {"ready": 2} == store.places()


def test_an_envelope_comes_back_unchanged(store):
    """An envelope of any bytes comes back unchanged: empty, all values, line ends, half a MB."""
    stored = [b"", bytes(range(256)), b"\r\n" * 3, random.Random(1).randbytes(500_000)]
    store.publish(*(message(envelope=envelope) for envelope in stored))
    assert stored == envelopes(store.reserve(4))


def test_outcomes_come_in_the_order_of_the_messages(store):
    """Each message of a call over many queues has its own outcome, independent of the others."""
    store.declare("known")
    store.store.bind("e", True, [b"binding"])
    version = store.store.bindings_version("e")
    outcomes = store.publish(
        message("known", exchange="e", version=version),
        message("unknown", exchange="e", version=version),
        message("known", exchange="e", version=b"old"),
        message("known", number=1, low_water=1),
        message("known", number=1, low_water=1),
        message("new"),
    )
    assert [STORED, NO_QUEUE, STALE, STORED, DUPLICATE, CREATED] == outcomes
    assert {"ready": 2} == store.places("known")


def test_a_posted_publish_answers_as_one_that_waits(store):
    """post_publish stores and reports the same as publish."""
    again = message(number=1, low_water=1)
    assert [CREATED, DUPLICATE] == store.post_publish(again, again)
    assert {"ready": 1} == store.places()


def test_a_named_exchange_creates_no_queue(store):
    """A publish through a named exchange to a missing queue stores and creates nothing."""
    store.store.bind("e", True, [b"binding"])
    version = store.store.bindings_version("e")
    assert [NO_QUEUE] == store.publish(message(exchange="e", version=version))
    assert store.store.reads.status("q") is None


def test_a_stale_route_stores_nothing(store):
    """A publish with outdated bindings stores nothing."""
    store.declare()
    store.store.bind("e", True, [b"one"])
    old = store.store.bindings_version("e")
    store.store.bind("e", True, [b"two"])
    assert [STALE] == store.publish(message(exchange="e", version=old))
    assert {} == store.places()
    new = store.store.bindings_version("e")
    assert [STORED] == store.publish(message(exchange="e", version=new))


def test_a_stale_route_uses_up_no_number(store):
    """A publish with outdated bindings uses no number, so its repetition is stored."""
    store.declare()
    store.store.bind("e", True, [b"one"])
    retried = message(exchange="e", number=1, low_water=1)
    assert [STALE] == store.publish(replace(retried, version=b"old"))
    version = store.store.bindings_version("e")
    assert [STORED] == store.publish(replace(retried, version=version))


def test_a_route_through_bindings_that_are_gone_is_stale(store):
    """A deleted or evicted table of bindings makes every route stale."""
    store.declare()
    assert [STALE] == store.publish(message(exchange="e", version=b"1.2"))
    assert {} == store.places()


# -- retries


def test_a_retry_is_stored_once(store):
    """The same publisher and number mean the same message, even if the retry has another tag."""
    first = message(number=1, low_water=1, envelope=b"first")
    store.publish(first)
    assert [DUPLICATE] == store.publish(first)
    assert [DUPLICATE] == store.publish(replace(first, tag=new_tag(5), envelope=b"second"))
    assert [b"first"] == envelopes(store.reserve(9))
    assert 1 == store.ledger("published")


@pytest.mark.parametrize("place", ["unacked", "acked", "dead", "delayed", "expired", "purged"])
def test_a_retry_is_stored_once_wherever_the_message_is_now(store, place):
    """A late retry is not stored, whatever the state of the message: even after its ack."""
    first = message(
        number=1,
        low_water=1,
        delay_ms=600_000 if place == "delayed" else 0,
        ttl_ms=0 if place == "expired" else -1,
    )
    store.publish(first)
    if place == "purged":
        store.purge()
    elif place not in {"delayed", "expired"}:
        (delivery,) = store.take()
        if place == "acked":
            store.ack(delivery.tag)
        elif place == "dead":
            store.dead_letter(delivery)
    else:
        assert [] == store.reserve().deliveries
    before = store.places()
    assert [DUPLICATE] == store.publish(first)
    assert before == store.places()
    assert 1 == store.ledger("published")


def test_an_unsettled_number_is_remembered_however_many_follow(store):
    """The number of a publish that may be retried is remembered, however many follow it."""
    first = message(number=1, low_water=1)
    store.publish(first)
    for number in range(2, 302, 50):
        store.publish(*(message(number=n, low_water=1) for n in range(number, number + 50)))
    assert [DUPLICATE] == store.publish(first)
    assert 301 == store.ledger("published")


def test_an_unsettled_number_is_remembered_when_those_before_it_settle(store):
    """Numbers from the low-water mark on are remembered; lower ones are no longer needed."""
    store.publish(*(message(number=n, low_water=1) for n in range(1, 17)))
    store.publish(*(message(number=n, low_water=10) for n in range(17, 33)))
    assert [DUPLICATE] * 23 == store.publish(
        *(message(number=n, low_water=10) for n in range(10, 33))
    )


def test_numbers_belong_to_one_publisher_in_one_queue(store):
    """The same number of another publisher, or in another queue, is another message."""
    outcomes = store.publish(
        message(number=1, low_water=1),
        message(number=1, low_water=1, publisher="other"),
        message("r", number=1, low_water=1),
    )
    assert [CREATED, STORED, CREATED] == outcomes


def test_number_zero_is_never_a_duplicate(store):
    """Messages with the number 0 are never duplicates, as they are not retried."""
    assert [CREATED, STORED, STORED] == store.publish(message(), message(), message())


def test_a_retry_over_another_connection_is_stored_once(connect):
    """A retry over another connection is a duplicate, as the broker remembers the numbers."""
    first = message(number=1, low_water=1)
    connect("s/1").publish(first)
    assert [DUPLICATE] == connect("s/2").publish(first)


# -- order


def test_priority_then_age(store):
    """The lowest rank is delivered first; within a rank, the oldest message."""
    ranks = random.Random(3).choices([0, 1, 5, 9, 128, 255], k=60)
    sent = [message(rank=rank, envelope=b"%d" % i) for i, rank in enumerate(ranks)]
    store.publish(*sent)
    expected = [item.envelope for item in sorted(sent, key=lambda item: item.rank)]
    assert expected == [delivery.envelope for delivery in store.take(60)]


def test_a_message_of_higher_priority_overtakes(store):
    """A message of higher priority overtakes those that wait, even of an earlier publish."""
    store.publish(message(rank=5, envelope=b"a"), message(rank=5, envelope=b"b"))
    assert [b"a"] == envelopes(store.reserve())
    store.publish(message(rank=0, envelope=b"c"))
    assert [b"c", b"b"] == envelopes(store.reserve(2))


def test_order_goes_on_over_connections(store, other):
    """Messages of several publishers are delivered in the order of their publishes."""
    for number in range(10):
        (store, other)[number % 2].publish(message(envelope=b"%d" % number))
    assert [b"%d" % n for n in range(10)] == envelopes(store.reserve(10))


# -- the list of queues


def test_a_queue_is_listed_by_who_created_it(store):
    """A queue that a publish created is listed after its publisher's request."""
    store.publish(message("b"), message("a"))
    store.store.list_queue("b")
    store.store.list_queue("a")
    store.store.list_queue("a")
    assert ["a", "b"] == store.store.queues()


def test_a_request_that_comes_late_is_a_duplicate(store):
    """A request that arrives after its retry has returned is a duplicate."""
    store.publish(message(number=2, low_water=2))
    assert [DUPLICATE] == store.publish(message(number=1))
    assert [STORED] == store.publish(message(number=3))
    assert {"ready": 2} == store.places()


# -- finished publishers


def test_the_numbers_of_a_publisher_that_is_done_are_forgotten(store):
    """The numbers of a finished publisher are forgotten, those of moves and others are not."""
    numbered = {
        name: [message(publisher=name, number=number, low_water=1) for number in (1, 2)]
        for name in ("done", "other")
    }
    move = message(publisher="move:x", number=1, low_water=1, moved=True)
    for items in numbered.values():
        assert [DUPLICATE] != store.publish(*items)
    store.publish(move)
    store.store.forget_publishers(lambda name: name != "other")
    store.store.wait_for_replies()
    assert [STORED] == store.publish(message(publisher="done", number=2, low_water=1))
    assert [DUPLICATE] * 2 == store.publish(*numbered["other"])
    assert [DUPLICATE] == store.publish(move)


def test_a_retry_finds_its_number_after_its_queue_was_made_anew(store):
    """A retry is a duplicate even after its queue was deleted and declared again.

    The first try may have been consumed before. The numbers therefore outlive the queue for a
    while.
    """
    store.declare("q")
    first = message(number=1, low_water=1)
    assert [STORED] == store.publish(first)
    store.delete("q")
    store.declare("q")
    assert [DUPLICATE] == store.publish(first)
    assert [STORED] == store.publish(message(number=2, low_water=1))
    assert {"ready": 1} == store.places()


def test_numbers_come_in_any_order(store):
    """Numbers may arrive in any order, as threads and connections overtake each other."""
    order = (5, 3, 9, 4, 1, 7, 2, 8, 6, 12, 11)
    for number in order:
        assert STORED <= store.publish(message(number=number))[0] <= CREATED
    for number in order:
        assert [DUPLICATE] == store.publish(message(number=number))
    assert [STORED] == store.publish(message(number=10, low_water=4))
    assert [DUPLICATE] * 3 == store.publish(*(message(number=n) for n in (3, 4, 12)))
    assert [STORED] == store.publish(message(number=13))
