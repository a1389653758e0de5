"""Helpers for the tests of Kombu's API: connections that clean up, and ways to take messages."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection, Consumer, Exchange, Queue

from reliq.admin import Inspector
from reliq.client.calls import CHECK_AFTER_S
from tests.support.audits import assert_balanced
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kombu.message import Message

    from tests.support.servers import RedisServer

# All intervals are short, so that a test of a few seconds sees them pass.
FAST = {
    "visibility_timeout": 1,
    "restore_interval": 0.2,
    "orphan_grace": 0.5,
    "poll_interval": 0.5,
    "socket_timeout": 5,
}


class Client:
    """One application: its URL, its options and the connections it opened."""

    def __init__(self, server: RedisServer, url: str) -> None:
        self.server = server
        self.url = url
        self.raw = server.client()
        self._connections: list[Connection] = []
        self._prefixes: set[str] = set()

    def connect(self, url: str | None = None, **options: Any) -> Connection:
        """Return a connection that is closed at the end of the test."""
        options = {**FAST, **options}
        self._prefixes.add(options.get("global_keyprefix", ""))
        connection = Connection(url or self.url, transport_options=options)
        self._connections.append(connection)
        return connection

    @contextmanager
    def inspector(self, prefix: str = "") -> Iterator[Any]:
        """Yield reliq's Inspector of this broker."""
        with Inspector(self.url, transport_options={"global_keyprefix": prefix}) as inspector:
            yield inspector

    def status(self, queue: str) -> Any:
        """Return the QueueStatus of *queue*, or None if there is no such queue."""
        from reliq import NotFound

        with self.inspector() as inspector:
            try:
                return inspector.status(queue)
            except NotFound:
                return None

    def dead_letters(self, queue: str) -> list[Any]:
        """Return the dead letters of *queue*."""
        with self.inspector() as inspector:
            return inspector.dead_letters(queue, 100)

    def settled(self, queue: str) -> bool:
        """Whether *queue* is empty and every message that was published to it was acked."""
        status = self.status(queue)
        waiting = status.ready + status.delayed + status.unacked + status.dead
        return waiting == 0 and status.ledger["published"] == status.ledger["acked"]

    def close(self) -> None:
        """Close every connection that is still open."""
        for connection in self._connections:
            connection.release()

    def audit(self) -> None:
        """Fail if the ledger of a queue does not balance."""
        for prefix in self._prefixes:
            assert_balanced(self.url, {"global_keyprefix": prefix})


@pytest.fixture
def client(redis_server, redis_url):
    """Return a Client of the shared server; its connections close and the ledgers are audited."""
    client = Client(redis_server, redis_url)
    try:
        yield client
    finally:
        client.close()
        client.raw.close()
    client.audit()


def idle_for_long() -> None:
    """Wait until connections count as idle: before its next use, each is examined for a loss."""
    ends_at = time.monotonic() + 2 * CHECK_AFTER_S
    wait_until(lambda: time.monotonic() > ends_at)


def declare(connection: Connection, name: str, **arguments: Any) -> Queue:
    """Declare a queue that is reachable through the anonymous exchange; return it, bound."""
    queue = Queue(name, Exchange(""), name, **arguments)(connection.default_channel)
    queue.declare()
    return queue


def publish(connection: Connection, queue: str, *bodies: Any, **properties: Any) -> None:
    """Publish *bodies* to *queue* through the anonymous exchange."""
    producer = connection.Producer()
    for body in bodies:
        producer.publish(body, exchange="", routing_key=queue, **properties)


class Taker:
    """A consumer that keeps its messages unacked until the test acks them."""

    def __init__(self, connection: Connection, *queues: str, **arguments: Any) -> None:
        self.connection = connection
        self.messages: list[Message] = []
        self.channel = arguments.pop("channel", None) or connection.channel()
        self.consumer = Consumer(
            self.channel,
            [Queue(name, Exchange(""), name) for name in queues],
            on_message=self.messages.append,
            auto_declare=arguments.pop("auto_declare", True),
            **arguments,
        )
        self.consumer.consume()

    def take(self, count: int = 1, timeout_s: float = 5.0) -> list[Message]:
        """Return the next *count* messages; fail if they do not come in time."""
        before = len(self.messages)
        deadline = time.monotonic() + timeout_s
        while len(self.messages) < before + count:
            self.connection.drain_events(timeout=max(deadline - time.monotonic(), 0.01))
        return self.messages[before:]

    def take_bodies(self, count: int) -> list[Any]:
        """Take and ack *count* messages, one at a time; return their bodies."""
        bodies = []
        for _ in range(count):
            (message,) = self.take()
            bodies.append(message.payload)
            message.ack()
        return bodies

    def gets_nothing(self, for_s: float = 0.3) -> bool:
        """Whether no message arrives within *for_s* seconds."""
        before = len(self.messages)
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=for_s)
        return len(self.messages) == before


def payloads(messages: list[Message]) -> list[Any]:
    """Return the decoded bodies of *messages*."""
    return [message.payload for message in messages]


def get(connection: Connection, queue: str, **arguments: Any) -> Message | None:
    """Fetch one message with basic_get."""
    return connection.default_channel.basic_get(queue, **arguments)


def exists(connection: Connection, queue: str) -> bool:
    """Whether a passive declaration finds *queue*; it does not keep the queue alive."""
    with connection.channel() as channel:
        try:
            channel.queue_declare(queue, passive=True)
        except connection.channel_errors:
            return False
    return True
