"""Jobs that nobody will end any more are found and ended, and others are left alone."""

from __future__ import annotations

import pytest

from reliq.consumer.lost_jobs import MISSING_MS, Sweep
from reliq.message.delivery_tag import new_tag
from reliq.routing.partitions import declare
from reliq.store.jobs import Change
from tests.contract.jobs import begin, job_of, seal
from tests.contract.steps import LONG_MS, message
from tests.contract.test_job_events import job_message, publish, why  # noqa: F401 - a fixture
from tests.support.waiting import wait_until


@pytest.fixture
def sweep(store, batches):
    """Return a function that looks for lost jobs of the batch "b", and returns how many."""
    soon = []

    def look(missing_ms=-1000):  # each change of a ms has a time of its own, in the next ones
        before = batches.batch("b").counts["error"]
        looking = Sweep(
            "b", store.store.now_ms() + MISSING_MS - missing_ms, soon.append, lambda _: None
        )
        while looking.step(store.store):
            pass
        return batches.batch("b").counts["error"] - before

    return look


def test_what_waits_is_not_lost(store, sweep, publish):  # noqa: F811
    """Ready, delayed, or held by a consumer."""
    publish("i")
    store.take()
    publish("j")
    publish("k", delay_ms=60_000)
    assert 0 == sweep()


def test_what_is_nowhere(sweep, change, batches):
    """It went with the broker's data."""
    tag = new_tag(5, job=True)
    change(Change("enter", "j", "waiting", tag=tag, queue="q"), seal(tag))
    assert 0 == sweep(60_000)
    assert 1 == sweep()
    assert ["lost with the broker's data"] == why(batches)


def test_a_producer_that_died(store, sweep, change, batches, caplog):
    """What it entered and did not store is no job; what was seen once is lost if it goes."""
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
    """With all that was in it."""
    publish()
    assert 0 == sweep()
    store.delete()
    assert 1 == sweep()
    assert "error" == state()


def test_what_the_broker_has_kept_of_it_is_told(store, sweep, publish, batches):  # noqa: F811
    """Before it counts as lost: the reason is known."""
    publish()
    store.purge()
    assert 1 == sweep()
    assert ["purged from its queue"] == why(batches)


def test_a_dead_letter_of_which_nothing_was_kept(store, sweep, publish, batches):  # noqa: F811
    """It died before batches were told, or that was lost: the dead letter says why."""
    publish()
    store.dead_letter(*store.take(), error="not this one")
    numbers = [event.number for event in store.store.job_events("q", 9)]
    store.store.forget_job_events("q", numbers)
    assert 1 == sweep()
    assert ["dead letter: rejected (not this one)"] == why(batches)


# -- at work, and acknowledged


def works(store, batches, sent, who):
    """Let *who* begin a job, whose message is acknowledged."""
    (taken,) = store.take()
    batches.change("b", [begin(token=int(taken.token), tag=sent.tag, who=who)])
    store.ack(taken.tag)


def test_a_worker_that_lives(store, sweep, publish, batches):  # noqa: F811
    """However long it takes."""
    store.heartbeat("s")
    works(store, batches, publish(), "s")
    assert [0, 0, 0] == [sweep(), sweep(), sweep()]


def test_a_worker_that_is_gone(store, sweep, publish, batches):  # noqa: F811
    """At the second look: it may have been away for a while."""
    store.heartbeat("s")
    works(store, batches, publish(), "s")
    store.store.forget_consumer("s")
    assert [0, 1, 0] == [sweep(), sweep(), sweep()]
    assert ["its worker s was lost, or does not know it"] == why(batches)


def test_a_worker_that_is_silent(store, sweep, publish, batches):  # noqa: F811
    """Its heartbeats have stopped."""
    store.heartbeat("s", ttl_ms=1)
    works(store, batches, publish(), "s")
    wait_until(lambda: store.store.liveness(["s"])["s"].lapsed, interval_s=0.002)
    assert [0, 1] == [sweep(), sweep()]


def test_another_worker_took_it_over(store, sweep, publish, batches, state):  # noqa: F811
    """Between two looks: the next looks anew."""
    works(store, batches, publish(), "s")
    assert 0 == sweep()
    batches.change("b", [begin(token=9, tag=job_of(batches, "b", "j").tag, who="t")])
    assert [0, 1] == [sweep(), sweep()]
    assert ["its worker t was lost, or does not know it"] == why(batches)


def test_a_worker_whose_lease_ran_out(store, sweep, publish, batches, state):  # noqa: F811
    """Its message waits: whoever gets it goes on with the job."""
    sent = publish()
    (taken,) = store.take()
    batches.change("b", [begin(token=int(taken.token), tag=sent.tag, who="s")])
    store.return_ended(taken)
    assert [0, 0] == [sweep(), sweep()]
    assert "working" == state()


# -- partitions


def test_partitions_are_looked_into(store, sweep, change, batches):
    """A job is published to its queue; where its message lies only the broker knows."""
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
    """What has ended has ended."""
    change(Change("enter", "j", "waiting", tag="a" * 30, queue="q"), begin(tag="a" * 30))
    change(Change("end", "j", "succeeded", token=1))
    store.publish(message())
    assert 0 == sweep()


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_retry_that_was_entered(store, sweep, publish, batches, state, is_stored):  # noqa: F811
    """Its worker was killed then: the try before is delivered again, and goes on."""
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
    """The try before goes on, with its message."""
    first = publish()
    (taken,) = store.take()
    batches.change("b", [begin(token=int(taken.token), tag=first.tag)])
    retry = new_tag(5, job=True)
    batches.change("b", [Change("enter", "j", "waiting", 1, tag=retry, queue="q")])
    batches.change("b", [Change("withdraw", "j", "", 1, tag=retry)])
    assert first.tag == job_of(batches, "b", "j").tag
    assert 0 == sweep()
