"""Redis comes back with nothing: no queue, no binding, no lease, no script."""

from __future__ import annotations

import pytest

from tests.support.workers import pools

CONFIG = {
    "task_acks_late": True,
    "task_ignore_result": True,
    "result_backend": None,
    "worker_prefetch_multiplier": 1,
    # A named exchange: its bindings are gone too.
    "task_default_queue": "orders",
    "task_default_exchange": "shop",
    "task_default_exchange_type": "topic",
    "task_default_routing_key": "order.new",
}


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", of=("prefork", "threads")))
def test_an_empty_broker_is_furnished_again(fresh_redis, site_factory, pool):
    """Workers declare anew and go on, publishers bind anew, lost leases are reported."""
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
        # At once: before the worker is back, which would declare what is missing.
        after = [site.send("record", producer=producer).id for _ in range(3)]
        worker.wait_log("lease lost", times=2, timeout_s=30)
        after += [site.send("record", producer=idle).id for _ in range(3)]
        for task_id in (*running, *after):
            site.journal.wait_finished(task_id, timeout_s=30)
    # The broker forgot what ran: nobody can run it again.
    assert dict.fromkeys([*before, *running, *after], 1) == site.journal.started()
    assert worker.running
    assert "Traceback" not in worker.log().partition("lease lost")[2]
    site.settled("orders")
    assert worker.shut_down() == 0
