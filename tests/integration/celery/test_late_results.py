"""Results over rpc:// for a client that has ended leave nothing behind."""

from __future__ import annotations

from celery import Celery

from tests.support.waiting import wait_until


def test_a_late_result_makes_no_queue(fresh_redis, site_factory):
    """A result for a client that has ended does not declare its reply queue again."""
    site = site_factory(fresh_redis, result_backend=None)
    worker = site.worker(pool="threads", config={"result_backend": "rpc://"})
    app = Celery("client", broker=site.broker, backend="rpc://", set_as_current=False)
    app.conf.broker_transport_options = site.transport_options
    assert 3 == app.send_task("add", (1, 2)).get(timeout=20)
    result = app.send_task("record", (1.0,))
    site.journal.wait_started(result.id)
    reply_queue = app.backend.binding.name
    app.backend.result_consumer.stop()
    app.close()
    app.pool.force_close_all()
    wait_until(lambda: f"no queue '{reply_queue}'" in worker.log())
    with fresh_redis.client() as client:
        left = [key.decode() for key in client.scan_iter() if reply_queue.encode() in key]
    assert [] == [key for key in left if not key.endswith(":publishers")]
    site.settled()
