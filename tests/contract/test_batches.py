"""A batch counts its jobs: each is in one state, whatever is said of it, and how often."""

import random
from uuid import uuid4

import pytest

from reliq.store.jobs import (
    CANCELLED,
    DONE,
    ENDED,
    NEVER_STORED,
    NO_JOB,
    OPEN,
    SEALED,
    UNCHANGED,
    Change,
)
from tests.contract.jobs import OTHER_TAG, TAG, begin, end, enter, job_of, lost, seal
from tests.support.waiting import wait_until

# -- a batch


def test_a_batch_is_made_once(batches):
    """The second time it says so, and changes nothing."""
    assert batches.open_batch("b", "enrol", {"tenant": "7"})
    assert not batches.open_batch("b", "other", {})
    record = batches.batch("b")
    assert ("b", "enrol", {"tenant": "7"}) == (record.id, record.name, record.fields)
    assert record.created_ms > 0
    assert (0, 0, 0, 0) == (record.total, record.sealed_ms, record.cancelled_ms, record.ended_ms)
    assert ((), ()) == (record.due, record.said)


def test_there_is_none(batches):
    """Nothing is noted for it."""
    assert batches.batch("b") is None
    assert batches.change("b", [enter()]) is None
    assert job_of(batches, "b", "j") is None
    assert [] == [job for part in batches.jobs("b") for job in part]
    assert [] == batches.failures("b", 10)


def test_batches_are_listed(batches):
    """The last one first, page by page."""
    for n in range(5):
        batches.open_batch(f"b{n}", "enrol", {})
    found = batches.batches(10)
    assert {f"b{n}" for n in range(5)} == set(found)
    created = [batches.batch(name).created_ms for name in found]
    assert sorted(created, reverse=True) == created
    assert 2 == len(batches.batches(2))
    older = [name for name in found if batches.batch(name).created_ms < created[0]]
    assert older == batches.batches(10, created[0])


def test_when_a_job_was_added_last(batches, change):
    """It is that of the new one: not of a retry, or of what becomes of a job."""
    assert 0 == batches.batch("b").added_ms
    change(enter("first"))
    first_ms = batches.batch("b").added_ms
    assert first_ms == job_of(batches, "b", "first").since_ms
    change(begin("first"), enter("first", retries=1), end("failed", "first", why="no"))
    assert first_ms == batches.batch("b").added_ms
    wait_until(lambda: change(enter(uuid4().hex)) and batches.batch("b").added_ms > first_ms)


def test_names_are_apart(batches):
    """Of batches, jobs and queues, whatever they are made of."""
    names = ["x", "{x}", "%7Bx%7D", "x y\n", "ü", "a|b|c", "x:jobs"]
    for name in names:
        assert batches.open_batch(name, name, {name: name})
        assert [DONE] == batches.change(name, [enter(name, queue=name)]).outcomes
    for name in names:
        record, job = batches.batch(name), job_of(batches, name, name)
        assert (name, {name: name}, 1) == (record.name, record.fields, record.total)
        assert (name, name, TAG) == (job.id, job.queue, job.tag)


def test_it_is_forgotten(batches, change):
    """With its jobs; a batch of that id is a new one."""
    change(enter(), begin(), end("failed", why="no"))
    batches.forget_batch("b")
    assert batches.batch("b") is None
    assert [] == batches.batches(10)
    assert batches.open_batch("b", "again", {})
    assert 0 == batches.batch("b").total
    assert job_of(batches, "b", "j") is None


# -- the life of a job


def test_a_job_succeeds(change, state, batches):
    """It waits, is worked on, and has succeeded; each is said of it once."""
    assert [DONE] == change(enter())
    job = job_of(batches, "b", "j")
    assert ("j", "waiting", 0, 0, TAG, "q") == (*job[:4], job.tag, job.queue)
    assert [DONE] == change(begin(token=7))
    job = job_of(batches, "b", "j")
    assert ("working", 7) == (job.state, job.token)
    assert [DONE] == change(end("succeeded", token=7))
    assert "succeeded" == state()


def test_a_delayed_one_says_so(change, state):
    """Until it begins."""
    change(enter(state="delayed"))
    assert "delayed" == state()
    change(begin())
    assert "working" == state()


@pytest.mark.parametrize("how", ["failed", "error"])
def test_a_job_fails(change, state, batches, how):
    """It is listed with the reason, those of last first."""
    change(enter("i"), enter(), begin("i"), begin(), end(how, "i", why="first"))
    change(end(how, why="price is missing"))
    assert how == state()
    (job, at_ms, why), *_ = batches.failures("b", 1)
    assert ("j", "price is missing") == (job, why)
    assert at_ms >= batches.batch("b").created_ms
    assert ["i"] == [job for job, _, _ in batches.failures("b", 10, 1)]


def test_what_is_said_twice_is_done_once(change, batches):
    """A try whose reply was lost is repeated."""
    steps = [enter(), begin(), end("succeeded")]
    for step in steps:
        assert [DONE, UNCHANGED] == change(step, step)
    assert {"succeeded": 1} == {k: n for k, n in batches.batch("b").counts.items() if n}


def test_what_comes_late_changes_nothing(change, state):
    """The begin of a job that has ended; its entering; the end of another delivery."""
    change(enter(), begin(token=1), begin(token=2))
    assert [UNCHANGED] == change(begin(token=1))
    assert [UNCHANGED] == change(end("error", token=1))
    assert "working" == state()
    assert [DONE] == change(end("succeeded", token=2))
    assert [UNCHANGED] * 3 == change(enter(), begin(token=3), end("error", token=3))
    assert "succeeded" == state()


def test_success_counts_whoever_says_so(change, state):
    """A worker whose lease was lost has done it all the same."""
    change(enter(), begin(token=1), begin(token=2))
    assert [DONE] == change(end("succeeded", token=1))
    assert [UNCHANGED] == change(end("error", token=2))
    assert "succeeded" == state()


def test_a_redelivered_job_counts_once(change, state, batches):
    """Whoever worked on it is gone: the next one begins it."""
    change(enter(), begin(token=1), begin(token=5, who="s/2"))
    assert 1 == batches.batch("b").total
    assert "working" == state()


def test_one_that_goes_back_waits(change, state):
    """What was known of its place is known on; from another delivery it is no news."""
    change(enter(), begin(token=3))
    assert [UNCHANGED] == change(Change("return", "j", token=2))
    assert [DONE] == change(Change("return", "j", token=3))
    assert "waiting" == state()
    assert [DONE] == change(begin(token=4))


def test_a_retry_keeps_its_job(change, state, batches):
    """The next try is entered before the end of this one is heard of; that says nothing then."""
    change(enter(), begin(token=9))
    assert [DONE] == change(enter(state="delayed", tag=OTHER_TAG, retries=1))
    assert "retrying" == state()
    assert [UNCHANGED] == change(end("error", token=9))
    assert [DONE] == change(begin(retries=1, token=2, tag=OTHER_TAG))
    job = job_of(batches, "b", "j")
    assert ("working", 1, 2, OTHER_TAG) == (job.state, job.retries, job.token, job.tag)
    assert [DONE] == change(end("succeeded", retries=1, token=2))
    assert 1 == batches.batch("b").total


def test_another_message_of_a_job_that_is_worked_on(change, batches):
    """One of the same try changes nothing."""
    change(enter(), begin())
    assert [UNCHANGED] == change(enter(tag=OTHER_TAG))
    assert TAG == job_of(batches, "b", "j").tag


# -- publishing that fails


def test_a_publish_that_failed_is_withdrawn(change, state, batches):
    """As if it had not been."""
    change(enter())
    assert [DONE, UNCHANGED] == change(*[Change("withdraw", "j", tag=TAG)] * 2)
    assert state() is None
    assert 0 == batches.batch("b").total


def test_what_was_begun_is_not_withdrawn(change, state):
    """It was stored after all; nor is that of another message."""
    change(enter(), enter("i"), begin())
    assert [UNCHANGED] * 2 == change(
        Change("withdraw", "j", tag=TAG), Change("withdraw", "i", tag=OTHER_TAG)
    )
    assert ["working", "waiting"] == [state("j"), state("i")]


def test_a_retry_that_was_not_published_is_withdrawn(change, state):
    """The try before it goes on, and how that ends counts."""
    change(enter(), begin(), enter(tag=OTHER_TAG, retries=1))
    assert [DONE] == change(Change("withdraw", "j", tag=OTHER_TAG))
    assert "working" == state()
    assert [DONE] == change(end("error"))


def test_a_job_that_nobody_entered(change, state, batches):
    """It is taken in when it begins, so that it counts; not into a batch that has ended."""
    assert [DONE] == change(begin())
    assert "working" == state()
    change(end("succeeded"), Change("seal"))
    assert batches.batch("b").ended_ms
    assert [NO_JOB, NO_JOB] == change(begin("i"), end("succeeded", "i"))


def test_a_job_of_a_cancelled_batch_that_has_ended(change, batches):
    """It does not run either, where nobody has entered it; what has ended stays as it is."""
    change(Change("cancel"))
    assert batches.batch("b").ended_ms
    assert [CANCELLED, NO_JOB] == change(begin(), end("succeeded"))
    assert 0 == batches.batch("b").total


# -- what the broker ends


def test_the_broker_gives_up(change, state):
    """The job is an error, unless it has gone on with another message."""
    change(enter())
    assert [UNCHANGED] == change(lost(tag=OTHER_TAG))
    assert [DONE, UNCHANGED] == change(lost(), lost())
    assert "error" == state()


@pytest.mark.parametrize("how", ["succeeded", "failed", "error"])
def test_what_a_worker_says_is_better(change, state, batches, how):
    """Of a message that was dead-lettered while it was at work."""
    change(enter(), begin(), lost())
    assert [DONE] == change(end(how, why="said by the worker"))
    assert how == state()
    assert ["said by the worker"] * (how != "succeeded") == [
        why for _, _, why in batches.failures("b", 10)
    ]
    assert [UNCHANGED] == change(lost())


def test_a_dead_letter_that_is_replayed_waits(change, state, batches):
    """In its new place, and may be begun; the batch has not ended then."""
    change(enter(), begin(), lost(), Change("seal"))
    assert batches.batch("b").ended_ms
    assert [DONE] == change(Change("replay", "j", tag=OTHER_TAG, queue="r"))
    job = job_of(batches, "b", "j")
    assert ("waiting", OTHER_TAG, "r") == (job.state, job.tag, job.queue)
    assert [] == batches.failures("b", 10)
    assert 0 == batches.batch("b").ended_ms
    assert [DONE] == change(
        begin(token=2),
    )
    change(end("succeeded", token=2))
    assert "succeeded" == state()
    assert [UNCHANGED] == change(Change("replay", "j", tag=TAG, queue="q"))


def test_a_replay_that_is_begun_before_it_is_heard_of(change, state):
    """A later delivery says that it goes on."""
    change(enter(), begin(token=1), lost())
    assert [DONE] == change(begin(token=2))
    assert [UNCHANGED] == change(Change("replay", "j", tag=TAG, queue="q"))
    assert "working" == state()


def test_what_is_found_nowhere_is_lost(change, state, batches):
    """If nothing was said of it since it was looked for."""
    change(enter(), seal())
    seen = str(job_of(batches, "b", "j").since_ms)
    assert [UNCHANGED] * 2 == change(
        Change("lose", "j", tag=TAG, text=str(int(seen) - 1)),
        Change("lose", "j", tag=OTHER_TAG, text=seen),
    )
    assert [DONE] == change(Change("lose", "j", tag=TAG, text=seen))
    assert "error" == state()
    assert ["lost with the broker's data"] == [why for _, _, why in batches.failures("b", 10)]


def lose(batches, *jobs):
    """Return what says that nothing is found of jobs that are as they are now."""
    seen = [job_of(batches, "b", job) for job in jobs]
    return [Change("lose", job.id, tag=job.tag, text=str(job.since_ms)) for job in seen]


def later(store, batches, job):
    """Wait until the broker's clock says another time than that of a job."""
    since_ms = job_of(batches, "b", job).since_ms
    wait_until(lambda: store.store.now_ms() > since_ms, interval_s=0.001)


def test_what_was_never_stored_is_taken_out(store, change, batches):
    """What its publisher entered last, in one step or several, and died; also where others seal."""
    change(enter("i"))
    later(store, batches, "i")
    change(enter("j"), enter("k"))
    change(enter("l")._replace(text="more"), Change("seal"))
    assert job_of(batches, "b", "l").since_ms == batches.batch("b").heard_ms
    assert [DONE, *[NEVER_STORED] * 3] == change(*lose(batches, "i", "j", "k", "l"))
    record = batches.batch("b")
    assert (1, 1, True) == (record.total, record.counts["error"], record.ended_ms > 0)


@pytest.mark.parametrize("how", ["its publisher goes on", "it seals", "it began", "it was seen"])
def test_what_was_stored_is_lost(store, change, batches, how):
    """Its publisher said so, or it was there once."""
    change(enter())
    later(store, batches, "j")
    if how == "its publisher goes on":
        change(enter("i"), Change("withdraw", "i", tag=TAG))
    elif how == "it began":
        change(begin(), Change("return", "j", "", 0, 1, TAG, "q"))
    else:
        seen = Change("settle", text=str(store.store.now_ms()))
        change(seal() if how == "it seals" else seen)
    assert [DONE] == change(*lose(batches, "j"))
    assert 1 == batches.batch("b").counts["error"]


# -- open, sealed, ended


def test_an_empty_batch_completes(change, batches):
    """When it is sealed: all of none have succeeded."""
    assert () == batches.batch("b").due
    assert [DONE, UNCHANGED] == change(Change("seal"), Change("seal"))
    record = batches.batch("b")
    assert {"success", "complete"} == set(record.due)
    assert record.ended_ms


def test_nothing_is_due_before_the_seal(change, batches):
    """Whatever has happened to its jobs."""
    change(enter(), begin(), end("failed"), enter("i"))
    assert () == batches.batch("b").due
    change(Change("seal"))
    assert ("failure",) == batches.batch("b").due
    change(begin("i"), end("succeeded", "i"))
    assert {"failure", "complete"} == set(batches.batch("b").due)


def test_success_is_due_when_all_have_succeeded(change, batches):
    """With the last one."""
    change(enter(), enter("i"), Change("seal"), begin(), end("succeeded"))
    assert () == batches.batch("b").due
    change(begin("i"), end("succeeded", "i"))
    assert {"success", "complete"} == set(batches.batch("b").due)


def test_what_was_said_is_not_due_again(change, batches):
    """Not by a later end either, of a job that was replayed."""
    change(enter(), begin(), lost(), Change("seal"))
    for callback in batches.batch("b").due:
        batches.said("b", callback)
    record = batches.batch("b")
    assert ((), {"failure", "complete"}) == (record.due, set(record.said))
    change(Change("replay", "j", tag=TAG, queue="q"), begin(token=2), end("error", token=2))
    assert () == batches.batch("b").due
    change(Change("replay", "j", tag=TAG, queue="q"), begin(token=3), end("succeeded", token=3))
    assert ("success",) == batches.batch("b").due


def test_a_sealed_batch_takes_jobs_of_its_own_only(change, state):
    """While they run."""
    change(enter(), begin(), enter("w"), Change("seal"))
    assert [SEALED] == change(enter("k"))
    assert [SEALED] == change(enter("k"), by="w")
    assert [SEALED] == change(enter("k"), by="nobody")
    assert [DONE] == change(enter("k"), by="j")
    assert "waiting" == state("k")
    change(end("succeeded"))
    assert [SEALED] == change(enter("l"), by="j")


def test_a_retry_of_a_sealed_batch(change, state):
    """Its job is in it already."""
    change(enter(), begin(), Change("seal"))
    assert [DONE] == change(enter(tag=OTHER_TAG, retries=1))
    assert "retrying" == state()


# -- cancelling


def test_the_next_try_of_a_job_whose_batch_is_cancelled(change, state, batches):
    """It is entered like any, and is cancelled when it would begin: it is no failure."""
    change(enter(), begin(), Change("cancel"))
    assert [DONE] == change(enter(tag=OTHER_TAG, retries=1))
    assert "retrying" == state()
    assert [UNCHANGED] == change(enter(tag=OTHER_TAG, retries=1))
    assert [CANCELLED] == change(begin(token=2, retries=1, tag=OTHER_TAG))
    assert "cancelled" == state()
    assert [CANCELLED] == change(enter(tag=TAG, retries=2))
    assert ("complete",) == batches.batch("b").due


def test_a_cancelled_batch_begins_nothing(change, state, batches):
    """What waits is cancelled when it would begin; what runs goes on, and its end counts."""
    change(enter(), enter("i"), enter("d", "delayed"), begin("i"))
    assert [DONE, UNCHANGED] == change(Change("cancel"), Change("cancel"))
    record = batches.batch("b")
    assert record.cancelled_ms
    assert record.sealed_ms
    assert batches.change("b", [begin()]).cancelled
    assert "cancelled" == state()
    # Said again; and delivered again, since whoever dropped it died before its ack.
    assert [CANCELLED, CANCELLED] == change(begin(), begin(token=2))
    assert "cancelled" == state()
    assert [CANCELLED] == change(enter("new"))
    assert [CANCELLED] == change(begin("d"))
    assert [DONE] == change(end("succeeded", "i"))
    assert [CANCELLED] == change(begin("i", token=2))
    record = batches.batch("b")
    assert ("complete",) == record.due
    assert {"succeeded": 1, "cancelled": 2} == {k: n for k, n in record.counts.items() if n}


def test_a_message_of_no_job_of_a_cancelled_batch(change, batches):
    """Its publish was tried twice, and refused the second time: then it is not to run."""
    change(enter(), Change("cancel"), Change("withdraw", "j", tag=TAG))
    assert batches.batch("b").ended_ms
    assert [CANCELLED] == change(begin())
    assert 0 == batches.batch("b").total


def test_one_that_has_ended_is_not_cancelled(change, batches):
    """There is nothing to cancel."""
    change(Change("seal"))
    assert [UNCHANGED] == change(Change("cancel"))
    assert 0 == batches.batch("b").cancelled_ms


# -- many, in any order


def test_many_at_a_time(change, batches):
    """More than one step takes, in one call; all are listed."""
    many = [f"j{n}" for n in range(1001)]
    assert [DONE] * len(many) == change(*[enter(name) for name in many])
    assert set(many) == {job.id for part in batches.jobs("b", 100) for job in part}
    assert len(many) == batches.batch("b").total


def test_posted(change, batches, store):
    """What is posted is done, too."""
    change(enter())
    results = []
    batches.post_change("b", [begin(), end("succeeded")], results.append)
    store.store.wait_for_replies()
    assert [([DONE, DONE],)] == [(found.outcomes,) for found in results]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))]
)
def test_counters_never_drift(change, batches, seed):
    """Whatever is said of jobs, in any order: the fixture compares them with the jobs."""
    rng = random.Random(seed)
    jobs = ["i", "j", "k"]
    tags = [TAG, OTHER_TAG]
    for _ in range(300):
        job, tag = rng.choice(jobs), rng.choice(tags)
        retries, token = rng.randrange(3), rng.randrange(1, 6)
        what = rng.choice(
            [
                enter(job, rng.choice(["waiting", "delayed"]), tag, retries),
                begin(job, token, retries, tag=tag),
                end(rng.choice(ENDED), job, token, retries, "why"),
                lost(job, tag),
                Change("return", job, "", retries, token),
                Change("withdraw", job, tag=tag),
                Change("replay", job, tag=tag, queue="q"),
            ]
        )
        change(what, by=rng.choice(["", *jobs]))
        record = batches.batch("b")
        assert record.total == len({job.id for part in batches.jobs("b") for job in part})
        assert all(count >= 0 for count in record.counts.values())
        assert bool(record.ended_ms) == bool(
            record.sealed_ms and not any(record.counts[state] for state in OPEN)
        )
        if rng.random() < 0.01:
            change(Change(rng.choice(["seal", "cancel"])))
