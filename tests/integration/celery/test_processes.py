"""Workers that know each other, beat, remote shutdown, and a broker from the command line."""

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
    """`control shutdown` ends a worker with exit status 0."""
    worker = site.worker(pool=pool)
    site.journal.wait_finished(site.send("record").id)
    site.app.control.shutdown()
    assert worker.wait() == 0
    site.settled()


@pytest.mark.slow
def test_broadcast_reaches_every_worker(site):
    """Each of three workers answers one broadcast ping."""
    workers = [site.worker(pool="solo", ready=False) for _ in range(3)]
    for worker in workers:
        worker.wait_ready()
    replies = site.app.control.ping(timeout=10, limit=3)
    assert sorted(name for reply in replies for name in reply) == [w.name for w in workers]


@pytest.mark.slow
def test_queues_are_added_and_cancelled_remotely(site):
    """A running worker starts and stops consuming from a queue on request."""
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
    """A real beat process sends its entry repeatedly, and each task runs once."""
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
    """`celery -b URL` works with an application that does not mention the transport."""
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
    """Return the letter of the state of a process, on Linux: T when it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0]


def test_what_a_child_was_handed_before_a_connection_was_lost_runs_once(fresh_redis, site_factory):
    """A task that waits in a child's pipe when the connection is lost runs once.

    Celery forgets it, since a broker would deliver it again; here the lease is kept.
    """
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
    """A task of which half is in the pipe is completed, and the child goes on with the next."""
    site = site_factory(fresh_redis, **LATE)
    worker = site.worker(pool="prefork", concurrency=1)
    site.journal.wait_finished(site.send("record").id)
    (child,) = children_of(worker)
    os.kill(child, signal.SIGSTOP)
    # More than the pipe can hold.
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
    """Return a worker, its child that stopped with half a result written, and the task."""
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
    """A result that is half read when the connection is lost is read to its end.

    Celery's new event loop takes the rest for the next result, and never hears of the child. Its
    task would never be acked, and its place in the pool would stay empty.
    """
    site = site_factory(fresh_redis, **LATE)
    worker, child, half = stopped_in_its_answer(site)
    for times in (2, 3):  # the second time, the data kept over the first is kept again
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
    """A worker that is terminated before it reconnects ends, though no new loop reads the rest."""
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
    """A worker replaces children that die with the connection, and waits for those not yet gone."""
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
