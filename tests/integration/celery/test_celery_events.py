"""Celery's events, which workers and monitors read in the log of their exchange."""

from __future__ import annotations

from contextlib import suppress

import pytest
from kombu import Consumer

from tests.support.waiting import wait_until
from tests.support.workers import POOLS


@pytest.mark.parametrize(
    "pool",
    [pool if pool == "solo" else pytest.param(pool, marks=pytest.mark.slow) for pool in POOLS],
)
def test_workers_and_a_monitor_get_every_event(site_factory, redis_factory, pool):
    """Workers learn of each other, and a monitor of each task; no queue stores their events."""
    server = redis_factory()
    site = site_factory(server, worker_send_task_events=True)
    workers = [
        site.worker(pool=pool, concurrency=2, loglevel="DEBUG", arguments=["-E"]) for _ in range(2)
    ]
    for worker, other in (workers, reversed(workers)):
        worker.wait_log(f"{other.name} joined the party")
    seen = []
    with (
        site.app.connection_for_read() as connection,
        Consumer(
            connection.channel(),
            [site.app.events.Receiver(connection).queue],
            callbacks=[lambda body, _: seen.extend(body if isinstance(body, list) else [body])],
            no_ack=True,
        ),
    ):
        tasks = {site.send("record", 0).id for _ in range(10)}

        def finished():
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)
            return {e["uuid"] for e in seen if e["type"] == "task-succeeded"} == tasks

        wait_until(finished, what="the events of all tasks")
        assert {worker.name for worker in workers} >= {event["hostname"] for event in seen}
        with server.client() as client:
            names = [key.decode() for key in client.scan_iter("reliq:{celeryev.*}:stats")]
            assert not [name for name in names if client.hexists(name, "published")]
            logged = client.zcard("reliq:log:{celeryev}")
        assert logged
    for worker in workers:
        assert 0 == worker.shut_down()
        assert "Traceback" not in worker.log()
