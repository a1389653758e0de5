"""Waking over a file: by a notification alone, since who waits here polls each ten minutes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kombu import Connection

from tests.support.files import FileBroker
from tests.support.site import CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import POOLS, ROOT

# Nobody looks by himself, and no pass makes up for a lost ring, within the test.
ONLY_THE_BELL = {"poll_interval": 600.0, "restore_interval": 600.0, "visibility_timeout": 1800.0}

WAITER = """
import sys, time
from kombu import Connection
import reliq

options = {"poll_interval": 600.0, "restore_interval": 600.0, "visibility_timeout": 1800.0}
with Connection(sys.argv[1], transport_options=options) as connection:
    queue = connection.SimpleQueue("q")
    print("ready", flush=True)
    while True:
        message = queue.get()
        print(message.payload, time.time(), flush=True)
        message.ack()
"""


@pytest.fixture
def file_broker(tmp_path):
    """Return a broker that is a file."""
    return FileBroker(tmp_path)


@pytest.fixture
def waiter(file_broker):
    """Return a function that starts a process that waits for messages, and has begun to."""
    started = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", WAITER, file_broker.url()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
        wait_until(lambda: waiting(file_broker) == len(started), what="a notification for each")
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def waiting(broker):
    """Return how many notifications hang beside the file."""
    return len([name for name in broker.leftovers() if name.endswith(".notification")])


def heard(process):
    """Return the next message that a waiter printed."""
    return process.stdout.readline().split(" ")[0]


def test_a_message_wakes_a_process_that_waits(file_broker, waiter):
    """Each message is heard of when it is stored, though nobody polls."""
    process = waiter()
    with Connection(file_broker.url()) as connection:
        queue = connection.SimpleQueue("q")
        for number in range(20):
            queue.put(number)
            assert str(number) == heard(process)
        queue.close()
    file_broker.assert_sound()


def test_a_delayed_message_wakes_when_it_is_due(file_broker, waiter):
    """Who waits learns of an earlier message, and when it is due, and sleeps no longer."""
    process = waiter()
    with Connection(file_broker.url()) as connection, connection.Producer() as producer:
        before = time.monotonic()
        for name, delay_ms in (("late", 1500), ("soon", 300)):
            producer.publish(name, routing_key="q", exchange="q", headers={"x-delay": delay_ms})
        assert "soon" == heard(process)
        assert time.monotonic() - before >= 0.3
        assert "late" == heard(process)
        assert time.monotonic() - before >= 1.5
    file_broker.assert_sound()


def test_who_is_dead_is_not_waited_for(file_broker, waiter):
    """The ring of one that was killed while it waited goes to the next, at once."""
    dead = [waiter() for _ in range(3)]
    for process in dead:
        process.kill()
        process.wait()
    alive = subprocess.Popen(
        [sys.executable, "-c", WAITER, file_broker.url()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert alive.stdout is not None
        assert "ready\n" == alive.stdout.readline()
        wait_until(
            lambda: waiting(file_broker) == 4, what="the notifications of the dead, and one more"
        )
        with Connection(file_broker.url()) as connection:
            queue = connection.SimpleQueue("q")
            for number in range(4):
                queue.put(number)
                assert str(number) == heard(alive)
            queue.close()
        assert waiting(file_broker) <= 1 + len(dead)
    finally:
        alive.kill()
        alive.communicate()
    file_broker.assert_sound()


@pytest.mark.parametrize("pool", POOLS)
def test_an_idle_worker_is_woken(file_broker, tmp_path_factory, pool):
    """A Celery worker hears of each lone task, and of a delayed one when it is due."""
    config = {
        "task_acks_late": True,
        "task_ignore_result": True,
        "result_backend": None,
        "broker_transport_options": ONLY_THE_BELL,
    }
    site = CelerySite(file_broker, "reliq", tmp_path_factory.mktemp("site"), config)
    try:
        site.worker(pool=pool)
        for _ in range(5):
            site.journal.wait_finished(site.send("record").id, timeout_s=30)
        task = site.send("record", countdown=1.0)
        site.journal.wait_finished(task.id, timeout_s=30)
        site.settled()
    finally:
        site.close()
    file_broker.assert_sound()


def test_who_waits_writes_nothing(file_broker, waiter):
    """An idle consumer does not poll: the log of the file does not grow while it waits."""
    waiter()
    log = Path(f"{file_broker.path}-wal")
    # Until what it does as it begins is done.
    seen = wait_until(lambda: unchanged(log), interval_s=0.2, what="the beginning to be over")
    time.sleep(3)  # how long it is watched.
    assert seen == log.stat().st_mtime_ns
    file_broker.assert_sound()


def unchanged(path):
    """Return when *path* was written last, if that is a second ago; else None."""
    written = path.stat().st_mtime_ns
    return written if time.time_ns() - written > 1_000_000_000 else None
