"""A worker's log while a node of its cluster is unreachable: each loss once, and its end."""

from __future__ import annotations

import pytest
from kombu import Connection, Exchange, Queue

from reliq.client.cluster.slots import slot_of
from reliq.lua.keys import broker_keys, queue_key
from tests.integration.celery.test_celery_logs import lines
from tests.support.cluster import RedisCluster
from tests.support.site import FAST, CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import pools

pytestmark = pytest.mark.slow

CONFIG = {
    "task_ignore_result": True,
    "result_backend": None,
    "broker_transport_options": {**FAST, "visibility_timeout": 5.0, "socket_timeout": 1.0},
}
EVENTS = Exchange("celeryev", "fanout")
# Number of a worker's events: more than it sends until it knows that the node is unreachable.
MANY = 6


@pytest.fixture(scope="module")
def cluster():
    """Return a cluster of persistent nodes without replicas that serves the remaining slots."""
    extra = ["--cluster-require-full-coverage", "no"]
    with RedisCluster(3, node_timeout_ms=1000, appendonly=True, extra=extra) as cluster:
        yield cluster


@pytest.fixture
def site(cluster, tmp_path_factory):
    """Return a Celery application on the cluster, which is empty."""
    cluster.flush()
    site = CelerySite(cluster, "reliq", tmp_path_factory.mktemp("site"), dict(CONFIG))
    yield site
    site.close()


def owner(cluster, queue):
    """Return the node of a queue."""
    return cluster.owner(slot_of(queue_key("", queue, "meta")))


@pytest.mark.parametrize("pool", pools("prefork", of=("prefork", "threads")))
def test_an_outage_is_told_once(cluster, site, pool):
    """A worker logs an outage once: lost queues with their node, lost events, and the return."""
    anchor = cluster.owner(slot_of(broker_keys("").queues))
    victim = next(node for node in cluster.masters if node is not anchor)
    names = [f"{pool}{number}" for number in range(100)]
    *there, lost_events = [name for name in names if owner(cluster, name) is victim][:3]
    *here, events = [name for name in names if owner(cluster, name) is anchor][:2]
    worker = site.worker(pool=pool, queues=[*there, *here], arguments=["--without-gossip"])
    for name in (*there, *here):
        site.journal.wait_finished(site.send("record", queue=name).id)
    with Connection(cluster.url()) as connection:
        for name in (lost_events, events):
            Queue(name, EVENTS)(connection.default_channel).declare()
        status = connection.default_channel.transport.link.store.reads.status
        wait_until(lambda: status(events).ready)
        victim.kill()
        before = status(events).ready
        wait_until(lambda: status(events).ready >= before + MANY, timeout_s=60)
    wait_until(lambda: lines(worker, "cannot consume from"), timeout_s=30)
    ((level, text),) = lines(worker, "cannot consume from")
    assert ("WARNING", True) == (level, f"127.0.0.1:{victim.port}" in text)
    assert there == [name for name in (*there, *here) if repr(name) in text]
    ((level, text),) = lines(worker, "may be lost")
    assert ("WARNING", True) == (level, repr(lost_events) in text)
    assert repr(events) not in text
    for name in here:
        site.journal.wait_finished(site.send("record", queue=name).id)
    assert [] == lines(worker, "consuming from")
    victim.start()
    worker.wait_log("consuming from", timeout_s=60)
    worker.wait_log("arrive again", timeout_s=60)
    for name in there:
        site.journal.wait_finished(site.send("record", queue=name).id)
    wait_until(lambda: all(repr(name) in str(lines(worker, "consuming from")) for name in there))
    # In one line, or in several, as the node begins to serve the queues.
    said = lines(worker, "consuming from")
    assert {"INFO"} == {level for level, _ in said}
    text = str(said)
    assert [1, 1, 0] == [text.count(repr(name)) for name in (*there, *here)]
    ((level, _),) = lines(worker, "arrive again")
    assert "INFO" == level
    assert [1, 1] == [len(lines(worker, words)) for words in ("cannot consume", "may be lost")]
    assert 0 == worker.shut_down()
