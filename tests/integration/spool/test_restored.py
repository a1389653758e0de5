"""A spool's file that went back in time loses no publish that was confirmed afterwards.

A power cut takes back what was not synced; an operator, or a snapshot, restores an older copy. The
file keeps its inode.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from kombu import Connection

from reliq import transports
from reliq.spool.journal import JOURNALS
from tests.integration.spool.test_spool import Away
from tests.support.audits import assert_balanced
from tests.support.workers import ROOT

SIDES = ("", "-wal", "-shm")
PUBLISH = """
import sys
import reliq
from kombu import Connection
with Connection(sys.argv[1].split(), failover_strategy="primary") as connection:
    for body in sys.argv[2].split():
        connection.Producer().publish(
            body, routing_key="q", retry=True, retry_policy={"max_retries": 3}
        )
"""


def copy_of(path):
    """Return the contents of the spool's files, read without SQLite."""
    files = [path.with_name(path.name + side) for side in SIDES]
    return {file: file.read_bytes() for file in files if file.exists()}


def restore(path, copy):
    """Overwrite the spool's files in place, so that each keeps its inode."""
    for side in SIDES:
        file = path.with_name(path.name + side)
        if file not in copy:
            file.unlink(missing_ok=True)
            continue
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, len(copy[file]))
        os.pwrite(descriptor, copy[file], 0)
        os.close(descriptor)


@pytest.fixture
def away(redis_factory, tmp_path):
    """Return a separate Redis and a spool; the ledgers balance at the end."""
    away = Away(redis_factory(appendonly=True), tmp_path)
    yield away
    JOURNALS.at(str(away.path)).close()
    assert_balanced(away.home)


class InThisProcess:
    """Publishes by this process, which keeps the file open."""

    def __init__(self, away):
        self.away = away

    def publish(self, *bodies):
        """Publish into the spool, as no broker answers."""
        with self.away.connect(probe_interval=60) as connection:
            for body in bodies:
                self.away.publish(connection, body)

    def forward(self):
        """Forward all."""
        with Connection(self.away.home) as connection:
            connection.connect()
            return transports.forward(JOURNALS.at(str(self.away.path)), connection.transport)


class InNewProcesses(InThisProcess):
    """Publishes by a new process each, as after a power cut."""

    def publish(self, *bodies):
        """Publish into the spool by a process that ends then."""
        command = [sys.executable, "-c", PUBLISH, " ".join(self.away.urls), " ".join(bodies)]
        subprocess.run(command, check=True, cwd=ROOT, timeout=60)

    def forward(self):
        """Forward all, and close the file."""
        count = super().forward()
        JOURNALS.at(str(self.away.path)).close()
        return count


@pytest.mark.parametrize(
    "by", [InThisProcess, pytest.param(InNewProcesses, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("before", [(), ("a1", "a2")], ids=["an empty copy", "a copy with two"])
def test_nothing_confirmed_afterwards_is_lost(away, by, before):
    """Publishes after the restore are stored, and those before it are not stored twice."""
    at = by(away)
    away.server.kill()
    at.publish("first")
    away.server.start()
    assert 1 == at.forward()
    away.server.kill()
    at.publish(*before)
    copy = copy_of(away.path)
    at.publish("b1", "b2", "b3")
    away.server.start()
    assert 3 + len(before) == at.forward()
    away.server.kill()
    restore(away.path, copy)
    at.publish("c1", "c2", "c3", "c4")
    away.server.start()
    at.forward()
    assert 0 == JOURNALS.at(str(away.path)).holds
    expected = ["first", *before, "b1", "b2", "b3", "c1", "c2", "c3", "c4"]
    assert expected == away.bodies()
