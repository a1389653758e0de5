"""The findings about batches, in handmade ledgers and views of brokers."""

from __future__ import annotations

from collections import Counter

import pytest

from reliq.admin import Inspector
from reliq.batches import Batch
from reliq.batches.jobs import STATES, Change
from tests.chaos import batch_book, ledger
from tests.chaos.batch_book import Found
from tests.chaos.batch_checker import BatchChecker
from tests.chaos.checker import Blame, histories
from tests.chaos.keys import unexplained
from tests.chaos.test_checker import LIMITS, Book


class Story(Book):
    """A ledger and the broker's view of it: a batch `b` of two jobs that succeeded."""

    def __init__(self):
        super().__init__()
        self.states = {"i1": "succeeded", "i2": "succeeded"}
        self.reasons = {}
        self.known = {}
        self.write("O", 1, "b", "-").write("A", 1.1, "b")
        for number, job in enumerate(self.states):
            self.job(job, 1.2 + number / 10)
        self.write("L", 1.5, "b")

    def job(self, job, at):
        """Publish a job of the batch."""
        self.write("P", at, job, 0, "chaos").write("J", at, job, "b", "chaos")
        return self.write("C", at + 0.05, job)

    def ran(self, end="F", finish=2.5, job="i2"):
        """Record runs of both jobs; that of *job* ends with the event *end*."""
        for one in ("i1", "i2"):
            self.run(one, 2, finish if one == job else 2.2, end=end if one == job else "F")
        return self

    def said(self, *names, at=3.0):
        """Record runs of callbacks."""
        for name in names:
            self.run(ledger.callback_id("b", name), at, at + 0.1)
        return self

    def found(self, where=""):
        """Return the batch as a broker reports it."""
        counts = dict.fromkeys(STATES, 0) | Counter(self.states.values())
        known = {"ended": True, "cancelled": False, "counts": counts, **self.known}
        return Found(
            where,
            known["counts"],
            sum(counts.values()),
            known["ended"],
            known["cancelled"],
            known.get("due", ()),
            ("complete",),
            dict(self.states),
            dict(self.reasons),
        )

    def judged(self, *brokers):
        """Return the verdict on *brokers*, by default one broker with the batch."""
        books = batch_book.books(self.lines)
        batch_book.enter(books, histories(self.lines).values())
        blame = Blame(self.faults, self.exits, [], LIMITS)
        return BatchChecker(books, blame, LIMITS).check(brokers or [{"b": self.found()}])

    @property
    def findings(self):
        """Return the findings, without the name of the batch."""
        return [text.removeprefix("batch b: ") for text in self.judged().findings]


@pytest.fixture
def story():
    """Return a batch without errors."""
    return Story()


def test_a_batch_that_is_right(story):
    """Two successful jobs with the callbacks `success` and `complete` give no finding."""
    verdict = story.ran().said("success", "complete").judged()
    assert [] == verdict.findings
    assert (1, 2) == (verdict.batches["all"], verdict.jobs["succeeded"])
    assert Counter(success=1, complete=1) == verdict.callbacks


@pytest.mark.parametrize(
    ("end", "state", "reason"), [("N", "failed", "no"), ("V", "error", "ValueError: no")]
)
def test_a_job_that_fails(story, end, state, reason):
    """The job has the state that its run implies, and the batch reports it."""
    story.states["i2"], story.reasons = state, {"i2": reason}
    story.ran(end).said("complete", "failure")
    assert [] == story.findings
    story.states["i2"] = "succeeded"
    assert any("i2 is succeeded" in text for text in story.findings)


@pytest.mark.parametrize("state", [state for state in STATES if state != "succeeded"])
def test_a_job_with_another_state_than_its_run_has_earned(story, state):
    """A state other than that of the job's run is a finding, because no fault explains it."""
    story.states["i2"], story.reasons = state, {"i2": "lost with the broker's data"}
    found = story.ran().said("complete", "failure", "success").findings
    assert any(f"i2 is {state}" in text for text in found)


def test_a_job_that_succeeded_and_has_not_run(story):
    """A success without a run is a finding."""
    story.run("i1", 2, 2.1).said("success", "complete")
    assert ["i2 is succeeded (no reason), and was to be run; its runs: none"] == story.findings


def test_a_batch_that_has_not_ended(story):
    """A batch that has not ended is a finding, and so is a callback that has already run."""
    story.known = {"ended": False}
    assert ["has not ended: {'succeeded': 2}"] == story.ran().findings
    assert "on_complete has run, and it has not ended" in story.said("complete").findings


def test_counters_that_are_not_the_counts_of_the_jobs(story):
    """Wrong counters are a finding even if their sum is right."""
    story.known = {"counts": dict.fromkeys(STATES, 0) | {"succeeded": 1, "failed": 1}}
    assert any("its counters say" in text for text in story.ran().said("complete").findings)


def test_jobs_that_are_missing_or_of_nobody(story):
    """A confirmed task must be a job, and a job must have been published."""
    story.ran().said("success", "complete")
    del story.states["i2"]
    assert ["i2 was confirmed, and is no job of it"] == story.findings
    story.states |= {"i2": "succeeded", "i3": "error"}
    assert any("1 jobs that nobody has published (i3)" in text for text in story.findings)


def test_jobs_of_a_producer_that_died(story):
    """Unpublished jobs of a dead producer are lost; a success of one is a finding."""
    story.lines = [line for line in story.lines if line.event != "L"]
    story.ran().said("complete", "failure")
    story.states["i3"] = "error"
    assert [] == story.findings
    story.states["i3"] = "succeeded"
    assert "i3 is succeeded, and has never run" in story.findings


def test_a_publish_that_was_refused(story):
    """A refused publish must not leave a job behind."""
    story.ran().said("success", "complete").write("P", 1.4, "i3", 0, "chaos")
    story.write("J", 1.4, "i3", "b", "chaos").write("U", 1.41, "i3")
    assert [] == story.findings
    story.states["i3"] = "error"
    assert "i3 is a job, and its publish was refused" in story.findings


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), "on_complete was not run"),
        (("success",), "on_complete was not run"),
        (("complete",), "on_success was not run"),
        (("complete", "success", "failure"), "on_failure has run"),
    ],
)
def test_callbacks_that_are_missing_or_wrong(story, names, text):
    """If all jobs succeeded, `complete` and `success` run, and no other callback."""
    assert any(text in found for found in story.ran().said(*names).findings)


def test_success_where_something_failed(story):
    """A `success` callback after a failed job is a finding, even beside the expected callbacks."""
    story.states["i2"], story.reasons = "failed", {"i2": "no"}
    found = story.ran("N").said("complete", "failure", "success").findings
    assert any("on_success has run" in text for text in found)


@pytest.mark.parametrize(
    ("at", "text"),
    [(2.4, "on_complete ran 0.10 s before i2 ended"), (1.3, "before its last job was published")],
)
def test_a_callback_before_its_time(story, at, text):
    """A callback must not run before the last job has ended or was published."""
    found = story.ran().said("success").said("complete", at=at).findings
    assert any(text in one for one in found)


def test_a_callback_that_is_due_for_ever(story):
    """A callback that the broker still reports as due is a finding."""
    story.known = {"due": ("complete",)}
    assert "is still to say complete" in story.ran().said("success").findings


def test_jobs_of_a_batch_that_was_cancelled(story):
    """Unfinished jobs of a cancelled batch are cancelled; only a worker's death excuses a run."""
    story.write("K", 1.9, "b").write("M", 1.95, "b").known = {"cancelled": True}
    story.states["i2"] = "cancelled"
    story.run("i1", 2, 2.2).said("complete")
    assert [] == story.findings
    story.run("i2", 2, 2.2, worker="w2")
    assert any("i2 is cancelled" in text for text in story.findings)
    assert [] == story.fault("worker-kill", 2.3, worker="w2").findings


def test_a_job_that_began_after_its_batch_was_cancelled(story):
    """A job that began after the cancellation is a finding, unless its broker was unreachable."""
    story.write("K", 1.6, "b").write("M", 1.7, "b").known = {"cancelled": True}
    story.states["i2"] = "cancelled"
    story.run("i1", 2, 2.2).said("complete", at=9)
    story.run("i2", 5, 5.1, worker="w2").fault("worker-kill", 5.2, worker="w2")
    assert ["was cancelled, and i2 ran 2.30 s later (w2 at 5.00)"] == story.findings
    assert [] == story.fault("broker-kill", 2.5, 3.0, outage=True).findings


def test_one_that_nobody_has_cancelled(story):
    """A cancelled batch without a recorded cancellation is a finding."""
    story.known = {"cancelled": True}
    assert "is cancelled, and nobody has done so" in story.ran().said("complete").findings


def test_what_was_lost_with_a_master(story):
    """A lost master may lose jobs that finished right before, but not those of long before.

    The ends of jobs are stored on the node of their batch, whichever node that is.
    """
    story.states["i2"], story.reasons = "error", {"i2": "lost with the broker's data"}
    story.ran().said("complete", "failure", at=60)
    known = {"outage": True, "master": True, "queues": frozenset({"%"})}
    assert story.fault("node-kill", 9.0, 12.0, **known).findings
    verdict = story.fault("node-kill", 3.0, 6.0, **known).judged()
    assert [] == verdict.findings
    assert 1 == verdict.excused["a master was lost"]


def test_a_worker_that_died_before_it_stored_the_next_try(story):
    """In a cancelled batch, the job is lost if its worker died before its next try was stored."""
    story.job("r3", 1.4)
    story.states["r3"], story.reasons = "error", {"r3": "lost with the broker's data"}
    story.ran().run("r3", 2, end="R").said("complete", "failure", at=60)
    story.fault("worker-kill", 2.6, worker="w1")
    assert any("r3 is error" in text for text in story.findings)
    story.known = {"cancelled": True}
    story.write("K", 2.7, "b").write("M", 2.8, "b")
    verdict = story.judged()
    assert [] == verdict.findings
    assert 1 == verdict.excused["its worker died before its next try was stored"]


def test_what_was_moved_from_the_second_broker(story):
    """A batch stays at its broker, and does not learn the end of a job that runs elsewhere."""
    story.states["i2"], story.reasons = "error", {"i2": "lost with the broker's data"}
    story.ran().said("complete", "failure", at=60)
    assert story.findings
    assert [] == story.judged({"b": story.found("second broker: ")}).findings


def test_poison_that_was_moved_from_the_second_broker(story):
    """A run of moved poison never ends; its batch finds its worker lost and its message missing.

    The finding is excused because the message was moved to the first broker.
    """
    story.job("x2", 1.4)
    story.states["x2"], story.reasons = (
        "error",
        {"x2": "its worker w was lost, or does not know it"},
    )
    story.ran().run("x2", 2)
    story.said("complete", "failure", at=60)
    assert any("x2 is error" in text for text in story.findings)
    verdict = story.judged({"b": story.found("second broker: ")})
    assert [] == verdict.findings
    assert 1 == verdict.excused["its message was moved to the first broker"]


@pytest.mark.parametrize(
    ("state", "expected"), [("succeeded", "succeeded"), ("failed", "failed"), ("error", "error")]
)
def test_a_batch_in_a_batch(story, state, expected):
    """The state in its parent follows from the states of its own jobs."""
    story.ran().said("complete", "success" if state == "succeeded" else "failure")
    story.write("O", 1, "c", "b").write("A", 1.1, "c").write("L", 1.2, "c")
    for name in ("complete", "success" if state == "succeeded" else "failure"):
        story.run(ledger.callback_id("c", name), 2.6, 2.7)
    inner = {"counts": {one: int(one == state) for one in STATES}}
    child = Story()
    child.states, child.known = {"x9": state}, inner
    story.states["c"] = expected
    known = [{"b": story.found(), "c": child.found()}]
    wrong = "batch c: 1 jobs that nobody has published (x9)"  # the job in the nested batch
    found = [text for text in story.judged(*known).findings if text != wrong and "x9" not in text]
    assert [] == found
    story.states["c"] = "failed" if expected != "failed" else "error"
    known = [{"b": story.found(), "c": child.found()}]
    assert any(f"not {expected}" in text for text in story.judged(*known).findings)


def test_where_a_batch_is(story):
    """A batch must be at exactly one broker, and its opening must be recorded."""
    story.ran().said("success", "complete")
    assert ["batch b: was opened, and is nowhere"] == story.judged({}).findings
    twice = story.judged({"b": story.found()}, {"b": story.found("second broker: ")})
    assert ["batch b: is at 2 brokers"] == twice.findings
    more = story.judged({"b": story.found(), "z": story.found()})
    assert ["batch z: is there, and nobody has opened it"] == more.findings


def test_what_is_looked_at_is_what_the_broker_has(redis_url, redis_server):
    """The view of a real batch has its jobs, counters and reasons; all its keys are explained."""
    with Batch("chaos", id="b", url=redis_url) as batch:
        store = batch._connected()
        store.batches.change("b", [Change("enter", job, "waiting") for job in ("i1", "n2")])
        store.batches.change("b", [Change("begin", job, token=1) for job in ("i1", "n2")])
        ends = [Change("end", "i1", "succeeded"), Change("end", "n2", "failed", text="no")]
        store.batches.change("b", ends)
    with Inspector(redis_url) as inspector:
        found = batch_book.look(inspector, "", ["b", "nowhere"])
    assert ["b"] == list(found)
    assert {"i1": "succeeded", "n2": "failed"} == found["b"].jobs
    assert ({"n2": "no"}, 2, True) == (found["b"].reasons, found["b"].total, found["b"].ended)
    with redis_server.client() as client:
        assert [] == unexplained(client)
        client.hset("reliq:batch:{gone}:jobs", "i1", "s|0|0|0|||")
        assert ["reliq:batch:{gone}:jobs: of a batch that is not listed (hash)"] == [
            text for text in unexplained(client) if "gone" in text
        ]
