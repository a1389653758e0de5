"""Operators' tasks on a real cluster: commands, the doctor, metrics and moves."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from kombu import Connection
from prometheus_client.parser import text_string_to_metric_families

from reliq.admin import Inspector
from reliq.client.cluster.slots import slot_of
from reliq.lua.keys import queue_key
from tests.integration.cli.test_cli_acl import scraped
from tests.integration.cli.test_migrate import LAYOUT
from tests.integration.kombu_client import declare, get, publish
from tests.support.audits import assert_balanced
from tests.support.cluster import Migration, RedisCluster
from tests.support.commands import data, run
from tests.support.waiting import wait_until

# At all three nodes.
QUEUES = ("celery", "red", "green", "blue")


@pytest.fixture(scope="module")
def running():
    """Return a cluster of three masters."""
    with RedisCluster(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(running):
    """Return the cluster, empty; the end of the test audits it."""
    running.flush()
    yield running
    assert_balanced(running.url())


@pytest.fixture
def connection(cluster):
    """Return a Kombu connection."""
    with Connection(cluster.url()) as connection:
        yield connection


def fill(connection, queues=QUEUES):
    """Make two ready messages, a delayed one and a dead one in each queue."""
    for name in queues:
        declare(connection, name)
        publish(connection, name, 0, headers={"task": "shop.ship"})
        get(connection, name).reject()
        publish(connection, name, 1, 2, headers={"task": "shop.ship"})
        publish(connection, name, 3, headers={"x-delay": 600_000})


def name_of(cluster):
    """Return the name of the broker."""
    return cluster.url()


def places(queue):
    """Return the numbers of messages in the status of a queue, without zeros."""
    names = ("ready", "delayed", "unacked", "dead")
    return {name: n for name in names if (n := queue[name])}


FILLED = {"ready": 2, "delayed": 1, "dead": 1}


# -- queries


@pytest.mark.slow
def test_status(cluster, connection):
    """`status` shows one broker with the queues of all nodes, and sums over the nodes."""
    fill(connection)
    found = data(None, "status", "--interval", 0, "--url", cluster.url())
    (broker,) = found["brokers"]
    assert (name_of(cluster), "cluster of 3 masters", "none") == (
        broker["broker"],
        broker["role"],
        broker["persistence"],
    )
    used = []
    for node in cluster.masters:
        with node.client() as client:
            used.append(client.info("memory")["used_memory"])
    assert max(used) < broker["memory_bytes"] < 2 * sum(used)
    assert dict.fromkeys(QUEUES, FILLED) == {q["queue"]: places(q) for q in found["queues"]}
    table = run(cluster.url(), "status", "--interval", 0).stdout
    assert "cluster of 3 masters" in table


@pytest.mark.slow
def test_peek_and_dead_letters(cluster, connection):
    """Messages and dead letters are read, exported, replayed and removed at each queue's node."""
    url = cluster.url()
    fill(connection)
    with Inspector(url) as inspector:
        for name in QUEUES:
            for state, count in FILLED.items():
                assert count == len(inspector.peek(name, state)), (name, state)
    assert 2 == len(data(url, "peek", "red"))
    (dead,) = data(url, "dead", "list", "red")
    assert "shop.ship" == dead["task"]
    data(url, "dead", "show", "red", dead["tag"])
    assert dict.fromkeys(QUEUES, True) == {r["queue"]: r["balanced"] for r in data(url, "audit")}
    data(url, "dead", "replay", "red")
    data(url, "dead", "replay", "green", "--to", "blue")
    data(url, "dead", "purge", "celery", "--yes")
    queues = {q["queue"]: places(q) for q in data(url, "status", "--interval", 0)["queues"]}
    assert {
        "celery": {"ready": 2, "delayed": 1},
        "red": {"ready": 3, "delayed": 1},
        "green": {"ready": 2, "delayed": 1},
        "blue": {"ready": 3, "delayed": 1, "dead": 1},
    } == queues


@pytest.mark.slow
def test_dead_letters_in_a_file(cluster, connection, tmp_path):
    """Dead letters are exported from one queue and imported into a queue at another node."""
    url, file = cluster.url(), tmp_path / "letters"
    fill(connection, ("red", "green"))
    data(url, "dead", "export", "red", file)
    data(url, "dead", "import", "green", file)
    assert 2 == len(data(url, "dead", "list", "green"))


@pytest.mark.slow
def test_queues(cluster, connection):
    """Queues of every node are paused, resumed, changed, purged and deleted by commands."""
    url = cluster.url()
    fill(connection)
    data(url, "queue", "pause", "red")
    assert get(connection, "red") is None
    data(url, "queue", "resume", "red")
    get(connection, "red").ack()
    data(url, "queue", "set", "red", "delivery-limit=3")
    data(url, "queue", "purge", "red", "--yes")
    with Inspector(url) as inspector:
        assert 3 == inspector.settings("red")["x-delivery-limit"]
        assert {"dead": 1} == places(asdict(inspector.status("red")))
        for name in QUEUES:
            inspector.pause(name)
            assert get(connection, name) is None
            inspector.resume(name)
            assert (0 if name == "red" else 3) == inspector.purge(name)
            assert 7 == inspector.configure(name, {"x-delivery-limit": 7})["x-delivery-limit"]
        assert [] == [result for result in inspector.audit() if not result.balanced]
    data(url, "queue", "delete", "red", "--yes")
    with Inspector(url) as inspector:
        assert sorted(set(QUEUES) - {"red"}) == inspector.queues()


@pytest.mark.slow
def test_top_and_consumers(cluster, connection):
    """A consumer of queues at several nodes has one entry in the register."""
    from tests.integration.kombu_client import Taker

    url = cluster.url()
    fill(connection, ("red", "green"))
    taker = Taker(connection, "red", "green", auto_declare=False)
    taker.take(4)
    (consumer,) = data(url, "consumers")
    assert (["green", "red"], True) == (sorted(consumer["queues"]), consumer["connected"])
    (line,) = run(url, "top", "--json", "--count", 1).stdout.splitlines()
    assert '"red"' in line
    taker.consumer.cancel()


# -- the doctor


def of_check(rows, check):
    """Return (severity, message) of each finding of a check."""
    return [(row["severity"], row["message"]) for row in rows if row["check"] == check]


@pytest.mark.slow
def test_a_sound_cluster(tmp_path):
    """A sound cluster has no warnings; nodes are named only where they differ."""
    extra = ("--maxmemory", "200mb")
    cluster = RedisCluster(3, 1, appendonly=True, password="hush", extra=extra)
    try:
        cluster.start()
        url = cluster.url().replace("://", "://:hush@")
        rows = data(url, "doctor", "--strict")
        assert [("ok", "16384 of 16384 have a node")] == of_check(rows, "slots")
        ((severity, text),) = of_check(rows, "replicas")
        assert (
            "ok",
            'at least 1 for each master; use 2 for each master with confirm="replicated"',
        ) == (
            severity,
            text,
        )
        ((_, text),) = of_check(rows, "version")
        assert text.startswith("all 3 masters: ")
        ((_, text),) = of_check(rows, "clock")
        assert text.startswith("3 nodes within ")
        found = {row["check"] for row in rows}
        assert {"acl", "memory", "persistence", "script cache", "keys", "ledger"} <= found
    finally:
        cluster.destroy()


def test_what_is_wrong_with_one_node(cluster, connection):
    """A finding about one node names that node and no other."""
    fill(connection)
    one, *_ = cluster.masters
    admin = one.client()
    admin.config_set("maxmemory-policy", "allkeys-lru")
    admin.config_set("maxmemory", "100mb")
    slot_of_its_own = next(
        f"reliq:other{{{n}}}"
        for n in range(999)
        if cluster.owner(admin.cluster("KEYSLOT", n)) is one
    )
    admin.set(slot_of_its_own, "another's")
    try:
        rows = data(cluster.url(), "doctor", code=1)
    finally:
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", "0")
        admin.delete(slot_of_its_own)
    name = f"127.0.0.1:{one.port}"
    ((severity, text),) = [row for row in of_check(rows, "maxmemory-policy") if row[0] != "ok"]
    assert ("error", True) == (severity, text.startswith(f"{name}: allkeys-lru"))
    ((severity, text),) = [row for row in of_check(rows, "keys") if row[0] != "ok"]
    assert ("warning", True) == (severity, text.startswith(f"{name}: 1 keys under our prefix"))
    ((severity, text),) = of_check(rows, "replicas")
    assert ("warning", True) == (severity, all(str(node.port) in text for node in cluster.masters))
    (texts,) = [row for row in of_check(rows, "memory") if row[0] == "warning"]
    assert name not in texts[1]


@pytest.mark.slow
def test_a_single_servers_url(cluster):
    """With the reliq:// URL of a node, errors and the doctor name reliq-cluster://."""
    url = cluster.masters[0].url()
    rows = data(url, "doctor", code=1)
    (found,) = [row for row in rows if row["check"] == "cluster"]
    assert ("error", True) == (found["severity"], "reliq-cluster://" in found["remedy"])
    done = run(url, "status", "--interval", 0)
    assert done.returncode, done.stdout
    assert "use reliq-cluster://" in done.stderr


# -- metrics


@pytest.mark.slow
def test_the_exporter(cluster, connection):
    """The exporter has the series of queues as for one server, and series of each node."""
    fill(connection)
    families = {
        family.name: family for family in text_string_to_metric_families(scraped(cluster.url()))
    }
    (up,) = families["reliq_up"].samples
    assert ({"broker": name_of(cluster)}, 1) == (up.labels, up.value)
    ready = {s.labels["queue"]: s.value for s in families["reliq_messages_ready"].samples}
    assert dict.fromkeys(QUEUES, 2) == ready
    names = {f"127.0.0.1:{node.port}" for node in cluster.masters}
    for family, least, most in (
        ("reliq_node_up", 1, 1),
        ("reliq_node_slots", 5461, 5462),
        ("reliq_node_memory_bytes", 100_000, 10**9),
    ):
        samples = families[family].samples
        assert names == {sample.labels["node"] for sample in samples}
        assert all(least <= sample.value <= most for sample in samples), family


# -- to and from other brokers


@pytest.mark.slow
def test_a_migration_from_kombus_redis(cluster, redis_factory):
    """Messages move from Kombu's lists to queues at several nodes, and back."""
    server = redis_factory()
    theirs, ours = server.url("redis"), cluster.url()
    with Connection(theirs) as old:
        for name in QUEUES:
            with old.SimpleQueue(name) as queue:
                for number in range(5):
                    queue.put(number)
    plans = data(None, "migrate", theirs, ours, "--dry-run")
    assert dict.fromkeys(QUEUES, 5) == {plan["queue"]: plan["ready"] for plan in plans}
    steps = data(None, "migrate", theirs, ours)
    assert dict.fromkeys(QUEUES, 5) == {step["queue"]: step["moved"] for step in steps}
    with Connection(ours) as new:
        for name in QUEUES:
            assert list(range(5)) == [get(new, name).payload for _ in range(5)]
    wait_until(lambda: all(not q["unacked"] for q in queues_of(ours)), timeout_s=30)
    assert_balanced(ours)
    steps = data(None, "migrate", ours, theirs, *LAYOUT)
    assert dict.fromkeys(QUEUES, 5) == {step["queue"]: step["moved"] for step in steps}
    with Connection(theirs) as old, old.SimpleQueue("red") as queue:
        assert set(range(5)) == {queue.get(timeout=10).payload for _ in range(5)}


def queues_of(url):
    """Return the queues of a broker, each with its counts."""
    return data(url, "status", "--interval", 0)["queues"]


@pytest.fixture(scope="module")
def other_running():
    """Return another cluster, of two masters."""
    with RedisCluster(2) as cluster:
        yield cluster


@pytest.fixture
def other_cluster(other_running):
    """Return the other cluster, empty."""
    other_running.flush()
    yield other_running
    assert_balanced(other_running.url())


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_move(cluster, redis_factory, direction):
    """All messages move from a single server into the cluster, and out of it, each once."""
    server = redis_factory()
    urls = [server.url(), cluster.url()]
    moved(*(urls if direction == "in" else urls[::-1]))
    assert_balanced(server.url())


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["there", "back"])
def test_a_move_between_clusters(cluster, other_cluster, direction):
    """Two clusters are two brokers, although their queues have the same slots."""
    urls = [cluster.url(), other_cluster.url()]
    moved(*(urls if direction == "there" else urls[::-1]))


def moved(source, target):
    """Move all messages from one broker to another; require them there in order."""
    with Connection(source) as connection:
        fill(connection)
    done = run(None, "move", "--all", "--from", source, "--to", target)
    assert 0 == done.returncode, done.stderr
    assert dict.fromkeys(QUEUES, FILLED) == {q["queue"]: places(q) for q in queues_of(target)}
    assert not any(places(queue) for queue in queues_of(source))
    with Connection(target) as connection:
        for name in QUEUES:
            found = [get(connection, name) for _ in range(2)]
            assert [1, 2] == [message.payload for message in found]
            for message in found:
                message.ack()


def test_a_move_while_slots_move(cluster, other_cluster):
    """A move whose slots move at either cluster between its steps stores each message once."""
    with Connection(cluster.url()) as connection:
        declare(connection, "red")
        publish(connection, "red", *range(1500))
    with Inspector(cluster.url()) as source, Inspector(other_cluster.url()) as target:
        steps = source.move("red", target)
        counts = [next(steps)]
        for running in (cluster, other_cluster):
            key = queue_key("", "red", "meta")
            owner = running.owner(slot_of(key))
            next_one = next(node for node in running.masters if node is not owner)
            migration = Migration(owner, next_one, key)
            migration.open()
            migration.end()
            counts.append(next(steps))
        assert 1500 == sum(counts) + sum(steps)
        assert len(counts) == 3
    with Connection(other_cluster.url()) as connection:
        assert list(range(1500)) == [get(connection, "red").payload for _ in range(1500)]
        assert get(connection, "red") is None


def test_a_move_into_itself(cluster):
    """A move between two URLs of one cluster is refused, whichever nodes they name."""
    with Connection(cluster.url()) as connection:
        fill(connection, ("red",))
    one, *_, last = cluster.url().split(";")
    done = run(None, "move", "red", "--from", one, "--to", last)
    assert done.returncode == 2, done.stdout
    assert "one broker" in done.stderr or "same broker" in done.stderr, done.stderr
