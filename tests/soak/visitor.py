"""A loop over everything temporary: queues, replies, remote control and event consumers.

It runs as `python -m tests.soak.visitor`, with its settings in RELIQ_SOAK_VISITOR (JSON). Each
visit appends a line of JSON to the file named there.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery.exceptions import TimeoutError as NoAnswer
from kombu import Connection, Consumer, Producer, Queue
from kombu.exceptions import OperationalError

from reliq import ReliqError
from tests.chaos.gate import END, Gate
from tests.soak.tasks import answer, app

if TYPE_CHECKING:
    from collections.abc import Callable

ANSWER_WITHIN_S = 30.0
LOOK_FOR_S = 2.0


class Visitor:
    """Makes one visit after another until the gate signals the end."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.pause_s = float(settings["pause_s"])
        self.workers = list(settings["workers"])
        self.gate = Gate(Path(settings["gate"]))
        self.path = Path(settings["visits"])
        self.options = dict(app.conf.broker_transport_options)
        self.number = 0

    def run(self) -> None:
        """Make visits of all kinds in turn, with a pause after each."""
        kinds = (
            self.auto_delete,
            self.expires,
            self.reply,
            self.control,
            self.delayed_and_expired,
            self.events,
        )
        for self.number in count(1):
            if self.gate.state == END:
                return
            self._visit(kinds[self.number % len(kinds)])
            time.sleep(self.pause_s)

    def _visit(self, kind: Callable[[], dict[str, int] | None]) -> None:
        at, error, told = time.monotonic(), "", None
        try:
            told = kind()
        except (OperationalError, ReliqError, OSError, NoAnswer) as exc:
            error = repr(exc)
        line = {
            "at": at,
            "until": time.monotonic(),
            "what": kind.__name__,
            "error": error,
            "prefetch": told or {},
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _connection(self) -> Connection:
        return Connection(app.conf.broker_url, transport_options=self.options)

    # -- the visits

    def auto_delete(self) -> None:
        """Use a queue that is deleted with its consumer; all its messages have been acked."""
        self._exchange(Queue(f"visit.{self.number}", auto_delete=True, durable=False))

    def _exchange(self, queue: Queue, **how: Any) -> None:
        with self._connection() as connection:
            producer = Producer(connection.default_channel)
            taken: list[object] = []

            def received(body: object, message: Any) -> None:
                taken.append(body)
                message.ack()

            with Consumer(connection.default_channel, [queue], callbacks=[received]):
                for number in range(3):
                    producer.publish({"number": number}, routing_key=queue.name, **how)
                deadline = time.monotonic() + ANSWER_WITHIN_S
                while len(taken) < 3:
                    if time.monotonic() > deadline:
                        raise NoAnswer(f"{len(taken)} of 3 messages came from {queue.name}")
                    with suppress(socket.timeout):
                        connection.drain_events(timeout=1)

    def expires(self) -> None:
        """Leave a queue that expires, with messages that no consumer takes."""
        queue = Queue(f"visit.{self.number}", expires=2.0, durable=False)
        with self._connection() as connection:
            queue(connection.default_channel).declare()
            producer = Producer(connection.default_channel)
            for _ in range(3):
                producer.publish({}, routing_key=queue.name, expiration=0.5)

    def delayed_and_expired(self) -> None:
        """Consume messages that are delayed first and expire some seconds later."""
        queue = Queue(f"visit.{self.number}", auto_delete=True, durable=False)
        self._exchange(queue, headers={"x-delay": 300}, expiration=20)

    def reply(self) -> None:
        """Wait for the result of a task, which comes back over a reply queue."""
        if answer.apply_async((self.number,)).get(timeout=ANSWER_WITHIN_S) != self.number:
            raise NoAnswer("the result of another task came back")

    def control(self) -> dict[str, int]:
        """Query each worker for its prefetch count."""
        stats = app.control.inspect(timeout=5, destination=self.workers, limit=len(self.workers))
        told = stats.stats() or {}
        if missing := set(self.workers) - set(told):
            raise NoAnswer(f"no stats from {', '.join(sorted(missing))}")
        return {name.partition("@")[0]: about["prefetch_count"] for name, about in told.items()}

    def events(self) -> None:
        """Receive the workers' events for a while."""
        seen: list[object] = []
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": seen.append})
            with suppress(socket.timeout):
                receiver.capture(limit=20, timeout=LOOK_FOR_S, wakeup=False)
        if not seen:
            raise NoAnswer(f"no event within {LOOK_FOR_S:g} s")


if __name__ == "__main__":
    Visitor(json.loads(os.environ["RELIQ_SOAK_VISITOR"])).run()
