"""The wire of a cluster: waits, their order, and their limits."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager, suppress
from itertools import count

import pytest
from kombu import Connection, Queue

from reliq.client.cluster.slots import cluster_address, slot_of
from reliq.client.cluster.wire import ClusterWire
from reliq.client.posts import Posts
from reliq.errors import BrokerTimeout, BrokerUnavailable, NotConfirmed
from reliq.lua.keys import broker_keys, queue_keys
from reliq.options import parse
from reliq.store.cluster.store import ClusterStore
from reliq.values.values import STALE, Wanted
from tests.contract.steps import message
from tests.support.cluster import Migration, RedisCluster
from tests.support.waiting import wait_until

PATIENT_MS = 60_000  # no failover while a test freezes a node


@pytest.fixture(scope="module")
def shared():
    """Return a cluster of three masters."""
    with RedisCluster(3, node_timeout_ms=PATIENT_MS) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared):
    """Return the cluster, empty."""
    shared.flush()
    return shared


@pytest.fixture
def connect():
    """Return a function that opens a wire to a cluster."""
    opened = []

    def open_wire(cluster, **given):
        options = parse(given)
        wire = ClusterWire(cluster_address(cluster.url().split(";"), options), options, "test")
        wire.connect()
        opened.append(wire)
        return wire

    yield open_wire
    for wire in opened:
        wire.close()


@pytest.fixture
def open_store():
    """Return a function that opens a store over a cluster."""
    opened = []

    def open_one(cluster, consumer="s/1", **given):
        options = parse(given)
        address = cluster_address(cluster.url().split(";"), options)
        store = ClusterStore(address, options, consumer)
        store.connect()
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


def keys_at(cluster, node):
    """Return keys of *node*, which may be frozen, each in a slot of its own."""
    other = next(item for item in cluster.masters if item is not node)
    ranges = other.ask("CLUSTER", "SLOTS")
    mine = [(first, last) for first, last, (_, port, *_), *_ in ranges if port == node.port]
    names = {slot_of(f"key{number}"): f"key{number}" for number in range(2000)}
    return iter(
        [name for slot, name in names.items() if any(first <= slot <= last for first, last in mine)]
    )


def not_the_anchor(cluster):
    """Return the masters except the node of the keys outside queues."""
    anchor = cluster.owner(slot_of(broker_keys("").queues))
    return [node for node in cluster.masters if node is not anchor]


@pytest.mark.slow
def test_a_node_that_never_answered_holds_up_no_other(cluster, connect):
    """A silent node that has many queues and is dialled for the first time delays no other node."""
    wire = connect(cluster, socket_connect_timeout=5.0)
    frozen, other = not_the_anchor(cluster)
    frozen_keys, key = keys_at(cluster, frozen), next(keys_at(cluster, other))
    told: list[object] = []
    frozen.freeze()
    try:
        for _ in range(8):
            wire.post(("GET", next(frozen_keys)))
        wire.post(("GET", key), told.append)
        # A dial of the frozen node takes five seconds, and there are eight of them.
        wait_until(lambda: wire.receive() or told, timeout_s=20)
    finally:
        frozen.thaw()
    assert [None] == told


def test_a_handler_that_raises_ends_nothing(cluster, connect):
    """An exception in a handler stops neither other posts nor calls that wait for a slot."""
    wire = connect(cluster, socket_timeout=5.0)
    source, target = not_the_anchor(cluster)
    key = next(keys_at(cluster, source))

    def raises(reply):
        raise KeyError(reply)

    wire.post(("GET", key), raises)  # the first post to its node: it waits for a connection
    migration = Migration(source, target, key)
    migration.open()
    got = []
    caller = threading.Thread(target=lambda: got.append(wire.call(("GET", key))), daemon=True)
    caller.start()
    migration.end()
    caller.join(20)
    assert [None] == got
    assert wire.call(("SET", key, "1")) == b"OK"
    with pytest.raises(KeyError):
        wire.wait_for_replies()
    assert not wire.waiting


def test_a_connection_that_is_made_anew_is_counted(cluster, connect):
    """A new connection is counted, so that publishers repeat what the old one may have lost."""
    wire = connect(cluster)
    node = not_the_anchor(cluster)[0]
    key = next(keys_at(cluster, node))
    wire.call(("GET", key))
    before = wire.dials
    node.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with suppress(BrokerUnavailable):  # it was in transit when the connection was found closed
        wire.call(("GET", key))
    assert wire.call(("GET", key)) is None
    assert wire.dials > before


def test_a_handler_may_ask_for_a_slot_that_is_not_served(cluster, connect):
    """A handler may call into a moving slot: it waits for the move without a deadlock."""
    wire = connect(cluster, socket_timeout=20.0)
    source, target = not_the_anchor(cluster)
    keys = keys_at(cluster, source)
    asked, moving = next(keys), next(keys)
    wire.call(("SET", asked, "1"))
    migration = Migration(source, target, moving)
    migration.open()
    got, asking = [], threading.Event()

    def asks(_reply):
        asking.set()
        got.append(wire.call(("GET", moving)))

    wire.post(("GET", asked), asks)
    waits = threading.Thread(target=wire.wait_for_replies, daemon=True)
    waits.start()
    assert asking.wait(10)
    migration.end()
    waits.join(20)
    assert not waits.is_alive()
    assert [None] == got


def test_what_was_interrupted_is_not_sent_later(cluster, open_store):
    """An interrupted reserve takes nothing when its slot is served again."""
    store, other = open_store(cluster), open_store(cluster, "s/2")
    source, target = not_the_anchor(cluster)
    queue = next(name for name in map(str, count()) if cluster.owner(slot_of_queue(name)) is source)
    store.declare_queue(queue, False, b"", {})
    store.publish([message(queue)])
    migration = Migration(source, target, queue_keys("", queue).meta)
    migration.open()
    migration.move(migration.keys(source)[:1])

    with interrupted(0.5):
        store.reserve(queue, 1, 60_000, False)
    migration.end()
    wait_until(lambda: not store.waiting)
    assert 1 == len(other.reserve(queue, 1, 60_000, False).deliveries)


@contextmanager
def interrupted(after_s):
    """Interrupt the block as Ctrl-C does; require KeyboardInterrupt."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def follows(wire, key, source, target):
    """Move the slot of *key* to *target*, and read the key there."""
    migration = Migration(source, target, key)
    migration.open()
    migration.end()
    assert wire.call(("GET", key)) == b"1"


def test_a_slot_is_bound_to_nothing_that_was_interrupted_before_it_was_sent(cluster, connect):
    """A call that is interrupted while the second node is dialled does not bind its first slot."""
    wire = connect(cluster, socket_timeout=5.0, socket_connect_timeout=30.0)
    source, frozen = not_the_anchor(cluster)
    key, other = next(keys_at(cluster, source)), next(keys_at(cluster, frozen))
    wire.call(("SET", key, "1"))
    frozen.freeze()
    try:
        with interrupted(0.4):
            wire.exchange([(("GET", key), None), (("GET", other), None)])
    finally:
        frozen.thaw()
    follows(wire, key, source, cluster.owner(slot_of(broker_keys("").queues)))


def test_a_slot_is_bound_to_nothing_that_was_posted_in_vain(cluster, connect, monkeypatch):
    """A post that is interrupted before it is written does not bind its slot."""
    wire = connect(cluster, socket_timeout=5.0)
    source, target = not_the_anchor(cluster)
    key = next(keys_at(cluster, source))
    wire.call(("SET", key, "1"))

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Posts, "post", interrupt)  # no signal can be timed to this point
        with pytest.raises(KeyboardInterrupt):
            wire.post(("GET", key))
    follows(wire, key, source, target)


def slot_of_queue(name):
    """Return the slot of a queue."""
    return slot_of(queue_keys("", name).meta)


def test_a_close_tells_whoever_waits_for_a_connection(cluster, connect):
    """Closing a wire fails the posts that wait for a connection, and closes that connection."""
    wire = connect(cluster)
    frozen = not_the_anchor(cluster)[0]
    told: list[object] = []
    frozen.freeze()
    try:
        wire.post(("GET", next(keys_at(cluster, frozen))), told.append)
        time.sleep(0.2)  # so that it is being dialled; the test holds either way
        wire.close()
    finally:
        frozen.thaw()
    wait_until(lambda: told)
    assert isinstance(told[0], BrokerUnavailable)
    name = "test"
    wait_until(lambda: name not in [item["name"] for item in frozen.client().client_list()])


def test_patience_with_a_node(cluster, connect):
    """A call beyond its limit raises soon, and a call that was not sent is never sent."""
    wire = connect(cluster, socket_timeout=30.0)
    frozen = not_the_anchor(cluster)[0]
    key = next(keys_at(cluster, frozen))
    frozen.freeze()
    try:
        began = time.monotonic()
        with pytest.raises(BrokerTimeout), wire.calls.patience(0.2):
            wire.call(("INCR", key))
        assert time.monotonic() - began < 20
    finally:
        frozen.thaw()
    wait_until(lambda: not wire.waiting)
    assert wire.call(("GET", key)) is None


@pytest.mark.parametrize("posted", [False, True])
@pytest.mark.parametrize("stale_first", [True, False])
def test_routes_of_several_versions_at_once(cluster, open_store, posted, stale_first):
    """In one batch, messages with outdated routes are routed again, and the others are not."""
    store = open_store(cluster)
    for queue in ("a", "b"):
        store.declare_queue(queue, False, b"", {})
    store.bind("x", True, [b"one"])
    old = store.bindings_version("x")
    store.bind("x", True, [b"another"])
    new = store.bindings_version("x")
    assert old != new
    versions = {"a": old, "b": new} if stale_first else {"a": new, "b": old}
    sent = [message(queue, exchange="x", version=said) for queue, said in versions.items()]
    if posted:
        results = []
        store.post_publish(sent, results.append)
        store.wait_for_replies()
        (outcomes,) = results
    else:
        outcomes = store.publish(sent)
    assert [old == said for said in versions.values()] == [item == STALE for item in outcomes]


def test_a_large_batch_is_confirmed_by_replicas():
    """A batch of many messages is confirmed by replicas."""
    cluster = RedisCluster(1, 1, node_timeout_ms=3000).start()
    options = {"confirm": "replicated", "confirm_timeout": 10.0}
    try:
        with Connection(cluster.url(), transport_options=options) as connection:
            channel = connection.default_channel
            batch = channel.create_publish_batch(1000)
            for number in range(250):
                body = b"%d" % number
                batch.publish(channel.prepare_message(body, properties={}), routing_key="q")
            batch.flush()
            assert 250 == channel.transport.link.store.reads.status("q").ready
    finally:
        cluster.destroy()


def test_a_replica_that_was_promoted_without_it_confirms_nothing(open_store):
    """A message is confirmed as replicated only if the promoted replica has it."""
    cluster = RedisCluster(1, 1, node_timeout_ms=3000).start()
    try:
        (master,), (replica,) = cluster.masters, cluster.replicas
        store = open_store(cluster)
        store.declare_queue("q", False, b"", {})
        first = message("q", number=1)
        assert [1] == store.publish([first])
        store.confirmer.confirm(Wanted("replicated", 1, 5000), [first])
        replica.ask("CONFIG", "SET", "masterauth", "wrong")
        master.ask("CLIENT", "KILL", "TYPE", "replica")
        second = message("q", number=2)
        store.publish([second])
        replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
        replica.ask("CONFIG", "SET", "masterauth", "")
        wait_until(lambda: master.client().info("replication").get("master_link_status") == "up")
        with pytest.raises((NotConfirmed, BrokerUnavailable)):
            store.confirmer.confirm(Wanted("replicated", 1, 5000), [second])
        # As Kombu does: published again, under the same number.
        store.publish([second])
        store.confirmer.confirm(Wanted("replicated", 1, 5000), [second])
        tags = [item.tag for item in store.reserve("q", 10, 60_000, False).deliveries]
        assert [first.tag, second.tag] == tags
    finally:
        cluster.destroy()


@pytest.mark.slow
def test_a_node_of_another_cluster_is_not_asked(connect):
    """A node that left and joined another cluster is not asked for the map, which is not ours."""
    ours, theirs = RedisCluster(3).start(), RedisCluster(1).start()
    try:
        wire = connect(ours)
        *stay, leaves = ours.masters
        ranges = [
            (first, last)
            for first, last, (_, port, *_), *_ in leaves.ask("CLUSTER", "SLOTS")
            if port == leaves.port
        ]
        for node in stay:
            node.ask("CLUSTER", "FORGET", leaves.id)
        leaves.ask("FLUSHALL")
        leaves.ask("CLUSTER", "RESET", "HARD")
        for first, last in ranges:
            stay[0].ask("CLUSTER", "ADDSLOTS", *range(first, last + 1))
        leaves.ask("CLUSTER", "MEET", "127.0.0.1", theirs.masters[0].port)
        wait_until(
            lambda: (
                theirs.masters[0].port
                in [port for _, _, (_, port, *_), *_ in leaves.ask("CLUSTER", "SLOTS")]
            )
        )
        wait_until(lambda: all(len(node.ask("CLUSTER", "SLOTS")) >= 2 for node in stay))
        for number in range(20):
            wire.slots._pause_s = 0.0
            wire.find_nodes()
            wire.call(("SET", f"key{number}", "x"))
        assert [] == theirs.masters[0].ask("KEYS", "key*")
        assert {node.port for node in stay} == {place.port for place in wire.slots.masters}
    finally:
        ours.destroy()
        theirs.destroy()


@pytest.fixture
def no_threads(monkeypatch):
    """Return a context manager that refuses threads for dialling."""
    start = threading.Thread.start

    def refuses(thread):
        if thread.name == "reliq-dial":
            raise RuntimeError("can't start new thread")
        start(thread)

    @contextmanager
    def no_threads():
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuses)
            yield

    return no_threads


def test_a_node_that_no_thread_dials_is_dialled_later(cluster, connect, no_threads):
    """A post fails while no thread can dial, and its slot is served when threads are available."""
    wire = connect(cluster, socket_timeout=1.0)
    keys = keys_at(cluster, not_the_anchor(cluster)[0])
    told: list[object] = []
    with no_threads():
        wire.post(("GET", next(keys)), told.append)
        wait_until(lambda: wire.receive() or told, timeout_s=20)
    assert isinstance(told[0], BrokerTimeout)
    wire.post(("GET", next(keys)), told.append)
    wait_until(lambda: wire.receive() or told[1:], timeout_s=20)
    assert [None] == told[1:]


def test_notifications_wait_for_a_thread(cluster, open_store, no_threads):
    """A wait for notifications without a thread to dial raises nothing and succeeds later."""
    store = open_store(cluster)
    with no_threads():
        store.notifier.listen(["q"], 1.0)
        assert not store.notifier.listening
    wait_until(lambda: store.notifier.listen(["q"], 60.0) or store.notifier.listening)


def test_replies_that_nobody_reads_make_no_node_silent(cluster):
    """Unread replies do not make a node count as silent, so a count covers every partition."""
    with Connection(cluster.url()) as connection:
        queue = Queue("q", queue_arguments={"x-partitions": 8})(connection.default_channel)
        queue.declare()
        for _ in range(10):
            connection.Producer().publish("x", routing_key="q", confirm="none")
        wire = connection.default_channel.connection.client.transport.link.store._wire
        wait_until(lambda: any(one.silent_s > 1.0 for _, one in wire._open()))
        assert 10 == queue.queue_declare(passive=True).message_count
