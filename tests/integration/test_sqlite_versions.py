"""A file of an earlier version: what it has is there in the next."""

from __future__ import annotations

import contextlib
import sqlite3

from kombu import Connection, Exchange, Queue

from reliq.engines.urls import connect
from reliq.store.jobs import Change
from tests.integration.kombu_client import FAST, Taker, exists, publish


def drop_history(file):
    """Take away what the fourth version has more than the third."""
    for table in ("history", "failed_deliveries"):
        file.execute(f"DROP TABLE {table}")
    file.execute("ALTER TABLE queues DROP COLUMN noted")


def drop_batches(file):
    """Take away what the third and the fourth version have more than the second."""
    drop_history(file)
    file.execute("DROP TABLE batches")
    for table in ("jobs", "job_notes", "job_reports"):
        file.execute(f"DROP TABLE {table}")
    file.execute("DROP TABLE job_events")
    file.execute("ALTER TABLE queues DROP COLUMN job_events")


def test_bindings_of_the_first_version_are_known_by_their_queue(tmp_path):
    """It did not say whose they are; a queue that is deleted takes them along all the same."""
    path = tmp_path / "broker.db"
    url = f"reliq-sqlite:///{path}"
    with Connection(url, transport_options=FAST) as connection:
        for name in ("q", "other"):
            Queue(name, Exchange("x"), "key")(connection.default_channel).declare()
    with contextlib.closing(sqlite3.connect(path)) as file:
        drop_batches(file)
        file.execute("DROP INDEX bindings_queue")
        file.execute("ALTER TABLE bindings DROP COLUMN queue")
        file.execute("ALTER TABLE attached DROP COLUMN mark")
        file.execute("PRAGMA user_version = 1")
    with Connection(url, transport_options=FAST) as connection:
        channel = connection.default_channel
        assert exists(connection, "q")
        channel.queue_delete("q")
        assert [("other", "x", "key")] == channel.list_bindings()


def tables(path):
    """Return what each table and index of a file is made of, whatever the text that made it."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        names = file.execute(
            "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite%' ORDER BY name"
        ).fetchall()
        return {
            name: file.execute(f"PRAGMA {kind}_xinfo({name})").fetchall() for kind, name in names
        }


def test_a_file_of_the_third_version_takes_a_history(tmp_path):
    """Its messages stay; its tables are those of a new file."""
    path, new = tmp_path / "broker.db", tmp_path / "new.db"
    url = f"reliq-sqlite:///{path}"
    with Connection(url, transport_options=FAST) as connection:
        publish(connection, "q", 1, 2, 3)
    with contextlib.closing(sqlite3.connect(path)) as file:
        drop_history(file)
        file.execute("PRAGMA user_version = 3")
    with contextlib.closing(connect(url, FAST, "s/1")) as store:
        store.post_snapshots(["q"], lambda _: None)
        store.wait_for_replies()
        (snapshot,) = store.history("q", 0, store.now_ms())
        assert 3 == snapshot.ready
    connect(f"reliq-sqlite:///{new}", FAST, "s/1").close()
    assert tables(new) == tables(path)


def test_a_file_of_the_second_version_takes_batches(tmp_path):
    """Its messages stay; its tables are those of a new file."""
    path, new = tmp_path / "broker.db", tmp_path / "new.db"
    url = f"reliq-sqlite:///{path}"
    with Connection(url, transport_options=FAST) as connection:
        publish(connection, "q", 1, 2, 3)
    with contextlib.closing(sqlite3.connect(path)) as file:
        drop_batches(file)
        file.execute("PRAGMA user_version = 2")
    with contextlib.closing(connect(url, FAST, "s/1")) as store:
        assert store.batches.open_batch("b", "enrol", {})
        assert 1 == len(store.batches.change("b", [Change("enter", "j", "waiting")]).outcomes)
    with Connection(url, transport_options=FAST) as connection:
        assert [1, 2, 3] == Taker(connection, "q").take_bodies(3)
    connect(f"reliq-sqlite:///{new}", FAST, "s/1").close()
    assert tables(new) == tables(path)
