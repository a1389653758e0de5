import threading

from tests.contract.steps import LONG_MS, audit, envelopes, message
from tests.support.waiting import wait_until


def test_takes_up_to_n(store):
    """A reserve takes at most n messages and reports whether ready ones are left."""
    store.publish(*(message(envelope=b"%d" % n) for n in range(5)))
    first = store.reserve(3)
    assert [b"0", b"1", b"2"] == envelopes(first)
    assert first.left
    second = store.reserve(3)
    assert [b"3", b"4"] == envelopes(second)
    assert not second.left
    assert {"unacked": 5} == store.places()


def test_an_empty_queue_gives_nothing(store):
    """A reserve of a missing queue returns nothing and creates no queue."""
    reservation = store.reserve(9)
    assert ([], -1, False) == (reservation.deliveries, reservation.next_due_ms, reservation.left)
    assert store.store.reads.status("q") is None


def test_who_promotes_takes_nothing(store):
    """A promotion without due messages takes nothing and reports the ready ones."""
    store.publish(message())
    assert store.promote().left
    assert {"ready": 1} == store.places()


def test_a_delivery_names_its_queue_and_tag(store):
    """A delivery has the queue, the tag, the envelope and the failures of its message."""
    sent = message(envelope=b"body")
    store.publish(sent)
    (delivery,) = store.take()
    assert ("q", sent.tag, b"body", -1) == (
        delivery.queue,
        delivery.tag,
        delivery.envelope,
        delivery.failed,
    )


def test_hundreds_at_once_come_in_parts(store):
    """Hundreds of messages are reserved in order, in as many calls as necessary."""
    sent = [b"%d" % number for number in range(450)]
    store.publish(*(message(envelope=envelope) for envelope in sent))
    assert sent == [delivery.envelope for delivery in store.take(450)]
    assert {"unacked": 450} == store.places()


def test_no_message_is_given_to_two(connect):
    """Concurrent consumers of a queue never get the same message."""
    connect("s/9").publish(*(message() for _ in range(300)))
    stores = [connect(f"s/{n}").store for n in range(4)]
    taken = [[] for _ in stores]

    def consume(store, mine):
        while got := store.reserve("q", 7, LONG_MS, False).deliveries:
            mine.extend(delivery.tag for delivery in got)

    threads = [
        threading.Thread(target=consume, args=pair) for pair in zip(stores, taken, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    tags = [tag for mine in taken for tag in mine]
    assert 300 == len(tags) == len(set(tags))
    audit(stores[0], ["q"])


def test_tokens_only_grow(store, other):
    """Each lease of a queue has a higher token than all earlier ones, of any consumer."""
    store.publish(*(message() for _ in range(6)))
    tokens = []
    for _ in range(2):
        first, second = store.take(3), other.take(3)
        tokens += [int(delivery.token) for delivery in (*first, *second)]
        store.release("released", *first)
        store.release("released", *second)
    assert sorted(set(tokens)) == tokens


def test_a_lease_names_its_consumer(connect):
    """Leases are found by the name of their connection or of its session, and by no other name."""
    first, tenth, foreign = connect("s/1"), connect("s/10"), connect("s2/1")
    first.publish(message(), message())
    (mine,), (its,) = first.take(), tenth.take()
    expected = {name: [(held.tag, held.token)] for name, held in (("s/1", mine), ("s/10", its))}
    for name, leases in expected.items():
        assert leases == foreign.store.leases_of("q", name)
    assert sorted(expected["s/1"] + expected["s/10"]) == foreign.store.leases_of("q", "s/")
    for name in ("s", "s/2", "s2/1", "s/1/", "/", ""):
        assert [] == foreign.store.leases_of("q", name)
    for name in ("s/1", "s/", "s2/1", "/", ""):
        assert [] == foreign.store.leases_of("q", f"{name}/")
    assert [] == foreign.store.leases_of("unknown", "s/1")


def test_hundreds_of_leases_are_all_found(store):
    """Hundreds of leases of a consumer are all listed, each once."""
    store.publish(*(message() for _ in range(700)))
    taken = store.take(700)
    expected = sorted((delivery.tag, delivery.token) for delivery in taken)
    assert expected == store.store.leases_of("q", "s/1")


def test_counts_failed_deliveries(store):
    """The failures are -1 at first, 0 after an orderly return, and grow with each failure."""
    store.publish(message())
    seen = []
    for how in ("undelivered", "released", "undelivered", "nacked", "released", "nacked"):
        (delivery,) = store.take()
        seen.append(delivery.failed)
        store.release(how, delivery)
    (delivery,) = store.take()
    store.return_ended(delivery)
    assert [-1, -1, 0, 0, 1, 1, 2, 3] == [*seen, delivery.failed, store.take()[0].failed]


def test_no_ack_finishes_as_it_takes(store):
    """A reserve with no_ack acks its messages in the same step and grants no lease."""
    store.publish(message(envelope=b"a"), message(envelope=b"b"), message(envelope=b"c"))
    reservation = store.reserve(2, no_ack=True)
    assert [b"a", b"b"] == envelopes(reservation)
    assert reservation.left
    assert {"ready": 1} == store.places()
    assert 2 == store.ledger("acked")
    assert [] == store.store.leases_of("q", "s/")
    assert 0 == store.ack(reservation.deliveries[0].tag)


def test_no_ack_forgets_the_failures(store):
    """A reserve with no_ack removes the failure count of its message."""
    sent = message()
    store.publish(sent)
    store.release("nacked", *store.take())
    assert 1 == store.reserve(no_ack=True).deliveries[0].failed
    store.publish(sent)
    assert -1 == store.take()[0].failed


def test_a_posted_reserve_answers_as_one_that_waits(store):
    """post_reserve takes and reports the same as reserve."""
    store.publish(message(envelope=b"body"))
    results = []
    store.store.post_reserve("q", 1, LONG_MS, False, results.append)
    store.store.wait_for_replies()
    (reservation,) = results
    assert [b"body"] == envelopes(reservation)
    assert {"unacked": 1} == store.places()


def test_queues_are_apart(store):
    """A queue with any name delivers only the messages that were published to it."""
    names = ["q", "Q", "q ", "{q}", "}q{", "%7Bq%7D", "{", "a:ready", "ü/é", "*"]
    for name in names:
        store.publish(message(name, envelope=name.encode()))
    for name in names:
        assert [name.encode()] == envelopes(store.reserve(9, queue=name))
        assert {"unacked": 1} == store.places(name)


# -- the lease


def test_the_lease_is_as_long_as_asked(store):
    """A reservation has the length of the lease."""
    assert LONG_MS == store.reserve().lease_ms


def test_a_queue_may_have_its_own_lease(store):
    """The queue's x-visibility-timeout overrides the consumer's length of the lease."""
    store.declare(lease="100")
    store.publish(message())
    reservation = store.reserve()
    assert 100 == reservation.lease_ms
    wait_until(lambda: store.restore().by_consumer, interval_s=0.01)
    assert {"ready": 1} == store.places()


def test_a_longer_lease_of_the_queue_holds(store):
    """A longer lease of the queue overrides a shorter one of the consumer."""
    store.declare(lease=str(LONG_MS))
    store.publish(message())
    store.take(lease_ms=1)
    store.pass_time(2)
    store.restore(lease_ms=1, force=True)
    assert {"unacked": 1} == store.places()


# -- paused


def test_a_paused_queue_accepts_and_gives_nothing_out(store):
    """A paused queue accepts publishes, delivers nothing, and reports nothing as left."""
    store.publish(message(envelope=b"before"))
    store.pause(True)
    store.publish(message(envelope=b"while"))
    reservation = store.reserve(9)
    assert [] == reservation.deliveries
    assert not reservation.left
    assert [] == store.reserve(9, no_ack=True).deliveries
    assert {"ready": 2} == store.places()
    store.pause(False)
    assert [b"before", b"while"] == envelopes(store.reserve(9))


def test_a_paused_queue_still_settles(store):
    """Messages taken before a pause can be acked, returned and renewed."""
    store.publish(message(), message(), message())
    done, back, kept = store.take(3)
    store.pause(True)
    assert 1 == store.ack(done.tag)
    assert [] == store.release("nacked", back)
    assert [] == store.renew(kept)
    assert {"ready": 1, "unacked": 1} == store.places()


def test_a_cache_that_is_lost_costs_nothing(store, engine):
    """The loss of the broker's caches between any two steps loses and repeats nothing."""
    store.publish(*(message(envelope=b"%d" % n) for n in range(3)))
    engine.forget_caches()
    store.publish(message(envelope=b"3", number=1, low_water=1), message(envelope=b"4"))
    engine.forget_caches()
    taken = store.take(5)
    assert [b"0", b"1", b"2", b"3", b"4"] == sorted(delivery.envelope for delivery in taken)
    engine.forget_caches()
    assert 5 == store.ack(*(delivery.tag for delivery in taken))
    assert {} == store.places()


# -- the size of a reserve

BIG = b"x" * (3 << 20)


def test_a_reserve_is_bounded_in_bytes(store):
    """A reserve is bounded in bytes, to little more than one large message."""
    store.publish(*(message(envelope=b"%d" % n + BIG) for n in range(4)))
    seen = []
    for more in (True, True, True, False):
        reservation = store.reserve(100)
        (envelope,) = envelopes(reservation)
        assert more is reservation.left
        seen.append(envelope[:1])
    assert [b"0", b"1", b"2", b"3"] == seen
    assert {"unacked": 4} == store.places()


def test_one_message_comes_whatever_its_size(store):
    """A message above the bound is delivered alone, and small messages are delivered together."""
    store.publish(message(envelope=b"a"), message(envelope=2 * BIG), message(envelope=b"b"))
    assert [b"a"] == envelopes(store.reserve(100))
    assert [2 * BIG] == envelopes(store.reserve(100))
    assert [b"b"] == envelopes(store.reserve(100))


def test_the_bound_goes_around_candidates(store, other):
    """A skipped candidate does not count towards the bound in bytes."""
    store.publish(message(envelope=b"0" + BIG), message(envelope=b"1" + BIG))
    for _ in range(2):
        for delivery in (store.take(1)[0], store.take(1)[0]):
            store.release("nacked", delivery)
    store.publish(*(message(envelope=b"%d" % n + BIG) for n in (2, 3)))
    held = other.reserve(100)
    assert [b"0"] == [envelope[:1] for envelope in envelopes(held)]
    taken = other.reserve(100)
    assert [b"2"] == [envelope[:1] for envelope in envelopes(taken)]
    assert taken.left
    assert [b"1"] == [envelope[:1] for envelope in envelopes(store.reserve(100))]


# -- taken without an ack, and returned


def test_what_was_not_handed_out_goes_back_to_its_place(store):
    """A returned message of a no_ack reserve has its old place, count and TTL.

    The ledger is the same as before the reserve.
    """
    sent = [
        message(envelope=b"%d" % n, rank=rank, ttl_ms=ttl)
        for n, (rank, ttl) in enumerate([(5, -1), (5, LONG_MS), (2, -1), (5, -1)])
    ]
    store.publish(*sent)
    first = store.take()[0]
    store.release("nacked", first)
    taken = store.reserve(3, no_ack=True).deliveries
    assert [b"2", b"0", b"1"] == [delivery.envelope for delivery in taken]
    assert 3 == store.hand_back(*taken)
    assert {"ready": 4} == store.places()
    assert 0 == store.ledger("acked")
    again = store.reserve(9, no_ack=True).deliveries
    assert [b"2", b"0", b"1", b"3"] == [delivery.envelope for delivery in again]
    assert [1, -1, -1, -1] == [delivery.failed for delivery in again]
    assert taken == again[:3]


def test_nothing_is_handed_back_to_a_queue_that_is_gone(store):
    """Nothing is returned to a deleted queue, and no message is returned twice."""
    store.publish(message(), message())
    taken = store.reserve(2, no_ack=True).deliveries
    assert 1 == store.hand_back(taken[0])
    assert 0 == store.hand_back(taken[0])
    store.delete()
    assert 0 == store.hand_back(taken[1])
    assert store.store.reads.status("q") is None
