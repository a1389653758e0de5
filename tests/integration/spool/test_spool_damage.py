"""A spool that was removed, replaced, locked or damaged stops nothing while a broker answers.

In the outage itself, a file that is gone is made anew, or the error names a remedy that works.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from contextlib import closing

import pytest
from kombu import Connection, Consumer, Queue
from kombu.exceptions import OperationalError

from reliq import transports
from reliq.errors import ReliqError
from reliq.spool.journal import JOURNALS
from reliq.transports.failback_rounds import FAILBACK
from tests.integration.spool.test_spool import Away, Spooled, spooled_in
from tests.support.audits import assert_balanced
from tests.support.disks import run_on_small_disk
from tests.support.waiting import wait_until

LOCK = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


def nothing():
    """Remedy nothing."""


def removed(path):
    """Remove the file alone."""
    path.unlink()
    return nothing


def all_removed(path):
    """Remove the file and its side files."""
    for file in path.parent.iterdir():
        file.unlink()
    return nothing


def replaced(path):
    """Replace it with a copy, as a restore does."""
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    copy.rename(path)
    return nothing


def folder_removed(path):
    """Remove its folder."""
    shutil.rmtree(path.parent)
    return path.parent.mkdir


def folder_moved(path):
    """Rename its folder."""
    path.parent.rename(path.parent.with_name("elsewhere"))
    return path.parent.mkdir


def locked(path):
    """Let another process stop inside a transaction."""
    other = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert b"locked\n" == other.stdout.readline()
    other.send_signal(signal.SIGSTOP)

    def kill():
        other.kill()
        other.communicate()

    return kill


def log_removed(path):
    """Remove SQLite's log beside it."""
    path.with_name(path.name + "-wal").unlink()
    return nothing


def no_database(path):
    """Replace it and its side files with another program's text."""
    all_removed(path)
    path.touch(0o600)
    path.write_text("no database " * 1000)
    return lambda: path.rename(path.with_name("damaged"))


def readable(path):
    """Replace it with a file that others may open."""
    path.unlink()
    path.touch()
    path.chmod(0o644)
    return lambda: path.chmod(0o600)


HEALS = [removed, all_removed, replaced, log_removed]
DAMAGE = [*HEALS, folder_removed, folder_moved, locked, no_database, readable]


@pytest.fixture
def spooled(redis_factory, site_factory, tmp_path):
    """Return a Redis and a spool in a folder that does not exist yet."""
    spooled = Spooled(redis_factory, site_factory, tmp_path)
    spooled.path = tmp_path / "spools" / "spool.db"
    yield spooled
    spooled.close()
    assert_balanced(spooled.home)


@pytest.fixture
def away(redis_factory, tmp_path, monkeypatch):
    """Return a separate Redis and a spool in a folder; the ledgers balance at the end."""
    monkeypatch.setattr("reliq.spool.journal._PATIENCE_S", 0.5)
    folder = tmp_path / "spools"
    folder.mkdir()
    away = Away(redis_factory(appendonly=True), folder)
    yield away
    JOURNALS.at(str(away.path)).close()
    assert_balanced(away.home)


def cut(server):
    """Cut every connection to *server*, as a short fault of the network."""
    with closing(server.client()) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def consume_all(connection):
    """Return the payloads of three messages, consumed and acked."""
    found = []

    def take(body, message):
        found.append(body)
        message.ack()

    with Consumer(connection, [Queue("q")], callbacks=[take]):
        while len(found) < 3:
            connection.drain_events(timeout=20)
    return found


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broker_that_answers_is_used(away, damage, caplog):
    """Publishers and consumers use the broker, over old and new connections; a line is logged."""
    with away.connect() as connection:
        away.publish(connection, 0)
        remedy = damage(away.path)
        try:
            cut(away.server)
            away.publish(connection, 1)
            with away.connect() as another:
                away.publish(another, 2)
                assert [0, 1, 2] == consume_all(another)
            for _ in range(2):
                FAILBACK.forward(connection.transport.failback)
        finally:
            remedy()
    reported = [one for one in caplog.messages if "the spool would refuse" in one]
    assert int(damage in {no_database, readable}) == len(reported)


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_outage(away, damage, caplog):
    """A file that is gone is made anew; otherwise the publish is refused until the remedy."""
    with away.connect(probe_interval=60) as connection:
        away.publish(connection, 0)
        away.server.kill()
        away.publish(connection, 1)
        away.server.start()
        journal = JOURNALS.at(str(away.path))
        ((name,),) = journal.rows("SELECT publisher FROM publishes")
        journal.done([(1, "", "q", 0, b"", False, name)])
        away.server.kill()
        remedy = damage(away.path)
        try:
            if damage not in HEALS:
                with pytest.raises((ReliqError, OperationalError)) as refused:
                    away.publish(connection, 2)
                assert str(away.path) in str(refused.value)
        finally:
            remedy()
        away.publish(connection, 3)
        assert 1 == spooled_in(away.path)
        away.server.start()
        with Connection(away.home) as home:
            home.connect()
            transports.forward(journal, home.transport)
        # The thread of the failback may have taken it a moment before.
        wait_until(lambda: 0 == spooled_in(away.path))
    assert [0, 3] == away.bodies()
    lost = "removed or replaced in use, with 0 publishes"
    assert (damage is not locked) == any(lost in one for one in caplog.messages)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [removed, folder_moved, locked, no_database])
def test_a_worker_needs_no_spool(spooled, damage):
    """Whatever the spool is, a worker consumes after a fault of the network and after an outage.

    A new worker starts, too.
    """
    spooled.path.parent.mkdir()
    spooled.site.broker = f"{spooled.home};reliq-spool:///{spooled.path}"
    worker = spooled.site.worker(pool="prefork", concurrency=1)
    spooled.site.journal.wait_finished(spooled.site.send("record_late").id)
    remedy = damage(spooled.path)
    try:
        cut(spooled.redis)
        spooled.site.journal.wait_finished(spooled.site.send("record_late").id)
        spooled.redis.kill()
        wait_until(lambda: "reliq-spool" in worker.log(), timeout_s=60, what=worker.tail)
        spooled.redis.start()
        spooled.site.journal.wait_finished(spooled.site.send("record_late").id, timeout_s=60)
        assert 0 == worker.shut_down()
        worker = spooled.site.worker(pool="solo")
        spooled.site.journal.wait_finished(spooled.site.send("record_late").id)
        assert 0 == worker.shut_down()
    finally:
        remedy()


@pytest.mark.slow
def test_a_disk_that_takes_nothing(redis_factory, tmp_path, monkeypatch):
    """A full or read-only disk below a spool stops no publish, and its errors name the remedy."""
    server = redis_factory()
    monkeypatch.setenv("RELIQ_TEST_URL", server.url("reliq"))
    done = run_on_small_disk("tests.integration.apps.spool_on_disk", tmp_path, 35)
    assert "" == done.stderr
    full, read_only, published = done.stdout.splitlines()
    assert "free space" in full
    assert "Read-only file system" in read_only
    assert "this user may write" in read_only
    assert "published 5" == published
    assert_balanced(server.url("reliq"))
