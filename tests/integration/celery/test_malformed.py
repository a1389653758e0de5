"""A message that makes Celery's own code raise ends no worker, and harms no other task."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.utils.uuid import uuid

from reliq.admin import Inspector
from tests.support.processes import Process
from tests.support.servers import RedisServer
from tests.support.site import CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import POOLS, app_environment, pools

EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
GOOD = json.dumps([[], {}, EMBED])
TASKS = ("record", "record_late")
# For messages with any arguments: the other tasks would sleep for the seconds in an argument.
TAKERS = ("take", "take_late")


def headers(task, changes=()):
    """Return the headers of a Celery task message, with *changes*."""
    task_id = uuid()
    return {
        "lang": "py",
        "task": task,
        "id": task_id,
        "root_id": task_id,
        "parent_id": None,
        "group": None,
        "argsrepr": "()",
        "kwargsrepr": "{}",
        "retries": 0,
        "timelimit": [None, None],
        "eta": None,
        "expires": None,
        "ignore_result": True,
        **dict(changes),
    }


# (body, changed headers, properties); first the messages that ended a worker, in every pool.
FATAL = (
    ("7", {}, {}),
    ("null", {}, {}),
    (GOOD, {"timelimit": "x"}, {}),
    (GOOD, {"timelimit": ["x", "y"]}, {}),
    (GOOD, {"id": {}}, {}),
    (GOOD, {"task": ["a"]}, {}),
    (GOOD, {"stamped_headers": 7}, {}),
    (GOOD, {}, {"content_type": 7}),
    (GOOD, {}, {"content_encoding": ["x"]}),
)
BAD = (
    *FATAL,
    ('[{"a":1},[1],7]', {}, {}),
    (json.dumps([[], {}, {"chain": 7}]), {}, {}),
    (json.dumps([[], {}, {"callbacks": 7, "errbacks": 3, "chord": [1]}]), {}, {}),
    (GOOD, {"eta": 7.5}, {}),
    (GOOD, {"expires": {"a": 1}}, {}),
    (GOOD, {"retries": "x"}, {}),
    (GOOD, {"task": "nobody's"}, {}),
    ("[]", {}, {}),
)


class Hostile:
    """A site with one worker that must survive all messages."""

    def __init__(self, site, worker):
        self.site = site
        self.worker = worker

    def throw(self, body, head, **properties):
        """Publish a message unchanged."""
        properties = {
            "content_type": "application/json",
            "content_encoding": "utf-8",
            "routing_key": "celery",
            **properties,
        }
        stored = body.encode() if isinstance(body, str) else body
        with self.site.app.producer_or_acquire() as producer:
            producer.publish(stored, headers=head, **properties)

    def good(self):
        """Send a harmless task; return its id."""
        return self.site.send("record_late").id

    def outlives(self, good):
        """Fail unless the worker lives and has run every good task, and all is settled."""
        wait_until(
            lambda: set(good) <= set(self.site.journal.finished()) or not self.worker.running,
            timeout_s=30,
            what=lambda: f"good tasks: {self.site.counts()}\n{self.worker.tail(40)}",
        )
        assert self.worker.running, self.worker.tail(40)
        self.site.wait_counts(ready=0, delayed=0, unacked=0)

    def takes_bad_among_good(self, task):
        """Fail unless each bad message is a dead letter with its error, and the others run."""
        self.throws_bad_among_good(task)
        self.found_bad(2)

    def throws_bad_among_good(self, task):
        """Send each bad message twice, among good tasks that run."""
        good = []
        for body, changes, properties in BAD * 2:
            good.append(self.good())
            self.throw(body, headers(task, changes), **properties)
        good.append(self.good())
        self.outlives(good)

    def found_bad(self, times):
        """Fail unless each bad message was a dead letter at least *times* times."""
        found = self.dead_letters()
        reasons = [dead_letter.reason for dead_letter in found]
        # One that failed before its task began had a second delivery; the others had not.
        counts = {letter.reason: set() for letter in found}
        for letter in found:
            counts[letter.reason].add(letter.count)
        assert {0} == counts["undecodable"]
        assert 1 in counts["malformed"] <= {0, 1}
        assert reasons.count("malformed") >= times * (len(FATAL) - 2)
        assert reasons.count("undecodable") >= times * 2
        self.site.settled(dead=len(reasons))

    def dead_letters(self):
        """Return the dead letters; each carries its error."""
        with Inspector(
            self.site.broker, transport_options=self.site.transport_options
        ) as inspector:
            found = inspector.dead_letters("celery", 10_000)
        assert [] == [
            (dead_letter.tag, dead_letter.reason) for dead_letter in found if not dead_letter.error
        ]
        return found


@pytest.fixture(scope="module", params=POOLS)
def hostile(request, tmp_path_factory):
    """Return a worker of the pool, shared by all tests of this module."""
    with ExitStack() as stack:
        server = RedisServer()
        stack.callback(server.destroy)
        directory = tmp_path_factory.mktemp(request.param)
        site = CelerySite(server.start(), "reliq", directory)
        stack.callback(site.close)
        # Fewer places than bad messages: if each kept its place, the worker would soon stop.
        yield Hostile(
            site,
            site.worker(pool=request.param, concurrency=2, arguments=["--task-events"]),
        )


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_bad_messages_among_good_ones(hostile, task):
    """Each message that once ended the worker is a dead letter with its error; other tasks run."""
    hostile.takes_bad_among_good(task)


def test_bad_events_and_commands(hostile):
    """Bad events and remote control commands, which are never acked, end no worker either."""
    for exchange in ("celeryev", "celery.pidbox"):
        for body in ("7", "null", '{"method": 7, "type": {}}', "[1]", "{"):
            for head in ({}, {"clock": "x"}, {"hostname": [], "clock": {}}):
                hostile.throw(body, head, exchange=exchange, routing_key="worker.heartbeat")
    hostile.outlives([hostile.good()])


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(), st.text(max_size=8)
)
ANY = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        *("lang", "task", "id", "root_id", "parent_id", "group", "group_index", "argsrepr"),
        *("kwargsrepr", "retries", "timelimit", "eta", "expires", "ignore_result", "shadow"),
        *("origin", "stamped_headers", "stamps", "replaced_task_nesting", "compression"),
        *("x-delivery-count", "redelivered", "meth", "clock"),
    ]
)
EMBEDS = st.dictionaries(st.sampled_from([*EMBED, "other"]), ANY, max_size=3)
BODIES = st.one_of(
    ANY.map(json.dumps),
    st.tuples(ANY, ANY, ANY | EMBEDS).map(json.dumps),
    EMBEDS.map(lambda embed: json.dumps([[], {}, embed])),
    st.fixed_dictionaries({"task": ANY | st.just("take"), "id": ANY, "args": ANY}).map(json.dumps),
    st.text(max_size=20),
    st.binary(max_size=20),
)
PROPERTIES = st.dictionaries(
    st.sampled_from(
        ["content_type", "content_encoding", "correlation_id", "reply_to", "delivery_tag", "type"]
    ),
    ANY
    | st.sampled_from(["application/json", "application/x-python-serialize", "utf-8", "binary"]),
    max_size=2,
)
MESSAGES = st.tuples(
    BODIES, st.sampled_from(TAKERS), st.dictionaries(NAMES, ANY, max_size=2), PROPERTIES
)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batch=st.lists(MESSAGES, min_size=6, max_size=12))
def test_nothing_in_a_message_ends_a_worker(hostile, batch):
    """A worker survives messages with any content, and every good task runs."""
    good = [hostile.good()]
    for body, task, changes, properties in batch:
        hostile.throw(body, headers(task, changes), **properties)
        good.append(hostile.good())
    hostile.outlives(good)
    hostile.site.settled(dead=len(hostile.dead_letters()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["undecodable", "malformed"])
def test_solo_asks_for_the_next_at_once(redis_factory, site_factory, kind):
    """Forty messages that are dead-lettered do not delay the task behind them."""
    site = site_factory(redis_factory(), broker_transport_options={"poll_interval": 5.0})
    hostile = Hostile(site, site.worker(pool="solo"))
    hostile.outlives([hostile.good()])
    hostile.worker.freeze()
    for _ in range(40):
        hostile.throw("7" if kind == "malformed" else "{", headers("record"))
    good = hostile.good()
    began = time.monotonic()
    hostile.worker.thaw()
    hostile.outlives([good])
    assert time.monotonic() - began < 5


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", of=("prefork", "threads")))
def test_a_pool_that_was_restarted(redis_factory, site_factory, pool):
    """`celery control pool_restart` removes nothing of the worker's protection."""
    site = site_factory(redis_factory(), worker_pool_restarts=True)
    hostile = Hostile(site, site.worker(pool=pool, concurrency=2))
    hostile.outlives([hostile.good()])
    before = children(site)
    (reply,) = site.app.control.pool_restart(reply=True, timeout=20)
    assert [{"ok": "reload started"}] == list(reply.values())
    # Only prefork can restart. A child ends after one more task, and busy children share the tasks.
    while pool == "prefork" and not before.isdisjoint(children(site)):
        hostile.outlives([site.send("record", 0.2).id for _ in range(4)])
    hostile.takes_bad_among_good("record_late")


def children(site):
    """Return the processes of the pool, or their numbers."""
    (stats,) = site.app.control.inspect(timeout=20, limit=1).stats().values()
    return set(stats["pool"].get("processes", ()))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_workers_in_threads_of_one_program(redis_factory, site_factory, tmp_path, pool, count):
    """Celery's workers for test suites, which no worker signal announces, survive them too."""
    site = site_factory(redis_factory())
    program = Process(
        [sys.executable, "-m", "tests.integration.apps.embedded", pool, str(count)],
        log_path=tmp_path / "embedded.log",
        env=app_environment(site.broker, site.journal, site.config),
        cwd=tmp_path,
    )
    try:
        wait_until(lambda: "embedded ready." in program.log(), what=program.tail)
        hostile = Hostile(site, program)
        hostile.takes_bad_among_good("record_late")
    finally:
        program.kill_group()
