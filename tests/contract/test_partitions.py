"""Divided queues: each partition is a separate queue, which can be closed.

On an engine without partitions, each queue is one partition, which is never closed:
test_topology.py.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from reliq.errors import ConfigurationError, NotFound, PreconditionFailed
from reliq.message.queue_arguments import queue_arguments
from reliq.message.queue_names import partition_name, partition_names
from reliq.routing import partitions
from reliq.routing.publish_ids import PUBLISHER
from reliq.routing.spread import SPREAD
from reliq.values.values import CLOSED, CREATED, DUPLICATE, NO_QUEUE, STORED, Layout
from tests.contract.steps import LONG_MS, message


def declare(steps, count, **arguments):
    """Declare q with *count* partitions."""
    given = {"x-partitions": count, **arguments}
    return partitions.declare(steps.store, "q", *queue_arguments("q", False, given))


def divided(steps, count=4, **arguments):
    """Declare q; return the names of its partitions."""
    declare(steps, count, **arguments)
    return partition_names("q", count)


def into(steps, name, **changes):
    """Publish one message into a partition, as a publisher does; return the outcome."""
    (outcome,) = steps.publish(message(name, create=name == "q", **changes))
    return outcome


def test_a_queue_is_declared_with_its_partitions(store):
    """A declaration creates the partitions of a queue, which are queues themselves."""
    assert "created" == declare(store, 4).outcome
    assert "existed" == declare(store, 4).outcome
    assert Layout(4, 4) == store.store.layout("q")
    assert set(partition_names("q", 4)) == set(store.store.queues())


def test_a_queue_that_is_not_there_has_no_layout(store):
    """A missing queue has no layout and cannot be divided."""
    assert store.store.layout("q") is None
    with pytest.raises(NotFound):
        partitions.divide(store.store, "q", 2)
    assert [] == store.store.queues()


def test_who_declares_makes_what_is_missing(store):
    """A redeclaration creates missing partitions, as their creator may have died."""
    names = divided(store)
    store.store.delete_queue(names[2])
    declare(store, 4)
    assert store.store.layout(names[2]) is not None


def test_a_publish_tells_how_the_queue_is_divided(store):
    """A publish returns the number of partitions, which saves a publisher another query."""
    names = divided(store)
    store.store.partitions.clear()
    for name in names:
        assert STORED == into(store, name)
        assert {"q": 4} == store.store.partitions
        store.store.partitions.clear()
    assert [STORED] == store.post_publish(message("q"))
    assert {"q": 4} == store.store.partitions


def test_a_closed_partition_takes_nothing_new(store):
    """A closed partition refuses new messages and still delivers its own."""
    names = divided(store)
    into(store, names[3], envelope=b"before")
    partitions.divide(store.store, "q", 2)
    assert Layout(2, 4) == store.store.layout("q")
    assert [STORED, STORED, CLOSED, CLOSED] == [into(store, name) for name in names]
    assert [b"before"] == [got.envelope for got in store.reserve(9, queue=names[3]).deliveries]


def test_a_retry_is_found_in_a_closed_partition(store):
    """A retry of a message in a closed partition is reported as a duplicate.

    The publish number is checked before the closure, so the message is not stored elsewhere.
    """
    names = divided(store)
    numbered = {"number": 1, "tag": "05one"}
    assert STORED == into(store, names[3], **numbered)
    partitions.divide(store.store, "q", 1)
    assert DUPLICATE == into(store, names[3], **numbered)
    assert CLOSED == into(store, names[3], number=2)


def test_who_may_have_published_it_elsewhere_publishes_into_a_closed_one(store):
    """A closed partition accepts a message that may have been published at another broker.

    The other broker finds it there by its number, and it is consumed.
    """
    names = divided(store)
    partitions.divide(store.store, "q", 1)
    assert [STORED] == store.publish(message(names[2], create=True))


def test_a_partition_that_a_publish_makes_is_before_the_end(store):
    """A partition that a publish creates becomes part of the layout, so that it is consumed."""
    name = partition_name("q", 5)
    assert [CREATED] == store.publish(message(name))
    partitions.adopt(store.store, name)
    assert Layout(1, 6) == store.store.layout("q")
    assert {"q", name} == set(store.store.queues())
    assert 2 == sum(1 for _ in store.store.queues())


def test_drained_partitions_are_removed(store):
    """Drained partitions are removed from the end of the layout.

    A partition stays if it holds a message or if a retry may query it.
    """
    names = divided(store)
    into(store, names[2])
    partitions.divide(store.store, "q", 1)
    partitions.settle(store.store, "q")
    assert Layout(1, 3) == store.store.layout("q")
    assert set(names[:3]) == set(store.store.queues())
    (taken,) = store.reserve(1, queue=names[2]).deliveries
    partitions.settle(store.store, "q")
    assert Layout(1, 3) == store.store.layout("q")
    store.ack(taken.tag, queue=names[2])
    partitions.settle(store.store, "q")
    assert Layout(1, 1) == store.store.layout("q")
    assert ["q"] == store.store.queues()


def test_a_partition_that_knows_publishers_stays(store):
    """A partition with publish numbers stays while they are kept, for retries of its messages."""
    names = divided(store, 2)
    into(store, names[1], number=1)
    (taken,) = store.reserve(1, queue=names[1]).deliveries
    store.ack(taken.tag, queue=names[1])
    partitions.divide(store.store, "q", 1)
    partitions.settle(store.store, "q")
    assert Layout(1, 2) == store.store.layout("q")
    assert DUPLICATE == into(store, names[1], number=1)


def test_a_partition_that_is_gone_makes_none(store):
    """A publish to a removed partition creates none and returns NO_QUEUE."""
    names = divided(store)
    store.store.delete_queue(names[3])
    assert NO_QUEUE == into(store, names[3])
    assert store.store.layout(names[3]) is None


def test_a_publisher_finds_its_way_after_a_change(store):
    """A refused publisher uses the current layout, or the queue itself without a new one."""
    names = divided(store)
    tag = PUBLISHER.tag(5, {})
    tag.places["q"] = names[3]
    partitions.divide(store.store, "q", 2)
    store.store.partitions["q"] = 4  # its outdated number of partitions
    SPREAD.redirect(store.store, tag, names[3])
    assert SPREAD.place(store.store, "q", tag) in names[:2]
    SPREAD.redirect(store.store, tag, names[1])
    assert "q" == SPREAD.place(store.store, "q", tag)


def test_what_was_closed_takes_messages_again(store):
    """A closed partition accepts messages again when the number of partitions is increased."""
    names = divided(store)
    partitions.divide(store.store, "q", 1)
    partitions.divide(store.store, "q", 4)
    assert {STORED} == {into(store, name) for name in names}


def test_limits_are_shared(store):
    """Each partition has its share of the queue's limits, also after a change."""
    names = divided(store, **{"x-max-length": 10, "x-overflow": "reject-publish"})
    lengths = [store.store.configure(name, {})["max_length"] for name in names]
    assert ["3"] * 4 == lengths
    assert "10" == store.store.configure("q", {})["queue_max_length"]
    partitions.divide(store.store, "q", 2)
    assert ["5", "5"] == [store.store.configure(name, {})["max_length"] for name in names[:2]]
    partitions.configure(store.store, "q", {"max_length": "100"})
    assert ["50", "50"] == [store.store.configure(name, {})["max_length"] for name in names[:2]]


def test_what_is_true_of_the_queue_is_true_of_a_new_partition(store):
    """A new partition has the queue's current settings and its paused state."""
    names = divided(store, 1, **{"x-message-ttl": 1000})
    store.store.configure("q", {"delivery_limit": "3"})
    store.pause(True)
    partitions.divide(store.store, "q", 3)
    for name in partition_names("q", 3):
        found = store.store.configure(name, {})
        assert ("1000", "3") == (found["message_ttl"], found["delivery_limit"])
        assert store.store.reads.status(name).paused
    del names


@pytest.mark.parametrize("paused", [False, True])
def test_a_partition_that_a_declaration_makes_is_paused_as_the_queue(store, paused):
    """A partition that a declaration creates is paused if the queue is.

    A process that only publishes thus need not wait for a consumer to pause it; it reads the
    layout.
    """
    names = divided(store)
    for name in names:
        store.store.pause(name, paused)
    assert [paused] * 4 == [store.store.layout(name).paused for name in names]
    store.store.delete_queue(names[2])
    declare(store, 4)
    assert [paused] * 4 == [store.store.reads.status(name).paused for name in names]
    into(store, names[2])
    assert (0 if paused else 1) == len(store.reserve(9, queue=names[2]).deliveries)


@pytest.mark.parametrize("paused", [False, True])
def test_a_partition_that_is_made_while_an_operator_changes_that(store, monkeypatch, paused):
    """A partition created while an operator pauses or resumes the queue gets the new state."""
    names = divided(store)
    for name in names:
        store.store.pause(name, not paused)
    store.store.delete_queue(names[2])
    declare_queue = store.store.declare_queue

    def declare_then_change(name, *given):
        declared = declare_queue(name, *given)
        if name == names[2]:
            store.store.pause("q", paused)
        return declared

    monkeypatch.setattr(store.store, "declare_queue", declare_then_change)
    declare(store, 4)
    assert paused == store.store.reads.status(names[2]).paused


@pytest.mark.parametrize("paused", [False, True])
def test_a_partition_that_a_publish_makes_is_paused_as_the_queue(store, paused):
    """A partition that a publish creates is paused with the queue once it is consumed from."""
    divided(store, 1)
    store.store.pause("q", paused)
    name = partition_name("q", 5)
    assert [CREATED] == store.publish(message(name))
    partitions.adopt(store.store, name)
    assert paused == store.store.reads.status(name).paused


def test_only_one_changes_a_layout_at_a_time(store, other, monkeypatch):
    """One process changes a layout at a time; another waits for a while and then fails."""
    names = divided(store)
    with partitions._alone(store.store, "q"):
        monkeypatch.setattr(partitions, "_CLAIM_MS", 50)
        with pytest.raises(PreconditionFailed, match="being changed by another process"):
            partitions.divide(other.store, "q", 2)
    partitions.divide(other.store, "q", 2)
    assert CLOSED == into(store, names[3])


@pytest.mark.slow
def test_who_lost_the_claim_changes_nothing_more(store, other, monkeypatch):
    """A process that lost its claim to a layout stops the change.

    It was suspended for longer than its claim lasts, and another process makes a change.
    """
    names = divided(store)
    monkeypatch.setattr(partitions, "_RENEW_AFTER_S", -1.0)  # it checks each time
    monkeypatch.setattr(partitions, "_CLAIM_MS", 1)
    with ExitStack() as stack:

        def stopped(name):
            monkeypatch.setattr(partitions, "_CLAIM_MS", 3_000)
            stack.enter_context(partitions._alone(other.store, "q"))

        with pytest.raises(PreconditionFailed, match="being changed by another process"):
            partitions.divide(store.store, "q", 6, stopped)
    assert Layout(4, 6) == store.store.layout("q")
    assert STORED == into(store, names[3])


def test_who_looks_after_a_queue_does_not_wait_for_who_changes_it(store, other):
    """The upkeep of a queue does not wait for a change of its layout, as it has leases to renew."""
    divided(store)
    with partitions._alone(store.store, "q"):
        assert not partitions.settle(other.store, "q")
    assert partitions.settle(other.store, "q")


def test_a_new_partition_is_published_to_when_the_queue_says_so(store, other):
    """A new partition gets messages only after its consumers are attached."""
    names = divided(store, 2)
    told = []

    def attached(name):
        for known in names:
            into(other, known)
        told.append((name, dict(other.store.partitions)))

    partitions.divide(store.store, "q", 4, attached)
    assert [(name, {"q": 2}) for name in partition_names("q", 4)[2:]] == told
    for name in partition_names("q", 4):
        other.store.partitions.clear()
        into(other, name)
        assert {"q": 4} == other.store.partitions


def test_the_queues_own_partition_knows_how_many_there_are(store):
    """The queue's own partition decides on their number; if another differs, it is queried.

    The process that should have updated the other partition has died.
    """
    names = divided(store)
    store.store.lay_out("q", 2)
    into(store, names[0])
    assert {"q": 2} == store.store.partitions
    into(store, names[1])
    assert {} == store.store.partitions


def test_what_was_begun_is_finished(store):
    """An interrupted removal of partitions is finished by the consumers."""
    names = divided(store)
    store.store.lay_out("q", 2)
    into(store, names[3])
    assert partitions.settle(store.store, "q")
    assert CLOSED == into(store, names[3])
    assert CLOSED == into(store, names[2])
    store.store.partitions.clear()
    into(store, names[1])
    assert {"q": 2} == store.store.partitions
    assert Layout(2, 4) == store.store.layout("q")


def test_a_partition_that_was_lost_is_made_again(store):
    """A partition that was lost with its node's data is created again."""
    names = divided(store)
    store.store.delete_queue(names[2])
    assert partitions.settle(store.store, "q")
    assert STORED == into(store, names[2])


def test_a_layout_that_was_lost_is_found_again(store):
    """After the loss of a layout, all partitions are consumed; new messages go to the queue."""
    divided(store)
    store.store.delete_queue("q")
    partitions.declare(store.store, "q", *queue_arguments("q", False, {}))
    assert Layout(1, 1) == store.store.layout("q")
    assert Layout(1, 4) == partitions.recovered(store.store, "q")
    assert Layout(1, 4) == store.store.layout("q")


def test_a_queue_that_is_deleted_while_it_is_divided(store):
    """A queue that is deleted while it is divided leaves no partition behind."""
    divided(store, 1)

    def attached(name):
        store.store.delete_queue("q")

    with pytest.raises(NotFound, match="was deleted while"):
        partitions.divide(store.store, "q", 4, attached)
    assert [] == store.store.queues()


@pytest.mark.parametrize("arguments", [{"x-expires": 60_000}, {"auto_delete": True}])
def test_a_queue_that_goes_by_itself_is_not_divided(store, arguments):
    """A temporary queue is not divided, as its partitions would remain."""
    given = {name: value for name, value in arguments.items() if name != "auto_delete"}
    auto_delete = "auto_delete" in arguments
    partitions.declare(store.store, "q", *queue_arguments("q", auto_delete, given))
    with pytest.raises(ConfigurationError, match="is temporary"):
        partitions.divide(store.store, "q", 2)
    assert Layout(1, 1) == store.store.layout("q")


def test_a_limit_that_is_changed_while_there_is_one_partition(store):
    """A limit that is changed at one partition applies to the whole queue after a division."""
    divided(store, 4, **{"x-max-length": 100})
    partitions.divide(store.store, "q", 1)
    partitions.configure(store.store, "q", {"max_length": "10"})
    partitions.divide(store.store, "q", 4)
    assert "10" == store.store.configure("q", {})["queue_max_length"]
    assert "3" == store.store.configure("q", {})["max_length"]


def test_a_divided_queue_is_purged_and_deleted_whole(store):
    """A divided queue is purged and deleted with all partitions, the queue itself last."""
    names = divided(store)
    for name in names:
        into(store, name)
    assert 4 == partitions.waiting(store.store, names)
    assert 4 == sum(partitions.in_each(store.store, "q", store.store.purge))
    for name in names:
        into(store, name)
    assert "not_empty" == partitions.delete(store.store, "q", if_empty=True).outcome
    deleted = partitions.delete(store.store, "q")
    assert ("deleted", 4) == tuple(deleted)
    assert [] == store.store.queues()


def test_a_survey_tells_the_layout(store):
    """A survey returns the layout of each divided queue, so that consumers follow a change."""
    divided(store)
    store.declare(queue="plain")
    works = store.survey("q", "plain")
    assert Layout(4, 4) == works["q"].layout
    assert "plain" not in works
    partitions.divide(store.store, "q", 2)
    assert Layout(2, 4) == store.survey("q")["q"].layout


@pytest.mark.parametrize("count", [0, 65])
def test_a_number_that_cannot_be(store, count):
    """An invalid number of partitions is refused before any change."""
    store.declare()
    with pytest.raises(ConfigurationError):
        partitions.divide(store.store, "q", count)
    assert Layout(1, 1) == store.store.layout("q")


def test_delayed_and_dead_messages_keep_a_partition(store):
    """A partition that holds any message, such as a delayed one, is not removed."""
    names = divided(store)
    into(store, names[3], delay_ms=LONG_MS)
    partitions.divide(store.store, "q", 1)
    partitions.settle(store.store, "q")
    assert names[3] in store.store.queues()
