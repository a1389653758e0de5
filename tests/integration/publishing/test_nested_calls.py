"""A signal handler or a destructor that publishes and acks inside a publish, an ack or a tick.

Python runs them anywhere in a program, also in a thread that holds one of reliq's locks. Each test
runs one step once for each point at which Python checks for signals, and calls there. A lock that
is not reentrant would hang the test. Afterwards, each message is stored and delivered once.
A nested command within the write or read of a command of the same connection closes the connection.
"""

from __future__ import annotations

import faulthandler
import signal
from contextlib import ExitStack, suppress

import pytest
from kombu import Connection, Consumer, Queue

from reliq.errors import BrokerUnavailable
from reliq.routing.publish_ids import PUBLISHER
from tests.support.interrupts import PACKAGE, Nester

OPTIONS = {"visibility_timeout": 60, "restore_interval": 60}
pytestmark = [
    pytest.mark.slow,  # some hundred runs each
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


class Pair:
    """A connection of the program, and one of its signal handler, to the same server."""

    def __init__(self, url, cleanup):
        self.url = url
        self.outer, self.inner = (Connection(url, transport_options=OPTIONS) for _ in range(2))
        cleanup += [self.outer, self.inner]
        self.published, self.got = 0, []
        self.producers = [one.Producer() for one in (self.outer, self.inner)]
        channel = self.outer.channel()
        Queue("q", channel=channel).declare()
        self.consumer = Consumer(channel, [Queue("q")], callbacks=[self._take])
        self.consumer.qos(prefetch_count=100)
        self.consumer.consume()
        self.held = []

    def _take(self, body, message):
        if body:
            self.got.append(body)
        self.held.append(message)

    def publish(self, inner=False):
        """Publish the next number."""
        self.published += 1
        self.producers[inner].publish(self.published, routing_key="q")

    def post(self):
        """Publish without waiting for the reply; a lost connection may lose the message."""
        with suppress(BrokerUnavailable):
            self.producers[0].publish(0, routing_key="q", confirm="none")

    def ack(self):
        """Ack a held message."""
        if self.held:
            self.held.pop().ack()

    def nested(self):
        """Publish over the other connection, and over the own one without waiting; ack."""
        self.publish(inner=True)
        self.post()
        self.ack()

    def tick(self):
        """Do the background duties over the connection of the program."""
        link = self.outer.transport.link
        with suppress(BrokerUnavailable):
            link.session.duties.tick(link.store)
            link.store.wait_for_replies()

    def drain(self):
        """Deliver all published messages; go on after a lost connection."""
        while len(self.got) < self.published:
            with suppress(BrokerUnavailable):
                self.outer.drain_events(timeout=5)
        while len(self.held) > 2:
            self.ack()


def by_handler(call):
    """Return a function that calls *call* in a signal handler."""
    signal.signal(signal.SIGUSR1, lambda *_: call())
    return lambda: signal.raise_signal(signal.SIGUSR1)


def by_destructor(call):
    """Return a function that calls *call* in a destructor, which the collector may run anywhere."""

    class Dropped:
        def __del__(self):
            call()

    return Dropped


@pytest.fixture
def on_signal():
    """Restore the signal handler after the test."""
    before = signal.getsignal(signal.SIGUSR1)
    faulthandler.dump_traceback_later(300)
    yield
    faulthandler.cancel_dump_traceback_later()
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def pair(fresh_redis, on_signal):
    """Return a pair of connections to a server of their own."""
    opened = []
    yield Pair(fresh_redis.url("reliq"), opened)
    for connection in opened:
        connection.close()


STEPS = {
    "publish": Pair.publish,
    "publish without a confirmation": Pair.post,
    "ack": Pair.ack,
    "tick": Pair.tick,
}


@pytest.mark.parametrize("how", [by_handler, by_destructor])
@pytest.mark.parametrize("step", STEPS)
def test_a_call_within_a_call(pair, step, how):
    """A nested publish or ack ends, and mixes up no number and no reply."""
    nest_everywhere(pair, STEPS[step], how)


@pytest.mark.parametrize("step", [Pair.publish, Pair.tick])
def test_a_call_within_a_call_over_a_cluster(cluster, on_signal, step):
    """The same over a cluster, at some points."""
    cluster.flush()
    with ExitStack() as opened:
        cleanup = []
        opened.callback(lambda: [connection.close() for connection in cleanup])
        nest_everywhere(Pair(cluster.url(), cleanup), step, by_handler, every=29)


def connect(pair):
    """Connect once more."""
    with Connection(pair.url, transport_options=OPTIONS) as connection:
        connection.default_channel.queue_declare("q", passive=True)


def test_a_call_within_a_connect(pair):
    """A nested publish or ack ends while another connection of the process is opened."""
    nest_everywhere(pair, connect, by_handler, every=17)


def nest_everywhere(pair, step, how, every=1):
    """Nest a publish, a post and an ack at each point of *step*; check the ledger after each."""
    call, point = how(pair.nested), 0
    while True:
        point += every
        pair.publish()
        pair.drain()
        nester = Nester(PACKAGE, point, call)
        nester.run(lambda: step(pair))
        pair.drain()
        assert sorted(pair.got) == list(range(1, pair.published + 1)), nester.where
        if not nester.where:
            break
    assert point > 20
    while pair.held:
        pair.ack()
    pair.outer.transport.link.store.wait_for_replies()
    assert not PUBLISHER._open
    assert not pair.outer.transport.link.session.leases.held
