"""Redis restarts empty: without queues, bindings, leases and scripts."""

from __future__ import annotations

import pytest

from tests.support.workers import pools

CONFIG = {
    "task_acks_late": True,
    "task_ignore_result": True,
    "result_backend": None,
    "worker_prefetch_multiplier": 1,
    # A named exchange, whose bindings are lost too.
    "task_default_queue": "orders",
    "task_default_exchange": "shop",
    "task_default_exchange_type": "topic",
    "task_default_routing_key": "order.new",
}


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", of=("prefork", "threads")))
def test_an_empty_broker_is_furnished_again(fresh_redis, site_factory, pool):
    """After an empty restart workers and publishers declare again, and lost leases are logged."""
    site = site_factory(fresh_redis, **CONFIG)
    worker = site.worker(pool=pool, concurrency=2)
    with site.app.producer_or_acquire() as producer, site.app.producer_or_acquire() as idle:
        before = [site.send("record", producer=producer).id, site.send("record", producer=idle).id]
        for task_id in before:
            site.journal.wait_finished(task_id)
        running = [site.send("record", 4.0, producer=producer).id for _ in range(2)]
        for task_id in running:
            site.journal.wait_started(task_id)
        site.server.restart()
        # At once: before the worker reconnects and declares the missing queue.
        after = [site.send("record", producer=producer).id for _ in range(3)]
        worker.wait_log("lease lost", times=2, timeout_s=30)
        after += [site.send("record", producer=idle).id for _ in range(3)]
        for task_id in (*running, *after):
            site.journal.wait_finished(task_id, timeout_s=30)
    # The broker has forgotten the running tasks, so they cannot run again.
    assert dict.fromkeys([*before, *running, *after], 1) == site.journal.started()
    assert worker.running
    assert "Traceback" not in worker.log().partition("lease lost")[2]
    site.settled("orders")
    assert worker.shut_down() == 0
