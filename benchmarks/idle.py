"""Commands that an idle consumer and an idle Celery worker send to Redis.

Counted with MONITOR between two marks, without commands that scripts run inside Redis.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from kombu import Consumer

from benchmarks import child
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import connect, queue_of
from benchmarks.publish import QUEUE
from benchmarks.worker import QUIET, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from benchmarks.peers import Broker
    from benchmarks.servers import RedisServer
    from benchmarks.setting import Setting

BEGIN, END = "begin of the count", "end of the count"
IDLE_SECONDS = 60.0


def idle_consumer(broker: Broker) -> None:
    """Consume from an empty queue without an event loop until killed."""
    connection = connect(broker)
    queues = [queue_of(broker, QUEUE)]
    with Consumer(connection.default_channel, queues, on_message=lambda _message: None):
        print("ready", flush=True)
        while True:
            with suppress(TimeoutError):
                connection.drain_events(timeout=1)


@contextmanager
def _plain_consumer(broker: Broker) -> Iterator[None]:
    process = child.start(idle_consumer, broker=broker)
    try:
        child.wait_for_line(process)
        yield
    finally:
        child.stop(process)


@contextmanager
def _celery_worker(broker: Broker) -> Iterator[None]:
    arguments = ("--concurrency", "1", "--loglevel", "INFO", *QUIET)
    with running(broker, *arguments) as worker:
        worker.wait_until_ready()
        yield


class Counter:
    """Counts the commands of clients to a server, as shown by `MONITOR`, until `END` is echoed.

    Includes commands sent since its construction; `run` reads them.
    """

    def __init__(self, server: RedisServer) -> None:
        monitor = server.client.monitor()  # type: ignore[no-untyped-call]
        self._monitor = monitor.__enter__()
        self.sent = 0
        # After the commands with which redis-py opens the connection.
        server.client.echo(BEGIN)
        while self._monitor.next_command()["command"] != f"ECHO {BEGIN}":
            pass

    def close(self) -> None:
        """Close the connection."""
        self._monitor.__exit__()

    def run(self) -> None:
        """Count until the end is echoed, without commands that scripts run inside Redis."""
        while (line := self._monitor.next_command())["command"] != f"ECHO {END}":
            self.sent += line["client_type"] != "lua"


def commands_in(servers: Sequence[RedisServer], seconds: float) -> int:
    """Return the number of commands that clients send to all the servers within *seconds*."""
    with ExitStack() as stack:
        counters = [stack.enter_context(closing(Counter(server))) for server in servers]
        time.sleep(seconds)
        for server, counter in zip(servers, counters, strict=True):
            server.client.echo(END)
            counter.run()
    return sum(counter.sent for counter in counters)


def measure(
    setting: Setting, key: str, idler: Callable[[Broker], AbstractContextManager[None]]
) -> Mapping[str, float]:
    """Return the commands per second of an idle program after it has settled."""
    with idler(setting.broker):
        time.sleep(max(1.0, 10 * setting.scale))
        seconds = max(2.0, IDLE_SECONDS * setting.scale)
        return {key: commands_in(setting.redis_nodes, seconds) / seconds}


def _figure(
    key: str, title: str, idler: Callable[[Broker], AbstractContextManager[None]]
) -> Figure:
    target = Target("value_at_most", 0.5, "/s")
    row = Row(key, title, "commands/s", (target,), digits=2)
    measured = partial(measure, key=key, idler=idler)
    return Figure(key, (row,), measured, most_rounds=1, warm_up=False)


FIGURES = (
    _figure("idle-consumer", "idle Kombu consumer", _plain_consumer),
    _figure("idle-worker", "idle Celery worker", _celery_worker),
)
