"""`reliq limit`, and the limits of a queue in `reliq status` and `reliq doctor`."""

import re

import pytest

from reliq import ConfigurationError, NotFound
from reliq.message.queue_arguments import queue_arguments
from tests.integration.kombu_client import Taker, declare, publish
from tests.support.commands import data, run
from tests.support.waiting import wait_until


def limited(connection, name="orders", **arguments):
    """Declare a queue with limits, such as concurrency=5."""
    queue_arguments = {f"x-{key}": value for key, value in arguments.items()}
    return declare(connection, name, queue_arguments=queue_arguments)


def limits_of(client, queue="orders"):
    """Return the limits of *queue* as the Inspector reads them."""
    with client.inspector() as inspector:
        (row,) = inspector.limits(queue)
    return row


def test_set_shown_and_cleared(client):
    """A set limit precedes the declared one, which `limit clear` restores, alone or with others."""
    limited(client.connect(), concurrency=200)
    declare(client.connect(), "other")
    (row,) = data(client.url, "limit", "set", "orders", "--concurrency", 20, "--rate", "100/m")
    assert (20, 200, "100/m", None) == tuple(
        row[name] for name in ("concurrency", "declared_concurrency", "rate", "declared_rate")
    )
    assert [row] == data(client.url, "limit", "show")
    assert [row] == data(client.url, "limit", "show", "orders")
    shown = run(client.url, "limit", "show").stdout
    assert "20 (declared: 200)" in shown
    assert "100/m (declared: none)" in shown
    (row,) = data(client.url, "limit", "set", "orders", "--concurrency", "none", "--rate", "none")
    assert (None, 200, None) == (row["concurrency"], row["declared_concurrency"], row["rate"])
    data(client.url, "limit", "set", "orders", "--concurrency", 3, "--rate", "1/s")
    (row,) = data(client.url, "limit", "clear", "orders", "--rate")
    assert (3, None) == (row["concurrency"], row["rate"])
    (row,) = data(client.url, "limit", "clear", "orders")
    assert (200, None) == (row["concurrency"], row["rate"])
    assert "No queue has a limit." in run(fresh_prefix(client), "limit", "show").stdout


def fresh_prefix(client):
    """Return the URL of another database of the same server, which is empty."""
    return re.sub(r"/\d+$", "/14", client.url)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--concurrency", "0", r"x-concurrency to be a whole number .*such as 200.* got: 0"),
        ("--concurrency", "many", r"x-concurrency to be a whole number .*such as 200.*'many'"),
        ("--concurrency", "1.5", r"x-concurrency to be .*'1\.5'"),
        ("--rate", "0/s", r"x-rate to be a rate such as '500/s'.* got: '0/s'"),
        ("--rate", "100", r"x-rate to be a rate such as .*'100'"),
        ("--rate", "100/d", r"x-rate to be a rate such as .*'100/d'"),
        ("--rate", "100/m burst 0", r"x-rate to be a rate such as .*'100/m burst 0'"),
    ],
)
def test_a_wrong_value_is_refused(client, option, value, words):
    """The error names the queue, the value and an example; the other limit is not set either."""
    limited(client.connect(), concurrency=7)
    other = ("--rate", "5/s") if option == "--concurrency" else ("--concurrency", "5")
    done = run(client.url, "limit", "set", "orders", *other, option, value)
    assert 2 == done.returncode
    assert re.search(f"queue 'orders': expected {words}", done.stderr), done.stderr
    assert (7, None) == (limits_of(client).concurrency, limits_of(client).rate)


def test_an_unknown_queue_and_no_limit(client):
    """An unknown queue has a near one, and a command without a limit names an example."""
    limited(client.connect(), concurrency=7)
    for words in (("show",), ("clear",), ("set", "--rate", "1/s")):
        done = run(client.url, "limit", words[0], "ordres", *words[1:])
        assert (2, True) == (done.returncode, "did you mean 'orders'?" in done.stderr)
    with client.inspector() as inspector, pytest.raises(NotFound):
        inspector.limits("ordres")
    done = run(client.url, "limit", "set", "orders")
    assert (2, True) == (done.returncode, "such as --concurrency 20" in done.stderr)


def test_the_use_of_a_concurrency(client):
    """Status and limits show the messages in hand, those that may start, and the reached limit."""
    connection = client.connect()
    limited(connection, concurrency=2)
    publish(connection, "orders", 1, 2, 3, 4)
    row = limits_of(client)
    assert (0, 4, 2, "") == (row.unacked, row.ready, row.startable, row.reached)
    taker = Taker(connection, "orders", auto_declare=False)
    first, _ = taker.take(2)
    assert taker.gets_nothing()
    row = limits_of(client)
    assert (2, 2, 0) == (row.unacked, row.ready, row.startable)
    assert "2 of 2 in hand" == row.reached
    (queue,) = data(client.url, "status", "--interval", 0)["queues"]
    assert (2, None, "2 of 2 in hand") == (
        queue["concurrency"],
        queue["rate"],
        queue["limit_reached"],
    )
    assert "2 of 2 in hand" in run(client.url, "status", "--interval", "0").stdout
    first.ack()
    assert "" == limits_of(client).reached
    with client.inspector() as inspector:
        inspector.pause("orders")
    assert 0 == limits_of(client).startable


def test_the_use_of_a_rate(client):
    """The next possible start is that of the broker: no message starts before, one does then."""
    connection = client.connect()
    limited(connection, rate="2/s burst 3")
    publish(connection, "orders", *range(6))
    assert 3 == limits_of(client).startable
    taker = Taker(connection, "orders", auto_declare=False)
    taker.take(3)
    row = limits_of(client)
    assert 0 == row.startable
    assert row.next_start_ms is not None
    assert re.fullmatch(r"the next start within 2/s burst 3 is possible in \d+ms", row.reached)
    (message,) = taker.take(1)
    with client.inspector() as inspector:
        assert row.next_start_ms <= inspector.now_ms()
    for held in taker.messages:
        held.ack()
    assert message.acknowledged


def test_a_raised_limit_applies_at_once(client):
    """A waiting consumer gets the next message when an operator raises the limit."""
    connection = client.connect(poll_interval=30, restore_interval=30, visibility_timeout=90)
    limited(connection, concurrency=1)
    publish(connection, "orders", 1, 2)
    taker = Taker(connection, "orders", auto_declare=False)
    taker.take(1)
    assert taker.gets_nothing()
    run(client.url, "limit", "set", "orders", "--concurrency", "2")
    taker.take(1)
    run(client.url, "limit", "set", "orders", "--concurrency", "1")
    publish(connection, "orders", 3)
    assert taker.gets_nothing()
    run(client.url, "limit", "set", "orders", "--concurrency", "none")
    taker.take(1)


def findings(client):
    """Return the doctor's findings about limits."""
    with client.inspector() as inspector:
        return [finding for finding in inspector.doctor() if finding.check == "limits"]


def test_consumers_of_a_version_without_limits(client):
    """Status and doctor report consumers whose version does not enforce the limits of a queue."""
    connection = client.connect(visibility_timeout=90)
    limited(connection, concurrency=2)
    Taker(connection, "orders", auto_declare=False)
    (consumer,) = wait_until(lambda: data(client.url, "consumers"))
    assert "limits" == consumer["enforces"]
    assert [] == findings(client)
    connection.transport.link.session.background.stop()  # a heartbeat would write it again
    (key,) = client.raw.keys("reliq:*consumer*:*" + consumer["id"] + "*") or [None]
    client.raw.hdel(key, "enforces")
    (found,) = findings(client)
    assert "warning" == found.severity
    assert "1 consumer(s) of 'orders'" in found.message
    assert "do not enforce its limits" in found.message
    (queue,) = data(client.url, "status", "--interval", 0)["queues"]
    assert 1 == queue["limit_not_enforced"]
    assert "NOT ENFORCED by 1 consumer(s)" in run(client.url, "status", "--interval", "0").stdout


@pytest.mark.parametrize("stored", ["many", "9" * 400, "-1", ""])
def test_limits_that_no_version_wrote(client, stored):
    """Malformed limits, declarations and states are shown as none, and fail no command."""
    limited(client.connect(), concurrency=5, rate="5/s")
    (key,) = client.raw.keys("reliq:*orders*:meta")
    client.raw.hset(key, mapping={"concurrency": stored, "rate": stored, "rate_state": stored})
    row = limits_of(client)
    assert (None, 5, "5/s", None) == (
        row.concurrency,
        row.declared_concurrency,
        row.declared_rate,
        row.next_start_ms,
    )
    assert 0 == run(client.url, "status", "--interval", "0").returncode
    declaration, _ = queue_arguments("orders", False, {"x-message-ttl": 5})
    client.raw.hset(key, "arguments", declaration)
    assert 0 == run(client.url, "limit", "show").returncode


def test_limits_and_partitions(client):
    """A divided queue refuses limits, and a queue with limits refuses to be divided."""
    connection = client.connect()
    declare(connection, "divided", queue_arguments={"x-partitions": 2})
    limited(connection, concurrency=5)
    with client.inspector() as inspector:
        for queue, changes in (
            ("divided", {"x-concurrency": 5}),
            ("divided", {"x-rate": "5/s"}),
            ("orders", {"x-partitions": 2}),
        ):
            with pytest.raises(ConfigurationError, match=f"'{queue}': .*several partitions"):
                inspector.configure(queue, changes)
        assert [] == inspector.limits("divided")
        assert ["orders"] == [row.queue for row in inspector.limits()]
        inspector.configure("orders", {"x-concurrency": -1})
        inspector.configure("orders", {"x-partitions": 2})
    done = run(client.url, "limit", "set", "divided", "--rate", "5/s")
    assert (2, True) == (done.returncode, "several partitions" in done.stderr)
