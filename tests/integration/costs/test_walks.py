"""The files through which one message passes, so that each step stays easy to read."""

import sys

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

from reliq.consumer.host import HOST
from reliq.consumer.sessions import SESSIONS
from tests.support.waiting import wait_until
from tests.support.walks import walk

# The most files, and changes of file, of each walk. Only lower these.
FILES = {
    "publish": 14,
    "reserve to ack": 20,
    "renewal": 11,
    "restore": 10,
    "fail over": 30,
    "fail back": 28,
}
CHANGES = {"reserve to ack": 60}
POLICY = {"max_retries": 5, "interval_start": 0, "interval_step": 0.1}


def check(name, found):
    """Fail if the walk *found* passes through more files, or changes more often, than allowed."""
    assert len(found.files) <= FILES[name], "\n".join(found.files)
    assert found.changes <= CHANGES.get(name, found.changes)


@pytest.fixture(autouse=True)
def no_other_sessions(monkeypatch):
    """Hide the sessions of earlier tests: a connection ends those that await a lost connection."""
    monkeypatch.setattr(SESSIONS, "by_key", {})


@pytest.fixture
def channel(redis_factory):
    """Return a channel of a connection to a separate Redis."""
    with Connection(redis_factory().url("reliq")) as connection:
        yield connection.channel()


def test_a_publish(channel):
    """A publish passes through few files."""
    producer = Producer(channel)
    for _ in range(3):
        producer.publish(1, routing_key="q", declare=[Queue("q", channel=channel)])
    check("publish", walk(lambda: producer.publish(1, routing_key="q")))


def test_a_delivery(channel):
    """A message passes through few files from its reserve to its ack, with a prefetch of one."""
    connection = channel.connection.client
    producer, queue = Producer(channel), Queue("q", Exchange(""), "q", channel=channel)
    queue.declare()
    for n in range(100):
        producer.publish(n, routing_key="q")
    with Consumer(channel, [queue], callbacks=[lambda _, message: message.ack()]) as consumer:
        consumer.qos(prefetch_count=1)
        # A walk that waits longer for a reply changes between the same files more often.
        walks = [walk(lambda: connection.drain_events(timeout=5)) for _ in range(100)]
        check("reserve to ack", min(walks[5:], key=lambda one: one.changes))


def test_duties(channel):
    """The renewal of a lease and a restore pass go through few files."""
    connection = channel.connection.client
    producer, queue = Producer(channel), Queue("q", Exchange(""), "q", channel=channel)
    queue.declare()
    producer.publish(1, routing_key="q")
    with Consumer(channel, [queue], callbacks=[lambda *_: None]):
        connection.drain_events(timeout=5)
        session = channel.connection.link.session
        session.background.stop()  # the only user of the duties is this test
        store = session.open_store()
        store.connect()

        def renew():
            session.duties.renewal.renew(store, all_of_them=True)
            store.wait_for_replies()

        def restore():
            session.duties.passes.restore(store, "q", force=True)
            store.wait_for_replies()

        for name, step in (("renewal", renew), ("restore", restore)):
            step()
            check(name, walk(step))
        store.close()


def test_another_broker(redis_factory, monkeypatch):
    """Connecting while the first broker is down, and moving to it later, go through few files."""
    # As in a process that is no worker: one adds to the replies of remote control as it connects.
    for name in ("celery.worker.control", "flower.utils.broker", "gevent.monkey"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    servers = redis_factory(), redis_factory()
    urls = [server.url("reliq") for server in servers]
    options = {"socket_timeout": 1.0, "max_retries": 5}
    servers[0].kill()
    HOST.prepare()  # the first connection of a process passes through one more file
    with Connection(urls, failover_strategy="primary", transport_options=options) as connection:

        def publish():
            connection.Producer().publish(1, routing_key="q", retry=True, retry_policy=POLICY)

        check("fail over", walk(connection.connect))
        publish()
        assert urls[1] == connection.transport.failback.url
        servers[0].start()
        wait_until(lambda: connection.transport.failback.due, timeout_s=30)
        check("fail back", walk(connection.transport.failback.fail_back))
        assert urls[0] == connection.transport.failback.url
