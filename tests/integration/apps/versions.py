"""Uses the reliq on PYTHONPATH, of any version; prints the result as JSON."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

from kombu import Queue

import reliq
from reliq.admin import Inspector
from tests.integration.apps.jobs import app


def publish(count):
    """Publish tasks; return their ids."""
    with app.producer_or_acquire() as producer:
        return [app.send_task("record_late", producer=producer).id for _ in range(int(count))]


def delay(seconds):
    """Publish a task that is delayed at the broker; return its id."""
    return app.send_task("record_late", countdown=float(seconds)).id


def hold(path):
    """Publish a task that runs until the file exists; return its id."""
    return app.send_task("record_until_late", (path,)).id


def poison():
    """Publish a task that kills its worker; return its id."""
    return app.send_task("poison_group").id


def batch(count):
    """Publish a batch; return its id."""
    done = app.signature("report", ("complete",))
    with reliq.Batch("versions", app=app, on_complete=done) as opened:
        for _ in range(int(count)):
            app.send_task("end_late", ("succeeded",))
    return opened.id


def counts(name):
    """Return the counts of a batch."""
    with closing(reliq.Batch.get(name, app=app)) as found:
        return dict(found.status().counts)


def declare(queue, concurrency):
    """Declare a queue, with a limit if it is not 0."""
    limits = {"x-concurrency": int(concurrency)} if int(concurrency) else None
    with app.connection_for_write() as connection:
        Queue(queue, channel=connection.channel(), queue_arguments=limits).declare()


def dead(queue):
    """Return the reasons of the dead letters of a queue."""
    with Inspector(app.conf.broker_url) as inspector:
        return [letter.reason for letter in inspector.dead_letters(queue)]


def heartbeats(count):
    """Return the names of the workers whose heartbeats arrive, once there are *count* of them."""
    seen = set()
    with app.connection_for_read() as connection:
        handler = {"worker-heartbeat": lambda event: seen.add(event["hostname"])}
        receiver = app.events.Receiver(connection, handlers=handler)
        for _ in receiver.itercapture(timeout=10, wakeup=False):
            if len(seen) == int(count):
                break
    return sorted(seen)


def answers():
    """Return the number of answers to a ping."""
    return len(app.control.ping(timeout=3))


def revoke(task):
    """Revoke a task."""
    app.control.revoke(task)


def audit():
    """Return the number of ledgers that do not balance."""
    with Inspector(app.conf.broker_url) as inspector:
        return sum(not result.balanced for result in inspector.audit().whole())


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    folder = str(Path(reliq.__file__).resolve().parents[1])
    print(json.dumps([folder, globals()[name](*arguments)]))
