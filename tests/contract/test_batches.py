"""A batch counts its jobs: each job has one state, for any reports in any number."""

import random
from uuid import uuid4

import pytest

from reliq.batches.jobs import (
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
    """A batch is opened once; a second attempt returns False and changes nothing."""
    assert batches.open_batch("b", "enrol", {"tenant": "7"})
    assert not batches.open_batch("b", "other", {})
    record = batches.batch("b")
    assert ("b", "enrol", {"tenant": "7"}) == (record.id, record.name, record.fields)
    assert record.created_ms > 0
    assert (0, 0, 0, 0) == (record.total, record.sealed_ms, record.cancelled_ms, record.ended_ms)
    assert ((), ()) == (record.due, record.published)


def test_there_is_none(batches):
    """Reports for an unknown batch are ignored, and queries find nothing."""
    assert batches.batch("b") is None
    assert batches.change("b", [enter()]) is None
    assert job_of(batches, "b", "j") is None
    assert [] == [job for part in batches.jobs("b") for job in part]
    assert [] == batches.failures("b", 10)


def test_batches_are_listed(batches):
    """Batches are listed in pages, the last one first."""
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
    """The time of the last addition is that of a new job, not of a retry or a change of state."""
    assert 0 == batches.batch("b").added_ms
    change(enter("first"))
    first_ms = batches.batch("b").added_ms
    assert first_ms == job_of(batches, "b", "first").since_ms
    change(begin("first"), enter("first", retries=1), end("failed", "first", why="no"))
    assert first_ms == batches.batch("b").added_ms
    wait_until(lambda: change(enter(uuid4().hex)) and batches.batch("b").added_ms > first_ms)


def test_names_are_apart(batches):
    """Batches, jobs and queues with special characters in their names are distinct."""
    names = ["x", "{x}", "%7Bx%7D", "x y\n", "ü", "a|b|c", "x:jobs"]
    for name in names:
        assert batches.open_batch(name, name, {name: name})
        assert [DONE] == batches.change(name, [enter(name, queue=name)]).outcomes
    for name in names:
        record, job = batches.batch(name), job_of(batches, name, name)
        assert (name, {name: name}, 1) == (record.name, record.fields, record.total)
        assert (name, name, TAG) == (job.id, job.queue, job.tag)


def test_it_is_forgotten(batches, change):
    """A batch is forgotten with its jobs, and a new batch may have its id."""
    change(enter(), begin(), end("failed", why="no"))
    batches.forget_batch("b")
    assert batches.batch("b") is None
    assert [] == batches.batches(10)
    assert batches.open_batch("b", "again", {})
    assert 0 == batches.batch("b").total
    assert job_of(batches, "b", "j") is None


# -- the states of a job


def test_a_job_succeeds(change, state, batches):
    """A job waits, is working, and has succeeded; each report changes its state once."""
    assert [DONE] == change(enter())
    job = job_of(batches, "b", "j")
    assert ("j", "waiting", 0, 0, TAG, "q") == (*job[:4], job.tag, job.queue)
    assert [DONE] == change(begin(token=7))
    job = job_of(batches, "b", "j")
    assert ("working", 7) == (job.state, job.token)
    assert [DONE] == change(end("succeeded", token=7))
    assert "succeeded" == state()


def test_a_delayed_one_says_so(change, state):
    """A delayed job is delayed until it begins."""
    change(enter(state="delayed"))
    assert "delayed" == state()
    change(begin())
    assert "working" == state()


@pytest.mark.parametrize("how", ["failed", "error"])
def test_a_job_fails(change, state, batches, how):
    """A failed job is listed with its reason, the latest failures first."""
    change(enter("i"), enter(), begin("i"), begin(), end(how, "i", why="first"))
    change(end(how, why="price is missing"))
    assert how == state()
    (job, at_ms, why), *_ = batches.failures("b", 1)
    assert ("j", "price is missing") == (job, why)
    assert at_ms >= batches.batch("b").created_ms
    assert ["i"] == [job for job, _, _ in batches.failures("b", 10, 1)]


def test_what_is_said_twice_is_done_once(change, batches):
    """A repeated report changes nothing, as a report is retried if its reply was lost."""
    steps = [enter(), begin(), end("succeeded")]
    for step in steps:
        assert [DONE, UNCHANGED] == change(step, step)
    assert {"succeeded": 1} == {k: n for k, n in batches.batch("b").counts.items() if n}


def test_what_comes_late_changes_nothing(change, state):
    """Late reports change nothing: a begin or entry after the end, or an older delivery's end."""
    change(enter(), begin(token=1), begin(token=2))
    assert [UNCHANGED] == change(begin(token=1))
    assert [UNCHANGED] == change(end("error", token=1))
    assert "working" == state()
    assert [DONE] == change(end("succeeded", token=2))
    assert [UNCHANGED] * 3 == change(enter(), begin(token=3), end("error", token=3))
    assert "succeeded" == state()


def test_success_counts_whoever_says_so(change, state):
    """A success counts from any delivery: a worker whose lease was lost has done the work too."""
    change(enter(), begin(token=1), begin(token=2))
    assert [DONE] == change(end("succeeded", token=1))
    assert [UNCHANGED] == change(end("error", token=2))
    assert "succeeded" == state()


def test_a_redelivered_job_counts_once(change, state, batches):
    """A redelivered job counts once: the next delivery begins it again."""
    change(enter(), begin(token=1), begin(token=5, who="s/2"))
    assert 1 == batches.batch("b").total
    assert "working" == state()


def test_one_that_goes_back_waits(change, state):
    """A returned job waits again, unless the return belongs to another delivery."""
    change(enter(), begin(token=3))
    assert [UNCHANGED] == change(Change("return", "j", token=2))
    assert [DONE] == change(Change("return", "j", token=3))
    assert "waiting" == state()
    assert [DONE] == change(begin(token=4))


def test_a_retry_keeps_its_job(change, state, batches):
    """A retry belongs to the same job, and a later end of the earlier try changes nothing.

    The next try is entered before the end of the earlier one is reported.
    """
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
    """Another message of the same try changes nothing while the job is working."""
    change(enter(), begin())
    assert [UNCHANGED] == change(enter(tag=OTHER_TAG))
    assert TAG == job_of(batches, "b", "j").tag


# -- failed publishes


def test_a_publish_that_failed_is_withdrawn(change, state, batches):
    """A withdrawn job leaves no trace in its batch."""
    change(enter())
    assert [DONE, UNCHANGED] == change(*[Change("withdraw", "j", tag=TAG)] * 2)
    assert state() is None
    assert 0 == batches.batch("b").total


def test_what_was_begun_is_not_withdrawn(change, state):
    """A job that has begun is not withdrawn, as it was stored; nor is one with another tag."""
    change(enter(), enter("i"), begin())
    assert [UNCHANGED] * 2 == change(
        Change("withdraw", "j", tag=TAG), Change("withdraw", "i", tag=OTHER_TAG)
    )
    assert ["working", "waiting"] == [state("j"), state("i")]


def test_a_retry_that_was_not_published_is_withdrawn(change, state):
    """A withdrawn retry returns the job to its earlier try, the end of which counts."""
    change(enter(), begin(), enter(tag=OTHER_TAG, retries=1))
    assert [DONE] == change(Change("withdraw", "j", tag=OTHER_TAG))
    assert "working" == state()
    assert [DONE] == change(end("error"))


def test_a_job_that_nobody_entered(change, state, batches):
    """A job that was not entered is added when it begins, unless the batch has ended."""
    assert [DONE] == change(begin())
    assert "working" == state()
    change(end("succeeded"), Change("seal"))
    assert batches.batch("b").ended_ms
    assert [NO_JOB, NO_JOB] == change(begin("i"), end("succeeded", "i"))


def test_a_job_of_a_cancelled_batch_that_has_ended(change, batches):
    """A job that was not entered does not run in a cancelled batch that has ended."""
    change(Change("cancel"))
    assert batches.batch("b").ended_ms
    assert [CANCELLED, NO_JOB] == change(begin(), end("succeeded"))
    assert 0 == batches.batch("b").total


# -- ends by the broker


def test_the_broker_gives_up(change, state):
    """A dead letter makes its job an error, unless the job continues with another message."""
    change(enter())
    assert [UNCHANGED] == change(lost(tag=OTHER_TAG))
    assert [DONE, UNCHANGED] == change(lost(), lost())
    assert "error" == state()


@pytest.mark.parametrize("how", ["succeeded", "failed", "error"])
def test_what_a_worker_says_is_better(change, state, batches, how):
    """A worker's report overrides that of the broker for a message dead-lettered meanwhile."""
    change(enter(), begin(), lost())
    assert [DONE] == change(end(how, why="said by the worker"))
    assert how == state()
    assert ["said by the worker"] * (how != "succeeded") == [
        why for _, _, why in batches.failures("b", 10)
    ]
    assert [UNCHANGED] == change(lost())


def test_a_dead_letter_that_is_replayed_waits(change, state, batches):
    """The job of a replayed dead letter waits at its new place, and its batch is open again."""
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
    """A later delivery reopens its job even if it is reported before the replay."""
    change(enter(), begin(token=1), lost())
    assert [DONE] == change(begin(token=2))
    assert [UNCHANGED] == change(Change("replay", "j", tag=TAG, queue="q"))
    assert "working" == state()


def test_what_is_found_nowhere_is_lost(change, state, batches):
    """A job whose message is not found is lost if it has not changed since the search began."""
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
    """Return the reports that nothing is found of jobs in their current state."""
    seen = [job_of(batches, "b", job) for job in jobs]
    return [Change("lose", job.id, tag=job.tag, text=str(job.since_ms)) for job in seen]


def later(store, batches, job):
    """Wait until the broker's clock shows a later time than that of a job."""
    since_ms = job_of(batches, "b", job).since_ms
    wait_until(lambda: store.store.now_ms() > since_ms, interval_s=0.001)


def test_what_was_never_stored_is_taken_out(store, change, batches):
    """The last jobs of a dead publisher, which were never stored, are removed.

    It may have entered them in one step or several, and another process may seal the batch.
    """
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
    """A job that was stored is lost, as its publisher, a worker or a check has confirmed it."""
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
    """An empty batch completes and succeeds when it is sealed."""
    assert () == batches.batch("b").due
    assert [DONE, UNCHANGED] == change(Change("seal"), Change("seal"))
    record = batches.batch("b")
    assert {"success", "complete"} == set(record.due)
    assert record.ended_ms


def test_nothing_is_due_before_the_seal(change, batches):
    """Before the seal no callback is due, whatever the states of the jobs."""
    change(enter(), begin(), end("failed"), enter("i"))
    assert () == batches.batch("b").due
    change(Change("seal"))
    assert ("failure",) == batches.batch("b").due
    change(begin("i"), end("succeeded", "i"))
    assert {"failure", "complete"} == set(batches.batch("b").due)


def test_success_is_due_when_all_have_succeeded(change, batches):
    """The success callback is due when the last job has succeeded."""
    change(enter(), enter("i"), Change("seal"), begin(), end("succeeded"))
    assert () == batches.batch("b").due
    change(begin("i"), end("succeeded", "i"))
    assert {"success", "complete"} == set(batches.batch("b").due)


def test_what_was_said_is_not_due_again(change, batches):
    """A published callback is not due again, even if a replayed job ends later."""
    change(enter(), begin(), lost(), Change("seal"))
    for callback in batches.batch("b").due:
        batches.note_published("b", callback)
    record = batches.batch("b")
    assert ((), {"failure", "complete"}) == (record.due, set(record.published))
    change(Change("replay", "j", tag=TAG, queue="q"), begin(token=2), end("error", token=2))
    assert () == batches.batch("b").due
    change(Change("replay", "j", tag=TAG, queue="q"), begin(token=3), end("succeeded", token=3))
    assert ("success",) == batches.batch("b").due


def test_a_sealed_batch_takes_jobs_of_its_own_only(change, state):
    """A sealed batch accepts jobs only from its own jobs, while they run."""
    change(enter(), begin(), enter("w"), Change("seal"))
    assert [SEALED] == change(enter("k"))
    assert [SEALED] == change(enter("k"), by="w")
    assert [SEALED] == change(enter("k"), by="nobody")
    assert [DONE] == change(enter("k"), by="j")
    assert "waiting" == state("k")
    change(end("succeeded"))
    assert [SEALED] == change(enter("l"), by="j")


def test_a_retry_of_a_sealed_batch(change, state):
    """A sealed batch accepts a retry, whose job it already contains."""
    change(enter(), begin(), Change("seal"))
    assert [DONE] == change(enter(tag=OTHER_TAG, retries=1))
    assert "retrying" == state()


# -- cancellation


def test_the_next_try_of_a_job_whose_batch_is_cancelled(change, state, batches):
    """A retry in a cancelled batch is entered, and is cancelled when it would begin.

    It does not count as a failure.
    """
    change(enter(), begin(), Change("cancel"))
    assert [DONE] == change(enter(tag=OTHER_TAG, retries=1))
    assert "retrying" == state()
    assert [UNCHANGED] == change(enter(tag=OTHER_TAG, retries=1))
    # The earlier try is delivered again: its worker died after it had entered the next one.
    assert [CANCELLED] == change(begin(token=2))
    assert [UNCHANGED] == change(end("cancelled", token=2))
    assert "retrying" == state()
    assert [CANCELLED] == change(begin(token=2, retries=1, tag=OTHER_TAG))
    assert "cancelled" == state()
    assert [CANCELLED] == change(enter(tag=TAG, retries=2))
    assert ("complete",) == batches.batch("b").due


def test_a_cancelled_batch_begins_nothing(change, state, batches):
    """A cancelled batch skips waiting jobs; running jobs continue, and their ends count."""
    change(enter(), enter("i"), enter("d", "delayed"), begin("i"))
    assert [DONE, UNCHANGED] == change(Change("cancel"), Change("cancel"))
    record = batches.batch("b")
    assert record.cancelled_ms
    assert record.sealed_ms
    assert batches.change("b", [begin()]).cancelled
    assert "cancelled" == state()
    # The report is repeated; and the job is delivered again, as the worker that skipped it died
    # before its ack.
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
    """A message without a job does not run in a cancelled batch.

    Its publish was tried twice, and refused the second time.
    """
    change(enter(), Change("cancel"), Change("withdraw", "j", tag=TAG))
    assert batches.batch("b").ended_ms
    assert [CANCELLED] == change(begin())
    assert 0 == batches.batch("b").total


def test_one_that_has_ended_is_not_cancelled(change, batches):
    """A batch that has ended is not cancelled."""
    change(Change("seal"))
    assert [UNCHANGED] == change(Change("cancel"))
    assert 0 == batches.batch("b").cancelled_ms


# -- many, in any order


def test_many_at_a_time(change, batches):
    """One call accepts more changes than one step takes, and all jobs are listed."""
    many = [f"j{n}" for n in range(1001)]
    assert [DONE] * len(many) == change(*[enter(name) for name in many])
    assert set(many) == {job.id for part in batches.jobs("b", 100) for job in part}
    assert len(many) == batches.batch("b").total


def test_posted(change, batches, store):
    """Posted changes are applied too."""
    change(enter())
    results = []
    for step in (begin(), end("succeeded")):
        batches.post_change("b", step, results.append)
    store.store.wait_for_replies()
    assert [[DONE], [DONE]] == [found.outcomes for found in results]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))]
)
def test_counters_never_drift(change, batches, seed):
    """The counters always equal the jobs' states, for any reports in any order.

    The fixture compares them.
    """
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
