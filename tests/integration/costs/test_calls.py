"""Python calls for each message, counted by cProfile, so that noise does not affect the result."""

import cProfile
import gc
import json
import pstats

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

from reliq.options import Options
from reliq.store.urls import address
from tests.support.waiting import wait_until

MESSAGES = 500
# The most calls for a publish, and for a consumed and acked message. Only lower these.
PUBLISH, CONSUME = 105, 107
# The most calls to open a connection, with redis-py 8.1 (recorded: 125).
CONNECT = 130
# The most calls for a turn of a worker's loop (recorded: 149 to 156), and turns for a task
# (recorded: 3.1 to 3.3; the busier the machine, the fewer messages arrive in a turn).
TURN, TURNS = 165, 4
OF_CELERY = {
    "lang": "py",
    "task": "tasks.add",
    "id": "x" * 36,
    "shadow": None,
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "root_id": "x" * 36,
    "parent_id": None,
    "argsrepr": "(1, 2)",
    "kwargsrepr": "{}",
    "origin": "gen1@host",
    "ignore_result": True,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}


def calls(step, count=MESSAGES):
    """Return the calls of one *step*: the mean of *count* steps after a warm-up."""
    for _ in range(100):
        step()
    profile = cProfile.Profile()
    gc.disable()
    profile.enable()
    for _ in range(count):
        step()
    profile.disable()
    gc.enable()
    return pstats.Stats(profile).total_calls / count


@pytest.mark.parametrize(
    ("headers", "publish", "consume"),
    [({}, PUBLISH, CONSUME), (OF_CELERY, PUBLISH + 13, CONSUME + 2)],
)
def test_a_message_makes_few_calls(redis_factory, headers, publish, consume):
    """A message makes few calls, by the anonymous exchange and with a prefetch of 64."""
    with Connection(redis_factory().url("reliq")) as connection:
        channel = connection.channel()
        producer, queue = Producer(channel), Queue("q", Exchange(""), "q", channel=channel)
        queue.declare()
        properties = {"correlation_id": "x" * 36} if headers else {}

        def publishes():
            body = {"id": 1, "name": "abc"}
            producer.publish(body, routing_key="q", headers=dict(headers), **properties)

        assert publish >= calls(publishes)
        with Consumer(channel, [queue], callbacks=[lambda _, message: message.ack()]) as consumer:
            consumer.qos(prefetch_count=64)
            assert consume >= calls(lambda: connection.drain_events(timeout=5), MESSAGES - 100)


def test_a_connection_makes_few_calls(redis_url):
    """Opening a connection makes few calls: redis-py does not look for its own version."""
    found, options = address(redis_url), Options()
    assert CONNECT >= calls(lambda: found.connect(options, "test").close())


@pytest.mark.slow
def test_a_worker_makes_few_calls_for_a_task(site_factory, redis_factory, tmp_path):
    """A prefork worker's main process makes few calls of reliq for each turn of its loop.

    These are the loop and the batched acks, without Celery's own calls.
    """
    site = site_factory(redis_factory(), task_acks_late=True, worker_prefetch_multiplier=64)
    counts = tmp_path / "counts"
    for _ in range(1600):
        site.send("nothing")
    environment = {"RELIQ_TEST_COUNTS": str(counts)}
    site.worker(app="tests.integration.apps.counted", concurrency=1, env=environment)
    wait_until(counts.exists, timeout_s=60)
    everything, ours, turns = json.loads(counts.read_text())
    assert ours / turns <= TURN, (everything, ours, turns)
    assert turns <= TURNS
