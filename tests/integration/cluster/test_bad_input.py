"""A wrong address of a cluster, and a damaged cluster, are errors that state a remedy."""

from __future__ import annotations

import subprocess

import pytest
from kombu import Connection
from kombu.exceptions import OperationalError

from reliq import BrokerUnavailable, ConfigurationError
from reliq.admin import Inspector
from reliq.lua.keys import queue_key
from tests.integration.kombu_client import declare, get, publish
from tests.support.audits import assert_balanced
from tests.support.cluster import RedisCluster
from tests.support.commands import RELIQ, data, environment, run
from tests.support.servers import free_port
from tests.support.waiting import wait_until


def refused(url, *words, error=ConfigurationError, **options):
    """Fail unless Kombu's connection and the inspector refuse *url* in these words."""
    wrapped = (error, OperationalError)
    with pytest.raises(wrapped) as caught, Connection(url, transport_options=options) as connection:
        connection.default_channel  # noqa: B018 - it connects
    with pytest.raises(error) as said, Inspector(url, options):
        pass
    for exc in (caught.value, said.value):
        assert [] == [word for word in words if word not in str(exc)], exc


def test_a_seed_that_is_no_cluster(redis_server):
    """A seed that is a single server is named, with the scheme for such a server."""
    refused(
        f"reliq-cluster://127.0.0.1:{redis_server.port}",
        f"127.0.0.1:{redis_server.port}",
        "is no node of a cluster: use reliq:// for a single server",
    )


def test_one_of_the_seeds_is_no_cluster(cluster, redis_server):
    """The other seeds suffice in any order."""
    for _ in range(5):
        with Inspector(f"{cluster.url()};reliq-cluster://127.0.0.1:{redis_server.port}") as found:
            assert [] == found.queues()


@pytest.mark.slow
def test_no_seed_is_reachable():
    """The error names all tried nodes."""
    ports = (free_port(), free_port())
    url = ";".join(f"reliq-cluster://127.0.0.1:{port}" for port in ports)
    names = [f"127.0.0.1:{port}" for port in ports]
    refused(url, "none of 2 known nodes", *names, error=BrokerUnavailable)
    done = run(url, "status", "--interval", 0)
    assert (2, True) == (done.returncode, "none of 2 known nodes" in done.stderr)


def test_another_database(cluster):
    """A database other than 0 is refused, and a prefix is recommended to separate applications."""
    urls = [f"{url}/1" for url in cluster.url().split(";")]
    refused(";".join(urls), "Redis Cluster has no other", "global_keyprefix")
    refused(f"{urls[0]};{urls[1][:-1]}0", "to agree on the database")


def test_urls_that_disagree_on_the_password():
    """URLs with different passwords are refused without showing a password."""
    url = "reliq-cluster://:hush@a:7000;reliq-cluster://:other@b:7000"
    refused(url, "to agree on the password", "got 2 different ones")
    with pytest.raises(ConfigurationError) as caught, Inspector(url):
        pass
    assert "hush" not in str(caught.value)


def test_a_prefix_with_a_brace(cluster):
    """A prefix with a brace is refused, because all queues would share one slot."""
    refused(cluster.url(), "global_keyprefix", "{", global_keyprefix="{celery}:")


@pytest.mark.parametrize(
    "wrong",
    ["a:1", {"a:1": "b"}, {"a": "b:2"}, {"a:1": 2}, [("a:1",)], 7, {"a:1": "b:70000"}],
)
def test_an_address_map_that_is_none(cluster, wrong):
    """An invalid address_map is refused with the expected form."""
    refused(cluster.url(), "address_map", "a mapping of host:port to host:port", address_map=wrong)


@pytest.mark.slow
def test_a_wrong_password():
    """A wrong password is reported as such, not as a network problem."""
    cluster = RedisCluster(1, password="hush")
    try:
        cluster.start()
        url = cluster.url().replace("://", "://:wrong@")
        refused(url, "check username and password", error=BrokerUnavailable)
    finally:
        cluster.destroy()


@pytest.mark.slow
def test_a_user_without_the_right_to_ask_for_the_slots(cluster):
    """A user without the right to CLUSTER SLOTS receives an error that names the required rule."""
    for node in cluster.masters:
        node.ask("ACL", "SETUSER", "poor", "reset", "on", ">hush", "~*", "+@all", "-cluster")
    url = cluster.url().replace("://", "://poor:hush@")
    refused(url, "reliq acl", "--cluster", error=BrokerUnavailable)


@pytest.mark.slow
@pytest.mark.parametrize("full_coverage", ["yes", "no"])
def test_slots_that_no_node_has(full_coverage):
    """A command on an unassigned slot fails with the remedy; the doctor counts such slots."""
    extra = ("--cluster-require-full-coverage", full_coverage)
    cluster = RedisCluster(2, extra=extra)
    try:
        cluster.start()
        with Connection(cluster.url(), transport_options={"socket_timeout": 2}) as connection:
            declare(connection, "q")
            slot = int(cluster.masters[0].ask("CLUSTER", "KEYSLOT", queue_key("", "q", "meta")))
            for node in cluster.masters:
                node.ask("CLUSTER", "DELSLOTS", slot)
            wait_until(
                lambda: all(
                    (b"cluster_state:fail" in node.ask("CLUSTER", "INFO"))
                    is (full_coverage == "yes")
                    for node in cluster.masters
                ),
                what="nodes that notice",
            )
            with pytest.raises(BrokerUnavailable) as caught:
                connection.default_channel._size("q")
            assert f"slot {slot}" in str(caught.value)
            assert "redis-cli --cluster fix" in str(caught.value)
        rows = data(cluster.url(), "doctor", code=1)
        ((severity, text),) = [
            (row["severity"], row["message"]) for row in rows if row["check"] == "slots"
        ]
        assert ("error", True) == (severity, text.startswith("1 of 16384 slots have no node"))
    finally:
        cluster.destroy()


@pytest.mark.slow
def test_nodes_that_announce_what_cannot_be_reached():
    """address_map translates unreachable announced addresses, as behind NAT, and those of MOVED."""
    cluster = RedisCluster(2)
    try:
        announced = {}
        for node in cluster.masters:
            wrong = free_port()
            node.extra += ["--cluster-announce-bus-port", str(node.port + 10_000)]
            node.extra += ["--cluster-announce-port", str(wrong)]
            announced[f"127.0.0.1:{wrong}"] = f"127.0.0.1:{node.port}"
        cluster.start()

        def told():
            return all(
                {f"127.0.0.1:{port}" for _, _, (_, port, *_), *_ in node.ask("CLUSTER", "SLOTS")}
                == set(announced)
                for node in cluster.masters
            )

        wait_until(told, timeout_s=30, what="nodes that announce other ports")
        for text in ("is not reachable", "address_map"):
            refused(cluster.url(), text, error=BrokerUnavailable, socket_connect_timeout=1)
        options = {"address_map": announced}
        queues = ("celery", "red", "green", "blue")
        with Connection(cluster.url(), transport_options=options) as connection:
            for name in queues:
                publish(connection, name, 1)
            _swap_slots(cluster)
            for name in queues:
                publish(connection, name, 2)
                assert [1, 2] == [get(connection, name).payload for _ in range(2)]
        assert_balanced(cluster.url(), options)
        _commands_reach_them(cluster.url(), announced, queues)
    finally:
        cluster.destroy()


def _commands_reach_them(url, announced, queues):
    """Pass the same map to commands, by option and by environment variable."""
    pairs = [f"{one}={other}" for one, other in announced.items()]
    options = [word for pair in pairs for word in ("--address-map", pair)]
    found = data(url, "status", "--interval", 0, *options)
    assert sorted(queues) == sorted(queue["queue"] for queue in found["queues"])
    for separator in "; ":
        done = subprocess.run(
            [*RELIQ, "audit"],
            env=environment(url, RELIQ_ADDRESS_MAP=separator.join(pairs)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (0, True) == (done.returncode, "all balanced" in done.stdout), done.stderr
    assert 2 == run(url, "audit").returncode


def _swap_slots(cluster):
    """Move the slot of a queue to the other node, so that the next command receives MOVED."""
    from tests.support.cluster import Migration

    key = queue_key("", "red", "meta")
    source = next(
        node for node in cluster.masters if int(node.ask("CLUSTER", "COUNTKEYSINSLOT", _slot(key)))
    )
    target = next(node for node in cluster.masters if node is not source)
    migration = Migration(source, target, key)
    migration.open()
    migration.end()


def _slot(key):
    from redis.crc import key_slot

    return key_slot(key.encode())
