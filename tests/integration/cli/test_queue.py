"""`reliq queue`, as an operator runs it."""

import os
import pty
import re
import subprocess

import pytest

from reliq import ConfigurationError, NotFound, PreconditionFailed
from reliq.admin.names import CHANGEABLE
from tests.integration.kombu_client import Taker, declare, publish
from tests.support.commands import RELIQ, data, environment, run
from tests.support.waiting import wait_until


@pytest.mark.slow
def test_paused_and_resumed(client):
    """A paused queue delivers no messages until it is resumed."""
    connection = client.connect()
    declare(connection, "orders")
    (row,) = data(client.url, "queue", "pause", "orders")
    assert row["paused"]
    assert client.status("orders").paused
    publish(connection, "orders", 1)
    taker = Taker(connection, "orders")
    assert taker.gets_nothing()
    assert "resumed" in run(client.url, "queue", "resume", "orders").stdout
    assert [1] == taker.take_bodies(1)
    done = run(client.url, "queue", "pause", "nothing")
    assert (2, "Error: NOT_FOUND - no queue 'nothing'; reliq status lists all\n") == (
        done.returncode,
        done.stderr,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("peek", "ordres"),
        ("queue", "pause", "ordres"),
        ("queue", "purge", "ordres", "--yes"),
        ("queue", "delete", "ordres", "--yes"),
        ("queue", "set", "ordres"),
        ("dead", "list", "ordres"),
        ("dead", "replay", "ordres"),
        ("move", "ordres", "--from", "here", "--to", "here"),
    ],
    ids=" ".join,
)
def test_an_unknown_queue_has_a_near_one(client, arguments):
    """The error of each command for an unknown queue names the similar ones."""
    declare(client.connect(), "orders")
    url = None if "--from" in arguments else client.url
    done = run(url, *(client.url if one == "here" else one for one in arguments))
    assert 2 == done.returncode
    assert "Error: NOT_FOUND - no queue 'ordres'; did you mean 'orders'?" in done.stderr


@pytest.mark.slow
def test_purged_after_a_question(client):
    """A purge removes ready and delayed messages only; a dry run counts them."""
    connection = client.connect()
    declare(connection, "orders")
    publish(connection, "orders", 1, 2, 3)
    publish(connection, "orders", 4, headers={"x-delay": 60_000})
    taker = Taker(connection, "orders", prefetch_count=1)
    (held,) = taker.take()
    done = run(client.url, "queue", "purge", "orders")
    assert (2, True) == (done.returncode, "use --yes" in done.stderr)
    (row,) = data(client.url, "queue", "purge", "orders", "--dry-run")
    assert (3, True) == (row["count"], row["dry_run"])
    assert 2 == client.status("orders").ready
    (row,) = data(client.url, "queue", "purge", "orders", "--yes")
    status = client.status("orders")
    assert (3, 0, 0, 1) == (row["count"], status.ready, status.delayed, status.unacked)
    held.ack()


def answer(url, text, *arguments):
    """Run a command on a terminal and type *text*; return its exit code and output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*RELIQ, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(url)
    )
    os.close(theirs)
    os.write(ours, text.encode())
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    return process.wait(30), said.decode()


def test_the_question_names_what_is_lost(client):
    """On a terminal, the confirmation states the numbers; "no" changes nothing."""
    connection = client.connect()
    declare(connection, "orders")
    publish(connection, "orders", 1, 2)
    code, said = answer(client.url, "n\n", "queue", "delete", "orders")
    assert (2, True) == (code, "2 ready, 0 delayed, 0 unacked and 0 dead" in said), said
    assert 2 == client.status("orders").ready
    code, said = answer(client.url, "y\n", "queue", "delete", "orders")
    assert (0, True) == (code, "deleted with 2 waiting messages" in said), said
    assert client.status("orders") is None


def test_deleted_on_conditions(client):
    """--if-empty and --if-unused keep a queue with waiting messages or consumers."""
    connection = client.connect()
    declare(connection, "orders")
    publish(connection, "orders", 1)
    done = run(client.url, "queue", "delete", "orders", "--if-empty", "--yes")
    assert (2, True) == (done.returncode, "is not empty: 1 messages" in done.stderr)
    taker = Taker(connection, "orders")
    taker.take_bodies(1)
    with client.inspector() as inspector:
        with pytest.raises(PreconditionFailed, match="has 1 consumers"):
            inspector.delete("orders", if_unused=True)
        with pytest.raises(NotFound, match="no queue 'nothing'"):
            inspector.delete("nothing")
    taker.consumer.cancel()
    (row,) = data(client.url, "queue", "delete", "orders", "--if-unused", "--yes")
    assert 0 == row["count"]


def test_deleting_a_queue_removes_its_bindings(client):
    """Deleting a queue removes its bindings."""
    connection = client.connect()
    with connection.SimpleQueue("orders"), client.inspector() as inspector:
        inspector.delete("orders")
    assert {b"version"} == set(client.raw.hkeys("reliq:bindings:{orders}"))


def test_settings_hold_and_go_back(client):
    """A changed limit applies from the next publish; its removal restores the declared value."""
    connection = client.connect()
    declare(connection, "orders", max_length=50)
    assert "x-max-length=50" in run(client.url, "queue", "set", "orders").stdout
    (row,) = data(client.url, "queue", "set", "orders", "max-length=2", "x-delivery-limit=-1")
    assert {"x-max-length": 2, "x-delivery-limit": -1} == row["settings"]
    publish(connection, "orders", 1, 2, 3)
    assert (2, 1) == (client.status("orders").ready, client.status("orders").dead)
    declare(connection, "orders", max_length=50)  # as every worker does when it starts
    assert {"x-max-length": 50} == client.status("orders").arguments
    (row,) = data(client.url, "queue", "set", "orders", "max-length=", "delivery-limit=")
    assert {"x-max-length": 50} == row["settings"]


def test_settings_that_make_no_sense(client):
    """An invalid setting is an error that names the expected values; nothing changes."""
    declare(client.connect(), "orders")
    with client.inspector() as inspector:
        for changes, words in (
            ({"x-max-length": 0}, "x-max-length to be a whole number of messages, at least 1"),
            ({"x-max-priority": 9}, "'x-max-priority' cannot be changed; expected one of"),
            ({"x-overflow": "drop-head"}, "x-overflow has no effect without x-max-length"),
            ({"x-max-length": 5, "x-overflow": "burst"}, "'drop-head' or 'reject-publish'"),
        ):
            with pytest.raises(ConfigurationError, match=words):
                inspector.configure("orders", changes)
        with pytest.raises(NotFound):
            inspector.configure("nothing", {"x-max-length": 5})
        assert {} == inspector.settings("orders")
    done = run(client.url, "queue", "set", "orders", "max-length")
    assert (2, True) == (done.returncode, "expected NAME=VALUE" in done.stderr)
    shown = re.sub(r"-\n +", "-", run(None, "queue", "set", "--help").stdout)
    assert [] == [name for name in CHANGEABLE if name not in shown]


def test_a_delivery_limit_that_was_set_holds_in_a_worker(client):
    """A running consumer applies a changed delivery limit."""
    connection = client.connect()
    declare(connection, "orders")
    taker = Taker(connection, "orders")
    run(client.url, "queue", "set", "orders", "delivery-limit=1")
    publish(connection, "orders", 1)
    taker.take()[0].requeue()
    wait_until(lambda: client.status("orders").dead == 1)
