"""Python calls for each message: counted by cProfile, so that no noise disturbs them."""

import cProfile
import gc
import pstats

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

MESSAGES = 500
# What a publish, and a consumed and acked message, may make at most. They only get less.
PUBLISH, CONSUME = 105, 108
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
    """Return the calls for each of *count* times that *step* is done, after a warm-up."""
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
    """Through the anonymous exchange; consumed from one queue, with a prefetch of 64."""
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
