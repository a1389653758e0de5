"""What can be wrong with a file: a clear error each, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from kombu import Connection

from reliq import BrokerRefused, ConfigurationError
from reliq.admin import Inspector
from reliq.engines.sqlite import opening, schema
from tests.integration.kombu_client import Taker, declare, publish
from tests.support.audits import assert_balanced
from tests.support.disks import run_on_small_disk
from tests.support.workers import ROOT

FAST = {"poll_interval": 0.5, "socket_timeout": 2}


@pytest.fixture
def path(tmp_path):
    """Return the path of a file with ten messages, which nobody has open."""
    path = tmp_path / "broker.db"
    with Connection(f"reliq-sqlite:///{path}", transport_options=FAST) as connection:
        declare(connection, "q")
        publish(connection, "q", *range(10))
    return path


def url_of(path):
    """Return the URL of a file."""
    return f"reliq-sqlite:///{path}"


def take_all(path, count=10):
    """Take and ack messages; return their bodies."""
    with Connection(url_of(path), transport_options=FAST) as connection:
        return Taker(connection, "q").take_bodies(count)


def refusal(path, kind=BrokerRefused):
    """Return the words of the error that opening the file and publishing ends with."""
    with pytest.raises(kind) as caught:  # noqa: SIM117 - either may raise
        with Connection(url_of(path), transport_options=FAST) as connection:
            publish(connection, "q", "refused")
    assert str(path) in str(caught.value)
    return str(caught.value)


# -- versions


@pytest.fixture
def next_version(monkeypatch):
    """Let this process know one version more; return how to say what it takes to get there."""

    def migrate_by(statements):
        monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
        monkeypatch.setattr(opening, "VERSION", schema.VERSION)
        monkeypatch.setattr(schema, "MIGRATIONS", {schema.VERSION - 1: statements})
        return schema.VERSION

    return migrate_by


def version_of(path):
    """Return the version of a file, as SQLite has it."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        return file.execute("PRAGMA user_version").fetchone()[0]


def test_an_older_file_is_brought_up_to_date(path, next_version):
    """Its messages stay, whoever opens it first, however many do at once."""
    version = next_version("ALTER TABLE queues ADD COLUMN added TEXT;\nCREATE TABLE more (a);\n")
    counts = []

    def look():
        with Inspector(url_of(path)) as inspector:
            counts.append(inspector.status("q").ready)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [10] * 4 == counts
    assert version == version_of(path)
    assert list(range(10)) == take_all(path)
    assert_balanced(url_of(path))


def test_a_migration_that_fails_has_changed_nothing(path, next_version, monkeypatch):
    """All of it or none: the version before still reads the file."""
    version = next_version("CREATE TABLE more (a);\nCREATE TABLE more (a);\n")
    with pytest.raises(Exception, match="already exists"):
        Inspector(url_of(path))
    monkeypatch.undo()
    assert version - 1 == version_of(path)
    assert list(range(10)) == take_all(path)


def test_a_newer_file_is_refused(path):
    """The error names both versions and what to do; the file is left as it is."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 99")
    said = refusal(path, ConfigurationError)
    assert "version 99" in said
    assert f"versions up to {schema.VERSION}" in said
    assert "upgrade reliq" in said
    assert 99 == version_of(path)


def test_a_file_of_another_program_is_refused(tmp_path):
    """Nothing is written into it."""
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE theirs (a)")
    before = path.read_bytes()
    assert "another program" in refusal(path, ConfigurationError)
    assert before == path.read_bytes()


# -- corrupt


def test_a_file_that_is_no_database(tmp_path):
    """The error says so, and what can be saved how."""
    path = tmp_path / "broker.db"
    path.write_bytes(b"no database" * 1000)
    assert ".recover" in refusal(path)


def test_a_damaged_file(path):
    """Pages that make no sense: the step is refused, whatever it was."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    said = refusal(path)
    assert "corrupt" in said
    assert ".recover" in said


# -- where it cannot be written


def test_a_directory_that_does_not_exist(tmp_path):
    """It is named; nothing is created."""
    said = refusal(tmp_path / "nowhere" / "broker.db", ConfigurationError)
    assert f"no directory {str(tmp_path / 'nowhere')!r}" in said
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_in_place_of_the_file(tmp_path):
    """The error says what was found."""
    assert "a directory?" in refusal(tmp_path, ConfigurationError)


READER = """
import os
import sys
from kombu import Connection
import reliq
import reliq.transports.sqlite
if os.geteuid() == 0:  # root may write everything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    with Connection(sys.argv[1]) as connection:
        connection.default_channel.basic_publish(
            connection.default_channel.prepare_message("x"), "", "q")
except reliq.ReliqError as exc:
    print(type(exc).__mro__[0].__name__, exc)
"""


@pytest.mark.parametrize("mode", ["file", "directory"])
def test_a_file_that_may_not_be_written(path, mode):
    """Another user, who may only read: refused, with what to do; nothing is lost."""
    place = Path(tempfile.mkdtemp(prefix="reliq-read-only-"))
    try:
        moved = place / "broker.db"
        shutil.copy(path, moved)
        moved.chmod(0o444 if mode == "file" else 0o666)
        place.chmod(0o777 if mode == "file" else 0o555)
        done = subprocess.run(
            [sys.executable, "-c", READER, url_of(moved)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
            check=False,
        )
        assert (0, "") == (done.returncode, done.stderr)
        assert str(moved) in done.stdout
        assert "this user" in done.stdout
        place.chmod(0o755)
        for left in place.glob("broker.db-*"):  # by the other user: it is not trusted
            left.unlink()
        assert list(range(10)) == take_all(moved)
    finally:
        place.chmod(0o755)
        shutil.rmtree(place)


# -- full


def test_a_full_disk(tmp_path):
    """A publish is refused and loses nothing; consuming goes on; with room, all goes on.

    Full by its own messages, then to the last byte by something else.
    """
    done = run_on_small_disk("tests.integration.apps.full_disk", tmp_path, 32)
    assert 0 == done.returncode, done.stderr
    seen = json.loads(done.stdout)
    assert "the disk is full" in seen["refused"]
    assert seen["stored"] > 500
    assert seen["stored"] == seen["kept"]
    assert seen["in order"]
    assert seen["balanced"]
    assert "ok" == seen["integrity"]
    assert 1 <= seen["ready at the end"] <= 2


def test_who_starts_on_a_full_disk(tmp_path):
    """Nobody has the file open, and there is no room to open it: that of the reserve will do."""
    done = run_on_small_disk("tests.integration.apps.full_start", tmp_path, 32)
    assert 0 == done.returncode, done.stderr
    assert list(range(100)) == json.loads(done.stdout)


def test_jobs_end_on_a_full_disk(tmp_path):
    """With the room of the reserve; those that are new are refused, as their messages are."""
    done = run_on_small_disk("tests.integration.apps.full_batch", tmp_path, 32)
    assert 0 == done.returncode, done.stderr
    noted, refused, counts, listed = json.loads(done.stdout)
    assert noted
    assert "the disk is full" in refused
    assert ({"working": 2000, "succeeded": 1000}, 3000) == (counts, listed)


def test_the_reserve_is_made_through_no_link(path):
    """In a directory that others write to, it would be another's file that grows."""
    target = path.with_name("precious")
    target.write_bytes(b"kept")
    reserve = path.with_name(f"{path.name}-reserve")
    reserve.unlink()
    reserve.symlink_to(target)
    assert list(range(10)) == take_all(path)
    assert b"kept" == target.read_bytes()


# -- what a file cannot give


def test_replicas_are_refused(path):
    """Nothing is stored; what can be had instead is said."""
    with Connection(url_of(path), transport_options=FAST) as connection:
        with pytest.raises(BrokerRefused, match=r"no replicas.*fsynced"):
            publish(connection, "q", 1, confirm="replicated")
        publish(connection, "q", 10, confirm="fsynced")
    assert list(range(11)) == take_all(path, 11)


@pytest.mark.parametrize(("chosen", "pragma"), [("normal", 1), ("full", 2)])
def test_what_waits_for_the_disk(path, chosen, pragma):
    """`synchronous` is what every connection to the file is told."""
    options = {**FAST, "synchronous": chosen}
    with Connection(url_of(path), transport_options=options) as connection:
        publish(connection, "q", 10)
        store = connection.transport.link.store
        assert (pragma,) == store._connection.statement("PRAGMA synchronous").fetchone()


def test_a_link_to_the_file_is_the_file(path):
    """Who comes by another name waits at the same notifications."""
    link = path.with_name("link.db")
    link.symlink_to(path)
    with Connection(url_of(path), transport_options={**FAST, "poll_interval": 30}) as connection:
        taker = Taker(connection, "q")
        taker.take(10)
        with Connection(url_of(link), transport_options=FAST) as other:
            publish(other, "q", "through the link")
        assert "through the link" == taker.take()[0].payload
    assert not link.with_name("link.db-notifications").exists()


def test_a_backup_in_the_files_place(path):
    """A backup, made as the documents say, is as good as the file: readers wait for no writer."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("VACUUM INTO ?", (f"{path}.backup",))
    Path(f"{path}.backup").rename(path)
    with Connection(url_of(path), transport_options=FAST) as connection:
        publish(connection, "q", 10, confirm="fsynced")
    with contextlib.closing(sqlite3.connect(path)) as file:
        assert ("wal",) == file.execute("PRAGMA journal_mode").fetchone()
    assert list(range(11)) == take_all(path, 11)
