"""A worker while Redis cannot save, and therefore refuses each write (MISCONF)."""

from __future__ import annotations

import contextlib
from contextlib import closing

import pytest
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from tests.support.site import CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import pools


@pytest.fixture
def disk(redis_factory, tmp_path):
    """Return a server, and two functions: end and allow its writes."""
    dump = tmp_path / "disk" / "dump.rdb"
    dump.parent.mkdir()
    server = redis_factory(extra=["--dir", str(dump.parent), "--save", "3600 1"])
    client = server.client()

    def is_saved(good):
        with contextlib.suppress(ResponseError):  # a save is under way
            client.bgsave()
        return (client.info("persistence")["rdb_last_bgsave_status"] == "ok") is good

    def full():
        dump.unlink(missing_ok=True)
        dump.mkdir()
        wait_until(lambda: is_saved(good=False), what="a failed save")

    def free():
        dump.rmdir()
        wait_until(lambda: is_saved(good=True), what="a save")

    with closing(client):
        yield server, full, free


@pytest.mark.slow
@pytest.mark.parametrize(
    "pool", pools("prefork", "threads", of=("prefork", "threads", "gevent", "solo"))
)
def test_a_worker_waits_until_redis_can_save(disk, tmp_path, pool):
    """A worker whose Redis refuses writes does not end, and its finished tasks run once."""
    server, full, free = disk
    config = {"task_ignore_result": True, "result_backend": None, "task_acks_late": True}
    site = CelerySite(server, "reliq", tmp_path, config)
    with closing(site):
        worker = site.worker(pool=pool, concurrency=2)
        tasks = [site.send("record", 2.0).id for _ in range(4)]
        site.journal.wait_started(tasks[0])
        full()
        with pytest.raises(OperationalError, match=r"MISCONF.*check its log and disk"):
            site.app.send_task("record", retry=False)
        site.journal.wait_finished(tasks[0])
        worker.wait_log("MISCONF")
        free()
        for task in (*tasks, site.send("record").id):
            site.journal.wait_finished(task)
        site.settled()
        assert worker.running
        assert [1] * 4 == [site.journal.runs(task) for task in tasks]
        assert "Traceback" not in worker.log()
        assert 0 == worker.shut_down()
