"""Data that no version of reliq would store: readers show the rest, and workers continue."""

from __future__ import annotations

from contextlib import suppress

import pytest

from reliq.message.delivery_tag import new_tag
from reliq.message.envelope import Envelope, encode
from tests.support.commands import data, run
from tests.support.waiting import wait_until

from ..kombu_client import Taker, publish

RANK = 2**45
NOT_UTF8 = b"caf\xe9"


def key(queue, part):
    """Return the key of one part of a queue."""
    name = queue if isinstance(queue, bytes) else queue.encode()
    return b"reliq:{" + name + b"}:" + part.encode()


def make(raw, queue, **stats):
    """Create a queue as its publisher would, and list it."""
    raw.hset(key(queue, "meta"), "exists", "1")
    raw.hset(key(queue, "stats"), mapping={"published": 0, **stats})
    raw.zadd("reliq:{%}:queues", {queue: 0})


def store(raw, queue, tag, score, envelope=b"junk"):
    """Add a ready message."""
    raw.hset(key(queue, "messages"), tag, envelope)
    raw.zadd(key(queue, "ready"), {tag: score})
    raw.hincrby(key(queue, "stats"), "published", 1)


def nested(depth):
    """Return a map of this nesting depth."""
    value = {}
    for _ in range(depth):
        value = {"h": value}
    return value


def deep(depth):
    """Return an envelope whose headers have this nesting depth."""
    return encode(Envelope(b"1", "application/json", "utf-8", nested(depth), {}, "", "q"))


def write_junk(raw):
    """Store junk in separate queues and in the registers."""
    make(raw, NOT_UTF8)
    store(raw, NOT_UTF8, b"\xff\xfe not a tag", 1)
    make(raw, "scores")
    store(raw, "scores", new_tag(0), 9 * RANK)  # beyond its rank: it could be measured endlessly
    store(raw, "scores", new_tag(200), 5)
    store(raw, "scores", new_tag(3), "inf")
    store(raw, "scores", new_tag(3), "-inf")
    store(raw, "scores", new_tag(3), 1e300)
    store(raw, "scores", "", 0.5)
    store(raw, "scores", "zz", 7.25)
    make(raw, "deep")
    for depth in (100, 450, 490):
        store(raw, "deep", new_tag(1), RANK, deep(depth))
    make(raw, "leases")
    for record in (b"", b"junk", b"1|2", b"\xff|\xff|\xff|\xff", b"9|nan|nan|me", None):
        tag = new_tag(2)
        raw.hset(key("leases", "messages"), tag, b"x")
        raw.zadd(key("leases", "unacked_index"), {tag: 1})
        raw.hincrby(key("leases", "stats"), "published", 1)
        if record is not None:
            raw.hset(key("leases", "unacked"), tag, record)
    make(raw, "dead")
    for info in (b"", b"a|b", b"rejected|many|me|why", b"\xff|1|\xff|\xff", b"maxlen|1e400||"):
        tag = new_tag(2)
        raw.hset(key("dead", "messages"), tag, deep(400))
        raw.zadd(key("dead", "dead"), {tag: 1})
        raw.hset(key("dead", "dead_info"), tag, info)
        raw.hincrby(key("dead", "stats"), "published", 1)
    make(raw, "counters", acked="many", published=b"\xff", token="1.5")
    raw.hset(key("counters", "meta"), "arguments", b"\xc1\xff")
    raw.set(key("types", "meta"), "x")
    raw.zadd("reliq:{%}:queues", {"types": 0})
    make(raw, "types2")
    raw.set(key("types2", "ready"), "x")
    for name, record in {
        "junk": {
            "host": "h",
            "pid": "p",
            "options": "{",
            "client_id": "x",
            "run_id": "",
            "queues": "",
        },
        "deep": {
            "host": "h",
            "options": "[" * 100_000,
            "client_id": "1",
            "run_id": "",
            "queues": "",
        },
        "text": {"host": b"\xff", "pid": b"\xff", "client_id": b"\xff", "queues": b"\xff"},
        "list": {"host": "h", "options": "[]", "client_id": "9" * 30, "run_id": "", "queues": "q"},
        "none": {"client_id": ""},
    }.items():
        raw.hset(f"reliq:{{%}}:consumer:{name}", mapping=record)
        raw.zadd("reliq:{%}:consumers", {name: 9e15})
    raw.set("reliq:{%}:consumer:string", "x")
    raw.zadd("reliq:{%}:consumers", {"string": "inf", b"\xff\xfe": 5})
    for queue in ("good", "leases"):
        raw.hset(key(queue, "consumers"), mapping={b"\xff\xfe": "junk", "junk": "1"})


@pytest.fixture
def malformed(client):
    """Return a client of a server that has junk beside a good queue with three messages."""
    client.raw.flushall()
    publish(client.connect(), "good", 1, 2, 3)
    write_junk(client.raw)
    yield client
    client.raw.flushall()


def test_the_inspector_shows_what_can_be_read(malformed, caplog):
    """The inspector reports every readable queue, the good one in full, and names the rest."""
    with malformed.inspector() as inspector:
        report = {item.queue: item for item in inspector.report().queues}
        assert (3, 0, 3) == (
            report["good"].ready,
            report["good"].dead,
            report["good"].ledger["published"],
        )
        assert {"caf\udce9", "scores", "deep", "leases", "dead", "counters"} <= report.keys()
        assert report["good"].oldest_age_s is not None
        assert [] == inspector.consumers()
        assert {item.queue for item in inspector.audit()} >= {"good", "scores"}
        assert inspector.doctor()
        for queue in report:
            for state in ("ready", "delayed", "unacked", "dead"):
                inspector.peek(queue, state, 100)
        assert 5 == len(inspector.dead_letters("dead"))
        assert 1 == inspector.purge("caf\udce9")
        assert 0 == inspector.delete("caf\udce9")
    told = " ".join(caplog.messages)
    for what in ("records of consumers", "lease records of 'leases'", "counters of 'counters'"):
        assert what in told
    assert "'types2'" in told


@pytest.mark.slow
def test_every_command_shows_the_rest(malformed):
    """Every command shows the good queue and ends with a documented code, without a traceback."""
    found = run(malformed.url, "status", "--json", "--interval", "0")
    assert (0, True) == (found.returncode, '"good"' in found.stdout)
    assert "types2" in found.stderr
    for arguments in (
        ("status", "--interval", "0"),
        ("consumers",),
        ("consumers", "--json"),
        ("audit",),
        ("doctor",),
        ("top", "--json", "--count", "1"),
        *(("peek", queue, "--state", state) for queue, state in PEEKED),
        ("peek", "deep", "--json"),
        ("dead", "list", "dead"),
        ("dead", "list", "dead", "--json"),
        ("queue", "set", "counters"),
        ("dead", "replay", "dead", "--dry-run"),
    ):
        done = run(malformed.url, *arguments)
        assert done.returncode in {0, 1, 2}, (arguments, done)
        assert "Traceback" not in done.stderr, (arguments, done.stderr[-2000:])
        if arguments[0] in {"status", "audit"}:
            assert "good" in done.stdout
    tag = data(malformed.url, "dead", "list", "dead")[0]["tag"]
    for more in ((), ("--json",)):
        done = run(malformed.url, "dead", "show", "dead", tag, *more)
        assert 0 == done.returncode, done.stderr[-2000:]
    assert 3 == len(data(malformed.url, "peek", "good"))


PEEKED = (
    ("good", "ready"),
    (b"caf\xe9".decode("utf-8", "surrogateescape"), "ready"),
    ("scores", "ready"),
    ("leases", "unacked"),
    ("types2", "ready"),
)


def test_a_scrape_has_the_good_queues(malformed):
    """The exporter's page is complete despite junk, and no script keeps running at the broker."""
    import prometheus_client

    from reliq.metrics import Collector

    registry = prometheus_client.CollectorRegistry()
    collector = Collector(malformed.url)
    registry.register(collector)
    page = prometheus_client.generate_latest(registry).decode()
    collector.close()
    assert 'queue="good"} 3.0' in page
    assert "reliq_up" in page
    assert 'reliq_up{broker="' in page
    assert "} 0.0" in page
    assert malformed.raw.ping()


def test_a_consumer_takes_what_is_good(malformed):
    """A consumer receives every good message; junk arrives as it is or becomes a dead letter."""
    connection = malformed.connect()
    names = ["good", "scores", "deep", "leases", b"caf\xe9".decode("utf-8", "surrogateescape")]
    publish(connection, "scores", "fine")
    publish(connection, "leases", "fine")
    taker = Taker(connection, *names)
    seen = []

    def all_good():
        for message in taker.messages:
            seen.append(message.payload)
            message.ack()
        taker.messages.clear()
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.2)
        return seen.count("fine") == 2 and {1, 2, 3} <= {s for s in seen if isinstance(s, int)}

    def at_rest():
        # A message whose lease ended is ready first, and becomes a dead letter when it is reserved.
        found = [malformed.status(name) for name in ("leases", "scores")]
        return all(status.ready == status.unacked == 0 for status in found)

    wait_until(lambda: all_good() and at_rest(), timeout_s=40)
    assert 6 == malformed.status("leases").dead
    assert 7 == malformed.status("scores").dead


@pytest.mark.slow
def test_a_celery_worker_runs_every_good_task(redis_server, site):
    """A worker survives junk in its queues and in other queues, and runs every good task."""
    raw = redis_server.client()
    try:
        before = [site.send("add", number, 1) for number in range(5)]
        write_junk(raw)
        store(raw, "celery", new_tag(0), 5)
        store(raw, "celery", b"\xff\xfe", -3, b"\xdd\xff")
        store(raw, "celery", new_tag(7), 9 * RANK, deep(490))
        worker = site.worker(pool="threads", queues=["celery", "leases", "scores"])
        after = [site.send("add", number, 1) for number in range(5, 10)]
        assert list(range(1, 11)) == [task.get(timeout=30) for task in before + after]
        assert worker.running
        assert "Traceback" not in worker.log()
    finally:
        raw.flushall()
        raw.close()
