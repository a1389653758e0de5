"""The documented sum for a scaler: never 0 while a task waits or runs, early ack or late."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from reliq.metrics import Collector
from tests.integration.features.test_metrics import Samples
from tests.support.journal import FINISHED
from tests.support.waiting import wait_until
from tests.support.workers import pools

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


def recipe():
    """Return the names that the documented query adds up, each for the queue "celery"."""
    query = re.search(r"query: >-\n(.*?)\n +threshold:", DOCUMENT.read_text("utf-8"), re.DOTALL)[1]
    names = re.findall(r'sum\((reliq_\w+)\{queue="celery"\}\)', query)
    assert len(names) == query.count("sum(") >= 3
    return names


class Scaler:
    """Queries the metrics like a scaler, as often as it can."""

    def __init__(self, url, options):
        self._collector = Collector(url, transport_options=options)
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        self._names = recipe()

    def look(self):
        """Return the current sum of the recipe, each of whose series has to exist."""
        found = Samples(generate_latest(self._registry).decode())
        values = [found.by("queue", name, queue="celery") for name in self._names]
        assert all(values), found.text
        return sum(
            sample.value
            for sample in found.samples
            if sample.name in self._names and sample.labels["queue"] == "celery"
        )

    def close(self):
        """Close its connection."""
        self._collector.close()


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", of=("prefork", "threads", "solo")))
@pytest.mark.parametrize("task", ["record", "record_late"])
def test_no_scaler_sees_nothing_while_a_task_runs(
    pool, task, site_factory, redis_server, redis_url
):
    """The sum is above 0 from the publish to the task's end, and 0 soon afterwards."""
    del redis_url  # this fixture empties the broker
    site = site_factory(redis_server, result_backend=None, task_ignore_result=True)
    site.worker(pool=pool, concurrency=2)
    scaler = Scaler(site.broker, site.transport_options)
    try:
        looks = 0
        for _ in range(2):
            sent = site.send(task, 1.5)
            while True:
                seen = scaler.look()
                if site.journal.entries(FINISHED, sent.id):
                    break
                looks += 1
                assert seen >= 1
            wait_until(lambda: scaler.look() == 0)
        assert looks > 10
    finally:
        scaler.close()
    site.settled()
