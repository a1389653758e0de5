"""Background duties over several nodes: an unresponsive node delays no other for long."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from time import monotonic
from types import SimpleNamespace

import pytest

from reliq.batches.job_reports import JobReports
from reliq.consumer.duties import BackgroundDuties
from reliq.consumer.runner import Duty
from reliq.errors import BrokerTimeout
from reliq.options import Options
from reliq.values.values import ignore_result


class Clock:
    """Time that passes only during waits."""

    def __init__(self):
        self.now = monotonic()

    def __call__(self):
        """Return the current time."""
        return self.now


class Store:
    """A store with one unresponsive node: a query of it takes as long as allowed."""

    has_nodes = alive = True

    def __init__(self, clock):
        self.clock = clock
        self.may_wait_s = 0.0
        self.asked = []

    @contextmanager
    def patience(self, seconds):
        """Limit the duration of queries to *seconds*."""
        self.may_wait_s = seconds
        yield

    def wait_for_replies(self):
        """Wait in vain: the node always has a reply pending."""
        self.clock.now += self.may_wait_s

    def receive(self):
        """Read nothing."""

    check = connect = receive


def ask_lost(name, store):
    """Query the unresponsive node."""
    store.asked.append(name)
    store.clock.now += store.may_wait_s
    raise BrokerTimeout("nobody waits longer")


def ask(name, store):
    """Query another node."""
    store.asked.append(name)


@pytest.fixture
def clock(monkeypatch):
    """Return the clock that the duties read."""
    clock = Clock()
    for name in ("duties", "runner"):
        monkeypatch.setattr(f"reliq.consumer.{name}.monotonic", clock)
    return clock


@pytest.fixture
def store(clock):
    """Return a store with one unresponsive node."""
    return Store(clock)


@pytest.fixture
def duties():
    """Return the duties of a session without leases or reports."""
    registration = SimpleNamespace(subscriptions=set(), expected_back=False, queues=())
    leases = SimpleNamespace(period_s=1.0, held={}, overstayed=dict, due=lambda _all: {})
    outbox = SimpleNamespace(resend=lambda _seconds: None, trusts=lambda _store: True)
    running = SimpleNamespace(tell=lambda *_args, **_known: None)
    reports = JobReports(ignore_result)
    reports.begin()
    return BackgroundDuties(
        "me",
        Options(),
        leases,
        outbox,
        registration,
        running,
        reports,
        lambda _store: False,
        lambda _store: None,
        lambda _name: False,
    )


def turn(duties, store, *more):
    """Run one turn of the background loop; return its duration."""
    began = store.clock.now
    duties.tick(store)
    duties.runner.due.extend(more)
    duties.runner.run_all(store, duties.keep_alive)
    return store.clock.now - began


def test_duties_of_a_node_that_does_not_answer_do_not_pile_up(duties, store):
    """Repeated duties of an unresponsive node do not pile up: leases elsewhere are renewed."""
    longest = 0.0
    for _ in range(40):
        more = [Duty(ask_lost, f"queue {number}") for number in range(4)]
        longest = max(longest, turn(duties, store, *more))
        store.clock.now += 0.5
    assert longest < 0.5
    assert len(duties.runner.later) <= 4


def test_an_ack_does_not_wait_for_a_backlog_of_duties(duties, store):
    """An ack that becomes due during the duties is sent within a slice of them.

    The same holds for an ack that becomes due by the reply to the first.
    """
    seen, owed = [], []

    def send_owed(_store):
        seen.append("ack")
        owed[:] = ["another"] * (len(seen) == 2)  # its reply acknowledges another message

    def look(number, _store):
        seen.append(number)
        store.clock.now += 0.06  # longer than a slice of duties
        if number == 0:
            owed.append("ack")

    duties.runner._owes, duties.runner._reports.step = lambda _store: owed, send_owed
    turn(duties, store, *(Duty(look, args=(number,)) for number in range(4)))
    assert [0, "ack", 1, "ack", 2, 3] == seen


def test_leases_are_renewed_while_duties_take_long(duties, store):
    """Leases are renewed during long duties, each reply of which may add more of them.

    This happens in a process that hardly gets a processor.
    """
    renewed = []
    duties.renewal._leases.due = lambda _all: renewed.append(store.clock.now) or {}

    def slow(left, _store):
        store.clock.now += 0.7
        if left:
            duties.runner.soon(slow, "", left - 1)

    assert turn(duties, store, Duty(slow, args=(19,))) > 13.0
    assert max(b - a for a, b in pairwise([*renewed, store.clock.now])) < 1.0


def test_a_duty_of_another_node_is_done_all_the_same(duties, store):
    """A duty of a responsive node is done although many failing ones precede it."""
    more = [Duty(ask_lost, str(number)) for number in range(20)]
    assert turn(duties, store, *more, Duty(ask, "other")) < 1.0
    assert "other" in store.asked


def test_a_duty_that_could_not_be_done_is_tried_again(duties, store):
    """A failed duty is retried after a while, once, however often it was requested."""
    turn(duties, store, Duty(ask_lost, "one"), Duty(ask_lost, "one"))
    store.asked.clear()
    store.clock.now += 1.5
    turn(duties, store)
    assert ["one"] == store.asked
