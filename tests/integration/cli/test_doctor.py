"""`reliq doctor` finds each misconfiguration and failure, with a remedy."""

import re
import subprocess
import sys
import time

import pytest
from kombu import Connection

from reliq.admin import Inspector
from tests.integration.kombu_client import FAST, Taker, declare, publish
from tests.integration.test_readme import claim_twice, exercise, take_and_die
from tests.support.commands import data, run
from tests.support.waiting import wait_until


def findings(url, check, **options):
    """Return (severity, message, remedy) of each finding of one check."""
    return [
        (row["severity"], row["message"], row["remedy"])
        for row in data(url, "doctor", **options)
        if row["check"] == check
    ]


@pytest.fixture
def sound(redis_factory):
    """Return a server without findings."""
    return redis_factory(appendonly=True, password="hush", extra=["--maxmemory", "200mb"])


def test_a_sound_broker(sound, client):
    """A sound broker has no warnings, so --strict exits with 0, and every check runs."""
    with_queue = client.connect(sound.url())
    declare(with_queue, "orders")
    rows = data(sound.url(), "doctor", "--strict")
    checks = {
        "acl", "version", "maxmemory-policy", "memory", "persistence", "replication", "clients",
        "timeout", "clock", "script cache", "keys", "consumers", "options", "installation",
        "reliq", "queues", "batches", "ledger",
    }  # fmt: skip
    assert checks == {row["check"] for row in rows}
    assert {"replication": "info"} == {
        row["check"]: row["severity"] for row in rows if row["severity"] != "ok"
    }


@pytest.mark.slow
@pytest.mark.parametrize("rejects", [False, True])
def test_a_task_that_a_killed_pool_process_loses(site_factory, redis_factory, rejects):
    """A prefork worker with late acks that loses the task of a killed process is found."""
    server = redis_factory()
    site = site_factory(server, task_acks_late=True, task_reject_on_worker_lost=rejects)
    worker = site.worker(pool="prefork", name="exposed")
    line = "task_reject_on_worker_lost = True"
    if not rejects:
        worker.wait_log(line)
    site.journal.wait_finished(site.send("record").id)

    def found():
        return [text for _, text, _ in findings(site.broker, "options") if "pool process" in text]

    wait_until(lambda: rejects != bool(found()), what=found)
    assert int(not rejects) == worker.log().count(line)
    assert rejects or "exposed" in found()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "value", "check", "severity", "words"),
    [
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy", "error", "deletes messages"),
        ("maxmemory", "0", "memory", "warning", "maxmemory is not set"),
        ("maxmemory", "1mb", "memory", "warning", "of maxmemory are used"),
        ("appendonly", "no", "persistence", "warning", "none: a crash"),
        ("appendfsync", "no", "persistence", "warning", "AOF without fsync"),
        ("timeout", "60", "timeout", "warning", "silent for 60 s"),
        ("tcp-keepalive", "0", "tcp-keepalive", "warning", "stays for hours"),
        ("maxclients", "2", "clients", "warning", "of 2 connections are in use"),
    ],
)
def test_a_setting_that_is_wrong(sound, setting, value, check, severity, words):
    """A wrong setting is found with its consequence and remedy; an error is exit code 1."""
    admin = sound.client()
    admin.config_set(setting, value)
    code = 1 if severity == "error" else 0
    ((found, message, remedy),) = findings(sound.url(), check, code=code)
    assert (severity, True) == (found, words in message), message
    assert remedy
    assert 1 == run(sound.url(), "doctor", "--strict").returncode


def test_a_snapshot_is_not_enough(sound):
    """With RDB alone, the doctor warns that a crash loses all messages since the last snapshot."""
    sound.client().config_set("appendonly", "no")
    sound.client().config_set("save", "900 1")
    ((severity, message, _),) = findings(sound.url(), "persistence")
    assert ("warning", "RDB: a crash loses all messages since the last snapshot (save 900 1)") == (
        severity,
        message,
    )


def test_a_snapshot_that_failed(sound):
    """A failed snapshot is an error, because confirmed messages would not survive a crash."""
    admin = sound.client()
    (sound.directory / "dump.rdb").mkdir()  # the snapshot cannot be renamed to a directory
    admin.bgsave()
    wait_until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
    (severity, message, remedy), _ = findings(sound.url(), "persistence", code=1)
    assert ("error", "the last snapshot failed") == (severity, message.partition(":")[0])
    assert "log" in remedy


def test_scripts_that_pile_up(sound):
    """The doctor warns of many cached scripts: one per call fills the server's memory."""
    pipeline = sound.client().pipeline(transaction=False)
    for number in range(1010):
        pipeline.script_load(f"return {number}")
    pipeline.execute()
    ((severity, message, remedy),) = findings(sound.url(), "script cache")
    assert ("warning", True) == (severity, "scripts are cached" in message), message
    assert "SCRIPT FLUSH" in remedy


def test_a_clock_that_is_wrong(redis_url, monkeypatch):
    """A clock difference is a warning, because ages and ETAs are wrong by that difference."""
    real = time.time
    monkeypatch.setattr("reliq.doctor.server.time.time", lambda: real() + 90)
    with Inspector(redis_url) as inspector:
        (found,) = [item for item in inspector.doctor() if item.check == "clock"]
    assert "warning" == found.severity
    assert re.match(r"the server's clock is (89|90)\.\d s behind this machine's", found.message)
    assert "NTP" in found.remedy


@pytest.mark.slow
def test_a_replica(redis_factory):
    """A replica is an error, because it takes no messages; a broken link is a second error."""
    primary = redis_factory()
    replica = redis_factory(replica_of=primary)
    replica.wait_synced()
    ((severity, message, _),) = findings(replica.url(), "replication", code=1)
    assert (
        "error",
        f"this server is a replica of 127.0.0.1:{primary.port}: it takes no messages",
    ) == (
        severity,
        message,
    )
    assert [("ok", "1 replica(s)", "")] == findings(primary.url(), "replication")
    port = primary.port
    primary.kill()
    found = wait_until(
        lambda: len(rows := findings(replica.url(), "replication", code=1)) == 2 and rows
    )
    assert f"its link to 127.0.0.1:{port} is down: its data is outdated" == found[1][1]


def test_a_broker_without_a_password(redis_url):
    """A broker without a password is a warning."""
    ((severity, message, remedy),) = findings(redis_url, "login")
    assert ("warning", "there is no password") == (severity, message.partition(":")[0])
    assert "reliq acl" in remedy


def test_keys_that_are_not_ours(client):
    """Foreign keys under our prefix are counted and named; keys of other prefixes are ignored."""
    declare(client.connect(), "orders")
    for key in ("other", "reliq2", "shop:reliq:{%}:queues"):
        client.raw.set(key, 1)
    assert "ok" == findings(client.url, "keys")[0][0]
    client.raw.set("reliq:mine", 1)
    client.raw.set("reliq:{orders}:mine", 1)
    ((severity, message, _),) = findings(client.url, "keys")
    assert (
        "warning",
        "2 keys under our prefix are not reliq's: 'reliq:mine', 'reliq:{orders}:mine'",
    ) == (
        severity,
        message,
    )


def test_every_key_of_ours_is_known_to_be(redis_url, redis_server):
    """After all operations of producers and consumers, no key counts as foreign."""
    with Connection(redis_url, transport_options=FAST) as connection:
        exercise(connection)
        claim_twice(redis_url)
        ((severity, message, _),) = findings(redis_url, "keys")
    assert "ok" == severity, message


@pytest.mark.slow
def test_a_consumer_that_was_killed(client):
    """A killed consumer is found in the register, with a remedy that returns its messages."""
    take_and_die(client.url, {})
    row = wait_until(lambda: [r for r in data(client.url, "consumers") if not r["connected"]])[0]
    ((severity, message, remedy),) = findings(client.url, "consumers")
    assert "warning" == severity
    assert f"consumer {row['id']} is in the register without a connection" in message
    assert "start a worker for orders" in remedy
    client.raw.hset("reliq:{orders}:consumers", "gone:1:x", 1)
    _, (severity, message, _) = findings(client.url, "consumers")
    assert ("warning", "consumer gone:1:x of orders has not sent a heartbeat for a long time") == (
        severity,
        message,
    )
    Taker(client.connect(), "orders")  # it serves the queue, and returns the dead one's messages
    others = findings(client.url, "consumers")
    assert [("ok", "")] == [(severity, remedy) for severity, _, remedy in others], others


@pytest.mark.slow
def test_nothing_is_to_be_done_for_a_consumer_that_held_nothing(client):
    """A dead consumer matters only if it held messages or messages wait in its durable queue."""
    script = (
        "import os, signal, sys, time, reliq; from kombu import Connection, Consumer, Queue\n"
        "connection = Connection(sys.argv[1])\n"
        "queues = [Queue('orders'), Queue('me.celery.pidbox', expires=60)]\n"
        "with Consumer(connection, queues):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, client.url], timeout=60, check=False)
    wait_until(lambda: [r for r in data(client.url, "consumers") if not r["connected"]])
    ((severity, message, _),) = findings(client.url, "consumers")
    assert ("ok", "1, 1 of them dead, with no messages to return") == (severity, message)
    client.connect().Producer().publish("x", routing_key="orders")
    ((severity, message, remedy),) = findings(client.url, "consumers")
    assert ("warning", True) == (severity, "and 1 messages wait in its queues" in message)
    assert remedy.startswith("start a worker for orders: ")


def test_passes_that_fail(client):
    """A failing pass is reported with queue and error until a pass succeeds."""
    connection = client.connect()
    taker = Taker(connection, "q")
    publish(connection, "q", "held")
    (message,) = taker.take(1)

    def failing():
        with Inspector(client.url) as inspector:
            return [item for item in inspector.doctor() if item.check == "passes"]

    assert [] == failing()
    client.raw.set("reliq:{q}:job_events", "of somebody else")
    (found,) = wait_until(failing)
    assert "error" == found.severity
    assert "on 'q' fails" in found.message
    assert "WRONGTYPE" in found.message
    assert "do not return" in found.remedy
    client.raw.delete("reliq:{q}:job_events")
    wait_until(lambda: not failing())
    message.ack()


def test_options_in_conflict(client):
    """Consumers of one queue with different options are named with their values."""
    takers = []
    for limit in (3, 5):
        connection = client.connect(delivery_limit=limit)
        declare(connection, "orders")
        takers.append(Taker(connection, "orders"))
    wait_until(lambda: len(data(client.url, "consumers")) == 2)
    ((severity, message, remedy),) = findings(client.url, "options")
    assert "warning" == severity
    assert re.fullmatch(
        r"consumers of 'orders' disagree about delivery_limit: 3: \S+; 5: \S+", message
    )
    assert "broker_transport_options" in remedy


@pytest.mark.parametrize(("seconds", "found"), [(600, False), (3600, True)])
def test_a_visibility_timeout_of_redis(client, seconds, found):
    """A visibility_timeout above ten minutes is noted as left over from redis://."""
    connection = client.connect(visibility_timeout=seconds)
    declare(connection, "orders")
    taker = Taker(connection, "orders")
    wait_until(lambda: data(client.url, "consumers"))
    ((severity, message, remedy),) = findings(client.url, "options")
    assert ("info" if found else "ok") == severity
    if found:
        assert f"visibility_timeout is {seconds} s at 1 consumer(s)" in message
        assert "set it to 60" in remedy
    del taker


def test_queues_that_need_somebody(client):
    """Paused and abandoned queues, and those with dead letters, are found with a remedy."""
    connection = client.connect()
    for name in ("paused", "deserted", "dying"):
        declare(connection, name)
    publish(connection, "deserted", 1)
    publish(connection, "dying", 1)
    Taker(connection, "dying").take()[0].reject()
    with client.inspector() as inspector:
        inspector.pause("paused")
    wait_until(lambda: client.status("dying").dead == 1)
    found = {remedy: message for _, message, remedy in findings(client.url, "queues")}
    assert (
        "queue 'paused' is paused, with 0 messages waiting in it"
        == found["reliq queue resume paused"]
    )
    assert "1 messages wait in 'deserted', which has no consumers" in found.values()
    assert [("info", "1 in 'dying'", "reliq dead list dying; reliq dead replay dying")] == findings(
        client.url, "dead letters"
    )


def test_a_ledger_that_does_not_balance(redis_factory, client):
    """A ledger that does not balance is an error with the first thing to check."""
    server = redis_factory()
    connection = client.connect(server.url())
    declare(connection, "orders")
    publish(connection, "orders", 1)
    server.client().zpopmin("reliq:{orders}:ready")
    ((severity, message, remedy),) = findings(server.url(), "ledger", code=1)
    assert ("error", True) == (severity, message.startswith("queue 'orders' does not balance"))
    assert "maxmemory-policy" in remedy


def test_the_worst_comes_first_in_the_table(redis_factory):
    """The table lists the most severe findings first."""
    server = redis_factory(extra=["--maxmemory-policy", "allkeys-lru"])
    done = run(server.url(), "doctor")
    assert 1 == done.returncode
    severities = re.findall(r"^│ (\w+) ", done.stdout, re.MULTILINE)
    order = ["error", "warning", "info", "ok"]
    assert severities == sorted(severities, key=order.index)
    assert "error" == severities[0]
