"""A worker's log reports each event to its operator once, at the right level, with the remedy."""

import re
import shlex

import pytest
from kombu import Connection

from tests.support.commands import run
from tests.support.waiting import wait_until

FAST = {
    "visibility_timeout": 3.0,
    "restore_interval": 0.5,
    "orphan_grace": 0.5,
    "poll_interval": 0.5,
}


def lines(worker, words):
    """Return (level, message) of the log lines that contain *words*."""
    found = [line for line in worker.log().splitlines() if words in line]
    parsed = [re.search(r": (\w+)/\S+\] (.*)", line) for line in found]
    return [(match[1], match[2]) for match in parsed]


@pytest.mark.slow
def test_where_it_consumes_and_what_died(redis_server, redis_url, site_factory):
    """The log names the broker once, and each dead letter with the command to see it.

    The replies of mingle do not count as work, and lost connections do not repeat the line.
    """
    site = site_factory(redis_server, broker_transport_options=FAST)
    worker = site.worker(pool="solo", mingle=True)
    worker.wait_log("consuming at")
    redis_server.client().client_kill_filter(_type="normal", skipme=True)
    worker.wait_log("Connected to", times=2, timeout_s=30)
    site.send("reject_first")
    with Connection(redis_url) as connection:
        connection.Producer().publish(
            b"\xff{",
            routing_key="celery",
            content_type="application/json",
            content_encoding="utf-8",
            headers={"task": "add", "id": "broken"},
        )
    site.settled(dead=2, timeout_s=30)
    ((level, text),) = lines(worker, "consuming at")
    assert "INFO" == level
    assert f"consuming at {redis_url} as " in text
    assert "messages return 3 s after" in text

    worker.wait_log("was rejected and dead-lettered")
    ((level, text),) = lines(worker, "was rejected and dead-lettered")
    assert "INFO" == level
    words = text.partition("; to restore it, run ")[2]
    done = run(redis_url, *shlex.split(words)[1:], "--dry-run")
    assert (0, True) == (done.returncode, "1 would be replayed" in done.stdout), done.stderr

    worker.wait_log("is undecodable and was dead-lettered")
    ((level, text),) = lines(worker, "is undecodable and was dead-lettered")
    assert "ERROR" == level
    done = run(redis_url, *shlex.split(text.partition("inspect it with ")[2])[1:])
    assert (0, True) == (done.returncode, "broken" in done.stdout), done.stderr


def test_what_was_restored_from_whom(redis_server, redis_url, site_factory):
    """The worker that restores messages names the dead consumer and the number of its messages."""
    site = site_factory(redis_server, task_acks_late=True, broker_transport_options=FAST)
    dying = site.worker(pool="solo", name="dying")
    task = site.send("record", 60)
    wait_until(lambda: site.journal.runs(task.id) == 1)
    dying.kill_group()
    other = site.worker(pool="solo", name="other")
    other.wait_log("restored 1 messages to 'celery'", timeout_s=40)
    ((level, text),) = lines(other, "restored 1 messages")
    assert "WARNING" == level
    assert re.search(rf"the lease of consumer \S+:{dying.pid}:\w+/\d+ ended; it was killed", text)
    other.kill_group()
