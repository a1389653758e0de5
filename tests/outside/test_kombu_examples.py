"""Kombu's examples, from its source; only their URL is changed."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter

import pytest

from reliq.admin import Inspector
from tests.outside import fetching
from tests.support.audits import assert_balanced
from tests.support.processes import Process
from tests.support.waiting import wait_until
from tests.support.workers import app_environment

# A program that uses Kombu without Celery imports reliq once, at any place.
RUN = (
    "import reliq, runpy, sys; sys.path.insert(0, ''); "
    "runpy.{how}(sys.argv[1], run_name='__main__')"
)
AMQP = re.compile(r"(py)?amqp://(guest:guest@localhost:5672//)?")


class Examples:
    """A copy of the examples with the tested URL, run as processes."""

    def __init__(self, source, directory, broker, journal):
        self.broker = broker
        self.folder = directory / "examples"
        self.directory = directory
        self.environment = app_environment(broker, journal)
        self.started = []
        shutil.copytree(source / "examples", self.folder)
        for path in self.folder.rglob("*.py"):
            text = path.read_text()
            path.write_text(AMQP.sub(broker, text))

    def start(self, name):
        """Start an example: a file, or a module of a package among them."""
        how = "run_path" if name.endswith(".py") else "run_module"
        process = Process(
            [sys.executable, "-u", "-c", RUN.format(how=how), name],
            log_path=self.directory / f"{name.replace('/', '-')}-{len(self.started)}.log",
            env=self.environment,
            cwd=self.folder,
        )
        self.started.append(process)
        return process

    def run(self, name):
        """Run an example to its end; return its output."""
        process = self.start(name)
        assert process.wait() == 0, process.tail()
        return process.log()

    def wait_consuming(self, *queues):
        """Wait until each of the queues has a consumer."""

        def consumed():
            with Inspector(self.broker) as inspector:
                known = inspector.queues()
                return all(name in known and inspector.status(name).consumers for name in queues)

        wait_until(consumed, what=lambda: f"a consumer of {queues}: {self.started[-1].tail()}")

    def close(self):
        """End all processes that still run."""
        for process in self.started:
            process.kill_group()

    def assert_empty(self):
        """Fail unless all queues are empty in every state, and the ledgers balance."""
        with Inspector(self.broker) as inspector:
            left = Counter()
            for status in map(inspector.status, inspector.queues()):
                for state in ("ready", "delayed", "unacked", "dead"):
                    left[status.name, state] += getattr(status, state)
        assert Counter() == +left
        assert_balanced(self.broker)


@pytest.fixture
def examples(source_cache, tmp_path, journal, redis_url):
    """Return Kombu's examples."""
    source = fetching.fetch_source("kombu", source_cache)
    examples = Examples(source, tmp_path, redis_url, journal)
    yield examples
    examples.close()


def test_the_simple_interface(examples):
    """simple_receive gets the message of simple_send, hello_consumer that of hello_publisher."""
    examples.run("simple_send.py")
    assert "{'hello': 'world'}\n" == examples.run("simple_receive.py")
    sent = examples.run("hello_publisher.py").removeprefix("Sent: ")
    assert f"Received: {sent}" == examples.run("hello_consumer.py")
    examples.assert_empty()


def test_producers_and_consumers(examples):
    """complete_receive, which waits, gets each message of complete_send."""
    receiver = examples.start("complete_receive.py")
    examples.wait_consuming("kombu_demo")
    for _ in range(3):
        examples.run("complete_send.py")
    wait_until(
        lambda: receiver.log().count("Received message: {'hello': 'world'}") == 3,
        what=receiver.tail,
    )
    receiver.signal(2)
    receiver.wait()
    examples.assert_empty()


def test_a_task_queue(examples):
    """The worker of simple_task_queue, a ConsumerMixin, runs the tasks of its client."""
    worker = examples.start("simple_task_queue.worker")
    examples.wait_consuming("hipri", "midpri", "lopri")
    for _ in range(3):
        examples.run("simple_task_queue.client")
    wait_until(lambda: worker.log().count("Hello Kombu") == 3, what=worker.tail)
    worker.signal(2)
    assert 0 == worker.wait(), worker.tail()
    examples.assert_empty()


def test_remote_procedure_calls(examples):
    """The client of rpc-tut6 gets fib(30) from the server, through its own queue."""
    server = examples.start("rpc-tut6/rpc_server.py")
    examples.wait_consuming("rpc_queue")
    for _ in range(2):
        assert "Got 832040" in examples.run("rpc-tut6/rpc_client.py")
    server.signal(2)
    assert 0 == server.wait(), server.tail()
    with Inspector(examples.broker) as inspector:
        assert ["rpc_queue"] == inspector.queues()
    examples.assert_empty()


def test_an_event_loop(examples):
    """The example with Kombu's own event loop sends itself a message and ends."""
    assert "received: b'hello world'" in examples.run("experimental/async_consume.py")
    examples.assert_empty()


def test_eventlet(examples):
    """The receiver of simple_eventlet_send gets its ten concurrent messages."""
    examples.run("simple_eventlet_send.py")
    output = examples.run("simple_eventlet_receive.py").splitlines()
    received = [line for line in output if line.startswith("{")]
    assert sorted(f"{{'hello': 'world{number}'}}" for number in range(10)) == sorted(received)
    examples.assert_empty()
