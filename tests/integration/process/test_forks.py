"""Forks with and without Python's hooks, during any operation, and in quick succession."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress

import pytest
from kombu import Connection, Consumer, Queue

from reliq.admin import Inspector
from reliq.spool.journal import JOURNALS
from tests.integration.apps.forks import SLOWER
from tests.support.audits import assert_balanced
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

COMMAND = [sys.executable, "-m", "tests.integration.apps.forks"]


@pytest.fixture
def started():
    """Return a function that starts one of the processes; the end of the test kills them."""
    processes = []

    def begin(*arguments):
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def run(*arguments):
    """Run one of the processes to its end; return its output."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


def ledger(url):
    """Return the ledger of the queue."""
    with Inspector(url) as inspector:
        return inspector.status("q").ledger


def stored(url):
    """Return the number of messages ever stored in the queue."""
    return ledger(url)["published"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("used", "how"),
    [("connected", "exit"), ("published", "release"), ("holding", "_exit"), ("holding", "exit")],
)
@pytest.mark.parametrize("fork", ["in C", "in Python"])
def test_every_publish_of_parent_and_children_is_stored(url, fork, used, how):
    """Publishes of a parent and its children are all stored, and the parent keeps its lease."""
    run("siblings", url, fork, used, how)
    assert 4 * 25 + 25 + 1 + (used != "connected") == stored(url)
    with Inspector(url) as inspector:
        status = inspector.status("q")
    assert (0, int(used == "holding")) == (status.unacked, status.ledger.get("acked", 0))
    assert 0 == status.ledger.get("redelivered", 0)


def test_children_make_other_tags():
    """Children of a process that has only imported the package make different delivery tags."""
    tags = run("tags").split()
    assert (5 * 500, 5) == (len(set(tags)), len({tag[14:24] for tag in tags}))


@pytest.mark.slow
def test_a_busy_thread_blocks_no_child(url):
    """A busy thread of the parent blocks no publish of a child or of the parent."""
    assert int(run("busy", url)) == stored(url)


def test_locks_of_threads_that_are_not_there(url, redis_server, started):
    """A child of a fork without hooks does not wait for a thread of its parent."""
    process = started("waiting", url)
    assert "ready\n" == process.stdout.readline()
    redis_server.freeze()
    try:
        process.stdin.write("\n")
        process.stdin.flush()
        assert "forked\n" == process.stdout.readline()
    finally:
        redis_server.thaw()
    code, _ = process.communicate(timeout=40)
    assert (0, 2) == (int(code), stored(url))


@pytest.mark.slow
def test_children_outlive_their_parent(url):
    """Messages of children are stored after their parent has closed its connection and ended."""
    run("orphaned", url)
    wait_until(lambda: stored(url) == 1 + 2 + 30, timeout_s=20)


def test_a_copy_of_a_process_image_begins_anew(url):
    """A copied process image publishes under its own name, and neither acks nor returns leases."""
    run("image", url)
    with Inspector(url) as inspector:
        status = inspector.status("q")
    assert (6, 5, 1) == (status.ledger["published"], status.ready, status.unacked)


def test_a_claim_stays_the_parents(url):
    """A child that leaves the claim's block neither finishes nor abandons the claim."""
    run("claims", url)


@pytest.mark.slow
@pytest.mark.parametrize("every_s", ["0.3", "0.01"])
def test_forks_that_follow_each_other_do_not_end_renewal(url, started, every_s):
    """A process that forks more often than it renews keeps its lease for many times its length."""
    with Connection(url, transport_options=SLOWER) as connection:
        connection.default_channel.queue_declare("q")
        connection.Producer().publish("x", routing_key="q")
        process = started("often", url, every_s)
        assert "holding\n" == process.stdout.readline()
        got = []
        with Consumer(connection, Queue("q"), on_message=got.append):  # it ends expired leases
            while process.poll() is None:
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.2)
    assert ([], 0) == (got, process.returncode)
    assert 1 == ledger(url)["acked"]


@pytest.mark.slow
@pytest.mark.parametrize("every_s", ["0.3", "0.01"])
def test_forks_that_follow_each_other_do_not_keep_a_spool(
    redis_factory, tmp_path, started, every_s
):
    """A process that forks constantly still finds its primary broker, and forwards its spool."""
    server, path = redis_factory(), tmp_path / "spool.db"
    home = server.url("reliq")
    server.kill()
    process = started("spooled", f"{home};reliq-spool:///{path}", every_s)
    assert "spooled\n" == process.stdout.readline()
    server.start()
    wait_until(lambda: 0 == JOURNALS.at(str(path)).status()["publishes"], timeout_s=30)
    assert 50 == stored(home)
    process.communicate("", timeout=20)
    assert_balanced(home)


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.long])]
)
def test_forks_among_threads_that_publish(url, seconds):
    """Forks during publishes of threads and ticks of background loops cause no wait and no loss."""
    forks, count = json.loads(run("storm", url, str(seconds)))
    assert count == stored(url)
    assert forks > seconds  # a fork that waits for a lost lock would take five
