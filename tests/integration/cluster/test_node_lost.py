"""Operators' view of a cluster with one lost node: the other queues, and the missing ones."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from urllib.parse import quote

import pytest
from kombu import Connection
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from reliq import BrokerUnavailable
from reliq.admin import Inspector
from reliq.client.cluster.slots import slot_of
from reliq.lua.keys import queue_key
from reliq.metrics import Collector
from tests.integration.cli.test_cli_acl import scraped
from tests.integration.kombu_client import declare, get, publish
from tests.integration.web.test_guard import walk
from tests.integration.web_client import page, read
from tests.support.audits import assert_balanced
from tests.support.cluster import ANCHOR, Migration, RedisCluster
from tests.support.commands import data, run
from tests.support.waiting import wait_until

# At all three nodes; one name is escaped in keys.
QUEUES = ("celery", "red", "green", "blue", "a{b}%c")


def slot(queue):
    """Return the slot of a queue."""
    return slot_of(queue_key("", queue, "meta"))


@pytest.fixture(scope="module")
def running():
    """Return a cluster of persistent nodes that serves the remaining slots after a loss."""
    extra = ("--cluster-require-full-coverage", "no")
    with RedisCluster(3, appendonly=True, extra=extra) as cluster:
        yield cluster


@pytest.fixture
def cluster(running):
    """Return the cluster with a message in each queue."""
    running.flush()
    with Connection(running.url()) as connection:
        for name in QUEUES:
            declare(connection, name)
            publish(connection, name, 1)
    yield running
    assert_balanced(running.url())


@contextmanager
def killed(cluster, node):
    """Kill a node; start it again at the end."""
    node.kill()
    try:
        yield
    finally:
        node.start()
        cluster.wait_whole()


@contextmanager
def frozen(cluster, node):
    """Freeze a node: its connections stay open, and it accepts new ones."""
    node.freeze()
    try:
        yield
    finally:
        node.thaw()
        cluster.wait_whole()


WAYS = {"killed": killed, "frozen": frozen}


LOSSES = [
    "killed-anchor",
    "killed-another",
    pytest.param("frozen-anchor", marks=pytest.mark.slow),
    pytest.param("frozen-another", marks=[pytest.mark.slow, pytest.mark.long]),
]


@pytest.fixture(params=LOSSES)
def loss(request):
    """Return the way of the loss, and which node is lost."""
    return request.param.split("-")


@pytest.fixture
def lose(loss):
    """Return the context manager that makes a node unreachable."""
    return WAYS[loss[0]]


@pytest.fixture
def victim(loss, cluster):
    """Return the node to lose: that of the list of queues, or one that has only queues."""
    anchor = cluster.owner(ANCHOR)
    if loss[1] == "anchor":
        return anchor
    return next(
        cluster.owner(slot(name)) for name in QUEUES if cluster.owner(slot(name)) is not anchor
    )


@pytest.fixture
def elsewhere(cluster, victim):
    """Return the queues at reachable nodes."""
    names = [name for name in QUEUES if cluster.owner(slot(name)) is not victim]
    assert 0 < len(names) < len(QUEUES)
    return sorted(names)


def at(node):
    """Return the name of a node."""
    return f"127.0.0.1:{node.port}"


def missing(cluster, victim, elsewhere):
    """Return the queues at the lost node whose names are still known."""
    if victim is cluster.owner(ANCHOR):
        return []  # their names are lost with the node
    return sorted(set(QUEUES) - set(elsewhere))


@pytest.mark.slow
def test_status(cluster, victim, elsewhere, lose):
    """`status` shows the other nodes' queues, names the missing ones, and does not wait long."""
    absent = missing(cluster, victim, elsewhere)
    with lose(cluster, victim):
        found = data(cluster.url(), "status", "--interval", 0, code=2)
        done = run(cluster.url(), "status", "--interval", 0)
        with Inspector(cluster.url(), lost_node_s=60) as inspector:
            nodes, waits = inspector._store._wire.nodes, []
            failed = nodes.failed
            nodes.failed = lambda place, error: (waits.append(str(place)), failed(place, error))
            for _ in range(2):
                inspector.report()
    # The node is waited for once: when the connection is opened, or at the first report.
    assert [at(victim)] * (victim is not cluster.owner(ANCHOR)) == waits
    assert elsewhere == sorted(queue["queue"] for queue in found["queues"])
    assert {1} == {queue["ready"] for queue in found["queues"]}
    (broker,) = found["brokers"]
    assert (True, "cluster of 3 masters, 2 answer") == (broker["reachable"], broker["role"])
    said = [row for row in found["untold"] if row["node"] == at(victim)]
    assert absent == sorted(name for row in said for name in row["queues"])
    assert {at(victim)} == {row["node"] for row in found["untold"]}
    assert f"if {at(victim)} is down, start it again" in done.stderr
    assert "--cluster fix" not in done.stderr
    assert [] == [name for name in absent if repr(name) not in done.stderr]
    assert "unreadable queues" in done.stdout


@pytest.mark.slow
def test_audit(cluster, victim, elsewhere, lose):
    """`audit` shows the ledgers of the other nodes, and exits with 2 because some are missing."""
    absent = missing(cluster, victim, elsewhere)
    with lose(cluster, victim):
        rows = data(cluster.url(), "audit", code=2)
        done = run(cluster.url(), "audit")
        with Inspector(cluster.url(), {"socket_timeout": 2}) as inspector:
            assert elsewhere == sorted(
                result.queue for result in inspector.audit() if result.balanced
            )
            with pytest.raises(BrokerUnavailable):
                inspector.audit().whole()
    assert dict.fromkeys(elsewhere, True) == {row["queue"]: row["balanced"] for row in rows}
    assert (2, True) == (done.returncode, at(victim) in done.stderr)
    assert [] == [name for name in absent if repr(name) not in done.stderr]


@pytest.mark.slow
def test_the_doctor(cluster, victim, elsewhere, lose):
    """The doctor names the lost node, and checks the other nodes, their queues and ledgers."""
    absent = missing(cluster, victim, elsewhere)
    with lose(cluster, victim):
        rows = data(cluster.url(), "doctor", code=1)
    by_check = {}
    for row in rows:
        by_check.setdefault(row["check"], []).append((row["severity"], row["message"]))
    ((severity, text),) = by_check["node"]
    assert ("error", True) == (severity, text.startswith(f"{at(victim)} has slots and cannot be"))
    untold = [text for severity, text in by_check["queues"] if severity == "error"]
    assert [] == [name for name in absent if not any(repr(name) in text for text in untold)]
    assert [("ok", f"{len(elsewhere)} queues, all balanced")] == by_check["ledger"]
    ((severity, text),) = by_check["consumers"]
    if victim is cluster.owner(ANCHOR):
        assert ("error", True) == (severity, f"registered at {at(victim)}" in text)
    else:
        assert "ok" == severity
    assert {"version", "keys", "clock"} <= set(by_check)


def families(text):
    """Return name -> labels -> value of the scraped metrics."""
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


def by(label, found, name):
    """Return the values of a family by one label."""
    return {labels[label]: value for labels, value in found[name]}


@pytest.mark.slow
def test_the_exporter(cluster, victim, elsewhere, lose):
    """An exporter reports the broker as up, the node as down, and series of the other queues."""
    absent = missing(cluster, victim, elsewhere)
    with lose(cluster, victim):
        found = families(scraped(cluster.url()))
    assert [1] == [value for _, value in found["reliq_up"]]
    nodes = {at(node): int(node is not victim) for node in cluster.masters}
    assert nodes == by("node", found, "reliq_node_up")
    counts = {at(node): len(absent) if node is victim else 0 for node in cluster.masters}
    assert counts == by("node", found, "reliq_node_queues_untold")
    assert dict.fromkeys(elsewhere, 1) == by("queue", found, "reliq_messages_ready")


@pytest.mark.slow
def test_an_exporter_that_was_there_before(cluster, victim, elsewhere, lose):
    """A running exporter keeps the names of known queues, even if their list is lost."""
    registry = CollectorRegistry()
    with closing(Collector(cluster.url())) as collector:
        registry.register(collector)
        assert len(QUEUES) == len(
            families(generate_latest(registry).decode())["reliq_messages_ready"]
        )
        with lose(cluster, victim):
            began = time.monotonic()
            found = families(generate_latest(registry).decode())
            took_s = time.monotonic() - began
        assert took_s < 8  # Prometheus waits for 10
        assert elsewhere == sorted(by("queue", found, "reliq_messages_ready"))
        untold = by("node", found, "reliq_node_queues_untold")
        assert len(QUEUES) - len(elsewhere) == untold[at(victim)]

        def complete():
            found = families(generate_latest(registry).decode())
            return found if len(QUEUES) == len(found["reliq_messages_ready"]) else None

        # A node is not retried within a second of a failed connection, here the last scrape's.
        found = wait_until(complete, timeout_s=5, what="all queues")
        assert {0} == set(by("node", found, "reliq_node_queues_untold").values())


@pytest.mark.slow
def test_the_page(cluster, victim, elsewhere, lose):
    """The web page shows the queues of the other nodes, and names the lost node."""
    with page(cluster.url()) as browser:
        assert {"/", "/dead", "/delayed", "/consumers"} <= {*walk(browser)}
        with lose(cluster, victim):
            found = wait_until(
                lambda: "; unreadable" in (now := read(browser.get("/"))).text and now
            )
            assert at(victim) in found.text
            for name in QUEUES:
                shown = any(link.startswith(f"/queue?queue={quote(name)}") for link in found.links)
                assert shown is (name in elsewhere), name
                answer = browser.get("/queue", params={"queue": name})
                if name in elsewhere:
                    assert name in read(answer).text
                else:
                    assert answer.status_code in {404, 503}, name


@pytest.mark.slow
def test_no_node_answers(cluster):
    """Commands fail with an error and exit code 2 if no node is reachable."""
    for node in cluster.masters:
        node.kill()
    try:
        for command in ("status", "audit", "doctor"):
            done = run(cluster.url(), command)
            assert (2, "") == (done.returncode, done.stdout.replace("\n", "")) or (
                command == "status" and done.returncode == 2
            )
            assert "none of 3 known nodes" in done.stderr
    finally:
        for node in cluster.masters:
            node.start()
        cluster.wait_whole()


@pytest.mark.slow
def test_full_coverage():
    """If the cluster then serves nothing, all queues are named, and the doctor still runs."""
    cluster = RedisCluster(2)
    try:
        cluster.start()
        with Connection(cluster.url()) as connection:
            for name in QUEUES:
                declare(connection, name)
        anchor = cluster.owner(ANCHOR)
        (other,) = [node for node in cluster.masters if node is not anchor]
        other.kill()
        wait_until(
            lambda: b"cluster_state:fail" in anchor.ask("CLUSTER", "INFO"), what="a cluster down"
        )
        found = data(cluster.url(), "status", "--interval", 0, code=2)
        assert [] == found["queues"]
        told = {name for row in found["untold"] for name in row["queues"]}
        assert {name for name in QUEUES if cluster.owner(slot(name)) is anchor} == told
        errors = " ".join(row["error"] for row in found["untold"])
        assert ("cluster-require-full-coverage no" in errors, "--cluster fix" in errors) == (
            True,
            False,
        )
        rows = data(cluster.url(), "doctor", code=1)
        assert "node" in {row["check"] for row in rows if row["severity"] == "error"}
        assert [0] == [value for _, value in families(scraped(cluster.url()))["reliq_up"]]
    finally:
        cluster.destroy()


# -- a slot that stays open


@pytest.fixture
def stuck(cluster):
    """Return a migration that was interrupted after half of the keys."""
    key = queue_key("", "red", "meta")
    source = cluster.owner(slot_of(key))
    target = next(node for node in cluster.masters if node is not source)
    migration = Migration(source, target, key)
    migration.open()
    migration.move(migration.keys(source)[::2])
    yield migration
    migration.end()
    wait_until(lambda: cluster.owner(migration.slot) is target)
    with Connection(cluster.url()) as connection:
        assert 1 == get(connection, "red").payload


@pytest.mark.slow
def test_a_slot_left_open(cluster, stuck):
    """The doctor names the open slot, its nodes and a remedy; other queues are shown."""
    rows = data(cluster.url(), "doctor", code=1)
    ((text, remedy),) = [
        (row["message"], row["remedy"])
        for row in rows
        if row["check"] == "slots" and row["severity"] == "error"
    ]
    for word in (f"slot {stuck.slot}", at(stuck.source), at(stuck.target)):
        assert word in text
    assert "redis-cli --cluster fix" in remedy
    others = sorted(set(QUEUES) - {"red"})
    with Inspector(cluster.url()) as inspector:
        for longest_s in (10.0, 1.5):  # the second report does not wait again
            began = time.monotonic()
            assert [("red",)] == [untold.queues for untold in inspector.report().untold]
            assert time.monotonic() - began < longest_s
    found = data(cluster.url(), "status", "--interval", 0, code=2)
    assert others == sorted(queue["queue"] for queue in found["queues"])
    ((queues_untold, error),) = [(row["queues"], row["error"]) for row in found["untold"]]
    assert (["red"], True) == (queues_untold, f"slot {stuck.slot}" in error)
    assert "redis-cli --cluster fix" in error
    assert others == sorted(row["queue"] for row in data(cluster.url(), "audit", code=2))


def test_a_slot_that_is_being_moved(cluster):
    """A slot that is open at the doctor's first look, but not at the second, is no finding."""
    key = queue_key("", "red", "meta")
    source = cluster.owner(slot_of(key))
    target = next(node for node in cluster.masters if node is not source)
    migration = Migration(source, target, key)
    with Inspector(cluster.url()) as inspector:
        migration.open()
        looked = inspector._store.reads._open_now()
        assert [(migration.slot, at(source), at(target))] == [tuple(item) for item in looked]
        migration.end()
        assert set() == inspector._store.reads._open_now()
