"""Brokers that are a file, and what is looked at when everybody has been killed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from reliq.admin import Inspector
from tests.support.audits import assert_balanced
from tests.support.waiting import wait_until


class FileBroker:
    """In place of a server, for a CelerySite."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "broker.db"

    def url(self, scheme: str = "reliq", db: int = 0) -> str:
        """Return the URL of the file, whatever the scheme."""
        del scheme, db
        return f"reliq-sqlite:///{self.path}"

    def assert_sound(self) -> None:
        """Fail unless SQLite finds the file whole, and its ledgers balance."""
        with closing(sqlite3.connect(self.path, timeout=20)) as connection:
            assert [("ok",)] == connection.execute("PRAGMA integrity_check").fetchall()
            lost = connection.execute(
                "SELECT (SELECT count(*) FROM messages) - (SELECT count(*) FROM envelopes)"
            ).fetchone()
            assert (0,) == lost
        assert_balanced(self.url())

    def settled(self, queue: str, ready: int) -> None:
        """Wait until so many messages are ready in a queue."""
        with Inspector(self.url()) as inspector:
            wait_until(lambda: inspector.status(queue).ready == ready)

    def leftovers(self) -> list[str]:
        """Return the FIFOs and locks that lie beside the file."""
        return sorted(path.name for path in Path(f"{self.path}-notifications").glob("*"))
