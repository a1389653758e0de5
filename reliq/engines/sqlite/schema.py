"""The versions of the file: made, brought up to date, or refused."""

from __future__ import annotations

import sqlite3
from importlib.resources import files
from typing import TYPE_CHECKING

from ...errors import ConfigurationError
from ...message.envelope import EnvelopeError, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .location import Location

VERSION = 4
APPLICATION_ID = 0x72656C71  # "relq"

# From each version to the next: statements, all run in one transaction.
MIGRATIONS: Mapping[int, str] = {
    1: """
ALTER TABLE bindings ADD COLUMN queue TEXT;
UPDATE bindings SET queue = queue_of(binding);
CREATE INDEX bindings_queue ON bindings (prefix, queue);
ALTER TABLE attached ADD COLUMN mark TEXT NOT NULL DEFAULT '';
""",
    2: """
CREATE TABLE batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    prefix TEXT NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    fields TEXT NOT NULL,
    created INTEGER NOT NULL,
    check_at INTEGER NOT NULL,
    forgotten INTEGER NOT NULL DEFAULT 0,
    sealed INTEGER,
    cancelled INTEGER,
    ended INTEGER,
    due_failure INTEGER,
    due_complete INTEGER,
    due_success INTEGER,
    said_failure INTEGER,
    said_complete INTEGER,
    said_success INTEGER,
    added INTEGER,
    waiting INTEGER NOT NULL DEFAULT 0,
    delayed INTEGER NOT NULL DEFAULT 0,
    working INTEGER NOT NULL DEFAULT 0,
    retrying INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    error INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX batches_id ON batches (prefix, id) WHERE forgotten = 0;
CREATE INDEX batches_created ON batches (prefix, created);
CREATE INDEX batches_check_at ON batches (prefix, check_at);
CREATE TABLE jobs (
    batch INTEGER NOT NULL,
    id TEXT NOT NULL,
    state TEXT NOT NULL,
    retries INTEGER NOT NULL,
    token INTEGER NOT NULL,
    since INTEGER NOT NULL,
    tag TEXT NOT NULL,
    queue TEXT NOT NULL,
    worker TEXT,
    failed_at INTEGER,
    error TEXT,
    PRIMARY KEY (batch, id)
) WITHOUT ROWID;
CREATE INDEX failures ON jobs (batch, failed_at) WHERE failed_at IS NOT NULL;
CREATE TABLE job_notes (
    batch INTEGER NOT NULL,
    id TEXT NOT NULL,
    reported INTEGER NOT NULL,
    at INTEGER,
    done REAL,
    total REAL,
    text TEXT,
    PRIMARY KEY (batch, id)
) WITHOUT ROWID;
CREATE INDEX job_notes_at ON job_notes (batch, at) WHERE at IS NOT NULL;
CREATE TABLE job_reports (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    batch INTEGER NOT NULL,
    job TEXT NOT NULL,
    at INTEGER NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX job_reports_batch ON job_reports (batch, number);
ALTER TABLE queues ADD COLUMN job_events INTEGER NOT NULL DEFAULT 0;
CREATE TABLE job_events (
    queue INTEGER NOT NULL,
    number INTEGER NOT NULL,
    what TEXT NOT NULL,
    tag TEXT NOT NULL,
    reason TEXT NOT NULL,
    error TEXT NOT NULL,
    envelope BLOB NOT NULL,
    PRIMARY KEY (queue, number)
) WITHOUT ROWID;
""",
    3: """
ALTER TABLE queues ADD COLUMN noted TEXT NOT NULL DEFAULT '';
CREATE TABLE history (
    queue INTEGER NOT NULL,
    block INTEGER NOT NULL,
    records BLOB NOT NULL,
    PRIMARY KEY (queue, block)
) WITHOUT ROWID;
CREATE TABLE failed_deliveries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL,
    tag TEXT NOT NULL,
    at INTEGER NOT NULL,
    how TEXT NOT NULL,
    failed INTEGER NOT NULL,
    consumer TEXT NOT NULL
);
CREATE INDEX failed_deliveries_queue ON failed_deliveries (queue, number);
""",
}


def _queue_of(binding: bytes) -> str | None:
    """Return whose a binding is; None for one that says nothing of it."""
    try:
        _, queue = unpack(binding)
    except (EnvelopeError, TypeError, ValueError):
        return None
    return queue if isinstance(queue, str) else None


def statements(text: str) -> Iterable[str]:
    """Yield the statements of *text*, one at a time."""
    found = ""
    for line in text.splitlines(keepends=True):
        found += line
        if sqlite3.complete_statement(found):
            yield found
            found = ""


def version_of(connection: sqlite3.Connection, where: Location) -> int:
    """Return the version of the file, 0 for an empty one; raises ConfigurationError."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application or version or tables:
            raise ConfigurationError(
                f"{where}: an SQLite file of another program; name a file of its own"
            )
        return 0
    if version > VERSION:
        raise ConfigurationError(
            f"{where}: the file has version {version}, and this reliq knows versions up to "
            f"{VERSION}: upgrade reliq, or name another file"
        )
    return int(version)


def bring_up_to_date(connection: sqlite3.Connection, where: Location) -> None:
    """Create or migrate the tables, in the transaction that the caller has begun."""
    version = version_of(connection, where)
    if version == VERSION:
        return
    if version == 0:
        text = files(__package__).joinpath("schema.sql").read_text("utf-8")
    else:
        text = "".join(MIGRATIONS[transaction] for transaction in range(version, VERSION))
    connection.create_function("queue_of", 1, _queue_of, deterministic=True)
    for statement in statements(text):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
