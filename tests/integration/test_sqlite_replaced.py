"""The file, or what lies beside it, is removed or replaced while workers use it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from subprocess import DEVNULL

import pytest
from kombu import Connection

from tests.support.files import FileBroker
from tests.support.site import CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import POOLS

from .kombu_client import get, publish

LATE = {"task_acks_late": True, "task_ignore_result": True, "result_backend": None}
BESIDE = ("", "-wal", "-shm", "-reserve")


@pytest.fixture
def file_broker(tmp_path):
    """Return a broker that is a file."""
    return FileBroker(tmp_path)


@pytest.fixture
def file_site(file_broker, tmp_path_factory):
    """Return a Celery application on it."""
    site = CelerySite(file_broker, "reliq", tmp_path_factory.mktemp("site"), dict(LATE))
    yield site
    site.close()


def remove(path, *suffixes):
    """Remove the file and what lies beside it, or a part of that."""
    for suffix in suffixes:
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    if not suffixes or "-notifications" in suffixes:
        shutil.rmtree(f"{path}-notifications", ignore_errors=True)


def intact(path):
    """Whether SQLite finds nothing wrong in the file."""
    with closing(sqlite3.connect(path)) as rows:
        return rows.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("what", ["all", "file"])
def test_a_file_that_is_removed_is_made_anew(file_site, pool, what):
    """What is published after the file was removed is in another one, and workers find it."""
    path = file_site.server.path
    worker = file_site.worker(pool=pool, concurrency=2)
    file_site.journal.wait_finished(file_site.send("record").id)
    remove(path, *(BESIDE if what == "all" else ("",)))
    if what == "all":
        shutil.rmtree(f"{path}-notifications")
    for _ in range(3):
        file_site.journal.wait_finished(file_site.send("record").id, timeout_s=20)
    other = CelerySite(file_site.server, "reliq", file_site.directory, dict(LATE))
    try:
        file_site.journal.wait_finished(other.send("record").id, timeout_s=20)
    finally:
        other.close()
    file_site.settled()
    assert worker.shut_down() == 0
    assert intact(path)


def opened(pid, path):
    """Return how often a process has that file open."""
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(descriptor.readlink()) == str(path)
    return found


def test_a_new_connection_beside_one_to_the_old_file(tmp_path):
    """The log of the file that was there is not taken for that of the backup."""
    broker = FileBroker(tmp_path)
    other = Connection(broker.url(), transport_options={"poll_interval": 1})
    with Connection(broker.url()) as old, other as new:
        publish(old, "q", "kept")
        with closing(sqlite3.connect(broker.path)) as rows:
            rows.execute("VACUUM INTO ?", (f"{broker.path}.backup",))
        publish(old, "q", "after the backup")
        log = Path(f"{broker.path}-wal").stat().st_ino
        Path(f"{broker.path}.backup").rename(broker.path)
        publish(new, "q", "new")
        assert log != Path(f"{broker.path}-wal").stat().st_ino
        with pytest.raises(old.connection_errors, match="removed or replaced"):
            publish(old, "q", "too late")
        publish(old, "q", "last")
        for body in ("kept", "new", "last"):
            message = get(new, "q")
            assert body == message.payload
            message.ack()
    broker.assert_sound()


@pytest.mark.parametrize("pool", POOLS)
def test_a_file_that_is_replaced_by_its_backup(file_site, pool):
    """Workers go on with the backup that was moved into the file's place, and do not harm it."""
    path = file_site.server.path
    left = [file_site.send("record").id for _ in range(5)]
    with closing(sqlite3.connect(path)) as rows:
        rows.execute("VACUUM INTO ?", (f"{path}.backup",))
    worker = file_site.worker(pool=pool, concurrency=2)
    for task in left:
        file_site.journal.wait_finished(task)
    file_site.settled()  # an ack that is still under way would settle the task in the backup too
    # With a thread in the background it opens the file twice. Who opens it for the first time
    # in the very moment of the rename meets the log of the file that was there.
    wait_until(lambda: opened(worker.pid, path) >= (1 if pool == "prefork" else 2))
    Path(f"{path}.backup").rename(path)
    for task in left:
        file_site.journal.wait_finished(task, times=2, timeout_s=20)
    file_site.journal.wait_finished(file_site.send("record").id, timeout_s=20)
    file_site.settled()
    assert worker.shut_down() == 0
    assert intact(path)


def test_who_ticks_is_present_again_at_once(file_broker):
    """The lock by which a consumer is known to live is made anew with its next tick.

    Not with its next survey: that may come later than others give it.
    """
    options = {"orphan_grace": 1.0}
    with Connection(file_broker.url(), transport_options=options) as connection:
        store = connection.default_channel.transport.link.store
        name, _ = store.server()
        shutil.rmtree(f"{file_broker.path}-notifications")
        lock = Path(locked_by(file_broker.path, name))
        wait_until(lambda: store.check() or lock.exists(), timeout_s=5, what="a lock")
        assert not taken(locked_by(file_broker.path, name))


def locked_by(path, name):
    """Return the file that a process locks that is present as *name*."""
    return f"{path}-notifications/{name}.lock"


def taken(lock):
    """Whether another process could lock the file."""
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", code, lock]
    return subprocess.run(command, check=False, stderr=DEVNULL).returncode == 0


@pytest.mark.parametrize("pool", POOLS)
def test_the_notifications_are_removed(file_site, pool):
    """Workers whose notifiers were removed are woken soon, and nobody takes them for dead."""
    path = file_site.server.path
    workers = [file_site.worker(pool=pool, concurrency=1) for _ in range(2)]
    long = [file_site.send("record_late", 8.0).id for _ in range(2)]
    for task in long:
        file_site.journal.wait_started(task)
    shutil.rmtree(f"{path}-notifications")
    for task in long:
        file_site.journal.wait_finished(task)
    for _ in range(3):
        file_site.journal.wait_finished(file_site.send("record").id, timeout_s=5)
    assert set(file_site.journal.started().values()) == {1}
    file_site.settled()
    for worker in workers:
        assert worker.shut_down() == 0
