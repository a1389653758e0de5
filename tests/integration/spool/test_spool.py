"""A spool as the last URL of a list: it stores publishes while no broker is reachable."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue

import reliq
from reliq import transports
from reliq.admin import Inspector
from reliq.cli.spool import examine
from reliq.errors import BrokerRefused, ConfigurationError, MessageRefused
from reliq.spool.journal import JOURNALS
from reliq.transports.failback import probe
from reliq.values.limits import SHORT_MS
from tests.integration.features.test_metrics import collect
from tests.support.audits import assert_balanced
from tests.support.commands import data, run
from tests.support.disks import run_on_small_disk
from tests.support.journal import Journal
from tests.support.processes import Process
from tests.support.proxy import Proxy
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
PUBLISH = ("", "q", 0, b"", None, None, None)
PLACES = ("ready", "delayed", "unacked", "dead")


def counts(url, queue="celery"):
    """Return the nonzero counts of *queue* at *url* by state."""
    with Inspector(url) as inspector:
        if queue not in inspector.queues():
            return {}
        status = inspector.status(queue)
    return {place: n for place in PLACES if (n := getattr(status, place))}


def spooled_in(path):
    """Return the number of publishes in the spool at *path*."""
    return JOURNALS.at(str(path)).status()["publishes"] if path.exists() else 0


def drain(url, queue):
    """Take all ready messages of *queue*, in order."""
    with Connection(url) as connection:
        got = []
        while (message := connection.default_channel.basic_get(queue, no_ack=True)) is not None:
            got.append(message)
    return got


class Spooled:
    """A Redis, a spool for its outages, publishers with both URLs, and their tasks."""

    def __init__(self, redis_factory, site_factory, tmp_path):
        self.redis = redis_factory(appendonly=True)
        self.home = self.redis.url("reliq")
        self.path = tmp_path / "spool.db"
        self.spool = f"reliq-spool:///{self.path}"
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
            [sys.executable, "-m", *map(str, command)],
            log_path=self.tmp_path / f"{name}{len(self.processes)}.log",
            env=environment,
            cwd=ROOT,
        )
        self.processes.append(process)
        return process

    def publisher(self, pause_s=0.02):
        """Start a publisher."""
        command = ["tests.integration.apps.spooling", self.site.broker, self.sent.path, pause_s]
        return self.start(command, "publisher")

    def forwarder(self, url=None):
        """Start a forwarder with the command."""
        command = ["reliq.cli", "spool", "forward", str(self.path), "--url", url or self.home]
        return self.start(command, "forwarder")

    def confirmed(self):
        """Return the ids of the tasks whose publish was confirmed."""
        return {entry.key for entry in self.sent.entries("confirmed")}

    def wait_confirmed(self, more):
        """Wait until *more* further tasks are confirmed."""
        goal = len(self.confirmed()) + more
        wait_until(lambda: len(self.confirmed()) >= goal, timeout_s=60, what=self.tails)

    def tails(self):
        """Return the ends of the logs."""
        return "\n".join(process.tail(15) for process in self.processes)

    def all_done(self):
        """Wait until every confirmed task has run; fail if any ran twice."""
        missing = self.confirmed()

        def goes_on(before):
            missing.difference_update(self.site.journal.finished())
            return len(missing) < before

        while missing:
            wait_until(
                partial(goes_on, len(missing)),
                what=lambda: f"{len(missing)} are missing\n{self.tails()}",
            )
        twice = {task: n for task, n in self.site.journal.started().items() if n > 1}
        assert {} == twice
        wait_until(lambda: 0 == spooled_in(self.path), timeout_s=60, what=self.tails)
        wait_until(lambda: {} == counts(self.home), timeout_s=30)

    def close(self):
        """End all processes."""
        for process in self.processes:
            process.kill_group()
        self.sent.close()
        self.site.close()


@pytest.fixture
def spooled(redis_factory, site_factory, tmp_path):
    """Return a Redis with a spool, whose ledgers balance at the end."""
    spooled = Spooled(redis_factory, site_factory, tmp_path)
    yield spooled
    spooled.close()
    assert_balanced(spooled.home)


def redis_is_away(spooled, seconds):
    """Kill Redis under load, restart it, and wait until the publishers have returned to it."""
    publishers = [spooled.publisher() for _ in range(3)]
    spooled.wait_confirmed(50)
    spooled.redis.kill()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        spooled.wait_confirmed(10)
    spooled.redis.start()
    for process in publishers:
        wait_until(lambda p=process: "answers again" in p.log(), timeout_s=30, what=process.tail)
    spooled.wait_confirmed(50)
    return publishers


def end(publishers):
    """Let the publishers finish; fail if one of their tasks was refused."""
    for process in publishers:
        process.signal(signal.SIGTERM)
    for process in publishers:
        assert 0 == process.wait()


@pytest.mark.parametrize(
    "seconds",
    [4, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(240)])],
)
def test_redis_is_away_under_load(spooled, seconds):
    """Every task confirmed in an outage runs once, and no publish fails."""
    spooled.site.worker(pool="prefork", concurrency=2)
    publishers = redis_is_away(spooled, seconds)
    wait_until(lambda: 0 == spooled_in(spooled.path), timeout_s=60, what=spooled.tails)
    end(publishers)
    assert [] == spooled.sent.entries("refused")
    spooled.all_done()


def under_way(path):
    """Return the number of publishes in the spool that a broker may have."""
    query = "SELECT count(*) FROM publishes WHERE broker IS NOT NULL"
    return JOURNALS.at(str(path)).rows(query)[0][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("messages", "pause_s"),
    [(300, 0.02), pytest.param(20_000, 0, marks=[pytest.mark.long, pytest.mark.timeout(300)])],
)
def test_publishers_and_forwarders_are_killed(spooled, messages, pause_s):
    """Confirmed tasks are stored once, wherever publishers and forwarders die, in every outage."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    publishers = [spooled.publisher(pause_s) for _ in range(3)]
    spooled.wait_confirmed(20)
    spooled.redis.kill()
    spooled.wait_confirmed(messages)
    for _ in range(3):
        before = under_way(spooled.path)
        spooled.redis.start()
        victims = [*publishers, spooled.forwarder(), spooled.forwarder()]
        wait_until(
            lambda n=before: under_way(spooled.path) > n or not spooled_in(spooled.path),
            interval_s=0.001,
            what=spooled.tails,
        )
        spooled.redis.freeze()
        time.sleep(chance.uniform(0, 0.05))
        for victim in chance.sample(victims, len(victims)):
            victim.kill_group()
        if chance.random() < 0.7:  # it stores the requests that they have sent
            spooled.redis.thaw()
            with closing(spooled.redis.client()) as client:
                client.ping()
        spooled.redis.kill()
        publishers = [spooled.publisher(pause_s) for _ in range(2)]
        spooled.wait_confirmed(20)
    spooled.redis.start()
    end(publishers)
    wait_until(lambda: 0 == spooled.forwarder().wait() and not spooled_in(spooled.path))
    with closing(spooled.redis.client()) as client:
        client.config_set("appendfsync", "no")  # so that stored data is on the disk
    stored = [message.headers["id"] for message in drain(spooled.home, "celery")]
    assert len({*stored}) == len(stored)
    assert set() == spooled.confirmed() - {*stored}
    assert len(stored) > messages
    assert 0 == JOURNALS.at(str(spooled.path)).status()["doubtful"]


@pytest.mark.slow
def test_a_new_publisher_forwards(spooled):
    """The next process with the list of URLs forwards the spool of a dead one."""
    first = spooled.publisher()
    spooled.wait_confirmed(1)
    spooled.redis.kill()
    spooled.wait_confirmed(20)
    first.kill_group()
    left = spooled_in(spooled.path)
    assert left >= 20
    spooled.redis.start()
    second = spooled.publisher()
    wait_until(lambda: 0 == spooled_in(spooled.path), timeout_s=30, what=spooled.tails)
    end([second])
    assert counts(spooled.home)["ready"] >= left


def is_locked(path):
    """Whether a process is inside a transaction."""
    with closing(sqlite3.connect(path, timeout=0.2, isolation_level=None)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False


@pytest.mark.slow
def test_another_one_forwards_for_one_that_is_stopped(spooled):
    """Another forwarder replaces a stopped one after 3 s; the old one stores nothing twice."""
    spooled.redis.kill()
    with Connection(spooled.site.broker, failover_strategy="primary") as connection:
        producer = connection.Producer()
        for n in range(2000):
            producer.publish(n, routing_key="q", retry=True, retry_policy={"max_retries": 5})
    spooled.redis.start()
    proxy = Proxy(spooled.redis)
    proxy.allow(200_000)  # about a third of the messages
    with closing(proxy):
        first = spooled.forwarder(proxy.url())
        wait_until(lambda: spooled_in(spooled.path) < 2000, what=first.tail)
        first.signal(signal.SIGSTOP)
        while is_locked(spooled.path):
            first.signal(signal.SIGCONT)
            time.sleep(0.002)
            first.signal(signal.SIGSTOP)
        assert 0 < spooled_in(spooled.path) < 2000
        proxy.allow(None)

        def forwarded():
            return 0 == spooled.forwarder(proxy.url()).wait() and not spooled_in(spooled.path)

        wait_until(forwarded)
        first.signal(signal.SIGCONT)
        assert 0 == first.wait()
    with Connection(spooled.home) as connection:
        got = connection.default_channel.basic_get
        assert list(range(2000)) == [got("q", no_ack=True).payload for _ in range(2000)]
        assert got("q") is None


@pytest.mark.slow
def test_a_worker_waits_at_the_spool_and_comes_back(spooled):
    """A worker that starts in an outage waits at the spool and runs tasks afterwards."""
    spooled.site.send("record_late")
    spooled.redis.kill()
    task = spooled.site.send("record_late").id
    worker = spooled.site.worker(pool="solo", ready=False)
    wait_until(lambda: "reliq-spool" in worker.log(), timeout_s=60, what=worker.tail)
    assert 2 > spooled_in(spooled.path) > 0
    spooled.redis.start()
    spooled.site.journal.wait_finished(task, timeout_s=60)
    assert 0 == worker.shut_down()
    assert spooled_in(spooled.path) == 0


# -- in one process


@pytest.fixture
def go_on(monkeypatch):
    """Block forwarding by this process until the returned function is called."""
    forward = transports.forward
    monkeypatch.setattr(transports, "forward", lambda *_: 0)
    monkeypatch.setattr("reliq.transports.failback_rounds._FORWARDED_EVERY_S", 0.5)
    return lambda: monkeypatch.setattr(transports, "forward", forward)


class Away:
    """A list of one Redis and a spool."""

    def __init__(self, server, tmp_path, url=None):
        self.server = server
        self.path = tmp_path / "spool.db"
        self.home = server.url("reliq")
        self.urls = [url or self.home, f"reliq-spool:///{self.path}"]

    def connect(self, **options):
        """Return a connection with the list."""
        options = {**FAST, "socket_timeout": 1.0, "socket_connect_timeout": 1.0, **options}
        return Connection(self.urls, transport_options=options, failover_strategy="primary")

    def publish(self, connection, body, routing_key="q", **options):
        """Publish with a retry policy, as Celery does."""
        policy = {"max_retries": 5, "interval_start": 0, "interval_step": 0.1}
        connection.Producer().publish(
            body, routing_key=routing_key, retry=True, retry_policy=policy, **options
        )

    def back(self):
        """Start Redis again, and wait until the spool is empty."""
        self.server.start()
        wait_until(lambda: 0 == spooled_in(self.path), timeout_s=30)

    def bodies(self, queue="q"):
        """Return the payloads of all ready messages of *queue*, in order."""
        return [message.payload for message in drain(self.home, queue)]


@pytest.fixture
def away(redis_factory, tmp_path):
    """Return a separate Redis and a spool; the ledgers balance at the end."""
    away = Away(redis_factory(appendonly=True), tmp_path)
    yield away
    assert_balanced(away.home)


@pytest.mark.slow
def test_order_delay_and_ttl(away):
    """The spool forwards in order, counts delays from the publish, and counts expired messages."""
    with away.connect() as connection:
        away.publish(connection, -1)
        away.server.kill()
        for n in range(300):
            away.publish(connection, n)
        away.publish(connection, "late", "later", headers={"x-delay": 600_000})
        away.publish(connection, "gone", expiration=0.01)
        away.back()
        assert [-1, *range(300)] == away.bodies()
        with Inspector(away.home) as inspector:
            assert [0, 1] == inspector.due("later", every_s=500.0, points=2)[:2]
        assert 1 == JOURNALS.at(str(away.path)).status()["expired"]


@pytest.mark.slow
def test_an_empty_redis_gets_the_declarations(redis_factory, tmp_path):
    """A Redis that restarts empty gets the declarations of queues and bindings first."""
    away = Away(redis_factory(), tmp_path)
    queue = Queue("bound", Exchange("topics", "topic"), "a.#", queue_arguments={"x-max-length": 50})
    with away.connect() as connection:
        away.publish(connection, 1, "a.b", exchange=queue.exchange, declare=[queue])
        away.server.kill()
        away.publish(connection, 2, "a.b", exchange=queue.exchange, declare=[queue])
        away.publish(connection, 3, "a.c", exchange=queue.exchange)
        away.back()
        assert [2, 3] == away.bodies("bound")


@pytest.mark.slow
@pytest.mark.parametrize("stored", [True, False])
def test_a_reply_that_never_came(redis_factory, tmp_path, go_on, stored):
    """A publish without a reply is stored once, whether or not Redis has it.

    Only its number shows that. Later publishes go to Redis at once, and settle no number of the
    spool.
    """
    server = redis_factory(appendonly=True)
    proxy = Proxy(server)
    away = Away(server, tmp_path, proxy.url())
    try:
        with away.connect() as connection:
            away.publish(connection, 0)
            proxy.refusing = True  # every connection but the existing one
            if stored:
                proxy.cut_replies(0)
            else:
                proxy.cut_at(b"doubtful")
            away.publish(connection, "doubtful")
            away.publish(connection, "certain")
            assert 1 == proxy.cuts
            assert 2 == spooled_in(away.path)
            proxy.refusing = False
            wait_until(lambda: connection.transport.failback.due, timeout_s=30)
            there = [0, "doubtful"] if stored else [0]
            new = list(range(1, 201))
            for count, n in enumerate(new, len(there) + 1):
                away.publish(connection, n)
                if n in {1, 200}:
                    assert {"ready": count} == counts(away.home, "q")
            assert 2 == spooled_in(away.path)
            go_on()
            wait_until(lambda: 0 == spooled_in(away.path), timeout_s=30)
            late = ["certain"] if stored else ["doubtful", "certain"]
            assert [*there, *new, *late] == away.bodies()
            assert 0 == JOURNALS.at(str(away.path)).status()["doubtful"]
    finally:
        proxy.close()


def test_numbers_are_kept_for_a_day_after_the_return_too(away):
    """A broker keeps publish numbers for a day, also for a publisher back from the spool."""
    away.server.kill()
    with away.connect() as connection:
        away.publish(connection, 1)
        away.server.start()
        wait_until(lambda: connection.transport.failback.due, timeout_s=30)
        away.publish(connection, 2, "other")
        assert connection.transport.failback.url == away.home
        with away.server.client() as client:
            assert client.pttl("reliq:{other}:publishers") > 2 * SHORT_MS
        wait_until(lambda: 0 == spooled_in(away.path), timeout_s=30)


@pytest.mark.parametrize("why", ["its broker lost its data", "a day has passed"])
def test_possibly_stored_twice(redis_factory, tmp_path, monkeypatch, caplog, why):
    """A publish without a reply is forwarded even so, and status, metrics and log report it."""
    servers = first, second = redis_factory(), redis_factory()
    proxy = Proxy(first)
    away = Away(first, tmp_path, proxy.url())
    journal = JOURNALS.at(str(away.path))

    now = time.time()

    def forward(url, later_s=4):  # later than a forwarder that may be working
        monkeypatch.setattr("reliq.spool.journal.time", lambda: now + later_s)
        with Connection(url) as connection:
            connection.connect()
            return transports.forward(journal, connection.transport)

    try:
        with away.connect() as connection:
            away.publish(connection, 0)
            proxy.refusing = True
            proxy.cut_replies(0)
            away.publish(connection, "doubtful")
            away.publish(connection, "certain")
        proxy.refusing = False
        assert 2 == spooled_in(away.path)
        if "data" in why:
            first.kill()
            first.start()
            assert 2 == forward(proxy.url())
            expected = [["doubtful", "certain"], []]
        else:
            assert 1 == forward(second.url("reliq"))
            assert 0 == forward(second.url("reliq"))
            assert (1, 0) == (journal.holds, journal.status()["doubtful"])
            assert 1 == forward(second.url("reliq"), 86_400)
            expected = [[0, "doubtful"], ["certain", "doubtful"]]
    finally:
        proxy.close()
    assert 0 == journal.holds
    assert expected == [Away(server, tmp_path).bodies() for server in servers]
    assert 1 == sum("1 messages may be stored twice" in one for one in caplog.messages)
    assert 1 == collect(*away.urls).of("reliq_spool_doubtful", spool=away.urls[1])
    assert "1 possibly stored twice" in run(None, "spool", "status", away.path).stdout
    for server in servers:
        assert_balanced(server.url("reliq"))


@pytest.mark.slow
def test_what_waits_is_seen(away, go_on, monkeypatch, caplog):
    """Metrics, doctor and log show the spool: one line each for its start, forwarding and end."""
    caplog.set_level(logging.INFO, "reliq")
    spool = away.urls[1]

    def gauges():
        found = collect(*away.urls)
        names = ("publishes", "oldest_age_seconds", "bytes", "doubtful")
        return [found.of(f"reliq_spool_{name}", spool=spool) for name in names]

    def finding():
        (found,) = (one for one in data(away.urls, "doctor") if one["check"] == "spool")
        return found["severity"], found["message"]

    with away.connect() as connection:
        away.publish(connection, -1)
        assert ("ok", f"no publishes in {spool}") == finding()
        away.server.kill()
        away.publish(connection, 0)
        began = time.time()
        away.publish(connection, 1)
        away.publish(connection, 2, "r")
        assert f"3 publishes in {spool}" in run(away.urls, "doctor").stderr
        away.server.start()
        severity, message = finding()
        assert "info" == severity
        assert message.startswith(f"3 publishes in {spool}, up to ")
        least_s = time.time() - began
        waiting, oldest_s, size, doubtful = gauges()
        assert (3, 0) == (waiting, doubtful)
        assert 0 < least_s <= oldest_s < 60
        assert away.path.stat().st_size <= size < 1_000_000
        with monkeypatch.context() as later:
            later.setattr("reliq.spool.journal.time", lambda: began + 125)
            assert "warning" == examine(spool).severity
        go_on()
        wait_until(lambda: "is empty" in caplog.text, timeout_s=30)
        assert [0, 0, 0] == [*gauges()[:2], gauges()[3]]
        assert "ok" == finding()[0]
    lines = [
        f"switched from {away.home} to {spool}: it was the first to answer",
        f"forwarding messages from {spool} to {away.home}",
        f"{spool} is empty: 3 messages forwarded by this process",
    ]
    said = [one for one in caplog.messages if spool in one and "answers again" not in one]
    assert lines == said


@pytest.mark.slow
def test_threads_publish_at_once(away, caplog):
    """Publishes of threads are stored once in each thread's order, and the start is logged once."""
    begin = threading.Barrier(8)

    def publish(thread):
        with away.connect() as connection:
            connection.connect()
            begin.wait(30)
            for n in range(100):
                away.publish(connection, [thread, n])

    away.server.kill()
    with away.connect() as connection:
        away.publish(connection, [-1, 0])
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(publish, range(8)))
        assert 801 == spooled_in(away.path)
        switched = f"switched from {away.home} to {away.urls[1]}: it was the first to answer"
        assert [switched] == caplog.messages
        away.back()
    found = away.bodies()
    assert found != sorted(found)  # they took turns
    expected = [[thread, n] for thread in range(8) for n in range(100)]
    assert [[-1, 0], *expected] == sorted(found, key=lambda body: body[0])


def test_many_calls(away):
    """The spool stores batched publishes as a whole, but no jobs of batches and no broadcasts."""
    app = Celery("x", broker=away.urls, set_as_current=False)
    app.conf.update(
        broker_transport_options=FAST,
        broker_failover_strategy="primary",
        task_publish_retry_policy={"max_retries": 5, "interval_start": 0, "interval_step": 0.1},
    )

    @app.task(name="t")
    def task(n):
        """Do nothing."""

    task.delay(-1)
    batch = reliq.Batch("jobs", app=app)
    with batch:
        task.delay(0)
        away.server.kill()
        with pytest.raises(MessageRefused, match="spool"):
            task.delay(1)
        with pytest.raises(reliq.PartlyPublished, match="1 taken but not stored"):
            reliq.publish_many(task, [1])
        away.server.start()
    away.server.kill()
    reliq.publish_many(task, range(500))
    app.control.broadcast("ping")
    assert 500 == spooled_in(away.path)
    away.back()
    batch.close()
    assert 502 == counts(away.home)["ready"]


def test_confirmations(away):
    """The spool accepts "fsynced" and refuses "replicated", as an option already at connect."""
    with away.connect() as connection:
        away.publish(connection, 0)
        away.server.kill()
        away.publish(connection, 1, confirm="fsynced")
        with pytest.raises(MessageRefused, match="replicated"):
            away.publish(connection, 2, confirm="replicated")
        assert 1 == spooled_in(away.path)
        away.back()
    with (
        pytest.raises(ConfigurationError, match="replicated"),
        away.connect(confirm="replicated") as connection,
    ):
        connection.connect()


@pytest.mark.slow
def test_a_full_spool_refuses(away):
    """A full spool refuses publishes with the limit's name, and keeps all confirmed ones."""
    with away.connect(spool_max="1MB") as connection:
        away.publish(connection, -1)
        away.server.kill()
        confirmed = 0
        try:
            while confirmed < 2000:
                away.publish(connection, [confirmed, "x" * 1000])
                confirmed += 1
        except BrokerRefused as exc:
            assert "spool_max" in str(exc)  # noqa: PT017 - counted until then
        assert confirmed > 500
        assert confirmed == spooled_in(away.path)
        away.back()
        assert list(range(confirmed)) == [body[0] for body in away.bodies()[1:]]


@pytest.mark.slow  # needs the right to make a namespace
def test_a_full_disk_refuses(tmp_path):
    """A spool on a full disk refuses publishes, and can be emptied there."""
    done = run_on_small_disk("tests.integration.apps.full_disk", tmp_path, 35)
    assert "nothing was stored: the disk has less than" in done.stdout
    confirmed, there, forwarded = map(int, done.stdout.split()[-3:])
    assert confirmed == there == forwarded > 100


def another_programs(path):
    """Make another program's database."""
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    path.chmod(0o600)


def newer(path):
    """Make a spool of a newer format."""
    JOURNALS.at(str(path)).rows("SELECT 1")
    JOURNALS.at(str(path)).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()


def readable(path):
    """Make a file that others may read."""
    path.touch(0o644)
    path.chmod(0o644)


def text(path):
    """Make a text file."""
    path.touch(0o600)
    path.write_text("no database " * 1000)


def link(path):
    """Make a link to another file."""
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (another_programs, "another program"),
        (newer, "newer reliq"),
        (readable, "chmod 600"),
        (link, "no link"),
        (lambda path: path.mkdir(), "file of its own"),
        (text, "another program"),
    ],
)
def test_an_unusable_spool_is_reported_at_start(away, prepare, said):
    """An unusable spool is reported at start instead of in the outage, and is not changed."""
    prepare(away.path)
    before = away.path.read_bytes() if away.path.is_file() else None
    with away.connect() as connection, pytest.raises(ConfigurationError, match=said):
        connection.connect()
    assert before == (away.path.read_bytes() if away.path.is_file() else None)


def test_a_strategy_that_asks_finds_the_spool(tmp_path):
    """A failover strategy that probes the URLs finds the spool last."""
    spool = f"reliq-spool:///{tmp_path}/spool.db"
    assert float("inf") == probe(spool, {})


def test_a_spool_alone_is_refused(tmp_path):
    """A spool alone is refused: the error names the list and the embedded broker."""
    with (
        Connection(f"reliq-spool:///{tmp_path}/spool.db") as connection,
        pytest.raises(ConfigurationError, match="reliq-embedded"),
    ):
        connection.connect()


@pytest.mark.slow
def test_a_fork_publishes_and_the_parent_goes_on(away):
    """A forked child and its parent use separate connections, and all is forwarded once."""
    with away.connect() as connection:
        away.publish(connection, "first")
        away.server.kill()
        away.publish(connection, "parent")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                away.publish(connection, "child")
                code = 0
            finally:
                os._exit(code)
        assert 0 == os.waitpid(child, 0)[1]
        away.publish(connection, "parent again")
        assert 3 == spooled_in(away.path)
        away.back()
        assert ["child", "first", "parent", "parent again"] == sorted(away.bodies())


@pytest.mark.slow
def test_a_full_queue_holds_up_no_other(away):
    """A publish that a full queue rejects stays in the spool until there is room."""
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with away.connect() as connection:
        Queue("full", queue_arguments=arguments, channel=connection).declare()
        away.publish(connection, 0, "full")
        away.server.kill()
        away.publish(connection, 1, "full")
        away.publish(connection, 2)
        away.server.start()
        wait_until(lambda: {"ready": 1} == counts(away.home, "q"), timeout_s=30)
        # The journal removes a message after the broker has stored it.
        wait_until(lambda: 1 == spooled_in(away.path), timeout_s=30)
        assert [0] == away.bodies("full")
        wait_until(lambda: 0 == spooled_in(away.path), timeout_s=30)
        assert [1] == away.bodies("full")


@pytest.mark.slow
def test_a_second_broker_takes_it_while_the_first_is_away(away, redis_factory, tmp_path):
    """The second broker gets the spool while the first is down, even from a later process.

    A publish with a lost reply waits for the first broker.
    """
    second = redis_factory(appendonly=True)
    away.urls.insert(1, second.url("reliq"))
    with away.connect() as connection:
        away.publish(connection, 0)
        away.server.kill()
        second.kill()
        for n in range(1, 4):
            away.publish(connection, n)
    second.start()
    with away.connect(failback=False) as connection:
        away.publish(connection, "new")
        # The reply to 1 may have been lost at the first broker: then it waits for that one.
        wait_until(lambda: counts(second.url("reliq"), "q").get("ready", 0) >= 3, timeout_s=30)
        away.back()
        away.publish(connection, "last")
    at_second = Away(second, tmp_path).bodies()
    assert {2, 3} <= {*at_second}
    assert sorted([0, 1, 2, 3, "new", "last"], key=str) == sorted(
        at_second + away.bodies(), key=str
    )
    assert_balanced(second.url("reliq"))


def test_a_process_opens_the_file_once(tmp_path):
    """A query in the same process ends no lock of the spool's file, so others see every publish."""
    path = tmp_path / "spool.db"
    journal = JOURNALS.at(f"reliq-spool:///{path}")
    journal.add([PUBLISH], 10**9)
    assert JOURNALS.at(str(path)) is journal
    command = [sys.executable, "-m", "reliq.cli", "spool", "status", str(path), "--json"]
    for n in (1, 2):
        assert n == spooled_in(path)
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert n == json.loads(found.stdout)["publishes"]
        journal.add([PUBLISH], 10**9)
    shown = subprocess.run(command[:-1], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "3 publishes" in shown.stdout


def test_a_forwarder_that_stopped_is_replaced(tmp_path, monkeypatch):
    """A stopped forwarder is replaced after 3 s or a step of the clock.

    Its broker is identified by its data, not by its name.
    """
    journal = JOURNALS.at(str(tmp_path / "50% full?.db"))
    journal.add([PUBLISH] * 2, 10**9)

    def taken(broker, data="data"):
        return len(journal.take(0, broker, data)[0])

    assert [2, 0] == [taken("127.0.0.1") for _ in range(2)]
    now = time.time()
    for later_s in (4, -3600):
        monkeypatch.setattr("reliq.spool.journal.time", lambda later_s=later_s: now + later_s)
        assert 2 == taken("localhost")
    assert 0 == taken("elsewhere", "other data")


def test_a_file_of_an_earlier_version(away):
    """A file of 0.2.0 is used by it and by this version, and each publish is stored once."""
    journal = JOURNALS.at(str(away.path))
    with away.connect(probe_interval=60) as connection:
        away.server.kill()
        away.publish(connection, 0)
        away.publish(connection, 1)
    journal.close()
    with closing(sqlite3.connect(away.path)) as other, other:
        other.execute("ALTER TABLE publishes DROP COLUMN publisher")
    columns = "exchange, routing_key, stored_ms, message, broker, data, sent_ms"
    old = f"INSERT INTO publishes ({columns}) SELECT {columns} FROM publishes WHERE id = 1"
    with away.connect(probe_interval=60) as connection:
        away.publish(connection, 2)
    journal.close()
    with closing(sqlite3.connect(away.path)) as other, other:
        other.execute(old)
    taken = journal.take(0, "broker", "data")[0]
    names = [item[6] for item in taken]
    ((own,),) = journal.rows("SELECT publisher FROM about")
    inode = f"{away.path.stat().st_ino:x}"
    assert [own + inode] * 2 == names[:2]
    assert own not in names[2]
    assert own + inode == names[3]
    away.server.start()


def test_a_forwarder_does_not_remove_what_a_restore_brought(tmp_path):
    """A publish at the same place as a settled one, in a file that was restored, stays."""
    path = tmp_path / "spool.db"
    journal = JOURNALS.at(str(path))
    journal.add([PUBLISH], 10**9)
    taken = journal.take(0, "broker", "data")[0]
    path.unlink()
    journal.add([PUBLISH], 10**9)
    journal.done(taken)
    assert 1 == journal.holds


def forwarding(away):
    """Run the command; return its exit status, and what it said."""
    done = run(None, "spool", "forward", away.path, "--url", away.home)
    return done.returncode, done.stdout + done.stderr


def test_a_forward_of_nothing_says_why(away, redis_factory):
    """The command names the reason and the remedy if it leaves messages; a missing file is 2."""
    code, text = forwarding(away)
    assert (2, True) == (code, "does not exist" in text)
    journal = JOURNALS.at(str(away.path))
    with away.connect(probe_interval=60) as connection:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        Queue("full", queue_arguments=arguments, channel=connection).declare()
        away.publish(connection, 0, "full")
        away.server.kill()
        away.publish(connection, 1, "full")
    away.server.start()
    with Connection(away.home) as connection:
        connection.connect()
        store = connection.transport.link.store
        journal.take(0, store.broker, store.broker_id())
    code, text = forwarding(away)
    assert (0, True) == (code, "0 forwarded, 1 left in the spool: another process" in text)
    journal.rows("UPDATE publishes SET sent_ms = sent_ms - 4000 RETURNING 1")
    code, text = forwarding(away)
    assert (0, True) == (code, "1 left in the spool: their queues are full" in text)
    other = Away(redis_factory(), away.path.parent)
    code, text = forwarding(other)
    assert (0, True) == (code, f"1 wait for {away.home}, which may have stored them" in text)
    assert [0] == away.bodies("full")
    assert forwarding(away)[1].startswith("1 forwarded, 0 left in the spool\n")
