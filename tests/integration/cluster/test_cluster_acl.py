"""`reliq acl --cluster`: each node has users that are limited to the printed rules."""

from __future__ import annotations

import pytest
from kombu import Connection

from reliq import BrokerRefused
from reliq.admin import acl_rule
from tests.integration.cli.test_cli_acl import scraped
from tests.integration.kombu_client import Taker, declare, get, publish
from tests.support.audits import assert_balanced
from tests.support.cluster import RedisCluster
from tests.support.commands import data, run
from tests.support.site import CelerySite
from tests.support.waiting import wait_until

PASSWORD = "s3cret"
QUEUES = ("celery", "red", "green", "blue")


@pytest.fixture(scope="module")
def cluster():
    """Return a cluster of three masters, each with one replica."""
    with RedisCluster(3, 1) as cluster:
        yield cluster


@pytest.fixture
def user(cluster):
    """Return a function that makes a user of a role, and returns its URL."""
    cluster.flush()

    def make(role, **options):
        rule = run(None, "acl", role, "--cluster", *options.get("arguments", ())).stdout
        for node in cluster.nodes:
            node.ask(*rule.replace("<password>", PASSWORD).split())
            node.ask("ACL", "LOG", "RESET")
        return cluster.url().replace("://", f"://reliq-{role}:{PASSWORD}@")

    yield make
    assert [] == refusals(cluster)
    assert_balanced(cluster.url())


def refusals(cluster):
    """Return the commands that any node refused to our users."""
    found = []
    for node in cluster.nodes:
        with node.client(decode_responses=True) as client:
            found += [entry["object"] for entry in client.acl_log()]
    return found


def test_the_rule(cluster):
    """Each role that connects to nodes has one additional right, CLUSTER SLOTS."""
    rules = data(None, "acl", "--cluster")
    assert {"sentinel"} == {role for role, rule in rules.items() if "+cluster|slots" not in rule}
    assert acl_rule("worker", cluster=True).replace(" +cluster|slots", "") == acl_rule("worker")


def test_a_producer(cluster, user):
    """A producer declares, routes and publishes at all nodes, with confirmation by replicas."""
    url = user("producer", arguments=("--confirm", "replicated"))
    with Connection(url, transport_options={"confirm": "replicated"}) as connection:
        for name in QUEUES:
            declare(connection, name)
            publish(connection, name, 1, 2)
        assert [] == refusals(cluster)
        with pytest.raises(BrokerRefused, match="lacks a permission"):
            get(connection, "red")
    for node in cluster.nodes:
        node.ask("ACL", "LOG", "RESET")


@pytest.mark.slow
def test_real_workers(cluster, user, tmp_path):
    """Celery workers run tasks and return those of a killed worker without a refusal."""
    url = user("worker")
    late = {"task_acks_late": True, "task_ignore_result": True, "result_backend": None}
    site = CelerySite(cluster, "reliq", tmp_path, late)
    site.broker = url
    try:
        first = site.worker(pool="prefork", concurrency=2, queues=QUEUES)
        held = site.send("long_first", 60).id
        wait_until(lambda: site.journal.runs(held) == 1, timeout_s=30)
        second = site.worker(pool="threads", concurrency=2, queues=QUEUES)
        first.kill_group()
        sent = [held, site.send("record", countdown=1, queue="green").id]
        sent += [site.send("record", queue=name).id for name in QUEUES]
        for task in sent:
            site.journal.wait_finished(task, timeout_s=60)
        assert 0 == second.shut_down()
    finally:
        site.close()


@pytest.mark.slow
def test_an_operator_and_an_exporter(cluster, user):
    """Operators and exporters run under their rules; the doctor finds no missing right."""
    with Connection(cluster.url()) as connection:
        for name in QUEUES:
            declare(connection, name)
            publish(connection, name, 1, 2, 3)
        taker = Taker(connection, "red", auto_declare=False)
        taker.take(3)[0].reject()
        url = user("operator", arguments=("--config",))
        assert 1 == len(data(url, "consumers"))
        taker.consumer.cancel()
    (found,) = [row for row in data(url, "doctor") if row["check"] == "acl"]
    assert "all 3 masters: this user has all rights that reliq needs" == found["message"]
    (found,) = [row for row in data(url, "doctor") if row["check"] == "replica acl"]
    assert "3 replicas know user 'reliq-operator' as the masters do" == found["message"]
    data(url, "status", "--interval", 0)
    data(url, "dead", "replay", "red", "--to", "green")
    data(url, "queue", "pause", "blue")
    data(url, "queue", "delete", "blue", "--yes")
    assert [] == refusals(cluster)
    text = scraped(user("exporter"))
    assert 3 == text.count("reliq_node_up{")
    assert "reliq_messages_ready" in text


UNLIKE = {
    "is not there": (("ACL", "DELUSER", "reliq-operator"), "refuses the login of user"),
    "has another password": (
        ("ACL", "SETUSER", "reliq-operator", "resetpass", ">other"),
        "refuses the login of user",
    ),
    "may do less": (
        ("ACL", "SETUSER", "reliq-operator", "-info"),
        "refuses user 'reliq-operator' commands that its master allows: INFO",
    ),
    "has other keys": (
        ("ACL", "SETUSER", "reliq-operator", "resetkeys", "~shop:*"),
        "refuses user 'reliq-operator' commands that its master allows: EXISTS",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("unlike", UNLIKE)
def test_a_user_that_is_another_at_a_replica(cluster, user, unlike):
    """The doctor names replica, user and remedy, because a failover would lock clients out."""
    change, said = UNLIKE[unlike]
    url = user("operator", arguments=("--config",))
    replica = cluster.replicas[1]
    replica.ask(*change)
    found = [row for row in data(url, "doctor") if row["check"] == "replica acl"]
    for node in cluster.nodes:
        node.ask("ACL", "LOG", "RESET")
    (wrong,) = [row for row in found if row["severity"] != "ok"]
    assert "warning" == wrong["severity"]
    assert wrong["message"].startswith(f"replica 127.0.0.1:{replica.port} {said}"), wrong
    assert "'reliq-operator'" in wrong["message"]
    assert "ACL SETUSER" in wrong["remedy"]
    assert PASSWORD not in str(found)
    assert ["2 replicas know user 'reliq-operator' as the masters do"] == [
        row["message"] for row in found if row["severity"] == "ok"
    ]
