import pytest

from tests.contract.steps import message, tags


def fail(store, times):
    """Requeue one message *times* times; return the last result."""
    for _ in range(times):
        released = store.give_back("nacked", *store.take())
    return released


@pytest.mark.slow
def test_a_requeue_counts_towards_the_limit(connect):
    """A requeue that reaches the limit dead-letters the message and reports its death."""
    store = connect(delivery_limit=3)
    sent = message()
    store.publish(sent)
    assert ([], []) == fail(store, 2)
    assert {"ready": 1} == store.places()
    (died,) = fail(store, 1).dead
    assert (sent.tag, 3, "s/1") == (died.tag, died.failed, died.consumer)
    assert {"dead": 1} == store.places()
    (dead_letter,) = store.store.reads.dead_letters("q", 9)
    assert ("delivery_limit", 3, "s/1", "nacked") == (
        dead_letter.reason,
        dead_letter.count,
        dead_letter.consumer,
        dead_letter.error,
    )
    assert 1 == store.ledger("dead_lettered")
    assert 2 == store.ledger("nacked")


def test_requeues_and_lost_leases_count_together(connect):
    """Requeues and lost leases count together as failed deliveries."""
    store = connect(delivery_limit=3)
    store.publish(message())
    fail(store, 1)
    assert [] == store.return_ended(*store.take()).dead
    assert 1 == len(fail(store, 1).dead)


@pytest.mark.parametrize("how", ["undelivered", "released"])
def test_an_orderly_return_is_not_counted(connect, how):
    """An orderly return, as at a shutdown or a cancel, does not count towards the limit."""
    store = connect(delivery_limit=1)
    store.publish(message())
    for _ in range(5):
        assert ([], []) == store.give_back(how, *store.take())
    assert {"ready": 1} == store.places()


def test_the_queue_s_own_limit_goes_first(connect):
    """The queue's x-delivery-limit overrides the option of the consumer that requeues."""
    store = connect(delivery_limit=9)
    store.declare(arguments=b"a", delivery_limit="2")
    store.publish(message())
    assert [] == fail(store, 1).dead
    assert 1 == len(fail(store, 1).dead)


def test_the_queue_s_own_limit_counts_for_lost_leases(connect):
    """The pass applies the queue's own limit to lost leases."""
    store = connect(delivery_limit=9)
    store.declare(arguments=b"a", delivery_limit="2")
    store.publish(message())
    assert [] == store.return_ended(*store.take()).dead
    assert 1 == len(store.return_ended(*store.take()).dead)


def test_the_queue_s_own_limit_says_who_is_a_candidate(connect):
    """With a queue's own limit of 2, a message that failed once is delivered alone."""
    store = connect(delivery_limit=9)
    store.declare(arguments=b"a", delivery_limit="2")
    store.publish(message(), message())
    store.return_ended(*store.take(2))
    assert 1 == len(store.reserve(2).deliveries)


@pytest.mark.parametrize(("option", "own"), [(None, None), (2, "0")])
def test_no_limit(connect, option, own):
    """Without a limit, by option or by declaration, a message may fail any number of times."""
    store = connect(delivery_limit=option)
    store.declare(arguments=b"a", **({} if own is None else {"delivery_limit": own}))
    store.publish(message())
    for _ in range(5):
        assert [] == fail(store, 1).dead
        assert [] == store.return_ended(*store.take()).dead
    assert 10 == store.take()[0].failed


def test_a_late_requeue_kills_nothing(connect):
    """A consumer that lost a lease can neither count a failure nor dead-letter the message."""
    store, other = connect(delivery_limit=2), connect("s/2", delivery_limit=2)
    store.publish(message())
    (late,) = store.take()
    store.return_ended(late)
    other.take()
    assert ([late.tag], []) == store.give_back("nacked", late)
    assert {"unacked": 1} == store.places()


def test_some_die_and_some_return_in_one_call(connect):
    """One call may requeue some messages and dead-letter others, as each has its own count."""
    store, lax = connect(delivery_limit=2), connect(delivery_limit=9)
    old, new = message(rank=0), message(rank=1)
    store.publish(old)
    fail(store, 1)
    store.publish(new)
    released = store.give_back("nacked", *lax.take(2))
    assert ([], [old.tag]) == (released.refused, tags(released.dead))
    assert {"ready": 1, "dead": 1} == store.places()


def test_the_envelope_comes_with_what_returned_or_died(connect):
    """The report of a pass contains the envelopes if they are requested."""
    store = connect(delivery_limit=2)
    store.publish(message(envelope=b"one"))
    held = store.take()
    store.end(*held)
    (item,) = store.restore(force=True, include_messages=True).restored
    assert (held[0].tag, 1, "s/1", b"one") == item
    held = store.take()
    store.end(*held)
    (item,) = store.restore(force=True, include_messages=True).dead
    assert (held[0].tag, 2, "s/1", b"one") == item


def test_no_more_than_asked_for(connect):
    """The report of a pass without a request for messages has counts and no envelopes."""
    store = connect(delivery_limit=2)
    store.publish(message(envelope=b"one"), message(envelope=b"two"))
    store.return_ended(*store.take())
    (first,), (second,) = store.take(), connect("s/2", delivery_limit=9).take()
    report = store.return_ended(first, second)
    assert ({"s/1": 1, "s/2": 1}, []) == (report.by_consumer, report.restored)
    assert [(2, None)] == [(item.failed, item.envelope) for item in report.dead]


def test_a_requeue_keeps_to_the_cap(connect):
    """A requeue that dead-letters a message drops the oldest dead letters above the cap."""
    store = connect(delivery_limit=1, dead_letter_max=2)
    sent = [message() for _ in range(3)]
    for one in sent:
        store.publish(one)
        fail(store, 1)
    assert {"dead": 2} == store.places()
    assert tags(sent[1:]) == [item.tag for item in store.store.reads.dead_letters("q", 9)]
    assert 1 == store.ledger("dropped")
