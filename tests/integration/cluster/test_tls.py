"""TLS over a cluster: at every node, with the checked name of each."""

from __future__ import annotations

import socket

import pytest
from kombu import Connection

from reliq import BrokerUnavailable
from reliq.admin import Inspector
from reliq.client.cluster.slots import slot_of
from reliq.lua.keys import broker_keys, queue_key
from tests.integration.kombu_client import declare, get, publish
from tests.support.audits import assert_balanced
from tests.support.cluster import Migration, RedisCluster
from tests.support.commands import data
from tests.support.servers import server_version
from tests.support.site import CelerySite

QUEUES = ("celery", "red", "green", "blue")
OPTIONS = {"socket_timeout": 3.0}


def slot(queue):
    """Return the slot of a queue."""
    return slot_of(queue_key("", queue, "meta"))


def of_elsewhere(certificates):
    """Return server certificates that the right CA has signed, for another name."""
    return certificates._replace(
        server_cert=certificates.other_host_cert, server_key=certificates.other_host_key
    )


@pytest.fixture(scope="module")
def cluster(certificates):
    """Return a cluster that uses TLS also between its nodes, with certificates for 127.0.0.1."""
    cluster = RedisCluster(3, tls=certificates)
    cluster.seeds = cluster.masters[:1]  # the others are discovered
    yield cluster.start()
    cluster.destroy()


@pytest.mark.slow
def test_every_node(cluster):
    """Discovered nodes are used over TLS, those of a MOVED reply included."""
    with Connection(cluster.url(), transport_options=OPTIONS) as connection:
        for name in QUEUES:
            declare(connection, name)
            publish(connection, name, 1)
            assert 1 == get(connection, name).payload
        source = cluster.owner(slot("red"))
        target = next(node for node in cluster.masters if node is not source)
        migration = Migration(source, target, queue_key("", "red", "meta"))
        migration.open()
        migration.end()
        publish(connection, "red", 2)
        assert 2 == get(connection, "red").payload
    for node in cluster.masters:
        assert int(node.client().info("stats")["total_connections_received"]) > 0
    assert dict.fromkeys(QUEUES, True) == {
        row["queue"]: row["balanced"] for row in data(cluster.url(), "audit")
    }
    assert "ok" in {row["severity"] for row in data(cluster.url(), "doctor")}
    assert_balanced(cluster.url())


def test_workers(cluster, tmp_path):
    """Celery workers consume from queues at all nodes."""
    config = {"result_backend": None, "task_ignore_result": True}
    site = CelerySite(cluster, "reliq", tmp_path, config)
    try:
        worker = site.worker(pool="threads", queues=QUEUES)
        for queue in QUEUES:
            site.journal.wait_finished(site.send("record", queue=queue).id)
        assert worker.shut_down() == 0
    finally:
        site.close()


def test_without_the_ca(cluster):
    """Without the CA, the connection fails with an error of certificate verification."""
    url = f"{cluster.url().partition('?')[0]}?ssl=true"
    with pytest.raises(BrokerUnavailable, match="certificate verify failed"), Inspector(url):
        pass


def test_a_certificate_of_another_name(certificates):
    """A node's certificate must name the address that the node announces."""
    cluster = RedisCluster(1, tls=of_elsewhere(certificates))
    try:
        cluster.start()
        with (
            pytest.raises(BrokerUnavailable, match=r"not valid for '127\.0\.0\.1'"),
            Inspector(cluster.url()),
        ):
            pass
        with Inspector(f"{cluster.url()}&ssl_check_hostname=false") as inspector:
            assert [] == inspector.queues()
    finally:
        cluster.destroy()


@pytest.mark.slow
def test_one_node_with_a_certificate_of_another_name(certificates):
    """A node whose certificate has another name is refused, and the other queues are served."""
    cluster = RedisCluster(3, tls=certificates)
    anchor = slot_of(broker_keys("").queues)
    wrong = cluster.masters[0 if anchor >= 16384 // 3 else 1]
    wrong.tls = of_elsewhere(certificates)
    cluster.seeds = [node for node in cluster.masters if node is not wrong]
    try:
        cluster.start()
        bad = next(f"q{n}" for n in range(99) if cluster.owner(slot(f"q{n}")) is wrong)
        good = next(f"q{n}" for n in range(99) if cluster.owner(slot(f"q{n}")) is not wrong)
        with Connection(cluster.url(), transport_options=OPTIONS) as connection:
            publish(connection, good, 1)
            assert 1 == get(connection, good).payload
            with pytest.raises(BrokerUnavailable, match=r"not valid for '127\.0\.0\.1'"):
                publish(connection, bad, 1)
            publish(connection, good, 2)
            assert 2 == get(connection, good).payload
    finally:
        cluster.destroy()


ANNOUNCING = ("--cluster-announce-hostname", "elsewhere.invalid")
ANNOUNCING += ("--cluster-preferred-endpoint-type", "hostname")
# Redis 6.2 announces addresses only.
NAMED_BY = ["address_map", "the nodes"] if server_version() >= (7, 0) else ["address_map"]


@pytest.mark.slow
@pytest.mark.parametrize("named_by", NAMED_BY)
def test_names_for_the_nodes(certificates, monkeypatch, named_by):
    """If certificates name hosts instead of addresses, the mapped or announced name is checked."""
    find = socket.getaddrinfo

    def found(host, *arguments, **named):
        return find("127.0.0.1" if host == "elsewhere.invalid" else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    extra = ANNOUNCING if named_by == "the nodes" else ()
    cluster = RedisCluster(2, tls=of_elsewhere(certificates), extra=extra)
    try:
        cluster.start()
        url = cluster.url().replace("127.0.0.1", "elsewhere.invalid")
        ports = [node.tls_port for node in cluster.masters]
        reachable = {f"127.0.0.1:{port}": f"elsewhere.invalid:{port}" for port in ports}
        options = {**OPTIONS, "address_map": {} if named_by == "the nodes" else reachable}
        with Connection(url, transport_options=options) as connection:
            for name in QUEUES:
                publish(connection, name, 1)
                assert 1 == get(connection, name).payload
        assert_balanced(url, options)
    finally:
        cluster.destroy()
