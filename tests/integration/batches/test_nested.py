"""A batch that is opened in another's block, or with parent=, is a job of that batch."""

from __future__ import annotations

import contextlib

import pytest

from reliq import Batch, BatchClosed, ConfigurationError, NotFound
from reliq.admin import Inspector
from reliq.batches import callbacks as batch_callbacks
from reliq.batches.jobs import NESTED, Change
from tests.contract.jobs import TAG, begin, end, enter, job_of, lost, passes_over
from tests.support.servers import RedisServer
from tests.support.site import CelerySite
from tests.support.waiting import wait_until


@pytest.fixture(params=["redis", "cluster"])
def url(request):
    """Return the URL of a broker."""
    if request.param == "redis":
        return request.getfixturevalue("redis_url")
    return request.getfixturevalue("cluster").url()  # in several slots, at several nodes


@pytest.fixture
def make(url):
    """Return a function that makes a batch, which is closed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def batch(name="test", **options):
            made = Batch(name, url=url, **options)
            stack.callback(made.close)
            return made

        yield batch


def counts(batch):
    """Return the number of jobs in each state, without zeros."""
    return {state: count for state, count in batch.status().counts.items() if count}


def change(batch, *changes):
    """Change jobs, and publish the callbacks that are then pending."""
    store = batch._connected()
    if store.batches.change(batch.id, changes).due:
        batch_callbacks.publish_due(store, store.batches.batch(batch.id))


def test_it_is_entered_when_it_is_opened(make):
    """A nested batch is entered by its id when it is opened; its parent does not end before it."""
    with make() as parent:
        assert {} == counts(parent)
        with make() as child:
            assert {"waiting": 1} == counts(parent)
            change(child, enter())
    assert None is parent.status().ended_ms
    assert child.id == job_of(parent._connected().batches, parent.id, child.id).id
    change(child, begin(), end("succeeded"))
    assert {"succeeded": 1} == counts(parent)
    assert parent.status().ended_ms


def test_an_empty_one_succeeds(make):
    """An empty nested batch succeeds when it is sealed."""
    with make() as parent, make():
        pass
    assert {"succeeded": 1} == counts(parent)


def test_the_parent_may_be_named(make):
    """parent= takes a batch or its id; the surrounding block is then not the parent."""
    with make() as first, make() as other:
        with make(parent=first):
            pass
        with make(parent=first.id):
            pass
    assert ({"succeeded": 3}, {}) == (counts(first), counts(other))


@pytest.mark.parametrize(
    ("ends", "state", "why"),
    [
        ([end("succeeded"), end("failed", "i", why="no")], "failed", "0 of its 2 jobs"),
        ([end("error", why="no"), end("failed", "i")], "error", "1 of its 2 jobs ended in error"),
    ],
)
def test_it_succeeds_only_if_all_its_jobs_do(make, ends, state, why):
    """A nested batch succeeds only if all its jobs do; the reason states how many did not."""
    with make() as parent, make() as child:
        change(child, enter(), enter("i"), begin(), begin("i"))
    change(child, ends[0])
    assert {"waiting": 1} == counts(parent)
    change(child, ends[1])
    status = parent.status()
    assert {state: 1} == counts(parent)
    assert why in status.failures[0].reason
    assert status.ended_ms


def test_a_dead_letter_in_it_is_replayed(make):
    """A nested batch whose dead letter is replayed succeeds; a late report changes nothing."""
    with make() as parent, make() as child:
        change(child, enter(), begin())
    change(child, lost())
    assert {"error": 1} == counts(parent)
    store = child._connected()
    late = store.batches.batch(child.id)
    change(child, Change("replay", "j", tag=TAG, queue="q"), begin(token=2))
    change(child, end("succeeded", token=2))
    assert {"succeeded": 1} == counts(parent)
    batch_callbacks.report_to_parent(store, late)
    assert {"succeeded": 1} == counts(parent)


def test_three_levels(make):
    """The end of the innermost batch ends all three batches."""
    with make() as outer, make() as middle, make() as inner:
        change(inner, enter(), begin())
    assert [None] * 3 == [batch.status().ended_ms for batch in (outer, middle, inner)]
    change(inner, end("succeeded"))
    assert [{"succeeded": 1}] * 3 == [counts(batch) for batch in (outer, middle, inner)]
    assert all(batch.status().ended_ms for batch in (outer, middle, inner))


@pytest.mark.parametrize("how", ["seal", "cancel"])
def test_a_parent_that_takes_no_more(make, how):
    """A child of a sealed or cancelled batch is refused, and is not stored."""
    with make() as parent:
        pass
    getattr(parent, how)()
    child = make(parent=parent)
    with pytest.raises(BatchClosed), child:
        pass
    with pytest.raises(NotFound):
        child.status()


def test_a_parent_that_is_not_there(make):
    """A child of a batch that is not at this broker is refused, and is not stored."""
    child = make(parent="nowhere")
    with pytest.raises(NotFound, match="nowhere"), child:
        pass
    with pytest.raises(NotFound):
        child.status()


def test_a_batch_is_not_its_own_parent(make):
    """A batch cannot be its own parent, since it would never end."""
    child = make(id="itself", parent="itself")
    with pytest.raises(ConfigurationError, match="another batch"), child:
        pass


def test_cancel_is_for_those_in_it(make):
    """Cancelling a batch cancels nested batches of all levels; their waiting jobs do not begin."""
    with make() as outer, make() as middle, make() as inner:
        change(inner, enter())
    outer.cancel()
    assert all(batch.status().cancelled_ms for batch in (outer, middle, inner))
    change(inner, begin())
    assert {"cancelled": 1} == counts(outer) == counts(middle) == counts(inner)


@pytest.mark.parametrize("was_cancelled", [False, True])
def test_an_operator_cancels_those_in_it(make, url, was_cancelled):
    """An operator's cancellation also cancels nested batches, as Batch.cancel does.

    It does so even if the parent is cancelled already: the process that did it may have died then.
    """
    with make() as outer, make() as middle, make() as inner:
        change(inner, enter())
    if was_cancelled:
        tell(outer, Change("cancel"))
    with Inspector(url) as inspector:
        assert inspector.cancel_batch(outer.id) is not was_cancelled
    assert all(batch.status().cancelled_ms for batch in (outer, middle, inner))
    change(inner, begin())
    assert {"cancelled": 1} == counts(outer) == counts(middle) == counts(inner)


def test_an_operator_cannot_cancel_what_has_ended(make, url):
    """An operator cannot cancel a batch that has ended; the attempt changes nothing."""
    with make() as parent, make():
        pass
    with Inspector(url) as inspector:
        assert not inspector.cancel_batch(parent.id)
    assert not parent.status().cancelled_ms
    assert {"succeeded": 1} == counts(parent)


def test_a_child_that_is_cancelled_alone(make):
    """A child that is cancelled alone is an error to its parent, which is not cancelled."""
    with make() as parent, make() as child:
        change(child, enter())
    child.cancel()
    change(child, begin())
    assert {"error": 1} == counts(parent)
    assert parent.status().failures[0].reason.startswith("cancelled")


# -- passes of consumers, after a process died between two steps


class Passes:
    """The passes of a consumer, made at once."""

    def __init__(self, store):
        self.store, self._later = store, []
        self._passes = passes_over(self._later)

    def make(self, batch, *, later=False):
        """Make the passes over a batch; with *later*, as if its jobs were old."""
        now_ms = self.store.now_ms
        if later:
            self.store.now_ms = lambda: now_ms() + 120_000
        try:
            self._passes.soon(batch.id)
            while self._later:
                self._later.pop(0)(self.store)
            while self._passes.sweeps:
                self._passes._go_on(self.store)
            while self._later:
                self._later.pop(0)(self.store)
        finally:
            self.store.now_ms = now_ms


@pytest.fixture
def passes(make):
    """Return the passes of a consumer."""
    return Passes(make()._connected())


def tell(batch, *changes):
    """Change jobs, as a process does that dies before it publishes the pending callbacks."""
    batch._connected().batches.change(batch.id, changes)


def test_who_was_to_tell_the_parent_died(make, passes):
    """A report to the parent stays pending, as a callback does, if its process dies."""
    with make() as parent, make() as child:
        change(child, enter(), begin())
    tell(child, end("failed", why="no"))
    assert {"waiting": 1} == counts(parent)
    passes.make(child)
    assert {"failed": 1} == counts(parent)


def test_the_parent_looks_at_its_child(make, passes):
    """A pass over the parent finds a child that ended unreported, and one that is missing."""
    with make() as parent:
        with make() as child:
            change(child, enter(), begin())
        tell(parent, Change("enter", "gone", "waiting", tag=NESTED))
    tell(child, end("succeeded"))
    child._connected().batches.note_published(child.id, "complete")
    child._connected().batches.note_published(child.id, "success")
    passes.make(parent)
    assert {"waiting": 2} == counts(parent)
    Passes(passes.store).make(parent, later=True)
    assert {"succeeded": 1, "error": 1} == counts(parent)
    assert "lost" in parent.status().failures[0].reason


def test_who_was_to_cancel_the_child_died(make, passes):
    """A pass over a child cancels it if the process that cancelled its parent has died."""
    with make() as parent, make() as child:
        change(child, enter())
    tell(parent, Change("cancel"))
    passes.make(child)
    assert child.status().cancelled_ms


@pytest.mark.slow
def test_a_tree_of_batches_is_run(tmp_path):
    """A worker runs a tree of batches; the outermost callback runs once, when all jobs are done."""
    server = RedisServer()
    with contextlib.ExitStack() as stack:
        stack.callback(server.destroy)
        site = CelerySite(server.start(), "reliq", tmp_path)
        stack.callback(site.close)
        site.worker(app="tests.integration.apps.jobs", pool="threads", concurrency=4)
        options = {"url": site.broker, "transport_options": site.transport_options}
        report = site.app.signature("report", ("success",), app=site.app)
        with Batch("outer", on_success=report, **options) as outer:
            for _ in range(3):
                with Batch("inner", **options) as inner:
                    for _ in range(5):
                        site.send("end_late", "succeed")
                inner.close()
        status = outer.wait(30)
        outer.close()
        assert {"succeeded": 3} == {state: n for state, n in status.counts.items() if n}
        wait_until(lambda: site.journal.entries(key=outer.id), what="the callback")
        site.settled()
        assert 1 == len(site.journal.entries(key=outer.id))
