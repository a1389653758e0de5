"""A broker in a file beside other users of the machine: what is theirs is not used or touched."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from kombu import Connection

from reliq import ConfigurationError
from reliq.admin import Inspector
from reliq.engines.sqlite import notifications
from reliq.engines.sqlite.location import location
from tests.integration.kombu_client import declare, publish
from tests.support.audits import assert_balanced
from tests.support.commands import data, run

US, THEM = 65534, 1001
LONG_AGO_S = 1000
two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two other users")

# Once as root, on a file elsewhere, so that all is loaded: others may not read where it is
# installed.
USE = """
import os, sys, tempfile
import kombu, reliq

def use(path):
    with kombu.Connection(f"reliq-sqlite:///{path}") as connection:
        with connection.SimpleQueue("orders") as orders:
            orders.put("one")
            orders.get(timeout=10).ack()
            orders.put("two")

with tempfile.TemporaryDirectory() as directory:
    use(f"{directory}/broker.db")
uid = int(sys.argv[1])
os.setgroups([]), os.setgid(uid), os.setuid(uid)
for path in sys.argv[2:]:
    try:
        use(path)
    except reliq.ReliqError as exc:
        print(type(exc).__name__, exc)
    else:
        print("done")
"""


@pytest.fixture
def shared():
    """Return a directory as /tmp is: everybody makes files in it, and removes only theirs."""
    directory = Path(tempfile.mkdtemp(prefix="reliq-shared-"))
    directory.chmod(0o1777)
    yield directory
    shutil.rmtree(directory)


def use(*paths, uid=US):
    """Publish and consume over files as a user; return what came of each, a line each."""
    done = subprocess.run(
        [sys.executable, "-c", USE, str(uid), *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout.strip()


def given_to(path, uid):
    """Make *uid* the owner of what is at a path, a link too."""
    os.chown(path, uid, uid, follow_symlinks=False)
    return path


def refused(said, path, owner):
    """Fail unless an error names the path and whose it is."""
    assert said.startswith("ConfigurationError"), said
    assert f"'{path}'" in said
    assert f"its owner is user {owner}, and this is user {US}" in said


@two_users
def test_a_broker_of_our_own(shared):
    """In a directory that everybody writes to it works, with all that lies beside it."""
    assert "done" == use(shared / "broker.db")
    assert {US} == {path.stat().st_uid for path in shared.rglob("*")}
    assert "done" == use(shared / "broker.db")
    url = f"reliq-sqlite:///{shared}/broker.db"
    with Inspector(url) as inspector:  # root may look
        assert 2 == inspector.status("orders").ready
    assert_balanced(url)


@two_users
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_notifications_that_somebody_else_made(shared, mode):
    """Their directory is refused, whatever its mode."""
    directory = shared / "broker.db-notifications"
    directory.mkdir()
    given_to(directory, THEM).chmod(mode)
    refused(use(shared / "broker.db"), directory, THEM)
    assert [] == list(directory.iterdir())


@two_users
def test_a_link_where_the_notifications_are(shared):
    """Nothing at its other end is taken for ours, and none of it removed."""
    precious = shared / "precious"
    precious.mkdir()
    given_to(precious, US)
    files = [precious / name for name in ("poetry.lock", "1-0123456789ab.lock")]
    for path in files:
        path.touch()
        given_to(path, US)
        os.utime(path, (path.stat().st_mtime - LONG_AGO_S,) * 2)
    link = shared / "broker.db-notifications"
    link.symlink_to(precious)
    given_to(link, THEM)
    refused(use(shared / "broker.db"), link, THEM)
    assert sorted(files) == sorted(precious.iterdir())


SUFFIXES = ("", "-wal", "-shm", "-journal", "-reserve")


@two_users
def test_files_that_somebody_else_put_in_our_place(shared):
    """The file of messages, and what lies beside it: refused, and nothing is written to it."""
    paths = [shared / f"{number}.db{suffix}" for number, suffix in enumerate(SUFFIXES)]
    for path in paths:
        path.touch()
        given_to(path, THEM).chmod(0o666)
    said = use(*(shared / f"{number}.db" for number in range(len(SUFFIXES)))).splitlines()
    for path, line in zip(paths, said, strict=True):
        refused(line, path, THEM)
        assert b"" == path.read_bytes()


@two_users
def test_links_that_somebody_else_put_in_our_place(shared):
    """They are refused, and what they lead to is not written to."""
    precious = shared / "precious"
    precious.write_text("precious")
    given_to(precious, US)
    paths = [shared / f"{number}.db{suffix}" for number, suffix in enumerate(SUFFIXES)]
    for path in paths:
        path.symlink_to(precious)
        given_to(path, THEM)
    first, *said = use(*(shared / f"{number}.db" for number in range(len(SUFFIXES)))).splitlines()
    assert "precious" in first  # one name for one file: it is looked at, and is no broker
    for path, line in zip(paths[1:], said, strict=True):
        refused(line, path, THEM)
    assert "precious" == precious.read_text()


@two_users
def test_a_file_that_was_put_where_only_its_owner_writes(shared):
    """Several users may share one: its owner has made it so."""
    place = shared / "place"
    place.mkdir()
    given_to(place, THEM).chmod(0o755)
    path = place / "broker.db"
    assert "done" == use(path, uid=THEM)
    for made in place.glob("broker.db*"):
        if made.is_file():
            made.chmod(0o666)
    # A user who may not make files there gets no further, but not for whose file it is.
    assert "belongs to somebody else" not in use(path)


def test_notifications_that_others_may_write(tmp_path):
    """They are refused with their mode, though they are ours."""
    (tmp_path / "broker.db-notifications").mkdir()
    (tmp_path / "broker.db-notifications").chmod(0o777)
    with pytest.raises(ConfigurationError, match=r"may be written by others \(mode 0777\)"):
        Connection(f"reliq-sqlite:///{tmp_path}/broker.db").default_channel  # noqa: B018


@pytest.mark.parametrize("replaced_by", ["link", "file"])
def test_a_notification_that_was_replaced(tmp_path, replaced_by):
    """Nobody is rung through a link, and no file is written to."""
    where = location(str(tmp_path / "broker.db"))
    fd = notifications.make(where, "1-0123456789ab")
    path = Path(notifications.path_of(where, "1-0123456789ab"))
    precious = tmp_path / "precious"
    precious.write_text("precious")
    path.unlink()
    if replaced_by == "link":
        path.symlink_to(precious)
    else:
        path.write_text("precious")
    assert not notifications.notify(where, "1-0123456789ab", "orders")
    assert not notifications.notify(where, "../../precious", "orders")
    notifications.is_dead(where, "1-0123456789ab")
    assert "precious" == path.read_text() == precious.read_text()
    os.close(fd)


def test_an_export_is_for_its_owner_alone(client, tmp_path):
    """Messages are in it; it goes through no link."""
    connection = client.connect()
    declare(connection, "orders")
    publish(connection, "orders", 1)
    connection.default_channel.basic_get("orders").reject()
    path = tmp_path / "letters"
    umask = os.umask(0)
    try:
        data(client.url, "dead", "export", "orders", path)
    finally:
        os.umask(umask)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    done = run(client.url, "dead", "export", "orders", link)
    assert (2, True) == (done.returncode, "cannot write" in done.stderr), done.stderr
    assert not (tmp_path / "elsewhere").exists()
    link.unlink()
    link.symlink_to(path)
    done = run(client.url, "dead", "export", "orders", link, "--resume")
    assert (2, True) == (done.returncode, "cannot write" in done.stderr), done.stderr
