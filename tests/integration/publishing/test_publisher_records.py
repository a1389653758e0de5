"""A broker's records of a publisher: small, and kept only as long as needed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kombu import Connection, Consumer, Queue

from tests.integration.kombu_client import declare, publish
from tests.support.audits import assert_balanced
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

PUBLISH = """
import os, sys
from kombu import Connection
import reliq

url, how = sys.argv[1:]
connection = Connection(url)
producer = connection.Producer()
for queue in ("a", "b"):
    for number in range(3):
        producer.publish(number, exchange="", routing_key=queue)
if how == "closes":
    connection.close()
elif how == "is killed":
    os._exit(9)
"""


def run(url, how):
    """Run a process that publishes to two queues and ends in the given way."""
    subprocess.run([sys.executable, "-c", PUBLISH, url, how], check=how != "is killed", timeout=60)


def records(client):
    """Return the remaining lifetime of each record in ms."""
    seconds, us = client.time()
    now = seconds * 1000 + us // 1000
    found = []
    for key in client.keys("reliq:*:publishers"):
        kept = [int(record.split(b" ")[0]) - now for record in client.hvals(key)]
        assert client.pttl(key) >= max(kept) - 1000
        found += kept
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("how", "left"), [("closes", 0), ("just ends", 0), ("is killed", 2)])
def test_a_process_that_ends_leaves_nothing(redis_server, redis_url, how, left):
    """A process removes its records at its end, and those of a killed process expire."""
    run(redis_url, how)
    client = redis_server.client()
    kept = records(client)
    client.close()
    assert left == len(kept)
    assert all(3_500_000 < ms <= 3_600_000 for ms in kept)
    assert_balanced(redis_url)


def test_what_lost_a_reply_is_remembered(redis_server, redis_url, scheme):
    """A publisher's record stays after a lost reply, even past the regular end of the process.

    The first try may still arrive late.
    """
    proxy = Proxy(redis_server)
    try:
        with Connection(proxy.url(scheme)) as connection:
            declare(connection, "q")
            proxy.cut_replies(0)
            publish(connection, "q", "x", retry=True, retry_policy={"interval_start": 0})
        client = redis_server.client()
        assert 1 == len(records(client))
        client.close()
    finally:
        proxy.close()
    assert_balanced(redis_url)


@pytest.mark.slow
def test_every_record_lapses_also_after_flushall(redis_server, redis_url):
    """Every record has a lifetime, even one created after FLUSHALL.

    A publisher states the lifetime once an hour; a new record gets it at once.
    """
    code = (
        "import sys\n"
        "from kombu import Connection\n"
        "import reliq\n"
        "connection = Connection(sys.argv[1])\n"
        "producer = connection.Producer()\n"
        "for count in (3, 40):\n"
        "    for number in range(count):\n"
        "        producer.publish(number, exchange='', routing_key='q')\n"
        "    print(flush=True)\n"
        "    sys.stdin.readline()\n"
        "connection.close()\n"
    )
    client = redis_server.client()
    # A separate process: after lost replies, in another test for example, a process continues under
    # a name that may not be forgotten, and leaves this record too.
    with subprocess.Popen(
        [sys.executable, "-c", code, redis_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.readline()
        client.flushall()
        print(file=process.stdin, flush=True)
        process.stdout.readline()
        (ms,) = records(client)
        assert 3_500_000 < ms <= 3_600_000
        print(file=process.stdin, flush=True)
    assert 0 == process.returncode
    assert [] == records(client)
    client.close()
    assert_balanced(redis_url)


@pytest.mark.slow
def test_children_of_a_pool_leave_nothing(fresh_redis, site_factory):
    """The children of a pool leave no records.

    Each child is a separate publisher if its task publishes, and there may be one child for each
    task.
    """
    site = site_factory(fresh_redis)
    site.worker(concurrency=1, config={"worker_max_tasks_per_child": 1})
    task = site.send("fail_first", 3)
    site.journal.wait_finished(task.id)
    client = fresh_redis.client()
    # The record of this process, which has not ended.
    wait_until(
        lambda: client.hlen("reliq:{celery}:publishers") == 1,
        what=lambda: {k: client.hgetall(k) for k in client.keys("reliq:*:publishers")},
    )
    client.close()
    assert_balanced(site.broker)


@pytest.mark.slow
def test_a_deleted_queue_takes_them_with_it(redis_server, redis_url):
    """A deleted queue's records expire after a minute, unless the queue is created again.

    A retry may still be on its way.
    """
    run(redis_url, "is killed")
    client = redis_server.client()
    with Connection(redis_url) as connection:
        for queue in ("a", "b"):
            connection.default_channel.queue_delete(queue)
            assert 50_000 < client.pttl(f"reliq:{{{queue}}}:publishers") <= 60_000
        declare(connection, "a")
        publish(connection, "b", "x")
    for queue in ("a", "b"):
        assert client.pttl(f"reliq:{{{queue}}}:publishers") > 3_600_000
    client.close()
    assert_balanced(redis_url)


def test_an_auto_delete_queue_takes_them_with_it(redis_server, redis_url):
    """The records of an auto-delete queue expire a minute after its last consumer leaves."""
    client = redis_server.client()
    with Connection(redis_url) as connection:
        declare(connection, "q", auto_delete=True)
        publish(connection, "q", 1)
        with Consumer(connection.default_channel, [Queue("q", auto_delete=True)]):
            pass
        assert 50_000 < client.pttl("reliq:{q}:publishers") <= 60_000
    client.close()
    assert_balanced(redis_url)


def test_those_of_the_dead_are_found_by_who_publishes(redis_server, redis_url):
    """Expired records are removed by publishers, as fast as they are added.

    Even many thousands are removed within some thousand messages.
    """
    client = redis_server.client()
    with Connection(redis_url) as connection:
        publish(connection, "q", 1)
        key = "reliq:{q}:publishers"
        client.hset(key, mapping={f"{number:x}": "1 0 1-3" for number in range(5000)})
        client.hset(key, "junk", "junk")
        publish(connection, "q", *range(1000))
        assert client.hlen(key) <= 10
    client.close()
    assert_balanced(redis_url)


def test_beside_a_spool_they_are_kept_for_a_day(redis_server, redis_url, tmp_path):
    """With a spool, records are kept for a day.

    Unconfirmed publishes wait in the spool while Redis is unreachable, and keep their numbers.
    """
    client = redis_server.client()
    with Connection(f"{redis_url};reliq-spool:///{tmp_path / 'spool.db'}") as connection:
        publish(connection, "q", 1)
        (ms,) = records(client)
        assert 86_000_000 < ms <= 86_400_000
    client.close()
    assert_balanced(redis_url)
