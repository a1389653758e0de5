"""Unreachable nodes of a cluster: their detection, and the operations that continue."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from itertools import islice

import pytest
from kombu import Connection, Consumer, Queue

from reliq.admin import Inspector
from reliq.client.cluster.slots import SlotMap, cluster_address, slot_of
from reliq.client.cluster.wire import ClusterWire
from reliq.errors import BatchUncertain, BrokerTimeout, BrokerUnavailable, ConfigurationError
from reliq.lua.keys import broker_keys, queue_keys
from reliq.message.envelope import decode
from reliq.message.queue_names import partition_names, partition_of_key
from reliq.options import parse
from reliq.values.inspection import Position
from reliq.values.values import Lease
from tests.support.cluster import RedisCluster
from tests.support.site import FAST, CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import pools

PATIENT_MS = 60_000  # no failover while a test freezes a node


@pytest.fixture(scope="module")
def shared():
    """Return a cluster of three masters that serves the remaining slots after a loss."""
    extra = ["--cluster-require-full-coverage", "no"]
    with RedisCluster(3, node_timeout_ms=PATIENT_MS, extra=extra) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared):
    """Return the cluster, empty; the end of the test thaws its nodes."""
    shared.flush()
    yield shared
    for node in shared.masters:
        node.thaw()


@pytest.fixture
def connect(cluster):
    """Return a function that opens a wire to the cluster, with a connection to each node."""
    opened = []

    def open_wire(**given):
        options = parse(given)
        wire = ClusterWire(cluster_address(cluster.url().split(";"), options), options, "test")
        opened.append(wire)
        wire.connect()
        for _, node in wire.nodes.each_master():
            assert node.alive
        return wire

    yield open_wire
    for wire in opened:
        wire.close()


def key_at(cluster, node):
    """Return a key of *node*."""
    return next(key for key in map(str, range(2000)) if cluster.owner(slot_of(key)) is node)


def anchor_of(cluster):
    """Return the node that has the keys outside queues."""
    return cluster.owner(slot_of(broker_keys("").queues))


def not_the_anchor(cluster):
    """Return the other masters."""
    return [node for node in cluster.masters if node is not anchor_of(cluster)]


@pytest.mark.slow
def test_all_nodes_are_silent(cluster, connect):
    """A wire is lost if all nodes are silent, although one of its connections is idle."""
    wire = connect(socket_timeout=3.0)
    idle, other = not_the_anchor(cluster)
    asked = [key_at(cluster, node) for node in (anchor_of(cluster), other)]
    for node in cluster.masters:
        node.freeze()

    def lost():
        for key in asked:
            wire.post(("GET", key))
        wire.receive()
        wire.check()
        return not wire.alive

    # One second of silence, then one second for each node in turn, then socket_timeout.
    wait_until(lost, interval_s=0.2)
    idle.thaw()
    other.thaw()
    wait_until(lambda: connects(wire))


def connects(wire):
    """Whether *wire* connects."""
    try:
        wire.connect()
    except OSError:
        return False
    return wire.alive


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", "gevent"))
def test_a_worker_leaves_a_cluster_that_is_silent(
    cluster, redis_factory, tmp_path_factory, pool, request
):
    """A worker leaves a silent cluster and connects to the next URL of its list."""
    options = {**FAST, "socket_timeout": 3.0, "socket_connect_timeout": 1.0}
    config = {
        "task_ignore_result": True,
        "result_backend": None,
        "broker_transport_options": options,
    }
    site = CelerySite(cluster, "reliq", tmp_path_factory.mktemp("site"), config)
    request.addfinalizer(site.close)
    url = redis_factory().url("reliq")
    worker = site.worker(pool=pool, broker=f"{site.broker};{url}")
    site.journal.wait_finished(site.send("record").id)
    for node in cluster.masters:
        node.freeze()
    with Connection(url) as connection:
        task = site.send("record", connection=connection).id
    site.journal.wait_finished(task, timeout_s=60)
    assert "onnection to broker lost" in worker.log()


def test_a_post_over_an_idle_connection_does_not_wait(cluster, connect):
    """A post over an idle connection does not wait, and a call waits no longer than its limit."""
    wire = connect(socket_timeout=20.0, health_check_interval=1.0)
    first, second = not_the_anchor(cluster)
    keys = key_at(cluster, first), key_at(cluster, second)
    time.sleep(1.1)  # both connections must be idle for longer than the check interval
    for node in (first, second):
        node.freeze()
    began = time.monotonic()
    wire.post(("GET", keys[0]))
    with pytest.raises(BrokerTimeout), wire.calls.patience(0.1):
        wire.call(("GET", keys[1]))
    assert time.monotonic() - began < 10


def test_a_connection_that_has_ended_is_looked_at_once(cluster, connect):
    """A closed connection starts one look at the nodes, even if it stays unused."""
    wire = connect()
    ended, _ = not_the_anchor(cluster)
    wire.post(("GET", key_at(cluster, ended)))
    wire.wait_for_replies()
    asked = []
    look = wire.find_nodes
    wire.find_nodes = lambda: asked.append(look())
    ended.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def found():
        wire.receive()
        wire.check()
        return asked

    wait_until(found)
    for _ in range(20):
        found()
        time.sleep(0.02)  # time for a started thread to look at the nodes
    assert 2 >= len(asked)  # a new suspicion may arise during the first look
    dials = wire.dials
    assert wire.call(("GET", key_at(cluster, ended))) is None
    assert dials + 1 == wire.dials


@pytest.mark.slow
def test_a_node_that_was_found_to_be_away_stays_so_until_it_answers(cluster, connect):
    """A node stays known as unreachable, for other connections as well, until it answers."""
    wire, other = connect(socket_timeout=1.0), connect()
    key = key_at(cluster, silent := not_the_anchor(cluster)[0])
    there = slot_of(key_at(cluster, anchor_of(cluster)))
    silent.freeze()
    with pytest.raises(BrokerTimeout):
        wire.call(("GET", key))
    for _ in range(40):  # as a publisher, for longer than the node is left alone
        assert wire.is_unreachable(slot_of(key))
        assert other.is_unreachable(slot_of(key))
        assert not wire.is_unreachable(there)
        time.sleep(0.05)
    silent.thaw()
    # No other command is sent to the node.
    wait_until(lambda: not wire.is_unreachable(slot_of(key)))
    wait_until(lambda: not other.is_unreachable(slot_of(key)))


@pytest.fixture
def application(cluster):
    """Return a function that opens an application's connection; queue q has eight partitions."""
    opened = []

    def connect():
        options = {**FAST, "socket_timeout": 1.0}
        opened.append(Connection(cluster.url(), transport_options=options))
        opened[-1].default_channel  # noqa: B018 - it connects
        return opened[-1]

    divided()(connect().default_channel).declare()
    yield connect
    for node in cluster.masters:
        node.thaw()
    for connection in opened:
        connection.release()


def divided():
    """Return the queue."""
    return Queue("q", queue_arguments={"x-partitions": 8})


def partitions_at(cluster, node):
    """Return the partitions at *node*."""
    names = partition_names("q", 8)
    return [name for name in names if cluster.owner(slot_of(queue_keys("", name).meta)) is node]


def bystander(cluster):
    """Return a node that has partitions, except the queue's own, and is not the anchor."""
    found = [node for node in not_the_anchor(cluster) if "q" not in partitions_at(cluster, node)]
    return found[0]


def ready(connection, names):
    """Return the number of ready messages in these partitions, whose nodes must be reachable."""
    store = connection.transport.link.store
    return sum(store.reads.status(name).ready for name in names)


def stored(connection):
    """Return the bodies in all partitions, whose nodes must be reachable."""
    store = connection.transport.link.store
    names = partition_names("q", 8)
    pages = [(name, skip) for name in names for skip in range(0, 1000, 100)]
    scan = partial(store.reads.scan, limit=100, whole_bytes=1000)
    looked = [scan(name, "ready", Position("", skip)) for name, skip in pages]
    found = [one for page in looked for one in page.items]
    return sorted(int(decode(one.envelope).body) for one in found)


@pytest.mark.slow
def test_publishers_go_round_a_node_that_does_not_answer(cluster, application):
    """Publishes avoid a silent node after one of them has waited for it."""
    connection = application()
    producer = connection.Producer()
    for number in range(8):
        producer.publish(number, routing_key="q")
    silent = bystander(cluster)
    silent.freeze()
    attempt = partial(producer.publish, 0, routing_key="q")
    # Publishes use the partitions in turn, so one of them meets the silent node.
    assert 1 == sum(refusals(attempt, 1) for _ in range(8))
    for _ in range(40):
        producer.publish(0, routing_key="q")
        time.sleep(0.05)  # for longer than the node is left alone
    silent.thaw()
    names = partitions_at(cluster, silent)
    before = ready(connection, names)

    def published_there():
        producer.publish(0, routing_key="q")
        return ready(connection, names) > before

    wait_until(published_there)


def refusals(attempt, tries):
    """Call *attempt* up to *tries* times, until it succeeds; return the number of failures."""
    for count in range(tries):
        with suppress(BrokerUnavailable, BatchUncertain):
            attempt()
            return count
    return tries


@pytest.mark.parametrize("batched", [False, True])
def test_what_was_not_sent_goes_elsewhere_when_it_is_retried(cluster, application, batched):
    """If its node cannot be connected to, a retried message goes elsewhere and is stored once."""
    channel = application().default_channel  # not connected to the other nodes yet
    channel.transport.link.store.partitions["q"] = 8
    silent = bystander(cluster)
    silent.freeze()
    counts = []
    for number in range(8):
        message = channel.prepare_message(b"%d" % number, properties={})
        if batched:
            batch = channel.create_publish_batch(9)
            batch.publish(message, routing_key="q")
            counts.append(refusals(batch.flush, 9))
        else:
            attempt = partial(channel.basic_publish, message, routing_key="q")
            counts.append(refusals(attempt, 9))
    assert 1 == max(counts)
    silent.thaw()
    assert list(range(8)) == stored(application())


def test_a_large_batch_goes_elsewhere_when_it_is_retried(cluster, application):
    """A retried batch finds its stored messages again; the unsent ones avoid the silent node."""
    channel = application().default_channel
    channel.transport.link.store.partitions["q"] = 8
    batch = channel.create_publish_batch(2000)
    for number in range(850):  # a hundred for each partition in turn
        batch.publish(channel.prepare_message(b"%d" % number, properties={}), routing_key="q")
    silent = bystander(cluster)
    silent.freeze()
    assert 1 == refusals(batch.flush, 9)
    silent.thaw()
    assert list(range(850)) == stored(application())


@pytest.mark.slow
def test_what_has_a_key_waits_for_its_node(cluster, application):
    """A message with a partition key waits for its node; elsewhere it would lose its order."""
    channel = application().default_channel
    channel.transport.link.store.partitions["q"] = 8
    silent = bystander(cluster)
    place = partitions_at(cluster, silent)[0]
    names = partition_names("q", 8)
    key = next(key for key in map(str, range(999)) if names[partition_of_key(key, 8)] == place)
    silent.freeze()
    headers = {"x-partition-key": key}
    message = channel.prepare_message(b"1", properties={}, headers=headers)
    attempt = partial(channel.basic_publish, message, routing_key="q")
    assert 3 == refusals(attempt, 3)
    silent.thaw()
    wait_until(lambda: 0 == refusals(attempt, 1))
    assert 1 == channel.transport.link.store.reads.status(place).ready
    assert [1] == stored(application())


@pytest.mark.parametrize("new", [False, True])
def test_a_declaration_goes_past_a_node_that_is_away(cluster, application, new):
    """A declaration of an existing queue succeeds, and counts the messages of reachable nodes."""
    connection = application()
    for number in range(16):
        connection.Producer().publish(number, routing_key="q")
    silent = bystander(cluster)
    there = 16 - ready(connection, partitions_at(cluster, silent))
    connection = application() if new else connection  # with and without a connection to it
    silent.freeze()
    queue = divided()(connection.default_channel)
    for passive in (False, True):  # a busy node may be late, too
        wait_until(lambda p=passive: there == queue.queue_declare(passive=p).message_count)
    for number in range(8):
        connection.Producer().publish(number, routing_key="q", declare=[divided()])
    silent.thaw()
    assert 24 == len(stored(connection))


@pytest.mark.slow
def test_a_consumer_begins_while_a_node_is_away(cluster, application):
    """A consumer receives messages of the reachable nodes at once, and the rest after the thaw."""
    connection = application()
    for number in range(16):
        connection.Producer().publish(number, routing_key="q")
    silent = bystander(cluster)
    elsewhere = 16 - ready(connection, partitions_at(cluster, silent))
    got = []

    def on_message(body, message):
        got.append(body)
        message.ack()

    def drain():
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.2)

    connection = application()
    silent.freeze()
    with Consumer(connection, [divided()], callbacks=[on_message]):
        wait_until(lambda: drain() or len(got) == elsewhere)
        silent.thaw()
        wait_until(lambda: drain() or len(got) == 16)
    assert list(range(16)) == sorted(got)


def test_what_is_missing_at_a_node_that_is_away_is_made_later(cluster, application):
    """A partition missed by a declaration is created at the publisher's next publish."""
    connection = application()
    store = connection.transport.link.store
    silent = bystander(cluster)
    place = partitions_at(cluster, silent)[0]
    store.delete_queue(place)
    silent.freeze()
    divided()(connection.default_channel).declare()
    silent.thaw()
    publish = partial(connection.Producer().publish, 0, routing_key="another")
    wait_until(lambda: (publish(), store.layout(place))[1] is not None)


def test_queues_that_were_left_are_told_to_the_nodes_that_answer(cluster):
    """Detached queues are reported to reachable nodes at once, to a silent node on its return."""
    silent, lively = not_the_anchor(cluster)
    with Connection(cluster.url()) as connection:
        channel = connection.default_channel
        session, store = channel.transport.link.session, channel.transport.link.store
        here, there = (names_at(cluster, node, 4) for node in (lively, silent))
        for name in (*here, *there):
            channel.queue_declare(name)
            store.attach(name, session.id, 1)
            session.registration.detach_later(name)
        session.outbox.release_later(there[0], "released", [Lease("t", "1")])
        silent.freeze()
        with pytest.raises(BrokerUnavailable):
            session.send_owed(store, 0.2)
        assert [] == [name for name in here if store.consumers_of(name)]
        silent.thaw()
        wait_until(lambda: sent(session, store))
        assert [] == [name for name in there if store.consumers_of(name)]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["catch_up", "finish"])
def test_what_is_owed_to_a_silent_node_holds_up_no_connection(cluster, step):
    """Steps owed to a silent node delay neither a new connection nor the end of the process."""
    silent, lively = not_the_anchor(cluster)
    options = {"socket_timeout": 60.0}
    with Connection(cluster.url(), transport_options=options) as connection:
        link = connection.default_channel.transport.link
        session, store = link.session, link.store
        (here,), (there,) = (names_at(cluster, node, 1) for node in (lively, silent))
        for name in (there, here):
            connection.default_channel.queue_declare(name)
            store.attach(name, session.id, 1)
            session.registration.detach_later(name)
        session.outbox.reserve_lost(there, store.consumer)
        session.outbox.release_later(there, "released", [Lease("t", "1")])
        silent.freeze()
        began = time.monotonic()
        if step == "catch_up":
            session.catch_up(store)
        else:
            session.finish()
        took_s = time.monotonic() - began
        assert [] == store.consumers_of(here)
        silent.thaw()
    assert took_s < 30  # a wait for the silent node would take 60 s


def test_leases_are_renewed_over_a_connection_of_a_moment_without_the_anchor(
    cluster, monkeypatch, caplog
):
    """A background loop that starts or reconnects needs only the nodes of its leases."""
    anchor, (lively, _) = anchor_of(cluster), not_the_anchor(cluster)
    (name,) = names_at(cluster, lively, 1)
    with Connection(cluster.url(), transport_options={"visibility_timeout": 3.0}) as connection:
        channel = connection.default_channel
        channel.queue_declare(name)
        connection.Producer().publish("x", routing_key=name, exchange="")
        message = channel.basic_get(name)
        background = channel.transport.link.session.background
        background.stop()
        anchor.freeze()
        # A query of every node would take as long as the lease.
        asking = []
        refresh = SlotMap.refresh

        def noted(*given):
            asking.append(threading.current_thread().name)
            return refresh(*given)

        monkeypatch.setattr(SlotMap, "refresh", noted)
        with lively.client() as client:

            def deadline():
                ((_, found),) = client.zrange(unacked, 0, -1, withscores=True)
                return found

            unacked = queue_keys("", name).unacked_index
            before = deadline()
            background.start()
            wait_until(lambda: deadline() > before)
        assert "continues when" not in caplog.text  # it did not fail before
        assert "reliq-background" not in asking
        anchor.thaw()
        message.ack()


@pytest.mark.slow
def test_a_consumer_says_once_which_queues_it_has_lost(cluster, caplog):
    """A consumer logs the lost queues of a node in one line, and their return in another."""
    caplog.set_level("INFO", "reliq")
    silent, lively = not_the_anchor(cluster)
    there, (here,) = names_at(cluster, silent, 2), names_at(cluster, lively, 1)
    options = {**FAST, "socket_timeout": 1.0}
    with Connection(cluster.url(), transport_options=options) as connection:

        def drain():
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.2)

        def said(words):
            drain()
            return [one.getMessage() for one in caplog.records if words in one.getMessage()]

        wanted = [Queue(name) for name in (*there, here)]
        with Consumer(connection, wanted, callbacks=[lambda *_: None]):
            silent.freeze()
            wait_until(lambda: said("cannot consume from"))
            for _ in range(15):  # for longer than the next attempt takes
                drain()
            silent.thaw()
            wait_until(lambda: said("again: a node serves them"))
            (lost,), (back,) = said("cannot consume from"), said("again: a node serves them")
    assert f"node 127.0.0.1:{silent.port} " in lost
    for text in (lost, back):
        assert there == [name for name in (*there, here) if repr(name) in text]


@pytest.mark.slow
def test_messages_that_nobody_waits_for_are_told_of_once(cluster, caplog):
    """One log line names a queue whose publishes may be lost, and one when they arrive again."""
    caplog.set_level("INFO", "reliq")
    silent, lively = not_the_anchor(cluster)
    (there,), (here,) = names_at(cluster, silent, 1), names_at(cluster, lively, 1)
    options = {"socket_timeout": 1.0, "confirm": "none"}
    with Connection(cluster.url(), transport_options=options) as connection:
        producer, store = connection.Producer(), connection.default_channel.transport.link.store
        for name in (there, here):
            connection.default_channel.queue_declare(name)
            producer.publish("x", routing_key=name)
        store.wait_for_replies()
        silent.freeze()
        for _ in range(3):
            for name in (there, here):
                producer.publish("x", routing_key=name)
            store.wait_for_replies()  # until the silence of the node is noticed
        texts = [one.getMessage() for one in caplog.records if "may be lost" in one.getMessage()]
        silent.thaw()

        def arrived():
            producer.publish("x", routing_key=there)
            store.wait_for_replies()
            return f"arrive again: {there!r}" in caplog.text

        wait_until(arrived)
        assert 4 <= store.reads.status(here).ready
    (text,) = texts
    assert (True, False) == (repr(there) in text, repr(here) in text)


def names_at(cluster, node, count):
    """Return names of queues of *node*."""
    names = (f"q{number}" for number in range(2000))
    found = (name for name in names if cluster.owner(slot_of(f"{{{name}}}")) is node)
    return list(islice(found, count))


def sent(session, store):
    """Send the owed steps; return whether none are left."""
    with suppress(BrokerUnavailable):
        session.send_owed(store)
    return not session.owes


def queues_around(cluster, silent):
    """Declare q with eight partitions; return the names at *silent* and the names at other nodes.

    The partition with the queue's name is the last of the latter.
    """
    there, here = [], []
    for name in reversed(partition_names("q", 8)):
        (there if cluster.owner(slot_of(queue_keys("", name).meta)) is silent else here).append(
            name
        )
    assert there
    assert here[-1] == "q"
    return there, here


def beside(cluster, queue):
    """Return a master that has neither *queue* nor the keys outside queues."""
    owner = cluster.owner(slot_of(queue_keys("", queue).meta))
    return next(node for node in not_the_anchor(cluster) if node is not owner)


def test_who_is_cancelled_receives_no_more(cluster, monkeypatch):
    """A cancelled consumer leaves all partitions, also those of a silent node once it answers.

    The cancellation waits for the node once, however many partitions it has.
    """
    silent = beside(cluster, "q")
    there, here = queues_around(cluster, silent)
    divided = Queue("q", queue_arguments={"x-partitions": 8})
    options = {"socket_timeout": 3.0}
    with (
        Connection(cluster.url(), transport_options=options) as connection,
        Connection(cluster.url()) as other,
    ):
        channel = connection.default_channel
        session, store = channel.transport.link.session, channel.transport.link.store
        consumers_of = other.default_channel.transport.link.store.consumers_of
        plain = Queue("plain")
        with Consumer(channel, [divided, plain], callbacks=[lambda *_: None]):

            def consumes_from_all():
                with suppress(TimeoutError):  # it begins later where a node is late
                    connection.drain_events(timeout=0.01)
                return all(tuple(consumers_of(name)) == (session.id,) for name in (*there, *here))

            wait_until(consumes_from_all)
            left_s, attach = [], store.attach

            def attach_within(name, *rest):
                if name in there:
                    left_s.append(store._wire.calls.patience_ends_at - time.monotonic())
                return attach(name, *rest)

            monkeypatch.setattr(store, "attach", attach_within)
            silent.freeze()
        assert 2 <= len(left_s)
        assert max(left_s[1:]) < 0.5
        assert [] == channel.transport.schedule.subscriptions
        assert [] == [name for name in (*here, "plain") if consumers_of(name)]
        silent.thaw()
        wait_until(lambda: sent(session, store))
        assert [] == [name for name in there if consumers_of(name)]


@pytest.mark.slow
def test_operators_reach_the_partitions_whose_nodes_answer(cluster):
    """Pause, purge and resume change the partitions of reachable nodes and name the others."""
    silent = beside(cluster, "q")
    there, here = queues_around(cluster, silent)
    divided = Queue("q", queue_arguments={"x-partitions": 8})
    with (
        Connection(cluster.url()) as connection,
        Inspector(cluster.url(), {"socket_timeout": 3.0}) as inspector,
    ):
        for number in range(80):
            connection.Producer().publish(number, routing_key="q", declare=[divided])
        status = connection.default_channel.transport.link.store.reads.status
        inspector.status("q")
        silent.freeze()
        for change, found in (
            ("pause", (True, 10)),
            ("purge", (True, 0)),
            ("resume", (False, 0)),
        ):
            with pytest.raises(BrokerUnavailable) as raised:
                getattr(inspector, change)("q")
            named = str(raised.value).partition(";")[0].removeprefix("queue 'q'")
            assert there == [name for name in (*there, *here) if repr(name) in named]
            assert {found} == {(status(name).paused, status(name).ready) for name in here}
        silent.thaw()
        wait_until(lambda: reached(lambda: status(there[0])))
        assert not any(status(name).paused for name in there)
        assert 10 * len(there) == inspector.purge("q")


def reached(look):
    """Whether *look* reaches a broker."""
    try:
        look()
    except BrokerUnavailable:
        return False
    return True


def test_an_unknown_format_is_refused_as_soon_as_its_node_answers(cluster):
    """An unknown format is refused once its node answers; until then, other nodes are used."""
    anchor = cluster.owner(slot_of(broker_keys("").queues))
    queue = next(
        q
        for q in map(str, range(99))
        if cluster.owner(slot_of(queue_keys("", q).meta)) is not anchor
    )
    with Connection(cluster.url()) as connection:
        connection.Producer().publish("x", routing_key=queue, declare=[Queue(queue)])
        assert {b"version": b"1"} == anchor.client().hgetall(broker_keys("").stored_format)
    anchor.client().hset(broker_keys("").stored_format, "version", "99")
    with pytest.raises(ConfigurationError, match="format 99"):
        Inspector(cluster.url())
    anchor.freeze()
    with Connection(cluster.url(), transport_options={"socket_timeout": 2.0}) as connection:
        producer = connection.Producer()
        producer.publish("y", routing_key=queue)
        anchor.thaw()
        with pytest.raises(ConfigurationError, match="format 99"):
            producer.publish("z", routing_key="of_no_node_yet", declare=[Queue("of_no_node_yet")])
