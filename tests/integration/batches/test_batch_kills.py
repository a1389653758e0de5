"""SIGKILL between any two steps of a batch: the counts are right, and each callback runs once."""

from __future__ import annotations

from contextlib import closing

import pytest

from reliq.admin import Inspector
from reliq.batches.jobs import DONE, Change
from reliq.client.cluster.slots import slot_of
from reliq.lua.keys import batch_keys, queue_key
from reliq.message.delivery_tag import BATCH, new_tag
from reliq.store.urls import connect
from reliq.values.values import Lease
from tests.integration.kills import AFTER, ALL_WELL, BEFORE, HANDLED, SENT, SOME_BAD, Case, Killing
from tests.support.cluster import RedisCluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

BOTH = {"succeeded": 2}
PARENT = "parent"


@pytest.fixture
def killing(fresh_redis, tmp_path):
    """Return a site whose processes can be killed."""
    found = Killing(fresh_redis, "reliq", tmp_path)
    yield found
    found.close()


def producer(name, step, when, seen, counts, said=ALL_WELL, **options):
    """Return a case in which a producer is killed."""
    return Case(f"producer-{name}", step, when, seen, counts, said, who="", **options)


PRODUCERS = [
    producer("opened", "open", AFTER, "", {}),
    producer("entering", "enter", BEFORE, "-/-", {"succeeded": 1}, number=2),
    producer("entered", "enter", AFTER, "waiting/-", {}),
    producer("storing", "publish", BEFORE, "waiting/-", {"succeeded": 1}, number=2),
    producer("stored", "publish", AFTER, "waiting/there", {"succeeded": 1}),
    producer("sealing", "seal", BEFORE, "", BOTH),
    producer("sealed", "seal", AFTER, "", BOTH),
    producer("refused-withdrawing", "withdraw", BEFORE, "waiting/-", {"succeeded": 1}),
    producer("refused-withdrawn", "withdraw", AFTER, "-/-", {"succeeded": 1}),
    producer("listed", "listed", AFTER, "", {"none": 0}, ()),
    producer("mapping", "publish", BEFORE, "waiting/-", {}, scenario="map"),
    producer("mapped", "publish", AFTER, "waiting/there", BOTH, scenario="map"),
]
LISTED = PRODUCERS[[case.step for case in PRODUCERS].index("listed")]


def test_producers(killing):
    """Messages that a killed producer did not store are no jobs, and its batch is sealed."""
    killing.kill_producers(PRODUCERS)
    killing.ended([case for case in PRODUCERS if case is not LISTED])
    with closing(connect(killing.url, killing.site.transport_options, "look/1")) as store:
        wait_until(lambda: LISTED.name not in store.batches.batches(100))  # listed, not opened


def test_a_point_that_is_not_there(killing):
    """A test fails if no process was killed at its point, or if the process failed otherwise."""
    right = PRODUCERS[1]
    with pytest.raises(AssertionError, match="there is no such point"):
        killing.kill_producers([right._replace(step="entre")])
    with pytest.raises(AssertionError, match=r"nobody was killed at .* it ended with 0"):
        killing.kill_producers([right._replace(name="never", number=9)])
    misspelt = LATE[0]._replace(when="afterwards")
    with pytest.raises(AssertionError, match="ended, and not at"):
        killing.kill_workers([misspelt])


LATE = [
    Case("reserved", "reserve", AFTER, "", BOTH, ALL_WELL),
    Case("not-told", "end", BEFORE, "working/there", BOTH, ALL_WELL),
    Case("posted", "end", SENT, "working/there succeeded/there", BOTH, ALL_WELL),
    Case("told", "end", AFTER, "succeeded/there", BOTH, ALL_WELL),
    Case("told-failed", "end", AFTER, "failed/there", {"failed": 2}, SOME_BAD, "failed"),
    Case("told-last", "end", AFTER, "succeeded/there", BOTH, ALL_WELL, number=2),
    Case("heard-last", "end", HANDLED, "succeeded/there succeeded/-", BOTH, ALL_WELL, number=2),
    Case("acking", "ack", BEFORE, "-/there", BOTH, ALL_WELL),
    Case("ack-posted", "ack", SENT, "-/there -/-", BOTH, ALL_WELL),
    Case("acked", "ack", AFTER, "-/-", BOTH, ALL_WELL),
    Case("returning", "return", BEFORE, "working/there", BOTH, ALL_WELL, "requeue"),
    Case("returned", "return", AFTER, "waiting/there", BOTH, ALL_WELL, "requeue"),
    Case("released", "release", AFTER, "", BOTH, ALL_WELL, "requeue"),
    Case("rejecting", "dead-letter", BEFORE, "", {"error": 2}, SOME_BAD, "reject"),
    Case("rejected", "dead-letter", AFTER, "", {"error": 2}, SOME_BAD, "reject"),
]


def test_workers(killing):
    """The job of a killed worker is delivered to the next worker, and counts once."""
    killing.kill_workers(LATE)
    killing.ended(LATE)


def early(name, step, when, seen, counts, said, how="succeed"):
    """Return a case with a task that is acked when it begins."""
    return Case(f"early-{name}", step, when, seen, counts, said, how, task="end_early")


ONE_LOST = {"succeeded": 1, "error": 1}
EARLY = [
    early("beginning", "begin", BEFORE, "waiting/there working/there", BOTH, ALL_WELL),
    early("begun", "begin", SENT, "waiting/there working/there", BOTH, ALL_WELL),
    early("acked", "ack", AFTER, "working/-", ONE_LOST, SOME_BAD, how="succeed late"),
    early("not-told", "end", BEFORE, "working/-", ONE_LOST, SOME_BAD, how="succeed late"),
    early("told", "end", AFTER, "succeeded/-", BOTH, ALL_WELL),
]
CALLBACKS = [
    Case("publishing", "callback", BEFORE, "", BOTH, ALL_WELL),
    Case("published", "callback", AFTER, "", BOTH, ALL_WELL),
    Case("said", "said", AFTER, "", BOTH, ALL_WELL),
    Case("second", "callback", AFTER, "", BOTH, ALL_WELL, number=2),
    Case("publishing-failure", "callback", BEFORE, "", {"failed": 2}, SOME_BAD, "failed"),
    Case("published-failure", "callback", AFTER, "", {"failed": 2}, SOME_BAD, "failed"),
]


def test_callbacks(killing):
    """Killed workers lose no callback, and the lost jobs of early-acked tasks are found."""
    killing.kill_workers(EARLY + CALLBACKS)
    killing.ended(EARLY + CALLBACKS)


def child(name, step, when, seen, how="succeed", task="end_late_requeued", counts=BOTH):
    """Return a case in which a child of a pool is killed."""
    said = ALL_WELL if counts is BOTH else SOME_BAD
    return Case(f"child-{name}", step, when, seen, counts, said, how, task, who="child")


CHILDREN = [
    child("beginning", "begin", BEFORE, "waiting/there"),
    child("begun", "begin", AFTER, "working/there"),
    child("noting", "note", BEFORE, "working/there", "progress"),
    child("noted", "note", AFTER, "working/there", "progress"),
    child("retry-entering", "enter", BEFORE, "working/-", "retry"),
    child("retry-entered", "enter", AFTER, "retrying/-", "retry"),
    child("retry-publishing", "retry", BEFORE, "retrying/-", "retry"),
    child("retry-published", "retry", AFTER, "retrying/there", "retry"),
    child("early", "begin", AFTER, "working/there working/-", "succeed", "end_early", ONE_LOST),
    child("early-entered", "enter", AFTER, "retrying/-", "retry", "end_early", ONE_LOST),
    child("early-published", "retry", AFTER, "retrying/there", "retry", "end_early"),
    Case(
        "child-cancelled",
        "begin",
        AFTER,
        "cancelled/there",
        {"cancelled": 2},
        ("complete",),
        task="end_late_requeued",
        who="child",
    ),
]


def test_children(killing):
    """The job of a killed child is delivered again, or its worker reports the end."""
    killing.publish(CHILDREN)
    (cancelled,) = (case for case in CHILDREN if case.name == "child-cancelled")
    killing.publish([cancelled._replace(scenario="cancelled")])
    worker = killing.worker(CHILDREN, queues=[*(case.name for case in CHILDREN), "callbacks"])
    killing.was_there(CHILDREN, worker)
    killing.ends(CHILDREN)


def duty(name, step, when, seen, counts, said=ALL_WELL, **options):
    """Return a case in which a consumer is killed in one of its duties for batches."""
    return Case(f"duty-{name}", step, when, seen, counts, said, **options)


PURGED = [
    duty("read", "read", AFTER, "", {"error": 2}, SOME_BAD),
    duty("telling", "tell", BEFORE, "waiting/-", {"error": 2}, SOME_BAD),
    duty("told", "tell", AFTER, "error/-", {"error": 2}, SOME_BAD),
    duty("forgotten", "forget-events", AFTER, "", {"error": 2}, SOME_BAD),
]
# All jobs had failed before the replay.
REPLAYED = [
    duty("replaying", "replay", BEFORE, "waiting/there", BOTH, (*ALL_WELL, "failure")),
    duty("replayed", "replay", AFTER, "waiting/there", BOTH, (*ALL_WELL, "failure")),
]
LOST = [
    duty(
        "losing",
        "lose",
        BEFORE,
        "waiting/-",
        {"succeeded": 2, "error": 1},
        SOME_BAD,
        scenario="left",
    ),
    duty("lost", "lose", AFTER, "error/-", {"succeeded": 2, "error": 1}, SOME_BAD, scenario="left"),
]
LEFT = [
    duty("sealing", "seal", BEFORE, "", BOTH, scenario="left"),
    duty("sealed", "seal", AFTER, "", BOTH, scenario="left"),
]


def test_duties(killing):
    """The next consumer completes a killed one's duties: it reports, seals and ends lost jobs."""
    cases = PURGED + REPLAYED + LOST + LEFT
    options = killing.site.transport_options
    with (
        closing(connect(killing.url, options, "test/1")) as store,
        Inspector(killing.url, transport_options=options) as inspector,
    ):

        def prepare(case):
            if case in PURGED:
                assert 2 == inspector.purge(case.name)
            elif case in REPLAYED:
                taken = store.reserve(case.name, 2, 60_000, False).deliveries
                leases = [Lease(one.tag, one.token) for one in taken]
                assert [] == store.dead_letter(case.name, "rejected", "why", leases)
                assert 2 == len(store.replay(case.name, [lease.tag for lease in leases]))
            elif case in LOST:
                tag = new_tag(5, {BATCH: "b"})
                entered = Change("enter", "lost", "waiting", tag=tag, queue=case.name)
                # A later change of its publisher shows that the message was stored; it is lost now.
                changes = [entered, Change("seal", tag=new_tag(0, {BATCH: "b"}))]
                assert [DONE, DONE] == store.batches.change(case.name, changes).outcomes

        killing.kill_workers(cases, prepare)
    killing.ended(cases)


def nested(name, step, when, seen, of="", counts=None, said=ALL_WELL, **options):
    """Return a case of a nested batch; *of* is "inner" if the point is at the child."""
    name = f"nested-{name}"
    found = Case(name, step, when, seen, counts or {"succeeded": 1}, said, scenario="nested")
    return found._replace(of=of and f"{name}-{of}", **options)


CHILD_BATCHES = [
    nested("callback", "callback", BEFORE, "", "inner"),
    nested("telling", "nested-end", BEFORE, "waiting/-"),
    nested("told", "nested-end", AFTER, "succeeded/-"),
    nested("failed", "nested-end", AFTER, "failed/-", "", {"failed": 1}, SOME_BAD, how="failed"),
    nested("parent-publishing", "callback", BEFORE, ""),
    nested("parent-said", "said", AFTER, "", number=2),
    nested("said", "said", AFTER, "", "inner", number=2),
]
OPENED = [
    nested("opened", "open", AFTER, "", "inner", {"none": 0}, who=""),
    nested("entered", "nested-enter", AFTER, "waiting/-", who=""),
]
GIVEN_UP = [
    case._replace(counts={"cancelled": 1}, said=("complete",), who="")
    for case in (
        nested("cancelled", "cancel", AFTER, ""),
        nested("cancelling-child", "cancel", BEFORE, "", "inner"),
        nested("cancelled-child", "cancel", AFTER, "", "inner"),
    )
]


def test_nested(killing):
    """A parent learns of its child's end, and a child is cancelled with its parent."""
    killing.publish(GIVEN_UP)
    killing.kill_producers([*OPENED, *(case._replace(scenario="cancelled") for case in GIVEN_UP)])
    killing.kill_workers(CHILD_BATCHES)
    with closing(connect(killing.url, killing.site.transport_options, "look/1")) as store:
        killing.worker(queues=["callbacks"])  # no jobs: those that began before it would run on

        def cancelled():
            return all(store.batches.batch(f"{case.name}-inner").cancelled_ms for case in GIVEN_UP)

        wait_until(cancelled, what="children to be cancelled with their parents")
    every = [*CHILD_BATCHES, *OPENED, *GIVEN_UP]
    killing.ended(every)
    for case in GIVEN_UP:
        assert ["complete"] == killing.heard(f"{case.name}-inner")
    for case in CHILD_BATCHES:
        assert sorted(case.said) == killing.heard(f"{case.name}-inner")


FORGOTTEN = [
    Case(f"{name}-forgotten", step, when, "", {}, ALL_WELL, scenario="forgotten")
    for name, step, when in (
        ("to-be", "forget", BEFORE),
        ("half", "unlink", AFTER),
        ("quite", "forget", AFTER),
    )
]


def test_forgotten(killing):
    """A batch that was forgotten half way is forgotten completely by the next consumer."""
    killing.kill_workers(FORGOTTEN)
    killing.worker(queues=[*(case.name for case in FORGOTTEN), "callbacks"])
    with closing(connect(killing.url, killing.site.transport_options, "look/1")) as store:
        for case in FORGOTTEN:
            wait_until(lambda case=case: store.batches.batch(case.name) is None)
            wait_until(lambda case=case: case.name not in store.batches.batches(100))
            wait_until(lambda case=case: len(killing.heard(case.name)) == len(case.said))
            assert [] == [job for part in store.batches.jobs(case.name) for job in part]
            assert sorted(case.said) == killing.heard(case.name)


def of_broker(name, step, when, seen="", how="succeed", counts=BOTH, **options):
    """Return a case in which the broker is killed."""
    said = ALL_WELL if counts is BOTH else SOME_BAD
    return Case(f"broker-{name}", step, when, seen, counts, said, how, **options)


BROKER_OF_WORKERS = [
    of_broker("begun", "begin", AFTER, "working/there", who="child"),
    of_broker("retry-entered", "enter", AFTER, "retrying/-", "retry", who="child"),
    of_broker("retry-published", "retry", AFTER, "retrying/there", "retry", who="child"),
    of_broker("not-told", "end", BEFORE, "working/there"),
    of_broker("posted", "end", SENT, "working/there succeeded/there"),
    of_broker("told", "end", AFTER, "failed/there", "failed", {"failed": 2}),
    of_broker("ack-posted", "ack", SENT, "-/there -/-"),
    of_broker("publishing", "callback", BEFORE),
    of_broker("published", "callback", AFTER),
    of_broker("said", "said", AFTER),
]
BROKER_OF_PRODUCERS = [
    of_broker("entering", "enter", BEFORE, "-/-", who=""),
    of_broker("entered", "enter", AFTER, "waiting/-", who=""),
    of_broker("storing", "publish", BEFORE, "waiting/-", who=""),
    of_broker("stored", "publish", AFTER, "waiting/there", who=""),
]


def test_a_broker(redis_factory, tmp_path):
    """A broker that is killed between two steps has all that it stored again after its restart."""
    server = redis_factory(appendonly=True)
    killing = Killing(server, "reliq", tmp_path)
    cases = BROKER_OF_WORKERS + BROKER_OF_PRODUCERS
    try:
        for case in BROKER_OF_PRODUCERS:
            killing.victim(case, server)
            killing.kill_producers([case], server.restart)
        queues = [*(case.name for case in cases), "callbacks"]
        worker = killing.worker(BROKER_OF_WORKERS, queues=queues)
        for case in BROKER_OF_WORKERS:
            killing.victim(case, server)
            killing.publish([case])
            killing.was_there([case], worker)
            server.restart()
        killing.ends(cases)
    finally:
        killing.close()


OF_NODES = [
    # The killed node: that of the batch, or that of the queue.
    ("batch", of_broker("not-told", "end", BEFORE, "working/there")),
    ("batch", of_broker("told", "end", AFTER, "succeeded/there")),
    ("queue", of_broker("told-of-queue", "end", AFTER, "succeeded/there")),
    ("batch", of_broker("publishing", "callback", BEFORE)),
]


@pytest.mark.parametrize("promoted", [False, True], ids=["restarted", "promoted"])
def test_nodes(tmp_path, promoted):
    """A batch survives the kill of its own node, and of its queue's node."""
    cluster = RedisCluster(3, int(promoted), appendonly=True)
    killing = None

    def slots(name):
        return {
            "batch": slot_of(batch_keys("", name).batch),
            "queue": slot_of(queue_key("", f"q-{name}", "meta")),
        }

    try:
        cluster.start()
        killing = Killing(cluster, "reliq", tmp_path)
        cases = []
        for which, case in OF_NODES:
            names = (f"{case.name}-{n}" for n in range(100))
            name = next(n for n in names if len({cluster.owner(s) for s in slots(n).values()}) == 2)
            cases.append((which, case._replace(name=name, queue=f"q-{name}")))
        every = [case for _, case in cases]
        worker = killing.worker(every, queues=[*(case.queue for case in every), "callbacks"])
        for which, case in cases:
            slot = slots(case.name)[which]
            node = cluster.owner(slot)
            name = case.name if which == "batch" else case.queue
            killing.victim(case, node, f"{{{name}}}:replicated" if promoted else "")
            with Inspector(killing.url) as inspector:  # no job kills the node before the seal
                wait_until(lambda of=inspector, queue=case.queue: queue in of.queues())
                inspector.pause(case.queue)
                killing.publish([case])
                inspector.resume(case.queue)
            killing.was_there([case], worker)
            if promoted:
                wait_until(
                    lambda slot=slot, node=node: cluster.owner(slot) is not node,
                    what="a new master",
                )
            node.restart()
            cluster.wait_whole()
        killing.ends(every)
    finally:
        if killing is not None:
            killing.close()
        cluster.destroy()
