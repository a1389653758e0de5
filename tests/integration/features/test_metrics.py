"""Metrics: a real exporter is scraped, and its values match the broker's state."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import httpx2 as httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from reliq import ConfigurationError
from reliq.admin import acl_rule
from reliq.admin.names import REASONS
from reliq.batches.jobs import STATES, Change
from reliq.lua.keys import batch_keys
from reliq.metrics import Collector
from reliq.metrics.families import LIMITS, NODES, PARTITIONS, SPOOLS
from reliq.store.urls import connect
from tests.contract.jobs import begin, end, enter
from tests.integration.kombu_client import Taker, declare, get, publish
from tests.integration.test_readme import take_and_die
from tests.support.audits import assert_balanced
from tests.support.processes import Process
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "examples" / "monitoring"


class Samples:
    """The samples of one scrape: name, labels -> value."""

    def __init__(self, text):
        families = list(text_string_to_metric_families(text))
        names = [family.name for family in families]
        assert len(names) == len(set(names)), "a family twice"
        self.samples = [sample for family in families for sample in family.samples]
        self.text = text

    def of(self, name, /, **labels):
        """Return the value of the only sample with these labels, or None if there is none."""
        found = [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) <= 1, found
        return found[0] if found else None

    def by(self, label, name, /, **labels):
        """Return label value -> sample value."""
        return {
            sample.labels[label]: sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }


def collect(*urls, **options):
    """Scrape a collector in this process."""
    registry = CollectorRegistry()
    collector = Collector(*urls, **options)
    registry.register(collector)
    try:
        return Samples(generate_latest(registry).decode())
    finally:
        collector.close()


@pytest.fixture
def exporter(tmp_path):
    """Return a function that starts `reliq exporter` and returns (process, its URL)."""
    started = []

    def start(*arguments):
        command = [sys.executable, "-W", "error", "-m", "reliq.cli", "exporter", *arguments]
        path = tmp_path / f"exporter{len(started)}.log"
        process = Process([*command, "--port", "0"], log_path=path)
        started.append(process)
        found = wait_until(
            lambda: re.search(r"serving metrics on (\S+)", process.log()), what=process.tail
        )
        return process, found[1]

    yield start
    for process in started:
        process.kill_group()


def scrape(url):
    """Return the samples that an exporter serves."""
    with urllib.request.urlopen(url, timeout=20) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        return Samples(response.read().decode())


def test_a_scrape_says_what_there_is(client, exporter):
    """Every gauge and counter of a queue with every kind of event has the right value."""
    connection = client.connect(visibility_timeout=30)
    declare(connection, "q")
    publish(connection, "q", 0, expiration=0.001)
    time.sleep(0.05)
    publish(connection, "q", 1, 2, priority=0)
    publish(connection, "q", 3, 4, 5, 6, priority=7)
    publish(connection, "q", 7, headers={"x-delay": 60_000})
    get(connection, "q").requeue()
    get(connection, "q").ack()  # the same message again
    get(connection, "q").reject()
    held = get(connection, "q")
    client.raw.hset("reliq:{q}:stats", "dead_lettered", 3)  # two died before reasons were counted
    process, url = exporter("--url", client.url, "--allow-host", "shop.internal")
    found = scrape(url)
    for host, status in (("shop.internal:1", 200), ("evil.example", 421), ("localhost", 200)):
        assert status == httpx.get(url, headers={"host": host}, timeout=20).status_code
    here = {"broker": client.url, "queue": "q"}
    assert {"rejected": 1, "unknown": 2} == {
        reason: value
        for reason, value in found.by("reason", "reliq_messages_dead_lettered_total").items()
        if value
    }
    assert {"0": 0, "7": 3} == found.by("priority", "reliq_messages_ready", **here)
    counters = {
        name: found.of(f"reliq_{name}_total", **here)
        for name in (
            "messages_published",
            "messages_acked",
            "messages_redelivered",
            "messages_nacked",
            "messages_expired",
            "messages_purged",
            "leases_granted",
            "leases_lost",
        )
    }
    assert {
        "messages_published": 8,
        "messages_acked": 1,
        "messages_redelivered": 1,
        "messages_nacked": 1,
        "messages_expired": 1,
        "messages_purged": 0,
        "leases_granted": 4,
        "leases_lost": 0,
    } == counters
    gauges = {
        name: found.of(f"reliq_{name}", **here)
        for name in ("messages_delayed", "messages_unacked", "dead_letters", "queue_consumers")
    }
    assert {
        "messages_delayed": 1,
        "messages_unacked": 1,
        "dead_letters": 1,
        "queue_consumers": 0,
    } == gauges
    assert 0 == found.of("reliq_ledger_difference", **here)
    assert 1 == found.of("reliq_up", broker=client.url)
    assert 0 < found.of("reliq_scrape_duration_seconds", broker=client.url)
    held.ack()
    process.signal(signal.SIGTERM)
    assert 0 == process.wait(10), process.tail()


def test_what_is_due_while_nobody_asks(client):
    """A scrape counts due delayed messages, because a scaler at zero workers depends on them."""
    publish(client.connect(), "q", 1, headers={"x-delay": 1})
    publish(client.connect(), "q", 1, headers={"x-delay": 60_000})
    wait_until(lambda: collect(client.url).of("reliq_messages_due", queue="q") == 1)
    found = collect(client.url)
    assert 2 == found.of("reliq_messages_delayed", queue="q")
    assert 0 == found.of("reliq_messages_ready", queue="q")


def test_messages_that_may_start(client):
    """At most the free slots of a queue may start; a queue without limits has no other series."""
    connection = client.connect()
    declare(connection, "limited", queue_arguments={"x-concurrency": 2})
    declare(connection, "rated", queue_arguments={"x-rate": "1/h burst 3"})
    declare(connection, "open")
    for queue in ("limited", "rated", "open"):
        publish(connection, queue, 1, 2, 3, 4)

    def scraped():
        found = collect(client.url)
        return {
            queue: tuple(
                found.of(f"reliq_{name}", queue=queue)
                for name in ("messages_startable", "queue_at_limit", "queue_concurrency_limit")
            )
            for queue in ("limited", "rated", "open")
        }

    assert {"limited": (2, 0, 2), "rated": (3, 0, None), "open": (4, None, None)} == scraped()
    held = get(connection, "limited")
    get(connection, "rated").ack()
    assert {"limited": (1, 0, 2), "rated": (2, 0, None), "open": (4, None, None)} == scraped()
    get(connection, "limited").ack()
    taker = Taker(connection, "limited", "rated", auto_declare=False)
    taker.take(3)  # the third one is of "limited": held is the other
    assert {"limited": (0, 1, 2), "rated": (0, 1, None), "open": (4, None, None)} == scraped()
    with client.inspector() as inspector:
        inspector.pause("open")
    assert (0, None, None) == scraped()["open"]
    held.ack()


def test_priorities(client):
    """Ready messages are counted by priority, in either order of the priorities."""
    for order, one, two in (("ascending", "9", "0"), ("descending", "9", "0")):
        connection = client.connect(priority_order=order)
        publish(connection, order, 1, 2, priority=9)
        publish(connection, order, 3, priority=0)
        found = collect(client.url, transport_options={"priority_order": order})
        assert {one: 2, two: 1} == found.by("priority", "reliq_messages_ready", queue=order)


def test_a_series_stays_while_its_queue_does(client):
    """The series of an empty priority is 0, and disappears with its queue."""
    connection = client.connect()
    publish(connection, "q", 1, priority=5)
    registry = CollectorRegistry()
    collector = Collector(client.url)
    registry.register(collector)

    def ready():
        found = Samples(generate_latest(registry).decode())
        return found.by("priority", "reliq_messages_ready", queue="q")

    assert {"0": 0, "5": 1} == ready()
    get(connection, "q").ack()
    assert {"0": 0, "5": 0} == ready()
    connection.default_channel.queue_delete("q")
    assert {} == ready()
    collector.close()


def test_the_age_of_the_oldest(client):
    """The age is that of the oldest ready message of any priority, and 0 without messages."""
    connection = client.connect()
    publish(connection, "q", "old", priority=9)
    tag = client.raw.zrange("reliq:{q}:ready", 0, 0)[0].decode()
    published_s = int(tag[2:14], 16) / 1000
    publish(connection, "q", "new", priority=0)
    before = time.time() - published_s
    age = collect(client.url).of("reliq_oldest_ready_age_seconds", queue="q")
    after = time.time() - published_s
    assert before - 0.002 <= age <= after
    for _ in range(2):
        get(connection, "q").ack()
    assert 0 == collect(client.url).of("reliq_oldest_ready_age_seconds", queue="q")


@pytest.mark.slow
def test_consumers_pause_and_lost_leases(client):
    """A scrape has a queue's consumers, its pause, and the lost leases of a killed consumer."""
    connection = client.connect()
    declare(connection, "orders")
    taker = Taker(connection, "orders")
    with client.inspector() as inspector:
        inspector.pause("orders")
        found = collect(client.url)
        assert 1 == found.of("reliq_queue_consumers", queue="orders")
        assert 1 == found.of("reliq_queue_paused", queue="orders")
        inspector.resume("orders")
    assert 0 == collect(client.url).of("reliq_queue_paused", queue="orders")
    taker.consumer.cancel()
    options = {"visibility_timeout": 1, "restore_interval": 0.2, "orphan_grace": 0.2}
    take_and_die(client.url, options)
    (message,) = Taker(client.connect(**options), "orders").take(1, timeout_s=20)
    message.ack()
    found = collect(client.url)
    assert 1 == found.of("reliq_leases_lost_total", queue="orders")
    assert 1 == found.of("reliq_messages_redelivered_total", queue="orders")


@pytest.mark.parametrize("reason", ["delivery_limit", "expired", "maxlen"])
def test_each_way_to_die(client, reason):
    """Each reason of death has a separate counter, which starts at 0."""
    arguments = {
        "delivery_limit": {"x-delivery-limit": 1},
        "expired": {"x-message-ttl": 1, "x-dead-letter-expired": True},
        "maxlen": {"x-max-length": 1},
    }[reason]
    connection = client.connect()
    declare(connection, "q", queue_arguments=arguments)
    name = "reliq_messages_dead_lettered_total"
    reasons = collect(client.url).by("reason", name, queue="q")
    assert set(REASONS) == set(reasons)
    assert {0} == set(reasons.values())
    publish(connection, "q", 1, 2)
    time.sleep(0.05)  # beyond a TTL of 1 ms
    if reason == "delivery_limit":
        get(connection, "q").requeue()
    died = {"delivery_limit": 1, "expired": 2, "maxlen": 1}[reason]

    def told():
        if reason == "expired":
            assert get(connection, "q") is None
        return collect(client.url).by("reason", name, queue="q")

    wait_until(lambda: told() == {**reasons, reason: died}, what=told)


def test_a_ledger_that_does_not_balance(fresh_redis):
    """A key that was deleted by hand shows as a difference in the ledger."""
    from kombu import Connection

    url = fresh_redis.url("reliq")
    with Connection(url) as connection:
        publish(connection, "q", 1, 2)
    fresh_redis.client().delete("reliq:{q}:ready")
    assert 2 == collect(url).of("reliq_ledger_difference", queue="q")
    fresh_redis.client().hset("reliq:{q}:stats", "published", 0)
    assert -2 == collect(url).of("reliq_ledger_difference", queue="q")


# -- the cost and the failures of a scrape


def test_one_script_for_each_queue(client, redis_server):
    """A scrape reads the lists of queues, consumers and batches, and runs a script per queue."""
    connection = client.connect()
    for number in range(7):
        publish(connection, f"q{number}", 1)
    registry = CollectorRegistry()
    collector = Collector(client.url)
    registry.register(collector)
    generate_latest(registry)

    def calls():
        stats = client.raw.info("commandstats")
        named = ("evalsha", "eval", "zrange")
        return {name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in named}

    client.raw.config_resetstat()
    generate_latest(registry)
    assert {"evalsha": 7, "eval": 0, "zrange": 3} == calls()
    collector.close()


def test_a_broker_that_goes_and_comes_back(fresh_redis, exporter):
    """A stopped broker is reported as down, without other series, until it is back.

    The other broker is not affected.
    """
    from kombu import Connection

    url = fresh_redis.url("reliq")
    with Connection(url) as connection:
        publish(connection, "q", 1)
    gone = "reliq://:hush@127.0.0.1:1/0"
    process, address = exporter("--url", url, "--url", gone)
    found = scrape(address)
    assert {url: 1, "reliq://127.0.0.1:1/0": 0} == found.by("broker", "reliq_up")
    assert 1 == found.of("reliq_messages_ready", queue="q")
    fresh_redis.stop()
    found = scrape(address)
    assert {0} == set(found.by("broker", "reliq_up").values())
    assert {} == found.by("queue", "reliq_messages_ready")
    fresh_redis.start()
    assert 1 == scrape(address).of("reliq_up", broker=url)
    assert 1 == process.log().count("reliq://127.0.0.1:1/0")  # logged once
    assert "hush" not in process.log() + found.text


def test_two_brokers_in_one_registry(client, redis_factory):
    """One collector reads several brokers: each family appears once, with series per broker."""
    other = redis_factory()
    publish(client.connect(), "q", 1)
    publish(client.connect(other.url("reliq")), "q", 1, 2)
    found = collect(client.url, other.url("reliq"))
    assert {client.url: 1, other.url("reliq"): 2} == found.by(
        "broker", "reliq_messages_published_total"
    )


def test_queues_that_go_by_themselves(client):
    """Reply and event queues are left out by default."""
    connection = client.connect()
    declare(connection, "reply", expires=60)
    declare(connection, "lasting")
    assert {"lasting"} == set(collect(client.url).by("queue", "reliq_messages_delayed"))
    found = collect(client.url, all_queues=True)
    assert {"lasting", "reply"} == set(found.by("queue", "reliq_messages_delayed"))


def test_odd_names(client):
    """A queue's name is exported as it is, apart from control characters."""
    name = 'q "1"\\n{2}\n\x1b[2J€'
    publish(client.connect(), name, 1)
    # Control characters are escaped, because a terminal may show the name.
    shown = name.replace("\n", "\\n").replace("\x1b", "\\x1b")
    assert {shown: 1} == collect(client.url).by("queue", "reliq_messages_published_total")


@pytest.mark.slow
def test_it_listens_on_loopback_only(client, exporter):
    """The exporter is reachable from this machine only, unless --host opens it."""
    _, address = exporter("--url", client.url)
    port = int(address.split(":")[2].split("/")[0])
    assert address.startswith("http://127.0.0.1:")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)
    _, wide = exporter("--url", client.url, "--host", "0.0.0.0")
    port = int(wide.split(":")[2].split("/")[0])
    socket.create_connection(("127.0.0.2", port), timeout=5).close()


@pytest.mark.slow
def test_what_cannot_begin(client):
    """A port in use or a wrong URL ends the exporter with exit code 2 and a remedy."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, said in (
            (("--url", client.url, "--port", port), "choose another --port"),
            (("--url", "amqp://localhost"), "amqp"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "reliq.cli", "exporter", *arguments],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            assert (2, True) == (done.returncode, said in done.stderr), done.stderr
    with pytest.raises(ConfigurationError, match="at least one broker"):
        Collector()
    with pytest.raises(ConfigurationError, match="priority_order"):
        Collector(client.url, transport_options={"priority_ordr": "ascending"})


def test_registering_asks_nobody():
    """A process starts and serves its other metrics while the broker is unreachable."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Collector("reliq://127.0.0.1:1/0"))
    found = Samples(generate_latest(registry).decode())
    assert 0 == found.of("reliq_up", broker="reliq://127.0.0.1:1/0")


# -- examples and documentation


# -- batches


def open_batches(url, **names):
    """Open a batch of each name with two waiting jobs."""
    with contextlib.closing(connect(url, {}, "owner/1")) as store:
        for batch, name in names.items():
            store.batches.open_batch(batch, name, {})
            store.batches.change(batch, [enter("j0"), enter("j1")])


def test_batches_by_their_names(client):
    """The series have batches by stage, jobs by state, and the oldest unfinished batch's age."""
    open_batches(client.url, b1="import", b2="import", b3="mail")
    with contextlib.closing(connect(client.url, {}, "owner/1")) as store:
        change = store.batches.change
        change("b2", [begin("j0"), end("failed", "j0"), begin("j1"), Change("seal")])
        change("b3", [begin("j0"), end("succeeded", "j0"), begin("j1"), end("error", "j1")])
        change("b3", [Change("seal")])
    client.raw.hincrby(batch_keys("", "b1").batch, "created", -3_600_000)
    found = collect(client.url)
    here = {"broker": client.url}
    stages = found.by("stage", "reliq_batches", name="import", **here)
    assert {"open": 1, "sealed": 1, "ended": 0} == stages
    assert 1 == found.of("reliq_batches", name="mail", stage="ended")
    jobs = found.by("state", "reliq_batch_jobs", name="import", **here)
    assert {"waiting": 2, "working": 1, "failed": 1} == {k: n for k, n in jobs.items() if n}
    assert set(STATES) == set(jobs)
    ages = found.by("name", "reliq_batch_oldest_age_seconds", **here)
    assert 0 == ages["mail"]
    assert 3600 <= ages["import"] < 4200
    assert [0, 0] == [found.of(f"reliq_batches_{what}", **here) for what in ("untold", "more")]


def test_names_of_batches_are_bounded(client, monkeypatch):
    """Fifty names of batches have and keep their own series; the others share one."""
    monkeypatch.setattr("reliq.admin.batches.MOST", 70)
    open_batches(client.url, **{f"b{n}": f"import {n}" for n in range(60)})
    open_batches(client.url, long="x" * 5000)
    registry = CollectorRegistry()
    collector = Collector(client.url)
    registry.register(collector)
    try:
        found = Samples(generate_latest(registry).decode())
        first = found.by("name", "reliq_batches", stage="open")
        assert (51, 11) == (len(first), first["(others)"])
        assert 61 == sum(first.values())
        assert 2 * 61 == sum(
            sample.value for sample in found.samples if sample.name == "reliq_batch_jobs"
        )
        assert max(map(len, first)) == 100
        assert 0 == found.of("reliq_batches_more")
        open_batches(client.url, **{f"c{n}": f"another {n}" for n in range(30)})
        found = Samples(generate_latest(registry).decode())
        assert 1 == found.of("reliq_batches_more")
        # The series that remain belong to names of the first scrape.
        later = found.by("name", "reliq_batches", stage="open")
        assert set(first) & {f"import {n}" for n in range(30, 60)} <= set(later)
        assert 51 >= len(later)
    finally:
        collector.close()


@pytest.mark.slow
def test_an_exporter_without_the_right_to_read_batches(redis_factory, exporter):
    """A scrape without the right to read batches has the queues, and logs the missing series once.

    The user has the rule of an earlier version.
    """
    from kombu import Connection

    server = redis_factory()
    url = server.url("reliq")
    rule = acl_rule("exporter", "old", password="secret").replace(" +hmget", "")
    server.client().execute_command(*rule.split())
    with Connection(url) as connection:
        declare(connection, "q")
    open_batches(url, b="import")
    process, address = exporter("--url", _as_user(url))
    for _ in range(2):
        found = scrape(address)
        assert 1 == found.of("reliq_up")
        assert 0 == found.of("reliq_messages_unacked", queue="q")
        assert {} == found.by("name", "reliq_batches")
    assert 1 == process.log().count("series of batches are missing")


def exported(client):
    """Return name -> labels of each series that a queue, a batch and a broker have."""
    publish(client.connect(), "q", 1)
    open_batches(client.url, b="import")
    found = collect(client.url)
    names = {sample.name: set(sample.labels) for sample in found.samples}
    described = set(re.findall(r"^# HELP (\S+)", found.text, re.MULTILINE))
    assert described == set(names) - {name for name in names if name.endswith("_created")}
    return names


def check(expression, names):
    """Fail if a PromQL expression names a metric or a label that is not exported."""
    used = set(re.findall(r"\breliq_\w+", expression))
    assert used
    assert set() == used - names.keys()
    labels = set().union(*(names[name] for name in used))
    grouped = re.findall(r"\bby \(([^)]*)\)", expression)
    matched = re.findall(r"[{,]\s*(\w+)\s*[=!]~?=?", expression)
    said = {word.strip() for group in grouped for word in group.split(",")} | set(matched)
    assert set() == said - labels, expression
    assert expression.count("(") == expression.count(")")


def test_the_alert_rules(client):
    """The rules are valid YAML of Prometheus' form, with exported metrics and labels only."""
    names = exported(client)
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text("utf-8"))["groups"]
    assert len(group["rules"]) == len({rule["alert"] for rule in group["rules"]}) >= 8
    for rule in group["rules"]:
        assert {"alert", "expr", "labels", "annotations"} <= set(rule)
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        of_nodes = {name: {"broker", "node"} for name, _ in NODES.values()}  # of a cluster only
        check(rule["expr"], {**names, **of_nodes})
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used <= {"broker", "node", "queue", "reason"}


def test_the_dashboard(client):
    """The dashboard is valid JSON, with exported metrics and labels, and without overlaps."""
    names = exported(client)
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text("utf-8"))
    cells = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own
        for target in panel["targets"]:
            check(target["expr"], names)
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert used <= set().union(*names.values())
    assert len(board["panels"]) == len({panel["id"] for panel in board["panels"]})
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            check(variable["query"]["query"], names)
    shown = "".join(target["expr"] for panel in board["panels"] for target in panel["targets"])
    assert not {"reliq_messages_ready", "reliq_dead_letters", "reliq_leases_lost_total"} - set(
        re.findall(r"reliq_\w+", shown)
    )


def test_every_metric_is_documented(client):
    """docs/metrics.md lists exactly the exported metrics."""
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    rows = set(re.findall(r"^\| `(reliq_\w+)` \|", text, re.MULTILINE))
    special = {name for name, _ in (*NODES.values(), *SPOOLS.values(), *LIMITS.values())}  # only
    special.add(PARTITIONS[0])  # of a divided queue only
    assert set(exported(client)) | special == rows


# -- the names of celery-exporter


def theirs(found):
    """Return queue -> celery-exporter's samples by name."""
    names = sorted({s.name for s in found.samples if s.name.startswith("celery_")})
    queues = {sample.labels["queue_name"] for sample in found.samples if sample.name in names}
    return {
        queue: {name: found.of(name, queue_name=queue) for name in names}
        for queue in sorted(queues)
    }


@pytest.mark.slow
def test_the_names_of_celery_exporter(site_factory, redis_server, redis_url, exporter):
    """On request, celery-exporter's series exist: length, consumers, workers and processes."""
    del redis_url  # this fixture empties the broker
    site = site_factory(redis_server, worker_prefetch_multiplier=1, result_backend=None)
    site.worker(queues=["celery", "mail"], concurrency=3)
    other = site.worker(queues=["mail"], pool="threads", concurrency=4)
    for _ in range(5):
        site.send("record_late", 3600, queue="celery")
    site.wait_counts(ready=2, unacked=3)
    _, url = exporter("--url", site.broker, "--celery-names")

    def counts(length, consumers, workers, processes):
        return {
            "celery_queue_length": length,
            "celery_active_consumer_count": consumers,
            "celery_active_worker_count": workers,
            "celery_active_process_count": processes,
        }

    expected = {"celery": counts(2, 1, 1, 3), "mail": counts(0, 2, 2, 7)}
    # A worker knows its pool when it is ready, and reports it within a second.
    wait_until(lambda: expected == theirs(scrape(url)), what=lambda: theirs(scrape(url)))
    assert 2 == scrape(url).of("reliq_messages_ready", queue="celery", priority="0")
    assert 0 == other.shut_down()
    expected = {"celery": counts(2, 1, 1, 3), "mail": counts(0, 1, 1, 3)}
    wait_until(lambda: expected == theirs(scrape(url)), what=lambda: theirs(scrape(url)))
    assert {} == theirs(collect(site.broker))
    assert_balanced(site.broker)


def test_one_series_for_a_queue_of_several_brokers(client, redis_factory):
    """The values of two brokers are added up, because the only label is the queue."""
    other = redis_factory()
    publish(client.connect(), "q", 1)
    publish(client.connect(other.url("reliq")), "q", 1, 2)
    found = collect(client.url, other.url("reliq"), celery_names=True)
    assert {"q": 3} == found.by("queue_name", "celery_queue_length")


def test_an_exporter_without_the_right_to_ask_for_consumers(redis_factory, exporter):
    """An exporter with the rule of an earlier version omits some series, and logs that once."""
    from kombu import Connection

    server = redis_factory()
    url = server.url("reliq")
    rule = (
        "reset on >secret ~reliq:* +client|id +client|setname +eval +evalsha +exists +hexists "
        "+hget +hgetall +hlen +ping +select +time +zcard +zcount +zrange +zrangebyscore"
    )
    server.client().execute_command("ACL", "SETUSER", "old", *rule.split())
    with Connection(url) as connection:
        declare(connection, "q")
        with Taker(connection, "q").consumer:
            process, address = exporter("--url", _as_user(url), "--celery-names")
            looked_at_as_before(process, address)


def _as_user(url):
    """Return the URL with the login of the restricted user."""
    return url.replace("://", "://old:secret@")


def looked_at_as_before(process, address):
    """Check the permitted series, and that the missing ones are logged once."""
    for _ in range(2):
        found = scrape(address)
        assert 1 == found.of("reliq_up")
        assert 1 == found.of("celery_active_consumer_count", queue_name="q")
        assert {} == found.by("queue", "reliq_acked_tasks_running")
        assert {} == found.by("queue_name", "celery_active_worker_count")
    assert 1 == process.log().count("reliq acl exporter")
