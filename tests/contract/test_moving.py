"""Two brokers in one: two prefixes share nothing, so they are brokers to each other."""

from __future__ import annotations

import pytest

from reliq.errors import ConfigurationError, NotFound
from reliq.message.envelope import Envelope, encode
from reliq.message.queue_arguments import queue_arguments
from reliq.store.values import DUPLICATE, STORED, Lease
from reliq.transfer.numbered import move_queue
from tests.contract.steps import message


@pytest.fixture
def source(connect):
    """Return the broker that is emptied."""
    return connect("s/1", global_keyprefix="from.")


@pytest.fixture
def target(connect):
    """Return the broker that is filled, with a ledger of its own."""
    return connect("s/2", global_keyprefix="to.")


def declare(store, arguments):
    """Declare a queue as an application does."""
    encoded, meta = queue_arguments("q", False, arguments)
    store.declare(arguments=encoded, **meta)


def move(source, target, queue="q"):
    """Carry the whole queue; return how many messages went."""
    return sum(move_queue(source.store, target.store, queue))


def test_ready_delayed_and_dead_messages_go(source, target):
    """Each to its own place, and here they are counted as moved."""
    source.publish(dead := message(envelope=b"dead"))
    source.dead_letter(*source.take(), reason="undecodable", error="a|b")
    source.publish(message(envelope=b"now"), message(envelope=b"later", delay_ms=60_000))
    assert 3 == move(source, target)
    assert {} == source.places()
    assert 3 == source.ledger("moved")
    assert {"ready": 1, "delayed": 1, "dead": 1} == target.places()
    (there,) = target.store.reads.dead_letters("q", 9, 0, True)
    assert ("undecodable", "a|b", b"dead") == (there.reason, there.error, there.envelope)
    assert there.tag != dead.tag
    assert [b"now"] == [item.envelope for item in target.take()]
    assert 50_000 < target.reserve().next_due_ms <= 60_000


def test_a_queue_that_a_publish_made_is_declared_later(source, target):
    """Nobody knows its arguments yet: those of its first declaration, there, are taken."""
    source.publish(message())
    move(source, target)
    encoded, meta = queue_arguments("q", False, {"x-max-priority": 5})
    assert "existed" == target.store.declare_queue("q", False, encoded, meta).outcome


def reply(**properties):
    """Return the envelope of an answer."""
    return encode(Envelope(b"1", "", "", {}, {"correlation_id": "c", **properties}, "", "q"))


def test_replies_make_no_queue_there(source, target, caplog):
    """Who waited for them has gone with its queue: they are dropped, and the log says so."""
    source.publish(message(envelope=reply()), message(envelope=reply(), number=1))
    assert 2 == move(source, target)
    assert {} == source.places()
    assert target.store.reads.status("q") is None
    assert "dropped 2 replies for queue 'q'" in caplog.text


def test_replies_go_where_their_queue_is(source, target):
    """And where a request makes it."""
    source.publish(message(envelope=reply()), message(envelope=reply(reply_to="me")))
    assert 2 == move(source, target)
    source.publish(message(envelope=reply()))
    assert 1 == move(source, target)
    assert {"ready": 3} == target.places()


def test_order_and_priority_stay(source, target):
    """They are taken there as they would have been taken here."""
    for rank, name in ((5, b"c"), (0, b"a"), (5, b"d"), (0, b"b")):
        source.publish(message(envelope=name, rank=rank))
    move(source, target)
    assert [b"a", b"b", b"c", b"d"] == [item.envelope for item in target.take(4)]


def test_failed_deliveries_go_along(source, target):
    """A poison message does not start anew by moving house."""
    source.publish(message())
    source.return_ended(*source.take())
    move(source, target)
    assert 1 == target.take()[0].failed


def test_a_ttl_goes_along(source, target):
    """What is left of it."""
    source.publish(message(ttl_ms=200))
    move(source, target)
    target.pass_time(200)
    assert [] == target.reserve().deliveries
    assert 1 == target.ledger("expired")


def test_what_is_held_stays(source, target):
    """It is finished here, or moved when it has come back."""
    source.publish(message(), message())
    held = source.take()
    assert 1 == move(source, target)
    assert {"unacked": 1} == source.places()
    source.release("released", *held)
    assert 1 == move(source, target)


def test_what_is_moved_is_nobody_s_meanwhile(source):
    """Taken out, it is not delivered, not restored and not released; only its move goes on."""
    source.publish(message())
    _, (item,) = source.store.move_out("q", "broker:x")
    assert {"unacked": 1} == source.places()
    assert [] == source.reserve().deliveries
    assert {} == source.restore(force=True, lease_ms=1).by_consumer
    assert [] == source.store.move_out("q", "broker:y")[1]
    again = source.store.move_out("q", "broker:x")[1]
    assert [item] == again


def test_cut_off_before_the_end_it_goes_on(source, target):
    """Stored there and not removed here: the next carrier finds out and stores nothing twice."""
    source.publish(*(message() for _ in range(250)))
    low_water, moves = source.store.move_out("q", f"broker:{target.store.broker_id()}")
    target.declare()
    origin = f"{source.store.broker_id()}:q"
    assert {STORED} == set(target.store.accept("q", origin, low_water, moves))
    assert {DUPLICATE} == set(target.store.accept("q", origin, low_water, moves))
    assert 250 == move(source, target)
    assert {"ready": 250} == target.places()
    assert {} == source.places()


def test_who_comes_late_stores_nothing(source, target):
    """A carrier that stood still until another one had finished."""
    source.publish(message())
    target.declare()
    origin = f"{source.store.broker_id()}:q"
    slow = source.store.move_out("q", f"broker:{target.store.broker_id()}")
    move(source, target)
    source.publish(message())
    move(source, target)
    assert [DUPLICATE] == target.store.accept("q", origin, *slow)
    assert {"ready": 2} == target.places()


def test_limits_of_the_target_do_not_refuse(source, target):
    """They were accepted once."""
    declare(target, {"x-max-length": 1, "x-overflow": "reject-publish"})
    source.publish(message(), message())
    assert 2 == move(source, target)
    assert {"ready": 2} == target.places()


def test_the_bytes_that_wait_are_counted_on_both_sides(source, target):
    """x-max-length-bytes stays true."""
    for store in (source, target):
        declare(store, {"x-max-length-bytes": 1000})
    source.publish(message(envelope=b"x" * 10))
    move(source, target)
    assert (0, 10) == (source.ledger("waiting_bytes"), target.ledger("waiting_bytes"))


def test_a_queue_that_does_not_exist(source, target):
    """Nothing is declared."""
    with pytest.raises(NotFound, match="no queue 'q' to move"):
        move(source, target)
    assert target.store.reads.status("q") is None


def test_one_broker_is_not_two(source, connect):
    """Carrying in a circle is refused."""
    source.publish(message())
    same = connect("s/3", global_keyprefix="from.")
    with pytest.raises(ConfigurationError, match="both URLs name the same broker"):
        move(source, same)


def test_what_a_move_holds_can_be_given_up_under_its_token(source):
    """Where the other place cannot take a message it becomes a dead letter here."""
    source.publish(message(), message())
    _, moves = source.store.move_out("q", "elsewhere")
    dead_lettered = [Lease(moves[0].tag, "0")]
    assert [] == source.store.dead_letter("q", "undecodable", "", dead_lettered)
    assert {"unacked": 1, "dead": 1} == source.places()
    _, again = source.store.move_out("q", "elsewhere")
    assert [moves[1].tag] == [move.tag for move in again]
    assert 1 == source.store.end_move("q", [moves[1].tag])
    assert {"dead": 1} == source.places()


def test_a_move_of_dead_letters_leaves_it_alone(source, target):
    """Both at once, as a fail-back and a rerouting are: each ends what it has begun."""
    source.publish(message(envelope=b"dead"))
    (held,) = source.take()
    source.store.dead_letter("q", "rejected", "", [Lease(held.tag, held.token)])
    source.publish(message(envelope=b"ready"))
    (dead_letter,) = source.store.reads.dead_letters("q", 1)
    name = f"broker:{target.store.broker_id()}"
    _, (moved,) = source.store.move_out("q", name)
    low_water, (begun,) = source.store.begin_move("q", "queue:other", [dead_letter.tag])
    assert low_water <= moved.number < begun.number
    assert [moved] == source.store.move_out("q", name)[1]
    assert 1 == source.store.end_move("q", [moved.tag])
    assert 1 == source.store.end_move("q", [begun.tag])
    assert {} == source.places()
