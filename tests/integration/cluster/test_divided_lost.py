"""Operators' view of a divided queue while one node of its cluster is lost."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from kombu import Connection, Queue
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from reliq import BrokerUnavailable
from reliq.admin import Inspector
from reliq.client.cluster.slots import slot_of
from reliq.lua.keys import broker_keys, queue_keys
from reliq.message.queue_names import partition_names
from reliq.metrics import Collector
from reliq.values.values import Layout
from tests.integration.cluster.test_node_lost import at, killed
from tests.integration.kombu_client import get, publish
from tests.support.audits import assert_balanced
from tests.support.cluster import RedisCluster
from tests.support.commands import data, run
from tests.support.waiting import wait_until

# Partitions 0 and 2 are at the first node, 1 at the second, 3 at the third, with the list of all.
QUEUE, PARTITIONS = "orders", 4
NAMES = partition_names(QUEUE, PARTITIONS)
LOST = {"first": (NAMES[0], NAMES[2]), "another": (NAMES[1],), "anchor": (NAMES[3],)}
WAITING, ACKED = 40, 8


@pytest.fixture(scope="module")
def running():
    """Return a cluster of persistent nodes that serves the remaining slots after a loss."""
    extra = ("--cluster-require-full-coverage", "no")
    with RedisCluster(3, appendonly=True, extra=extra) as cluster:
        yield cluster


@pytest.fixture
def cluster(running):
    """Return the cluster with a queue in four partitions; some of its messages are acked."""
    running.flush()
    with Connection(running.url()) as connection:
        queue = Queue(QUEUE, queue_arguments={"x-partitions": PARTITIONS})
        queue(connection.default_channel).declare()
        publish(connection, QUEUE, *range(WAITING + ACKED))
        for _ in range(ACKED):
            get(connection, QUEUE).ack()
    yield running
    assert_balanced(running.url())


def node_of(cluster, name):
    """Return the node of a queue or a partition."""
    return cluster.owner(slot_of(queue_keys("", name).meta))


@pytest.fixture(params=["another", pytest.param("first", marks=pytest.mark.slow)])
def which(request):
    """Return the node to lose: that of the queue's own partition, or of other partitions only."""
    return request.param


@pytest.fixture
def victim(cluster, which):
    """Return the node to lose."""
    anchor = cluster.owner(slot_of(broker_keys("").queues))
    victim = anchor if which == "anchor" else node_of(cluster, LOST[which][0])
    assert LOST[which] == tuple(name for name in NAMES if node_of(cluster, name) is victim)
    assert (which == "anchor") == (victim is anchor)
    return victim


def ready(cluster):
    """Return the number of ready messages in each partition."""
    with Inspector(cluster.url()) as inspector:
        return {name: inspector._store.reads.status(name).ready for name in NAMES}


def scrape(registry):
    """Return (name, labels without the broker) -> value of each series of the queue."""
    found = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (
            sample.name,
            *sorted(set(sample.labels.items()) - {("broker", sample.labels["broker"])}),
        ): sample.value
        for family in found
        for sample in family.samples
        if sample.labels.get("queue") == QUEUE
    }


def of(name):
    """Return the key of a series without further labels."""
    return (name, ("queue", QUEUE))


UNTOLD = of("reliq_queue_partitions_untold")


# -- metrics


@pytest.mark.slow
def test_no_counter_goes_back(cluster, which, victim):
    """Counters are absent while partitions are unreachable, and unchanged afterwards."""
    there = sum(count for name, count in ready(cluster).items() if name not in LOST[which])
    registry = CollectorRegistry()
    with closing(Collector(cluster.url())) as collector:
        registry.register(collector)
        before = scrape(registry)
        with killed(cluster, victim):
            during = scrape(registry)
        wait_until(lambda: 0 == scrape(registry)[UNTOLD], what="a node that is tried again")
        after = scrape(registry)
    counters = {key: value for key, value in before.items() if key[0].endswith("_total")}
    assert WAITING + ACKED == counters[of("reliq_messages_published_total")]
    assert {} == {key: value for key, value in during.items() if key in counters}
    assert counters == {key: value for key, value in after.items() if key in counters}
    assert [0, len(LOST[which]), 0] == [found[UNTOLD] for found in (before, during, after)]
    (waiting,) = (value for key, value in during.items() if key[0] == "reliq_messages_ready")
    assert 0 < there == waiting


@pytest.mark.slow
@pytest.mark.parametrize("which", ["anchor"])
def test_an_exporter_that_cannot_list_the_queues(cluster, which, victim):
    """Without the list of queues, an exporter learns the partition count from those it finds."""
    registry = CollectorRegistry()
    with closing(Collector(cluster.url())) as collector:
        registry.register(collector)
        with killed(cluster, victim):
            found = scrape(registry)
    assert len(LOST[which]) == found[UNTOLD]
    assert [] == [key for key in found if key[0].endswith("_total")]


# -- status


@pytest.mark.slow
def test_status_says_what_is_missing(cluster, which, victim):
    """The row, the JSON and the report state the missing partitions, and rates are absent."""
    there = sum(count for name, count in ready(cluster).items() if name not in LOST[which])
    with Inspector(cluster.url()) as inspector:
        before = inspector.report()
        (row,) = before.queues
        assert (PARTITIONS, 0) == (row.partitions, row.partitions_untold)
        with killed(cluster, victim):
            (row,) = data(cluster.url(), "status", "--interval", 0, code=2)["queues"]
            done = run(cluster.url(), "status", "--interval", 0)
            (partial,) = inspector.report(before).queues
        wait_until(lambda: not inspector.report().untold, what="a node that is tried again")
        (later,) = inspector.report(inspector.report()).queues
    lost = len(LOST[which])
    assert (QUEUE, there, PARTITIONS, lost) == (
        row["queue"],
        row["ready"],
        row["partitions"],
        row["partitions_untold"],
    )
    assert f"{QUEUE} (without {lost} of {PARTITIONS} partitions)" in done.stdout
    assert at(victim) in done.stderr
    assert (None, None, lost) == (partial.rate_in, partial.rate_out, partial.partitions_untold)
    assert (0, 0, 0) == (later.rate_in, later.rate_out, later.partitions_untold)


# -- one queue


def refused(inspector, act):
    """Return the text of the error and the duration of the attempt."""
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable) as caught:
        act(inspector)
    return str(caught.value), time.monotonic() - began


REFUSED = {
    "status": lambda inspector: inspector.status(QUEUE),
    "delete": lambda inspector: inspector.delete(QUEUE),
    "divide": lambda inspector: inspector.configure(QUEUE, {"x-partitions": 8}),
    "shrink": lambda inspector: inspector.configure(QUEUE, {"x-partitions": 1}),
    "replay": lambda inspector: inspector.replay(QUEUE),
}


@pytest.mark.slow
def test_what_needs_all_partitions(cluster, which, victim):
    """An operation on all partitions soon fails with node, queue and remedy; nothing changes."""
    before = ready(cluster)
    url, options = cluster.url(), {"socket_timeout": 30.0}
    with killed(cluster, victim):
        with Inspector(url, options) as inspector:
            said = {"first": refused(inspector, REFUSED["status"])}
        with Inspector(url, options, lost_node_s=0.3) as inspector:
            said.update({name: refused(inspector, act) for name, act in REFUSED.items()})
    for name, (text, took_s) in said.items():
        assert took_s < 10, name  # far below the socket_timeout of 30
        assert at(victim) in text, name
        assert f"queue {QUEUE!r}" in text, name
        assert f"if {at(victim)} is down, start it again" in text, name
        assert "--cluster fix" not in text, name
    assert before == ready(cluster)
    with Inspector(cluster.url()) as inspector:
        assert Layout(PARTITIONS, PARTITIONS) == inspector._store.layout(QUEUE)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["another"])
def test_settings_are_changed_where_that_is_possible(cluster, which, victim):
    """Settings change at the reachable partitions; a second run changes the named others."""
    url, (lost,) = cluster.url(), LOST[which]
    change = {"x-delivery-limit": 7}
    with killed(cluster, victim), Inspector(url) as inspector:
        text, _ = refused(inspector, lambda inspector: inspector.configure(QUEUE, change))
    with Inspector(url) as inspector:
        found = {name: inspector.settings(name).get("x-delivery-limit") for name in NAMES}
        assert {name: None if name == lost else 7 for name in NAMES} == found
        inspector.configure(QUEUE, change)
        assert 7 == inspector.settings(lost)["x-delivery-limit"]
    assert f"queue {QUEUE!r}: 1 of its 4 partitions are unreachable, {lost!r}" in text
    assert at(victim) in text


@pytest.mark.slow
def test_messages_and_dead_letters_that_can_be_seen(cluster, which, victim):
    """Reachable messages and dead letters are shown, missing partitions are named; exit code 2."""
    with Connection(cluster.url()) as connection:
        for _ in range(WAITING // 2):
            get(connection, QUEUE).reject()
    there = {name: count for name, count in ready(cluster).items() if name not in LOST[which]}
    url = cluster.url()
    with Inspector(url) as inspector:
        dead = sum(inspector._store.reads.status(name).dead for name in there)
        with killed(cluster, victim):
            messages = data(url, "peek", QUEUE, "--limit", 100, code=2)
            done = run(url, "dead", "list", QUEUE)
            found = inspector.peek(QUEUE, "dead", 100)
            untold = found.unreachable
    assert 0 < sum(there.values()) == len(messages)
    assert 0 < dead == len(found)
    assert f"{dead} dead letter(s) of {QUEUE}" in done.stdout
    assert {QUEUE} == {row["queue"] for row in messages} == {item.queue for item in found}
    assert set(LOST[which]) == {name for item in untold for name in item.queues}
    assert 2 == done.returncode
    assert [] == [name for name in LOST[which] if repr(name) not in done.stderr]
    assert f"if {at(victim)} is down, start it again" in done.stderr
