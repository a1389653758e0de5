import pytest

from reliq.lua.keys import queue_keys
from reliq.values.values import DUPLICATE, STORED
from tests.contract.steps import message, tags


def dead(store, count=1, **changes):
    """Publish and reject messages; return their tags."""
    sent = [message(**changes) for _ in range(count)]
    store.publish(*sent)
    store.dead_letter(*store.take(count))
    return tags(sent)


# -- into their own queue


@pytest.mark.slow
def test_a_replayed_message_is_delivered_again(store):
    """A replayed message keeps its tag, starts with a new count, and is no dead letter any more."""
    store.publish(message(envelope=b"m"))
    store.release("nacked", *store.take())
    (held,) = store.take()
    store.dead_letter(held)
    assert [held.tag] == store.replay(held.tag)
    assert {"ready": 1} == store.places()
    assert [] == store.store.reads.dead_letters("q", 9)
    (again,) = store.take()
    assert (held.tag, -1, b"m") == (again.tag, again.failed, again.envelope)


def test_it_queues_behind_its_own_priority(store):
    """A replayed message is behind the others of its rank and before lower ranks."""
    (tag,) = dead(store, rank=3)
    before, after = message(rank=3), message(rank=4)
    store.publish(after, before)
    store.replay(tag)
    assert [before.tag, tag, after.tag] == tags(store.take(3))


def test_replayed_in_the_order_they_are_given(store):
    """One replay keeps the given order of its messages."""
    one, two, three = dead(store, 3)
    store.replay(three, one, two)
    assert [three, one, two] == tags(store.take(3))


def test_what_is_no_dead_letter_is_not_replayed(store):
    """Unknown, ready and held messages are not replayed."""
    held, ready = message(rank=0), message(rank=1)
    store.publish(held, ready)
    store.take()
    assert [] == store.replay("00nothing", held.tag, ready.tag)
    assert {"ready": 1, "unacked": 1} == store.places()


def test_replaying_twice_is_replaying_once(store):
    """A second replay of a message finds nothing."""
    (tag,) = dead(store)
    assert [tag] == store.replay(
        tag,
    )
    assert [] == store.replay(tag)
    assert {"ready": 1} == store.places()


def test_a_replay_rings(store):
    """A replay notifies a waiting consumer."""
    (tag,) = dead(store)
    store.reserve()
    store.store.notifier.listen(["q"], 5.0)
    store.replay(tag)
    store.wait_to_the_end()


def test_hundreds_are_replayed(store):
    """Hundreds of dead letters are replayed, more than one script call takes."""
    died = dead(store, 450)
    assert died == store.replay(*died)
    assert {"ready": 450} == store.places()


def test_a_late_ack_takes_a_replayed_message_out(store):
    """A late ack finishes a message that was replayed."""
    store.publish(message())
    held = store.take()
    store.return_ended(*held)
    store.dead_letter(*store.take())
    store.replay(held[0].tag)
    assert 1 == store.ack(held[0].tag)
    assert {} == store.places()


# -- removed


def test_purged_dead_letters_are_gone_and_counted(store):
    """A purge removes and counts exactly the named dead letters."""
    one, two = dead(store, 2)
    store.publish(kept := message())
    assert 1 == store.purge_dead(one, kept.tag, "00nothing")
    assert {"ready": 1, "dead": 1} == store.places()
    assert [two] == [dead_letter.tag for dead_letter in store.store.reads.dead_letters("q", 9)]
    assert 1 == store.ledger("purged")


# -- listed


def test_listed_from_a_moment_on(store):
    """A page of dead letters begins at a given time of death."""
    one = dead(store)
    store.pass_time(2)
    two = dead(store)
    first, second = store.store.reads.dead_letters("q", 9)
    assert one + two == [first.tag, second.tag]
    assert [second] == store.store.reads.dead_letters("q", 9, second.died_ms)


def test_listed_with_their_envelopes(store):
    """Dead letters are listed with their envelopes on request."""
    dead(store, envelope=b"m")
    assert [b"m"] == [
        dead_letter.envelope for dead_letter in store.store.reads.dead_letters("q", 9, 0, True)
    ]
    assert [None] == [
        dead_letter.envelope for dead_letter in store.store.reads.dead_letters("q", 9)
    ]


# -- moved to another queue


def arrive(store, low_water, moves, queue="other"):
    """Store *moves* in another queue, as the move does."""
    return store.publish(
        *(
            message(
                queue,
                move.envelope,
                publisher="move:q",
                number=move.number,
                low_water=low_water,
                moved=True,
            )
            for move in moves
        )
    )


def test_a_move_takes_the_message_over(store):
    """A move stores a message in the other queue and then removes it; both ledgers balance."""
    died = dead(store, 2, envelope=b"m")
    store.declare("other")
    low_water, moves = store.begin_move("queue:other", *died)
    assert died == tags(moves)
    assert [STORED, STORED] == arrive(store, low_water, moves)
    assert 2 == store.end_move(*died)
    assert {} == store.places()
    assert 2 == store.ledger("moved")
    assert [b"m", b"m"] == [item.envelope for item in store.take(2, queue="other")]


def test_a_move_that_was_cut_off_stores_nothing_twice(store):
    """A resumed move has the same numbers, so that the other queue stores nothing twice."""
    died = dead(store, 2)
    store.declare("other")
    begun = store.begin_move("queue:other", *died)
    arrive(store, *begun)
    again = store.begin_move("queue:other", *died)
    assert begun == again
    assert [DUPLICATE, DUPLICATE] == arrive(store, *again)
    assert 2 == store.end_move(*died)
    assert {"ready": 2} == store.places("other")


def test_who_comes_late_stores_nothing(store):
    """A move that continues after another process has finished it stores nothing.

    Its numbers are settled.
    """
    store.declare("other")
    slow = store.begin_move("queue:other", *dead(store))
    tag = tags(slow[1])[0]
    arrive(store, *store.begin_move("queue:other", tag))
    store.end_move(tag)
    arrive(store, *store.begin_move("queue:other", *dead(store)))
    assert [DUPLICATE] == arrive(store, *slow)
    assert 0 == store.end_move(tag)
    assert {"ready": 2} == store.places("other")


def test_a_move_elsewhere_is_not_disturbed(store):
    """A message in a move is not moved elsewhere, replayed or purged."""
    (tag,) = dead(store)
    store.begin_move("queue:other", tag)
    assert [] == store.begin_move("queue:third", tag)[1]
    assert [] == store.replay(tag)
    assert 0 == store.purge_dead(tag)
    assert {"dead": 1} == store.places()


def test_a_waiting_message_is_not_moved(store, engine):
    """The end of a move removes dead and held messages only, even if a record of it is left."""
    store.publish(waits := message())
    key = queue_keys("", "q").moves
    engine.client_of(key).hset(key, waits.tag, "1|queue:other")
    assert 0 == store.end_move(waits.tag)
    assert {"ready": 1} == store.places()


def test_a_late_ack_ends_a_move(store):
    """A late ack of a message in a move removes the message and ends the move."""
    store.publish(message())
    held = store.take()
    store.return_ended(*held)
    store.dead_letter(*store.take())
    _, (begun,) = store.begin_move("queue:other", held[0].tag)
    assert 1 == store.ack(held[0].tag)
    low_water, moves = store.begin_move("queue:other", held[0].tag)
    assert (True, []) == (begun.number < low_water, moves)
    assert 0 == store.end_move(held[0].tag)


def test_a_queue_that_lost_its_last_writes_repeats_no_number(store):
    """Move numbers follow the clock, so that a crash that loses writes repeats none."""
    _, (first,) = store.begin_move("queue:other", *dead(store))
    store.end_move(first.tag)
    store.pass_time(2)  # a clock of ms must have advanced
    _, (second,) = store.begin_move("queue:other", *dead(store))
    # A counter without the clock would have increased by one.
    assert second.number > first.number + 1


def test_a_queue_made_again_repeats_no_number(store):
    """A queue that is deleted and declared again repeats no move numbers."""
    store.declare("other")
    low_water, (first,) = store.begin_move("queue:other", *dead(store))
    arrive(store, low_water, [first])
    store.end_move(first.tag)
    store.delete()
    low_water, (second,) = store.begin_move("queue:other", *dead(store))
    assert second.number > first.number
    assert [STORED] == arrive(store, low_water, [second])
