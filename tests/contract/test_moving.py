"""Moves between two brokers, simulated by two key prefixes that share nothing."""

from __future__ import annotations

import pytest

from reliq.errors import ConfigurationError, NotFound
from reliq.message.envelope import Envelope, encode
from reliq.message.queue_arguments import queue_arguments
from reliq.transfer.numbered import move_queue
from reliq.values.values import DUPLICATE, STORED, Lease
from tests.contract.steps import message


@pytest.fixture
def source(connect):
    """Return the broker that is emptied."""
    return connect("s/1", global_keyprefix="from.")


@pytest.fixture
def target(connect):
    """Return the broker that is filled, with its own ledger."""
    return connect("s/2", global_keyprefix="to.")


def declare(store, arguments):
    """Declare a queue as an application does."""
    encoded, meta = queue_arguments("q", False, arguments)
    store.declare(arguments=encoded, **meta)


def move(source, target, queue="q"):
    """Move the whole queue; return the number of moved messages."""
    return sum(move_queue(source.store, target.store, queue))


def test_ready_delayed_and_dead_messages_go(source, target):
    """Ready, delayed and dead messages are moved to the same places, and count as moved."""
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
    """A queue that a move creates takes its arguments from its first declaration."""
    source.publish(message())
    move(source, target)
    encoded, meta = queue_arguments("q", False, {"x-max-priority": 5})
    assert "existed" == target.store.declare_queue("q", False, encoded, meta).outcome


def reply(**properties):
    """Return the envelope of a reply."""
    return encode(Envelope(b"1", "", "", {}, {"correlation_id": "c", **properties}, "", "q"))


def test_replies_make_no_queue_there(source, target, caplog):
    """Replies to a queue that does not exist at the target are dropped with a log line.

    Their reader has gone with its queue.
    """
    source.publish(message(envelope=reply()), message(envelope=reply(), number=1))
    assert 2 == move(source, target)
    assert {} == source.places()
    assert target.store.reads.status("q") is None
    assert "dropped 2 replies for queue 'q'" in caplog.text


def test_replies_go_where_their_queue_is(source, target):
    """Replies are moved to a queue that exists at the target or that a request creates."""
    source.publish(message(envelope=reply()), message(envelope=reply(reply_to="me")))
    assert 2 == move(source, target)
    source.publish(message(envelope=reply()))
    assert 1 == move(source, target)
    assert {"ready": 3} == target.places()


def test_order_and_priority_stay(source, target):
    """Moved messages keep their order and priority."""
    for rank, name in ((5, b"c"), (0, b"a"), (5, b"d"), (0, b"b")):
        source.publish(message(envelope=name, rank=rank))
    move(source, target)
    assert [b"a", b"b", b"c", b"d"] == [item.envelope for item in target.take(4)]


def test_failed_deliveries_go_along(source, target):
    """Moved messages keep their count of failed deliveries."""
    source.publish(message())
    source.return_ended(*source.take())
    move(source, target)
    assert 1 == target.take()[0].failed


def test_a_ttl_goes_along(source, target):
    """A moved message keeps the rest of its TTL."""
    source.publish(message(ttl_ms=200))
    move(source, target)
    target.pass_time(200)
    assert [] == target.reserve().deliveries
    assert 1 == target.ledger("expired")


def test_what_is_held_stays(source, target):
    """Held messages are not moved until they are returned."""
    source.publish(message(), message())
    held = source.take()
    assert 1 == move(source, target)
    assert {"unacked": 1} == source.places()
    source.release("released", *held)
    assert 1 == move(source, target)


def test_what_is_moved_is_nobody_s_meanwhile(source):
    """A message in a move is not delivered, restored or released; only its own move continues."""
    source.publish(message())
    _, (item,) = source.store.move_out("q", "broker:x")
    assert {"unacked": 1} == source.places()
    assert [] == source.reserve().deliveries
    assert {} == source.restore(force=True, lease_ms=1).by_consumer
    assert [] == source.store.move_out("q", "broker:y")[1]
    again = source.store.move_out("q", "broker:x")[1]
    assert [item] == again


def test_cut_off_before_the_end_it_goes_on(source, target):
    """An interrupted move is resumed and stores no message twice."""
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
    """A move that continues after another process has finished it stores nothing."""
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
    """The target's limits do not refuse moved messages, which were accepted once."""
    declare(target, {"x-max-length": 1, "x-overflow": "reject-publish"})
    source.publish(message(), message())
    assert 2 == move(source, target)
    assert {"ready": 2} == target.places()


def test_the_bytes_that_wait_are_counted_on_both_sides(source, target):
    """Moved messages change the count of waiting bytes at both brokers."""
    for store in (source, target):
        declare(store, {"x-max-length-bytes": 1000})
    source.publish(message(envelope=b"x" * 10))
    move(source, target)
    assert (0, 10) == (source.ledger("waiting_bytes"), target.ledger("waiting_bytes"))


def test_a_queue_that_does_not_exist(source, target):
    """A move of a missing queue is refused and declares nothing."""
    with pytest.raises(NotFound, match="no queue 'q'"):
        move(source, target)
    assert target.store.reads.status("q") is None


def test_one_broker_is_not_two(source, connect):
    """A move from a broker to itself is refused."""
    source.publish(message())
    same = connect("s/3", global_keyprefix="from.")
    with pytest.raises(ConfigurationError, match="both URLs name the same broker"):
        move(source, same)


def test_what_a_move_holds_can_be_given_up_under_its_token(source):
    """A message in a move can be dead-lettered with the move's token.

    This applies if the target cannot accept the message.
    """
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
    """Two concurrent moves, of dead letters and of a queue, do not interfere."""
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
