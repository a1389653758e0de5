"""Workers that know each other, beat, remote shutdown, and the command line alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.support.workers import app_environment

LATE = {"task_acks_late": True, "task_ignore_result": True}
PLAIN_APP = "tests.integration.apps.plain"


@pytest.mark.slow
def test_workers_meet_in_mingle_and_gossip(site):
    """A second worker syncs with the first, and each sees the other join and leave."""
    first = site.worker(pool="solo", loglevel="DEBUG", mingle=True)
    second = site.worker(pool="solo", loglevel="DEBUG", mingle=True)
    second.wait_log("mingle: sync with 1 nodes")
    second.wait_log("mingle: sync complete")
    first.wait_log(f"{second.name} joined the party")
    second.wait_log(f"{first.name} joined the party")
    assert second.shut_down() == 0
    first.wait_log(f"{second.name} left")
    first.shut_down()


@pytest.mark.slow
def test_mingle_carries_revoked_tasks(site):
    """A worker that starts learns from its neighbours which tasks are revoked."""
    first = site.worker(pool="solo")
    site.app.control.revoke("no-such-task")
    inspect = site.app.control.inspect([first.name], timeout=5)
    wait_until(lambda: inspect.revoked()[first.name], what="the revocation")
    second = site.worker(pool="solo", mingle=True)
    inspect = site.app.control.inspect([second.name], timeout=5)
    assert inspect.revoked() == {second.name: ["no-such-task"]}


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_remote_shutdown_ends_the_worker(site, pool):
    """`control shutdown` ends a worker in good order."""
    worker = site.worker(pool=pool)
    site.journal.wait_finished(site.send("record").id)
    site.app.control.shutdown()
    assert worker.wait() == 0
    site.settled()


@pytest.mark.slow
def test_broadcast_reaches_every_worker(site):
    """Every one of three workers answers one broadcast ping."""
    workers = [site.worker(pool="solo", ready=False) for _ in range(3)]
    for worker in workers:
        worker.wait_ready()
    replies = site.app.control.ping(timeout=10, limit=3)
    assert sorted(name for reply in replies for name in reply) == [w.name for w in workers]


@pytest.mark.slow
def test_queues_are_added_and_cancelled_remotely(site):
    """A running worker begins and ends to consume from a queue on request."""
    worker = site.worker(pool="threads")
    control = site.app.control
    control.add_consumer("extra", destination=[worker.name], reply=True, timeout=5)
    site.journal.wait_finished(site.send("record", queue="extra").id)
    control.cancel_consumer("extra", destination=[worker.name], reply=True, timeout=5)
    left = site.send("record", queue="extra").id
    site.journal.wait_finished(site.send("record").id)
    assert site.journal.runs(left) == 0
    site.settled("extra", ready=1)


@pytest.mark.slow
def test_beat_schedules(site):
    """A real beat process sends its entry every second, and each runs once."""
    schedule = {"often": {"task": "record", "schedule": 0.5}}
    site.worker(pool="solo")
    beat = site.beat(config={"beat_schedule": schedule, "beat_max_loop_interval": 1})
    wait_until(lambda: len(site.journal.finished()) >= 3, what="three scheduled tasks")
    beat.signal(15)
    assert beat.wait() == 0
    site.settled()
    assert max(site.journal.started().values()) == 1
    assert beat.log().count("Sending due task often") == len(site.journal.started())


@pytest.mark.slow
def test_command_line_alone_chooses_the_broker(site):
    """`celery -b URL` works with an application that never heard of the transport."""
    arguments = ["-b", site.broker]
    site.worker(app=PLAIN_APP, broker=None, celery_arguments=arguments)
    command = [sys.executable, "-m", "celery", "-A", PLAIN_APP, *arguments, "call", "plain.note"]
    environment = app_environment(None, site.journal)
    called = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    site.journal.wait_finished(called.stdout.strip())
    command[-2:] = ["status"]
    status = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert "1 node online" in status.stdout
    site.settled()


def children_of(worker):
    """Return the pids of the children of a worker's main process, on Linux."""
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text(encoding="ascii")
    return list(map(int, children.split()))


def state_of(pid):
    """Return the letter that stands for what a process does, on Linux: T when it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0]


def test_what_a_child_was_handed_before_a_connection_was_lost_runs_once(fresh_redis, site_factory):
    """Celery forgets it then, since a broker would deliver it again; here the lease is kept."""
    site = site_factory(fresh_redis, **LATE)
    worker = site.worker(pool="prefork", concurrency=1)
    site.journal.wait_finished(site.send("record").id)
    (child,) = children_of(worker)
    os.kill(child, signal.SIGSTOP)
    task = site.send("record").id
    worker.wait_log(f"[{task}] received")
    site.server.client().client_kill_filter(_type="normal", skipme=True)
    worker.wait_log("Connected to", times=2)
    os.kill(child, signal.SIGCONT)
    site.journal.wait_finished(task)
    site.settled()
    assert 1 == site.journal.runs(task)


def test_what_a_child_was_being_handed_when_the_connection_was_lost_runs_once(
    fresh_redis, site_factory
):
    """Half of it was in the pipe: the other half follows, and the child goes on with the next."""
    site = site_factory(fresh_redis, **LATE)
    worker = site.worker(pool="prefork", concurrency=1)
    site.journal.wait_finished(site.send("record").id)
    (child,) = children_of(worker)
    os.kill(child, signal.SIGSTOP)
    # More than the pipe holds.
    long = site.send("record", headers={"ballast": "x" * 500_000}).id
    worker.wait_log(f"[{long}] received")
    site.server.client().client_kill_filter(_type="normal", skipme=True)
    worker.wait_log("Connection to broker lost")
    os.kill(child, signal.SIGCONT)
    site.journal.wait_finished(long)
    after = site.send("record").id
    site.journal.wait_finished(after)
    site.settled()
    assert {long: 1, after: 1} == {task: site.journal.runs(task) for task in (long, after)}


def stopped_in_its_answer(site):
    """Return a worker, its child that is stopped with half a result written, and the task."""
    worker = site.worker(pool="prefork", concurrency=1)
    site.journal.wait_finished(site.send("record").id)
    (child,) = children_of(worker)
    half = site.send("stop_in_answer").id
    wait_until(lambda: state_of(child) == "T", what="a child stopped in the midst of its result")
    return worker, child, half


@pytest.mark.slow
def test_a_result_that_was_half_read_when_the_connection_was_lost_is_read_to_its_end(
    fresh_redis, site_factory
):
    """Celery's new event loop takes what follows for the next result, and never hears of the child.

    Its task would never be acked, and its place in the pool would stay empty.
    """
    site = site_factory(fresh_redis, **LATE)
    worker, child, half = stopped_in_its_answer(site)
    for times in (2, 3):  # the second time, what was kept over the first is kept again
        site.server.client().client_kill_filter(_type="normal", skipme=True)
        worker.wait_log("Connected to", times=times)
    os.kill(child, signal.SIGCONT)
    worker.wait_log(f"[{half}] succeeded")
    after = site.send("record").id
    site.journal.wait_finished(after)
    site.settled()
    assert {half: 1, after: 1} == {task: site.journal.runs(task) for task in (half, after)}
    assert worker.shut_down() == 0


@pytest.mark.slow
def test_a_worker_ends_with_a_result_that_was_half_read_when_the_connection_was_lost(
    fresh_redis, site_factory
):
    """It was asked to before it was connected again: no new loop reads the rest."""
    site = site_factory(fresh_redis, **LATE)
    worker, child, half = stopped_in_its_answer(site)
    fresh_redis.freeze()
    worker.wait_log("Connection to broker lost")
    worker.terminate()
    worker.wait_log("Warm shutdown")
    os.kill(child, signal.SIGCONT)
    fresh_redis.thaw()
    assert worker.wait() == 0
    assert "UnpicklingError" not in worker.log()
    site.settled()
    assert 1 == site.journal.runs(half)


@pytest.mark.slow
def test_children_that_die_as_the_connection_is_lost(fresh_redis, site_factory):
    """The worker replaces them and goes on; a child that is not yet gone is waited for."""
    site = site_factory(fresh_redis, **LATE)
    worker = site.worker(pool="prefork", concurrency=2)
    client = site.server.client()
    for _ in range(8):
        for child in children_of(worker):
            os.kill(child, signal.SIGKILL)
        client.client_kill_filter(_type="normal", skipme=True)
        site.journal.wait_finished(site.send("record").id)
    assert worker.running
    site.settled()
