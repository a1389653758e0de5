"""The background duties of a session while one of several nodes is unreachable."""

from contextlib import nullcontext
from weakref import WeakSet

import pytest

from reliq.batches.job_reports import JobReports
from reliq.consumer import duties, runner
from reliq.consumer.heartbeat import RunningTasks
from reliq.consumer.leases import Leases
from reliq.consumer.outbox import Outbox
from reliq.consumer.registration import Registration
from reliq.errors import BrokerRefused, BrokerTimeout
from reliq.options import parse
from reliq.values.values import ignore_result


class Store:
    """A store with one unreachable node."""

    has_nodes = alive = True

    def receive(self, *_):
        """Receive nothing."""

    check = connect = wait_for_replies = receive

    def patience(self, seconds):
        """Allow no longer wait."""
        return nullcontext(seconds)


class Debtor:
    """The sender of a pending report to the unreachable node."""

    owes = True

    def __init__(self, error):
        self.error = error
        self.tries = 0

    def send_owed(self, store):
        """Fail, as long as the node is unreachable."""
        self.tries += 1
        if self.owes:
            raise self.error(f"{store}")


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that the test sets."""
    clock = [1000.0]
    for module in (duties, runner):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    return clock


@pytest.mark.parametrize("error", [BrokerTimeout, BrokerRefused])
def test_what_is_owed_is_tried_once_at_a_time(clock, error):
    """A pending report is tried at most once per tick, as each try waits and delays other work."""
    options, debtor, store = parse({}), Debtor(error), Store()
    leases, running, transports = Leases(options), RunningTasks(), WeakSet()
    outbox = Outbox(leases, transports, running)
    registration = Registration(transports, 1.0)
    leases.begin()
    outbox.begin()
    running.begin("me")
    registration.begin("me")
    reports = JobReports(ignore_result)
    reports.begin()
    found = duties.BackgroundDuties(
        "me",
        options,
        leases,
        outbox,
        registration,
        running,
        reports,
        lambda _store: debtor.owes,
        debtor.send_owed,
        bool,
    )
    tries = []
    for _ in range(40):
        debtor.tries = 0
        found.tick(store)
        found.runner.run_all(store)
        tries.append(debtor.tries)
        clock[0] += 0.3
    assert 5 < sum(tries)
    assert 1 == max(tries)
    debtor.owes = False
    clock[0] += 10
    debtor.tries = 0
    for _ in range(3):
        found.tick(store)
        found.runner.run(store)
    assert debtor.tries <= 1
