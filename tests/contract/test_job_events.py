"""The broker's own changes of a job's message are reported to its batch, whichever process dies."""

from __future__ import annotations

import pytest

from reliq.batches.job_reports import JobReports, change_of
from reliq.batches.jobs import UNCHANGED, Change
from reliq.message.delivery_tag import is_of_job, new_tag
from reliq.message.envelope import Envelope, decode, encode
from reliq.routing import partitions
from reliq.transfer.numbered import outgoing, to_queue
from reliq.values.job_headers import BATCH
from tests.contract.jobs import begin, job_of
from tests.contract.steps import message
from tests.support.waiting import wait_until


def job_message(job="j", *, body=b"x" * 300, rank=5, **options):
    """Return the message of a job of the batch "b"."""
    headers = {"task": "enrol", "id": job, BATCH: "b"}
    envelope = encode(Envelope(body, "text/plain", "utf-8", headers, {}, "", "q"))
    return message(envelope=envelope, tag=new_tag(rank, {BATCH: "b"}), rank=rank, **options)


@pytest.fixture
def publish(store, change):
    """Return a function that enters a job and publishes its message."""

    def do(job="j", **options):
        sent = job_message(job, **options)
        change(Change("enter", job, "waiting", tag=sent.tag, queue="q"))
        store.publish(sent)
        return sent

    return do


def events(store, queue="q"):
    """Return the stored events of jobs."""
    return store.store.job_events(queue, 1000)


def told(store, queue="q"):
    """Report the events to the batches; return the batches with a due callback."""
    due, after = [], 0
    reports = JobReports(due.append)
    while after := reports.report_events(store.store, queue, after):
        pass
    assert [] == events(store, queue)
    assert (
        not store.survey(queue).get(queue) or "job_events" not in store.survey(queue)[queue].flags
    )
    return due


def why(batches):
    """Return the reasons why jobs have failed, the last first."""
    return [reason for _, _, reason in batches.failures("b", 10)]


# -- the ways to end


def reject(store):
    """Let a consumer reject the message."""
    store.dead_letter(*store.take(), error="not this one")


def requeue(store):
    """Let a consumer requeue the message."""
    store.give_back("nacked", *store.take())


def die(store):
    """Let a consumer that holds no other message die with it."""
    store.return_ended(*store.take())


def purge(store):
    """Purge the queue."""
    store.purge()


def overflow(store):
    """Publish one message more than the queue holds."""
    store.publish(message())


def expire(store):
    """Let the message expire and be removed by the upkeep of the queue."""
    wait_until(lambda: store.expire() or events(store), interval_s=0.002)


def expire_in_reserve(store):
    """Let the message expire and be removed by a consumer's reserve."""
    store.pass_time(5)
    assert [] == store.reserve().deliveries


def expire_in_publish(store):
    """Let the message expire and be removed by a publish to the full queue."""
    wait_until(lambda: store.publish(message()) and events(store), interval_s=0.002)


ENDS = {
    "reject": (reject, {}, {}, "dead letter: rejected (not this one)"),
    "requeue": (requeue, {}, {}, "dead letter: its delivery limit was reached (nacked)"),
    "die": (die, {}, {}, "dead letter: its delivery limit was reached (lease ended)"),
    "purge": (purge, {}, {}, "purged from its queue"),
    "purge delayed": (purge, {}, {"delay_ms": 60_000}, "purged from its queue"),
    "overflow": (overflow, {"max_length": "1"}, {}, "dead letter: its queue was full"),
    "expire": (expire, {}, {"ttl_ms": 1}, "expired"),
    "expire dead": (expire, {"dead_expired": "1"}, {"ttl_ms": 1}, "dead letter: expired"),
    "expire in reserve": (expire_in_reserve, {}, {"ttl_ms": 1}, "expired"),
    "expire in publish": (
        expire_in_publish,
        {"max_length": "1", "overflow": "reject-publish"},
        {"ttl_ms": 1},
        "expired",
    ),
}


@pytest.mark.parametrize("way", ENDS)
def test_how_a_job_ends(connect, batches, state, publish, way):
    """The end of a job's message is reported to its batch with the reason, and ends the batch."""
    end, declared, options, reason = ENDS[way]
    store = connect(delivery_limit=1)
    store.declare(arguments=b"a", **declared)
    sent = publish(**options)
    batches.change("b", [Change("seal")])
    end(store)
    (event,) = events(store)
    assert (sent.tag, b"") == (event.tag, decode(event.envelope).body)
    assert "job_events" in store.survey()["q"].flags
    assert "waiting" == state()
    assert ["b"] == told(store)
    assert ("error", [reason]) == (state(), why(batches))
    assert batches.batch("b").ended_ms


def test_a_reject_beside_one_that_comes_late(store, batches, state, publish):
    """Of two leases of one message in one step, the newest counts and is reported."""
    publish()
    (late,) = store.take()
    store.return_ended(late)
    store.dead_letter(*store.take(), late)
    told(store)
    assert "error" == state()


def test_a_requeue_that_is_the_last(connect, publish):
    """Only the requeue that reaches the limit is an event."""
    store = connect(delivery_limit=2)
    publish()
    requeue(store)
    assert [] == events(store)
    requeue(store)
    assert ["dead"] == [event.what for event in events(store)]


def test_a_replayed_one_waits(store, batches, state, publish):
    """The job of a replayed dead letter waits, even if its death was not reported before."""
    sent = publish()
    for _ in range(2):
        reject(store)
        assert [sent.tag] == store.replay(sent.tag)
        told(store)
        assert ("waiting", []) == (state(), why(batches))
    reject(store)
    told(store)
    assert "error" == state()
    store.replay(sent.tag)
    told(store)
    assert "waiting" == state()
    (taken,) = store.take()
    batches.change("b", [begin(token=int(taken.token), tag=sent.tag)])
    assert "working" == state()


def test_a_dead_letter_that_is_purged_before_it_was_told(store, batches, state, publish):
    """The death of a job's message is reported even if the dead letter was purged since."""
    sent = publish()
    reject(store)
    assert 1 == store.purge_dead(sent.tag)
    told(store)
    assert ("error", ["dead letter: rejected (not this one)"]) == (state(), why(batches))


@pytest.mark.parametrize("heard", [True, False], ids=["told", "not told"])
def test_one_that_is_moved_to_another_queue_waits_there(store, batches, state, publish, heard):
    """A job whose dead letter is moved to another queue waits there.

    Its death may be reported before or after the move.
    """
    sent = publish()
    reject(store)
    if heard:
        told(store)
    store.declare("r")
    assert 1 == to_queue(store.store, "q", "r", [sent.tag])
    told(store)
    job = job_of(batches, "b", "j")
    assert ("waiting", "r", []) == (job.state, job.queue, why(batches))
    assert {job.tag: "there"} == store.store.reads.whereabouts("r", [job.tag])


def test_a_move_that_was_cut_off(store, batches, state, publish):
    """A resumed move reports the same as the interrupted one, which had stored the message."""
    sent = publish()
    reject(store)
    store.declare("r")
    low, (move,) = store.begin_move("queue:r", sent.tag)
    stored = outgoing("q", move, low, move.envelope, "r").publication("r", store.store)
    store.publish(stored)
    assert 1 == to_queue(store.store, "q", "r", [sent.tag])
    assert ("waiting", stored.tag) == (state(), job_of(batches, "b", "j").tag)
    (taken,) = store.take(queue="r")
    where = 0, int(taken.token), taken.tag, "r"
    batches.change("b", [Change("begin", "j", "", *where), Change("end", "j", "error", *where)])
    late = Change("replay", "j", "", 0, 0, stored.tag, "r", sent.tag)
    assert [UNCHANGED] == batches.change("b", [late]).outcomes


# -- late and repeated reports


def test_told_twice(store, batches, state, publish):
    """An event that was reported but not removed is reported again without an effect."""
    publish()
    reject(store)
    (event,) = events(store)
    batch, change = change_of("q", event)
    batches.change(batch, [change])
    since = job_of(batches, "b", "j").since_ms
    told(store)
    assert ("error", since) == (state(), job_of(batches, "b", "j").since_ms)


@pytest.mark.parametrize("again", [True, False], ids=["replayed", "dead again"])
def test_told_late(store, batches, state, publish, again):
    """Late reports of a process that was frozen change nothing, as later events are known."""
    sent = publish()
    reject(store)
    store.replay(sent.tag)
    if not again:
        reject(store)
    stale = [change_of("q", event)[1] for event in events(store)]
    told(store)
    known = job_of(batches, "b", "j")
    for change in stale:
        assert [UNCHANGED] == batches.change("b", [change]).outcomes
    assert known == job_of(batches, "b", "j")
    assert state() == ("waiting" if again else "error")


def test_told_in_another_order(store, batches, state, publish):
    """A replay that is reported before the earlier death is not undone by it."""
    sent = publish()
    reject(store)
    store.replay(sent.tag)
    for _, change in [change_of("q", event) for event in reversed(events(store))]:
        batches.change("b", [change])
    assert "waiting" == state()


def test_a_begin_that_is_heard_of_late(store, batches, state, publish):
    """A late begin of a failed delivery does not count, as its job has ended."""
    sent = publish()
    (taken,) = store.take()
    store.dead_letter(taken)
    told(store)
    late = begin(token=int(taken.token), tag=sent.tag)
    assert [UNCHANGED] == batches.change("b", [late]).outcomes
    assert "error" == state()


def test_what_its_worker_says_of_it_is_better(store, batches, state, publish):
    """A worker's report of an end overrides the broker's, even if it comes later."""
    sent = publish()
    (taken,) = store.take()
    where = 0, int(taken.token), sent.tag, "q"
    batches.change("b", [Change("begin", "j", "", *where, "s/1")])
    store.dead_letter(taken)
    told(store)
    batches.change("b", [Change("end", "j", "error", *where, "ValueError: as told")])
    assert ("error", ["ValueError: as told"]) == (state(), why(batches))


def test_a_job_that_was_terminated_while_the_broker_gave_up(store, batches, state, publish):
    """A worker's report of a terminated job in a cancelled batch overrides the broker's."""
    sent = publish()
    (taken,) = store.take()
    where = 0, int(taken.token), sent.tag, "q"
    batches.change("b", [Change("begin", "j", "", *where, "s/1"), Change("cancel")])
    store.dead_letter(taken)
    told(store)
    assert "error" == state()
    batches.change("b", [Change("end", "j", "cancelled", *where, "terminated")])
    assert ("cancelled", []) == (state(), why(batches))


def test_a_retry_is_another_message(store, batches, state, publish):
    """The end of an earlier message has no effect on the job's retry."""
    publish()
    batches.change("b", [Change("enter", "j", "waiting", 1, tag="c" * 30 + "j", queue="q")])
    reject(store)
    told(store)
    assert "retrying" == state()


# -- other messages


def test_no_job(store):
    """Messages without a job create no events, and only their lease is counted."""
    store.publish(message())
    reject(store)
    store.replay(store.store.reads.dead_letters("q", 1)[0].tag)
    store.purge()
    assert [] == events(store)
    assert 1 == store.ledger("token") - store.ledger("job_events")


@pytest.mark.parametrize("envelope", [b"", b"\x98", b"\x98\x01\xc6\xff", b"x" * 50])
def test_what_cannot_be_read(store, batches, envelope):
    """The event of a message that cannot be read is removed without a report."""
    store.publish(message(envelope=envelope, tag=new_tag(5, {BATCH: "b"})))
    store.purge()
    assert 1 == len(events(store))
    assert [] == told(store)


def test_a_batch_that_is_gone(store, publish, batches):
    """The event of a job in a forgotten batch is removed without a report."""
    publish()
    batches.forget_batch("b")
    store.purge()
    assert [] == told(store)


def test_a_queue_that_is_deleted(store, publish):
    """A queue is deleted with its events; sweeps of the batch find the jobs later."""
    publish()
    store.purge()
    store.delete()
    assert [] == events(store)


def test_a_partition_that_is_to_go(store, batches, change, state):
    """A closed partition is removed only after the events of its jobs are reported."""
    partitions.declare(store.store, "q", b"a", {"partitions": "2"})
    (second,) = [name for name in store.store.queues() if name != "q"]
    sent = job_message(queue=second)
    change(Change("enter", "j", "waiting", tag=sent.tag, queue="q"))
    store.publish(sent)
    store.purge(second)
    partitions.divide(store.store, "q", 1)
    partitions.settle(store.store, "q")
    assert second in store.store.queues()
    told(store, second)
    assert "error" == state()
    partitions.settle(store.store, "q")
    assert ["q"] == store.store.queues()


# -- many


def test_many(store, batches, change):
    """Hundreds of events of any size are read in pages, in order."""
    sent = [job_message(f"j{n}", body=b"y" * (n % 3) * 200) for n in range(450)]
    change(*[Change("enter", f"j{n}", "waiting", tag=m.tag) for n, m in enumerate(sent)])
    for n in range(0, 450, 50):
        store.publish(*sent[n : n + 50])
    store.purge()
    found = store.store.job_events("q", 200)
    assert 200 == len(found)
    assert sorted(found) == found
    more = store.store.job_events("q", 1000, found[-1].number)
    assert 250 == len(more)
    told(store)
    assert 450 == batches.batch("b").counts["error"]


@pytest.mark.parametrize("size", [0, 5, 31, 32, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("text", [False, True], ids=["bytes", "text"])
def test_a_body_of_any_size(store, publish, size, text):
    """An event keeps the envelope of its message without the body, for any size of body."""
    sent = publish(body="z" * size if text else b"z" * size)
    store.purge()
    (event,) = events(store)
    whole, kept = decode(sent.envelope), decode(event.envelope)
    assert whole[1:] == kept[1:]
    assert not kept.body
    assert len(event.envelope) < 200


def test_tokens_go_on(store, publish):
    """Deliveries and events share one sequence of distinct numbers."""
    numbers = []
    for n in range(3):
        publish(f"j{n}")
        (taken,) = store.take()
        numbers.append(int(taken.token))
        store.dead_letter(taken)
        numbers.append(events(store)[-1].number)
    assert sorted(set(numbers)) == numbers


def test_a_tag_says_that_it_is_a_job(store, publish):
    """A tag shows that its message is one of a job, also after a move to another broker."""
    assert is_of_job(publish().tag)
    assert not is_of_job(new_tag(5))
    _, moves = store.store.move_out("q", "broker:b")
    store.declare("r")
    store.store.accept("r", "b", 1, moves)
    (taken,) = store.take(queue="r")
    assert is_of_job(taken.tag)
    store.ack(taken.tag, queue="r")
    store.end_move(*[move.tag for move in moves])
