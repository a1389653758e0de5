"""Jobs that no message or worker will end are found and ended; other jobs are left alone."""

from __future__ import annotations

import pytest

from reliq.batches.jobs import Change
from reliq.batches.lost_jobs import MISSING_MS
from reliq.message.delivery_tag import BATCH, new_tag
from reliq.routing.partitions import declare
from tests.contract.jobs import begin, job_of, seal, sweep_of
from tests.contract.steps import LONG_MS, message
from tests.contract.test_job_events import job_message, publish, why  # noqa: F401 - a fixture
from tests.support.waiting import wait_until


@pytest.fixture
def sweep(store, batches):
    """Return a function that sweeps the batch "b" for lost jobs and returns their number."""
    soon = []

    def look(missing_ms=-1000):  # each change within one ms has its own time, in the following ms
        before = batches.batch("b").counts["error"]
        looking = sweep_of("b", store.store.now_ms() + MISSING_MS - missing_ms, soon.append)
        while looking.step(store.store):
            pass
        return batches.batch("b").counts["error"] - before

    return look


def test_what_waits_is_not_lost(store, sweep, publish):  # noqa: F811
    """A job whose message is ready, delayed or held is not lost."""
    publish("i")
    store.take()
    publish("j")
    publish("k", delay_ms=60_000)
    assert 0 == sweep()


def test_what_is_nowhere(sweep, change, batches):
    """A job without a message and without a worker is lost with the broker's data."""
    tag = new_tag(5, {BATCH: "b"})
    change(Change("enter", "j", "waiting", tag=tag, queue="q"), seal(tag))
    assert 0 == sweep(60_000)
    assert 1 == sweep()
    assert ["lost with the broker's data"] == why(batches)


def test_a_producer_that_died(store, sweep, change, batches, caplog):
    """A job that a dead producer entered but did not store is removed; a stored one can be lost."""
    sent = job_message("i")
    change(Change("enter", "i", "waiting", tag=sent.tag, queue="q"))
    store.publish(sent)
    change(Change("enter", "j", "waiting", tag=f"{0:014x}{'b' * 10}000001j", queue="q"))
    assert 0 == sweep()
    assert (1, 0) == (batches.batch("b").total, batches.batch("b").heard_ms)
    assert "1 jobs are removed from batch 'b': they were never stored in 'q'" in caplog.text
    store.delete()
    assert 1 == sweep()


def test_a_queue_that_was_deleted(store, sweep, publish, state):  # noqa: F811
    """A job is lost with its deleted queue."""
    publish()
    assert 0 == sweep()
    store.delete()
    assert 1 == sweep()
    assert "error" == state()


def test_what_the_broker_has_kept_of_it_is_told(store, sweep, publish, batches):  # noqa: F811
    """A stored event of a job is reported before the job counts as lost, as it has the reason."""
    publish()
    store.purge()
    assert 1 == sweep()
    assert ["purged from its queue"] == why(batches)


def test_a_dead_letter_of_which_nothing_was_kept(store, sweep, publish, batches):  # noqa: F811
    """A dead letter without an event ends its job with the dead letter's reason.

    It may have died before events were stored, or the event was lost.
    """
    publish()
    store.dead_letter(*store.take(), error="not this one")
    numbers = [event.number for event in store.store.job_events("q", 9)]
    store.store.forget_job_events("q", numbers)
    assert 1 == sweep()
    assert ["dead letter: rejected (not this one)"] == why(batches)


# -- working, with an acked message


def works(store, batches, sent, who):
    """Let *who* begin a job whose message is acked."""
    (taken,) = store.take()
    batches.change("b", [begin(token=int(taken.token), tag=sent.tag, who=who)])
    store.ack(taken.tag)


def test_a_worker_that_lives(store, sweep, publish, batches):  # noqa: F811
    """A job of a living worker is not lost, however long it takes."""
    store.heartbeat("s")
    works(store, batches, publish(), "s")
    assert [0, 0, 0] == [sweep(), sweep(), sweep()]


def test_a_worker_that_is_gone(store, sweep, publish, batches):  # noqa: F811
    """A job of a missing worker is lost at the second check, as an absence may be short."""
    store.heartbeat("s")
    works(store, batches, publish(), "s")
    store.store.forget_consumer("s")
    assert [0, 1, 0] == [sweep(), sweep(), sweep()]
    assert ["its worker s was lost, or does not know it"] == why(batches)


def test_a_worker_that_is_silent(store, sweep, publish, batches):  # noqa: F811
    """A job of a worker without heartbeats is lost."""
    store.heartbeat("s", ttl_ms=1)
    works(store, batches, publish(), "s")
    wait_until(lambda: store.store.liveness(["s"])["s"].lapsed, interval_s=0.002)
    assert [0, 1] == [sweep(), sweep()]


def test_another_worker_took_it_over(store, sweep, publish, batches, state):  # noqa: F811
    """A job that another worker begins between two checks is suspected anew."""
    works(store, batches, publish(), "s")
    assert 0 == sweep()
    batches.change("b", [begin(token=2**52, tag=job_of(batches, "b", "j").tag, who="t")])
    assert [0, 1] == [sweep(), sweep()]
    assert ["its worker t was lost, or does not know it"] == why(batches)


def test_a_worker_whose_lease_ran_out(store, sweep, publish, batches, state):  # noqa: F811
    """A job whose lease ended is not lost: the next delivery continues it."""
    sent = publish()
    (taken,) = store.take()
    batches.change("b", [begin(token=int(taken.token), tag=sent.tag, who="s")])
    store.return_ended(taken)
    assert [0, 0] == [sweep(), sweep()]
    assert "working" == state()


# -- partitions


def test_partitions_are_looked_into(store, sweep, change, batches):
    """A sweep finds the messages of a job in all partitions of its queue."""
    declare(store.store, "q", b"a", {"partitions": "3"})
    names = store.store.queues()
    sent = [job_message(f"j{n}", queue=name) for n, name in enumerate(sorted(names))]
    assert 3 == len(sent)
    change(*[Change("enter", f"j{n}", "waiting", tag=m.tag, queue="q") for n, m in enumerate(sent)])
    store.publish(*sent)
    assert 0 == sweep()
    store.dead_letter(*store.take(queue=sent[2].queue, lease_ms=LONG_MS), queue=sent[2].queue)
    assert 1 == sweep()
    assert ["dead letter: rejected"] == why(batches)


def test_others_are_not_looked_at(sweep, store, change, batches):
    """Jobs that have ended are not checked."""
    change(Change("enter", "j", "waiting", tag="a" * 30, queue="q"), begin(tag="a" * 30))
    change(Change("end", "j", "succeeded", token=1))
    store.publish(message())
    assert 0 == sweep()


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_retry_that_was_entered(store, sweep, publish, batches, state, is_stored):  # noqa: F811
    """An entered retry whose worker was killed is not lost while the earlier try has a message."""
    first = publish()
    (taken,) = store.take()
    batches.change("b", [begin(token=int(taken.token), tag=first.tag)])
    retry = job_message("j")
    batches.change("b", [Change("enter", "j", "waiting", 1, tag=retry.tag, queue="q")])
    if is_stored:
        store.publish(retry)
        store.ack(taken.tag)
    assert 0 == sweep()
    assert "retrying" == state()
    store.purge()
    store.ack(taken.tag)
    assert 1 == sweep()


def test_a_retry_that_was_withdrawn(store, sweep, publish, batches):  # noqa: F811
    """After a withdrawn retry, the job continues with the message of the earlier try."""
    first = publish()
    (taken,) = store.take()
    batches.change("b", [begin(token=int(taken.token), tag=first.tag)])
    retry = new_tag(5, {BATCH: "b"})
    batches.change("b", [Change("enter", "j", "waiting", 1, tag=retry, queue="q")])
    batches.change("b", [Change("withdraw", "j", "", 1, tag=retry)])
    assert first.tag == job_of(batches, "b", "j").tag
    assert 0 == sweep()
