"""Workers whose connections lose packets notice it and reconnect, and nothing runs twice."""

from __future__ import annotations

import time

import pytest

from tests.support.blackhole import Blackhole
from tests.support.workers import pools

LATE = {"task_acks_late": True, "task_ignore_result": True, "worker_prefetch_multiplier": 2}
OPTIONS = {
    "visibility_timeout": 20.0,
    "restore_interval": 0.5,
    "orphan_grace": 5.0,
    "poll_interval": 1.0,
    "socket_timeout": 2.0,
}
# Noticed within socket_timeout + poll_interval; then Celery connects and declares again.
BACK_S = OPTIONS["socket_timeout"] + OPTIONS["poll_interval"] + 15.0


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", "gevent"))
def test_a_worker_notices_and_goes_on(site, site_factory, pool):
    """A worker, idle or busy, with an event loop or without, reconnects and keeps its leases."""
    near = site_factory(site.server, **LATE, broker_transport_options=OPTIONS, result_backend=None)
    proxy = Blackhole(site.server)
    try:
        worker = near.worker(pool=pool, concurrency=2, broker=proxy.url())
        long = near.send("record", 4.0).id
        near.journal.wait_started(long)
        assert proxy.swallow()
        began = time.monotonic()
        short = near.send("record").id
        near.journal.wait_finished(short, timeout_s=BACK_S + 10)
        took_s = near.journal.wait_finished(short).at - began
        print(f"{pool}: {took_s:.1f} s")
        if pool != "solo":  # its only thread is in the long task.
            assert took_s < BACK_S
        near.journal.wait_finished(long)
        near.settled(timeout_s=30)
        assert {long: 1, short: 1} == near.journal.started()
        assert worker.running
    finally:
        proxy.close()
