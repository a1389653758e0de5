"""SIGKILL at each point between two steps of a batch: it is counted right, and said once."""

from __future__ import annotations

import sys

import pytest

from reliq.admin import Inspector
from reliq.batches import Batch
from tests.support.processes import Process
from tests.support.servers import RedisServer
from tests.support.site import CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import ROOT, app_environment

APP = "tests.integration.apps.killed"
ENDS_S = 60
JOBS = 5
"""As in the app."""
STORE = "reliq.engines.redis"
pytestmark = pytest.mark.slow


class Killing:
    """A site whose processes are killed at a point, and others that go on."""

    def __init__(self, server, scheme, directory):
        self.server = server
        self.site = CelerySite(server, scheme, directory)
        self.mark = directory / "killed"

    def env(self, point=""):
        """Return what lets a process kill itself at *point*."""
        return {"RELIQ_TEST_KILL": point, "RELIQ_TEST_KILLED": str(self.mark)}

    def worker(self, point="", **options):
        """Start a worker; it is killed at *point*."""
        return self.site.worker(
            app=APP, env=self.env(point), concurrency=2, ready=not point, **options
        )

    def producer(self, task="end_late", how="succeed", point=""):
        """Publish the batch in a process of its own, and wait for its end."""
        command = [sys.executable, "-m", APP, "b", task, how]
        environment = app_environment(
            self.site.broker, self.site.journal, self.site.config, self.env(point)
        )
        log = self.site.directory / "producer.log"
        process = Process(command, log_path=log, env=environment, cwd=ROOT)
        try:
            assert (process.wait(30) == 0) is not bool(point), process.tail()
        finally:
            process.kill_group()

    def was_killed(self):
        """Wait until somebody was."""
        wait_until(self.mark.exists, timeout_s=ENDS_S, what="a process to be killed")

    @property
    def batch(self):
        """The batch."""
        return Batch.get("b", url=self.site.broker, transport_options=self.site.transport_options)

    def ended(self):
        """Return how many jobs ended how, when the batch has ended; each is in one state."""
        batch = self.batch
        try:
            status = batch.wait(ENDS_S)
            jobs = [job for part in batch._connected().batches.jobs("b") for job in part]
        finally:
            batch.close()
        assert status.total == len(jobs)
        return {state: n for state, n in status.counts.items() if n}

    def said(self, *expected):
        """Wait for the callbacks that are expected: there are no others, and each comes once."""

        def heard():
            every = self.site.journal.entries(key="b")
            return sorted(entry.event.removeprefix("callback-") for entry in every)

        wait_until(lambda: set(expected) <= set(heard()), timeout_s=ENDS_S, what=f"{expected}")
        with Inspector(self.site.broker) as inspector:  # nothing is under way any more
            wait_until(lambda: inspector.status("celery").stored == 0, timeout_s=ENDS_S)
        assert sorted(expected) == heard()


@pytest.fixture
def killing(scheme, tmp_path):
    """Return a site with a Redis that writes to its disk."""
    server = RedisServer(appendonly=True)
    found = Killing(server.start(), scheme, tmp_path)
    yield found
    found.site.close()
    server.destroy()


@pytest.mark.parametrize(
    ("point", "jobs"),
    [
        ("reliq.transports.publishing:enter:before:3:", {"succeeded": 2}),
        (f"{STORE}.batches:RedisBatches.change:after:3:", {"succeeded": 2, "error": 1}),
        (f"{STORE}.publishing:RedisPublishing.publish:after:3:", {"succeeded": 3}),
        ("reliq.batches.batch:Batch.seal:before:1:", {"succeeded": JOBS}),
    ],
    ids=["before it is entered", "entered", "stored", "not sealed"],
)
def test_a_producer_that_is_killed(killing, point, jobs):
    """What it has not stored is found and ends; the batch is sealed for it."""
    killing.producer(point=point)
    killing.worker()
    assert jobs == killing.ended()
    killing.said(*({"failure", "complete"} if "error" in jobs else {"success", "complete"}))


@pytest.mark.parametrize(
    "point",
    [
        "reliq.integrations.job_runs:_begun:before:2:child",
        "reliq.integrations.job_runs:_begun:after:2:child",
    ],
    ids=["before it begins", "begun"],
)
def test_a_child_that_is_killed(killing, point):
    """Its job is delivered again."""
    killing.producer("end_late_requeued")
    killing.worker(point)
    killing.was_killed()
    assert {"succeeded": JOBS} == killing.ended()
    killing.said("success", "complete")


@pytest.mark.parametrize(
    "point",
    [
        "reliq.consumer.job_reports:JobReports.report:before:2:parent",
        "reliq.consumer.job_reports:JobReports._post:after:2:parent",
        "reliq.consumer.job_reports:JobReports._done:before:2:parent",
        "reliq.consumer.job_reports:JobReports._done:after:2:parent",
        "reliq.consumer.batch_passes:BatchPasses.soon:before:1:parent",
    ],
    ids=["not reported", "sent", "before the ack", "after the ack", "before it looks"],
)
@pytest.mark.parametrize("how", ["succeed", "failed"])
def test_a_worker_that_is_killed(killing, point, how):
    """Between the outcome and the ack: the next one has the job again, and it counts once."""
    killing.producer(how=how)
    killing.worker(point)
    killing.was_killed()
    killing.worker()
    state = "succeeded" if how == "succeed" else "failed"
    assert {state: JOBS} == killing.ended()
    killing.said("complete", "success" if how == "succeed" else "failure")


def test_a_worker_that_is_killed_with_acknowledged_jobs(killing):
    """Their messages are gone: they end when nobody hears of the worker any more."""
    killing.producer("end_early", "sleep")
    worker = killing.worker()
    batch = killing.batch
    wait_until(lambda: batch.status().counts["working"] == 2, what="jobs to begin")
    batch.cancel()
    worker.kill_group()
    killing.worker()
    assert {"cancelled": JOBS - 2, "error": 2} == killing.ended()
    assert {"lost"} == {one.reason.rsplit(" ", 1)[-1] for one in batch.status().failures}
    batch.close()
    killing.said("complete", "failure")


@pytest.mark.parametrize(
    "point",
    [
        "reliq.transfer.batch_callbacks:_published:before:1:",
        "reliq.transfer.batch_callbacks:_published:after:1:",
        f"{STORE}.batches:RedisBatches.said:after:1:",
        "reliq.transfer.batch_callbacks:_published:after:2:",
    ],
    ids=["before it is published", "published", "noted", "the second"],
)
def test_who_publishes_a_callback_is_killed(killing, point):
    """It comes, and once."""
    killing.producer()
    killing.worker(point)
    killing.was_killed()
    killing.worker()
    assert {"succeeded": JOBS} == killing.ended()
    killing.said("success", "complete")


@pytest.mark.parametrize(
    "point",
    [
        "reliq.consumer.job_events:_told:before:1:parent",
        f"{STORE}.job_events:RedisJobEvents.forget_job_events:before:1:parent",
        f"{STORE}.job_events:RedisJobEvents.forget_job_events:after:1:parent",
    ],
    ids=["not told", "told", "forgotten"],
)
def test_who_tells_of_a_purge_is_killed(killing, point):
    """The next one does, or does it again."""
    killing.producer()
    with Inspector(killing.site.broker) as inspector:
        assert inspector.purge("celery") == JOBS
    killing.worker(point)
    killing.was_killed()
    killing.worker()
    assert {"error": JOBS} == killing.ended()
    batch = killing.batch
    assert {"purged from its queue"} == {one.reason for one in batch.status().failures}
    batch.close()
    killing.said("failure", "complete")


def test_a_broker_that_is_killed(killing):
    """With all that is under way; what it had stored is there again."""
    killing.producer(how="retry later")
    killing.worker()
    for _ in range(3):
        wait_until(lambda: killing.site.journal.entries("started"), what="jobs to begin")
        killing.server.kill()
        killing.server.restart()
    assert {"succeeded": JOBS} == killing.ended()
    killing.said("success", "complete")
