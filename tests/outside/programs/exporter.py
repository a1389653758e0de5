"""The broker operations of celery-exporter: it receives every event, and queries the queues.

The exporter itself is not on the package index. (The package of that name is another program, which
no longer builds.) This program therefore makes the calls that the exporter's documentation and
source show: a receiver of all events, `inspect` for the pools and the queues of the workers, and a
passive declaration for the length and the consumers of a queue, as over RabbitMQ.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from celery import Celery

app = Celery("exporter", broker=os.environ["RELIQ_TEST_BROKER"])


def receive():
    """Print the type and the task or worker of each event, until the process ends."""

    def show(event):
        name = event.get("uuid") or event["hostname"]
        print(json.dumps([event["type"], name]), flush=True)

    with app.connection() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": show})
        receiver.capture(limit=None, timeout=None, wakeup=True)


def look():
    """Return the values of a scrape: the transport, workers, their queues, length and consumers."""
    with app.connection() as connection:
        inspect = app.control.inspect(timeout=5)
        queues = inspect.active_queues() or {}
        names = {queue["name"] for found in queues.values() for queue in found} | {"celery"}
        with connection.channel() as channel:
            declared = {
                name: channel.queue_declare(queue=name, passive=True) for name in sorted(names)
            }
        return {
            "transport": connection.info()["transport"],
            "processes": {
                worker: len(stats["pool"]["processes"])
                for worker, stats in (inspect.stats() or {}).items()
            },
            "length": {name: ok.message_count for name, ok in declared.items()},
            "consumers": {name: ok.consumer_count for name, ok in declared.items()},
        }


threading.Thread(target=receive, daemon=True).start()
for _ in sys.stdin:
    print(json.dumps(["look", look()]), flush=True)
