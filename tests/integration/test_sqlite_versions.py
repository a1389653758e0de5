"""A file of an earlier version: what it has is there in the next."""

from __future__ import annotations

import contextlib
import sqlite3

from kombu import Connection, Exchange, Queue

from tests.integration.kombu_client import FAST, exists


def test_bindings_of_the_first_version_are_known_by_their_queue(tmp_path):
    """It did not say whose they are; a queue that is deleted takes them along all the same."""
    path = tmp_path / "broker.db"
    url = f"reliq-sqlite:///{path}"
    with Connection(url, transport_options=FAST) as connection:
        for name in ("q", "other"):
            Queue(name, Exchange("x"), "key")(connection.default_channel).declare()
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("DROP INDEX bindings_queue")
        file.execute("ALTER TABLE bindings DROP COLUMN queue")
        file.execute("ALTER TABLE attached DROP COLUMN mark")
        file.execute("PRAGMA user_version = 1")
    with Connection(url, transport_options=FAST) as connection:
        channel = connection.default_channel
        assert exists(connection, "q")
        channel.queue_delete("q")
        assert [("other", "x", "key")] == channel.list_bindings()
