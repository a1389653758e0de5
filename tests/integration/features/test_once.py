"""reliq.once: True for one of several processes that race, fail and die."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from celery import Celery

import reliq
from reliq.errors import BrokerUnavailable, ConfigurationError
from tests.support.audits import assert_balanced
from tests.support.processes import Process
from tests.support.waiting import wait_until

from ..kombu_client import Taker, publish

HOLD = """
import sys, time, logging, reliq
from tests.support.journal import Journal
logging.basicConfig()
url, path, name, seconds, lease = sys.argv[1:]
journal = Journal(path)
with reliq.once(name, ttl=60, lease=float(lease), url=url) as first:
    journal.write(f"first-{first}", name)
    time.sleep(float(seconds))
journal.write("left", name)
"""
RACE = """
import sys, reliq
from tests.support.journal import Journal
url, path = sys.argv[1:]
journal = Journal(path)
for number in range(20):
    journal.write("ready", str(number))
    journal.wait("ready", str(number), times=3)
    with reliq.once(f"race-{number}", ttl=60, url=url) as first:
        journal.write(f"first-{first}", str(number))
"""


@pytest.fixture
def once(redis_url):
    """Return reliq.once on the shared server, with the short times of a test."""

    def ask(what="x", ttl=60.0, **options):
        return reliq.once(what, ttl, **{"lease": 1.0, "url": redis_url, **options})

    return ask


@pytest.fixture
def hold(redis_url, journal, tmp_path):
    """Return a function that starts a process which holds the claim on "x" for some seconds."""
    with contextlib.ExitStack() as stack:

        def start(seconds, lease=1.0):
            arguments = [redis_url, journal.path, "x", seconds, lease]
            process = Process(
                [sys.executable, "-c", HOLD, *map(str, arguments)], log_path=tmp_path / "hold.log"
            )
            stack.callback(process.kill_group)
            journal.wait("first-True", "x")
            return process

        yield start


def test_the_first_time_is_the_only_one(once):
    """The first block gets True and the later ones False, until ttl seconds have passed."""
    answers = []
    for _ in range(3):
        with once(ttl=1.0) as first:
            answers.append(first)
    assert [True, False, False] == answers

    def again():
        with once(ttl=1.0) as first:
            return first

    wait_until(again)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_gives_it_up(once, error):
    """An exception that leaves the block gives up the claim, so the next block gets True."""
    entered = []

    def fail():
        with once(lease=60.0) as first:
            entered.append(first)
            raise error

    with pytest.raises(error):
        fail()
    assert [True] == entered
    began = time.monotonic()
    with once() as first:
        assert first
    assert time.monotonic() - began < 30


def test_an_exception_where_it_was_done_already_changes_nothing(once):
    """An exception in a later block leaves the finished claim finished."""
    with once():
        pass

    def fail():
        with once():
            raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        fail()
    with once() as first:
        assert not first


def test_threads_race(once):
    """One of many threads gets True."""
    answers = []

    def ask():
        with once() as first:
            answers.append(first)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [False] * 7 + [True] == sorted(answers)


def test_processes_race(redis_url, journal):
    """One of three processes that start together gets True, in every round."""
    command = [sys.executable, "-c", RACE, redis_url, journal.path]
    racers = [subprocess.Popen(command) for _ in range(3)]
    assert [0, 0, 0] == [racer.wait(90) for racer in racers]
    for first, times in ((True, 1), (False, 2)):
        asked = Counter(entry.key for entry in journal.entries(f"first-{first}"))
        assert {str(number): times for number in range(20)} == asked


@pytest.mark.slow
def test_another_that_is_at_it(once, hold, journal):
    """A block does not wait for the end of a live process's block, and gets False."""
    hold(seconds=4)
    with once() as first:
        assert not first
    assert [] == journal.entries("left")
    journal.wait("left", "x")
    with once() as first:
        assert not first


def test_a_process_that_is_killed_in_the_block(once, hold):
    """A block gets True when the claim of a killed process has ended."""
    process = hold(seconds=60, lease=2.0)
    process.kill_group()
    began = time.monotonic()
    with once(lease=2.0) as first:
        assert first
    assert time.monotonic() - began < 10


def test_a_process_that_stands_still(once, hold, journal):
    """After the lease of a frozen process another one gets True, and the first one logs that."""
    process = hold(seconds=1)
    process.freeze()
    with once() as first:
        assert first
    process.thaw()
    journal.wait("left", "x")
    wait_until(lambda: "may have been done twice" in process.log())
    with once() as first:
        assert not first


def test_a_restart_of_the_broker_during_the_block(redis_factory):
    """The end of a block is recorded over a new connection after a restart of the broker."""
    server = redis_factory(appendonly=True)
    with reliq.once("x", 60, lease=5, url=server.url()) as first:
        assert first
        server.restart()
    with reliq.once("x", 60, lease=5, url=server.url()) as first:
        assert not first


def test_a_broker_that_is_away(redis_factory):
    """Without a broker no block is entered, and the end of an entered block raises an error."""
    server = redis_factory()
    with pytest.raises(BrokerUnavailable), reliq.once("x", 60, lease=0.3, url=server.url()):
        server.stop()
    done = []
    with pytest.raises(BrokerUnavailable), reliq.once("x", 60, url=server.url()):
        done.append(1)
    assert [] == done


def test_a_message(client):
    """A message is claimed by its message_id, id or delivery tag, at its own broker."""
    taker = Taker(client.connect(global_keyprefix="p:"), "q")
    publish(taker.connection, "q", "x", message_id="m-1")
    publish(taker.connection, "q", "x", headers={"id": "h-1"})
    publish(taker.connection, "q", "x")
    messages = taker.take(3)
    names = {"m-1", "h-1", messages[2].delivery_tag}
    for message in messages:
        with reliq.once(message, ttl=60) as first:
            assert first
        with reliq.once(message, ttl=60) as first:
            assert not first
        message.ack()
    found = {
        key.decode().removeprefix("p:reliq:once:{").removesuffix("}")
        for key in client.raw.keys("p:reliq:once:*")
    }
    assert names == found


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 2])
def test_a_task_that_is_sent_twice(redis_server, redis_url, site_factory, failing):
    """The effect of a task that is sent twice happens once, even with retries.

    The broker of the worker's application keeps the claim.
    """
    site = site_factory(redis_server)
    site.worker(app="tests.integration.apps.once", concurrency=2)
    kwargs = {"fail": failing}
    results = [site.send("charge", task_id="twice", kwargs=kwargs) for _ in range(2)]
    results[0].get(timeout=20)
    asked = 2 + failing
    wait_until(lambda: len(site.journal.entries("asked", "twice")) >= asked)
    site.settled()
    assert 1 == len(site.journal.entries("charged", "twice"))


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_block(redis_server, redis_url, site_factory):
    """A killed worker's task returns before its claim ends, and its effect happens once."""
    site = site_factory(redis_server)
    killed = site.worker(app="tests.integration.apps.once")
    task = site.send("charge", 60.0)
    site.journal.wait("entered", task.id)
    killed.kill_group()
    site.worker(app="tests.integration.apps.once")
    assert task.get(timeout=30) is True
    site.settled()
    assert 1 == len(site.journal.entries("charged", task.id))


# -- wrong arguments


@pytest.mark.parametrize("value", [0, -1, True, "5", None, float("nan"), float("inf")], ids=repr)
@pytest.mark.parametrize("name", ["ttl", "lease"])
def test_a_wrong_time_is_refused(once, name, value):
    """An invalid time is refused with the argument's name."""
    with pytest.raises(ConfigurationError, match=f"expected {name} to be a number of seconds"):
        once(**{name: value})


@pytest.mark.parametrize("what", ["", None, 5, b"x", ["x"]], ids=repr)
def test_what_has_no_id_is_refused(once, what):
    """The error for an argument without an id states the expected types."""
    with pytest.raises(ConfigurationError, match="expected an id"):
        once(what)


def test_another_transport_is_refused():
    """A message of another transport is refused, because that broker cannot keep claims."""
    from kombu import Connection

    with Connection("memory://") as connection, connection.SimpleQueue("q") as queue:
        queue.put("x")
        message = queue.get(timeout=5)
        with pytest.raises(ConfigurationError, match="give its url"):
            reliq.once(message, ttl=5).__enter__()
        message.ack()


def test_an_application_on_another_transport_is_refused():
    """An application on another transport is refused."""
    app = Celery("other", broker="memory://", set_as_current=True)
    with pytest.raises(ConfigurationError, match="give its url"):
        reliq.once("x", ttl=5).__enter__()
    app.close()


def test_without_celery_and_url_there_is_no_broker():
    """Without Celery and a URL, the error requests a URL."""
    script = (
        "import reliq\n"
        "try: reliq.once('x', 5).__enter__()\n"
        "except reliq.ConfigurationError as exc: print(exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "expected a url, because Celery is not in use here, got none\n" == done.stdout


def test_failover_finds_the_broker_that_answers(redis_server, redis_url, free_broker_url):
    """The claim is kept by the first reachable broker of the application."""
    app = Celery("both", broker=f"{free_broker_url};{redis_url}", set_as_current=True)
    with reliq.once("x", ttl=5) as first:
        assert first
    with reliq.once("x", ttl=5, url=redis_url) as first:
        assert not first
    app.close()
    assert_balanced(redis_url)


@pytest.fixture
def free_broker_url():
    """Return the URL of an unreachable broker."""
    from tests.support.servers import free_port

    return f"reliq://127.0.0.1:{free_port()}/0"


def test_nothing_is_left_open(redis_server, redis_url):
    """Each use closes its connection and ends its thread, whether its value is True or False."""
    before = threading.active_count()
    for _ in range(3):
        with reliq.once("x", ttl=5, url=redis_url):
            pass
    assert before == threading.active_count()
    client = redis_server.client(decode_responses=True)
    wait_until(lambda: not [c for c in client.client_list() if ":once:" in c["name"]])
    client.close()
