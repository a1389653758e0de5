"""Leases and the outbox: at every moment, a message is in at least one of them."""

import gc
import logging
from contextlib import nullcontext
from time import monotonic
from types import SimpleNamespace
from weakref import WeakSet

import pytest

from reliq.consumer.heartbeat import RunningTasks
from reliq.consumer.leases import Leases
from reliq.consumer.outbox import Outbox
from reliq.errors import BrokerTimeout, BrokerUnavailable
from reliq.options import parse
from reliq.values.protocol import Attempt
from reliq.values.values import Delivery, Lease, Released

LEASE_MS = 60_000


class Message:
    """An object that an application may hold."""


class Watched(Leases):
    """Leases that check, whenever one is dropped, that the outbox already has its message.

    A buffer keeps their deliveries.
    """

    def take(self, deliveries, requested_at, lease_ms):
        """Record leases, and buffer their deliveries."""
        self.buffer.extend(deliveries)
        super().take(deliveries, requested_at, lease_ms)

    def settle(self, tags, now=0.0):
        """Drop leases, and record whether the outbox was filled before."""
        self.owed.append(not self.outbox.is_empty)
        return super().settle(tags, now)


@pytest.fixture
def leases():
    """Return leases that hold one message of "q": tag "t", token "1"."""
    leases = Watched(parse({}))
    leases.begin()
    running = RunningTasks()
    running.begin("me")
    leases.outbox = Outbox(leases, WeakSet(), running)
    leases.outbox.begin()
    leases.owed, leases.buffer = [], []
    leases.take([delivery()], monotonic(), LEASE_MS)
    return leases


def delivery(tag="t", token="1"):
    """Return a delivery of "q"."""
    return Delivery("q", tag, token, 0, b"")


def lose_the_message(leases):
    """Let the garbage collector remove the message unacked."""
    message = Message()
    leases.keep_while_alive("t", "1", message)
    del message
    gc.collect()
    assert leases.has_abandoned
    assert leases.held
    leases.outbox.return_abandoned()


ENDINGS = {
    "acked": lambda leases: leases.outbox.ack_later("q", ["t"]),
    "released": lambda leases: leases.outbox.release_later("q", "released", [Lease("t", "1")]),
    "undelivered": lambda leases: leases.outbox.return_later([delivery()]),
    "collected": lose_the_message,
    "at exit": lambda leases: leases.outbox.return_all(),
}


def test_a_dropped_delivery_returns_uncounted(leases):
    """A delivery that no code has any more, as after an interrupt, returns as undelivered."""
    leases.buffer.clear()
    leases.outbox.return_abandoned()
    assert not leases.held
    assert [("q", "undelivered", Lease("t", "1"))] == list(leases.outbox._returns)


def test_a_second_delivery_to_the_application_keeps_the_lease(leases):
    """If a delivery was interrupted and is repeated, the lease belongs to the second message."""
    leases.keep_while_alive("t", "1", Message())
    second = Message()
    leases.keep_while_alive("t", "1", second)
    leases.outbox.return_abandoned()
    assert leases.held


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_let_go_is_owed_before(leases, ending):
    """A message enters the outbox before its lease is dropped, whichever way it ends.

    Code that checks the leases first and the outbox second therefore always finds it.
    """
    assert leases.outbox.is_empty
    assert leases.in_hand
    ENDINGS[ending](leases)
    assert [True] == leases.owed
    assert not leases.held
    assert not leases.in_hand
    assert not leases.outbox.is_empty


@pytest.mark.parametrize("ending", ["released", "undelivered", "collected"])
def test_what_was_delivered_again_is_kept(leases, ending):
    """A return applies to one lease: the next lease of the same message is kept."""
    if ending == "collected":
        message = Message()
        leases.keep_while_alive("t", "1", message)
        leases.take([delivery(token="2")], 0.0, LEASE_MS)
        del message
        gc.collect()
        leases.outbox.return_abandoned()
        assert leases.outbox.is_empty
    else:
        leases.take([delivery(token="2")], 0.0, LEASE_MS)
        ENDINGS[ending](leases)
    assert "2" == leases.held["t"].token


@pytest.mark.parametrize("told", [True, False])
def test_work_goes_on_with_the_lease_of_a_redelivery(leases, told):
    """Work continues with the lease of a redelivery, whether or not the loss was reported before.

    It does not continue after an overstay.
    """
    message = Message()
    leases.keep_while_alive("t", "1", message)
    if told:
        leases.lost("t", "1")
    leases.take([delivery(token="2")], monotonic(), LEASE_MS)
    assert leases.adopt("t", "2")
    assert "2" == message.token
    assert not leases.adrift
    leases.lost("t", "2")
    leases._overstayed.add("t")
    leases.take([delivery(token="3")], monotonic(), LEASE_MS)
    assert not leases.adopt("t", "3")


def test_a_lost_lease_is_in_hand_while_somebody_works_on_its_message(leases):
    """A lost lease is in hand until its message is collected, as the work on it may continue."""
    message = Message()
    leases.keep_while_alive("t", "1", message)
    assert leases.lost("t", "2") is None
    assert "q" == leases.lost("t", "1").queue
    assert leases.in_hand
    assert not leases.held
    del message
    gc.collect()
    leases.outbox.return_abandoned()
    assert not leases.in_hand
    assert leases.outbox.is_empty


def test_what_is_due_is_renewed_once(leases):
    """A lease is due after a third of its time until its renewal is sent, and after a failure."""
    leases.held["t"].granted = 0.0
    own = Lease("t", "1")
    assert {"q": [own]} == leases.due()
    assert {} == leases.due()
    leases.not_renewed([own])
    assert {"q": [own]} == leases.due()
    assert {"q": [own]} == leases.due(all_of_them=True)


def test_a_shorter_lease_is_looked_at_more_often(leases):
    """A shorter lease, of a queue or set by an operator, shortens the period of the checks."""
    heard = []
    leases.on_shorter = lambda: heard.append(leases.period_s)
    leases.take([delivery("u")], 0.0, 3_000)
    leases.renewed([Lease("u", "1")], 0.6)
    leases.renewed([Lease("u", "1")], 9.0)
    assert [0.5, 0.1] == pytest.approx(heard)
    assert 9.0 == leases.held["u"].lease_s


def test_a_child_holds_and_owes_nothing(leases):
    """A child has no leases and an empty outbox, in the same objects as before the fork.

    Code that holds one of the objects when it notices the fork thus uses the child's own.
    """
    leases.outbox.release_later("q", "released", [Lease("gone", "1")])
    leases.begin()
    leases.outbox.begin()
    assert not leases.in_hand
    assert {} == leases.held
    assert leases.outbox.is_empty


@pytest.mark.parametrize(("has_nodes", "trusted"), [(False, False), (True, True)])
def test_an_older_connection_after_another_was_lost(leases, has_nodes, trusted):
    """A connection from before a replacement is trusted only at a broker with nodes.

    It may lead to a server that was replaced, but the nodes of a cluster are observed. Otherwise
    the leases at all nodes would wait for the node of the register.
    """
    leases.outbox.replaced_at = 2.0
    store = SimpleNamespace(connected_at=1.0, has_nodes=has_nodes)
    assert trusted is leases.outbox.trusts(store)
    store.connected_at = 2.0
    assert leases.outbox.trusts(store)


class Store:
    """A store whose nodes of the queues "a" and "c", or whose only server, are unreachable."""

    alive = True
    broker = "broker"

    def __init__(self, *, has_nodes):
        self.has_nodes = has_nodes
        self.asked = []

    def patience(self, seconds):
        """Allow no longer wait."""
        return nullcontext(seconds)

    def _ask(self, what, queue):
        self.asked.append((what, queue))
        if queue != "b" or not self.has_nodes:
            raise BrokerTimeout(queue)

    def release(self, queue, how, leases):
        """Return messages."""
        self._ask("release", queue)
        return Released([], [])

    def hand_back(self, queue, deliveries):
        """Return messages that were taken with no_ack."""
        self._ask("hand back", queue)

    def leases_of(self, queue, consumer):
        """Query the leases that a lost reserve took."""
        self._ask("leases of", queue)
        return []


@pytest.fixture
def outbox(leases):
    """Return an outbox with a pending report of each kind for three queues."""
    for queue in "abc":
        own = Delivery(queue, f"no-ack-{queue}", "1", 0, b"", place="1")
        leases.outbox.release_later(queue, "released", [Lease(queue, "1")])
        leases.outbox.return_later([own], no_ack=True)
        leases.outbox.reserve_lost(queue, "me/1")
    return leases.outbox


def flush(outbox, store):
    """Send the pending reports, as a session does."""
    attempt = Attempt(store, refused=True)
    outbox.flush(store, attempt)
    attempt.raise_lost()


def test_a_queue_whose_node_is_away_holds_up_no_other(outbox):
    """A queue on an unreachable node does not delay the reports to others.

    Its reports stay pending. The first error is raised after every queue had its turn.
    """
    store = Store(has_nodes=True)
    with pytest.raises(BrokerTimeout, match="a"):
        flush(outbox, store)
    kinds = ("release", "hand back", "leases of")
    assert sorted((kind, queue) for kind in kinds for queue in "abc") == sorted(store.asked)
    store.asked.clear()
    with pytest.raises(BrokerTimeout):
        flush(outbox, store)
    kinds = ("release", "leases of")  # messages that need no ack are returned once
    assert sorted((kind, queue) for kind in kinds for queue in "ac") == sorted(store.asked)


def test_a_server_that_is_away_is_asked_once(outbox):
    """An unreachable single server is queried once, as it has all queues."""
    store = Store(has_nodes=False)
    with pytest.raises(BrokerUnavailable):
        flush(outbox, store)
    assert [("release", "a")] == store.asked


def test_a_message_that_is_finished_after_its_lease_is_told(leases, caplog):
    """A message that is finished after its lease has ended is logged.

    A process that was frozen acks before it learns that others may have the message.
    """
    now, renewed = monotonic(), [Lease("renewed", "1")]
    leases.take([delivery("late"), delivery("renewed")], now - 100, LEASE_MS)
    leases.take([delivery("in time"), delivery("refused")], now - 59, LEASE_MS)
    leases.due(all_of_them=True)
    leases.renewed(renewed, 60.0)
    leases.not_renewed([Lease("refused", "1")])
    with caplog.at_level(logging.WARNING, logger="reliq"):
        leases.outbox.ack_later("q", ["late", "renewed", "in time", "refused"])
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("lease lost: message late of 'q' was finished after its lease had ended")
