"""Many processes on one file: publishers, workers of every pool, the command line; and SIGKILL."""

from __future__ import annotations

import contextlib
import os
import random
import select
import subprocess
import sys
import threading
import time

import pytest
from kombu import Connection

from reliq.admin import Inspector
from tests.support.files import FileBroker
from tests.support.site import CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import POOLS, ROOT, app_environment

LATE = {"task_acks_late": True, "task_ignore_result": True, "result_backend": None}

PUBLISHER = """
import sys
from kombu import Connection
from kombu.utils.uuid import uuid
import reliq

url, queue, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Connection(url) as connection, connection.Producer(serializer="json") as producer:
    n = 0
    while count < 0 or n < count:
        n += 1
        name = uuid()
        producer.publish(
            [[0.0], {}, {}],
            routing_key=queue,
            headers={"task": "record", "id": name, "root_id": name, "lang": "py"},
            correlation_id=name,
        )
        print(name, flush=True)
"""

HOLDER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def file_broker(tmp_path):
    """Return a broker that is a file."""
    return FileBroker(tmp_path)


@pytest.fixture
def file_site(file_broker, tmp_path_factory):
    """Return a Celery application on it."""
    site = CelerySite(file_broker, "reliq", tmp_path_factory.mktemp("site"), dict(LATE))
    yield site
    site.close()


@pytest.fixture
def publisher(file_site):
    """Return a function that starts a process that publishes tasks and prints what was stored."""
    started = []

    def start(queue, count=-1):
        process = subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, file_site.broker, queue, str(count)],
            cwd=ROOT,
            env=app_environment(file_site.broker, file_site.journal),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ids_of(process):
    """Return the ids of what a publisher that has ended was told is stored, and its errors."""
    out, errors = process.communicate(timeout=60)
    return [line for line in out.split("\n")[:-1] if len(line) == 36], errors


def inspect_once(url, *arguments):
    """Run the command line."""
    return subprocess.run(
        [sys.executable, "-m", "reliq.cli", *arguments, "--url", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_everybody_on_one_file(file_site, file_broker, publisher):
    """Four pools, four publishers and the command line at once: each task runs once."""
    workers = [file_site.worker(pool=pool, name=pool, concurrency=4, ready=False) for pool in POOLS]
    for worker in workers:
        worker.wait_ready()
    publishers = [publisher("celery", 150) for _ in range(4)]
    looks = [inspect_once(file_site.broker, "status") for _ in range(3)]
    sent = []
    for process in publishers:
        ids, errors = ids_of(process)
        assert "" == errors
        sent += ids
    assert 600 == len(sent)
    wait_until(
        lambda: len(file_site.journal.finished()) == 600,
        timeout_s=60,
        what=lambda: f"600 tasks; {len(file_site.journal.finished())}: {file_site.counts()}",
    )
    file_site.settled()
    assert dict.fromkeys(sent, 1) == file_site.journal.started()
    for look in looks:
        assert (0, "") == (look.returncode, look.stderr)
    for worker in workers:
        assert worker.shut_down() == 0
        assert "locked" not in worker.log()
        assert "Traceback" not in worker.log()
    file_broker.assert_sound()
    assert [] == file_broker.leftovers()


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_killed_worker_is_noticed_at_once(file_site, file_broker, pool):
    """What it held runs elsewhere long before its leases end: its lock ended with it."""
    options = {**file_site.transport_options, "visibility_timeout": 60.0}
    slow = {"broker_transport_options": options}
    victim = file_site.worker(pool=pool, config=slow)
    task = file_site.send("long_first", 120.0).id
    file_site.journal.wait_started(task)
    victim.kill_group()
    file_site.worker(pool=pool, config=slow)
    file_site.journal.wait_finished(task, timeout_s=30)
    file_site.settled()
    assert 2 == file_site.journal.runs(task)
    file_broker.assert_sound()


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment(file_site, file_broker, publisher, seed):
    """Publishers and workers are killed in the middle of it: nothing confirmed is lost.

    The file is whole, and its books balance, each time.
    """
    rng = random.Random(seed)
    confirmed = []
    pools = rng.sample(POOLS, 2)
    workers = {pool: file_site.worker(pool=pool, ready=False) for pool in pools}
    for worker in workers.values():
        worker.wait_ready()
    for _ in range(4):
        process = publisher("celery")
        select.select([process.stdout], [], [], 60)  # its first message is stored
        time.sleep(rng.uniform(0.0, 0.5))  # the moment is what is tested
        process.kill()
        confirmed += ids_of(process)[0]
        pool = rng.choice(pools)
        workers[pool].kill_group()
        file_broker.assert_sound()
        workers[pool] = file_site.worker(pool=pool, ready=False)
    file_site.wait_counts(ready=0, delayed=0, unacked=0, timeout_s=60)
    file_broker.assert_sound()
    finished = file_site.journal.finished()
    assert [] == [name for name in confirmed if name not in finished]
    assert confirmed


def test_a_child_leaves_the_file_of_its_parent_alone(file_broker):
    """A forked child publishes, ends, and takes no log and no lock of its parent with it."""
    url = file_broker.url()
    with Connection(url) as connection:
        queue = connection.SimpleQueue("q")
        queue.put("from the parent")
        for _ in range(3):
            child = os.fork()
            if not child:
                status = 1
                try:
                    queue.put("from a child")
                    with Connection(url) as own:
                        own.SimpleQueue("q").put("over a connection of its own")
                    status = 0
                finally:
                    os._exit(status)
            assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            queue.put("from the parent")
        got = [queue.get(timeout=10) for _ in range(10)]
        for message in got:
            message.ack()
        queue.close()
    payloads = [message.payload for message in got]
    assert [4, 3, 3] == [
        payloads.count(text)
        for text in ("from the parent", "from a child", "over a connection of its own")
    ]
    file_broker.assert_sound()


def test_a_child_that_outlives_its_parent_loses_nothing(file_broker):
    """Its parent closes the file, and is the last to have opened it: the log stays the child's."""
    url = file_broker.url()
    go_on, told = os.pipe()
    with Connection(url) as connection:
        queue = connection.SimpleQueue("q")
        queue.put("from the parent")
        child = os.fork()
        if not child:
            status = 1
            try:
                queue.put("at once")
                os.read(go_on, 1)
                for _ in range(5):
                    queue.put("after the parent has closed it")
                status = 0
            finally:
                os._exit(status)
        file_broker.settled("q", 2)
    os.write(told, b".")
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(go_on)
    os.close(told)
    file_broker.settled("q", 7)
    file_broker.assert_sound()


def test_a_process_forks_while_its_threads_publish(file_broker):
    """A fork waits for the step of another thread; neither side loses a message."""
    url, stop, published = file_broker.url(), threading.Event(), []

    def publish():
        with Connection(url) as connection, connection.SimpleQueue("q") as queue:
            while not stop.is_set():
                queue.put("from a thread")
                published.append(1)

    threads = [threading.Thread(target=publish) for _ in range(2)]
    with contextlib.ExitStack() as at_the_end, Connection(url) as connection:
        for thread in threads:
            thread.start()
            at_the_end.callback(thread.join)
        at_the_end.callback(stop.set)
        queue = connection.SimpleQueue("q")
        for _ in range(8):
            child = os.fork()
            if not child:
                status = 1
                try:
                    queue.put("from a child")
                    status = 0
                finally:
                    os._exit(status)
            assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            queue.put("from the parent")
    file_broker.settled("q", len(published) + 16)
    file_broker.assert_sound()


def test_a_stopped_writer_is_a_timeout_that_says_so(file_broker, file_site):
    """Who is frozen in a transaction keeps others out: an error names file and remedy."""
    with Connection(file_site.broker, transport_options={"socket_timeout": 0.5}) as connection:
        queue = connection.SimpleQueue("q")
        queue.put("before")
        file_site.settled("q", ready=1)
        command = [sys.executable, "-c", HOLDER, str(file_broker.path)]
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout is not None
            assert "held\n" == holder.stdout.readline()
            with pytest.raises(connection.connection_errors, match="socket_timeout") as caught:
                queue.put("kept out", retry=False)
            assert str(file_broker.path) in str(caught.value)
        finally:
            holder.kill()
            holder.communicate()
        queue.put("after")
        assert "before" == queue.get(timeout=10).payload
    with Inspector(file_site.broker) as inspector:
        assert {"q"} <= set(inspector.queues())
    file_broker.assert_sound()
