"""Rows of wrong types in a broker's file: readers show the rest, a consumer goes on."""

from __future__ import annotations

import contextlib
import sqlite3
from contextlib import suppress

import prometheus_client
import pytest
from kombu import Connection

from reliq.admin import Inspector
from reliq.engines.urls import connect
from reliq.metrics import Collector
from reliq.store.jobs import DONE, UNCHANGED, Change
from tests.contract.jobs import begin, end, enter
from tests.support.commands import run
from tests.support.waiting import wait_until

from .kombu_client import Taker, publish

FAST = {"visibility_timeout": 2, "restore_interval": 0.2, "poll_interval": 0.5}


@pytest.fixture
def url(tmp_path):
    """Return the URL of a file with a good queue of three, and junk beside it."""
    url = f"reliq-sqlite:///{tmp_path}/broker.db"
    with Connection(url, transport_options=FAST) as connection:
        publish(connection, "good", 1, 2, 3)
        for queue in ("envelopes", "places", "counters", "leases"):
            publish(connection, queue, "x", "y")
    raw = sqlite3.connect(tmp_path / "broker.db")
    ids = dict(raw.execute("SELECT name, id FROM queues"))
    of = "SELECT envelope FROM messages WHERE queue = ?"
    raw.execute(f"UPDATE envelopes SET envelope = 7 WHERE id IN ({of})", (ids["envelopes"],))
    raw.execute("UPDATE messages SET position = 9e999 WHERE queue = ?", (ids["places"],))
    raw.execute("UPDATE queues SET acked = 'many', arguments = 'x' WHERE name = 'counters'")
    raw.execute(
        "UPDATE messages SET state = 2, position = 'x', owner = x'ff' WHERE queue = ?",
        (ids["leases"],),
    )
    raw.execute("INSERT INTO queues (prefix, name) VALUES ('', CAST(x'636166e9' AS TEXT))")
    raw.execute("INSERT INTO queues (prefix, name) VALUES ('', x'ff')")
    for name, record in (("junk", "{"), ("list", "[]"), ("types", '{"host": 1}'), ("pid", PID)):
        raw.execute(
            "INSERT INTO consumers (prefix, id, seen, until, record) VALUES ('', ?, 0, ?, ?)",
            (name, 2**60, record),
        )
    raw.commit()
    raw.close()
    return url


PID = '{"host": "h", "pid": "p", "client_id": "", "run_id": "", "options": "[]"}'


def test_readers_show_the_rest(url, caplog):
    """The good queue is there in full, with whatever else can be read; the rest is named."""
    with Inspector(url) as inspector:
        report = {item.queue: item for item in inspector.report().queues}
        assert (3, 3) == (report["good"].ready, report["good"].ledger["published"])
        assert [] == inspector.consumers()
        assert [True] == [item.balanced for item in inspector.audit() if item.queue == "good"]
        assert inspector.doctor()
        assert 2 == len(inspector.peek("envelopes"))
        assert 3 == len(inspector.peek("good"))
    registry = prometheus_client.CollectorRegistry()
    collector = Collector(url)
    registry.register(collector)
    page = prometheus_client.generate_latest(registry).decode()
    collector.close()
    assert 'queue="good"} 3.0' in page
    told = " ".join(caplog.messages)
    for what in ("'counters'", "records of consumers", "names of queues"):
        assert what in told


@pytest.mark.slow
def test_every_command_ends_in_order(url):
    """No traceback, whatever is in the file; the good queue is shown."""
    for arguments in (
        ("status", "--interval", "0"),
        ("consumers",),
        ("audit",),
        ("doctor",),
        ("peek", "envelopes", "--json"),
        ("peek", "places"),
        ("peek", "leases", "--state", "unacked"),
        ("dead", "list", "counters"),
    ):
        done = run(url, *arguments)
        assert done.returncode in {0, 1, 2}, (arguments, done)
        assert "Traceback" not in done.stderr, (arguments, done.stderr[-2000:])
        if arguments[0] in {"status", "audit"}:
            assert "good" in done.stdout


def test_a_consumer_takes_what_is_good(url):
    """What is no envelope becomes a dead letter, and the rest comes through."""
    with Connection(url, transport_options=FAST) as connection:
        publish(connection, "envelopes", "fine")
        taker = Taker(connection, "envelopes", "good")

        def all_came():
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.2)
            return len(taker.messages) == 4

        wait_until(all_came, timeout_s=20)
        assert {"fine", 1, 2, 3} == {message.payload for message in taker.messages}
        for message in taker.messages:
            message.ack()
    with Inspector(url) as inspector:
        assert 2 == inspector.status("envelopes").dead


def test_jobs_that_cannot_be_read(tmp_path, caplog):
    """They are named, and stay as they are; the others go on, and none is counted twice."""
    path = tmp_path / "broker.db"
    with contextlib.closing(connect(f"reliq-sqlite:///{path}", {}, "s/1")) as store:
        batches = store.batches
        batches.open_batch("b", "enrol", {})
        torn = ["state", "retries", "since", "tag"]
        batches.change("b", [enter(job) for job in [*torn, "good"]])
        with contextlib.closing(sqlite3.connect(path)) as raw:
            for name in torn:
                raw.execute(f"UPDATE jobs SET {name} = x'ff' WHERE id = ?", (name,))
            raw.execute("UPDATE batches SET delayed = 'many', fields = '[', said_failure = 'x'")
            raw.commit()
        outcomes = batches.change("b", [begin(job) for job in [*torn, "good"]]).outcomes
        assert [UNCHANGED] * 4 + [DONE] == outcomes
        assert ["good"] == [job.id for some in batches.jobs("b") for job in some]
        assert batches.job("b", "state") is None
        record = batches.batch("b")
        assert (5, 1, {}) == (record.total, record.counts["working"], record.fields)
        assert [DONE] == batches.change("b", [end("error", "good")]).outcomes
        assert [DONE] == batches.change("b", [Change("seal")]).outcomes
    for name in torn:
        assert f"'{name}'" in caplog.text
    assert "jobs of batch 'b'" in caplog.text
