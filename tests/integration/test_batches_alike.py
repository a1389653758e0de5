"""The rules of jobs are written twice, in Lua and in Python: both say the same of anything."""

from __future__ import annotations

import contextlib
import random

import pytest

from reliq.engines.redis.store import RedisStore
from reliq.engines.sqlite.location import location
from reliq.engines.sqlite.store import SqliteStore
from reliq.engines.urls import address
from reliq.options import parse
from reliq.store.jobs import ENDED, Change
from tests.contract.jobs import begin, end, enter, lost

TAGS = ("a" * 30, "b" * 30, "")
JOBS = ("i", "j", "k")
QUEUES = ("q", "r", "")


@pytest.fixture
def both(redis_server, tmp_path):
    """Return the batches of a Redis and of a file."""
    redis_server.client().flushall()
    with contextlib.ExitStack() as stack:
        stores = [
            RedisStore(address(redis_server.url()), parse({}), "s/1"),
            SqliteStore(location(str(tmp_path / "broker.db")), parse({}), "s/1"),
        ]
        for store in stores:
            stack.callback(store.close)
        yield [store.batches for store in stores]


def some(rng):
    """Return any change."""
    job, tag, queue = rng.choice(JOBS), rng.choice(TAGS), rng.choice(QUEUES)
    retries, token = rng.choice([0, 0, 1, 2]), rng.randrange(4)
    return rng.choice(
        [
            enter(job, rng.choice(["waiting", "delayed"]), tag, retries, queue),
            Change("begin", job, "", retries, token, tag, queue, "s/1"),
            begin(job, token, retries),
            end(rng.choice(ENDED), job, token, retries, "why")._replace(tag=tag, queue=queue),
            end("error", job, token, retries, "why"),
            lost(job, tag),
            Change("return", job, "", retries, token, queue=queue),
            Change("withdraw", job, tag=tag),
            Change("replay", job, tag=tag, queue=queue),
            *[Change(rng.choice(["seal", "cancel"]))] * (rng.random() < 0.1),
        ]
    )


def seen(batches):
    """Return all that is known, but for the times."""
    record = batches.batch("b")
    times = [bool(at) for at in (record.sealed_ms, record.cancelled_ms, record.ended_ms)]
    jobs = [job._replace(since_ms=0) for part in batches.jobs("b") for job in part]
    why = {(job, text) for job, _, text in batches.failures("b", 10)}
    return record.counts, times, set(record.due), set(record.said), sorted(jobs), why


def lose_what_waits(batches):
    """Find nowhere what was seen of each job; return what became of that."""
    jobs = sorted(job for part in batches.jobs("b") for job in part)
    changes = [Change("lose", job.id, tag=job.tag, text=str(job.since_ms)) for job in jobs]
    return batches.change("b", changes).outcomes


def require_callbacks(batches, before):
    """Fail unless what is due or said is what has to be; return that.

    What was due is due until it is said, and not again.
    """
    record = batches.batch("b")
    due, said = set(record.due), set(record.said)
    counts, bad = record.counts, record.counts["failed"] + record.counts["error"]
    assert not due & said
    assert before[0] | before[1] <= due | said
    assert before[1] <= said
    if not record.sealed_ms:
        assert not due | said
    if record.sealed_ms and bad:
        assert "failure" in due | said
    if record.ended_ms:
        assert "complete" in due | said
        if counts["succeeded"] == record.total and not record.cancelled_ms:
            assert "success" in due | said
    if "success" in due | said:
        assert {"succeeded"} >= {state for state, n in counts.items() if n}
    return due, said


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 320), marks=pytest.mark.slow)])
def test_both_say_the_same(both, seeds):
    """Of any changes, in any order, in groups of any size."""
    for seed in seeds:
        rng = random.Random(seed)
        for batches in both:
            batches.forget_batch("b")
            batches.open_batch("b", "enrol", {})
        callbacks = [(set(), set())] * 2
        for step in range(25):
            group, by = [some(rng) for _ in range(rng.randrange(1, 5))], rng.choice(["", *JOBS])
            callback = rng.choice(["success", "complete", "failure"])
            lose, say = rng.random() < 0.05, rng.random() < 0.1
            found = []
            for batches in both:
                outcomes = batches.change("b", group, by=by)
                if lose:
                    outcomes.outcomes.extend(lose_what_waits(batches))
                if say:
                    batches.said("b", callback)
                found.append((outcomes, seen(batches)))
            assert found[0] == found[1], (seed, step, group, by)
            callbacks = [require_callbacks(*pair) for pair in zip(both, callbacks, strict=True)]
