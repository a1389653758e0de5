"""A file as the last URL of a list: it takes what is published while Redis is away."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

import pytest
from kombu import Connection

from reliq.admin import Inspector
from reliq.engines.redis.connect import Address
from reliq.engines.redis.store import RedisStore
from reliq.engines.sqlite.location import location
from reliq.engines.sqlite.store import SqliteStore
from reliq.errors import QueueFull
from reliq.message.delivery_tag import new_tag
from reliq.options import parse
from reliq.store.values import STORED, Publication
from reliq.transfer.between_brokers import move_queue
from tests.integration.kombu_client import declare, publish
from tests.support.audits import assert_balanced
from tests.support.journal import Journal
from tests.support.processes import Process
from tests.support.sentinels import SentinelGroup
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

FAST = {
    "visibility_timeout": 2.0,
    "restore_interval": 0.5,
    "orphan_grace": 0.5,
    "poll_interval": 1.0,
    "probe_interval": 0.5,
}
SETTINGS = {
    "task_ignore_result": True,
    "result_backend": None,
    "broker_failover_strategy": "primary",
    "task_publish_retry_policy": {"max_retries": 30, "interval_start": 0, "interval_max": 0.2},
}
PLACES = ("ready", "delayed", "unacked", "dead")


def counts(url, queue="celery"):
    """Return what of *queue* is at *url*, without what is none."""
    with Inspector(url) as inspector:
        if queue not in inspector.queues():
            return {}
        status = inspector.status(queue)
    return {place: n for place in PLACES if (n := getattr(status, place))}


class Spooled:
    """Redis, a file for when it is away, publishers that list both, and their tasks."""

    def __init__(self, redis_factory, site_factory, tmp_path):
        self.redis = redis_factory(appendonly=True)
        self.home = self.redis.url("reliq")
        self.spool = f"reliq-sqlite:///{tmp_path}/spool.db"
        self.site = site_factory(self.redis, **SETTINGS, broker_transport_options=FAST)
        self.site.broker = f"{self.home};{self.spool}"
        self.tmp_path = tmp_path
        self.sent = Journal(tmp_path / "sent")
        self.processes = []

    def start(self, command, name):
        """Start a process in the tests' directory."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "RELIQ_TEST_CONFIG": json.dumps(self.site.config),
        }
        process = Process(
            [sys.executable, "-m", *command],
            log_path=self.tmp_path / f"{name}{len(self.processes)}.log",
            env=environment,
            cwd=ROOT,
        )
        self.processes.append(process)
        return process

    def publisher(self):
        """Start a publisher."""
        command = ["tests.integration.apps.spooling", self.site.broker, self.sent.path]
        return self.start(command, "publisher")

    def mover(self):
        """Start a carrier: the command."""
        command = ["reliq.cli", "move", "--all", "--from", self.spool, "--to", self.home]
        return self.start(command, "mover")

    def confirmed(self):
        """Return the ids of the tasks that were confirmed to publishers."""
        return {entry.key for entry in self.sent.entries("confirmed")}

    def wait_confirmed(self, more):
        """Wait until so many more tasks are confirmed."""
        goal = len(self.confirmed()) + more
        wait_until(lambda: len(self.confirmed()) >= goal, timeout_s=60, what=self.tails)

    def tails(self):
        """Return the ends of the logs."""
        return "\n".join(process.tail(15) for process in self.processes)

    def all_done(self):
        """Wait until every confirmed task has run; fail where any ran twice."""
        missing = self.confirmed()

        def done():
            missing.difference_update(self.site.journal.finished())
            return not missing

        wait_until(done, timeout_s=90, what=lambda: f"{len(missing)} are missing\n{self.tails()}")
        twice = {task: n for task, n in self.site.journal.started().items() if n > 1}
        assert {} == twice
        wait_until(lambda: {} == counts(self.spool), timeout_s=60, what=self.tails)
        wait_until(lambda: {} == counts(self.home), timeout_s=30)

    def close(self):
        """End everything."""
        for process in self.processes:
            process.kill_group()
        self.sent.close()
        self.site.close()


@pytest.fixture
def spooled(redis_factory, site_factory, tmp_path):
    """Return Redis with a spool beside it; both balance at the end."""
    spooled = Spooled(redis_factory, site_factory, tmp_path)
    yield spooled
    spooled.close()
    assert_balanced(spooled.home)
    assert_balanced(spooled.spool)


def redis_is_away(spooled, seconds):
    """Kill Redis under load, start it again, and let the publishers come home."""
    publishers = [spooled.publisher() for _ in range(3)]
    spooled.wait_confirmed(50)
    spooled.redis.kill()
    before = len(spooled.confirmed())
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        spooled.wait_confirmed(10)
    assert len(spooled.confirmed()) > before + 10 * seconds
    spooled.redis.start()
    for process in publishers:
        wait_until(lambda p=process: "answers again" in p.log(), timeout_s=30, what=process.tail)
    spooled.wait_confirmed(50)
    return publishers


def end(publishers):
    """Let publishers finish what they do; none of their tasks was refused."""
    for process in publishers:
        process.signal(signal.SIGTERM)
    for process in publishers:
        assert 0 == process.wait()


@pytest.mark.parametrize(
    "seconds", [4, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(240)])]
)
@pytest.mark.parametrize("consumes", ["both", "home"])
def test_redis_is_away_under_load(spooled, seconds, consumes):
    """Every task that was confirmed runs, and none twice; no publish fails.

    Whether or not the worker can reach the spool: where it cannot, the publishers carry
    home what is in it.
    """
    urls = spooled.site.broker if consumes == "both" else spooled.home
    spooled.site.worker(pool="prefork", concurrency=2, broker=urls)
    publishers = redis_is_away(spooled, seconds)
    wait_until(lambda: {} == counts(spooled.spool), timeout_s=60, what=spooled.tails)
    end(publishers)
    assert [] == spooled.sent.entries("refused")
    spooled.all_done()


def test_carriers_are_killed(spooled):
    """Publishers on their way home, and the command, die at any point: all runs once."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    publishers = [spooled.publisher() for _ in range(3)]
    spooled.wait_confirmed(20)
    spooled.redis.kill()
    spooled.wait_confirmed(500)
    spooled.redis.start()
    for _ in range(5):
        mover = spooled.mover()
        goal = sum(counts(spooled.spool).values()) - chance.randint(1, 80)
        wait_until(
            lambda m=mover, g=goal: sum(counts(spooled.spool).values()) <= g or not m.running,
            interval_s=chance.uniform(0.001, 0.01),
            what=spooled.tails,
        )
        mover.kill_group()
        if publishers:
            publishers.pop().kill_group()
    spooled.site.worker(pool="prefork", concurrency=2)
    spooled.all_done()


def test_a_worker_whose_child_dies_carries_on(spooled):
    """A prefork worker forks while it carries a long spool: it neither hangs nor gives up."""
    count = 20_000
    store = SqliteStore(location(spooled.spool.removeprefix("reliq-sqlite:///")), parse({}), "x")
    for start in range(0, count, 1000):
        store.publish(
            [
                Publication("other", new_tag(5), b"x", 5, "p", start + n, 0, 0, -1, "", b"")
                for n in range(1, 1001)
            ]
        )
    store.close()
    worker = spooled.site.worker(pool="prefork", concurrency=2, broker=spooled.site.broker)
    spooled.site.broker = spooled.home  # nobody else carries
    for _ in range(3):
        left = counts(spooled.spool, "other").get("ready", 0)
        wait_until(
            lambda n=left: counts(spooled.spool, "other").get("ready", 0) < n,
            timeout_s=60,
            what=worker.tail,
        )
        spooled.site.journal.wait_started(spooled.site.send("die_first").id)
        spooled.site.journal.wait_finished(spooled.site.send("record").id, timeout_s=30)
    assert counts(spooled.spool, "other")["ready"]
    wait_until(lambda: {} == counts(spooled.spool, "other"), timeout_s=60, what=worker.tail)
    assert {"ready": count} == counts(spooled.home, "other")
    assert 0 == worker.shut_down()


def test_a_new_publisher_empties_the_spool(spooled):
    """What a process left there that is gone, whoever publishes at home next carries."""
    first = spooled.publisher()
    spooled.wait_confirmed(1)
    spooled.redis.kill()
    spooled.wait_confirmed(20)
    first.kill_group()
    left = sum(counts(spooled.spool).values())
    assert left >= 20
    spooled.redis.start()
    second = spooled.publisher()
    wait_until(lambda: {} == counts(spooled.spool), timeout_s=30, what=spooled.tails)
    end([second])
    assert counts(spooled.home)["ready"] >= left


def test_a_reply_that_never_came(spooled):
    """Redis has the message and could not say so: the one in the spool is given to nobody."""
    options = {**FAST, "socket_timeout": 0.5}
    spooled.site.config["broker_transport_options"] = options
    spooled.site.send("record_late")
    spooled.redis.freeze()
    doubtful = spooled.site.send("record_late").id
    certain = spooled.site.send("record_late").id
    assert {"ready": 1, "unacked": 1} == counts(spooled.spool)
    spooled.site.worker(pool="solo", broker=spooled.spool)
    spooled.site.journal.wait_finished(certain)
    wait_until(lambda: {"unacked": 1} == counts(spooled.spool), what="its ack, and no more")
    spooled.redis.thaw()
    wait_until(lambda: {"ready": 2} == counts(spooled.home))
    wait_until(lambda: {} == counts(spooled.spool), timeout_s=60)
    assert {"ready": 2} == counts(spooled.home)
    spooled.site.worker(pool="solo", broker=spooled.home)
    spooled.site.journal.wait_finished(doubtful)
    spooled.all_done()


def test_a_sentinel_group_is_away(site_factory, tmp_path):
    """All its servers: publishers go to the spool; what they, and one that died, left comes home.

    The Sentinels of a list are one broker, which is home.
    """
    group = SentinelGroup(replicas=0, sentinels=2)
    spool = f"reliq-sqlite:///{tmp_path}/spool.db"
    try:
        group.start()
        server = group.servers[0]
        options = {**FAST, **group.options, "socket_connect_timeout": 1}
        site = site_factory(server, **SETTINGS, broker_transport_options=options)
        site.broker = f"{group.url()};{spool}"
        home = server.url("reliq")
        site.send("record_late")
        assert {"ready": 1} == counts(home)
        server.kill()
        first = site.send("record_late").id
        second = site.send("record_late").id
        # The first was under way as the server died: nobody knows whether it arrived.
        assert {"ready": 1, "unacked": 1} == counts(spool)
        server.start()
        wait_until(lambda: {} == counts(spool), timeout_s=60)
        site.worker(pool="solo")
        for task in (first, second):
            site.journal.wait_finished(task)
        with Connection(spool) as connection:
            publish(connection, "celery", "left by another")
        site.worker(pool="solo", name="finder")
        wait_until(lambda: {} == counts(spool), timeout_s=60)
        assert_balanced(home)
        assert_balanced(spool)
    finally:
        group.destroy()


def test_delayed_and_dead_letters_come_home(redis_factory, tmp_path):
    """By the command, with their time and their reason."""
    server = redis_factory()
    home, spool = server.url("reliq"), f"reliq-sqlite:///{tmp_path}/spool.db"
    with Connection(spool) as connection:
        declare(connection, "q")
        publish(connection, "q", 1)
        publish(connection, "q", 2, headers={"x-delay": 60_000})
        connection.default_channel.basic_get("q").reject()
        publish(connection, "q", 3)
    with Inspector(spool) as source, Inspector(home) as target:
        assert 3 == sum(source.move("q", target))
        (dead_letter,) = target.dead_letters("q")
        assert "rejected" == dead_letter.reason
    assert {"ready": 1, "delayed": 1, "dead": 1} == counts(home, "q")
    for url in (home, spool):
        assert_balanced(url)


# -- what Redis may have already


@pytest.fixture
def home(redis_server, redis_url):
    """Return a store of Redis."""
    store = RedisStore(Address(host="127.0.0.1", port=redis_server.port), parse({}), "s/1")
    store.connect()
    store.declare_queue("q", False, b"", {})
    yield store
    store.close()
    assert_balanced(redis_url)


@pytest.fixture
def spool(tmp_path):
    """Return a store of a file."""
    store = SqliteStore(location(f"{tmp_path}/spool.db"), parse({}), "s/2")
    store.connect()
    yield store
    store.close()
    assert_balanced(f"reliq-sqlite:///{tmp_path}/spool.db")


def tried(number, *, unconfirmed=False, delay_ms=0, low_water=0):
    """Return a message of one publisher."""
    numbers = ("p", number, low_water)
    return Publication(
        "q", new_tag(5), b"%d" % number, 5, *numbers, delay_ms, -1, "", b"", False, unconfirmed
    )


def test_nobody_gets_what_is_in_doubt(spool):
    """It is unacked, held by no consumer, and stays so whatever passes over it."""
    assert [2] == spool.publish([tried(1, unconfirmed=True)])
    assert [] == spool.reserve("q", 9, 60_000, False).deliveries
    results = []
    spool.post_restore("q", 1, results.append, True)
    spool.wait_for_replies()
    assert {} == results[0].by_consumer
    status = spool.status("q")
    assert (0, 1) == (status.ready, status.unacked)


def test_what_home_has_is_not_stored_again(spool, home):
    """Of two that were tried there, one arrived: each is there once."""
    assert [STORED] == home.publish([tried(1)])
    spool.publish([tried(1, unconfirmed=True), tried(2, unconfirmed=True), tried(3)])
    assert 3 == sum(move_queue(spool, home, "q"))
    taken = home.reserve("q", 9, 60_000, False).deliveries
    assert [b"1", b"2", b"3"] == sorted(item.envelope for item in taken)
    assert 0 == spool.status("q").stored


def test_it_has_been_worked_on_there(spool, home):
    """Finished at home meanwhile: it does not run again."""
    home.publish([tried(1)])
    taken = home.reserve("q", 1, 60_000, False).deliveries
    home.post_ack("q", [taken[0].tag], lambda _: None)
    home.wait_for_replies()
    spool.publish([tried(1, unconfirmed=True)])
    sum(move_queue(spool, home, "q"))
    assert 0 == home.status("q").stored


def test_it_arrives_there_after_it_was_moved(spool, home):
    """The first try was held back by the network: it is a duplicate."""
    spool.publish([tried(1, unconfirmed=True)])
    sum(move_queue(spool, home, "q"))
    assert [0] == home.publish([tried(1)])
    assert 1 == home.status("q").ready


def test_carried_twice_it_is_there_once(spool, home):
    """Who moved it died before it was taken out here."""
    spool.publish([tried(1, unconfirmed=True, delay_ms=60_000)])
    name = f"broker:{home.broker_id()}"
    _, (move,) = spool.move_out("q", name)
    assert ("p", 1) == move.origin
    assert 50_000 < move.delay_ms <= 60_000
    assert move._replace(delay_ms=0) == spool.move_out("q", name)[1][0]._replace(delay_ms=0)
    sum(move_queue(spool, home, "q"))
    assert 1 == home.status("q").delayed


def test_letters_that_go_elsewhere_leave_what_is_in_doubt(spool, home):
    """Dead letters of the queue are routed on beside it: it still goes home."""
    spool.publish([tried(1, unconfirmed=True)])
    assert [] == spool.begin_move("q", "queue:other", [])[1]
    assert 1 == sum(move_queue(spool, home, "q"))
    assert 1 == home.status("q").ready


def test_a_queue_that_is_full_at_home_holds_up_no_other(spool, home, redis_url):
    """What is unconfirmed of one queue waits for room there; the next one is moved meanwhile."""
    home.delete_queue("q")
    home.declare_queue("q", False, b"x", {"max_length": "1", "overflow": "reject-publish"})
    home.publish([tried(9)])
    spool.publish([tried(1, unconfirmed=True), tried(1)._replace(queue="r")])
    with Connection(f"{redis_url};{spool.broker}", transport_options=FAST) as connection:
        publish(connection, "other", "at home")
        wait_until(lambda: {"ready": 1} == counts(redis_url, "r"))
    assert 1 == spool.status("q").unacked


def test_home_is_full_and_rejects(spool, home):
    """What may be there stays in the spool until there is room, and that is said."""
    home.delete_queue("q")
    home.declare_queue("q", False, b"x", {"max_length": "1", "overflow": "reject-publish"})
    home.publish([tried(9)])
    spool.publish([tried(1, unconfirmed=True)])
    with pytest.raises(QueueFull, match="full on the target"):
        sum(move_queue(spool, home, "q"))
    assert 1 == spool.status("q").unacked
    home.purge("q")
    assert 1 == sum(move_queue(spool, home, "q"))
