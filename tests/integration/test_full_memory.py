"""Each script on a Redis whose memory is full: scripts that empty or refill a queue still run."""

from __future__ import annotations

from contextlib import closing

import pytest

from reliq.errors import BrokerRefused, ReliqError
from tests.support.site import CelerySite

from .test_malformed_scripts import Junked, K

REFUSED = {"publish", "accept"}
"""Scripts that store new messages are refused completely."""

NAMES = (
    *("publish", "reserve", "reserve no_ack", "ack", "late ack", "release", "requeue"),
    *("dead_letter", "renew", "restore", "end", "promote", "expire", "survey", "replay"),
    *("purge_dead", "purge", "move", "move_out", "accept"),
)


@pytest.fixture(scope="module")
def full():
    """Return a queue with a message of each kind, on a server that can be filled."""
    from tests.support.servers import RedisServer

    server = RedisServer(extra=["--maxmemory-policy", "noeviction"])
    try:
        queue = Junked(server.start())
        yield queue
        queue.store.close()
    finally:
        server.destroy()


@pytest.mark.parametrize("name", NAMES)
def test_full_memory_stops_only_what_is_new(full, name):
    """A full Redis refuses only new messages, and leaves no message in two places."""
    full.fresh()
    operation, takes = full.operations()[name]
    before = full.places("")
    full.raw.config_set("maxmemory", 1)
    error = None
    try:
        operation()
    except ReliqError as exc:
        error = exc
    finally:
        full.raw.config_set("maxmemory", 0)
    after = full.places("")
    stored = {tag.decode() for tag in full.raw.hkeys(K.messages)}
    assert isinstance(error, BrokerRefused) if name in REFUSED else error is None, error
    assert after.keys() == stored
    assert [] == [places for places in after.values() if len(places) > 1]
    assert set() == before.keys() - after.keys() - set(takes)
    if error is not None:
        assert before == after


def test_every_script_is_among_them(full):
    """NAMES has every operation."""
    assert sorted(full.operations()) == sorted(NAMES)


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_workers_work_off_what_has_filled_it(redis_factory, tmp_path, pool):
    """Workers that reconnect, or start with or without mingle, process a full Redis's queues."""
    server = redis_factory(extra=["--maxmemory-policy", "noeviction"])
    config = {"task_ignore_result": True, "result_backend": None}
    site = CelerySite(server, "reliq", tmp_path, config)
    with closing(site), server.client() as client:
        first = site.worker(pool=pool, mingle=True)
        queues = ("celery", "asks", "asks not")
        tasks = [site.send("record", 0.5, queue=name).id for name in queues for _ in range(4)]
        client.config_set("maxmemory", "1mb")
        client.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(BrokerRefused, match="OOM"):
            site.send("record")
        begun = [
            site.worker(pool=pool, mingle=True, queues=("asks", "new")),
            site.worker(pool=pool, mingle=False, queues=("asks not",)),
        ]
        for task in tasks:
            site.journal.wait_finished(task, timeout_s=30)
        for worker in (first, *begun):
            assert worker.running
            assert "Traceback" not in worker.log()
            assert 0 == worker.shut_down()
        for name in queues:
            site.settled(name)
