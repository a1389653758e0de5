"""A file behind a cluster: the nodes of a list are one broker, and the spool is the other."""

from __future__ import annotations

import pytest
from kombu import Connection

from tests.integration.kombu_client import publish
from tests.integration.test_spool import FAST, SETTINGS, counts
from tests.support.audits import assert_balanced
from tests.support.cluster import RedisCluster
from tests.support.site import CelerySite
from tests.support.waiting import wait_until


@pytest.fixture
def cluster():
    """Return a cluster of two masters, which keep what they have confirmed."""
    cluster = RedisCluster(2, appendonly=True)
    try:
        yield cluster.start()
    finally:
        cluster.destroy()


def restart(cluster):
    """Start all nodes again; return when each says that the cluster is whole."""
    for node in cluster.nodes:
        node.start()
    wait_until(
        lambda: all(b"cluster_state:ok" in node.ask("CLUSTER", "INFO") for node in cluster.nodes),
        timeout_s=60,
        what="a cluster that is whole",
    )


def test_a_cluster_is_away(cluster, tmp_path):
    """All its nodes: what is published goes to the spool, and comes home when they are back."""
    home, spool = cluster.url(), f"reliq-sqlite:///{tmp_path}/spool.db"
    options = {**FAST, "socket_connect_timeout": 1, "socket_timeout": 3}
    settings = {**SETTINGS, "broker_transport_options": options}
    site = CelerySite(cluster, "reliq", tmp_path, settings)
    site.broker = f"{home};{spool}"
    queues = ("celery", "red")
    try:
        for name in queues:
            site.send("record_late", queue=name)
            assert {"ready": 1} == counts(home, name)
        for node in cluster.nodes:
            node.kill()
        sent = [site.send("record_late", queue=name).id for name in (*queues, *queues)]
        kept = [sum(counts(spool, name).values()) for name in queues]
        assert [2, 2] == kept
        restart(cluster)
        wait_until(lambda: not any(counts(spool, name) for name in queues), timeout_s=90)
        assert [3, 3] == [sum(counts(home, name).values()) for name in queues]
        site.worker(pool="solo", queues=queues)
        for task in sent:
            site.journal.wait_finished(task, timeout_s=60)
        assert {1} == set(site.journal.started().values())
        with Connection(spool) as connection:
            publish(connection, "red", "left by another")
        wait_until(lambda: {} == counts(spool, "red"), timeout_s=60)
        assert_balanced(home)
        assert_balanced(spool)
    finally:
        site.close()
