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


def test_mingle_carries_revoked_tasks(site):
    """A worker that starts learns from its neighbours which tasks are revoked."""
    first = site.worker(pool="solo")
    site.app.control.revoke("no-such-task")
    inspect = site.app.control.inspect([first.name], timeout=5)
    wait_until(lambda: inspect.revoked()[first.name], what="the revocation")
    second = site.worker(pool="solo", mingle=True)
    inspect = site.app.control.inspect([second.name], timeout=5)
    assert inspect.revoked() == {second.name: ["no-such-task"]}


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_remote_shutdown_ends_the_worker(site, pool):
    """`control shutdown` ends a worker in good order."""
    worker = site.worker(pool=pool)
    site.journal.wait_finished(site.send("record").id)
    site.app.control.shutdown()
    assert worker.wait() == 0
    site.settled()


def test_broadcast_reaches_every_worker(site):
    """Every one of three workers answers one broadcast ping."""
    workers = [site.worker(pool="solo", ready=False) for _ in range(3)]
    for worker in workers:
        worker.wait_ready()
    replies = site.app.control.ping(timeout=10, limit=3)
    assert sorted(name for reply in replies for name in reply) == [w.name for w in workers]


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


def test_command_line_alone_chooses_the_broker(site):
    """`celery -b URL` works with an application that never heard of the transport."""
    arguments = ["-b", site.broker]
    site.worker(app=PLAIN_APP, broker=None, celery_arguments=arguments)
    command = [sys.executable, "-m", "celery", "-A", PLAIN_APP, *arguments, "call", "plain.note"]
    environment = app_environment(None, site.journal)
    called = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    site.journal.wait_finished(called.stdout.strip())
    command[-2:] = ["status"]
    status = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    assert "1 node online" in status.stdout
    site.settled()


def test_what_a_child_was_handed_before_a_connection_was_lost_runs_once(fresh_redis, site_factory):
    """Celery forgets it then, since a broker would deliver it again; here the lease is kept."""
    site = site_factory(fresh_redis, **LATE)
    worker = site.worker(pool="prefork", concurrency=1)
    site.journal.wait_finished(site.send("record").id)
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text(encoding="ascii")
    (child,) = map(int, children.split())
    os.kill(child, signal.SIGSTOP)
    task = site.send("record").id
    worker.wait_log(f"[{task}] received")
    site.server.client().client_kill_filter(_type="normal", skipme=True)
    worker.wait_log("Connected to", times=2)
    os.kill(child, signal.SIGCONT)
    site.journal.wait_finished(task)
    site.settled()
    assert 1 == site.journal.runs(task)
