"""A consumer's candidate mark is removed when it can no longer explain a death."""

from __future__ import annotations

import pytest
import redis

from reliq.options import parse
from reliq.store.store import RedisStore
from reliq.store.urls import address
from tests.contract.steps import Steps, message


@pytest.fixture
def steps(fresh_redis):
    """Return the steps of one consumer on an empty Redis."""
    store = RedisStore(address(fresh_redis.url()), parse({}), "s/1")
    store.connect()
    yield Steps(store, set())
    store.close()


def marks(server):
    """Return the candidate marks in the queue's meta."""
    with redis.Redis.from_url(server.url("redis")) as client:
        return [name for name in client.hkeys("reliq:{q}:meta") if name.startswith(b"candidate:")]


@pytest.mark.parametrize("left", [0, 1])
def test_a_candidate_that_is_acked_by_one_that_leaves(steps, fresh_redis, left):
    """The next pass removes the mark of a consumer that left and acked afterwards.

    A warm shutdown cancels first and acks later.
    """
    steps.declare()
    steps.store.attach("q", "s", 1)
    steps.publish(message())
    for _ in range(2):
        steps.release("nacked", *steps.take())
    steps.publish(*(message() for _ in range(left)))
    (poison_candidate, *_) = steps.take(1 + left)
    steps.store.attach("q", "s", 0)
    steps.ack(poison_candidate.tag)
    assert [b"candidate:s/1"] == marks(fresh_redis)
    steps.restore(force=True)
    assert [] == marks(fresh_redis)


def test_the_mark_of_one_that_works_stays(steps, fresh_redis):
    """The mark of a consumer that still holds its candidate stays."""
    steps.publish(message())
    for _ in range(2):
        steps.release("nacked", *steps.take())
    steps.take()
    steps.restore(force=True)
    assert [b"candidate:s/1"] == marks(fresh_redis)
