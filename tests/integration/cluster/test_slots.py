"""While a slot moves to another node, each script runs completely or is refused completely.

During the move, a server refuses a script if some of its keys are gone, and runs it if all are
there. A key that the script itself empties counts as gone from then on: its next use would end the
script after its writes. Every script is run in each state of the slot.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

from reliq.batches.jobs import Change, Note
from reliq.errors import ReliqError
from reliq.lua import scripts
from reliq.lua.keys import batch_keys, queue_key
from reliq.lua.keys import log as log_key
from reliq.options import parse
from reliq.store.store import RedisStore
from reliq.store.urls import address
from reliq.values.inspection import Position
from reliq.values.values import Move
from tests.contract.jobs import OTHER_TAG, TAG, begin, end, enter, lost
from tests.contract.steps import LONG_MS, audit, lease_of, message, tags
from tests.support.cluster import SLOTS, Migration, RedisCluster

QUEUES = count()


@pytest.fixture(scope="module")
def cluster():
    """Return two masters, of which the first has all slots but one."""
    # The other master has one slot: a master without slots becomes a replica.
    running = RedisCluster(2, slots=[SLOTS - 1, 1])
    try:
        yield running.start()
    finally:
        running.destroy()


def move_back(migration):
    """End a migration, and move its slot back."""
    with suppress(ReliqError):
        migration.end()
    back = Migration(migration.target, migration.source, "")
    back.slot = migration.slot
    back.open()
    back.end()


class Moving:
    """A queue with a message in every state; its slot can be moved."""

    def __init__(self, cluster):
        self.queue = f"q{next(QUEUES)}"
        source, target = cluster.masters
        self.migration = Migration(source, target, queue_key("", self.queue, "meta"))
        self.source, self.target = (self._store(node) for node in cluster.masters)

    @staticmethod
    def _store(node):
        return RedisStore(address(node.url()), parse({"delivery_limit": 5}), "s/1")

    def fill(self):
        """Make one message in each state, so that a script that removes it leaves the key empty."""
        store, queue = self.source, self.queue
        store.declare_queue(queue, False, b"", {})
        store.attach(queue, "s", 1)
        for _ in range(4):
            store.publish([message(queue, b"x", number=next(QUEUES) + 1, low_water=0)])
        self.taken = store.reserve(queue, 4, LONG_MS, False).deliveries
        *_, self.died = leases = [lease_of(delivery) for delivery in self.taken]
        store.dead_letter(queue, "rejected", "", [self.died])
        self.held = leases[:2]
        store.release(queue, "nacked", leases[2:3])
        store.publish([message(queue, b"delayed", delay_ms=LONG_MS)])
        store.publish([message(queue, b"expires", ttl_ms=1)])

    def close(self):
        """Move the slot back and close the stores."""
        move_back(self.migration)
        for store in (self.source, self.target):
            store.close()


@pytest.fixture
def moving(cluster):
    """Return a queue whose slot is about to move."""
    queue = Moving(cluster)
    queue.fill()
    yield queue
    queue.close()


def nothing(_result):
    """Accept a result."""


def posted(post):
    """Return the post as a call that waits and raises."""

    def call(store, moving):
        results = []
        post(store, moving, results.append)
        store.wait_for_replies()
        for result in results:
            if isinstance(result, ReliqError):
                raise result

    return call


CALLS = {
    "publish": lambda store, m: store.publish([message(m.queue, b"y", number=10**6)]),
    "reserve": lambda store, m: store.reserve(m.queue, 9, LONG_MS, False),
    "reserve_acked": lambda store, m: store.reserve(m.queue, 9, LONG_MS, True),
    "promote": posted(lambda store, m, on: store.post_promote(m.queue, on)),
    "hand_back": lambda store, m: store.hand_back(m.queue, m.taken[:2]),
    "ack": posted(lambda store, m, on: store.post_ack(m.queue, tags(m.taken), on)),
    "release": lambda store, m: store.release(m.queue, "nacked", m.held),
    "release_uncounted": lambda store, m: store.release(m.queue, "released", m.held),
    "renew": posted(lambda store, m, on: store.post_renew(m.queue, LONG_MS, m.held, on)),
    "end_leases": posted(lambda store, m, on: store.post_end_leases(m.queue, m.held, on)),
    "dead_letter": lambda store, m: store.dead_letter(m.queue, "rejected", "", m.held),
    "restore_visible": posted(lambda store, m, on: store.post_restore(m.queue, 1000, on, True)),
    "survey": posted(lambda store, m, on: store.post_survey([m.queue], on)),
    "snapshot": posted(lambda store, m, on: store.post_snapshots([m.queue], on, 1)),
    "expire": posted(lambda store, m, on: store.post_expire(m.queue, on)),
    "leases_of": lambda store, m: store.leases_of(m.queue, "s/1"),
    "attach": lambda store, m: store.attach(m.queue, "s", 2),
    "drop_consumer": lambda store, m: store.drop_consumer(m.queue, "s", m.mark, 0),
    "declare": lambda store, m: store.declare_queue(m.queue, False, b"", {"expires": "1000"}),
    "delete_queue": lambda store, m: store.delete_queue(m.queue),
    "replay": lambda store, m: store.replay(m.queue, [m.died.tag]),
    "purge_dead": lambda store, m: store.purge_dead(m.queue, [m.died.tag]),
    "move": lambda store, m: store.begin_move(m.queue, "queue:other", [m.died.tag]),
    "moved": lambda store, m: store.end_move(m.queue, [m.died.tag]),
    "move_out": lambda store, m: store.move_out(m.queue, "broker:b"),
    "accept": lambda store, m: store.accept(m.queue, "b", 1, [Move("05tag", 1, b"z")]),
    "purge": lambda store, m: store.purge(m.queue),
    "measure": lambda store, m: store.reads.measure([m.queue]),
    "scan": lambda store, m: store.reads.scan(m.queue, "dead", Position()),
    "locate": lambda store, m: store.reads.locate(m.queue, m.died.tag),
    "configure": lambda store, m: store.configure(m.queue, {"max_length": "9"}),
    "pause": lambda store, m: store.pause(m.queue, True),
    "layout": lambda store, m: store.lay_out(m.queue, 4, 4),
    "whereabouts": lambda store, m: store.reads.whereabouts(m.queue, tags(m.taken)),
}
"""One call for each script over the keys of a queue, and more for variants of some."""

STATES = {
    "slot open": lambda keys: [],
    "half moved": lambda keys: keys[::2],
    "all moved": lambda keys: keys,
}


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", CALLS)
def test_a_script_is_whole_or_refused(moving, name, state):
    """During the move, a script changes all or nothing; a refused script succeeds afterwards."""
    call, migration = CALLS[name], moving.migration
    moving.mark = moving.source.attached(moving.queue).marks["s"]
    migration.open()
    migration.move(STATES[state](migration.keys(migration.source)))
    before = migration.contents()
    refusal = None
    try:
        call(moving.source, moving)
    except ReliqError as exc:
        refusal = str(exc)
    if refusal is not None:
        assert re.search(r"\b(ASK|TRYAGAIN)\b", refusal)
        assert before == migration.contents()
    migration.end()
    audit(moving.target, [moving.queue])
    # A declaration begins in the slot of the list of queues, which is not at the target.
    if refusal is not None and name != "declare":
        call(moving.target, moving)
        audit(moving.target, [moving.queue])


# -- batches


class MovingBatch:
    """A batch with jobs in many states; its slot can be moved."""

    def __init__(self, cluster):
        self.name = f"b{next(QUEUES)}"
        source, target = cluster.masters
        self.migration = Migration(source, target, batch_keys("", self.name).batch)
        self.source, self.target = (Moving._store(node) for node in cluster.masters)
        # The list of batches is in another slot; entering the batch there is not tested here.
        known = batch_keys("", self.name)
        self.source._wire.run(scripts.OPEN_BATCH, known, ("enrol", 1))
        self.change(self.source, *map(enter, "abcdef"), *(begin(job) for job in "bcdef"))
        self.change(
            self.source, end("failed", "c"), lost("d"), enter("e", tag=OTHER_TAG, retries=1)
        )

    def change(self, store, *changes):
        """Change jobs over one node."""
        return store.batches.change(self.name, changes)

    def require_balanced(self):
        """Fail unless each job is in one state, and each failed job is listed once."""
        found = [job for part in self.target.batches.jobs(self.name) for job in part]
        counts = self.target.batches.batch(self.name).counts
        assert Counter(job.state for job in found) == +Counter(counts)
        failed = [job for job, _, _ in self.target.batches.failures(self.name, 100)]
        assert sorted(job.id for job in found if job.state in {"failed", "error"}) == sorted(failed)

    close = Moving.close


OF_BATCHES = {
    "enter": lambda store, m: m.change(store, enter("new")),
    "withdraw": lambda store, m: m.change(store, Change("withdraw", "a", tag=TAG)),
    "begin": lambda store, m: m.change(store, begin("a")),
    # These two empty a key and use it again.
    "end": lambda store, m: m.change(store, *(end("succeeded", i) for i in "bcdef"), begin("a")),
    "fail": lambda store, m: m.change(store, end("error", "b", why="no")),
    "replay": lambda store, m: m.change(
        store, *(Change("replay", job, tag=TAG) for job in "cd"), end("failed", "c")
    ),
    "cancel": lambda store, m: m.change(store, Change("cancel"), begin("a")),
    "note": lambda store, m: store.batches.note(
        m.name, Note("b", token=1, queue="q", progress=(1, 2, "x"), report="no price")
    ),
    "note_callback": lambda store, m: store.batches.note_published(m.name, "failure"),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", OF_BATCHES)
def test_a_script_of_a_batch_is_whole_or_refused(cluster, name, state):
    """During the move, a script changes all or nothing; a refused script succeeds afterwards."""
    moving = MovingBatch(cluster)
    if name == "note_callback":
        moving.change(moving.source, Change("seal"))
    try:
        call, migration = OF_BATCHES[name], moving.migration
        migration.open()
        migration.move(STATES[state](migration.keys(migration.source)))
        before = migration.contents()
        refusal = None
        try:
            call(moving.source, moving)
        except ReliqError as exc:
            refusal = str(exc)
        if refusal is not None:
            assert re.search(r"\b(ASK|TRYAGAIN)\b", refusal)
            assert before == migration.contents()
        migration.end()
        moving.require_balanced()
        if refusal is not None:
            call(moving.target, moving)
            moving.require_balanced()
    finally:
        moving.close()


# -- logs of exchanges


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", ["log", "read_log"])
def test_a_script_of_a_log_is_whole_or_refused(cluster, name, state):
    """During the move, an entry is appended or refused; a refused script succeeds afterwards."""
    exchange = f"x{next(QUEUES)}"
    source, target = cluster.masters
    migration = Migration(source, target, log_key("", exchange))
    at_source, at_target = (Moving._store(node) for node in cluster.masters)
    at_source.bind(exchange, True, [b"binding"])
    version = at_source.exchange_table(exchange).version
    item = replace(message("", b"x"), exchange=exchange, version=version, logged=True)

    def call(store):
        if name == "log":
            assert [1] == store.publish([replace(item, tag=f"t{next(QUEUES)}")])
        return read(store)

    def read(store):
        found = []
        store.post_read_log(exchange, "0", LONG_MS, 9, found.append)
        store.wait_for_replies()
        (logged,) = found
        if isinstance(logged, ReliqError):
            raise logged
        return logged.entries

    try:
        assert [1] == at_source.publish([item])
        migration.open()
        migration.move(STATES[state](migration.keys(migration.source)))
        before = migration.contents()
        refusal = None
        try:
            call(at_source)
        except ReliqError as exc:
            refusal = str(exc)
        if refusal is not None:
            assert re.search(r"\b(ASK|TRYAGAIN)\b", refusal)
            assert before == migration.contents()
        migration.end()
        if refusal is not None:
            call(at_target)
        assert (2 if name == "log" else 1) == len(read(at_target))
    finally:
        move_back(migration)
        for store in (at_source, at_target):
            store.close()


def test_every_script_of_a_queue_is_called():
    """CALLS has every script of a queue; other scripts have one key or are tested elsewhere."""
    of_others = {"bind", "unbound", "once", "heartbeat", "elect", "report_running", "list_queue"}
    of_others |= {"note_bound", "declare_exchange", "wake", "log", "read_log"}
    of_batches = {
        "open_batch",
        "change_jobs",
        "note_job",
        "note_callback",
        "list_batch",
        "next_batches",
    }
    kombu = {"kombu_take", "kombu_take_unacked", "kombu_accept"}
    everything = {item.name for item in vars(scripts).values() if isinstance(item, scripts.Script)}
    assert everything - of_others - of_batches - kombu <= set(CALLS)
