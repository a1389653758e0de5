"""Middleware around the tasks of real workers, in every pool."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
from celery.exceptions import Reject, TaskRevokedError

from reliq import Batch
from reliq.admin import Inspector
from tests.support.servers import RedisServer
from tests.support.site import CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import POOLS

from ..test_readme import ROOT, blocks

APP = "tests.integration.apps.middled"
RESULT_S = 20
# Leaves a row in a transaction that is still open.
DATABASE_TASK = """
@app.task
def write():
    connection = database()
    connection.execute("CREATE TABLE IF NOT EXISTS rows (number)")
    connection.execute("INSERT INTO rows VALUES (1)")
    (rows,) = connection.execute("SELECT count(*) FROM rows").fetchone()
    print(f"rows: {rows}, of {tenant.get()}")
"""
EARLY_LATE = pytest.mark.parametrize("task", ["record", "record_late"])


class Middled:
    """A site with one worker whose app has the middleware a and b."""

    def __init__(self, site, worker):
        self.site, self.worker = site, worker
        self.journal = site.journal

    def send(self, task, *args, where=None, **options):
        """Publish a task; *where* names the middleware and the exception that it is to raise."""
        return self.site.send(task, *args, headers={"break": where}, **options)

    def events(self, task_id):
        """Return the recorded events of a task, in order."""
        return [entry.event for entry in self.journal.entries(key=task_id)]

    def ended(self, task_id, times=2):
        """Wait until *times* ends of a task are recorded; return all of them."""
        ends = []

        def found():
            ends[:] = [event for event in self.events(task_id) if event.startswith("end-")]
            return len(ends) >= times

        wait_until(found, timeout_s=RESULT_S, what=lambda: f"{self.events(task_id)}")
        return ends

    def dead_letters(self):
        """Return (task id, reason, error) of the dead letters, and remove them."""
        options = self.site.transport_options
        with Inspector(self.site.broker, transport_options=options) as inspector:
            found = inspector.dead_letters("celery")
            inspector.purge_dead_letters("celery")
        return [(letter.id, letter.reason, letter.error) for letter in found]


@pytest.fixture(scope="module", params=POOLS)
def pool(request, scheme, tmp_path_factory):
    """Return a site with one running worker of the pool."""
    with ExitStack() as stack:
        server = RedisServer()
        stack.callback(server.destroy)
        site = CelerySite(server.start(), scheme, tmp_path_factory.mktemp(request.param))
        stack.callback(site.close)
        worker = site.worker(app=APP, pool=request.param, concurrency=2)
        yield Middled(site, worker)


@pytest.fixture
def middled(pool):
    """Return the site; at the end, check that the test left nothing behind in the queue."""
    yield pool
    pool.site.settled()


# -- the order


@pytest.mark.slow
@EARLY_LATE
def test_the_chain_runs_in_order_and_ends_in_reverse(middled, task):
    """All of deliver, all of begin and the task run in order; end runs from last to first."""
    result = middled.send(task)
    assert result.get(timeout=RESULT_S) == result.id
    ends = middled.ended(result.id)
    expected = ["deliver-a", "deliver-b", "begin-a", "begin-b", "started", "finished"]
    assert [*expected, *ends] == middled.events(result.id)
    outcome = f"SUCCESS:NoneType:{result.id}"
    assert [f"end-b:{outcome}", f"end-a:{outcome}"] == ends


def test_what_a_task_publishes_passes_the_chain_too(middled):
    """A task's own publish passes the chain in its process; the worker sees the added headers."""
    published = middled.send("publishes").get(timeout=RESULT_S)
    middled.ended(published)
    assert ["publish-a", "publish-b", "deliver-a"] == middled.events(published)[:3]


def test_the_next_task_of_a_chain_is_published_before_the_end(middled):
    """The next task of a chain is published before end, so the context of begin still applies."""
    first, then = middled.site.app.signature("total"), middled.site.app.signature("add")
    result = (first.clone(([1, 2],)) | then.clone((4,))).apply_async()
    assert 7 == result.get(timeout=RESULT_S)
    (ended,) = middled.journal.entries(middled.ended(result.parent.id)[0], result.parent.id)
    (published,) = middled.journal.entries("publish-b", result.id)
    assert published.at <= ended.at


# -- deliver


@EARLY_LATE
def test_deliver_ignores(middled, task):
    """An Ignore in deliver removes the message; neither the task nor the rest of the chain runs."""
    ids = [middled.send(task, where="deliver-a:Ignore").id for _ in range(5)]
    middled.site.settled()
    assert [["deliver-a"]] * 5 == [middled.events(task_id) for task_id in ids]
    assert middled.send(task).get(timeout=RESULT_S)  # no place in the pool is lost


@EARLY_LATE
@pytest.mark.parametrize("where", ["deliver-a", "begin-a"])
def test_a_job_that_is_ignored_has_succeeded(middled, task, where):
    """A job that is ignored in deliver or begin has succeeded, as if its task had raised Ignore."""
    with Batch("ignored", url=middled.site.broker) as batch:
        middled.send(task, where=f"{where}:Ignore")
    status = batch.wait(RESULT_S)
    assert (1, []) == (status.counts["succeeded"], status.failures)
    batch.close()


@EARLY_LATE
@pytest.mark.parametrize(
    ("asked", "raised", "error"),
    [
        ("Reject", Reject, "not this one"),
        ("NoReason", Reject, "without a reason"),
        ("ValueError", ValueError, "ValueError: as told"),
        ("OSError", OSError, "OSError: as told"),
        ("SystemExit", SystemExit, "SystemExit: as told"),
    ],
)
def test_deliver_refuses_for_good(middled, task, asked, raised, error):
    """A message that deliver refuses is a dead letter; its error is the result of the task."""
    results = [middled.send(task, where=f"deliver-b:{asked}") for _ in range(3)]
    for result in results:
        with pytest.raises(raised):
            result.get(timeout=RESULT_S)
        assert ["deliver-a", "deliver-b"] == middled.events(result.id)
    middled.site.settled(dead=3)
    expected = {(result.id, "rejected", error) for result in results}
    assert expected == set(middled.dead_letters())
    assert middled.send(task).get(timeout=RESULT_S)


@EARLY_LATE
def test_deliver_gives_back(middled, task):
    """A message that deliver requeues is redelivered, and counts as a failed delivery."""
    result = middled.send(task, where="deliver-b:Requeue")
    assert result.get(timeout=RESULT_S) == result.id
    asked = ["deliver-a", "deliver-b"] * 2
    assert [*asked, "begin-a"] == middled.events(result.id)[:5]


@pytest.mark.parametrize("pool", ["prefork"], indirect=True)
def test_a_task_that_is_revoked_while_it_waits_is_not_delivered(middled, tmp_path):
    """Deliver is called only with a place in the pool, so not for a task that is revoked before."""
    path = tmp_path / "go-on"
    busy = [middled.send("record_until", str(path)) for _ in range(2)]
    for result in busy:
        middled.journal.wait_started(result.id)
    result = middled.send("record")
    middled.worker.wait_log(f"[{result.id}] received")
    app = middled.site.app
    inspect = app.control.inspect([middled.worker.name], timeout=5)
    app.control.revoke(result.id)
    wait_until(lambda: result.id in str(inspect.revoked()), what="the worker to know it")
    path.touch()
    middled.site.settled()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=RESULT_S)
    assert [] == middled.events(result.id)


# -- begin


@EARLY_LATE
def test_begin_raises(middled, task):
    """An exception in begin fails the task before its code runs; middleware that had begun ends."""
    result = middled.send(task, where="begin-b:ValueError")
    with pytest.raises(ValueError, match="as told"):
        result.get(timeout=RESULT_S)
    (ended,) = middled.ended(result.id, 1)
    assert "end-a:FAILURE:ValueError:None" == ended
    expected = ["deliver-a", "deliver-b", "begin-a", "begin-b", ended]
    assert expected == middled.events(result.id)


@pytest.mark.parametrize(
    ("asked", "task", "state"),
    [
        ("Retry", "record", "RETRY:Retry"),
        ("Retry", "record_late", "RETRY:Retry"),
        ("ConnectionError", "autoretried", "RETRY:Retry"),
    ],
)
def test_begin_has_the_task_tried_again(middled, asked, task, state):
    """A task is retried if begin raises Retry, or an error of the task's autoretry."""
    result = middled.send(task, where=f"begin-b:{asked}")
    assert result.get(timeout=RESULT_S) in {result.id, 1}
    # In any order: the retry is published, and may run elsewhere, before the run ends.
    ends = middled.ended(result.id, 3)
    assert f"end-a:{state}:None" in ends
    assert {"end-b:SUCCESS", "end-a:SUCCESS"} < {":".join(end.split(":")[:2]) for end in ends}
    assert 1 == middled.journal.runs(result.id)


def test_begin_ignores(middled):
    """An Ignore in begin acts as one that the task raises."""
    result = middled.send("record_late", where="begin-b:Ignore")
    assert ["end-a:IGNORED:Ignore:None"] == middled.ended(result.id, 1)


def test_begin_rejects(middled):
    """A Reject in begin acts as a late-acked task's own; an early-acked message is gone by then."""
    result = middled.send("record_late", where="begin-b:Reject")
    assert ["end-a:REJECTED:Reject:None"] == middled.ended(result.id, 1)
    middled.site.settled(dead=1)
    assert [result.id] == [letter[0] for letter in middled.dead_letters()]


# -- end


@EARLY_LATE
def test_end_raises(middled, task):
    """An exception in end is logged; the other middleware ends, and the task has succeeded."""
    result = middled.send(task, where="end-b:ValueError")
    assert result.get(timeout=RESULT_S) == result.id
    assert 2 == len(middled.ended(result.id))
    middled.worker.wait_log(f"the middleware's end raised for task {task}[{result.id}]")


@pytest.mark.parametrize(
    ("task", "outcome"),
    [
        ("add", "SUCCESS:NoneType:5"),
        ("explode", "FAILURE:ValueError:None"),
        ("ignored", "IGNORED:Ignore:None"),
        ("rejected", "REJECTED:Reject:None"),
        ("leave", "FAILURE:SystemExit:None"),
    ],
)
def test_end_hears_the_outcome(middled, task, outcome):
    """Each end receives the outcome: success, failure, ignore, reject or exit."""
    result = middled.send(task, *((2, 3) if task == "add" else ()))
    assert [f"end-b:{outcome}", f"end-a:{outcome}"] == middled.ended(result.id)
    if task == "rejected":
        middled.site.settled(dead=1)
        assert [result.id] == [letter[0] for letter in middled.dead_letters()]
    assert middled.send("record").get(timeout=RESULT_S)


def test_end_hears_of_a_retry(middled):
    """Each run of a retried task has its begin and its end."""
    result = middled.send("fail_first", 1)
    assert 1 == result.get(timeout=RESULT_S)
    expected = [f"end-{name}:RETRY:Retry:None" for name in "ba"]
    expected += [f"end-{name}:SUCCESS:NoneType:1" for name in "ba"]
    assert sorted(expected) == sorted(middled.ended(result.id, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "task", "options", "error"),
    [
        ("prefork", "overstay", {}, "SoftTimeLimitExceeded"),
        ("gevent", "record", {"time_limit": 0.3}, "Timeout"),
    ],
    indirect=["pool"],
)
def test_a_time_limit(middled, task, options, error):
    """A time limit ends the task, and each end receives its error."""
    result = middled.send(task, *((30,) if options else ()), **options)
    outcome = f"FAILURE:{error}:None"
    assert [f"end-b:{outcome}", f"end-a:{outcome}"] == middled.ended(result.id)


def test_a_task_with_a_call_of_its_own(middled):
    """A task with its own __call__ is called once, after begin and before end."""
    result = middled.send("called")
    assert result.get(timeout=RESULT_S) == result.id
    assert 2 == len(middled.ended(result.id))
    expected = ["deliver-a", "deliver-b", "begin-a", "begin-b", "called", "finished"]
    assert expected == middled.events(result.id)[:6]
    assert 8 == len(middled.events(result.id))


def test_a_task_with_requests_of_its_own(middled):
    """A task with its own request class passes the chain, and its requests behave as before."""
    result = middled.send("noted")
    assert result.get(timeout=RESULT_S) == result.id
    assert 2 == len(middled.ended(result.id))
    assert {"deliver-a", "deliver-b", "accepted"} < set(middled.events(result.id))


# -- others


@pytest.mark.slow
def test_children_that_are_spawned_have_the_middleware(site):
    """Spawned children have the middleware, since they get the app as a pickle that includes it."""
    worker = site.worker(app=APP, config={"worker_pool_start_method": "spawn"})
    middled = Middled(site, worker)
    result = middled.send("record")
    assert result.get(timeout=60) == result.id
    assert 2 == len(middled.ended(result.id))
    site.settled()


@pytest.mark.slow
def test_the_examples_of_the_document_do_what_they_say(site):
    """An invoice is published and run only for a tenant; each task has a clean connection."""
    made, cleaned, carried, published = blocks(ROOT / "docs" / "middleware.md", "python")
    made = made.replace("reliq://localhost:6379/0", site.broker)
    module = f"{made}\n{cleaned}\n{carried}\n{DATABASE_TASK}"
    (site.directory / "shop.py").write_text(module)
    worker = site.worker(app="shop", pool="solo")
    publish = f"from shop import *\n{published}\nwrite.delay()\nwrite.delay()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", publish],
        capture_output=True,
        text=True,
        cwd=site.directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert (0, "shop.invoice is published for no tenant\n", "") == (
        done.returncode,
        done.stdout,
        done.stderr,
    )
    worker.wait_log("an invoice for order 7 of acme")
    worker.wait_log("rows: 1, of acme", times=2)  # not 2: the first was not committed
    site.settled()


@pytest.mark.slow
def test_a_child_that_is_killed_ends_nothing(site):
    """A killed child ends no middleware; its redelivered task begins and ends again."""
    worker = site.worker(app=APP, config={"task_reject_on_worker_lost": True})
    middled = Middled(site, worker)
    result = middled.send("die_first")
    result.get(timeout=RESULT_S)
    assert 2 == len(middled.ended(result.id))
    asked = ["deliver-a", "deliver-b", "begin-a", "begin-b", "started"]
    assert [*asked * 2, "finished"] == middled.events(result.id)[:11]
    assert 13 == len(middled.events(result.id))
    site.settled()
