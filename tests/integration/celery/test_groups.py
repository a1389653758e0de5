"""The results of a group arrive, even after trouble in the publish of its tasks.

Celery makes two results of each task of a group, and drops one at once. Before Celery 5.7, the
destruction of a result ends the process's subscription to the task's result, even if another result
waits for it. A result that an error kept alive until the garbage collector ran made the group hang.
"""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import closing, contextmanager

import pytest
from celery import group
from celery.result import AsyncResult

TASKS = 100
ROUNDS = 3


def add_here(x, y):
    """Stand in for the worker's task of that name."""
    raise NotImplementedError


@pytest.fixture(autouse=True)
def no_collector():
    """Run without the garbage collector, except where the test calls it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def groups_of(app, trouble):
    """Publish groups of tasks, each just after *trouble* began; return their results."""
    add = app.task(name="add")(add_here)
    groups = []
    for _ in range(ROUNDS):
        with trouble():
            groups.append(group(add.s(number, 1) for number in range(TASKS))())
    return groups


def assert_they_come(site, groups):
    """Fail unless each task has one result, and a worker that starts now brings all of them."""
    alive = Counter(one.id for one in gc.get_objects() if isinstance(one, AsyncResult))
    assert [] == [one.id for many in groups for one in many.results if alive[one.id] > 1]
    gc.collect()
    site.worker(pool="threads", concurrency=2)
    expected = [number + 1 for number in range(TASKS)]
    for many in groups:
        assert expected == many.get(timeout=20)
    site.settled()


@pytest.mark.slow
def test_the_connection_was_killed_before_the_first(site):
    """A group gets its results if its connection was killed before the first publish."""
    site.send("add", 1, 1)
    raw = site.server.client()

    @contextmanager
    def killed():
        victims = [one["id"] for one in raw.client_list() if one["name"].startswith("reliq")]
        assert victims
        for victim in victims:
            raw.client_kill_filter(_id=victim)
        yield

    with closing(raw):
        groups = groups_of(site.app, killed)
    assert_they_come(site, groups)
