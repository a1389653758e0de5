"""Late, repeated, grouped or wrong reports of jobs never count twice and leave nothing behind."""

import pytest

from reliq.batches import entries as jobs
from reliq.batches.jobs import CANCELLED, DONE, NO_JOB, UNCHANGED, Change
from reliq.errors import BatchClosed, ConfigurationError, MessageRefused, NotFound
from tests.contract.jobs import OTHER_TAG, TAG, begin, end, enter, job_of, lost

SEAL, CANCEL = Change("seal"), Change("cancel")


def counted(batches):
    """Return the number of jobs in each state that has any."""
    return {state: n for state, n in batches.batch("b").counts.items() if n}


# -- tokens


@pytest.mark.slow
def test_tokens_are_of_one_queue(change, batches):
    """Tokens belong to one queue: a dead letter replayed into another may begin at a lower one."""
    change(enter(), begin(token=9), lost(), Change("replay", "j", tag=OTHER_TAG, queue="r"))
    began = Change("begin", "j", "", 0, 1, OTHER_TAG, "r", "s/2")
    assert [DONE] == change(began)
    assert [DONE] == change(end("error", token=1))
    assert {"error": 1} == counted(batches)


def test_a_worker_of_another_queue_is_no_earlier_one(change, batches):
    """A begin in another queue counts even with a lower token: its message was moved there."""
    change(enter(), begin(token=9))
    assert [DONE] == change(Change("begin", "j", "", 0, 1, TAG, "r", "s/2"))
    assert "r" == job_of(batches, "b", "j").queue
    assert [DONE] == change(end("error", token=1))


def test_the_end_of_a_replayed_one_whose_begin_was_not_heard(change):
    """The end of a replayed job counts without its begin, whatever the token in the old queue."""
    change(enter(), begin(token=9), lost(), Change("replay", "j", tag=OTHER_TAG, queue="r"))
    assert [DONE] == change(end("error", token=1))


@pytest.mark.parametrize("what", ["return", "replay"])
def test_a_begin_that_is_said_again(change, state, what):
    """A repeated begin of a delivery that was returned or dead-lettered since has no effect."""
    change(enter(), begin(token=3))
    if what == "return":
        change(Change("return", "j", token=3))
    else:
        change(lost(), Change("replay", "j", tag=TAG, queue="q"))
    assert [UNCHANGED] == change(begin(token=3))
    assert "waiting" == state()
    assert [DONE] == change(begin(token=4))


def test_a_delivery_without_a_lease(change, state):
    """A job begins and ends without a token, as a consumer without acks has none."""
    change(enter(), begin(token=0))
    assert [UNCHANGED] * 2 == change(begin(token=0), Change("withdraw", "j", tag=TAG))
    assert "working" == state()
    assert [DONE, DONE] == change(Change("return", "j", token=0), begin(token=0))
    assert [DONE] == change(end("succeeded", token=0))


@pytest.mark.parametrize("number", [-1, 2**53 + 1, 2**63, 10**400], ids="abcd")
def test_numbers_that_nobody_would_say(change, batches, number):
    """Retries and tokens beyond the valid range are clamped, and the job counts once.

    A message's headers contain whatever its publisher has put there.
    """
    change(enter(retries=number), begin(retries=number, token=number))
    assert [DONE] == change(end("succeeded", retries=number, token=number))
    assert {"succeeded": 1} == counted(batches)
    job = job_of(batches, "b", "j")
    assert (job.retries, job.token) == (max(0, min(number, 2**53 - 1)),) * 2


@pytest.mark.parametrize("number", [999_999, 10**14 + 1, 10**15 + 1, 2**53 - 1])
def test_a_number_is_kept_as_it_is(change, batches, number):
    """Retries and tokens of any number of digits are stored exactly."""
    change(enter(), begin(token=number, retries=number))
    job = job_of(batches, "b", "j")
    assert (number, number) == (job.retries, job.token)
    assert [UNCHANGED] == change(begin(token=number - 1, retries=number))


# -- times of changes


def test_each_change_has_its_own_time(change, batches):
    """Each change has its own time, even in one step.

    An observation of a job is thus never mistaken for one of a later change.
    """
    change(enter("i"), enter(), begin(), Change("return", "j", token=1))
    first, last = job_of(batches, "b", "i").since_ms, job_of(batches, "b", "j").since_ms
    assert first + 2 == last
    seen = str(first)
    assert [UNCHANGED] == change(Change("lose", "j", tag=TAG, text=seen))


# -- retries


def test_a_first_try_with_a_number_is_withdrawn(change, batches):
    """A first try with a retry count is withdrawn entirely, as no earlier try exists.

    A task may be published with retries counted elsewhere.
    """
    change(enter(retries=2))
    assert [DONE] == change(Change("withdraw", "j", tag=TAG))
    assert {} == counted(batches)


def test_a_dead_letter_after_a_retry_that_was_withdrawn(change, batches):
    """After a withdrawn retry, a dead letter of the earlier try ends the job."""
    change(enter(), begin(), enter(tag=OTHER_TAG, retries=1))
    change(Change("withdraw", "j", tag=OTHER_TAG))
    assert [DONE] == change(lost())
    assert {"error": 1} == counted(batches)


def test_a_withdrawn_retry_is_not_withdrawn_again(change, batches):
    """A withdrawn retry is not withdrawn again, not even without a tag: the job is working."""
    change(enter(), begin(), enter(tag=OTHER_TAG, retries=1))
    change(Change("withdraw", "j", tag=OTHER_TAG))
    assert [UNCHANGED] == change(Change("withdraw", "j"))
    assert {"working": 1} == counted(batches)


@pytest.mark.parametrize("how", [lost(), end("error")])
def test_the_next_try_of_one_that_was_given_up(change, state, batches, how):
    """A retry of a job that was given up reopens the job and its batch.

    Its worker continued and has published the retry.
    """
    change(enter(), begin(), how, SEAL)
    assert [DONE] == change(enter(tag=OTHER_TAG, retries=1))
    assert "retrying" == state()
    assert [] == batches.failures("b", 10)
    assert 0 == batches.batch("b").ended_ms


def test_a_retry_that_is_published_under_another_tag(change, state, batches):
    """A retry that is published again under another tag stays one retry."""
    change(enter(), begin(), enter(tag=OTHER_TAG, retries=1))
    assert [DONE] == change(enter(tag="c" * 30, retries=1))
    assert "retrying" == state()
    assert "c" * 30 == job_of(batches, "b", "j").tag


# -- in one step, or in several


@pytest.mark.parametrize(
    "changes",
    [
        [SEAL, CANCEL],
        [enter(), begin(), SEAL, end("succeeded"), begin("i")],
        [enter(), begin(), SEAL, end("failed"), Change("replay", "j", tag=TAG, queue="q")],
        [enter(), Change("withdraw", "j", tag=TAG), enter(), SEAL, lost(), begin(token=2)],
        [enter(), SEAL, Change("withdraw", "j", tag=TAG), CANCEL, enter()],
        [enter(), enter("i"), begin(), CANCEL, begin("i"), end("succeeded"), begin("k")],
    ],
    ids=["cancel", "begin", "replay", "lost", "withdraw", "cancelled"],
)
def test_a_group_is_what_its_changes_are(batches, changes):
    """The changes of a group have the same effect as the same changes one by one."""
    found = []
    for name, groups in (("one", [[item] for item in changes]), ("all", [changes])):
        batches.open_batch(name, "", {})
        outcomes = [o for group in groups for o in batches.change(name, group).outcomes]
        record = batches.batch(name)
        times = [bool(at) for at in (record.sealed_ms, record.cancelled_ms, record.ended_ms)]
        found.append((outcomes, record.counts, times, record.due))
    assert found[0] == found[1]


def test_withdrawing_the_last_one_ends_a_sealed_batch(change, batches):
    """Withdrawing the last open job ends a sealed batch."""
    change(enter(), SEAL)
    assert () == batches.batch("b").due
    change(Change("withdraw", "j", tag=TAG))
    assert {"success", "complete"} == set(batches.batch("b").due)
    assert [NO_JOB] == change(begin())


def test_a_cancelled_batch_does_not_succeed(change, batches):
    """A cancelled batch does not succeed, even if all jobs published so far have."""
    change(enter(), begin(), end("succeeded"), CANCEL)
    assert ("complete",) == batches.batch("b").due


def test_delayed_jobs_of_a_cancelled_batch(change, batches):
    """Delayed jobs of a cancelled batch end when they would begin; the batch then ends once."""
    change(enter(state="delayed"), CANCEL)
    assert () == batches.batch("b").due
    change(begin())
    assert ("complete",) == batches.batch("b").due
    batches.note_published("b", "complete")
    assert [CANCELLED, UNCHANGED] == change(begin(), end("succeeded"))
    assert () == batches.batch("b").due


def test_said_before_it_is_due(change, batches):
    """A callback that is marked as published before it is due still becomes due."""
    change(enter())
    batches.note_published("b", "complete")
    change(begin(), end("succeeded"), SEAL)
    assert {"success", "complete"} == set(batches.batch("b").due)


# -- too long, or invalid


def test_a_long_reason_is_cut(change, batches):
    """The reason of a failure is cut to 500 characters."""
    change(enter(), begin(), end("error", why="ü" * 100_000))
    assert ["ü" * 500] == [why for _, _, why in batches.failures("b", 10)]


def test_a_reason_of_any_text(change, batches):
    """The reason of a failure may contain text that cannot be encoded."""
    change(enter(), begin(), end("error", why="half \ud800 and \0"))
    assert ["half \\ud800 and \0"] == [why for _, _, why in batches.failures("b", 10)]


@pytest.mark.parametrize("job", ["", "x" * 256, "half \ud800"])
def test_an_id_that_cannot_be_kept(change, batches, job):
    """An id that cannot be stored refuses the whole group; the error states the reason."""
    with pytest.raises(MessageRefused, match="nothing was stored"):
        change(enter(), enter(job))
    assert {} == counted(batches)
    with pytest.raises(MessageRefused):
        batches.post_change("b", enter(job), lambda _: None)
    assert {} == counted(batches)


def test_the_longest_id(change, batches):
    """An id of 255 characters is accepted."""
    change(enter("ü" * 255))
    assert "ü" * 255 == job_of(batches, "b", "ü" * 255).id


@pytest.mark.parametrize(
    "wrong",
    [Change("enter", "j", "working"), Change("end", "j", "waiting"), Change("vanish", "j")],
)
def test_what_is_no_change(change, batches, wrong):
    """An invalid change refuses the whole group."""
    with pytest.raises(ConfigurationError):
        change(enter(), wrong)
    assert {} == counted(batches)


@pytest.mark.parametrize("tag", ["a|b", "x" * 256])
def test_a_tag_that_is_none_of_ours(change, batches, tag):
    """A tag that is not reliq's is ignored: the job counts, its message is unknown."""
    change(enter(tag=tag, queue="a|b"), begin(tag=tag))
    job = job_of(batches, "b", "j")
    assert ("", "q") == (job.tag, job.queue)
    assert [DONE] == change(end("succeeded"))


@pytest.mark.parametrize("queue", ["nul\0nul" + "x" * 20, "|", "%s%d", "\n"])
def test_a_queue_of_any_name(change, batches, queue):
    """A queue's name of any characters is stored unchanged."""
    change(enter(queue=queue))
    assert (TAG, queue) == (job_of(batches, "b", "j").tag, job_of(batches, "b", "j").queue)


def test_who_works_on_a_job(change, batches):
    """A job shows its worker while it is working, and none otherwise."""
    change(enter(), begin(who="s|1" + "x" * 300))
    assert "s/1" + "x" * 252 == job_of(batches, "b", "j").worker
    change(begin(token=2, who="s/2"))
    assert ["s/2"] == [job.worker for part in batches.jobs("b") for job in part]
    change(Change("return", "j", token=2))
    assert "" == job_of(batches, "b", "j").worker
    change(begin(token=3), enter(tag=OTHER_TAG, retries=1))
    assert "" == job_of(batches, "b", "j").worker
    change(begin(retries=1, tag=OTHER_TAG), end("succeeded", retries=1))
    assert "" == job_of(batches, "b", "j").worker


# -- revoked jobs


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_job_that_was_revoked(change, batches, is_cancelled):
    """A revoked job counts as cancelled in a cancelled batch, otherwise as an error with reason."""
    change(enter(), begin(token=2), *[CANCEL] * is_cancelled)
    revoked = end("cancelled", token=1, why="terminated")
    assert [UNCHANGED] == change(revoked)  # of an earlier delivery
    assert [DONE] == change(revoked._replace(token=2))
    assert {"cancelled" if is_cancelled else "error": 1} == counted(batches)
    reasons = [why for _, _, why in batches.failures("b", 9)]
    assert ["terminated"] * (not is_cancelled) == reasons


# -- several batches


@pytest.mark.parametrize("closed", [SEAL, CANCEL, None], ids=["sealed", "cancelled", "none"])
def test_jobs_that_are_entered_together(store, batches, closed):
    """If one batch refuses its jobs, the jobs entered into other batches are removed.

    Jobs that were there before are kept.
    """
    batches.open_batch("a", "", {})
    batches.change("a", [enter("before")])
    if closed is not None:
        batches.open_batch("closed", "", {})
        batches.change("closed", [closed])
    entries = [("a", enter("before")), ("a", enter("new")), ("closed", enter("late"))]
    with pytest.raises(NotFound if closed is None else BatchClosed):
        jobs.enter(store.store, entries)
    assert ["before"] == [job.id for part in batches.jobs("a") for job in part]
