"""Each test that uses `engine`, or a fixture built on it, runs once on every engine."""

from __future__ import annotations

from collections import Counter

import pytest

from reliq.batches.jobs import STATES
from tests.contract.engines import ENGINES, EXCLUDED
from tests.contract.jobs import job_of
from tests.contract.steps import Steps


def pytest_generate_tests(metafunc):
    """Give each test every engine except those that EXCLUDED lists for it."""
    if "running_engine" in metafunc.fixturenames:
        test = metafunc.function.__name__
        names = [name for name in ENGINES if test not in EXCLUDED.get(name, {})]
        metafunc.parametrize("running_engine", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def running_engine(request):
    """Return the broker of the test session."""
    engine = ENGINES[request.param]()
    yield engine
    engine.stop()


@pytest.fixture
def engine(running_engine):
    """Return the broker, emptied."""
    running_engine.clear()
    return running_engine


@pytest.fixture
def connect(engine):
    """Return a function that opens a store as a given consumer, wrapped in Steps.

    An audit of every queue that any store of the test touched follows each step.
    """
    opened = []
    touched = set()

    def open_store(consumer="s/1", **options):
        steps = Steps(engine.connect(consumer, **options), touched)
        opened.append(steps)
        return steps

    yield open_store
    for steps in opened:
        steps.store.close()


@pytest.fixture
def store(connect):
    """Return a store of the consumer s/1."""
    return connect()


@pytest.fixture
def other(connect):
    """Return a store of the consumer s/2."""
    return connect("s/2")


@pytest.fixture
def batches(store):
    """Return the batches of the broker."""
    return store.store.batches


@pytest.fixture
def change(batches):
    """Return a function that changes the batch "b" and returns the outcome of each change."""
    batches.open_batch("b", "enrol", {})

    def ask(*changes, by=""):
        return batches.change("b", changes, by=by).outcomes

    yield ask
    record = batches.batch("b")
    if record is not None:
        found = [job for part in batches.jobs("b") for job in part]
        there = Counter({job.id: job.state for job in found}.values())
        assert {state: there[state] for state in STATES} == record.counts
        failed = {job.id for job in found if job.state in {"failed", "error"}}
        assert failed == {job for job, _, _ in batches.failures("b", 1000)}


@pytest.fixture
def state(batches):
    """Return a function that returns the state of a job; None without that job."""

    def ask(job="j"):
        found = job_of(batches, "b", job)
        return found and found.state

    return ask
