"""A batch that was postponed and goes on is looked after, whoever died or was late at which step.

When a batch is looked after next is in another slot than what is known of it: so it takes steps.
"""

from __future__ import annotations

import contextlib

import pytest

from reliq.engines.redis.store import RedisStore
from reliq.engines.urls import address
from reliq.errors import BrokerUnavailable
from reliq.options import parse
from reliq.store.jobs import CALLBACKS, UNCHANGED, Change
from tests.contract.jobs import begin, enter, lost
from tests.support.waiting import wait_until

LATER_MS, SOON_MS = 2**50, 1
GOES_ON = begin(token=5)
ENDS = lost()._replace(token=6)


class Steps:
    """Lets a store do some of its commands, and then something else: *before* the n-th."""

    def __init__(self, store, monkeypatch, number, before):
        self.done = 0
        self._call, self._number, self._before = store._wire.call, number, before
        monkeypatch.setattr(store._wire, "call", self._counted)

    def _counted(self, command, script=None):
        self.done += 1
        if self.done == self._number:
            self._before()
        return self._call(command, script)


def die():
    """Do as a process does that is killed: what it was about to send is not sent."""
    raise BrokerUnavailable("killed")


@pytest.fixture
def stores(redis_server):
    """Return two stores, and the batch "b", which has ended and was given to one who looks."""
    redis_server.client().flushall()
    with contextlib.ExitStack() as stack:
        found = [RedisStore(address(redis_server.url()), parse({}), f"s/{n}") for n in (1, 2)]
        for store in found:
            stack.callback(store.close)
        batches = found[0].batches
        batches.open_batch("b", "enrol", {})
        batches.change("b", [enter(), lost(), Change("seal")])
        for callback in CALLBACKS:
            batches.said("b", callback)
        assert ["b"] == batches.next_batches(10, SOON_MS)
        yield found


def is_looked_after(store):
    """Wait until somebody is to look after the batch; it is soon."""
    wait_until(lambda: store.batches.next_batches(10, SOON_MS) == ["b"])


@pytest.mark.parametrize("step", [1, 2, 3])
def test_it_goes_on_while_it_is_postponed(stores, monkeypatch, step):
    """Before any step of who postpones it, who saw it ended: it is late, and does nothing."""
    one, other = stores
    steps = Steps(one, monkeypatch, step, lambda: other.batches.change("b", [GOES_ON]))
    one.batches.postpone("b", LATER_MS)
    assert step <= steps.done
    assert not other.batches.batch("b").ended_ms
    is_looked_after(other)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_it_goes_on_and_ends_while_it_is_postponed(stores, monkeypatch, step):
    """It may be postponed then; and is looked after when it goes on again."""
    one, other = stores

    def go_on_and_end():
        other.batches.change("b", [GOES_ON])
        other.batches.change("b", [ENDS])

    Steps(one, monkeypatch, step, go_on_and_end)
    one.batches.postpone("b", LATER_MS)
    other.batches.change("b", [begin(token=7)])
    is_looked_after(other)


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_who_postpones_it_dies(stores, monkeypatch, step):
    """At any step: it is looked after again, at once or when it goes on."""
    one, other = stores
    with monkeypatch.context() as patch, contextlib.suppress(BrokerUnavailable):
        Steps(one, patch, step, die)
        one.batches.postpone("b", LATER_MS)
    other.batches.change("b", [GOES_ON])
    is_looked_after(other)


@pytest.mark.parametrize("step", [2, 3, 4])
def test_who_has_it_go_on_dies(stores, monkeypatch, step):
    """At any step after the first: what it did is said again by the next one, and seen to."""
    one, other = stores
    assert other.batches.postpone("b", LATER_MS)
    with monkeypatch.context() as patch, contextlib.suppress(BrokerUnavailable):
        Steps(one, patch, step, die)
        one.batches.change("b", [GOES_ON])
    assert [UNCHANGED] == other.batches.change("b", [GOES_ON]).outcomes
    is_looked_after(other)


@pytest.mark.parametrize("step", [2, 3])
def test_it_is_postponed_while_it_is_taken_back(stores, monkeypatch, step):
    """It has ended again meanwhile: whoever took it back leaves what was noted since."""
    one, other = stores
    assert other.batches.postpone("b", LATER_MS)

    def end_and_postpone():
        other.batches.change("b", [ENDS])
        other.batches.postpone("b", LATER_MS)

    Steps(one, monkeypatch, step, end_and_postpone)
    one.batches.change("b", [GOES_ON])
    other.batches.change("b", [begin(token=7)])
    is_looked_after(other)
