"""Commands that an idle consumer and an idle Celery worker send to Redis.

Counted with MONITOR between two marks, commands that scripts run inside Redis left out.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from kombu import Consumer, Queue

from benchmarks import child
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import connect
from benchmarks.publish import QUEUE
from benchmarks.worker import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from benchmarks.servers import Server
    from benchmarks.setting import Setting

QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


def idle_consumer(url: str) -> None:
    """Consume from an empty queue without an event loop, until killed."""
    connection = connect(url)
    with Consumer(connection.default_channel, [Queue(QUEUE)], on_message=lambda _message: None):
        print("ready", flush=True)
        while True:
            with suppress(TimeoutError):
                connection.drain_events(timeout=1)


@contextmanager
def _plain_consumer(url: str) -> Iterator[None]:
    process = child.start(idle_consumer, url=url)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        child.stop(process)


@contextmanager
def _celery_worker(url: str) -> Iterator[None]:
    arguments = ("--concurrency", "1", "--loglevel", "INFO", *QUIET)
    with running(url, *arguments) as worker:
        worker.wait_until_ready()
        yield


def commands_in(server: Server, seconds: float) -> int:
    """Return how many commands clients send to the server within so many seconds."""
    sent = 0
    with server.client.monitor() as monitor:
        server.client.echo("begin")
        while monitor.next_command()["command"] != "ECHO begin":
            pass
        time.sleep(seconds)
        server.client.echo("end")
        while (line := monitor.next_command())["command"] != "ECHO end":
            sent += line["client_type"] != "lua"
    return sent


def measure(
    setting: Setting, key: str, idler: Callable[[str], AbstractContextManager[None]]
) -> Mapping[str, float]:
    """Return the commands a second of an idle program, after it has had time to settle."""
    with idler(setting.url):
        time.sleep(max(1.0, 10 * setting.scale))
        seconds = max(2.0, 60 * setting.scale)
        return {key: commands_in(setting.server, seconds) / seconds}


def _figure(key: str, title: str, idler: Callable[[str], AbstractContextManager[None]]) -> Figure:
    target = Target("value_at_most", 0.5, "/s")
    row = Row(key, title, "commands/s", target, digits=2)
    measured = partial(measure, key=key, idler=idler)
    return Figure(key, (row,), measured, most_rounds=1, warm_up=False)


FIGURES = (
    _figure("idle-consumer", "idle Kombu consumer", _plain_consumer),
    _figure("idle-worker", "idle Celery worker", _celery_worker),
)
